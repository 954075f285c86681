"""WindowPlan: the steps at which windows begin, by time and cost. Arithmetic on step numbers."""

import itertools
import math

import pytest

from rankscope.agent.governor import FULL_WINDOWS, LIGHT_WINDOWS, Allowance
from rankscope.agent.profiler.window_plan import WindowPlan
from rankscope.measure.units import NS_PER_MS, NS_PER_S

WARMUP_STEPS = 4
STEPS = range(3000)
BUDGET = 0.005
PLENTY = Allowance(windows_ratio=BUDGET, budget_left_ns=NS_PER_S, elapsed_ns=10_000 * NS_PER_S)
"""A long run that has spent little: 25 s are left for full windows."""


def plan_with(full_window_steps: int = 2) -> WindowPlan:
    """Light windows of at least 2 s, full ones at least 20 s apart, 0.5 % for both: 0.25 % for each kind."""
    return WindowPlan(
        warmup_steps=WARMUP_STEPS,
        collective_window_ns=2 * NS_PER_S,
        full_window_interval_ns=20 * NS_PER_S,
        full_window_steps=full_window_steps,
        overhead_ratio_max=BUDGET,
    )


def plan_at(step_ms: int, allowance: Allowance = PLENTY, full_window_steps: int = 2) -> WindowPlan:
    plan = plan_with(full_window_steps)
    plan.allow(allowance)
    plan.learn_full(10 * NS_PER_MS)
    learn_light(plan, NS_PER_MS)
    plan.learn_step(step_ms * NS_PER_MS, 0)
    return plan


def learn_light(plan: WindowPlan, cost_ns: int, events_a_step: float | None = None) -> None:
    """A light window that is as long as the next will be."""
    plan.learn_light(cost_ns, plan.light_window_steps, events_a_step)


def full_steps(plan: WindowPlan, steps: range = STEPS) -> list[int]:
    """Return the steps after the warm-up at which full windows begin."""
    return [step - WARMUP_STEPS for step in steps if plan.begins_full(step)]


def light_steps(plan: WindowPlan, steps: range = STEPS) -> list[int]:
    return [step - WARMUP_STEPS for step in steps if plan.begins_light(step)]


def plan_of(events_a_step: int, budget_ms: int = 100, events_max: float = math.inf) -> WindowPlan:
    """A run after its warm-up, whose steps seem to have so many events."""
    plan = WindowPlan(
        warmup_steps=WARMUP_STEPS, collective_window_ns=2 * NS_PER_S, full_window_interval_ns=20 * NS_PER_S,
        full_window_steps=2, overhead_ratio_max=BUDGET, events_max=events_max,
    )  # fmt: skip
    plan.allow(Allowance(BUDGET, budget_ms * NS_PER_MS, 0))
    plan.events_a_step = events_a_step
    return plan


# -- what a first window costs ----------------------------------------------------------------------------------------


def test_first_full_window_of_a_large_step_waits_for_its_budget() -> None:
    # 192,000 events of 6 us: 1.152 s, of a single step.
    assert not plan_of(192_000, budget_ms=1_151).affords_full()
    assert plan_of(192_000, budget_ms=1_152).affords_full()
    assert not plan_of(192_000).affords_one_step()
    assert not plan_of(192_000).begins_full(WARMUP_STEPS)


def test_first_full_window_is_paid_from_the_time_since_the_start() -> None:
    # Over five minutes the budget is never more than 1.6 s; 230.4 s at 0.5 % are 1.152 s.
    for events, after_ms in ((192_000, 230_400), (10_000, 24_000), (400_000, 480_000)):
        plan = plan_of(events, budget_ms=-50)
        plan.allow(Allowance(BUDGET, -50 * NS_PER_MS, after_ms * NS_PER_MS - NS_PER_MS))
        assert full_steps(plan) == []
        assert not plan.affords_one_step() or events == 10_000
        plan.allow(Allowance(BUDGET, -50 * NS_PER_MS, after_ms * NS_PER_MS))
        assert plan.affords_one_step()
        assert len(full_steps(plan)) > 1  # it begins with the next of the chosen steps
        plan.on_full()
        assert full_steps(plan) == []


def test_window_of_two_steps_that_was_too_large_is_followed_by_one_of_one() -> None:
    plan = plan_of(100)
    plan.events_a_step = 12_000  # by the last steps; the window had been one of two
    plan.learn_too_large(2, full=True)
    assert plan.full_window_steps == 1


def test_first_full_window_of_a_usual_step_begins_after_the_warm_up() -> None:
    # One step of 12,900 events is 77 ms of the 100 that a run begins with, two of 7,800 are 94 ms.
    for events, steps in ((12_900, 1), (7_800, 2)):
        plan = plan_of(events)
        assert (plan.begins_full(WARMUP_STEPS), plan.full_window_steps) == (True, steps)


def test_step_with_far_more_events_than_may_be_read_has_no_window() -> None:
    # Half as many may be read, or a few more.
    assert FULL_WINDOWS in plan_of(192_000, budget_ms=9_999, events_max=95_999.0).dropped
    assert plan_of(192_000, budget_ms=9_999, events_max=96_000.0).affords_full()


def test_cost_of_a_full_window_is_the_measured_one_once_it_is_known() -> None:
    plan = plan_of(192_000)
    plan.learn_full(50 * NS_PER_MS)
    assert plan.affords_full()


def test_first_light_window_is_as_short_as_its_collectives_are_many() -> None:
    # Of 300 collectives a step, 512 events are of one step; of 100 of four.
    for collectives, steps in ((300, 1), (100, 4)):
        plan = plan_with()
        plan.learn_collectives(12 * collectives, 12)
        lasts = [plan.is_light(12 + count, count) for count in range(1, 8)]
        assert lasts == [count < steps for count in range(1, 8)]
        assert plan.find_next(12) <= 12 + steps


# -- which steps ------------------------------------------------------------------------------------------------------


def test_no_window_begins_in_the_warm_up() -> None:
    plan = plan_with()
    assert not any(plan.begins_full(step) or plan.begins_light(step) for step in range(WARMUP_STEPS))
    assert plan.begins_full(WARMUP_STEPS)
    assert plan.begins_light(WARMUP_STEPS)


def test_light_windows_double_until_the_step_time_is_known() -> None:
    assert light_steps(plan_with(), range(150)) == [0, 8, 16, 32, 64, 128]


def test_windows_are_bounded_without_a_step_time() -> None:
    found = light_steps(plan_with(), range(20_000))
    assert max(later - earlier for earlier, later in itertools.pairwise(found)) == 4096


def test_until_the_cost_of_one_is_known_there_is_one_full_window() -> None:
    # The head start is 0.25 % of 20 s for full windows: 50 ms. Two at the 60 ms that are assumed are 120 ms.
    plan = plan_with()
    assert plan.begins_full(WARMUP_STEPS)
    plan.on_full()
    plan.allow(plan.allowance)
    assert full_steps(plan) == []


def test_light_windows_last_a_power_of_two_of_steps() -> None:
    # 2 s of 100 ms steps are 20 steps; the next power of two is 32.
    assert light_steps(plan_at(step_ms=100), range(110)) == [0, 32, 64, 96]


def test_light_windows_that_are_paid_for_leave_no_gap() -> None:
    plan = plan_at(step_ms=100)
    assert all(plan.is_light(step) for step in range(WARMUP_STEPS, 200))


def test_early_full_windows_double_their_interval() -> None:
    # 20 s of 40 ms steps are 500 steps: 512.
    found = full_steps(plan_at(step_ms=40))
    bounds = [0, 1, 32, 64, 128, 256, 512, 1024, 1536, 2048, 2560, 3072]
    assert [sum(low <= since < high for since in found) for low, high in itertools.pairwise(bounds)] == [
        1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1
    ]  # fmt: skip


def test_early_windows_begin_while_all_are_affordable() -> None:
    # 0.25 % of 20 s head start and 2 s are 55 ms: five windows of 10 ms, from 0, 32, 64, 128 and 256 on, and no sixth.
    young = Allowance(windows_ratio=BUDGET, budget_left_ns=NS_PER_S, elapsed_ns=2 * NS_PER_S)
    found = full_steps(plan_at(step_ms=10, allowance=young), range(1000))
    assert [since.bit_length() for since in found] == [0, 6, 7, 8, 9]


def test_slow_steps_have_windows_closer_than_the_first_interval() -> None:
    # 20 s of 2 s steps are 10 steps: 16. A light window of 2 s is a single step.
    plan = plan_at(step_ms=2000)
    assert [since // 16 for since in full_steps(plan, range(WARMUP_STEPS + 64))] == [0, 1, 2, 3]
    assert light_steps(plan, range(8)) == [0, 1, 2, 3]


def test_full_windows_leave_room_for_light_ones_between_them() -> None:
    plan = plan_at(step_ms=60_000, full_window_steps=5)  # one step would do for 20 s
    assert plan.full_interval_steps == 16, "the power of two from 2 * 5 on"


def test_similar_ranks_begin_windows_at_the_same_steps() -> None:
    plans = [plan_at(step_ms) for step_ms in (80, 90, 100, 110, 120)]  # 25 to 17 steps of a light window
    assert len({tuple(light_steps(plan)) for plan in plans}) == 1


@pytest.mark.parametrize("shorter_ms", [40, 200, 700, 3000])
@pytest.mark.parametrize("longer_ms", [1, 5, 20])
def test_rarer_windows_are_a_subset_of_more_frequent_ones(shorter_ms: int, longer_ms: int) -> None:
    close, far = plan_at(shorter_ms), plan_at(longer_ms)
    assert close.full_interval_steps <= far.full_interval_steps
    assert set(full_steps(far)) <= set(full_steps(close))
    assert set(light_steps(far)) <= set(light_steps(close))


# -- cost -------------------------------------------------------------------------------------------------------------


def test_costly_full_windows_come_less_often() -> None:
    plan = plan_at(step_ms=100)
    assert (plan.full_interval_steps, plan.full_stretch_ratio) == (256, 1)  # 20 s are 200 steps
    plan.learn_full(200 * NS_PER_MS)
    assert plan.full_interval_steps == 1024  # 0.2 s are 0.25 % of 80 s, which are 800 steps
    assert plan.full_stretch_ratio == 1024 / 256


def test_costly_light_windows_keep_their_length_and_leave_gaps() -> None:
    plan = plan_at(step_ms=10)
    learn_light(plan, 20 * NS_PER_MS)
    assert plan.light_window_steps == 256  # 2 s are 200 steps
    assert plan.light_interval_steps == 1024  # 20 ms are 0.25 % of 8 s, which are 800 steps
    assert plan.light_stretch_ratio == 1024 / 256
    assert [step for step in range(1100) if plan.is_light(step)] == [*range(4, 260), *range(1028, 1100)]


@pytest.mark.parametrize(
    ("events_a_step", "steps"), [(0, 32), (7, 32), (16, 32), (16.1, 16), (75, 4), (512, 1), (9999, 1)]
)
def test_light_window_of_many_events_has_fewer_steps_and_no_gap(events_a_step: float, steps: int) -> None:
    plan = plan_at(step_ms=100)
    learn_light(plan, NS_PER_MS // 10, events_a_step)
    for _ in range(20):
        learn_light(plan, NS_PER_MS // 10)
    assert (plan.light_window_steps, plan.light_interval_steps) == (steps, steps)
    assert light_steps(plan, range(WARMUP_STEPS + 97)) == list(range(0, 97, steps))
    assert all(plan.is_light(step) for step in range(WARMUP_STEPS, 200))


def test_short_light_windows_come_as_often_as_they_are_paid_for() -> None:
    plan = plan_with()
    plan.allow(PLENTY)
    plan.learn_light(3 * NS_PER_MS, 4, events_a_step=75)
    plan.learn_step(100 * NS_PER_MS, 0)
    # 3 ms are 0.25 % of 1.2 s, which are 12 steps.
    assert (plan.light_window_steps, plan.light_interval_steps) == (4, 16)
    assert plan.light_stretch_ratio == 4


def test_shorter_light_window_is_expected_to_cost_less() -> None:
    plan = plan_with()
    plan.allow(PLENTY)
    plan.learn_light(17 * NS_PER_MS, 64, events_a_step=75)  # 1 ms, and 0.25 ms a step
    plan.learn_step(10 * NS_PER_MS, 0)
    # 4 steps are 2 ms, which are 0.25 % of 0.8 s; 17 ms would be of 6.8 s, and the next window after 1024 steps.
    assert (plan.light_window_steps, plan.light_interval_steps) == (4, 128)
    plan.allow(PLENTY._replace(budget_left_ns=2 * NS_PER_MS))
    assert light_steps(plan, range(WARMUP_STEPS + 1)) == [0]
    plan.allow(PLENTY._replace(budget_left_ns=2 * NS_PER_MS - 1))
    assert light_steps(plan, range(WARMUP_STEPS + 1)) == []


def test_light_cost_is_learned_before_the_step_time() -> None:
    plan = plan_with()
    plan.learn_light(9 * NS_PER_MS, 4, events_a_step=75)  # 1 ms, and 2 ms a step: 17 for the 8 steps of a first one
    plan.allow(PLENTY._replace(budget_left_ns=17 * NS_PER_MS))
    assert light_steps(plan, range(150)) == [0, 8, 16, 32, 64, 128]
    plan.allow(PLENTY._replace(budget_left_ns=17 * NS_PER_MS - 1))
    assert light_steps(plan, range(150)) == []


def test_light_cost_below_the_assumed_one_is_accepted() -> None:
    plan = plan_at(step_ms=5)
    for _ in range(20):
        plan.learn_light(NS_PER_MS // 20, 0, events_a_step=None)  # of no step at all: it was cut at once
    plan.allow(PLENTY._replace(budget_left_ns=NS_PER_MS // 20))
    assert light_steps(plan, range(WARMUP_STEPS + 1)) == [0]


def test_light_windows_grow_again_with_fewer_events() -> None:
    plan = plan_at(step_ms=100)
    learn_light(plan, NS_PER_MS // 10, 75)
    for _ in range(20):
        learn_light(plan, NS_PER_MS // 10, 7)
    assert (plan.light_window_steps, plan.light_interval_steps) == (32, 32)


def test_cheap_windows_are_as_often_as_they_may_be() -> None:
    plan = plan_at(step_ms=100)
    plan.learn_full(NS_PER_MS)
    learn_light(plan, NS_PER_MS)  # 0.25 % of 0.4 s
    assert (plan.light_interval_steps, plan.full_interval_steps) == (32, 256)


def test_windows_get_the_budget_that_other_parts_leave() -> None:
    plan = plan_at(step_ms=100)
    plan.allow(PLENTY._replace(windows_ratio=BUDGET / 8))
    plan.learn_full(100 * NS_PER_MS)
    assert plan.full_interval_steps == 4096  # 0.1 s are 0.03125 % of 320 s, which are 3200 steps


def test_cost_does_not_decay_without_windows() -> None:
    plan = plan_at(step_ms=100)
    plan.learn_full(200 * NS_PER_MS)
    for _ in range(100):  # reports without a full window, and with light ones
        plan.learn_step(100 * NS_PER_MS, 0)
        learn_light(plan, NS_PER_MS)
    assert plan.full_interval_steps == 1024


def test_one_costly_window_is_forgotten_after_cheaper_ones() -> None:
    plan = plan_at(step_ms=100)
    plan.learn_full(200 * NS_PER_MS)
    for _ in range(8):  # (3 / 4) ** 8 = 0.1: 20 ms are 0.25 % of 8 s, less than the 20 s aimed at
        plan.learn_full(NS_PER_MS)
    assert plan.full_interval_steps == 512, "200 steps are wanted; 256 and 512 are both in the room of 3.125 times that"


def test_no_window_begins_that_the_account_cannot_pay() -> None:
    plan = plan_at(step_ms=100)
    plan.allow(PLENTY._replace(budget_left_ns=9 * NS_PER_MS))
    assert (full_steps(plan), light_steps(plan, range(40))) == ([], [0, 32])  # 10 ms, and 1 ms
    plan.allow(PLENTY._replace(budget_left_ns=-1))
    assert light_steps(plan) == []


def test_a_light_window_ends_where_the_next_cannot_be_paid() -> None:
    plan = plan_at(step_ms=100)
    plan.allow(PLENTY._replace(budget_left_ns=0))
    assert (plan.is_light(WARMUP_STEPS + 31), plan.is_light(WARMUP_STEPS + 32)) == (True, False)


def test_budget_pays_a_second_full_window_before_next_allowance() -> None:
    plan = plan_at(step_ms=100)
    plan.allow(PLENTY._replace(budget_left_ns=19 * NS_PER_MS))  # 10 ms each
    assert plan.affords_full()
    plan.on_full()
    assert not plan.affords_full()
    plan.allow(PLENTY._replace(budget_left_ns=10 * NS_PER_MS))
    assert plan.affords_full()
    plan.on_full()
    plan.allow(PLENTY._replace(budget_left_ns=20 * NS_PER_MS))
    plan.on_full()
    assert plan.affords_full()


def test_dropped_windows_do_not_begin_and_a_light_one_ends() -> None:
    plan = plan_at(step_ms=100)
    plan.allow(PLENTY._replace(dropped=frozenset({FULL_WINDOWS, LIGHT_WINDOWS})))
    assert (full_steps(plan), light_steps(plan), plan.is_light(WARMUP_STEPS + 1)) == ([], [], False)


def test_light_windows_get_the_whole_budget_without_full_ones() -> None:
    plan = plan_at(step_ms=10)
    plan.allow(PLENTY._replace(dropped=frozenset({FULL_WINDOWS})))
    learn_light(plan, 20 * NS_PER_MS)
    assert plan.light_interval_steps == 512  # 20 ms are 0.5 % of 4 s, which are 400 steps


def test_full_windows_over_an_hour_apart_are_dropped() -> None:
    plan = plan_at(step_ms=100)
    plan.learn_full(8 * NS_PER_S)  # 0.25 % of 3200 s
    assert plan.dropped == set()
    plan.learn_full(10 * NS_PER_S)  # 0.25 % of 4000 s
    assert plan.dropped == {FULL_WINDOWS}


def test_too_large_full_windows_shrink_and_then_stop() -> None:
    plan = plan_at(step_ms=100, full_window_steps=4)
    lengths = []
    for _ in range(3):
        plan.learn_too_large(plan.full_window_steps, full=True)
        lengths.append(plan.full_window_steps)
    assert lengths == [2, 1, 0]
    assert plan.dropped == {FULL_WINDOWS}
    assert full_steps(plan) == []


def test_too_large_light_window_makes_the_next_shorter() -> None:
    plan = plan_at(step_ms=10)
    plan.learn_too_large(64, full=False)
    plan.learn_too_large(64, full=False)
    plan.learn_step(10 * NS_PER_MS, 0)
    assert plan.light_window_steps == 128, "0.5 s are 50 steps; 64 and 128 are both in the room of 3.125 times that"


# -- hysteresis -------------------------------------------------------------------------------------------------------


def test_step_time_near_a_limit_does_not_change_the_interval() -> None:
    plan = plan_at(step_ms=64)  # 31.25 steps: 32
    distances = []
    for step_ms in (60, 65, 58, 62, 66, 61):  # 33.3 steps want 64, which stays for 31
        plan.learn_step(step_ms * NS_PER_MS, 0)
        distances.append(plan.light_interval_steps)
    assert set(distances) == {64}


@pytest.mark.parametrize(("step_ms", "expected"), [(63, 32), (62, 64), (195, 32), (196, 16)])
def test_interval_changes_if_too_short_or_three_times_too_long(step_ms: int, expected: int) -> None:
    # 32 steps stay for 2 s of 32 to 10.24 (32 / 3.125) steps: of 62.5 to 195.3 ms each.
    plan = plan_at(step_ms=100)
    plan.learn_step(step_ms * NS_PER_MS, 0)
    assert plan.light_interval_steps == expected


def test_a_step_time_of_nothing_does_no_harm() -> None:
    plan = plan_with()
    plan.learn_step(0, 0)
    assert plan.light_interval_steps >= 2 * NS_PER_S
    assert plan.full_interval_steps >= 20 * NS_PER_S


# -- when to look -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [plan_with(), plan_at(3), plan_at(10), plan_at(150), plan_at(700), plan_at(30_000)])
def test_no_window_begins_or_ends_before_the_next_boundary(plan: WindowPlan) -> None:
    step = 0
    while step < STEPS.stop:
        following = plan.find_next(step)
        assert following > step
        between = range(step + 1, following)
        assert not any(plan.begins_full(at) or plan.begins_light(at) for at in between)
        assert len({plan.is_light(at) for at in range(max(step, WARMUP_STEPS), following)}) <= 1
        step = following


def test_short_steps_seldom_have_boundaries() -> None:
    plan = plan_at(10)
    assert (plan.full_interval_steps, plan.light_window_steps) == (2048, 256)
    assert plan.find_next(WARMUP_STEPS + 2048) == WARMUP_STEPS + 2048 + 256
    early = plan.find_next(WARMUP_STEPS + 129)
    assert plan.begins_full(early)
    assert plan.find_next(early) == WARMUP_STEPS + 256


# -- a look where steps become longer ---------------------------------------------------------------------------------


def spend_all(plan: WindowPlan, elapsed_s: int) -> None:
    plan.allow(Allowance(BUDGET, -NS_PER_S, elapsed_s * NS_PER_S))


def looked_at(plan: WindowPlan, steps: range) -> list[int]:
    return [step for step in steps if plan.begins_light(step)]


def test_longer_steps_are_looked_at_though_the_budget_is_spent() -> None:
    plan = plan_at(step_ms=100)
    spend_all(plan, elapsed_s=10)
    plan.learn_step(124 * NS_PER_MS, WARMUP_STEPS + 90)
    assert looked_at(plan, range(WARMUP_STEPS + 90, 5_000)) == []
    plan.learn_step(125 * NS_PER_MS, WARMUP_STEPS + 100)
    length = plan.light_window_steps
    begin = WARMUP_STEPS + 100 // length * length + length
    assert looked_at(plan, range(WARMUP_STEPS + 100, 5_000)) == [begin + place * length for place in range(3)]
    end = begin + 3 * length
    assert [plan.is_light(step) for step in (begin, end - 1, end)] == [True, True, False]


def test_next_step_of_a_look_is_found() -> None:
    plan = plan_at(step_ms=10)
    spend_all(plan, elapsed_s=10)
    plan.learn_step(20 * NS_PER_MS, WARMUP_STEPS + 1_000)
    step, found = WARMUP_STEPS + 1_000, []
    while step < WARMUP_STEPS + 3_000:
        step = plan.find_next(step)
        found.append(step)
    assert set(looked_at(plan, range(WARMUP_STEPS + 1_000, WARMUP_STEPS + 3_000))) <= set(found)


def test_steps_are_looked_at_once_a_minute_at_most() -> None:
    plan = plan_at(step_ms=100)
    looks = []
    for second, step_ms in ((10, 200), (30, 300), (40, 100), (69, 200), (70, 200), (71, 200)):
        spend_all(plan, second)
        step = WARMUP_STEPS + 1_000 * second
        plan.learn_step(step_ms * NS_PER_MS, step)
        looks += [second] * bool(looked_at(plan, range(step, step + 1_000)))
    assert looks == [10, 70]


@pytest.mark.parametrize("events_a_step", [6, 75])
@pytest.mark.parametrize("step_ms", [20, 50])
@pytest.mark.parametrize("step", range(500, 640, 10))
def test_ranks_that_look_a_second_apart_have_a_window_in_common(events_a_step: int, step_ms: int, step: int) -> None:
    seen = []
    for learned in (step, step + 1_000 // (2 * step_ms)):
        plan = plan_at(step_ms)
        plan.learn_light(NS_PER_MS, 4, events_a_step)
        spend_all(plan, elapsed_s=20)
        plan.learn_step(2 * step_ms * NS_PER_MS, WARMUP_STEPS + learned)
        seen.append(set(looked_at(plan, range(2_000))))
    assert len(seen[0] & seen[1]) >= 2


def test_windows_that_become_shorter_amid_a_look_are_no_more() -> None:
    plan = plan_at(step_ms=50)
    spend_all(plan, elapsed_s=20)
    plan.learn_step(100 * NS_PER_MS, WARMUP_STEPS + 500)
    before = looked_at(plan, range(2_000))
    plan.learn_light(NS_PER_MS, 4, events_a_step=75)
    assert plan.light_window_steps == 4
    assert looked_at(plan, range(2_000)) == before
    assert len(before) == 3
    assert [plan.is_light(before[0] + place) for place in (0, 3, 4)] == [True, True, False]
    assert [plan.find_next(before[0] + place) for place in (-1, 0, 3)] == [before[0], before[0] + 4, before[0] + 4]
