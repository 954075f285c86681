"""When the operators of the host are recorded for FLOPs, because the windows of the device are off or over."""

import functools
import threading
from collections.abc import Callable

import pytest

from rankscope.agent.governor import FULL_WINDOWS, Allowance
from rankscope.agent.profiler.operator_gate import COST_ASSUMED_NS
from rankscope.agent.profiler.window_effect import STRETCH_STEPS_MIN, EffectState, WindowEffect
from rankscope.agent.steps.step_intervals import find_chosen
from rankscope.measure.units import NS_PER_MS, NS_PER_S
from tests.unit.agent.profiler.window_training import FULL_STEPS, WARMUP_STEPS, Training

STEP_NS = 100 * NS_PER_MS
MAY_SPEND = Allowance(windows_ratio=1.0, budget_left_ns=COST_ASSUMED_NS, elapsed_ns=10**15)
INTERVAL, REFRESH = 256, 4096
"""Intervals of sessions, in steps of 1 s, which the plan knows: one interval, and twelve, rounded up."""
BEGIN = WARMUP_STEPS + 48
"""The first step that is chosen after the reference of 32 steps, which take more than a second together. The next ones
of intervals that double are 96, 193 and 387 steps after the warm-up.
"""


def make_training(state: EffectState = EffectState.ENDED, *, budget_ns: int = COST_ASSUMED_NS) -> Training:
    """Return a training on a device whose windows are in this state, with steps of 0.1 s."""
    effect = WindowEffect(warmup_steps=WARMUP_STEPS, state=state)
    training = Training(light=False, effect=effect, flops_interval_ns=INTERVAL * NS_PER_S)
    training.plan.allow(MAY_SPEND._replace(budget_left_ns=budget_ns))
    training.profiler.sees_device = training.profiler.records_operators = True
    training.step_ns = STEP_NS
    return training


def on_another_thread(action: Callable[[], object]) -> None:
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


@pytest.mark.parametrize("state", [EffectState.ENDED, EffectState.ON_DEMAND])
def test_host_session_begins_after_the_reference_without_windows(
    state: EffectState,
) -> None:
    training = make_training(state).run(BEGIN + FULL_STEPS)
    assert training.profiler.log == ["host", "stop"]
    (window,) = training.windows_taken
    assert (window.host_only, window.has_shapes, window.on_device) == (True, True, False)
    assert [one.step for one in window.steps] == list(range(BEGIN, BEGIN + FULL_STEPS))


def begins(training: Training) -> list[int]:
    """Return after how many steps since the warm-up each session has begun."""
    return [window.steps[0].step - WARMUP_STEPS for window in training.windows_taken]


def test_sessions_after_comparison_begin_at_steps_of_all_ranks() -> None:
    training = make_training().run(20 * STRETCH_STEPS_MIN)
    assert training.operators_effect.state is EffectState.KEPT
    assert begins(training) == [48, 193, 387], "at 96 the steps after the first one are still being compared"
    training.run(3 * REFRESH)
    assert begins(training)[3:] == [774, 1549, 3098, *(find_chosen(block, REFRESH) for block in (1, 2, 3))]


def test_steps_that_become_longer_after_it_end_the_sessions() -> None:
    training = make_training().run(BEGIN + FULL_STEPS)
    training.step_ns = 2 * STEP_NS
    training.run(20 * STRETCH_STEPS_MIN)
    assert training.operators.has_slowed
    assert training.run(2 * REFRESH).profiler.log == ["host", "stop"]
    assert training.operators.find_next(training.step, 10**9) == 10**9


def test_no_session_while_the_budget_does_not_pay_for_it() -> None:
    training = make_training(budget_ns=COST_ASSUMED_NS - 1).run(3 * BEGIN)
    assert training.profiler.log == []
    training.plan.allow(MAY_SPEND)
    assert begins(training.run(WARMUP_STEPS + 193 - 3 * BEGIN + FULL_STEPS)) == [193]


def test_next_session_is_expected_to_cost_what_the_last_one_did() -> None:
    training = make_training()
    training.operators.learn(COST_ASSUMED_NS + 1)
    assert training.run(2 * BEGIN).profiler.log == []
    training.operators.learn(COST_ASSUMED_NS)
    assert begins(training.run(2 * BEGIN)) == [193]


def test_no_session_if_the_governor_has_dropped_full_windows() -> None:
    training = make_training()
    training.plan.allow(MAY_SPEND._replace(dropped=frozenset({FULL_WINDOWS})))
    assert training.run(2 * BEGIN).profiler.log == []


def test_no_session_beside_a_cuda_graph_or_during_its_capture() -> None:
    training = make_training()
    training.launches_graphs = True
    assert training.run(2 * BEGIN).profiler.log == []
    training.launches_graphs, training.captures_graph = False, True
    assert training.run(2 * BEGIN).profiler.log == []
    training.captures_graph = False
    assert begins(training.run(4 * BEGIN)) == [387]


def test_no_session_where_torch_cannot_have_one() -> None:
    training = make_training()
    training.profiler.records_operators = False
    assert training.run(2 * BEGIN).profiler.log == []


def test_no_session_without_a_device_or_without_measured_flops() -> None:
    training = make_training()
    training.profiler.sees_device = False
    assert not training.operators.replaces_windows
    assert Training(light=False).operators.find_next(0, 7) == 7


def test_session_waits_until_the_users_profiler_is_off() -> None:
    training = make_training().run(BEGIN)
    training.windows.on_user_profiler(begins=True)
    assert training.profiler.log == ["host", "stop"]
    training.run(FULL_STEPS)
    training.windows.on_user_profiler(begins=False)
    training.operators_effect.state = EffectState.KEPT
    assert training.run(BEGIN).profiler.log == ["host", "stop", "host", "stop"]
    assert begins(training) == [96]


@pytest.mark.parametrize("has_ended", [False, True])
def test_session_ends_at_boundary_after_another_threads_profiler(*, has_ended: bool) -> None:
    training = make_training().run(BEGIN)
    for begins in (True, False)[: 1 + has_ended]:
        on_another_thread(functools.partial(training.windows.on_user_profiler, begins=begins))
    assert training.profiler.log == ["host"]
    training.run(FULL_STEPS)
    assert training.profiler.log == ["host", "stop"], "it would record the rest of the run"
    assert len(training.windows_taken) == has_ended
    assert training.guard.errors == {}


def test_boundaries_of_sessions_and_reference_are_inspected() -> None:
    training = make_training(budget_ns=0)
    gate = training.operators
    assert gate.find_next(0, 10**9) == WARMUP_STEPS
    assert gate.find_next(WARMUP_STEPS, 10**9) == WARMUP_STEPS + STRETCH_STEPS_MIN
    training.run(BEGIN - 1)
    assert training.operators_effect.state is EffectState.READY
    assert gate.find_next(training.step, 10**9) == BEGIN
    training.run(1)
    assert gate.find_next(training.step, 10**9) == WARMUP_STEPS + find_chosen(2, 32)
    training.run(BEGIN)
    training.operators_effect.state = EffectState.ATTACHED
    chosen = WARMUP_STEPS + find_chosen(2, 64)
    assert gate.find_next(training.step, 10**9) < chosen, "the steps after a session are compared"
    training.operators_effect.state = EffectState.KEPT
    assert gate.find_next(training.step, 10**9) == chosen


def test_windows_that_cannot_end_give_way_to_it_too() -> None:
    training = make_training(EffectState.KEPT)
    assert not training.operators.replaces_windows
    training.plan.full_has_ended = True
    assert training.operators.replaces_windows
