"""The collector of a job on several machines listens where others could reach it: only the job's ranks get in.

Two launchers on this machine stand for two machines: each starts one rank, so that no rank can think that all are here.
"""

import contextlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import zmq

from rankscope.measure.codec import encode
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import Hello
from tests.connections import list_connections
from tests.integration.serving import WATCHING, Api, find_fixed_port, wait_for
from tests.integration.torchrun import Job, started

RUN = "of-two-machines"
NO_ENTRY = re.compile(r'rankscope_peers_refused_total\{reason="(no_keys|broken_handshake)"\} [1-9]')


class TwoMachines:
    """A job of two machines, its collector, and where that listens for ranks."""

    def __init__(self, job: Job, stderr: Path) -> None:
        self.collector = wait_for(lambda: find_collector(job), stderr.read_text)
        found = wait_for(lambda: WATCHING.search(stderr.read_text()), stderr.read_text)
        self.api = Api(found[2])
        self.said = stderr.read_text

    @property
    def addresses(self) -> set[tuple[str, int]]:
        """Where the collector listens."""
        listening = [one for one in list_connections(self.collector) if one.status == psutil.CONN_LISTEN]
        return {(one.laddr.ip, one.laddr.port) for one in listening}


def find_collector(job: Job) -> psutil.Process | None:
    """The embedded collector of a job, once it runs."""
    for process in job.find_members():
        with contextlib.suppress(psutil.Error):
            if "--embedded" in process.cmdline():
                return process
    return None


def launch(node: int, port: int, stop: Path) -> list[str]:
    """What is typed on one of the two machines."""
    where = ["--master-addr", "127.0.0.1", "--master-port", str(port), "--node-rank", str(node)]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", *where]
    return [*launcher, "paced.py", "--stop", str(stop)]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoMachines]:
    """A job that trains until the tests are over."""
    folder = tmp_path_factory.mktemp("machines")
    stop, stderr, port = folder / "stop", folder / "stderr", find_fixed_port()
    stderr.touch()
    settings = {
        "RANKSCOPE": "1", "RANKSCOPE_RUN": RUN, "RANKSCOPE_REPORT_INTERVAL_S": "0.2",
        "RANKSCOPE_SERVE_CONSTANT_TICK_S": "0.1", "RANKSCOPE_SERVE_CONSTANT_LINGER_S": "1",
    }  # fmt: skip
    with contextlib.ExitStack() as ends:
        first, second = (
            ends.enter_context(started(launch(node, port, stop), settings, stderr_path=path))
            for node, path in ((0, str(stderr)), (1, ""))
        )
        yield TwoMachines(first, stderr)
        stop.touch()
        assert [one.wait().exit_code for one in (first, second)] == [0, 0]


def test_rank_on_another_machine_gets_its_keys_by_the_store(job: TwoMachines) -> None:
    run = job.api.wait_for_steps(RUN, 5)
    assert [rank.identity.rank for rank in run.ranks] == [0, 1]
    assert all(rank.reports_admitted > 0 for rank in run.ranks)


def test_nobody_without_the_keys_gets_in(job: TwoMachines) -> None:
    stranger = RankIdentity(
        run="stranger", rank=0, local_rank=0, world_size=1, node="n", restart_count=0, boot_id="boot-strange", pid=1
    )
    ((_, port),) = {address for address in job.addresses if address[0] in {"0.0.0.0", "::"}}  # noqa: S104
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(f"tcp://127.0.0.1:{port}")
        hello = Hello(identity=stranger, first_sequence=1, host_ns=0, wall_ns=0, report_interval_ns=0)
        dealer.send(encode(hello))
        wait_for(lambda: NO_ENTRY.search(job.api.read_metrics()), job.api.read_metrics)
    assert job.api.read_run_names() == [RUN]


def test_the_keys_are_on_no_command_line_and_in_no_output(job: TwoMachines) -> None:
    assert "--fresh-keys" in job.collector.cmdline()
    assert not [word for word in job.collector.cmdline() if len(word) == 40]
    assert "secret" not in job.said()
