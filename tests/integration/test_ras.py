"""A real job hangs, and what NCCL says about it is in the finding: its RAS service, and its Inspector's dumps. Both are
played here.
"""

import json
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from rankscope.collector.detect.finding import HANG, Finding
from rankscope.collector.runs.snapshot import RunSnapshot
from tests.inspector_dumps import Plugin
from tests.integration.serving import Served, serving
from tests.integration.torchrun import forked_ranks, started
from tests.ras_stand_in import Nccl, communicator, present, ras, to_json

RANKS = 2
HANGS_AT = 10
"""The step before whose all_reduce, the 11th, rank 1 sleeps."""


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """The standing collector of all these jobs."""
    with serving() as served:
        yield served


class Dumps:
    """The Inspector of each rank: rank 0 has completed 10 all-reduces, rank 1 only 9, and writes a damaged line too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._is_written = False

    def write(self, run: RunSnapshot) -> None:
        """Dump once, when all ranks are known."""
        if self._is_written or len(run.ranks) < RANKS:
            return
        self._is_written = True
        for rank in run.ranks:
            number = rank.identity.rank
            plugin = Plugin(self.folder, rank.identity.pid, rank=number, begin_us=time.time_ns() // 1_000)
            plugin.append(b"garbage\n" * number)
            for _ in range(10 - number):
                plugin.complete("AllReduce", size=RANKS, bytes_=10**7, took_us=1_000)
            plugin.dump()


def find_hang(run: RunSnapshot, said: str) -> Finding | None:
    """The open finding about rank 1, once the sidecar's notice has joined it. On a busy machine another stall may have
    come before this one, and then the service is asked about this one a minute later.
    """
    hangs = [one for one in run.open_findings if one.kind == HANG and one.ranks == (1,)]
    texts = (hangs[0].sentence, hangs[0].details.get("NCCL RAS", "")) if hangs else ()
    return hangs[0] if any(said in text for text in texts) else None


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((11, 10), "NCCL RAS agreed: rank 1 had launched 10 AllReduce operations, where another rank had launched 11,"),
        ((11, 11), "NCCL RAS did not show this: in the only communicator all ranks had answered and launched equally"),
        (None, "the answer has no list of communicators"),
    ],
    ids=["behind", "equal", "garbage"],
)
def test_what_nccl_says_in_a_stall_is_in_the_finding(
    served: Served, numbers: tuple[int, int] | None, said: str, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.id

    def serve(connected: socket.socket) -> None:
        run = served.read_run(name)
        if run is None or len(run.ranks) < RANKS:
            return
        pids = [rank.identity.pid for rank in run.ranks]
        counts = zip(range(RANKS), numbers or (), pids, strict=False)
        ranks = [present(rank, {"AllReduce": launched}, pid) for rank, launched, pid in counts]
        Nccl(json=to_json(communicator(ranks)) if numbers else json.dumps([]))(connected)

    with ras(serve) as service:
        environment = {
            "RANKSCOPE_COLLECTOR": served.endpoint,
            "RANKSCOPE_RUN": name,
            "RANKSCOPE_REPORT_INTERVAL_S": "0.2",
            "RANKSCOPE_STALL_S": "2.0",
            "NCCL_RAS_ADDR": service.address,
        }
        command = forked_ranks(RANKS, "-m", "rankscope.agent", "hangs.py", "--what", "sleep", "--at", str(HANGS_AT))
        with started(command, environment) as job:
            run = served.wait_for_run(name, lambda run: find_hang(run, said) is not None)
            hang = find_hang(run, said)
            job.launcher.send_signal(signal.SIGTERM)
            assert job.wait().left == ()
    assert hang is not None
    assert (hang.cause, hang.ranks) == ("missing_rank", (1,))
    assert f" {service.address}, " in hang.details["NCCL RAS"]
    assert hang.evidence.get("ras_behind_ranks") == (None if numbers is None else int(numbers[0] > numbers[1]))


def test_what_nccl_has_dumped_is_in_the_finding(served: Served, tmp_path: Path) -> None:
    dumps = Dumps(tmp_path)
    said = "NCCL Inspector's dumps agreed: rank 1 had last completed AllReduce 8 in a communicator of 2 ranks, where"

    bandwidths: set[tuple[int, str, str, int, float]] = set()

    def is_complete(run: RunSnapshot) -> bool:
        dumps.write(run)
        for rank in run.ranks:
            bandwidths.update((rank.identity.rank, *msgspec.structs.astuple(kind)) for kind in rank.nccl.kinds)
        return find_hang(run, said) is not None

    environment = {
        "RANKSCOPE_COLLECTOR": served.endpoint,
        "RANKSCOPE_RUN": "dumps",
        "RANKSCOPE_REPORT_INTERVAL_S": "0.2",
        "RANKSCOPE_STALL_S": "2.0",
        "RANKSCOPE_NCCL_RAS": "off",
        "NCCL_INSPECTOR_ENABLE": "1",
        "NCCL_INSPECTOR_DUMP_DIR": str(tmp_path),
        "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "100000",
    }
    command = forked_ranks(RANKS, "-m", "rankscope.agent", "hangs.py", "--what", "sleep", "--at", str(HANGS_AT))
    with started(command, environment) as job:
        run = served.wait_for_run("dumps", is_complete)
        job.launcher.send_signal(signal.SIGTERM)
        assert job.wait().left == ()
    hang = find_hang(run, said)
    assert hang is not None
    assert (hang.cause, hang.ranks, hang.evidence["inspector_behind_ranks"]) == ("missing_rank", (1,), 1)
    # 10 MB in 1 ms are 10 GB/s, and between two ranks an all-reduce sends each byte once.
    assert bandwidths == {(0, "2 ranks", "AllReduce", 10, 1e10), (1, "2 ranks", "AllReduce", 9, 1e10)}
    assert "lines that were not used since the sidecars began: 1" in hang.details["NCCL Inspector"]
