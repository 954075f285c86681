"""The receiving side between the sockets and the state: what is handed on, and when it is acknowledged. No socket."""

from collections.abc import Iterator

import msgspec
import pytest

from rankscope.collector.fault_log import FaultLog
from rankscope.collector.ingest.acknowledgements import AGE_NS_MAX
from rankscope.collector.ingest.admission import Admission
from rankscope.collector.ingest.exchange import EVENTS_WAITING_MAX, Batch, Exchange
from rankscope.collector.ingest.receive_thread import ReceiveThread
from rankscope.collector.ingest.receiver import Received
from rankscope.collector.ingest.refusal_log import Refusal
from rankscope.collector.runs.events import DuplicateSeen, GoodbyeAdmitted, RankJoined, ReportAdmitted
from rankscope.collector.runs.last_report import ReportFields
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import Ack, Goodbye, Hello, HelloWanted, Message, Report, Welcome
from rankscope.measure.units import NS_PER_S, HostNs, WallNs

START_NS = 10**9


class Clock:
    now_ns = START_NS

    def monotonic_ns(self) -> HostNs:
        return HostNs(self.now_ns)

    def wall_ns(self) -> WallNs:
        return WallNs(self.now_ns)


class Wire:
    """What the receiver is to the reception: messages that wait, and answers that were sent."""

    def __init__(self) -> None:
        self.waiting: list[Received] = []
        self.sent: list[tuple[bytes, Message]] = []
        self.refusals: list[Refusal] = []

    def watch(self, file: int) -> None:
        assert file >= 0

    def wait(self, timeout_ms: int) -> dict[object, int]:
        assert timeout_ms >= 0
        return {"socket": 1} if self.waiting else {}

    def is_among(self, ready: dict[object, int]) -> bool:
        return "socket" in ready

    def take(self, ready: dict[object, int], batch_max: int) -> list[Received]:
        count = batch_max if ready else 0
        found, self.waiting = self.waiting[:count], self.waiting[count:]
        return found

    def take_refusals(self) -> list[Refusal]:
        refusals, self.refusals = self.refusals, []
        return refusals

    def send(self, peer: bytes, message: Message) -> None:
        self.sent.append((peer, message))

    def take_sent(self) -> list[tuple[bytes, Message]]:
        sent, self.sent = self.sent, []
        return sent


class World:
    def __init__(self) -> None:
        self.wire, self.clock, self.exchange = Wire(), Clock(), Exchange()
        self.faults = FaultLog(self.clock)
        self.admission = Admission(4, 4096)
        self.reception = ReceiveThread(
            self.wire,  # type: ignore[arg-type]
            self.admission,
            self.exchange,
            self.clock,
            self.faults,
        )

    def come(self, *messages: tuple[bytes, Message]) -> list[Batch]:
        """These have come in and are taken in a turn; what the state gets."""
        self.wire.waiting += [Received(peer, message) for peer, message in messages]
        self.reception.turn()
        return self.exchange.take(0.0)


@pytest.fixture
def world() -> Iterator[World]:
    found = World()
    yield found
    found.exchange.close()


def name_of(rank: int) -> bytes:
    return f"boot-{rank:04}".encode()


def hello(rank: int, world_size: int = 2, *, left_behind: bool = False) -> tuple[bytes, Hello]:
    identity = RankIdentity(
        run="r", rank=rank, local_rank=0, world_size=world_size, node="n", restart_count=0,
        boot_id=name_of(rank).decode(), pid=1,
    )  # fmt: skip
    greeting = Hello(
        identity=identity, first_sequence=1, host_ns=0, wall_ns=0, report_interval_ns=NS_PER_S, left_behind=left_behind
    )
    return name_of(rank), greeting


def report(rank: int, sequence: int) -> tuple[bytes, Report]:
    return name_of(rank), Report(sequence=sequence, host_ns=0)


def test_messages_become_events_of_their_run_in_their_order(world: World) -> None:
    (batch,) = world.come(hello(0), report(0, 1), (name_of(0), Goodbye(sequence=2, reason="finished")))
    assert [run for run, _ in batch.events] == ["r"] * 3
    assert [type(event) for _, event in batch.events] == [RankJoined, ReportAdmitted, GoodbyeAdmitted]


def test_a_report_is_acknowledged_once_it_is_in_the_state_and_not_before(world: World) -> None:
    (batch,) = world.come(hello(0), report(0, 1))
    assert [type(message) for _, message in world.wire.take_sent()] == [Welcome]
    world.clock.now_ns += AGE_NS_MAX
    world.come()
    assert world.wire.take_sent() == []
    world.exchange.answer(batch)
    world.come()
    world.clock.now_ns += AGE_NS_MAX
    assert world.come() == []
    assert world.wire.take_sent() == [(name_of(0), Ack(through=1))]


def test_what_a_rank_has_left_behind_is_acknowledged_at_once(world: World) -> None:
    """Nothing comes after it, and who delivers it waits."""
    world.exchange.answer(*world.come(hello(0, left_behind=True), report(0, 1)))
    world.wire.take_sent()
    world.come()
    assert world.wire.take_sent() == [(name_of(0), Ack(through=1))]


def test_the_acknowledgement_of_a_report_waits_for_more_but_not_that_of_a_last_message(world: World) -> None:
    """The goodbye's comes now, those of the others when they are old enough."""
    count = 4
    world.exchange.answer(*world.come(*(hello(rank, count) for rank in range(count))))
    world.come()
    world.wire.take_sent()
    last = (name_of(0), Goodbye(sequence=2, reason="finished"))
    world.exchange.answer(*world.come(*(report(rank, 1) for rank in range(count)), last))
    world.come()
    assert world.wire.take_sent() == [(name_of(0), Ack(through=2))]
    world.clock.now_ns += AGE_NS_MAX
    world.come()
    assert world.wire.take_sent() == [(name_of(rank), Ack(through=1)) for rank in range(1, count)]


def test_a_welcome_says_which_hello_it_answers_and_what_has_come_until_then(world: World) -> None:
    peer, first = hello(0)
    world.reception.metrics_url = "http://here/metrics"
    world.come((peer, msgspec.structs.replace(first, hello_number=1)), report(0, 1))
    world.come((peer, msgspec.structs.replace(first, hello_number=2)))
    assert world.wire.take_sent() == [
        (peer, Welcome(admitted_through=through, metrics_url="http://here/metrics", hello_number=number))
        for number, through in ((1, 0), (2, 1))
    ]


def test_who_is_not_known_is_asked_for_a_hello_and_not_acknowledged(world: World) -> None:
    (batch,) = world.come(report(0, 1))
    assert (batch.events, batch.numbered) == ([], [])
    assert world.wire.take_sent() == [(name_of(0), HelloWanted())]


def test_while_the_state_is_behind_nothing_more_is_read(world: World) -> None:
    world.exchange.hand_on(Batch(events=[("r", DuplicateSeen("boot"))] * EVENTS_WAITING_MAX))
    world.wire.waiting.append(Received(*hello(0)))
    world.reception.turn()
    assert len(world.wire.waiting) == 1
    (waiting,) = world.exchange.take(0.0)
    assert len(waiting.events) == EVENTS_WAITING_MAX
    assert len(world.come()) == 1


def test_while_the_state_is_behind_connections_are_let_in_and_cut_off(world: World) -> None:
    passes: list[tuple[dict[object, int], int]] = []

    def take(ready: dict[object, int], batch_max: int) -> Iterator[Received]:
        passes.append((ready, batch_max))
        yield from ()

    world.wire.take = take  # type: ignore[method-assign, assignment]
    world.wire.waiting = [Received(*report(0, 1))]
    world.exchange.hand_on(Batch(events=[("r", DuplicateSeen("boot"))] * EVENTS_WAITING_MAX))
    world.reception.turn()
    assert passes == [({"socket": 1}, 0)]


def test_a_mistake_of_ours_about_one_message_costs_that_one_only(world: World) -> None:
    _, whole = hello(1)
    broken = (name_of(1), msgspec.structs.replace(whole, identity=None))
    (batch,) = world.come(broken, hello(0))
    assert [type(event) for _, event in batch.events] == [RankJoined]
    assert world.faults.counts == {"reception": 1}


def test_messages_before_one_that_cannot_be_read_are_handed_on(world: World) -> None:
    def take(_ready: dict[object, int], _batch_max: int) -> Iterator[Received]:
        yield Received(*hello(0))
        yield Received(*report(0, 1))
        raise MemoryError

    world.wire.take = take  # type: ignore[method-assign, assignment]
    (batch,) = world.come(hello(1))
    assert [type(event) for _, event in batch.events] == [RankJoined, ReportAdmitted]
    assert [one.through for one in batch.numbered] == [1]
    assert world.faults.counts == {"reception": 1}


def test_a_fault_in_answering_does_not_lose_the_batch_of_the_pass(world: World) -> None:
    (batch,) = world.come(hello(0), report(0, 1))
    world.exchange.answer(batch)
    world.come()
    world.clock.now_ns += AGE_NS_MAX
    send = world.wire.send

    def fail(peer: bytes, message: Message) -> None:
        if isinstance(message, Ack):
            raise OSError
        send(peer, message)

    world.wire.send = fail  # type: ignore[method-assign]
    (next_batch,) = world.come(report(0, 2))
    assert [one.through for one in next_batch.numbered] == [2]
    assert world.faults.counts == {"reception": 1}


def test_a_report_that_cannot_be_read_is_lost_counted_and_acknowledged(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would fail again each time it is sent."""
    of = ReportFields.of

    def fail_on_second(message: Report, frame: bytes) -> ReportFields:
        if message.sequence == 2:
            raise ZeroDivisionError
        return of(message, frame)

    monkeypatch.setattr(ReportFields, "of", fail_on_second)
    (batch,) = world.come(hello(0), report(0, 1), report(0, 2), report(0, 3))
    assert [event.report.sequence for _, event in batch.events if isinstance(event, ReportAdmitted)] == [1, 3]
    assert [one.through for one in batch.numbered] == [1, 2, 3]
    assert world.faults.counts == {"report": 1}


def test_what_no_run_has_taken_in_is_not_acknowledged_and_asked_for_again(world: World) -> None:
    (batch,) = world.come(hello(0), hello(1), report(0, 1), report(1, 1))
    batch.untaken.add(name_of(0).decode())
    batch.unknown.add(name_of(0).decode())
    world.exchange.answer(batch)
    world.wire.take_sent()
    world.come()
    world.clock.now_ns += AGE_NS_MAX
    world.come()
    assert world.wire.take_sent() == [(name_of(0), HelloWanted()), (name_of(1), Ack(through=1))]
    world.come(hello(0), report(0, 1))
    assert world.wire.take_sent()[-1] == (name_of(0), Welcome(admitted_through=0))


def test_messages_that_lay_there_before_the_turn_have_waited_since_the_last_one(world: World) -> None:
    world.come(hello(0))
    world.clock.now_ns += NS_PER_S
    world.come(report(0, 1))
    assert world.reception.pauses.longest_ns == NS_PER_S


def test_messages_that_come_while_one_waits_for_them_have_not_waited(world: World) -> None:
    world.come(hello(0))
    wait = world.wire.wait

    def wait_for_one(timeout_ms: int) -> dict[object, int]:
        if timeout_ms:  # nothing is there; after a second there is
            world.clock.now_ns += NS_PER_S
            world.wire.waiting.append(Received(*report(0, 1)))
        return wait(timeout_ms)

    world.wire.wait = wait_for_one  # type: ignore[method-assign]
    world.reception.turn()
    assert world.reception.pauses.longest_ns == 0


def test_to_name_the_run_of_a_refused_frame_counts_nothing(world: World) -> None:
    world.come(hello(0))
    world.wire.refusals.append(Refusal("bad_magic", "10.1.2.3:4242", "k" * 40, name_of(0)))  # another key than rank 0's
    world.come()
    assert world.admission.refused == {}
