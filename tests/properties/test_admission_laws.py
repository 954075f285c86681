"""Laws of admission under any behavior of the network: alone, and together with the agent's real delivery rules."""

import itertools
import random
from collections import deque
from collections.abc import Callable

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.collector.ingest.admission import Admission, Admitted, Duplicate, SequenceGap
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import Hello, Welcome
from rankscope.uplink.delivery import Delivery, DeliverySettings, Send, SendFrame, SendHello
from rankscope.uplink.resend_buffer import ResendBuffer

PEER = b"boot-one"
BOOT = PEER.decode()
STEP_NS = 100_000_000
ROUNDS_TO_HEAL_MAX = 400
"""40 s of the virtual clock: one silence and one longest pause between Hellos, with room to spare."""


def hello_from(first_sequence: int) -> Hello:
    """Return the Hello of the only rank there is."""
    identity = RankIdentity(
        run="r", rank=0, local_rank=0, world_size=1, node="n", restart_count=0, boot_id=BOOT, pid=1
    )  # fmt: skip
    return Hello(identity=identity, first_sequence=first_sequence, host_ns=0, wall_ns=0, report_interval_ns=0)


# -- alone: any Hellos and any numbers, in any order ------------------------------------------------------------------

Heard = tuple[str, int]
anything = st.lists(st.tuples(st.sampled_from(["hello", "number", "number"]), st.integers(1, 30)), max_size=60)


def hear(admission: Admission, events: list[Heard]) -> list[int]:
    """Pass the events to admission and return the numbers it admitted, in order."""
    admitted = []
    for what, number in events:
        if what == "hello":
            admission.hello(PEER, hello_from(number))
        elif isinstance(admission.number(PEER, number), Admitted):
            admitted.append(number)
    return admitted


@given(anything)
def test_admitted_numbers_increase_strictly(events: list[Heard]) -> None:
    admitted = hear(Admission(1, 1), events)
    assert all(earlier < later for earlier, later in itertools.pairwise(admitted))


@given(st.integers(1, 30), anything)
def test_every_number_to_the_last_is_admitted_or_missing(first: int, events: list[Heard]) -> None:
    admission = Admission(1, 1)
    admitted = hear(admission, [("hello", first), *events])
    counts = admission.counts(BOOT)
    assert counts is not None
    assert counts.first_sequence == first
    assert counts.admitted == len(admitted)
    assert counts.admitted + counts.missing == counts.last_sequence - first + 1


@given(st.integers(1, 30), anything)
def test_every_message_heard_is_counted_once(first: int, events: list[Heard]) -> None:
    admission = Admission(1, 1)
    hear(admission, [("hello", first), *events])
    counts = admission.counts(BOOT)
    assert counts is not None
    messages = sum(what == "number" for what, _ in events)
    assert counts.admitted + counts.duplicates + counts.gaps == messages


@given(st.integers(1, 30), st.lists(st.integers(1, 60), max_size=60))
def test_without_a_second_hello_nothing_is_given_up(first: int, numbers: list[int]) -> None:
    admission = Admission(1, 1)
    admitted = hear(admission, [("hello", first), *(("number", number) for number in numbers)])
    assert admitted == list(range(first, first + len(admitted)))


@given(anything, st.integers(1, 30))
def test_a_second_hello_is_asked_for_once_between_two_hellos(events: list[Heard], first: int) -> None:
    admission = Admission(1, 1)
    asked = 0
    for what, number in [("hello", first), *events]:
        if what == "hello":
            admission.hello(PEER, hello_from(number))
            asked = 0
            continue
        verdict = admission.number(PEER, number)
        asked += isinstance(verdict, SequenceGap) and verdict.hello_wanted
        assert asked <= 1


# -- with the agent's delivery, on a network that loses, doubles, swaps and breaks ------------------------------------


class Wire:
    """An agent's delivery, admission, and what is under way between them, on a virtual clock."""

    def __init__(self, frames_max: int) -> None:
        self.buffer = ResendBuffer(frames_max, 10**6)
        self.delivery = Delivery(self.buffer, random.Random(0), DeliverySettings(in_flight_max=4))
        self.admission = Admission(1, 1)
        self.to_collector: deque[Send] = deque()
        self.to_agent: deque[Callable[[int], list[Send]]] = deque()
        self.admitted: set[int] = set()
        self.dropped: set[int] = set()
        self.now_ns = 0

    def push(self, _: int) -> None:
        """One more report, which may drop the oldest."""
        oldest, dropped_before = self.buffer.first_sequence, self.buffer.reports_dropped
        self.buffer.push(self.buffer.last_sequence + 1, b"report", 1)
        self.dropped.update(range(oldest, oldest + self.buffer.reports_dropped - dropped_before))
        self.to_collector.extend(self.delivery.on_tick(self.now_ns))

    def tick(self, count: int) -> None:
        """Time passes."""
        self.now_ns += count * STEP_NS
        self.to_collector.extend(self.delivery.on_tick(self.now_ns))

    def arrive(self, count: int) -> None:
        """Deliver up to `count` messages to the collector, and send its answers."""
        for _ in range(min(count, len(self.to_collector))):
            self._answer(self.to_collector.popleft())

    def answer(self, count: int) -> None:
        """Deliver up to `count` of the collector's answers to the agent."""
        for _ in range(min(count, len(self.to_agent))):
            self.to_collector.extend(self.to_agent.popleft()(self.now_ns))

    def lose(self, index: int) -> None:
        """One message under way is lost."""
        if index < len(self.to_collector):
            del self.to_collector[index]

    def lose_answer(self, index: int) -> None:
        """One answer under way is lost."""
        if index < len(self.to_agent):
            del self.to_agent[index]

    def double(self, index: int) -> None:
        """One message under way arrives twice."""
        if index < len(self.to_collector):
            self.to_collector.insert(index, self.to_collector[index])

    def swap(self, index: int) -> None:
        """One message under way is overtaken by the next."""
        if index + 1 < len(self.to_collector):
            self.to_collector[index], self.to_collector[index + 1] = (
                self.to_collector[index + 1], self.to_collector[index],
            )  # fmt: skip

    def restart_collector(self, _: int) -> None:
        """The collector dies and forgets everyone."""
        self.admission = Admission(1, 1)

    def heal(self) -> None:
        """Run without faults until everything held is acknowledged."""
        for _ in range(ROUNDS_TO_HEAL_MAX):
            self.tick(1)
            while self.to_collector or self.to_agent:
                self.arrive(1)
                self.answer(1)
            if self.delivery.everything_acknowledged:
                return
        raise AssertionError(f"frames from {self.buffer.first_sequence} on were never acknowledged")

    def _answer(self, send: Send) -> None:
        if isinstance(send, SendHello):
            hello = msgspec.structs.replace(hello_from(send.first_sequence), hello_number=send.number)
            welcome = self.admission.hello(PEER, hello)
            assert isinstance(welcome, Welcome)
            self.to_agent.append(
                lambda now_ns: self.delivery.on_welcome(welcome.admitted_through, now_ns, welcome.hello_number)
            )
            return
        verdict = self.admission.number(PEER, send.sequence)
        if isinstance(verdict, Admitted | Duplicate):
            through = verdict.through
            self.to_agent.append(lambda now_ns: self.delivery.on_ack(through, now_ns))
            if isinstance(verdict, Admitted):
                self.admitted.add(send.sequence)
        elif not isinstance(verdict, SequenceGap) or verdict.hello_wanted:
            self.to_agent.append(self.delivery.on_hello_wanted)


happenings = st.lists(
    st.tuples(
        st.sampled_from([
            Wire.push, Wire.push, Wire.tick, Wire.arrive, Wire.arrive, Wire.answer, Wire.answer,
            Wire.lose, Wire.lose_answer, Wire.double, Wire.swap, Wire.restart_collector,
        ]),
        st.integers(0, 6),
    ),
    max_size=80,
)  # fmt: skip


@settings(deadline=None)
@given(st.integers(1, 8), happenings)
def test_every_report_is_admitted_or_was_dropped_by_the_agent(
    frames_max: int, events: list[tuple[Callable[[Wire, int], None], int]]
) -> None:
    wire = Wire(frames_max)
    for happen, amount in [(Wire.push, 0), *events]:
        happen(wire, amount)
    wire.heal()
    assert wire.admitted | wire.dropped == set(range(1, wire.buffer.last_sequence + 1))


@settings(deadline=None)
@given(st.integers(1, 8), happenings)
def test_nothing_counts_as_missing_that_the_agent_did_not_drop(
    frames_max: int, events: list[tuple[Callable[[Wire, int], None], int]]
) -> None:
    wire = Wire(frames_max)
    for happen, amount in [(Wire.push, 0), *events]:
        if happen is not Wire.restart_collector:
            happen(wire, amount)
    wire.heal()
    counts = wire.admission.counts(BOOT)
    assert counts is not None
    assert counts.admitted == len(wire.admitted)
    assert counts.missing == len(set(range(counts.first_sequence, counts.last_sequence + 1)) - wire.admitted)
    assert counts.missing <= len(wire.dropped)


def test_frames_lost_with_a_connection_arrive_after_a_hello() -> None:
    wire = Wire(frames_max=8)
    for happen, amount in [(Wire.tick, 0), (Wire.arrive, 1), (Wire.answer, 1), *[(Wire.push, 0)] * 4]:
        happen(wire, amount)
    assert wire.to_collector == deque(SendFrame(number, b"report") for number in (1, 2, 3, 4))
    wire.lose(0)
    wire.lose(0)
    wire.arrive(2)  # 3 jumps and asks, 4 jumps
    wire.answer(1)
    wire.tick(2)  # a second Hello comes at the earliest 200 ms after the first, before a silence of 2 s
    wire.arrive(1)
    wire.answer(1)
    wire.arrive(4)
    assert wire.admitted == {1, 2, 3, 4}


def test_a_report_lost_twice_at_the_same_place_is_not_given_up() -> None:
    wire = Wire(frames_max=8)
    for happen, amount in [(Wire.tick, 0), (Wire.arrive, 1), (Wire.answer, 1), *[(Wire.push, 0)] * 4]:
        happen(wire, amount)
    wire.lose(0)
    wire.arrive(3)  # 2, 3 and 4 jump
    wire.lose_answer(0)  # the question is lost too
    for happen, amount in [(Wire.tick, 20), (Wire.arrive, 1), (Wire.answer, 1)]:  # a silence, a Hello, 1 to 4 again
        happen(wire, amount)
    wire.lose(0)
    wire.arrive(3)  # the same three jump again
    assert wire.admitted == set()
    wire.heal()
    assert wire.admitted == {1, 2, 3, 4}
