"""However a job ends, the collector says how each rank ended, and nothing of the job is left."""

import contextlib
import json
import os
import re
import signal
import socket
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from rankscope.collector.detect.finding import HANG
from rankscope.collector.reports.summary import HEALTHY, verdict
from rankscope.collector.runs.run_end import RunEnd
from rankscope.collector.runs.run_end_words import FAILURE, write_end
from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot
from rankscope.measure.stalls import describe_frame, find_script_frame
from tests.connections import list_connections
from tests.integration.serving import Served, can_listen, find_rank, is_end_known, read_url, serving
from tests.integration.torchrun import Ended, Job, forked_torchrun, line_of, python, started
from tests.integration.torchrun import run as run_command


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """The standing collector of all these jobs."""
    with serving() as served:
        yield served


class Watched:
    """A job of two ranks that reports to a standing collector."""

    def __init__(self, served: Served, job: Job, run: str, folder: Path) -> None:
        self._served = served
        self._run = run
        self._folder = folder
        self.job = job

    def wait_for_steps(self) -> None:
        """Wait until both ranks have trained some steps."""
        self._served.wait_for_steps(self._run, 5)

    def pid(self, rank: int) -> int:
        """The process of a rank."""
        run = self._served.wait_for_run(self._run, lambda run: len(run.ranks) == run.world_size)
        return find_rank(run, rank).identity.pid

    def read_list(self) -> list[dict[str, Any]]:
        """The list of runs."""
        runs: list[dict[str, Any]] = json.loads(read_url(f"{self._served.url}/api/v1/runs"))["runs"]
        return runs

    def kill_all(self) -> None:
        """SIGKILL to the launcher and, at the same time, to both ranks."""
        pids = [self.job.launcher.pid, self.pid(0), self.pid(1)]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    def read_end(self) -> tuple[RunEnd, RunSnapshot, list[dict[str, Any]]]:
        """How the run ended, its picture then, and the incidents of it. No finding may be open."""
        run = self._served.wait_for_run(self._run, is_told)
        assert run.end is not None
        assert run.open_findings == ()
        text = read_url(f"{self._served.url}/api/v1/incidents?run={self._run}")
        incidents: list[dict[str, Any]] = json.loads(text)["incidents"]
        return run.end, run, incidents

    def end(self) -> tuple[Ended, RankSnapshot, RankSnapshot]:
        """Wait for the end; how the launcher ended and how each rank did. Nothing may be left."""
        ports = {port for member in self.job.find_members() for port in _find_ports(member)}
        ended = self.job.wait()
        run = self._served.wait_for_run(self._run, is_end_known)
        assert ended.left == ()
        assert [path for path in self._folder.rglob("*") if path.is_socket()] == []
        assert [port for port in ports if not can_listen(port)] == []
        return ended, find_rank(run, 0), find_rank(run, 1)


@contextlib.contextmanager
def watched(
    served: Served, run: str, folder: Path, *arguments: str, settings: Mapping[str, str] | None = None
) -> Iterator[Watched]:
    """Start a job whose temporary files are in `folder`."""
    environment = {
        "RANKSCOPE_COLLECTOR": served.endpoint,
        "RANKSCOPE_RUN": run,
        "RANKSCOPE_REPORT_INTERVAL_S": "0.2",
        "TMPDIR": str(folder),
        **(settings or {}),
    }
    with started(forked_torchrun(2, "-m", "rankscope.agent", "paced.py", *arguments), environment) as job:
        yield Watched(served, job, run, folder)


def _find_ports(member: psutil.Process) -> list[int]:
    with contextlib.suppress(psutil.Error):
        return [at.laddr.port for at in list_connections(member) if at.status == psutil.CONN_LISTEN]
    return []


def is_told(run: RunSnapshot) -> bool:
    """Whether the account of the run's end, which is made at each tick, is of that."""
    return is_end_known(run) and run.end is not None and run.end.ranks == Counter(rank.ended for rank in run.ranks)


def find_failures(incidents: list[dict[str, Any]]) -> list[tuple[str, str, list[int]]]:
    """State, cause and ranks of each incident about the run's end."""
    return [(one["state"], one["cause"], one["ranks"]) for one in incidents if one["kind"] == FAILURE]


def failed_by_its_neighbor(rank: RankSnapshot) -> bool:
    """Whether it ended as the neighbor of a rank that is gone does: by the launcher's SIGTERM, unless its collective
    failed before that came. Which of the two is a race that no test can decide.
    """
    return (rank.ended, rank.exit_code) == ("terminated", None) or (
        (rank.ended, rank.exit_code) == ("failed", 1) and "Error" in rank.ended_detail
    )


def test_a_script_that_runs_to_its_end_has_finished(served: Served, tmp_path: Path) -> None:
    with watched(served, "normal", tmp_path, "--steps", "10") as watch:
        ended, first, second = watch.end()
    assert ended.exit_code == 0
    assert [(rank.ended, rank.ended_detail, rank.exit_code) for rank in (first, second)] == [("finished", "", None)] * 2
    assert [rank.totals.steps for rank in (first, second)] == [10, 10]
    end, _, incidents = watch.read_end()
    assert (end.reason, end.ranks, end.first, end.unknown) == ("finished", {"finished": 2}, None, "")
    assert find_failures(incidents) == []
    (listed,) = [one for one in watch.read_list() if one["run"] == "normal"]
    assert (listed["steps_per_s"], listed["open_findings"], listed["steps"]) == (None, 0, 10)
    assert listed["end_in_words"].startswith("finished at ")


def test_an_uncaught_exception_is_told_with_its_type(served: Served, tmp_path: Path) -> None:
    with watched(served, "raise", tmp_path, "--end", "raise") as watch:
        ended, first, second = watch.end()
    assert ended.exit_code == 1
    assert "ValueError: the loss is not a number" in ended.stderr
    assert (second.ended, second.exit_code) == ("failed", 1)
    assert second.ended_detail == "ValueError: the loss is not a number"
    assert second.totals.steps in (19, 20)
    assert failed_by_its_neighbor(first), first
    end, run, incidents = watch.read_end()
    assert end.first is not None
    assert (end.reason, end.first.rank, end.first.detail) == ("failed", 1, "ValueError: the loss is not a number")
    line = f"paced.py:{line_of('paced.py', 'raise ValueError')} (end_by_exception)"
    assert end.first.line == line
    assert f"(ValueError: the loss is not a number) at {line}" in write_end(end)
    assert verdict(run).startswith("The run failed at ")
    assert find_failures(incidents) == [("open", "failed", [1])]


def test_os_exit_is_told_by_the_sidecar_with_its_code(served: Served, tmp_path: Path) -> None:
    with watched(served, "exit", tmp_path, "--end", "exit") as watch:
        ended, first, second = watch.end()
    assert ended.exit_code == 1
    assert re.search(r"exitcode\s*: 7 ", ended.stderr)
    assert (second.ended, second.ended_detail, second.exit_code) == ("failed", "exit code 7", 7)
    assert failed_by_its_neighbor(first), first


@pytest.mark.parametrize(
    ("end", "signal_name", "function"), [("fault", "SIGSEGV", "end_by_fault"), ("abort", "SIGABRT", "main")]
)
def test_a_crash_is_told_with_its_signal_and_the_python_stack(
    served: Served, tmp_path: Path, end: str, signal_name: str, function: str
) -> None:
    with watched(served, end, tmp_path, "--end", end) as watch:
        _, first, second = watch.end()
    assert (second.ended, second.ended_detail.split(",")[0], second.exit_code) == ("crashed", signal_name, None)
    assert second.end is not None
    frame = find_script_frame(second.end.stacks[0].frames)
    assert frame is not None
    assert (frame.file.rpartition("/")[2], frame.function) == ("paced.py", function)
    assert failed_by_its_neighbor(first), first
    told, run, incidents = watch.read_end()
    assert told.first is not None
    assert (told.reason, told.first.rank, told.first.signal) == ("crashed", 1, signal_name)
    assert told.first.line == describe_frame(frame)
    assert "No rank was slower" not in verdict(run)
    assert find_failures(incidents) == [("open", "crashed", [1])]
    line = f'rankscope_rank_end_info{{exit_code="",reason="crashed",signal="{signal_name}",rank="1",run="{end}"}} 1.0'
    served.wait_for_metrics(f"{line}\n")


def test_a_killed_rank_is_told_from_the_one_that_fails_with_it(served: Served, tmp_path: Path) -> None:
    with watched(served, "sigkill", tmp_path) as watch:
        watch.wait_for_steps()
        os.kill(watch.pid(1), signal.SIGKILL)
        ended, first, second = watch.end()
    assert ended.exit_code == 1
    assert (second.ended, second.exit_code) == ("killed", None)
    assert second.ended_detail.startswith("SIGKILL; the OOM killer counted no victim in ")
    assert failed_by_its_neighbor(first), first
    end, _, incidents = watch.read_end()
    assert end.first is not None
    assert (end.reason, end.first.rank, end.first.signal, end.first.together) == ("killed", 1, "SIGKILL", ())
    assert find_failures(incidents) == [("open", "killed", [1])]
    status = run_command(python("-m", "rankscope.collector", "status", "--url", served.url)).stdout
    assert re.search(r"The run was killed at .* UTC", status)
    assert re.search(r"first to fail: rank 1 \(.*\), killed \(SIGKILL; the OOM killer counted no victim in ", status)


def test_rank_returning_amid_training_ended_before_its_victims(served: Served) -> None:
    environment = {"RANKSCOPE_COLLECTOR": served.endpoint, "RANKSCOPE_RUN": "leaving"}
    ended = run_command(forked_torchrun(3, "-m", "rankscope.agent", "leaving_ddp.py"), environment)
    assert ended.exit_code == 1
    end = served.wait_for_run("leaving", is_told).end
    assert end is not None
    assert end.first is not None
    assert (end.reason, end.first.rank, end.first.last_step) == ("failed", 1, 20)
    assert set(end.first.failed_for_want) <= {0, 2}, "one of them may have been ended by the launcher"
    assert "First to end: rank 1 (" in write_end(end)


def test_killing_launcher_and_all_ranks_at_once_names_them_all(served: Served, tmp_path: Path) -> None:
    with watched(served, "sigkill-all", tmp_path) as watch:
        watch.wait_for_steps()
        watch.kill_all()
        end, _, incidents = watch.read_end()
    assert end.first is not None
    assert (end.reason, end.ranks) == ("killed", {"killed": 2})
    assert {end.first.rank, *end.first.together} == {0, 1}
    assert find_failures(incidents) == [("open", "killed", [0, 1])]


def test_long_work_after_the_last_step_of_a_run_is_no_hang(served: Served, tmp_path: Path) -> None:
    arguments = ("--steps", "30", "--after-s", "6")
    with watched(served, "after", tmp_path, *arguments, settings={"RANKSCOPE_STALL_S": "1.0"}) as watch:
        ended, *_ = watch.end()
    assert ended.exit_code == 0
    end, run, _ = watch.read_end()
    assert end.reason == "finished"
    # The last step ends with the run: the work stands in it.
    found = [one for one in run.findings if one.kind == HANG and (one.since_step or 0) >= 29]
    assert [one.severity for one in found] == ["info"]
    told = r"Stall in or after the last step for \d+ s .*, then the run finished: "
    assert re.match(told, found[0].headline), found[0].headline
    assert verdict(run) in (HEALTHY, f"No verdict: {run.abstained}.")


def test_sigterm_to_the_launcher_ends_every_rank(served: Served, tmp_path: Path) -> None:
    with watched(served, "sigterm", tmp_path) as watch:
        watch.wait_for_steps()
        watch.job.launcher.send_signal(signal.SIGTERM)
        ended, first, second = watch.end()
    assert ended.exit_code != 0
    assert "terminated" in (first.ended, second.ended)
    assert watch.read_end()[0].reason in {"terminated", "failed"}  # a collective may fail before the SIGTERM comes
    assert all(failed_by_its_neighbor(rank) for rank in (first, second)), (first, second)


def test_ctrl_c_interrupts_every_rank(served: Served, tmp_path: Path) -> None:
    with watched(served, "sigint", tmp_path) as watch:
        watch.wait_for_steps()
        os.killpg(watch.job.launcher.pid, signal.SIGINT)
        ended, first, second = watch.end()
    assert ended.exit_code != 0
    assert "interrupted" in (first.ended, second.ended)
    assert watch.read_end()[0].reason in {"interrupted", "failed"}  # a collective may fail before the SIGINT comes
    assert all(rank.ended == "interrupted" or failed_by_its_neighbor(rank) for rank in (first, second)), (
        first,
        second,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_collector_asked_to_end_does_so_and_frees_its_ports(number: signal.Signals) -> None:
    with serving() as served, contextlib.ExitStack() as connections:
        for port in served.ports:
            assert not can_listen(port)
            connections.enter_context(socket.create_connection(("127.0.0.1", port)))
        assert served.end(number) == 0
        assert [port for port in served.ports if not can_listen(port)] == []
        assert "Traceback" not in served.read_stderr()
