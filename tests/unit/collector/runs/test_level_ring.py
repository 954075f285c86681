"""The levels of a process's memory: the least of each block, over its whole life, in little room."""

import pytest

from rankscope.collector.detect.view import MemoryLevel
from rankscope.collector.runs.level_ring import BLOCKS_MAX, FIRST_SPAN_NS, LevelRing

S = 10**9
SPAN_S = FIRST_SPAN_NS // S


def ring_of(*samples: tuple[int, int]) -> LevelRing:
    """Build a ring from (second, bytes); there is a step every second."""
    ring = LevelRing()
    for second, held in samples:
        ring.append(second, second * S, held)
    ring.validate()
    return ring


def test_level_is_the_least_of_its_block() -> None:
    ring = ring_of((0, 50), (2, 20), (4, 80), (5, 90), (6, 70), (12, 5))
    assert SPAN_S == 5
    assert ring.read() == (MemoryLevel(0, 0, 20), MemoryLevel(5, 5 * S, 70))


def test_block_that_is_open_is_no_level() -> None:
    assert (LevelRing().read(), ring_of((0, 5)).read(), ring_of((0, 5)).rise_bytes) == ((), (), 0)


def test_rise_is_from_the_first_third_on() -> None:
    # Complete are the blocks at 0, 10, 20 and 30: the first third of the four is one.
    ring = ring_of((0, 1), (10, 5), (20, 7), (30, 11), (40, 99))
    assert ring.rise_bytes == 11 - 5
    assert ring_of((0, 4), (10, 5)).rise_bytes == 0


def test_sample_of_the_past_is_ignored() -> None:
    assert ring_of((10, 5), (3, 1), (20, 9)).read() == (MemoryLevel(10, 10 * S, 5),)


def test_full_ring_has_blocks_of_twice_the_length() -> None:
    ring = ring_of(*((SPAN_S * n, 100 - n) for n in range(BLOCKS_MAX)))
    assert (ring.span_ns, len(ring.read())) == (FIRST_SPAN_NS, BLOCKS_MAX - 1)
    ring.append(SPAN_S * BLOCKS_MAX, FIRST_SPAN_NS * BLOCKS_MAX, 1)
    ring.validate()
    levels = ring.read()
    assert (ring.span_ns, len(levels)) == (2 * FIRST_SPAN_NS, BLOCKS_MAX // 2)
    assert levels[:2] == (MemoryLevel(0, 0, 99), MemoryLevel(2 * SPAN_S, 2 * FIRST_SPAN_NS, 97))


def test_sample_right_after_a_merger_may_be_of_the_last_block() -> None:
    ring = ring_of(*((SPAN_S * n, 50) for n in range(BLOCKS_MAX)))
    at_s = SPAN_S * (BLOCKS_MAX - 2) + 2 * SPAN_S - 1  # within the block that the last two became
    ring.append(at_s + 1, SPAN_S * BLOCKS_MAX * S - 1, 7)
    ring.append(10**6, 10**6 * S, 9)
    assert ring.read()[-1].held_bytes in {7, 50}


@pytest.mark.parametrize("seconds", [10_000, 200_000])
def test_whole_life_is_kept_in_bounded_room(seconds: int) -> None:
    ring = ring_of(*((second, second) for second in range(0, seconds, 7)))
    levels = ring.read()
    assert BLOCKS_MAX // 2 - 1 <= len(levels) <= BLOCKS_MAX
    assert levels[0] == MemoryLevel(0, 0, 0)
    assert seconds - levels[-1].steps <= 2 * ring.span_ns / S + 7
