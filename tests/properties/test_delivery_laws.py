"""Laws of delivery: whatever a network and a collector do, nothing is lost uncounted, and all is well once they heal.

The model: a network that hands over any message in transit next, or never, or more than once; a transport that may be
blocked; and a collector that admits only the number that follows, acknowledges cumulatively and may be restarted with
an empty memory.
"""

import random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from rankscope.measure.messages import Ack, HelloWanted, Message, Welcome
from rankscope.uplink.delivery import Delivery, DeliverySettings, DeliveryState, Send, SendFrame
from rankscope.uplink.resend_buffer import ResendBuffer

NS_PER_MS = 1_000_000
ROUND_MS = 100
SILENCE_MS = (DeliverySettings().resend_after_ns + DeliverySettings().hello_interval_ns_max) // NS_PER_MS
"""Longest silence before a collector is asked again: one with slow answers gets that time once more."""
ROUNDS_MAX = 2 * SILENCE_MS // ROUND_MS + 140
"""Round trips after which a healed network must have delivered everything. The most that is needed is two silences,
a Hello after each, the 40 last frames, and the 60 frames of the longest run in windows of one."""


class Collector:
    """One collector process, which knows one rank or none."""

    def __init__(self) -> None:
        self.admitted_through: int | None = None
        self.log: list[int] = []

    def receive(self, send: Send) -> Message:
        """Return its answer to one message."""
        if not isinstance(send, SendFrame):
            self.admitted_through = max(self.admitted_through or 0, send.first_sequence - 1)
            return Welcome(admitted_through=self.admitted_through, hello_number=send.number)
        if self.admitted_through is None:
            return HelloWanted()
        if send.sequence == self.admitted_through + 1:
            assert send.frame == b"%d" % send.sequence
            self.admitted_through += 1
            self.log.append(send.sequence)
        return Ack(through=self.admitted_through)


class World:
    """Delivery, network and the successive collector processes. Accounts for every frame ever pushed."""

    def __init__(self, frames_max: int, in_flight_max: int) -> None:
        rules = DeliverySettings(in_flight_max=in_flight_max)
        self.buffer = ResendBuffer(frames_max, bytes_max=10**6)
        self.delivery = Delivery(self.buffer, random.Random(7), rules)
        self.now_ns = 0
        self.is_blocked = False
        self.up: list[Send] = []
        self.down: list[Message] = []
        self.lives = [Collector()]
        self.dropped: set[int] = set()
        self.acknowledged: set[int] = set()

    def held(self) -> set[int]:
        """Numbers in the buffer."""
        return set(range(self.buffer.first_sequence, self.buffer.last_sequence + 1))

    def push(self, count: int, _: object = None) -> None:
        """`count` more frames, then a tick."""
        for _each in range(count):
            sequence = self.buffer.last_sequence + 1
            before = self.held() | {sequence}
            self.buffer.push(sequence, b"%d" % sequence, 1)
            self.dropped |= before - self.held()
        self.wait(0)

    def wait(self, milliseconds: int, _: object = None) -> None:
        """Time passes."""
        self.now_ns += milliseconds * NS_PER_MS
        self.transmit(self.delivery.on_tick(self.now_ns))

    def transmit(self, sends: list[Send]) -> None:
        """Put the messages that delivery returned into the network, or back."""
        if self.is_blocked and sends:
            self.delivery.on_blocked(sends)
        else:
            self.up += sends

    def hand_up(self, index: int, fate: str) -> None:
        """Some message on its way to the collector meets its fate."""
        for send in take(self.up, index, fate):
            self.down.append(self.lives[-1].receive(send))

    def hand_down(self, index: int, fate: str) -> None:
        """Some message on its way to the agent meets its fate."""
        for message in take(self.down, index, fate):
            before = self.held()
            if isinstance(message, Ack):
                sends = self.delivery.on_ack(message.through, self.now_ns)
            elif isinstance(message, Welcome):
                sends = self.delivery.on_welcome(message.admitted_through, self.now_ns, message.hello_number)
            else:
                sends = self.delivery.on_hello_wanted(self.now_ns)
            self.acknowledged |= before - self.held()
            self.transmit(sends)

    def restart(self, *_: object) -> None:
        """Replace the collector with a new one that knows no rank."""
        self.lives.append(Collector())

    def block(self, *_: object) -> None:
        """Block the transport."""
        self.is_blocked = True

    def unblock(self, *_: object) -> None:
        """Unblock the transport."""
        self.is_blocked = False
        if self.delivery.blocked:
            self.transmit(self.delivery.on_writable(self.now_ns))

    def heal(self, pushes: int) -> None:
        """Deliver everything from here on, once and in order; `pushes` more frames come one a round."""
        self.unblock()
        for round_number in range(ROUNDS_MAX):
            if round_number < pushes:
                self.push(1)
            for channel, hand in ((self.up, self.hand_up), (self.down, self.hand_down)):
                for _each in range(len(channel)):
                    hand(0, "arrives")
            if round_number >= pushes and self.delivery.everything_acknowledged:
                return
            self.wait(ROUND_MS)

    def check_accounts(self) -> None:
        """Every frame pushed is acknowledged, dropped or held, and what was acknowledged arrived."""
        pushed = self.buffer.last_sequence
        assert len(self.acknowledged) + len(self.dropped) + len(self.buffer) == pushed
        assert self.buffer.reports_dropped == self.buffer.steps_dropped == len(self.dropped)
        assert self.acknowledged <= {sequence for life in self.lives for sequence in life.log}


def take(channel: list, index: int, fate: str) -> list:  # type: ignore[type-arg]
    """Return what arrives of the message at `index` (modulo the count); it stays in transit if it is duplicated."""
    if not channel:
        return []
    index %= len(channel)
    message = channel[index] if fate == "comes twice" else channel.pop(index)
    return [] if fate == "is lost" else [message]


fates = st.sampled_from(["arrives", "arrives", "is lost", "comes twice"])
places = st.sampled_from([0, 0, 0, 1, 2, 5, 11])
happenings = st.one_of(
    st.tuples(st.just("push"), st.integers(1, 4), st.none()),
    st.tuples(st.just("wait"), st.sampled_from([1, 50, 200, 700, 2000, 30_000]), st.none()),
    st.tuples(st.just("hand_up"), places, fates),
    st.tuples(st.just("hand_up"), places, fates),
    st.tuples(st.just("hand_down"), places, fates),
    st.tuples(st.just("hand_down"), places, fates),
    st.tuples(st.sampled_from(["block", "unblock"]), st.none(), st.none()),
)
restarts = st.tuples(st.just("restart"), st.none(), st.none())
shapes = st.tuples(st.sampled_from([1, 2, 3, 8, 1000]), st.sampled_from([1, 2, 5, 64]))


def live_through(shape: tuple[int, int], story: list[tuple[str, object, object]], pushes: int) -> World:
    """Return a world after that story and after healing."""
    world = World(*shape)
    world.wait(0)
    for name, first, second in story:
        getattr(world, name)(first, second)
        world.check_accounts()
    world.heal(pushes)
    world.check_accounts()
    return world


LOST_AFTER_A_LATE_ANSWER = [
    *[("push", 1, None)] * 2, ("wait", 30_000, None), ("hand_up", 0, "arrives"), ("hand_down", 0, "arrives"),
    ("hand_up", 2, "arrives"),
]  # fmt: skip
"""Script in which a frame overtakes the Hello that it needed, and the answer before took 30 s."""


@settings(deadline=None, max_examples=300)
@given(shapes, st.lists(happenings, max_size=60), st.integers(0, 40))
@example((1, 1), LOST_AFTER_A_LATE_ANSWER, 0)
def test_every_frame_not_dropped_arrives_once_and_in_order(
    shape: tuple[int, int], story: list[tuple[str, object, object]], pushes: int
) -> None:
    world = live_through(shape, story, pushes)
    log = world.lives[-1].log
    assert world.delivery.everything_acknowledged
    assert log == sorted(set(log))
    assert set(log) | world.dropped == set(range(1, world.buffer.last_sequence + 1))


@settings(deadline=None, max_examples=300)
@given(shapes, st.lists(st.one_of(happenings, happenings, restarts), max_size=60), st.integers(0, 40))
def test_frames_not_dropped_arrive_through_restarts(
    shape: tuple[int, int], story: list[tuple[str, object, object]], pushes: int
) -> None:
    world = live_through(shape, story, pushes)
    arrived = {sequence for life in world.lives for sequence in life.log}
    assert world.delivery.everything_acknowledged
    assert all(life.log == sorted(set(life.log)) for life in world.lives)
    assert arrived | world.dropped == set(range(1, world.buffer.last_sequence + 1))


claims = st.one_of(
    st.tuples(st.sampled_from(["ack", "welcome"]), st.integers(0, 40)),
    st.tuples(st.just("ack"), st.sampled_from([2**62, 10**9])),
    st.tuples(st.sampled_from(["hello_wanted", "refused_for_now", "tick"]), st.integers(0, 3000)),
    st.tuples(st.just("push"), st.integers(1, 5)),
)


@settings(deadline=None, max_examples=300)
@given(st.lists(claims, max_size=60))
def test_lying_collector_releases_no_unsent_frame(story: list[tuple[str, int]]) -> None:
    world = World(frames_max=1000, in_flight_max=3)
    delivery, given_out = world.delivery, 0
    for name, number in story:
        world.up.clear()
        if name == "ack":
            world.transmit(delivery.on_ack(number, world.now_ns))
        elif name == "welcome":
            world.transmit(delivery.on_welcome(number, world.now_ns))
        elif name == "hello_wanted":
            world.transmit(delivery.on_hello_wanted(world.now_ns))
        elif name == "refused_for_now":
            world.transmit(delivery.on_refused("full", ""))
        else:
            world.push(number) if name == "push" else world.wait(number)
        assert world.buffer.first_sequence - 1 <= given_out  # released: only what was out before this claim
        given_out = max([given_out, *(send.sequence for send in world.up if isinstance(send, SendFrame))])
        assert delivery.state in {DeliveryState.UNCONNECTED, DeliveryState.WELCOMED}
        assert len(world.held()) == len(delivery.buffer)


@settings(deadline=None, max_examples=200)
@given(shapes, st.lists(happenings, max_size=60))
def test_next_wake_is_not_past_and_no_earlier_tick_sends(
    shape: tuple[int, int], story: list[tuple[str, object, object]]
) -> None:
    world = World(*shape)
    for name, first, second in story:
        getattr(world, name)(first, second)
        world.wait(0)
        wake_ns = world.delivery.next_wake_ns
        if wake_ns is not None:
            assert wake_ns > world.now_ns
            assert world.delivery.on_tick(wake_ns - 1) == []
