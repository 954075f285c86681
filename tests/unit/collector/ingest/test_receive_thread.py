"""The receive thread between sockets and run state: which events it queues, and when it acknowledges. No socket."""

from collections.abc import Iterator

import msgspec
import pytest

from rankscope.collector.fault_log import FaultLog
from rankscope.collector.ingest.acknowledgements import AGE_NS_MAX
from rankscope.collector.ingest.admission import Admission
from rankscope.collector.ingest.exchange import EVENTS_WAITING_MAX, EventBatch, Exchange
from rankscope.collector.ingest.receive_thread import ReceiveThread
from rankscope.collector.ingest.receiver import Received
from rankscope.collector.ingest.refusal_log import LoggedRefusal
from rankscope.collector.runs.events import DuplicateSeen, GoodbyeAdmitted, RankJoined, ReportAdmitted
from rankscope.collector.runs.report_fields import ReportFields
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


class FakeReceiver:
    """Stands for the Receiver: messages that wait, and answers that were sent."""

    def __init__(self) -> None:
        self.waiting: list[Received] = []
        self.sent: list[tuple[bytes, Message]] = []
        self.refusals: list[LoggedRefusal] = []

    def watch(self, file: int) -> None:
        assert file >= 0

    def wait(self, timeout_ms: int) -> dict[object, int]:
        assert timeout_ms >= 0
        return {"socket": 1} if self.waiting else {}

    def has_messages(self, ready: dict[object, int]) -> bool:
        return "socket" in ready

    def receive(self, ready: dict[object, int], batch_max: int) -> list[Received]:
        count = batch_max if ready else 0
        found, self.waiting = self.waiting[:count], self.waiting[count:]
        return found

    def drain_refusals(self) -> list[LoggedRefusal]:
        refusals, self.refusals = self.refusals, []
        return refusals

    def send(self, peer: bytes, message: Message) -> None:
        self.sent.append((peer, message))

    def drain_sent(self) -> list[tuple[bytes, Message]]:
        sent, self.sent = self.sent, []
        return sent


class World:
    def __init__(self) -> None:
        self.receiver, self.clock, self.exchange = FakeReceiver(), Clock(), Exchange()
        self.faults = FaultLog(self.clock)
        self.admission = Admission(4, 4096)
        self.thread = ReceiveThread(
            self.receiver,  # type: ignore[arg-type]
            self.admission,
            self.exchange,
            self.clock,
            self.faults,
        )

    def receive(self, *messages: tuple[bytes, Message]) -> list[EventBatch]:
        """Receive these messages in one pass; return the batches for the state thread."""
        self.receiver.waiting += [Received(peer, message) for peer, message in messages]
        self.thread.run_once()
        return self.exchange.get(0.0)


@pytest.fixture
def world() -> Iterator[World]:
    found = World()
    yield found
    found.exchange.close()


def name_of(rank: int) -> bytes:
    return f"boot-{rank:04}".encode()


def hello(rank: int, world_size: int = 2, *, orphaned: bool = False) -> tuple[bytes, Hello]:
    identity = RankIdentity(
        run="r", rank=rank, local_rank=0, world_size=world_size, node="n", restart_count=0,
        boot_id=name_of(rank).decode(), pid=1,
    )  # fmt: skip
    greeting = Hello(
        identity=identity, first_sequence=1, host_ns=0, wall_ns=0, report_interval_ns=NS_PER_S, left_behind=orphaned
    )
    return name_of(rank), greeting


def report(rank: int, sequence: int) -> tuple[bytes, Report]:
    return name_of(rank), Report(sequence=sequence, host_ns=0)


def test_messages_become_events_of_their_run_in_order(world: World) -> None:
    (batch,) = world.receive(hello(0), report(0, 1), (name_of(0), Goodbye(sequence=2, reason="finished")))
    assert [run for run, _ in batch.events] == ["r"] * 3
    assert [type(event) for _, event in batch.events] == [RankJoined, ReportAdmitted, GoodbyeAdmitted]


def test_report_is_acknowledged_once_it_is_in_the_state(world: World) -> None:
    (batch,) = world.receive(hello(0), report(0, 1))
    assert [type(message) for _, message in world.receiver.drain_sent()] == [Welcome]
    world.clock.now_ns += AGE_NS_MAX
    world.receive()
    assert world.receiver.drain_sent() == []
    world.exchange.answer(batch)
    world.receive()
    world.clock.now_ns += AGE_NS_MAX
    assert world.receive() == []
    assert world.receiver.drain_sent() == [(name_of(0), Ack(through=1))]


def test_orphaned_reports_are_acknowledged_at_once(world: World) -> None:
    """No report follows them, and the process that delivers them waits."""
    world.exchange.answer(*world.receive(hello(0, orphaned=True), report(0, 1)))
    world.receiver.drain_sent()
    world.receive()
    assert world.receiver.drain_sent() == [(name_of(0), Ack(through=1))]


def test_only_acknowledgements_of_reports_wait_for_more(world: World) -> None:
    """That of the goodbye is sent now, those of the other ranks when they are old enough."""
    count = 4
    world.exchange.answer(*world.receive(*(hello(rank, count) for rank in range(count))))
    world.receive()
    world.receiver.drain_sent()
    last = (name_of(0), Goodbye(sequence=2, reason="finished"))
    world.exchange.answer(*world.receive(*(report(rank, 1) for rank in range(count)), last))
    world.receive()
    assert world.receiver.drain_sent() == [(name_of(0), Ack(through=2))]
    world.clock.now_ns += AGE_NS_MAX
    world.receive()
    assert world.receiver.drain_sent() == [(name_of(rank), Ack(through=1)) for rank in range(1, count)]


def test_welcome_has_the_hello_number_and_what_is_admitted(world: World) -> None:
    peer, first = hello(0)
    world.thread.messages.metrics_url = "http://here/metrics"
    world.receive((peer, msgspec.structs.replace(first, hello_number=1)), report(0, 1))
    world.receive((peer, msgspec.structs.replace(first, hello_number=2)))
    assert world.receiver.drain_sent() == [
        (peer, Welcome(admitted_through=through, metrics_url="http://here/metrics", hello_number=number))
        for number, through in ((1, 0), (2, 1))
    ]


def test_unknown_peer_is_asked_for_hello_not_acknowledged(world: World) -> None:
    (batch,) = world.receive(report(0, 1))
    assert (batch.events, batch.numbered) == ([], [])
    assert world.receiver.drain_sent() == [(name_of(0), HelloWanted())]


def test_nothing_is_read_while_the_state_is_behind(world: World) -> None:
    world.exchange.put(EventBatch(events=[("r", DuplicateSeen("boot"))] * EVENTS_WAITING_MAX))
    world.receiver.waiting.append(Received(*hello(0)))
    world.thread.run_once()
    assert len(world.receiver.waiting) == 1
    (waiting,) = world.exchange.get(0.0)
    assert len(waiting.events) == EVENTS_WAITING_MAX
    assert len(world.receive()) == 1


def test_connections_are_handled_while_the_state_is_behind(world: World) -> None:
    passes: list[tuple[dict[object, int], int]] = []

    def receive(ready: dict[object, int], batch_max: int) -> Iterator[Received]:
        passes.append((ready, batch_max))
        yield from ()

    world.receiver.receive = receive  # type: ignore[method-assign, assignment]
    world.receiver.waiting = [Received(*report(0, 1))]
    world.exchange.put(EventBatch(events=[("r", DuplicateSeen("boot"))] * EVENTS_WAITING_MAX))
    world.thread.run_once()
    assert passes == [({"socket": 1}, 0)]


def test_fault_in_one_message_costs_that_one_only(world: World) -> None:
    _, whole = hello(1)
    broken = (name_of(1), msgspec.structs.replace(whole, identity=None))
    (batch,) = world.receive(broken, hello(0))
    assert [type(event) for _, event in batch.events] == [RankJoined]
    assert world.faults.counts == {"receive_thread": 1}


def test_messages_before_an_unreadable_one_are_processed(world: World) -> None:
    def receive(_ready: dict[object, int], _batch_max: int) -> Iterator[Received]:
        yield Received(*hello(0))
        yield Received(*report(0, 1))
        raise MemoryError

    world.receiver.receive = receive  # type: ignore[method-assign, assignment]
    (batch,) = world.receive(hello(1))
    assert [type(event) for _, event in batch.events] == [RankJoined, ReportAdmitted]
    assert [one.through for one in batch.numbered] == [1]
    assert world.faults.counts == {"receive_thread": 1}


def test_fault_in_answering_does_not_lose_the_batch(world: World) -> None:
    (batch,) = world.receive(hello(0), report(0, 1))
    world.exchange.answer(batch)
    world.receive()
    world.clock.now_ns += AGE_NS_MAX
    send = world.receiver.send

    def fail(peer: bytes, message: Message) -> None:
        if isinstance(message, Ack):
            raise OSError
        send(peer, message)

    world.receiver.send = fail  # type: ignore[method-assign]
    (next_batch,) = world.receive(report(0, 2))
    assert [one.through for one in next_batch.numbered] == [2]
    assert world.faults.counts == {"receive_thread": 1}


def test_unreadable_report_is_counted_and_acknowledged(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would fail again each time it is sent."""
    of = ReportFields.of

    def fail_on_second(message: Report, frame: bytes) -> ReportFields:
        if message.sequence == 2:
            raise ZeroDivisionError
        return of(message, frame)

    monkeypatch.setattr(ReportFields, "of", fail_on_second)
    (batch,) = world.receive(hello(0), report(0, 1), report(0, 2), report(0, 3))
    assert [event.report.sequence for _, event in batch.events if isinstance(event, ReportAdmitted)] == [1, 3]
    assert [one.through for one in batch.numbered] == [1, 2, 3]
    assert world.faults.counts == {"report": 1}


def test_rank_process_without_run_is_asked_for_hello(world: World) -> None:
    (batch,) = world.receive(hello(0), hello(1), report(0, 1), report(1, 1))
    batch.without_run.add(name_of(0).decode())
    batch.hello_wanted.add(name_of(0).decode())
    world.exchange.answer(batch)
    world.receiver.drain_sent()
    world.receive()
    world.clock.now_ns += AGE_NS_MAX
    world.receive()
    assert world.receiver.drain_sent() == [(name_of(0), HelloWanted()), (name_of(1), Ack(through=1))]
    world.receive(hello(0), report(0, 1))
    assert world.receiver.drain_sent()[-1] == (name_of(0), Welcome(admitted_through=0))


def test_messages_waiting_before_the_pass_count_as_a_stall(world: World) -> None:
    world.receive(hello(0))
    world.clock.now_ns += NS_PER_S
    world.receive(report(0, 1))
    assert world.thread.stalls.longest_ns == NS_PER_S


def test_messages_that_arrive_during_the_wait_are_no_stall(world: World) -> None:
    world.receive(hello(0))
    wait = world.receiver.wait

    def wait_for_one(timeout_ms: int) -> dict[object, int]:
        if timeout_ms:  # nothing is there; after a second there is
            world.clock.now_ns += NS_PER_S
            world.receiver.waiting.append(Received(*report(0, 1)))
        return wait(timeout_ms)

    world.receiver.wait = wait_for_one  # type: ignore[method-assign]
    world.thread.run_once()
    assert world.thread.stalls.longest_ns == 0


def test_finding_the_run_of_a_refused_frame_counts_nothing(world: World) -> None:
    world.receive(hello(0))
    world.receiver.refusals.append(
        LoggedRefusal("bad_magic", "10.1.2.3:4242", "k" * 40, name_of(0))
    )  # another key than rank 0's
    world.receive()
    assert world.admission.refused == {}
