"""WindowPlan: on which steps windows begin, and how time and cost set their distance. Arithmetic on step numbers."""

import pytest

from rankscope.agent.probe.window_plan import FULL_FIRST_INTERVAL_STEPS, LIGHT_FIRST_INTERVAL_STEPS, WindowPlan
from rankscope.measure.units import NS_PER_MS, NS_PER_S

WARMUP_STEPS = 4
STEPS = range(3000)


def plan_with(full_window_steps: int = 2) -> WindowPlan:
    """Light windows of at least 2 s, full ones at least 20 s apart, 0.5 % for both: 0.25 % for each kind."""
    return WindowPlan(
        warmup_steps=WARMUP_STEPS,
        collective_window_ns=2 * NS_PER_S,
        full_window_interval_ns=20 * NS_PER_S,
        full_window_steps=full_window_steps,
        overhead_ratio_max=0.005,
    )


def plan_at(step_ms: int) -> WindowPlan:
    plan = plan_with()
    plan.learn(step_ms * NS_PER_MS)
    return plan


def full_steps(plan: WindowPlan, steps: range = STEPS) -> list[int]:
    """How many steps after the warm-up each full window begins."""
    return [step - WARMUP_STEPS for step in steps if plan.begins_full(step)]


def light_steps(plan: WindowPlan, steps: range = STEPS) -> list[int]:
    return [step - WARMUP_STEPS for step in steps if plan.begins_light(step)]


# -- which steps ------------------------------------------------------------------------------------------------------


def test_no_window_begins_in_the_warm_up() -> None:
    plan = plan_with()
    assert not any(plan.begins_full(step) or plan.begins_light(step) for step in range(WARMUP_STEPS))
    assert plan.begins_full(WARMUP_STEPS)
    assert plan.begins_light(WARMUP_STEPS)


def test_until_the_step_time_is_known_windows_are_a_few_steps_apart() -> None:
    assert light_steps(plan_with(), range(30)) == [0, 8, 16, 24]
    assert full_steps(plan_with(), range(110)) == [0, 32, 64, 96]


def test_light_windows_follow_each_other_after_the_power_of_two_of_steps_that_lasts_long_enough() -> None:
    # 2 s of 100 ms steps are 20 steps; the next power of two is 32.
    assert light_steps(plan_at(step_ms=100), range(110)) == [0, 32, 64, 96]


def test_windows_of_a_young_job_double_their_distance_until_the_one_aimed_at_is_reached() -> None:
    # 20 s of 40 ms steps are 500 steps: 512.
    assert full_steps(plan_at(step_ms=40)) == [0, 32, 64, 128, 256, 512, 1024, 1536, 2048, 2560]


def test_slow_steps_have_windows_less_than_the_first_distance_apart() -> None:
    # 20 s of 2 s steps are 10 steps: 16. A light window of 2 s is a single step.
    plan = plan_at(step_ms=2000)
    assert full_steps(plan, range(60)) == [0, 16, 32, 48]
    assert light_steps(plan, range(8)) == [0, 1, 2, 3]


def test_full_windows_leave_room_for_light_ones_between_them() -> None:
    plan = plan_with(full_window_steps=5)
    plan.learn(60 * NS_PER_S)  # one step would do for 20 s
    assert plan.full_interval_steps == 16, "the power of two from 2 * 5 on"


def test_ranks_whose_step_times_differ_a_little_begin_their_windows_at_the_same_steps() -> None:
    plans = [plan_at(step_ms) for step_ms in (80, 90, 100, 110, 120)]  # 25 to 17 steps of a light window
    assert len({tuple(light_steps(plan)) for plan in plans}) == 1


@pytest.mark.parametrize("shorter_ms", [40, 200, 700, 3000])
@pytest.mark.parametrize("longer_ms", [1, 5, 20])
def test_windows_further_apart_are_a_subset_of_those_closer_together(shorter_ms: int, longer_ms: int) -> None:
    close, far = plan_at(shorter_ms), plan_at(longer_ms)
    assert close.full_interval_steps <= far.full_interval_steps
    assert set(full_steps(far)) <= set(full_steps(close))
    assert set(light_steps(far)) <= set(light_steps(close))


# -- cost -------------------------------------------------------------------------------------------------------------


def test_costly_full_windows_come_less_often() -> None:
    plan = plan_at(step_ms=100)
    assert plan.full_interval_steps == 256  # 20 s are 200 steps
    plan.learn(100 * NS_PER_MS, full_cost_ns=200 * NS_PER_MS)
    assert plan.full_interval_steps == 1024  # 0.2 s are 0.25 % of 80 s, which are 800 steps


def test_costly_light_windows_are_longer() -> None:
    plan = plan_at(step_ms=10)
    plan.learn(10 * NS_PER_MS, light_cost_ns=20 * NS_PER_MS)
    assert plan.light_interval_steps == 1024  # 20 ms are 0.25 % of 8 s, which are 800 steps


def test_cheap_windows_are_as_often_as_they_may_be() -> None:
    plan = plan_at(step_ms=100)
    plan.learn(100 * NS_PER_MS, full_cost_ns=NS_PER_MS, light_cost_ns=NS_PER_MS)  # 0.25 % of 0.4 s
    assert (plan.light_interval_steps, plan.full_interval_steps) == (32, 256)


def test_what_a_window_has_cost_is_not_forgotten_while_no_other_comes() -> None:
    plan = plan_at(step_ms=100)
    plan.learn(100 * NS_PER_MS, full_cost_ns=200 * NS_PER_MS)
    for _ in range(100):  # reports without a full window, and with light ones
        plan.learn(100 * NS_PER_MS)
        plan.learn(100 * NS_PER_MS, light_cost_ns=NS_PER_MS)
    assert plan.full_interval_steps == 1024


def test_one_costly_window_is_forgotten_after_cheaper_ones() -> None:
    plan = plan_at(step_ms=100)
    plan.learn(100 * NS_PER_MS, full_cost_ns=200 * NS_PER_MS)
    for _ in range(8):  # (3 / 4) ** 8 = 0.1: 20 ms are 0.25 % of 8 s, less than the 20 s aimed at
        plan.learn(100 * NS_PER_MS, full_cost_ns=NS_PER_MS)
    assert plan.full_interval_steps == 256


# -- hysteresis -------------------------------------------------------------------------------------------------------


def test_a_step_time_near_a_limit_does_not_make_the_distance_swing() -> None:
    plan = plan_at(step_ms=64)  # 31.25 steps: 32
    distances = []
    for step_ms in (60, 65, 58, 62, 66, 61):  # 33.3 steps would be 64
        plan.learn(step_ms * NS_PER_MS)
        distances.append(plan.light_interval_steps)
    assert set(distances) == {32}


@pytest.mark.parametrize(("step_ms", "expected"), [(51, 32), (49, 64), (155, 32), (160, 16)])
def test_the_distance_changes_once_it_is_off_by_a_quarter(step_ms: int, expected: int) -> None:
    # 32 steps stay for 2 s of 12.8 (32 / 2.5) to 40 (32 * 1.25) steps: of 156 to 50 ms each.
    plan = plan_at(step_ms=100)
    plan.learn(step_ms * NS_PER_MS)
    assert plan.light_interval_steps == expected


def test_a_step_time_of_nothing_does_no_harm() -> None:
    plan = plan_with()
    plan.learn(0)
    assert plan.light_interval_steps > LIGHT_FIRST_INTERVAL_STEPS
    assert plan.full_interval_steps > FULL_FIRST_INTERVAL_STEPS
