"""Decides what to send when, so that every report arrives once and in order. No socket, no clock, no thread.

    unconnected --- Welcome ---> welcomed         in unconnected: one Hello, then another after each pause
         ^                          |             in welcomed: frames, `in_flight_max` of them ahead of their
         +-- HelloWanted, silence --+             acknowledgement
         |
         +-- Refused --> refused, for good (a reason in `reasons_retried`: unconnected, with the longest pause)

The collector admits only the sequence number after the last one, and acknowledges cumulatively. After a loss sending
resumes at the first frame that the collector lacks. That is not always the oldest frame held: older ones may have been
dropped from a full buffer, or acknowledged by a collector that has since died, and the present one would wait for them
indefinitely. A collector that is only slow lacks nothing, and sending everything twice would make it slower.

So after a silence (frames in flight, no acknowledgement for `resend_after_ns`) a Hello is sent instead of frames. Its
`first_sequence` makes the collector not wait for earlier numbers; the Welcome has the last admitted number, and sending
resumes there. A slow collector gets one small message, and the pauses between Hellos grow, with jitter, so that
thousands of ranks do not send them together.

If the collector is slower than these pauses, several Hellos are in flight, and the answer to an early one arrives after
frames that it does not cover; resuming from it would send them twice. So each Hello has a number, which its Welcome
repeats, and only an answer to a Hello sent after all frames sets where to resume. The time that this answer took is
added to the allowed silence until nothing is in flight.
"""

import random
from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from rankscope.measure.errors import SettingError
from rankscope.measure.units import NS_PER_MS, NS_PER_S
from rankscope.uplink.resend_buffer import ResendBuffer

HELLO_GAP_NS_MIN: Final = 200 * NS_PER_MS
"""Smallest interval between two Hellos, however often the collector requests one: after its restart it does so for each
frame in flight."""

HURRY_NS: Final = NS_PER_S
"""Allowed silence after the last message, which the collector acknowledges at once while the process waits to end."""

HELLOS_KEPT: Final = 64
"""Number of unanswered Hellos that are remembered, about twenty minutes of them."""


class DeliverySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds and pauses of delivery. Raise SettingError for values that would stop it or make it spin."""

    in_flight_max: int = 64
    """Largest number of unacknowledged frames in flight, at least 1."""

    resend_after_ns: int = 10 * NS_PER_S
    """Silence after which a Hello is sent. A busy collector acknowledges several reports together, eight seconds after
    the first of them; a missing report it notices by the number of the next, and requests a Hello."""

    hello_interval_ns: int = NS_PER_S
    """Pause after the first unanswered Hello; it doubles with each further one."""

    hello_interval_ns_max: int = 30 * NS_PER_S
    """Longest pause between Hellos. Actual pauses are a random 50 to 100 % of the nominal one."""

    reasons_retried: frozenset[str] = frozenset({"full", "replaced"})
    """Reasons of a Refused that are temporary. After any other reason no Hello is sent any more."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        floors = {"in_flight_max": 1, "resend_after_ns": NS_PER_MS, "hello_interval_ns": HELLO_GAP_NS_MIN}
        floors["hello_interval_ns_max"] = self.hello_interval_ns
        for name, floor in floors.items():
            value = getattr(self, name)
            if value < floor:
                text = f"{name} is {value}; the smallest allowed is {floor}. Raise it, or leave it out for the default."
                raise SettingError(text)


class SendHello(msgspec.Struct, frozen=True, gc=False):
    """Send a Hello with `first_sequence` and `number`."""

    first_sequence: int
    number: int


class SendFrame(msgspec.Struct, frozen=True, gc=False):
    """Send the numbered message `sequence`."""

    sequence: int
    frame: bytes


Send = SendHello | SendFrame


class Refusal(NamedTuple):
    """The reason why the collector refuses this rank, and its text with the cure."""

    reason: str
    detail: str


class DeliveryState(Enum):
    """The state of delivery towards the collector."""

    UNCONNECTED = "unconnected"
    WELCOMED = "welcomed"
    REFUSED = "refused"
    CLOSED = "closed"


class HelloSchedule:
    """When a Hello is due, and which answers belong to those that were sent.

    Pauses double with each unanswered Hello, and are a random 50 to 100 % of the nominal one.
    """

    def __init__(self, settings: DeliverySettings, chance: random.Random) -> None:
        self._settings = settings
        self._chance = chance
        self._pause_ns = settings.hello_interval_ns
        self._count = 0
        #: Times by number of those that were sent after every frame; at most HELLOS_KEPT.
        self._times_ns: dict[int, int] = {}
        #: When the next one is due.
        self.due_ns = 0
        #: When the transport accepted the last one; None before any.
        self.sent_ns: int | None = None

    def send(self, first_sequence: int, now_ns: int) -> SendHello:
        """Return the Hello to send now."""
        self.sent_ns = now_ns
        self.due_ns = now_ns + self._draw_pause_ns()
        self._pause_ns = min(2 * self._pause_ns, self._settings.hello_interval_ns_max)
        self._count += 1
        self._times_ns[self._count] = now_ns
        if len(self._times_ns) > HELLOS_KEPT:
            del self._times_ns[next(iter(self._times_ns))]
        return SendHello(first_sequence, self._count)

    def send_soon(self, now_ns: int) -> None:
        """Make one due now, or HELLO_GAP_NS_MIN after the last, with short pauses after it."""
        self._pause_ns = self._settings.hello_interval_ns
        self.due_ns = now_ns if self.sent_ns is None else max(now_ns, self.sent_ns + HELLO_GAP_NS_MIN)

    def send_late(self) -> None:
        """Make the next one due the longest pause after the last."""
        self._pause_ns = self._settings.hello_interval_ns_max
        self.due_ns = (self.sent_ns or 0) + self._draw_pause_ns()

    def find_sent_ns(self, number: int) -> int | None:
        """Return when the Hello of this number was sent, None if frames have been sent since."""
        return self._times_ns.get(number)

    def on_frames_sent(self) -> None:
        """Record that frames follow the Hellos so far: answers to these do not cover them."""
        self._times_ns.clear()

    def _draw_pause_ns(self) -> int:
        return round(self._pause_ns * (0.5 + 0.5 * self._chance.random()))


class FramesInFlight:
    """Which of the frames in `buffer` are sent and not acknowledged. `sent_through` is as in `Delivery`."""

    def __init__(self, buffer: ResendBuffer, sent_through: int) -> None:
        self._buffer = buffer
        #: The next frame to send; all before it have been sent since the last going back.
        self.next_sequence = buffer.first_sequence
        #: The highest number sent before the last going back.
        self._sent_through_before = sent_through
        #: Frames up to here are acknowledged, or dropped and announced in a Hello.
        self.settled_through = 0
        #: When an acknowledgement came that covered a frame, or the first of the frames in flight was sent.
        self.advanced_ns = 0
        #: Number of frames to be sent again.
        self.resends = 0

    @property
    def count(self) -> int:
        """The number of frames in flight.

        Counted from the settled number and not from the oldest frame held: the collector waits for a frame that was
        dropped in flight.
        """
        return self.next_sequence - 1 - self.settled_through

    @property
    def has_dropped_unsent(self) -> bool:
        """Whether the buffer has dropped frames that were not sent."""
        return self.next_sequence < self._buffer.first_sequence

    def send(self, count_max: int, now_ns: int) -> list[SendFrame]:
        """Return the next frames to send, so many that at most `count_max` are in flight."""
        is_first = self.count == 0
        held = self._buffer.frames_from(self.next_sequence, count_max - self.count)
        if held:
            self.next_sequence = held[-1].sequence + 1
            if is_first:
                self.advanced_ns = now_ns
        return [SendFrame(each.sequence, each.frame) for each in held]

    def go_back(self, now_ns: int) -> None:
        """Send again from the oldest frame held."""
        first_sequence = self._buffer.first_sequence
        self.resends += max(0, self.next_sequence - first_sequence)
        self._sent_through_before = max(self._sent_through_before, self.next_sequence - 1)
        self.settled_through = first_sequence - 1
        self.next_sequence = first_sequence
        self.advanced_ns = now_ns

    def settle(self, through: int, now_ns: int) -> bool:
        """Release the frames up to `through`; return False, and change nothing, if that was never sent.

        A Hello skips frames that were dropped unsent, so a Welcome may contain their numbers.
        """
        if through > max(self._sent_through_before, self.next_sequence - 1, self._buffer.first_sequence - 1):
            return False
        self.settled_through = through
        self._buffer.acknowledge(through)
        self.next_sequence = max(self.next_sequence, through + 1)
        self.advanced_ns = now_ns
        return True


class Delivery:
    """The state machine of delivery for the frames in `buffer`.

    Each event returns what to send now, in order. All times are of one monotonic, non-negative clock. A pushed frame is
    sent with the next event; `on_tick` is due at `next_wake_ns` and after every push. A transport that does not accept
    something calls `on_blocked`, and `on_writable` once it does again. `sent_through` is the highest number that an
    ended process may have sent before: acknowledgements up to it are accepted.
    """

    def __init__(
        self,
        buffer: ResendBuffer,
        chance: random.Random,
        settings: DeliverySettings | None = None,
        *,
        sent_through: int = 0,
    ) -> None:
        self.buffer = buffer
        self.refusal: Refusal | None = None
        """The last refusal, until a Welcome."""
        self.ever_welcomed = False
        self.blocked = False
        """True if the transport is full: events return nothing until `on_writable`."""
        self.stale_acks = 0
        """Number of acknowledgements without a new number."""
        self.impossible_acks = 0
        """Number of acknowledgements, including those in a Welcome, of frames that were never sent; they are ignored.
        """
        self._settings = settings or DeliverySettings()
        self._hellos = HelloSchedule(self._settings, chance)
        self._frames = FramesInFlight(buffer, sent_through)
        self._state = DeliveryState.UNCONNECTED
        #: How long the collector took to answer, added to the allowed silence until nothing is in flight.
        self._slowness_ns = 0
        self._resend_after_ns = self._settings.resend_after_ns

    @property
    def state(self) -> DeliveryState:
        """The present state."""
        return self._state

    @property
    def resends(self) -> int:
        """Number of frames sent so far that had to be sent again."""
        return self._frames.resends

    @property
    def has_sent_hello(self) -> bool:
        """True if the transport has accepted a Hello, which requires a connection."""
        return self._hellos.sent_ns is not None

    @property
    def everything_acknowledged(self) -> bool:
        """True if no frame is held."""
        return len(self.buffer) == 0

    @property
    def next_wake_ns(self) -> int | None:
        """Time at which `on_tick` is due; None if only another event can change anything."""
        if self.blocked or self._has_ended():
            return None
        if self._state is DeliveryState.UNCONNECTED:
            return self._hellos.due_ns
        return self._silent_from_ns() if self._frames.count else None

    def on_tick(self, now_ns: int) -> list[Send]:
        """Process passing time and pushed frames."""
        if self.blocked:
            return []
        if self._state is DeliveryState.WELCOMED:
            is_silent = self._frames.count and now_ns >= self._silent_from_ns()
            if is_silent or self._frames.has_dropped_unsent:
                self._fall_back(now_ns)
        if self._state is DeliveryState.WELCOMED:
            return self._send_frames(now_ns)
        if self._state is DeliveryState.UNCONNECTED and now_ns >= self._hellos.due_ns:
            return [self._hellos.send(self.buffer.first_sequence, now_ns)]
        return []

    def on_welcome(self, admitted_through: int, now_ns: int, hello_number: int = 0) -> list[Send]:
        """Process a Welcome: the collector had admitted frames up to `admitted_through` when it read that Hello.

        `hello_number` 0 means unknown: the last Hello is assumed.
        """
        if self._has_ended():
            return []
        if admitted_through > self._frames.settled_through:
            self._settle(admitted_through, now_ns)
        sends: list[Send] = []
        asked_ns = now_ns if hello_number == 0 else self._hellos.find_sent_ns(hello_number)
        if self._state is DeliveryState.UNCONNECTED and asked_ns is not None:
            self._state = DeliveryState.WELCOMED
            self.ever_welcomed = True
            self.refusal = None
            self._frames.go_back(now_ns)
            self._slowness_ns = min(now_ns - asked_ns, self._settings.hello_interval_ns_max)
            if self.buffer.first_sequence > admitted_through + 1 and not self.blocked:
                # Frames were dropped since the Hello that this answers. The frames follow the new Hello at once, since
                # a full buffer may drop another one before each Welcome.
                sends.append(self._hellos.send(self.buffer.first_sequence, now_ns))
        return sends + self.on_tick(now_ns)

    def on_ack(self, through: int, now_ns: int) -> list[Send]:
        """Process an acknowledgement of every frame up to and including `through`."""
        if through > self._frames.settled_through:
            self._settle(through, now_ns)
        else:
            self.stale_acks += 1
        return self.on_tick(now_ns)

    def on_hello_wanted(self, now_ns: int) -> list[Send]:
        """Process a request for a Hello: the collector does not know this rank, for example after its restart."""
        if self._has_ended():
            return []
        self._fall_back(now_ns)
        return self.on_tick(now_ns)

    def on_refused(self, reason: str, detail: str) -> list[Send]:
        """Process a refusal. Return nothing to send."""
        if self._has_ended():
            return []
        self.refusal = Refusal(reason, detail)
        if reason not in self._settings.reasons_retried:
            self._state = DeliveryState.REFUSED
            return []
        self._state = DeliveryState.UNCONNECTED
        self._hellos.send_late()
        return []

    def on_blocked(self, unsent: Sequence[Send]) -> None:
        """Process that the transport did not accept `unsent`, the rest of what the last event returned."""
        self.blocked = True
        for send in unsent:
            if isinstance(send, SendFrame):
                self._frames.next_sequence = min(self._frames.next_sequence, send.sequence)
            else:
                self._state = DeliveryState.UNCONNECTED
                self._hellos.sent_ns = None

    def on_writable(self, now_ns: int) -> list[Send]:
        """Process that the transport accepts messages again, possibly on a connection to a new collector."""
        self.blocked = False
        if self._state is DeliveryState.UNCONNECTED:
            self._fall_back(now_ns)
        return self.on_tick(now_ns)

    def hurry(self) -> None:
        """Shorten the allowed silence, after the last message was pushed."""
        self._resend_after_ns = min(self._resend_after_ns, HURRY_NS)

    def close(self) -> None:
        """Stop sending."""
        self._state = DeliveryState.CLOSED

    def _has_ended(self) -> bool:
        return self._state in {DeliveryState.REFUSED, DeliveryState.CLOSED}

    def _silent_from_ns(self) -> int:
        return self._frames.advanced_ns + self._resend_after_ns + self._slowness_ns

    def _fall_back(self, now_ns: int) -> None:
        self._state = DeliveryState.UNCONNECTED
        self._hellos.send_soon(now_ns)

    def _settle(self, through: int, now_ns: int) -> None:
        if not self._frames.settle(through, now_ns):
            self.impossible_acks += 1
        elif not self._frames.count:
            self._slowness_ns = 0

    def _send_frames(self, now_ns: int) -> list[Send]:
        frames = self._frames.send(self._settings.in_flight_max, now_ns)
        if frames:
            self._hellos.on_frames_sent()
        return [*frames]
