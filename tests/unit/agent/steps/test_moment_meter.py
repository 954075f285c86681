"""HookCostMeter: the cost of all hooked moments from the few that timed themselves, and of going through them."""

from rankscope.agent.steps.moment_meter import (
    AFTERMATH_TIMES,
    ASSUMED_NS,
    LONGEST_NS,
    TIMED_KEPT,
    UNSEEN_TIMES,
    HookCostMeter,
)


def test_before_a_moment_was_timed_a_constant_is_assumed() -> None:
    assert HookCostMeter().spent_ns(10) == 10 * ASSUMED_NS


def test_a_moment_costs_a_multiple_of_what_it_sees_of_itself() -> None:
    meter = HookCostMeter()
    meter.note_written(300)
    meter.note_written(500)
    assert meter.spent_ns(10) == 10 * UNSEEN_TIMES * 400


def test_going_through_the_moments_costs_a_multiple_of_what_it_took() -> None:
    meter = HookCostMeter()
    meter.note_gone_through(50_000)
    meter.note_gone_through(30_000)
    assert meter.spent_ns(0) == AFTERMATH_TIMES * 80_000


def test_what_was_counted_stays_counted_when_moments_become_cheaper() -> None:
    meter = HookCostMeter()
    meter.note_written(400)
    before_ns = meter.spent_ns(10)
    for _ in range(TIMED_KEPT):
        meter.note_written(100)
    assert meter.spent_ns(15) - before_ns == 5 * UNSEEN_TIMES * 100


def test_a_moment_in_which_the_thread_lost_its_core_is_not_taken_for_a_usual_one() -> None:
    meter = HookCostMeter()
    meter.note_written(400)
    meter.note_written(LONGEST_NS + 1)
    assert meter.moment_ns == UNSEEN_TIMES * 400


def test_time_never_decreases_when_moments_are_just_being_taken_over() -> None:
    meter = HookCostMeter()
    before_ns = meter.spent_ns(10)
    assert meter.spent_ns(4) == before_ns
    assert meter.spent_ns(10) == before_ns
