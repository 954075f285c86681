"""The account of step records in real trainings, from the page of metrics alone: during them, after them, and after a
SIGKILL with a spill.
"""

import os
import re
import signal
from pathlib import Path

from rankscope.agent.reporting.spill_folder import find_boot_ids, find_files, open_folder
from rankscope.agent.reporting.spill_format import REPORT, decode_records
from tests.integration.fault_figures import Fault
from tests.integration.faults import check_identity, read_accounts, wait_for_accounts
from tests.integration.serving import find_rank, have_ended, is_end_known, serving, wait_for
from tests.integration.torchrun import AGENT, ALONE, OFTEN, Forked, forked_ranks, python, run, started

RUN = "accounted"


def count_reports_on_disk(folder: str) -> int:
    """How many reports lie there that can be read."""
    files = [file for boot_id in find_boot_ids(folder) for file in find_files(folder, boot_id)]
    return sum(record.kind == REPORT for file in files for record in decode_records(Path(file.path).read_bytes()))


def test_page_accounts_for_every_step_during_and_after_training(tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    with serving() as served:
        settings = {**OFTEN, "RANKSCOPE_RUN": RUN, "RANKSCOPE_COLLECTOR": served.endpoint}
        with started(forked_ranks(2, *AGENT, "paced.py", "--stop", str(stop)), settings) as job:
            for steps in (1, 20, 40):
                wait_for_accounts(served, RUN, {0: steps, 1: steps})
            stop.touch()
            ended = job.wait()
        assert ended.exit_code == 0, ended.stderr
        served.wait_for_run(RUN, have_ended)
        accounts = check_identity(served, RUN)
    trained = {int(rank): int(steps) for rank, steps in re.findall(r"rank (\d) has trained (\d+) steps", ended.stdout)}
    assert {rank: account.made for rank, account in accounts.items()} == trained
    assert {rank: account.published for rank, account in accounts.items()} == trained


def test_what_a_killed_training_had_written_to_the_disk_arrives(tmp_path: Path) -> None:
    """It is killed while the collector is stopped, with more reports on the disk than can be in sockets."""
    folder = open_folder(str(tmp_path))
    with serving() as served:
        settings = {
            **OFTEN, **ALONE, "RANKSCOPE_RUN": f"{RUN}-{os.getpid()}-{tmp_path.name}",
            "RANKSCOPE_COLLECTOR": served.endpoint, "RANKSCOPE_SPILL_DIR": str(tmp_path),
        }  # fmt: skip
        run = settings["RANKSCOPE_RUN"]
        with started(python(*AGENT, "paced.py"), settings) as job:
            before = wait_for_accounts(served, run, {0: 10})[0]
            fault = Fault(
                "SIGKILL of a real training with 80 reports and more on the disk, the collector stopped",
                "its sidecar delivers every one of them",
            )
            served.send(signal.SIGSTOP)
            there = count_reports_on_disk(folder)
            wait_for(
                lambda: True if count_reports_on_disk(folder) >= there + 80 else None,
                lambda: f"{count_reports_on_disk(folder) - there} reports more on the disk",
            )
            job.launcher.kill()
            job.launcher.wait()
            written = count_reports_on_disk(folder)
            served.send(signal.SIGCONT)
            fault.is_over()
            wait_for(lambda: None if find_boot_ids(folder) else True, lambda: f"still there: {find_boot_ids(folder)}")
            seen = served.wait_for_run(run, lambda run: is_end_known(run) and run.ranks[0].last_sequence >= written)
            accounts = read_accounts(served, run)
            fault.settle(served, accounts)
            account = accounts[0]
    assert (account.unaccounted, account.gaps) == (0, 0)
    assert account.made > before.made + 40  # a step takes 20 ms and more, 80 reports take 8 s
    assert (find_rank(seen, 0).ended, find_rank(seen, 0).last_sequence) == ("killed", written)


def test_folder_that_cannot_be_made_is_told_once_and_counted() -> None:
    with serving() as served:
        settings = {
            **OFTEN, **ALONE, "RANKSCOPE_RUN": "no-folder", "RANKSCOPE_COLLECTOR": served.endpoint,
            "RANKSCOPE_SPILL_DIR": "/proc/no-folder",
        }  # fmt: skip
        ended = run(Forked((*AGENT, "paced.py", "--steps", "60")), settings)
        seen = find_rank(served.wait_for_run("no-folder", have_ended), 0)
        account = check_identity(served, "no-folder")[0]
    assert ended.exit_code == 0, ended.stderr
    (said,) = [line for line in ended.heard_of_agent if "spill_dir" in line]
    assert "reports cannot be written to spill_dir ([Errno 2] No such file or directory: '/proc/no-folder')" in said
    assert seen.losses.errors["spill"] >= 1
    assert (account.made, account.published, account.gaps) == (60, 60, 0)
