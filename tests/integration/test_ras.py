"""A real job hangs, and what NCCL's RAS service, which is played here, says about it is in the finding."""

import json
import signal
import socket
from collections.abc import Iterator

import pytest

from rankscope.collector.detect.finding import HANG, Finding
from rankscope.collector.runs.snapshot import RunSnapshot
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
