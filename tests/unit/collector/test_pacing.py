"""Detection passes and other work within a share of a core."""

import pytest

from rankscope.collector.pacing import (
    RENDERING_DEFER_NS_MAX,
    SNAPSHOT_DEFER_NS_MAX,
    CpuShareLimiter,
    DetectionSchedule,
)
from rankscope.measure.units import NS_PER_MS, NS_PER_S

SHARE = 0.05
TICK_NS = NS_PER_S
LASTED_NS = 600 * NS_PER_MS


# -- CpuShareLimiter --------------------------------------------------------------------------------------------------


def count_runs(cost_ns: int, seconds: int, share: float) -> int:
    """How often the work is done when there is an opportunity every second."""
    limiter, runs = CpuShareLimiter(share, NS_PER_S), 0
    for second in range(seconds):
        if limiter.is_due(second * NS_PER_S):
            limiter.record(second * NS_PER_S, cost_ns)
            runs += 1
    return runs


def test_work_below_its_share_runs_at_every_opportunity() -> None:
    assert count_runs(cost_ns=50_000_000, seconds=100, share=0.05) == 100


def test_work_above_its_share_is_spaced_to_it() -> None:
    """0.2 s at 5 % is a run every 4 s; 0.21 s one every 4.2 s, with opportunities every second: every 5 s."""
    assert count_runs(cost_ns=200_000_000, seconds=100, share=0.05) == 25
    assert count_runs(cost_ns=210_000_000, seconds=100, share=0.05) == 20


def test_work_that_became_cheap_runs_at_every_opportunity() -> None:
    limiter = CpuShareLimiter(0.1, NS_PER_S)
    limiter.record(0, NS_PER_S)
    assert not limiter.is_due(9 * NS_PER_S)
    assert limiter.is_due(10 * NS_PER_S)
    limiter.record(10 * NS_PER_S, 1)
    assert limiter.is_due(10 * NS_PER_S + 1)


# -- DetectionSchedule ------------------------------------------------------------------------------------------------


def after_a_pass(lasted_ns: int = LASTED_NS, cpu_ns: int = NS_PER_MS) -> DetectionSchedule:
    """A schedule after a pass that ended at 0 and cost so little that the next is due at any time."""
    schedule = DetectionSchedule(SHARE, TICK_NS)
    schedule.record(-lasted_ns, 0, cpu_ns)
    return schedule


def runs_now(
    schedule: DetectionSchedule, now_ns: int, next_request_ns: int | None = None, *, is_rendering: bool = False
) -> bool:
    return schedule.decide(now_ns, is_rendering=is_rendering, next_request_ns=next_request_ns)


def test_first_pass_is_due_at_once() -> None:
    assert runs_now(DetectionSchedule(SHARE, TICK_NS), 0)
    assert runs_now(DetectionSchedule(SHARE, TICK_NS), 0, next_request_ns=1)


def test_expensive_pass_delays_the_next_by_its_share() -> None:
    schedule = DetectionSchedule(SHARE, TICK_NS)
    schedule.record(0, NS_PER_S, 500 * NS_PER_MS)
    assert not runs_now(schedule, 10 * NS_PER_S - 1)
    assert not schedule.is_deferred, "it was not due"
    assert runs_now(schedule, 10 * NS_PER_S)


def test_pass_is_deferred_when_a_request_is_expected_within_it() -> None:
    schedule = after_a_pass()
    assert not runs_now(schedule, NS_PER_S, NS_PER_S + LASTED_NS // 2)
    assert schedule.is_deferred


def test_pass_that_ends_before_the_request_is_not_deferred() -> None:
    schedule = after_a_pass()
    assert runs_now(schedule, NS_PER_S, NS_PER_S + LASTED_NS)
    assert not schedule.is_deferred


def test_past_request_defers_no_pass() -> None:
    assert runs_now(after_a_pass(), NS_PER_S, NS_PER_S - 1)


def test_pass_waits_until_a_page_is_rendered() -> None:
    schedule = after_a_pass()
    request_ns = 5 * NS_PER_S
    assert not runs_now(schedule, NS_PER_S, request_ns, is_rendering=True)
    assert runs_now(schedule, NS_PER_S + 400 * NS_PER_MS, request_ns)


@pytest.mark.parametrize("is_rendering", [True, False])
def test_deferral_is_bounded_when_there_is_no_gap(is_rendering: bool) -> None:
    schedule = after_a_pass()
    for now_ns in range(NS_PER_S, NS_PER_S + SNAPSHOT_DEFER_NS_MAX, 100 * NS_PER_MS):
        assert not runs_now(schedule, now_ns, now_ns + NS_PER_MS, is_rendering=is_rendering)
    now_ns = NS_PER_S + SNAPSHOT_DEFER_NS_MAX
    assert runs_now(schedule, now_ns, now_ns + NS_PER_MS, is_rendering=is_rendering)


def test_pass_runs_after_a_snapshot_where_pages_leave_no_gap() -> None:
    schedule = after_a_pass()
    assert not runs_now(schedule, NS_PER_S, is_rendering=True)
    snapshot_ns = NS_PER_S + RENDERING_DEFER_NS_MAX
    assert not runs_now(schedule, snapshot_ns - 1, snapshot_ns + LASTED_NS, is_rendering=True)
    assert not runs_now(schedule, snapshot_ns, snapshot_ns + LASTED_NS - 1, is_rendering=True)
    assert runs_now(schedule, snapshot_ns, snapshot_ns + LASTED_NS, is_rendering=True)


def test_each_pass_may_be_deferred_anew() -> None:
    schedule = after_a_pass()
    assert not runs_now(schedule, NS_PER_S, NS_PER_S + 1)
    schedule.record(2 * NS_PER_S, 2 * NS_PER_S + LASTED_NS, NS_PER_MS)
    assert not schedule.is_deferred
    assert not runs_now(schedule, 20 * NS_PER_S, 20 * NS_PER_S + 1)


def test_short_passes_are_deferred_only_by_an_imminent_request() -> None:
    assert runs_now(after_a_pass(lasted_ns=20 * NS_PER_MS), NS_PER_S, NS_PER_S + 30 * NS_PER_MS)
