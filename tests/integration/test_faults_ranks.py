"""Ranks are killed while the collector is away: what they had written to the disk arrives all the same."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from rankscope.agent.reporting.orphaned_reports import ReportAddress, claim_orphan, deliver
from rankscope.agent.reporting.spill_folder import find_boot_ids, find_files, open_folder
from rankscope.agent.reporting.spill_format import REPORT, decode_records
from rankscope.agent.sidecar.beacon import find_names
from rankscope.agent.sidecar.directory import find_root
from rankscope.collector.runs.snapshot import RankSnapshot
from rankscope.measure.clock import SystemClock
from rankscope.measure.units import s_to_ns
from tests.integration.fault_figures import Fault
from tests.integration.faults import RankProcess, check_identity, ranks_of, wait_for_accounts
from tests.integration.light_ranks import STEPS_PER_REPORT
from tests.integration.serving import Served, find_fixed_port, find_rank, serving, wait_for


def wait_until_delivered(spill_dir: Path) -> None:
    """Wait until nothing is left on the disk."""
    folder = open_folder(str(spill_dir))
    wait_for(
        lambda: True if not find_boot_ids(folder) else None,
        lambda: f"still there: {find_boot_ids(folder)}",
    )


def wait_for_end(served: Served, run: str, rank: int) -> RankSnapshot:
    """The rank, once its sidecar has said how it ended."""
    seen = served.wait_for_run(run, lambda run: any(r.end is not None and r.identity.rank == rank for r in run.ranks))
    return find_rank(seen, rank)


def kill_sidecar(spill_dir: Path) -> None:
    """SIGKILL the sidecars that were told of a rank with this spill folder, if any is left."""
    root = Path(find_root())
    for folder in root.iterdir():
        for name in find_names(str(folder)):
            if str(spill_dir) in (folder / f"{name}.json").read_text():
                for process in psutil.process_iter(["cmdline"]):
                    if str(folder) in (process.info["cmdline"] or []):
                        process.kill()
                        process.wait(30)


@pytest.fixture
def run(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A run that no other test has, here or on another worker."""
    return f"{request.node.name[:60]}-{tmp_path.name}-{id(tmp_path)}"


def test_rank_killed_while_collector_is_stopped_lacks_no_report(run: str, tmp_path: Path) -> None:
    with serving() as served, ranks_of([RankProcess(run, "0", "1", served.endpoint, str(tmp_path))]) as (rank,):
        rank.wait_for_report(5)
        wait_for_accounts(served, run, {0: 1})
        fault = Fault(
            "SIGKILL of a rank while the collector is stopped, with a spill",
            "its sidecar delivers what is on the disk, in its name and under its numbers",
        )
        served.send(signal.SIGSTOP)
        rank.wait_for_reports(100)  # more than the 64 that may be in flight, and so in somebody's socket
        rank.kill()
        served.send(signal.SIGCONT)
        fault.is_over()
        wait_until_delivered(tmp_path)
        accounts = wait_for_accounts(served, run, {0: rank.made})
        fault.settle(served, accounts)
        account = accounts[0]
        assert (account.made, account.gaps, account.elsewhere) == (rank.made, 0, 0)
        end = wait_for_end(served, run, 0)
        assert (end.ended, end.last_sequence) == ("killed", rank.last_report)


def damage_report(spill_dir: Path, boot_id: str, sequence: int) -> None:
    """Change one byte in the body of that report on the disk."""
    for file in find_files(open_folder(str(spill_dir)), boot_id):
        block = Path(file.path).read_bytes()
        for record in decode_records(block):
            if (record.kind, record.sequence) == (REPORT, sequence):
                with Path(file.path).open("r+b") as opened:
                    opened.seek(record.end - 1)
                    opened.write(bytes([block[record.end - 1] ^ 1]))
                return
    raise AssertionError(f"report {sequence} is not on the disk")


def test_damaged_report_left_by_a_killed_rank_costs_itself_only(run: str, tmp_path: Path) -> None:
    with serving() as served, ranks_of([RankProcess(run, "0", "1", served.endpoint, str(tmp_path))]) as (rank,):
        rank.wait_for_report(5)
        wait_for_accounts(served, run, {0: 1})
        fault = Fault(
            "one byte of the spill changed, the rank killed by SIGKILL while the collector is stopped",
            "its sidecar delivers every other report, those behind it too",
        )
        served.send(signal.SIGSTOP)
        rank.wait_for_reports(100)
        damage_report(tmp_path, rank.boot_id, rank.last_report - 10)  # further than the 64 that may be in flight
        rank.kill()
        served.send(signal.SIGCONT)
        fault.is_over()
        wait_until_delivered(tmp_path)
        accounts = wait_for_accounts(served, run, {0: rank.made})
        fault.settle(served, accounts)
        account = accounts[0]
        assert (account.made, account.gaps, account.dropped) == (rank.made, 1, STEPS_PER_REPORT)
        assert account.unaccounted == 0
        end = wait_for_end(served, run, 0).end
        assert end is not None
        assert "bytes between records on the disk are damaged; the reports in them are lost" in end.absent["spill"]


def test_left_reports_older_than_the_collectors_settle_at_once(run: str, tmp_path: Path) -> None:
    """The disk has lost the end of what the rank wrote, and with it how far the collector had acknowledged."""
    with serving() as served, ranks_of([RankProcess(run, "0", "1", served.endpoint, str(tmp_path))]) as (rank,):
        rank.wait_for_report(40)
        wait_for_accounts(served, run, {0: 30 * STEPS_PER_REPORT})
        kill_sidecar(tmp_path)
        rank.kill()
        folder, clock = open_folder(str(tmp_path)), SystemClock()
        (file,) = find_files(folder, rank.boot_id)
        reports = [record for record in decode_records(Path(file.path).read_bytes()) if record.kind == REPORT]
        os.truncate(file.path, reports[9].end)
        life = claim_orphan(folder, rank.boot_id)
        assert life is not None
        assert life.held[-1].sequence == 10
        deadline_ns = clock.monotonic_ns() + s_to_ns(30)
        address = ReportAddress(served.endpoint)
        assert deliver(life, address, clock, deadline_ns=deadline_ns, is_stopping=lambda: False)
        life.close()


def test_rank_killed_between_collectors_is_delivered_to_the_next(run: str, tmp_path: Path) -> None:
    address = f"tcp://127.0.0.1:{find_fixed_port()}"
    ranks = [RankProcess(run, str(rank), "2", address, str(tmp_path)) for rank in range(2)]
    with ranks_of(ranks) as (victim, other):
        with serving(listen=address) as served:
            wait_for_accounts(served, run, {0: 1, 1: 1})
            served.kill()
        fault = Fault(
            "SIGKILL of a rank between two collectors, with a spill", "its sidecar delivers to the next collector"
        )
        victim.wait_for_reports(20)
        victim.kill()
        with serving(listen=address) as served:
            fault.is_over()
            accounts = wait_for_accounts(served, run, {0: victim.made, 1: 1})
            fault.settle(served, accounts)
            account = accounts[0]
            assert (account.made, account.gaps) == (victim.made, 0)
            # What was acknowledged before is not sent again, the rest is; late where the other rank has gone on since.
            assert account.published + account.late >= 19 * 3
            other.stop()
            wait_until_delivered(tmp_path)
            check_identity(served, run)


def test_leftovers_of_killed_rank_and_sidecar_come_at_next_start(run: str, tmp_path: Path) -> None:
    with serving() as served:
        with ranks_of([RankProcess(run, "0", "2", served.endpoint, str(tmp_path))]) as (first,):
            first.wait_for_report(5)
            wait_for_accounts(served, run, {0: 1})
            fault = Fault(
                "SIGKILL of a rank and of its sidecar, with a spill",
                "the sidecar of the next start of the run on that machine delivers",
            )
            served.send(signal.SIGSTOP)
            first.wait_for_reports(100)
            kill_sidecar(tmp_path)
            first.kill()
            assert find_files(open_folder(str(tmp_path)), first.boot_id)
            served.send(signal.SIGCONT)
        with ranks_of([RankProcess(run, "1", "2", served.endpoint, str(tmp_path))]) as (second,):
            fault.is_over()
            accounts = wait_for_accounts(served, run, {0: first.made, 1: 1})
            fault.settle(served, accounts)
            assert (accounts[0].made, accounts[0].gaps) == (first.made, 0)
            second.stop()
            wait_until_delivered(tmp_path)
            check_identity(served, run)


def test_leftovers_of_a_killed_life_do_not_disturb_the_next_life(run: str, tmp_path: Path) -> None:
    with serving() as served, ranks_of([RankProcess(run, "0", "1", served.endpoint, str(tmp_path))]) as (first,):
        first.wait_for_report(5)
        wait_for_accounts(served, run, {0: 1})
        served.send(signal.SIGSTOP)
        first.wait_for_reports(100)
        first.kill()
        with ranks_of([RankProcess(run, "0", "1", served.endpoint, str(tmp_path))]) as (second,):
            second.wait_for_report(5)
            served.send(signal.SIGCONT)
            served.wait_for_run(run, lambda run: [r.identity.boot_id for r in run.ranks] == [second.boot_id])
            folder = open_folder(str(tmp_path))
            wait_for(
                lambda: True if find_boot_ids(folder) == [second.boot_id] else None,
                lambda: f"of the first life {first.boot_id} something is left: {find_boot_ids(folder)}",
            )
            second.stop()
            account = wait_for_accounts(served, run, {0: second.made})[0]
            assert (account.made, account.gaps, account.elsewhere) == (second.made, 0, 0)


def test_a_rank_that_ends_well_leaves_nothing_on_the_disk(run: str, tmp_path: Path) -> None:
    with serving() as served, ranks_of([RankProcess(run, "0", "1", served.endpoint, str(tmp_path))]) as (rank,):
        rank.wait_for_report(5)
        rank.stop()
        account = wait_for_accounts(served, run, {0: rank.made})[0]
        assert (account.made, account.gaps) == (rank.made, 0)
        assert list(Path(open_folder(str(tmp_path))).iterdir()) == []


def test_a_rank_whose_disk_cannot_be_written_goes_on_in_memory(run: str, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with serving() as served, ranks_of([RankProcess(run, "0", "1", served.endpoint, str(blocked))]) as (rank,):
        rank.wait_for_report(5)
        fault = Fault("a spill folder that cannot be written, and a stopped collector", "it goes on in memory, counted")
        served.send(signal.SIGSTOP)
        rank.wait_for_reports(20)
        served.send(signal.SIGCONT)
        fault.is_over()
        rank.stop()
        accounts = wait_for_accounts(served, run, {0: rank.made})
        fault.settle(served, accounts)
        account = accounts[0]
        assert (account.made, account.gaps) == (rank.made, 0)
