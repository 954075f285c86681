"""What the ratios of a rank stand on, and when there are none. A rank takes a window of two steps now and then."""

import pytest

from rankscope.collector.runs.ratio_basis import (
    COUNT_MAX,
    NO_WINDOW,
    RatioBasis,
    WindowTimes,
    find_basis,
    note_windows,
)
from rankscope.measure.records import AgentCost, WindowBreakdown

S = 1_000_000_000
DROPPED = {"full_windows": True}


def window_of(first_step: int, step_count: int = 1) -> WindowBreakdown:
    return WindowBreakdown(
        first_step=first_step, step_count=step_count, window_ns=10, compute_ns=6, communication_ns=0, overlap_ns=0,
        exposed_communication_ns=0, copy_ns=0, idle_ns=4,
    )  # fmt: skip


def times_of(*reports: tuple[int, float]) -> WindowTimes:
    """Return the times of windows of two steps from `first_step` on, reported after so many seconds of the process."""
    times = None
    for first_step, at_s in reports:
        windows = [window_of(first_step), window_of(first_step + 1)]
        times = note_windows(times, windows, round(at_s * S), begin_host_ns=0)
    assert times is not None
    return times


def basis_at(times: WindowTimes, last_step: int | None, at_s: float, cost: AgentCost | None = None) -> RatioBasis:
    """Return the basis of six steps in windows since step 100, at a report after so many seconds."""
    return find_basis(window_of(100, 6), times, cost or AgentCost(), last_step, round(at_s * S))


STEADY = times_of((100, 10), (200, 20), (300, 30))
"""Windows of the steps 100, 101, then 200, 201 and 300, 301: a hundred steps and ten seconds apart."""


def test_share_is_of_the_steps_since_the_first_window() -> None:
    found = basis_at(STEADY, last_step=359, at_s=36)
    assert (found.steps, found.of_steps, found.share) == (6, 260, 6 / 260)


def test_age_is_from_the_newest_window_to_the_last_report() -> None:
    found = basis_at(STEADY, last_step=359, at_s=36)
    assert (found.age_steps, found.age_s, found.absent) == (359 - 301, 6.0, None)


def test_windows_of_one_report_are_one_distance() -> None:
    assert (STEADY.steps, STEADY.ns) == (301 - 201, 10 * S)


def test_first_window_is_as_far_from_the_start_as_its_end() -> None:
    first = times_of((36, 3.0))
    assert (first.interval_steps, first.interval_ns) == (38, 3 * S)


def test_report_without_windows_changes_no_times() -> None:
    assert note_windows(STEADY, (), 99 * S, 0) is STEADY
    assert note_windows(None, (), 99 * S, 0) is None


def test_interval_is_the_longer_of_the_last_two_distances() -> None:
    discarded_then_owed = times_of((36, 30.0), (38, 32.0))
    assert (discarded_then_owed.interval_steps, discarded_then_owed.interval_ns) == (38, 30 * S)
    assert times_of((4, 1), (36, 2), (38, 3), (68, 20)).interval_steps == 30


@pytest.mark.parametrize(
    ("why", "last_step", "at_s", "is_absent"),
    [
        ("four times 100 steps, and over a minute", 301 + 400, 91, False),
        ("a step more, but four times 10 s is not a minute", 301 + 401, 90, False),
        ("a step more, and over a minute", 301 + 401, 90.1, True),
        ("steps are fewer while it evaluates or is stalled", 301 + 10, 3600, False),
    ],
)
def test_newest_window_is_old_after_four_intervals(why: str, last_step: int, at_s: float, is_absent: bool) -> None:
    assert (basis_at(STEADY, last_step, at_s).absent is not None) is is_absent, why


def test_faster_steps_make_no_old_window_by_their_number() -> None:
    each_minute = times_of((100, 60), (200, 120), (300, 180))
    assert basis_at(each_minute, last_step=5_000, at_s=180 + 240).absent is None
    assert basis_at(each_minute, last_step=5_000, at_s=180 + 241).absent is not None


def test_old_window_is_described_by_its_age() -> None:
    assert basis_at(STEADY, last_step=12_301, at_s=2_430).absent == (
        "the newest full window is 40.0 min and 12,000 steps old, more than 4 times the distance between windows"
    )


def test_windows_that_slowed_training_ended_with_a_reason() -> None:
    cost = AgentCost(dropped=DROPPED, attached_ratio=0.29, window_effect="ended")
    found = basis_at(STEADY, 302, 30, cost)
    assert found.absent == "full windows ended after step 301: since the first one steps were 29 % longer than before"
    assert (found.steps, found.age_steps) == (6, 1)


def test_windows_dropped_for_their_cost_have_ended_at_once() -> None:
    kept = AgentCost(dropped=DROPPED, attached_ratio=0.004, window_effect="kept")
    expected = "full windows ended after step 301: the agent dropped them (docs/cost.md says when it does)"
    assert basis_at(STEADY, 302, 30, kept).absent == expected
    assert basis_at(STEADY, 302, 30, AgentCost(dropped={"full_windows": False})).absent is None


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        (AgentCost(), "no full window has come yet"),
        (AgentCost(window_effect="reference"), "no full window has come yet"),
        (AgentCost(window_effect="ended"), "no full window has come (device_windows = off)"),
        (AgentCost(dropped=DROPPED), "no full window comes: the agent dropped them (docs/cost.md says when it does)"),
    ],
)
def test_rank_without_a_window_has_no_ratios_and_a_reason(cost: AgentCost, expected: str) -> None:
    found = find_basis(None, None, cost, 50, S)
    assert found == RatioBasis(absent=expected)
    assert (found.steps, found.of_steps, found.share, found.age_steps, found.age_s) == (0, None, None, None, None)


def test_nothing_reported_is_the_shared_basis() -> None:
    assert find_basis(None, None, AgentCost(), None, 0) is NO_WINDOW


def test_window_ahead_of_the_reported_steps_is_of_age_zero() -> None:
    found = basis_at(STEADY, None, 29)
    assert (found.age_steps, found.age_s, found.of_steps) == (0, 0.0, 302 - 100)


def test_numbers_beyond_64_bits_are_cut() -> None:
    times = note_windows(None, [window_of(COUNT_MAX, COUNT_MAX)], COUNT_MAX, -COUNT_MAX)
    assert times == WindowTimes(COUNT_MAX, COUNT_MAX, COUNT_MAX, COUNT_MAX)
    found = find_basis(window_of(-COUNT_MAX, COUNT_MAX), times, AgentCost(), COUNT_MAX, -COUNT_MAX)
    assert (found.of_steps, found.age_steps, found.age_s) == (COUNT_MAX, 0, 0.0)


def test_window_without_steps_has_no_share() -> None:
    found = find_basis(window_of(5, 0), WindowTimes(4, 0, 0, 0), AgentCost(), 4, 0)
    assert (found.of_steps, found.share) == (0, None)
