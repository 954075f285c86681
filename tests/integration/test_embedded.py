"""With no collector configured rank 0 starts one, for its own run only, and it ends with the run however that ends."""

import contextlib
import os
import re
import signal
import socket
import urllib.error
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
import zmq

from rankscope.collector.runs.snapshot import RunSnapshot
from rankscope.measure.codec import encode
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import Hello
from tests.connections import list_connections
from tests.integration.serving import (
    WATCHING,
    Api,
    can_listen,
    find_rank,
    read_url,
    wait_for,
    wait_for_end_of,
)
from tests.integration.torchrun import DEADLINE_S, Ended, Job, started, torchrun

NO_ENTRY = re.compile(r'rankscope_peers_refused_total\{reason="(no_keys|broken_handshake)"\} [1-9]')
LINGER_S = 1.0
A_STORE_FOR_EACH_LIFE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""By default torchrun (torch 2.13) keeps one store for all lives, where gloo finds its neighbor's address of the life
before and fails to connect, with or without an agent. This way rank 0 makes the store; the agent has to wait for it."""


class Embedded:
    """A job of two ranks that nobody gave a collector."""

    def __init__(self, job: Job, stderr: Path) -> None:
        self.job = job
        self._stderr = stderr

    def read_stderr(self) -> str:
        """What the whole job has said on stderr so far."""
        return self._stderr.read_text(errors="replace")

    def wait_for_collector(self, life: int = 0) -> tuple[str, Api]:
        """The run and its collector as rank 0 names them, once it does; `life` counts the elastic restarts."""

        def look() -> tuple[str, str, str] | None:
            found = WATCHING.findall(self.read_stderr())
            return found[life] if len(found) > life else None

        run, page, _ = wait_for(look, self.read_stderr)
        return run, Api(page)

    def wait_for_steps(self, life: int = 0) -> RunSnapshot:
        """The run once both ranks have trained some steps."""
        run, api = self.wait_for_collector(life)
        return api.wait_for_steps(run, 5)

    def find_collectors(self) -> list[psutil.Process]:
        """The collectors among the job's processes."""
        found = []
        for process in self.job.find_members():
            with contextlib.suppress(psutil.Error):
                if "--embedded" in process.cmdline():
                    found.append(process)
        return found

    def read_blocked(self) -> dict[str, str]:
        """The signals that the collector and the sidecar block, as /proc has them."""
        found = {}
        for process in self.job.find_members():
            with contextlib.suppress(psutil.Error, OSError):
                for module in {"rankscope.collector", "rankscope.agent.sidecar"} & set(process.cmdline()):
                    status = Path(f"/proc/{process.pid}/status").read_text()
                    found[module] = re.findall(r"SigBlk:\s+(\S+)", status)[0]
        return found


@contextlib.contextmanager
def embedded(
    folder: Path, *arguments: str, environment: Mapping[str, str] | None = None, restarts: int = 0
) -> Iterator[Embedded]:
    """Start a job without touching its launch line."""
    stderr = folder / "stderr"
    stderr.touch()
    settings = {
        "RANKSCOPE": "1",
        "RANKSCOPE_REPORT_INTERVAL_S": "0.2",
        "RANKSCOPE_SERVE_CONSTANT_TICK_S": "0.1",
        "RANKSCOPE_SERVE_CONSTANT_LINGER_S": str(LINGER_S),
        **(environment or {}),
    }
    command = torchrun(2, "paced.py", *arguments, options=["--max-restarts", str(restarts)])
    with started(command, settings, stderr_path=str(stderr)) as job:
        yield Embedded(job, stderr)


PRINTED = re.compile(r"(live page \S+), metrics (\S+)$", re.MULTILINE)
STRANGER = RankIdentity(
    run="stranger", rank=0, local_rank=0, world_size=1, node="n", restart_count=0, boot_id="boot-strange", pid=1
)


def intrude(collector: psutil.Process, api: Api) -> str:
    """Try to read a page and to report as another user of the machine can, who sees where a collector listens."""
    with pytest.raises(urllib.error.HTTPError) as refused:
        read_url(f"{api.url}/metrics")
    refused.value.close()
    http_port = urlsplit(api.url).port
    ports = {one.laddr.port for one in list_connections(collector) if one.status == psutil.CONN_LISTEN} - {http_port}
    hello = Hello(identity=STRANGER, first_sequence=1, host_ns=0, wall_ns=0, report_interval_ns=0)
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(f"tcp://127.0.0.1:{ports.pop()}")
        dealer.send(encode(hello))
        wait_for(lambda: NO_ENTRY.search(api.read_metrics()), api.read_metrics)
    return f"HTTP {refused.value.code}; no_keys"


@dataclass
class Watched:
    """What was seen of a job that ran to its end beside another one."""

    url: str
    known_runs: list[str]
    stranger: str
    """What another user of the machine gets at the page's address without the token, and at the port for ranks."""
    by_address: str
    """The page at the printed address of the metrics, as it is."""
    picture: RunSnapshot
    metrics: str
    blocked: dict[str, str]
    """The signals that each program of ours beside the ranks blocks, as /proc has them."""
    ended: Ended
    stderr: str

    @property
    def run(self) -> str:
        """Its name, as rank 0 says it."""
        return str(WATCHING.findall(self.stderr)[0][0])


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[Watched]:
    """Two jobs at the same time, looked at while both train."""
    folders = [tmp_path_factory.mktemp("embedded") for _ in range(2)]
    stop = folders[0] / "stop"
    with contextlib.ExitStack() as ends:
        jobs = [ends.enter_context(embedded(folder, "--stop", str(stop))) for folder in folders]
        pictures = [job.wait_for_steps() for job in jobs]
        apis = [job.wait_for_collector()[1] for job in jobs]
        strangers = [intrude(job.find_collectors()[0], api) for job, api in zip(jobs, apis, strict=True)]
        printed = [read_url(found[2]).decode() for job in jobs if (found := PRINTED.search(job.read_stderr()))]
        names, pages = [api.read_run_names() for api in apis], [api.read_metrics() for api in apis]
        blocked = [job.read_blocked() for job in jobs]
        stop.touch()
        ended = [job.job.wait() for job in jobs]
        said = [job.read_stderr() for job in jobs]
    urls = [api.url for api in apis]
    seen = zip(urls, names, strangers, printed, pictures, pages, blocked, ended, said, strict=True)
    return [Watched(*each) for each in seen]


def test_programs_of_ours_take_signals_though_our_threads_do_not(pair: list[Watched]) -> None:
    none = f"{0:016x}"
    assert [job.blocked for job in pair] == [{"rankscope.collector": none, "rankscope.agent.sidecar": none}] * 2


def test_rank_0_says_where_the_metrics_are_and_they_are_there(pair: list[Watched]) -> None:
    for job in pair:
        assert len(WATCHING.findall(job.stderr)) == 1
        for rank in (0, 1):
            assert f'rankscope_rank_up{{rank="{rank}",run="{job.run}"}} 1.0' in job.metrics


def test_nobody_else_on_the_machine_gets_in(pair: list[Watched]) -> None:
    for job in pair:
        assert job.stranger == "HTTP 401; no_keys"
        assert job.known_runs == [job.run]


def test_printed_address_works_as_it_is(pair: list[Watched]) -> None:
    for job in pair:
        assert f'rankscope_rank_up{{rank="0",run="{job.run}"}} 1.0' in job.by_address


def test_the_other_rank_finds_the_collector_through_the_store(pair: list[Watched]) -> None:
    for job in pair:
        assert [rank.identity.rank for rank in job.picture.ranks] == [0, 1]
        assert all(rank.reports_admitted > 0 for rank in job.picture.ranks)


def test_two_jobs_on_one_machine_do_not_meet(pair: list[Watched]) -> None:
    first, second = pair
    assert first.url != second.url
    assert first.run != second.run
    assert [job.known_runs for job in pair] == [[first.run], [second.run]]


def test_the_end_is_a_summary_with_a_verdict(pair: list[Watched]) -> None:
    for job in pair:
        said = [line.removeprefix("rankscope: ") for line in job.stderr.splitlines() if line.startswith("rankscope: ")]
        steps = re.findall(r"rank \d has trained (\d+) steps", job.ended.stdout)
        assert said[1].startswith(f"run {job.run}: 2 ranks, {steps[0]} steps, median step ")
        assert said[1].endswith(" reports, 0 lost")
        assert re.fullmatch(r"ended: finished at [\d-]+ [\d:]+ UTC; finished: ranks 0, 1", said[2])
        assert re.match(r"speed: [\d.,]+ steps/s, [\d.]+ % of the time waiting for data", said[3])
        assert said[4].startswith("goodput: ")
        assert said[-1].startswith("verdict: ")


def test_nothing_is_left_of_a_job_that_has_ended(pair: list[Watched]) -> None:
    for job in pair:
        assert (job.ended.exit_code, job.ended.left) == (0, ())
        assert can_listen(int(job.url.rpartition(":")[2]))


def test_collector_ends_with_killed_rank_0_and_next_life_has_one(tmp_path: Path) -> None:
    with embedded(tmp_path, restarts=1, environment=A_STORE_FOR_EACH_LIFE) as job:
        run = job.wait_for_steps()
        (first,) = job.find_collectors()
        os.kill(find_rank(run, 0).identity.pid, signal.SIGKILL)
        wait_for_end_of(first.pid, LINGER_S + 20)
        again = job.wait_for_steps(life=1)
        (second,) = job.find_collectors()
        os.killpg(job.job.launcher.pid, signal.SIGINT)
        ended, stderr = job.job.wait(), job.read_stderr()
    assert again.restart_count == run.restart_count + 1
    assert second.pid != first.pid
    assert ended.left == ()
    assert [can_listen(urlsplit(page).port or 0) for _, page, _ in WATCHING.findall(stderr)] == [True, True]
    summaries = re.findall(r"^rankscope: ended: (.+)$", stderr, re.MULTILINE)
    assert len(summaries) == 2
    assert "killed: rank" in summaries[0]
    assert "interrupted: rank" in summaries[1]


def test_collector_without_rank_0_lingers_for_others_then_ends(tmp_path: Path) -> None:
    """The launcher is gone too, and the other rank neither reports nor ends: nobody is left to tell the collector."""
    with embedded(tmp_path) as job:
        run = job.wait_for_steps()
        _, api = job.wait_for_collector()
        (collector,) = job.find_collectors()
        pids = [rank.identity.pid for rank in run.ranks]
        os.kill(pids[1], signal.SIGSTOP)
        job.job.launcher.kill()
        os.kill(pids[0], signal.SIGKILL)
        wait_for_end_of(collector.pid, LINGER_S + 20)
        os.kill(pids[1], signal.SIGKILL)
        ended = job.job.wait()
    assert ended.left == ()
    assert can_listen(int(api.url.rpartition(":")[2]))


def test_port_in_use_is_replaced_by_a_free_one_as_rank_0_says(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with embedded(tmp_path, "--steps", "10", environment={"RANKSCOPE_EMBEDDED_METRICS_PORT": str(port)}) as job:
            ended = job.job.wait(DEADLINE_S)
            stderr = job.read_stderr()
    assert (ended.exit_code, ended.left) == (0, ())
    said = (
        rf"^rankscope: watching run '.+': live page \S+, metrics http://127\.0\.0\.1:(\d+)/metrics\?token=\S+ "
        rf"\(a free port: {port} could not be used\)$"
    )
    (free,) = re.findall(said, stderr, re.MULTILINE)
    assert free != str(port)
    assert re.search(r"^rankscope: run \S+: 2 ranks, 10 steps", stderr, re.MULTILINE)


def test_a_collector_that_cannot_start_does_not_disturb_training(tmp_path: Path) -> None:
    with embedded(tmp_path, "--steps", "10", environment={"RANKSCOPE_SERVE_CONSTANT_TICK_S": "never"}) as job:
        ended = job.job.wait(DEADLINE_S)
        stderr = job.read_stderr()
    assert (ended.exit_code, ended.left) == (0, ())
    assert sorted(ended.stdout.split("\n")) == ["", *(f"rank {rank} has trained 10 steps" for rank in (0, 1))]
    assert "rankscope: the embedded collector did not start" in stderr
    assert "RANKSCOPE_SERVE_CONSTANT_TICK_S" in stderr
    assert "training continues without it" in stderr
