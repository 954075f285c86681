"""When a rank tries to connect, so that thousands of them do not do it at the same moment. Pure: chance is an argument.

ZeroMQ connects by itself: it waits `first_ms`, twice as long after each attempt that failed, `longest_ms` at most, each
time with up to `first_ms` more by chance. If all ranks had the same two numbers, then all that lost a collector at the
same moment would knock at the same moments: up to 100 ms of chance in a pause of 5 s, with the 100 ms and 5 s that are
usual. So each rank draws its own two numbers.

    collector back after        3 s     10 s     60 s       1,000 ranks: the most that connect within 100 ms
    same numbers for all        559      510      310
    own numbers                  54       38       32       (the model of tests/unit/uplink/test_reconnect.py)

After a start all ranks come at once too, and there is nothing yet that has spread them. The first attempt waits for a
moment by chance, up to one second for every CONNECTS_PER_S ranks of the run: 4 ms in a run of 8, 8 s in one of 16,384.
"""

import random
from typing import Final, NamedTuple

from rankscope.measure.units import NS_PER_S

FIRST_MS: Final = (200, 1_000)
"""Range of the first pause. A collector that is only restarted takes a second or two."""

LONGEST_MS: Final = (2_500, 5_000)
"""Range of the longest pause: after a long absence everybody is back within it. An attempt costs next to nothing."""

CONNECTS_PER_S: Final = 2_000
"""Measured: a collector takes 4,096 connections in 1 s, with CURVE in 0.4 to 1 s; 16,384 at once with CURVE did not
settle. Half of that leaves room for what else a start costs."""


class ReconnectPauses(NamedTuple):
    """The pauses of one rank, in ms."""

    first_ms: int
    longest_ms: int


def draw_pauses(chance: random.Random) -> ReconnectPauses:
    """A rank's own pauses between attempts.

    >>> pauses = draw_pauses(random.Random("boot-of-7"))
    >>> 200 <= pauses.first_ms <= 1000 and 2500 <= pauses.longest_ms <= 5000
    True
    """
    return ReconnectPauses(chance.randint(*FIRST_MS), chance.randint(*LONGEST_MS))


def draw_first_delay_ns(world_size: int, chance: random.Random) -> int:
    """How long a rank of so many waits before it connects for the first time.

    >>> draw_first_delay_ns(16_384, random.Random(1)) <= 8.192 * 10**9
    True
    """
    return round(chance.random() * world_size / CONNECTS_PER_S * NS_PER_S)
