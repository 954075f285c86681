"""How long the receiving thread sleeps so that its next turn finds many messages. Pure: the time is an argument.

A turn costs up to a millisecond of CPU whatever it finds: two threads wake, and each table of a run's state is written
once in a batch. So messages are let gather, as long as it takes for MESSAGES_WANTED to come, but no longer than
NAP_NS_MAX, by which everything that a rank says may be late. Who is alone is heard at once.

An answer to what time it is must not lie there: how exactly two clocks are known is half of the time from the question
to the moment at which the answer is read. So naps are short for a while after there were questions.
"""

from typing import Final

from rankscope.measure.units import NS_PER_MS, NS_PER_S

MESSAGES_WANTED: Final = 256
"""In one turn. At 16,384 ranks 0.05 core less than with 128, and with 512 no less than with 256."""

CROWD_FROM: Final = 4
"""So many must be expected within the longest nap: it is not slept for fewer."""

NAP_NS_MIN: Final = 10 * NS_PER_MS
NAP_NS_MAX: Final = 50 * NS_PER_MS

ANSWERS_COME_NS: Final = 20 * NS_PER_MS
"""After questions of a tick, which is once a second; within a cluster an answer takes a millisecond or two."""
ANSWER_NAP_NS: Final = 2 * NS_PER_MS


class ReceiveCoalescing:
    """Knows how fast messages come by what the last turn found, in the time since the one before that found any."""

    def __init__(self, now_ns: int) -> None:
        self._last_found_ns = now_ns
        self._asked_ns = now_ns - ANSWERS_COME_NS

    def expect_answers(self, now_ns: int) -> None:
        """Somebody was asked for the time."""
        self._asked_ns = now_ns

    def find_sleep_ns(self, count: int, now_ns: int) -> int:
        """How long to sleep after a turn that ends now and has found so many messages; 0: not at all."""
        if not count:
            return 0
        since_ns, self._last_found_ns = now_ns - self._last_found_ns, now_ns
        if count * NAP_NS_MAX < CROWD_FROM * since_ns:
            return 0
        if now_ns - self._asked_ns < ANSWERS_COME_NS:
            return ANSWER_NAP_NS
        return min(max(MESSAGES_WANTED * since_ns // count, NAP_NS_MIN), NAP_NS_MAX)


# How long the collector has not read while messages may have waited. Pure: the time is an argument.
#
# What a look, a page or the store keeps Python's lock for, the thread that receives cannot read: agents and sockets
# hold what comes meanwhile, so nothing is lost, but all of it is later. The thread tells when it reads and when there
# was nothing to be read; any thread may ask.

WINDOW_NS: Final = 30 * NS_PER_S


class IngestStalls:
    """The longest pause of this window and of the one before: of the last 30 to 60 s."""

    def __init__(self, now_ns: int) -> None:
        self._since_ns = now_ns
        """No message that has not been read has waited for longer than since then."""
        self._window_ends_ns = now_ns + WINDOW_NS
        self._longest_ns = self._before_ns = 0

    @property
    def longest_ns(self) -> int:
        """0 before anything has been read."""
        return max(self._longest_ns, self._before_ns)

    def note_idle(self, now_ns: int) -> None:
        """Up to now nothing waits."""
        self._since_ns = now_ns

    def note_read(self, now_ns: int) -> None:
        """A message has been read."""
        pause_ns, self._since_ns = now_ns - self._since_ns, now_ns
        self._longest_ns = max(self._longest_ns, pause_ns)

    def roll(self, now_ns: int) -> None:
        """To be called now and then: begin another window when this one is over."""
        if now_ns >= self._window_ends_ns:
            is_next = now_ns < self._window_ends_ns + WINDOW_NS
            self._before_ns, self._longest_ns = (self._longest_ns if is_next else 0), 0
            self._window_ends_ns = now_ns + WINDOW_NS
