"""A sidecar speaks about ranks to a real collector, which must not take it for one."""

import contextlib
from collections.abc import Iterator

import pytest
import zmq

from rankscope.measure.codec import decode, encode
from rankscope.measure.identity import BootId, RankIdentity, RunId
from rankscope.measure.messages import Ack, Hello, HelloWanted, Message, Report, Welcome
from rankscope.measure.node_messages import RankEnded, RankUnresponsive
from tests.integration.serving import Served, serving

ANSWER_MS_MAX = 30_000
S = 1_000_000_000


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as served:
        yield served


class Peer:
    """Somebody who is connected."""

    def __init__(self, dealer: "zmq.Socket[bytes]") -> None:
        self._dealer = dealer

    def ask(self, *messages: Message) -> Message:
        """The collector's first answer to these."""
        for message in messages:
            self._dealer.send(encode(message))
        assert self._dealer.poll(ANSWER_MS_MAX)
        return decode(self._dealer.recv())


@contextlib.contextmanager
def connected(served: Served, name: str) -> Iterator[Peer]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.IDENTITY, name.encode())
    dealer.connect(served.endpoint)
    try:
        yield Peer(dealer)
    finally:
        context.destroy(linger=0)


def identity_of(run: str) -> RankIdentity:
    return RankIdentity(
        run=RunId(run), rank=0, local_rank=0, world_size=1, node="n0", restart_count=0, boot_id=BootId(f"boot-{run}"),
        pid=4711,
    )  # fmt: skip


def hello_of(run: str) -> Hello:
    return Hello(identity=identity_of(run), first_sequence=1, host_ns=0, wall_ns=0, report_interval_ns=0)


def ended(sequence: int, run: str) -> RankEnded:
    return RankEnded(
        sequence=sequence, identity=identity_of(run), host_ns=9 * S, wall_ns=0, reason="out_of_memory",
        detail="SIGKILL while the OOM killer counted 1 victim", signal=9, oom_kills=1,
    )  # fmt: skip


def test_a_notice_is_acknowledged_by_its_own_number_and_shown(served: Served) -> None:
    frozen = RankUnresponsive(sequence=7, identity=identity_of("told"), host_ns=8 * S, since_host_ns=S, state="D")
    with connected(served, "boot-told") as rank, connected(served, "sidecar-1") as sidecar:
        assert isinstance(rank.ask(hello_of("told")), Welcome)
        assert sidecar.ask(frozen) == Ack(through=7)
        stalled = served.wait_for_rank("told", 0, lambda rank: rank.stalled is True)
        assert stalled.unresponsive == frozen
        # In any order, and more than once.
        assert [sidecar.ask(ended(number, "told")) for number in (9, 8, 9)] == [Ack(through=n) for n in (9, 8, 9)]
        gone = served.wait_for_rank("told", 0, lambda rank: rank.ended is not None)
    assert (gone.ended, gone.exit_code, gone.stalled) == ("out_of_memory", None, None)
    assert gone.end == ended(9, "told")
    served.wait_for_metrics('reason="out_of_memory",signal="SIGKILL",rank="0",run="told"} 1.0\n')


def test_notice_about_an_unknown_life_waits_for_its_hello(served: Served) -> None:
    with connected(served, "sidecar-2") as sidecar, connected(served, "boot-late") as rank:
        # The second is answered, the first was not: the rank's Hello has come in between.
        assert isinstance(sidecar.ask(Report(sequence=1, host_ns=0)), HelloWanted)
        sidecar.ask(ended(1, "late"), Report(sequence=1, host_ns=0))
        assert served.read_run("late") is None
        rank.ask(hello_of("late"))
        assert sidecar.ask(ended(2, "late")) == Ack(through=2)
        assert served.wait_for_rank("late", 0, lambda rank: rank.ended is not None).ended == "out_of_memory"


def test_a_sidecar_is_no_rank_and_its_reports_are_nobody_s(served: Served) -> None:
    with connected(served, "boot-real") as rank, connected(served, "sidecar-3") as sidecar:
        assert isinstance(rank.ask(hello_of("real")), Welcome)
        assert sidecar.ask(ended(1, "real")) == Ack(through=1)
        assert isinstance(sidecar.ask(Report(sequence=1, host_ns=0)), HelloWanted)
    real = served.wait_for_rank("real", 0, lambda rank: rank.ended is not None)
    assert (real.identity.boot_id, real.reports_admitted) == ("boot-real", 0)
