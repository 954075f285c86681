"""Draws random connect delays per rank, so that thousands of ranks do not connect at once. Pure.

ZeroMQ waits `first_ms` before a reconnect, doubled after each failure up to `longest_ms`, plus a random 0 to
`first_ms`. With the same numbers on all ranks, those that lose a collector together would return together: of 1,000
ranks over 300 within 100 ms, instead of about 50 with numbers drawn per rank (tests/unit/uplink/test_reconnect.py).

At the start of a run all ranks connect at once too, so the first attempt waits a random time of up to one second for
every CONNECTS_PER_S ranks: 4 ms in a run of 8, 8 s in one of 16,384.
"""

import random
from typing import Final, NamedTuple

from rankscope.measure.units import NS_PER_S

FIRST_MS: Final = (200, 1_000)
"""Range of the first pause. A restart of a collector takes a second or two."""

LONGEST_MS: Final = (2_500, 5_000)
"""Range of the longest pause, within which all ranks are back after a long absence."""

CONNECTS_PER_S: Final = 2_000
"""Connections per second that a collector accepts besides its other work at a start, with a reserve of a factor 2."""


class ReconnectPauses(NamedTuple):
    """The reconnect pauses of one rank, in ms."""

    first_ms: int
    longest_ms: int


def draw_pauses(chance: random.Random) -> ReconnectPauses:
    """Draw a rank's pauses between attempts.

    >>> pauses = draw_pauses(random.Random("boot-of-7"))
    >>> 200 <= pauses.first_ms <= 1000 and 2500 <= pauses.longest_ms <= 5000
    True
    """
    return ReconnectPauses(chance.randint(*FIRST_MS), chance.randint(*LONGEST_MS))


def draw_first_delay_ns(world_size: int, chance: random.Random) -> int:
    """Draw the delay before the first connection of a rank in a run of that size.

    >>> draw_first_delay_ns(16_384, random.Random(1)) <= 8.192 * 10**9
    True
    """
    return round(chance.random() * world_size / CONNECTS_PER_S * NS_PER_S)
