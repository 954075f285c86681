"""What the ratios of a rank stand on, and when there are none. A rank takes a window of two steps now and then."""

import msgspec
import pytest

from rankscope.collector.runs.ratio_basis import (
    NO_WINDOW,
    PAUSED,
    FirstSeen,
    RatioBasis,
    WindowTimes,
    find_basis,
    note_windows,
)
from rankscope.measure.bounds import NUMBER_MAX
from rankscope.measure.records import AgentCost, WindowBreakdown

S = 1_000_000_000
SLOWER = "steps took 29 % longer than before the first window"
DROPPED = {"full_windows": True}
FROM_BEGIN = FirstSeen(-1, 0)


def window_of(first_step: int, step_count: int = 1) -> WindowBreakdown:
    return WindowBreakdown(
        first_step=first_step, step_count=step_count, window_ns=10, compute_ns=6, communication_ns=0, overlap_ns=0,
        exposed_communication_ns=0, copy_ns=0, idle_ns=4,
    )  # fmt: skip


def times_of(*reports: tuple[int, float], first_seen: FirstSeen = FROM_BEGIN) -> WindowTimes:
    """Return the times of windows of two steps from `first_step` on, reported after so many seconds of the process."""
    times = None
    for first_step, at_s in reports:
        windows = [window_of(first_step), window_of(first_step + 1)]
        times = note_windows(times, windows, round(at_s * S), first_seen)
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
    assert note_windows(STEADY, (), 99 * S, FROM_BEGIN) is STEADY
    assert note_windows(None, (), 99 * S, FROM_BEGIN) is None


def test_windows_before_the_newest_one_change_no_times() -> None:
    assert note_windows(STEADY, [window_of(150), window_of(301)], 99 * S, FROM_BEGIN) is STEADY


def test_first_distance_begins_at_the_collectors_first_report() -> None:
    """An earlier collector had windows up to step 5,000; the first report here is of step 5,120, after 600 s."""
    times = times_of((5_199, 610), first_seen=FirstSeen(5_120, 600 * S))
    assert (times.interval_steps, times.interval_ns) == (5_200 - 5_120, 10 * S)


def test_window_in_the_collectors_first_report_has_no_distance() -> None:
    times = times_of((5_099, 600), first_seen=FirstSeen(5_120, 600 * S))
    assert (times.interval_steps, times.interval_ns) == (0, 0)


def test_newest_window_lasts_ten_minutes_with_one_known_distance() -> None:
    """The first window ends with step 37 after 3 s; the second is late."""
    first = times_of((36, 3))
    assert basis_at(first, last_step=9_000, at_s=603).absent is None
    assert basis_at(first, last_step=9_000, at_s=604).absent is not None
    second = times_of((36, 3), (68, 5))
    assert basis_at(second, last_step=9_000, at_s=66).absent is not None


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
    old = (
        "at the last report the newest full window was 40.0 min and 12,000 steps old, more than 4 times the distance "
        "between windows"
    )
    assert basis_at(STEADY, last_step=12_301, at_s=2_430).absent == old
    paused = basis_at(STEADY, 12_301, 2_430, AgentCost(dropped=DROPPED, window_effect="kept")).absent
    assert paused == f"{old}: {PAUSED}"


def test_windows_that_slowed_training_ended_with_a_reason() -> None:
    cost = AgentCost(dropped=DROPPED, attached_ratio=0.29, window_effect="ended")
    found = basis_at(STEADY, 302, 30, cost)
    assert found.absent == f"full windows ended after step 301 because {SLOWER}"
    assert (found.steps, found.age_steps) == (6, 1)


@pytest.mark.parametrize("state", ["", "kept", "attached"])
def test_ratios_stay_while_windows_are_paused_for_their_cost(state: str) -> None:
    cost = AgentCost(dropped=DROPPED, attached_ratio=0.004, window_effect=state)
    assert basis_at(STEADY, 302, 30, cost).absent is None


def test_windows_of_a_gpu_set_to_have_none_ended_by_the_setting() -> None:
    expected = "full windows ended after step 301 because device_windows = off"
    assert basis_at(STEADY, 302, 30, AgentCost(window_effect="ended")).absent == expected


@pytest.mark.parametrize("state", ["", "kept"])
def test_captures_on_demand_are_said_to_be_some(state: str) -> None:
    assert basis_at(STEADY, 302, 30, AgentCost(window_effect="on_demand")).on_demand
    assert not basis_at(STEADY, 302, 30, AgentCost(window_effect=state)).on_demand


def test_capture_ratios_stay_ten_minutes_whatever_lies_between() -> None:
    cost, times = AgentCost(window_effect="on_demand"), WindowTimes(301, 30 * S, 1, S, 1, S)
    assert basis_at(times, 9_301, 630, cost).absent is None
    found = basis_at(times, 9_301, 631, cost)
    assert (found.age_steps, found.age_s) == (9_000, 601.0)
    assert found.absent == (
        "at the last report the last capture was 10.0 min and 9,000 steps old, more than 10.0 min: rankscope capture "
        "orders one"
    )


@pytest.mark.parametrize("change", [float("nan"), float("inf"), -1.5, 1e9])
def test_change_that_cannot_be_is_not_repeated(change: float) -> None:
    cost = AgentCost(dropped=DROPPED, attached_ratio=change, window_effect="ended")
    assert basis_at(STEADY, 302, 30, cost).absent == "full windows ended after step 301 because the agent decided so"


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        (AgentCost(), "this collector has seen no full window"),
        (AgentCost(window_effect="reference"), "this collector has seen no full window"),
        (AgentCost(window_effect="ended"), "this collector has seen no full window: device_windows = off"),
        (
            AgentCost(attached_ratio=0.29, window_effect="ended"),
            f"this collector has seen no full window: they ended because {SLOWER}",
        ),
        (
            AgentCost(window_effect="on_demand"),
            (
                "this collector has seen no full window: device_windows = on_demand, and no plain capture has arrived: "
                "rankscope capture orders one"
            ),
        ),
        (
            AgentCost(window_effect="awaits_graph"),
            "this collector has seen no full window: none begins before the run's first CUDA graph (cuda_graphs)",
        ),
        (AgentCost(dropped=DROPPED), f"this collector has seen no full window: {PAUSED}"),
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
    times = note_windows(None, [window_of(NUMBER_MAX, NUMBER_MAX)], NUMBER_MAX, FirstSeen(-1, -NUMBER_MAX))
    assert times == WindowTimes(NUMBER_MAX, NUMBER_MAX, NUMBER_MAX, NUMBER_MAX)
    found = find_basis(window_of(-NUMBER_MAX, NUMBER_MAX), times, AgentCost(), NUMBER_MAX, -NUMBER_MAX)
    assert (found.of_steps, found.age_steps, found.age_s) == (NUMBER_MAX, 0, 0.0)


def test_window_without_steps_has_no_share() -> None:
    found = find_basis(window_of(5, 0), WindowTimes(4, 0, 0, 0), AgentCost(), 4, 0)
    assert (found.of_steps, found.share) == (0, None)


def test_negative_number_of_steps_counts_as_none() -> None:
    times = note_windows(None, [window_of(5, -9)], S, FROM_BEGIN)
    assert times is not None
    assert times.last_step == 4
    found = find_basis(window_of(5, -9), times, AgentCost(), 4, S)
    assert (found.steps, found.of_steps, found.share) == (0, 0, None)


def test_windows_that_lasted_no_time_give_no_ratios() -> None:
    empty = msgspec.structs.replace(window_of(100, 6), window_ns=0)
    found = find_basis(empty, STEADY, AgentCost(), 302, 30 * S)
    assert found.absent == "the last full windows had a length of 0"
