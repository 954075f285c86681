"""Tests of reconnecting with jitter: 1,000 ranks that lose their collector together do not return together.

The model of ZeroMQ's own pauses is that of libzmq 4.3 (`get_new_reconnect_ivl`): the pause doubles up to the longest,
and each has a chance of up to the first one on top.
"""

import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest

from rankscope.uplink.delivery import Delivery
from rankscope.uplink.reconnect import (
    CONNECTS_PER_S,
    FIRST_MS,
    LONGEST_MS,
    ReconnectPauses,
    draw_first_delay_ns,
    draw_pauses,
)
from rankscope.uplink.resend_buffer import ResendBuffer

RANKS = 1_000
BIN_MS = 100
NS_PER_MS = 1_000_000


def connect_ms(pauses: ReconnectPauses, back_ms: int, chance: random.Random) -> int:
    """Return when a rank that lost its collector at 0 reconnects to one that is back at `back_ms`."""
    now_ms, pause_ms = 0, pauses.first_ms
    while now_ms < back_ms:
        now_ms += pause_ms + chance.randrange(pauses.first_ms)
        pause_ms = min(2 * pause_ms, pauses.longest_ms)
    return now_ms


def connects(back_ms: int, draw: Callable[[random.Random], ReconnectPauses], seed: int = 7) -> list[int]:
    """Return the time from the return of the collector to each rank's connection, in ms."""
    chances = [random.Random(f"{seed}-{rank}") for rank in range(RANKS)]
    return [connect_ms(draw(chance), back_ms, chance) - back_ms for chance in chances]


def most_at_once(connected_ms: list[int]) -> int:
    """Return the largest number of connections within 100 ms."""
    return max(Counter(at // BIN_MS for at in connected_ms).values())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("back_ms", [1_000, 3_000, 10_000, 60_000, 600_000])
def test_reconnects_are_spread_after_an_absence(back_ms: int, seed: int) -> None:
    """Evenly over the 2.5 to 5 s that they take it would be a thirtieth; a short absence leaves less to spread over."""
    assert most_at_once(connects(back_ms, draw_pauses, seed)) <= RANKS / 7


@pytest.mark.parametrize("back_ms", [3_000, 10_000])
def test_equal_pauses_would_reconnect_half_at_once(back_ms: int) -> None:
    """With 100 ms and 5 s for all ranks; checks that the model shows the difference."""
    assert most_at_once(connects(back_ms, lambda _: ReconnectPauses(100, 5_000))) >= RANKS / 3


@pytest.mark.parametrize("back_ms", [1_000, 60_000, 600_000])
def test_all_ranks_reconnect_within_the_longest_pause(back_ms: int) -> None:
    assert max(connects(back_ms, draw_pauses)) <= LONGEST_MS[1] + FIRST_MS[1]


def test_the_same_life_draws_the_same_pauses() -> None:
    assert draw_pauses(random.Random("boot-1")) == draw_pauses(random.Random("boot-1"))
    assert draw_pauses(random.Random("boot-1")) != draw_pauses(random.Random("boot-2"))


@pytest.mark.parametrize("world_size", [1, 8, 1_000, 16_384])
def test_first_connects_are_spread_over_time(world_size: int) -> None:
    delays_ms = sorted(
        draw_first_delay_ns(world_size, random.Random(f"boot-{rank}")) // NS_PER_MS for rank in range(world_size)
    )
    assert delays_ms[-1] <= 1_000 * world_size / CONNECTS_PER_S
    within = Counter(at // 1_000 for at in delays_ms)
    # A second has the number on average; twice the square root of 2,000, 90, is what chance adds.
    assert max(within.values()) <= CONNECTS_PER_S + 2 * 45 * 2


def test_hellos_of_1000_ranks_spread_with_every_pause() -> None:
    """All are connected, and the collector is silent: pauses of 1, 2, 4 s ... 30 s, each 50 to 100 % by chance."""
    rounds: list[list[int]] = [[] for _ in range(5)]
    for rank in range(RANKS):
        delivery = Delivery(ResendBuffer(8, 1_000), random.Random(f"boot-{rank}"))
        now_ns = 0
        for at in rounds:
            assert delivery.on_tick(now_ns)
            due_ns = delivery.next_wake_ns
            assert due_ns is not None
            at.append(due_ns // NS_PER_MS)
            now_ns = due_ns
    spreads_ms = [max(at) - min(at) for at in rounds]
    assert all(wider >= 1.3 * narrower for narrower, wider in pairwise(spreads_ms))
    assert spreads_ms[0] >= 490  # 500 to 1,000 ms
    assert most_at_once(rounds[-1]) <= RANKS / 50
