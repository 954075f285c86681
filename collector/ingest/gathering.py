"""How long the receiving thread sleeps so that its next turn finds many messages. Pure: the time is an argument.

A turn costs up to a millisecond of CPU whatever it finds: two threads wake, and each table of a run's state is written
once in a batch. So messages are let gather, as long as it takes for MESSAGES_WANTED to come, but no longer than
NAP_NS_MAX, by which everything that a rank says may be late. Who is alone is heard at once.

An answer to what time it is must not lie there: how exactly two clocks are known is half of the time from the question
to the moment at which the answer is read. So naps are short for a while after there were questions.
"""

from typing import Final

from rankscope.measure.units import NS_PER_MS

MESSAGES_WANTED: Final = 256
"""In one turn. At 16,384 ranks 0.05 core less than with 128, and with 512 no less than with 256."""

CROWD_FROM: Final = 4
"""So many must be expected within the longest nap: it is not slept for fewer."""

NAP_NS_MIN: Final = 10 * NS_PER_MS
NAP_NS_MAX: Final = 50 * NS_PER_MS

ANSWERS_COME_NS: Final = 20 * NS_PER_MS
"""After questions of a tick, which is once a second; within a cluster an answer takes a millisecond or two."""
ANSWER_NAP_NS: Final = 2 * NS_PER_MS


class Gathering:
    """Knows how fast messages come by what the last turn found, in the time since the one before that found any."""

    def __init__(self, now_ns: int) -> None:
        self._last_found_ns = now_ns
        self._asked_ns = now_ns - ANSWERS_COME_NS

    def expect_answers(self, now_ns: int) -> None:
        """Somebody was asked for the time."""
        self._asked_ns = now_ns

    def find_nap_ns(self, count: int, now_ns: int) -> int:
        """How long to sleep after a turn that ends now and has found so many messages; 0: not at all."""
        if not count:
            return 0
        since_ns, self._last_found_ns = now_ns - self._last_found_ns, now_ns
        if count * NAP_NS_MAX < CROWD_FROM * since_ns:
            return 0
        if now_ns - self._asked_ns < ANSWERS_COME_NS:
            return ANSWER_NAP_NS
        return min(max(MESSAGES_WANTED * since_ns // count, NAP_NS_MIN), NAP_NS_MAX)
