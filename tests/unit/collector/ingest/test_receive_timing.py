"""Sleeps of the receive thread by the rate of messages, and the longest time without reading. No clock."""

import pytest

from rankscope.collector.ingest.receive_timing import (
    CLOCK_ANSWER_SLEEP_NS,
    CLOCK_ANSWERS_NS,
    MESSAGES_WANTED,
    SLEEP_NS_MAX,
    SLEEP_NS_MIN,
    STALL_WINDOW_NS,
    IngestStalls,
    ReceiveCoalescing,
)
from rankscope.measure.units import NS_PER_MS, NS_PER_S

PASSES = 100


def find_sleeps(per_s: float, work_ns: int = NS_PER_MS) -> tuple[list[int], list[int]]:
    """Return the sleeps after passes over evenly spaced messages, `per_s` a second, and how many each pass found."""
    now_ns, found, coalescing = 0, 0, ReceiveCoalescing(0)
    sleeps: list[int] = []
    counts: list[int] = []
    for _ in range(PASSES):
        # Without a sleep the thread waits for the next message.
        now_ns = max(now_ns, round((found + 1) * NS_PER_S / per_s)) + work_ns
        counts.append(int(now_ns * per_s / NS_PER_S) - found)
        found += counts[-1]
        sleeps.append(coalescing.find_sleep_ns(counts[-1], now_ns))
        now_ns += sleeps[-1]
    return sleeps, counts


@pytest.mark.parametrize("per_s", [0.1, 1, 20, 70])
def test_messages_of_few_ranks_are_read_at_once(per_s: float) -> None:
    sleeps, counts = find_sleeps(per_s)
    assert sleeps == [0] * PASSES
    assert counts == [1] * PASSES


@pytest.mark.parametrize("per_s", [100, 400, 1024, 2048, 4096])
def test_hundreds_of_ranks_get_the_longest_sleep(per_s: float) -> None:
    sleeps, counts = find_sleeps(per_s)
    assert set(sleeps[1:]) == {SLEEP_NS_MAX}
    assert counts[-1] == pytest.approx(per_s * (SLEEP_NS_MAX + NS_PER_MS) / NS_PER_S, abs=1)


@pytest.mark.parametrize("per_s", [8192, 16384])
def test_thousands_of_ranks_get_about_the_wanted_messages(per_s: float) -> None:
    sleeps, counts = find_sleeps(per_s)
    assert SLEEP_NS_MIN < sleeps[-1] < SLEEP_NS_MAX
    assert MESSAGES_WANTED <= counts[-1] <= MESSAGES_WANTED + per_s * 2 * NS_PER_MS / NS_PER_S


def test_more_messages_than_can_be_read_get_the_shortest_sleep() -> None:
    sleeps, _ = find_sleeps(32768)
    assert set(sleeps[1:]) == {SLEEP_NS_MIN}


def test_pass_without_messages_changes_nothing() -> None:
    coalescing = ReceiveCoalescing(0)
    assert coalescing.find_sleep_ns(0, NS_PER_S) == 0
    # Four messages in the 50 ms since the last one, however many passes were in between.
    coalescing.find_sleep_ns(1, 2 * NS_PER_S)
    assert [coalescing.find_sleep_ns(0, 2 * NS_PER_S + each * NS_PER_MS) for each in range(1, 50)] == [0] * 49
    assert coalescing.find_sleep_ns(3, 2 * NS_PER_S + SLEEP_NS_MAX) == 0


def test_messages_at_the_same_time_are_many() -> None:
    assert ReceiveCoalescing(7).find_sleep_ns(1, 7) == SLEEP_NS_MIN


def test_sleeps_are_short_while_clock_answers_are_expected() -> None:
    coalescing, now_ns = ReceiveCoalescing(0), NS_PER_S
    coalescing.find_sleep_ns(1, now_ns)
    coalescing.expect_clock_answers(now_ns)
    sleeps = [coalescing.find_sleep_ns(10, now_ns := now_ns + CLOCK_ANSWERS_NS // 4) for _ in range(5)]
    assert sleeps == [CLOCK_ANSWER_SLEEP_NS] * 3 + [SLEEP_NS_MAX] * 2


def test_expected_clock_answers_cause_no_sleep_of_their_own() -> None:
    coalescing = ReceiveCoalescing(0)
    coalescing.expect_clock_answers(NS_PER_S)
    assert coalescing.find_sleep_ns(1, NS_PER_S + NS_PER_MS) == 0


def test_no_stall_before_anything_was_read() -> None:
    assert IngestStalls(0).longest_ns == 0


def test_longest_time_between_two_waiting_messages_counts() -> None:
    stalls = IngestStalls(0)
    for read_ms in (5, 6, 90, 95):
        stalls.note_read(read_ms * NS_PER_MS)
    assert stalls.longest_ns == 84 * NS_PER_MS


def test_time_without_messages_is_no_stall() -> None:
    stalls = IngestStalls(0)
    stalls.note_read(5 * NS_PER_MS)
    stalls.note_idle(900 * NS_PER_MS)
    stalls.note_read(907 * NS_PER_MS)
    assert stalls.longest_ns == 7 * NS_PER_MS


def test_stall_is_reported_for_one_window_and_the_next() -> None:
    stalls = IngestStalls(0)
    stalls.note_read(300 * NS_PER_MS)
    stalls.roll(STALL_WINDOW_NS - 1)
    assert stalls.longest_ns == 300 * NS_PER_MS
    stalls.roll(STALL_WINDOW_NS)
    stalls.note_idle(STALL_WINDOW_NS)
    stalls.note_read(STALL_WINDOW_NS + 20 * NS_PER_MS)
    stalls.roll(2 * STALL_WINDOW_NS - 1)
    assert stalls.longest_ns == 300 * NS_PER_MS
    stalls.roll(2 * STALL_WINDOW_NS)
    assert stalls.longest_ns == 20 * NS_PER_MS


def test_old_stall_is_not_reported_however_rarely_rolled() -> None:
    stalls = IngestStalls(0)
    stalls.note_read(300 * NS_PER_MS)
    stalls.roll(5 * STALL_WINDOW_NS)
    assert stalls.longest_ns == 0
