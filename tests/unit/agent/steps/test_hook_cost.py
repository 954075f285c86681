"""HookCostMeter: the cost of all hook events from a few timed ones, and of processing them."""

from rankscope.agent.steps.hook_cost import (
    EVENT_NS_ASSUMED,
    PROCESSING_COST_FACTOR,
    TIMED_EVENTS_MAX,
    WRITE_COST_FACTOR,
    WRITE_NS_MAX,
    HookCostMeter,
)


def test_a_constant_is_assumed_before_the_first_timed_event() -> None:
    assert HookCostMeter().spent_ns(10) == 10 * EVENT_NS_ASSUMED


def test_event_costs_a_multiple_of_its_timed_write() -> None:
    meter = HookCostMeter()
    meter.record_write(300)
    meter.record_write(500)
    assert meter.spent_ns(10) == 10 * WRITE_COST_FACTOR * 400


def test_processing_costs_a_multiple_of_its_time() -> None:
    meter = HookCostMeter()
    meter.record_processing(50_000)
    meter.record_processing(30_000)
    assert meter.spent_ns(0) == PROCESSING_COST_FACTOR * 80_000


def test_spent_time_stays_when_events_become_cheaper() -> None:
    meter = HookCostMeter()
    meter.record_write(400)
    before_ns = meter.spent_ns(10)
    for _ in range(TIMED_EVENTS_MAX):
        meter.record_write(100)
    assert meter.spent_ns(15) - before_ns == 5 * WRITE_COST_FACTOR * 100


def test_write_during_which_the_core_was_lost_is_ignored() -> None:
    meter = HookCostMeter()
    meter.record_write(400)
    meter.record_write(WRITE_NS_MAX + 1)
    assert meter.event_ns == WRITE_COST_FACTOR * 400


def test_spent_time_never_decreases() -> None:
    meter = HookCostMeter()
    before_ns = meter.spent_ns(10)
    assert meter.spent_ns(4) == before_ns
    assert meter.spent_ns(10) == before_ns
