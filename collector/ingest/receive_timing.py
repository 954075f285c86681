"""Time the receive thread: how long it sleeps to receive many messages at once, and how long it could not read."""

from typing import Final

from rankscope.measure.units import NS_PER_MS, NS_PER_S

MESSAGES_WANTED: Final = 256
"""Messages in one receive pass: with 128 the collector needs 0.05 core more at 16,384 ranks, with 512 no less."""

SLEEP_FROM_MESSAGES: Final = 4
"""Least messages to expect within the longest sleep: with fewer the thread does not sleep."""

SLEEP_NS_MIN: Final = 10 * NS_PER_MS
SLEEP_NS_MAX: Final = 50 * NS_PER_MS

CLOCK_ANSWERS_NS: Final = 20 * NS_PER_MS
"""How long sleeps stay short after ranks were asked for their clocks, which happens at ticks: within a cluster an
answer takes a millisecond or two."""
CLOCK_ANSWER_SLEEP_NS: Final = 2 * NS_PER_MS


class ReceiveCoalescing:
    """How long the receive thread sleeps so that its next pass finds many messages. The time is an argument.

    A pass costs up to a millisecond of CPU whatever it finds: two threads wake, and each table of a run's state is
    written once a batch. So messages accumulate until MESSAGES_WANTED have come, for at most SLEEP_NS_MAX, by which
    every message may be late. With few ranks there is no sleep. The rate of messages is that of the last pass.

    The accuracy of clock alignment is half the time from a clock question to the reading of its answer, so sleeps are
    short after such questions.
    """

    def __init__(self, now_ns: int) -> None:
        self._last_found_ns = now_ns
        self._asked_ns = now_ns - CLOCK_ANSWERS_NS

    def expect_clock_answers(self, now_ns: int) -> None:
        """Note that a rank was asked for its clock."""
        self._asked_ns = now_ns

    def find_sleep_ns(self, count: int, now_ns: int) -> int:
        """Return how long to sleep after a pass that ends now and has found `count` messages; 0: not at all."""
        if not count:
            return 0
        since_ns, self._last_found_ns = now_ns - self._last_found_ns, now_ns
        if count * SLEEP_NS_MAX < SLEEP_FROM_MESSAGES * since_ns:
            return 0
        if now_ns - self._asked_ns < CLOCK_ANSWERS_NS:
            return CLOCK_ANSWER_SLEEP_NS
        return min(max(MESSAGES_WANTED * since_ns // count, SLEEP_NS_MIN), SLEEP_NS_MAX)


STALL_WINDOW_NS: Final = 30 * NS_PER_S


class IngestStalls:
    """The longest time of the last 30 to 60 s in which messages may have waited unread. The time is an argument.

    While a detection pass, a page or the store holds the interpreter's lock, the receive thread cannot read. Nothing
    is lost by it, since agents and sockets hold what comes meanwhile, but it is late. Any thread may read
    `longest_ns`.
    """

    def __init__(self, now_ns: int) -> None:
        self._since_ns = now_ns
        """No unread message has waited for longer than since then."""
        self._window_ends_ns = now_ns + STALL_WINDOW_NS
        self._longest_ns = self._former_longest_ns = 0

    @property
    def longest_ns(self) -> int:
        """Longest stall of this window and the one before it; 0 before anything has been read."""
        return max(self._longest_ns, self._former_longest_ns)

    def note_idle(self, now_ns: int) -> None:
        """Note that no message waits now."""
        self._since_ns = now_ns

    def note_read(self, now_ns: int) -> None:
        """Note that a message was read now."""
        stall_ns, self._since_ns = now_ns - self._since_ns, now_ns
        self._longest_ns = max(self._longest_ns, stall_ns)

    def roll(self, now_ns: int) -> None:
        """Begin another window if this one is over. Call it regularly."""
        if now_ns >= self._window_ends_ns:
            is_next = now_ns < self._window_ends_ns + STALL_WINDOW_NS
            self._former_longest_ns, self._longest_ns = (self._longest_ns if is_next else 0), 0
            self._window_ends_ns = now_ns + STALL_WINDOW_NS
