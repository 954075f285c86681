"""How long messages are let gather, by how fast they come."""

import pytest

from rankscope.collector.ingest.receive_timing import (
    ANSWER_NAP_NS,
    ANSWERS_COME_NS,
    MESSAGES_WANTED,
    NAP_NS_MAX,
    NAP_NS_MIN,
    ReceiveCoalescing,
)
from rankscope.measure.units import NS_PER_MS, NS_PER_S

TURNS = 100


def naps_ns(per_s: float, work_ns: int = NS_PER_MS) -> tuple[list[int], list[int]]:
    """The naps after turns that find evenly spaced messages, so many a second, and how many each turn has found."""
    now_ns, found, gathering = 0, 0, ReceiveCoalescing(0)
    naps: list[int] = []
    counts: list[int] = []
    for _ in range(TURNS):
        # Without a nap the thread waits for the next message.
        now_ns = max(now_ns, round((found + 1) * NS_PER_S / per_s)) + work_ns
        counts.append(int(now_ns * per_s / NS_PER_S) - found)
        found += counts[-1]
        naps.append(gathering.find_sleep_ns(counts[-1], now_ns))
        now_ns += naps[-1]
    return naps, counts


@pytest.mark.parametrize("per_s", [0.1, 1, 20, 70])
def test_few_ranks_are_heard_at_once(per_s: float) -> None:
    naps, counts = naps_ns(per_s)
    assert naps == [0] * TURNS
    assert counts == [1] * TURNS


@pytest.mark.parametrize("per_s", [100, 400, 1024, 2048, 4096])
def test_of_some_hundred_ranks_messages_gather_for_the_longest_nap(per_s: float) -> None:
    naps, counts = naps_ns(per_s)
    assert set(naps[1:]) == {NAP_NS_MAX}
    assert counts[-1] == pytest.approx(per_s * (NAP_NS_MAX + NS_PER_MS) / NS_PER_S, abs=1)


@pytest.mark.parametrize("per_s", [8192, 16384])
def test_of_thousands_about_as_many_gather_as_are_wanted(per_s: float) -> None:
    naps, counts = naps_ns(per_s)
    assert NAP_NS_MIN < naps[-1] < NAP_NS_MAX
    assert MESSAGES_WANTED <= counts[-1] <= MESSAGES_WANTED + per_s * 2 * NS_PER_MS / NS_PER_S


def test_of_more_than_can_be_taken_in_between_the_nap_is_the_shortest() -> None:
    naps, _ = naps_ns(32768)
    assert set(naps[1:]) == {NAP_NS_MIN}


def test_turn_that_finds_nothing_changes_nothing() -> None:
    gathering = ReceiveCoalescing(0)
    assert gathering.find_sleep_ns(0, NS_PER_S) == 0
    # Four messages in the 50 ms since the last one, however often it was looked in between.
    gathering.find_sleep_ns(1, 2 * NS_PER_S)
    assert [gathering.find_sleep_ns(0, 2 * NS_PER_S + each * NS_PER_MS) for each in range(1, 50)] == [0] * 49
    assert gathering.find_sleep_ns(3, 2 * NS_PER_S + NAP_NS_MAX) == 0


def test_messages_of_one_moment_are_many() -> None:
    assert ReceiveCoalescing(7).find_sleep_ns(1, 7) == NAP_NS_MIN


def test_naps_are_short_while_answers_to_what_time_it_is_are_to_come() -> None:
    gathering, now_ns = ReceiveCoalescing(0), NS_PER_S
    gathering.find_sleep_ns(1, now_ns)
    gathering.expect_answers(now_ns)
    naps = [gathering.find_sleep_ns(10, now_ns := now_ns + ANSWERS_COME_NS // 4) for _ in range(5)]
    assert naps == [ANSWER_NAP_NS] * 3 + [NAP_NS_MAX] * 2


def test_answers_that_are_to_come_make_nobody_wait_who_would_not() -> None:
    gathering = ReceiveCoalescing(0)
    gathering.expect_answers(NS_PER_S)
    assert gathering.find_sleep_ns(1, NS_PER_S + NS_PER_MS) == 0
