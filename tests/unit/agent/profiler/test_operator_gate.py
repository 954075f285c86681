"""When the operators of the host are recorded for FLOPs, because the windows of the device are off or over."""

import functools
import threading
from collections.abc import Callable

import pytest

from rankscope.agent.governor import FULL_WINDOWS, Allowance
from rankscope.agent.profiler.operator_gate import COST_ASSUMED_NS
from rankscope.agent.profiler.window_effect import STRETCH_STEPS_MIN, EffectState, WindowEffect
from rankscope.measure.units import NS_PER_MS, NS_PER_S
from tests.unit.agent.profiler.window_training import FULL_STEPS, WARMUP_STEPS, Training

STEP_NS = 100 * NS_PER_MS
MAY_SPEND = Allowance(windows_ratio=1.0, budget_left_ns=COST_ASSUMED_NS, elapsed_ns=10**15)
BEGIN = WARMUP_STEPS + STRETCH_STEPS_MIN
"""The first step after the reference, whose steps take more than a second together."""


def make_training(state: EffectState = EffectState.ENDED, *, budget_ns: int = COST_ASSUMED_NS) -> Training:
    """Return a training on a device whose windows are in this state, with steps of 0.1 s."""
    effect = WindowEffect(warmup_steps=WARMUP_STEPS, state=state)
    training = Training(light=False, effect=effect, flops_interval_ns=NS_PER_S)
    training.plan.allow(MAY_SPEND._replace(budget_left_ns=budget_ns))
    training.profiler.sees_device = training.profiler.records_operators = True
    training.step_ns = STEP_NS
    return training


def on_another_thread(action: Callable[[], object]) -> None:
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


@pytest.mark.parametrize("state", [EffectState.ENDED, EffectState.ON_DEMAND])
def test_once_windows_are_off_a_session_of_the_host_follows_the_reference(state: EffectState) -> None:
    training = make_training(state).run(BEGIN + FULL_STEPS)
    assert training.profiler.log == ["host", "stop"]
    (window,) = training.windows_taken
    assert (window.host_only, window.has_shapes, window.on_device) == (True, True, False)
    assert [one.step for one in window.steps] == list(range(BEGIN, BEGIN + FULL_STEPS))


def test_there_is_one_session_while_the_batch_stays() -> None:
    training = make_training().run(20 * STRETCH_STEPS_MIN)
    assert training.profiler.log == ["host", "stop"]
    assert training.operators_effect.state is EffectState.KEPT


def test_after_the_interval_and_the_comparison_there_is_another() -> None:
    training = make_training().run(20 * STRETCH_STEPS_MIN)
    assert training.windows.flops is not None
    training.windows.flops._recorded_ns = -(10**15)
    assert training.run(FULL_STEPS + 1).profiler.log == ["host", "stop"] * 2


def test_steps_that_become_longer_after_it_end_the_sessions() -> None:
    training = make_training().run(BEGIN + FULL_STEPS)
    training.step_ns = 2 * STEP_NS
    training.run(20 * STRETCH_STEPS_MIN)
    assert training.windows.operators.has_slowed
    assert training.windows.flops is not None
    training.windows.flops._recorded_ns = -(10**15)
    assert training.run(100).profiler.log == ["host", "stop"]
    assert training.windows.operators.steps_until_due(10**9) == 10**9


def test_no_session_while_the_budget_does_not_pay_for_it() -> None:
    training = make_training(budget_ns=COST_ASSUMED_NS - 1).run(3 * BEGIN)
    assert training.profiler.log == []
    training.plan.allow(MAY_SPEND)
    assert training.run(1).profiler.log == ["host"]


def test_what_the_last_session_cost_is_what_the_next_one_is_expected_to() -> None:
    training = make_training()
    training.windows.operators.learn(COST_ASSUMED_NS + 1)
    assert training.run(2 * BEGIN).profiler.log == []
    training.windows.operators.learn(COST_ASSUMED_NS)
    assert training.run(1).profiler.log == ["host"]


def test_no_session_if_the_governor_has_dropped_full_windows() -> None:
    training = make_training()
    training.plan.allow(MAY_SPEND._replace(dropped=frozenset({FULL_WINDOWS})))
    assert training.run(2 * BEGIN).profiler.log == []


def test_no_session_in_a_process_with_a_cuda_graph_nor_during_a_capture() -> None:
    training = make_training()
    training.has_graphs = True
    assert training.run(2 * BEGIN).profiler.log == []
    training.has_graphs, training.is_capturing = False, True
    assert training.run(3).profiler.log == []
    training.is_capturing = False
    assert training.run(1).profiler.log == ["host"]


def test_no_session_where_torch_cannot_have_one() -> None:
    training = make_training()
    training.profiler.records_operators = False
    assert training.run(2 * BEGIN).profiler.log == []


def test_no_session_without_a_device_nor_where_flops_are_not_measured() -> None:
    training = make_training()
    training.profiler.sees_device = False
    assert not training.windows.operators.replaces_windows
    assert Training(light=False).windows.operators.steps_until_due(7) == 7


def test_session_waits_until_the_users_profiler_is_off() -> None:
    training = make_training().run(BEGIN)
    training.windows.on_user_profiler(begins=True)
    assert training.profiler.log == ["host", "stop"]
    training.run(FULL_STEPS)
    training.windows.on_user_profiler(begins=False)
    training.operators_effect.state = EffectState.KEPT
    assert training.run(1).profiler.log == ["host", "stop", "host"]


@pytest.mark.parametrize("has_ended", [False, True])
def test_session_ends_at_the_next_boundary_after_a_profiler_of_another_thread(*, has_ended: bool) -> None:
    training = make_training().run(BEGIN)
    for begins in (True, False)[: 1 + has_ended]:
        on_another_thread(functools.partial(training.windows.on_user_profiler, begins=begins))
    assert training.profiler.log == ["host"]
    training.run(FULL_STEPS)
    assert training.profiler.log == ["host", "stop"], "it would record the rest of the run"
    assert len(training.windows_taken) == has_ended
    assert training.guard.errors == {}


def test_every_boundary_is_looked_at_while_a_session_is_due_and_few_otherwise() -> None:
    training = make_training(budget_ns=0)
    training.plan.learn_step(NS_PER_S)
    gate = training.windows.operators
    assert gate.steps_until_due(10**9) == STRETCH_STEPS_MIN
    training.run(BEGIN)
    assert gate.steps_until_due(10**9) == 1
    training.operators_effect.state = EffectState.KEPT
    assert gate.steps_until_due(10**9) == 64
    training.plan.allow(MAY_SPEND)
    assert gate.steps_until_due(10**9) == 1


def test_windows_that_cannot_end_give_way_to_it_too() -> None:
    training = make_training(EffectState.KEPT)
    assert not training.windows.operators.replaces_windows
    training.plan.full_has_ended = True
    assert training.windows.operators.replaces_windows
