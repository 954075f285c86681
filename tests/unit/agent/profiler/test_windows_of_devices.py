"""WindowScheduler once a device is in use: its first window, one step more, CUDA graphs, and light windows left out."""

import threading
from collections.abc import Callable

import pytest

from rankscope.agent.config import YES
from rankscope.agent.governor import Allowance
from rankscope.agent.guard import ScriptInterruptError
from rankscope.agent.profiler.device_gate import GRAPHS_WAIT_NS
from rankscope.agent.profiler.window_effect import STRETCH_STEPS_MIN, EffectState, WindowEffect
from rankscope.agent.profiler.window_scheduler import (
    BEFORE_FIRST_GRAPH,
    DEVICE_NOT_FINISHED,
    FIRST_OF_DEVICE,
    NOT_FINISHED_MAX,
    PART,
    RawWindow,
)
from rankscope.agent.steps.first_graph import COMPILED, QUESTION_STEPS, WAIT_STEPS
from rankscope.measure.units import NS_PER_MS, NS_PER_S
from tests.unit.agent.profiler.window_training import FULL_STEPS, LIGHT, WARMUP_STEPS, FakeProfiler, Training, ratios_of


def test_first_window_of_a_device_is_discarded_after_a_step() -> None:
    training = Training()
    training.profiler.sees_device = True
    training.run(2)
    assert (training.profiler.log, training.windows_taken) == (["full", "stop", "full"], [])
    assert training.windows.skipped == {"first_of_device": 1}


def test_window_of_a_device_has_one_more_step_than_reported() -> None:
    training = Training(light=False)
    training.profiler.sees_device = True
    training.run(WARMUP_STEPS + FULL_STEPS + 1)
    assert training.spans() == [("full", 2, 2 + FULL_STEPS)]
    assert training.windows_taken[0].on_device


def test_steps_of_a_window_are_marked_until_it_is_passed_on() -> None:
    training = Training(light=False)
    seen = []
    for _ in range(WARMUP_STEPS + FULL_STEPS + 1):
        training.run(1)
        seen.append(training.windows.open_from_step)
    assert training.spans() == [("full", WARMUP_STEPS, WARMUP_STEPS + FULL_STEPS - 1)]
    assert set(seen) == {None, WARMUP_STEPS}
    assert seen[-1] is None


def test_device_used_later_has_its_first_window_then() -> None:
    training = Training(light=False).run(WARMUP_STEPS + FULL_STEPS + 5)
    training.profiler.sees_device = True
    training.run(2)
    assert training.profiler.log == ["full", "stop"] * 2
    assert [window.on_device for window in training.windows_taken] == [False]
    assert training.windows.skipped == {"first_of_device": 1}


def test_first_window_of_a_device_ends_a_light_one() -> None:
    training = Training(full=True).run(WARMUP_STEPS + FULL_STEPS + 2)
    training.profiler.sees_device = True
    training.run(2)
    assert training.profiler.log[2:] == ["light", "stop", "full", "stop", "light"]
    assert training.spans()[-1] == ("light", 5, 7)


def test_closing_throws_the_first_window_of_a_device_away() -> None:
    training = Training()
    training.profiler.sees_device = True
    training.run(1).windows.close()
    assert (training.windows_taken, training.profiler.log) == ([], ["full", "stop"])


def test_without_full_windows_a_device_is_never_attached_to() -> None:
    training = Training(full=False)
    training.profiler.sees_device = True
    training.run(WARMUP_STEPS + LIGHT)
    assert "full" not in training.profiler.log


def test_full_window_is_skipped_if_it_misses_the_device() -> None:
    training = Training(light=False)
    training.profiler.misses_device = True
    training.run(WARMUP_STEPS + FULL_STEPS)
    assert (training.profiler.log, training.windows.skipped) == ([], {"device_not_recorded": 1})


def test_light_windows_are_left_out_while_not_useful() -> None:
    training = Training(full=False)
    training.light_is_useful = False
    training.run(WARMUP_STEPS + 2 * LIGHT)
    assert (training.profiler.log, training.windows.skipped) == ([], {})


@pytest.mark.parametrize("state", [EffectState.ENDED, EffectState.ON_DEMAND, EffectState.REFERENCE, EffectState.SLOWER])
def test_no_light_window_where_device_windows_may_not_begin(state: EffectState) -> None:
    training = Training(full=False, effect=WindowEffect(warmup_steps=WARMUP_STEPS, state=state))
    training.profiler.sees_device = True
    training.run(WARMUP_STEPS + 2 * LIGHT)
    assert (training.profiler.log, training.windows.skipped) == ([], {})


@pytest.mark.parametrize("state", [EffectState.ATTACHED, EffectState.KEPT])
def test_light_windows_go_on_where_those_of_the_device_do(state: EffectState) -> None:
    training = Training(full=False, effect=WindowEffect(warmup_steps=WARMUP_STEPS, state=state))
    training.profiler.sees_device = True
    assert training.run(WARMUP_STEPS + LIGHT).profiler.log[0] == "light"


def test_no_window_begins_while_a_graph_is_being_captured() -> None:
    training = Training(full=False).run(WARMUP_STEPS - 1)
    training.captures_graph = True
    training.run(LIGHT)
    assert (training.profiler.log, training.windows.skipped) == ([], {"graph_capture": 1})
    training.captures_graph = False
    assert training.run(LIGHT).profiler.log == ["light"]


def test_window_due_to_end_during_a_capture_ends_after_it() -> None:
    training = Training(light=False).run(WARMUP_STEPS + FULL_STEPS - 1)
    training.captures_graph = True
    training.run(2)
    assert training.profiler.log == ["full"]
    training.captures_graph = False
    training.run(1)
    assert (training.profiler.log, training.spans()) == (["full", "stop"], [("full", 2, 6)])


def test_part_off_during_a_capture_ends_its_window_after_it() -> None:
    training = Training(light=False).run(WARMUP_STEPS + 1)
    for _ in range(3):
        training.guard.record(PART, ValueError("x"))
    training.captures_graph = True
    training.run(1)
    assert training.profiler.log == ["full"]
    training.captures_graph = False
    training.run(1)
    assert training.profiler.log == ["full", "stop"]


def without_driver() -> Training:
    """Return a training whose device cannot be found."""

    class Broken(FakeProfiler):
        @property
        def is_first_of_device(self) -> bool:
            raise RuntimeError("no driver")

    training = Training(light=False)
    training.windows._profiler = training.windows._devices._profiler = Broken()
    return training


def test_error_in_finding_the_device_is_counted() -> None:
    training = without_driver()
    training.run(2)
    assert training.guard.errors == {PART: 2}


# -- the end of a window ----------------------------------------------------------------------------------------------


def test_device_window_ends_when_the_device_has_done_its_work() -> None:
    training = Training(light=False)
    training.profiler.sees_device = True
    training.run(WARMUP_STEPS + FULL_STEPS + 1)
    assert training.profiler.log == ["full", "stop", "full", "wait", "stop"]


def test_window_whose_device_is_not_done_in_time_is_discarded() -> None:
    training = Training(light=False)
    training.profiler.sees_device, training.profiler.is_device_done = True, False
    training.run(WARMUP_STEPS + FULL_STEPS + 1)
    assert training.profiler.log == ["full", "stop", "full", "wait", "stop"]
    assert (training.windows_taken, training.windows.skipped) == ([], {FIRST_OF_DEVICE: 1, DEVICE_NOT_FINISHED: 1})


def test_window_ends_although_asking_the_device_fails() -> None:
    class Broken(FakeProfiler):
        def wait_for_device(self, limit_ns: int, gives_up: Callable[[], bool]) -> bool:
            raise RuntimeError(f"CUDA error, {limit_ns}, {gives_up}")

    training = Training(light=False)
    training.windows._profiler = training.windows._devices._profiler = profiler = Broken()
    profiler.sees_device = True
    training.run(WARMUP_STEPS + FULL_STEPS + 1)
    assert not profiler.is_on
    assert (training.guard.errors, training.windows_taken) == ({PART: 1}, [])


def test_a_device_that_is_never_done_in_time_has_no_more_windows() -> None:
    training = Training(light=False)
    training.profiler.sees_device, training.profiler.is_device_done = True, False
    training.step_ns = 10 * NS_PER_S
    training.run(1000)
    assert training.windows.skipped == {FIRST_OF_DEVICE: 1, DEVICE_NOT_FINISHED: NOT_FINISHED_MAX}
    assert training.profiler.waits_ns == [30 * NS_PER_S, NS_PER_S, NS_PER_S]
    assert training.plan.dropped == {"full_windows"}


def test_users_profiler_amid_the_wait_ends_the_session_at_once() -> None:
    training = Training(light=False)
    training.profiler.sees_device = True
    training.profiler.while_waiting = lambda: setattr(training.windows, "_user_profilers", 1)
    training.run(WARMUP_STEPS + FULL_STEPS + 1)
    assert not training.profiler.is_on
    assert training.windows.skipped == {FIRST_OF_DEVICE: 1, "user_profiler": 1}


def test_session_given_to_users_profiler_is_not_ended_amid_it() -> None:
    training = Training(light=False)
    training.profiler.sees_device = True
    training.profiler.while_waiting = lambda: setattr(training.windows, "_window", None)
    training.run(WARMUP_STEPS + FULL_STEPS + 1)
    assert training.profiler.log == ["full", "stop", "full", "wait"]


def test_signal_error_amid_the_wait_is_kept_and_the_window_ends() -> None:
    def preempt() -> None:
        training.profiler.while_waiting = lambda: None
        raise ScriptInterruptError(TimeoutError("preempted"))

    training = Training(light=False)
    training.profiler.sees_device = True
    training.profiler.while_waiting = preempt
    training.run(WARMUP_STEPS + FULL_STEPS + 1)
    assert isinstance(training.guard.pop_held(), TimeoutError)
    assert (training.profiler.is_on, training.guard.errors) == (True, {})
    training.run(1)
    assert len(training.windows_taken) == 1


def test_a_host_window_waits_for_no_device() -> None:
    training = Training(light=False).run(WARMUP_STEPS + FULL_STEPS)
    assert training.profiler.log == ["full", "stop"]


# -- windows governed by their effect ---------------------------------------------------------------------------------

STEP_NS, SLOW_STEP_NS = 100 * NS_PER_MS, 130 * NS_PER_MS
FIRST = WARMUP_STEPS + STRETCH_STEPS_MIN
"""The step at whose begin the reference is complete."""


def governed(*, light: bool = False) -> Training:
    training = Training(light=light, effect=WindowEffect(warmup_steps=WARMUP_STEPS))
    training.profiler.sees_device = True
    training.step_ns = STEP_NS
    return training


def run_until_slower(training: Training) -> Training:
    """Train until windows are found to slow training; what follows from it is left to the next boundary."""
    training.run(FIRST)
    training.step_ns = SLOW_STEP_NS
    may_detach, training.detaches = training.detaches, None
    while training.effect.state is not EffectState.SLOWER:
        assert training.step < 10 * FIRST
        training.run(1)
    training.detaches = may_detach
    return training


def test_first_governed_device_window_waits_for_the_reference() -> None:
    training = governed().run(FIRST - 1)
    assert training.profiler.log == []
    assert training.run(2).profiler.log[:2] == ["full", "stop"]
    assert training.windows.skipped == {FIRST_OF_DEVICE: 1}


def test_boundaries_are_inspected_only_where_a_change_may_come() -> None:
    training = governed()
    inspected = 0
    while training.step < FIRST + 6 * STRETCH_STEPS_MIN:
        steps = training.windows.find_next(training.step) - training.step
        training.run(min(steps, 1000))
        inspected += 1
    assert training.effect.state is EffectState.KEPT
    assert inspected < 80


def test_windows_that_do_not_slow_training_go_on() -> None:
    training = governed().run(FIRST + 10 * STRETCH_STEPS_MIN + 10)
    assert training.spans()[-1][0] == "full"
    assert training.windows.find_next(training.step) > training.step + 1
    assert "detach" not in training.profiler.log


def test_windows_that_slow_training_end_and_cupti_is_detached() -> None:
    training = run_until_slower(governed())
    taken = len(training.windows_taken)
    training.run(1)
    assert training.profiler.log[-1] == "detach"
    training.step_ns = STEP_NS
    training.run(10 * STRETCH_STEPS_MIN + 1)
    assert training.profiler.log[-1] == "detach"
    assert len(training.windows_taken) == taken
    assert training.windows.skipped == {FIRST_OF_DEVICE: 1}
    assert training.plan.dropped == {"full_windows"}
    assert training.windows.find_next(training.step) > training.step + 1
    assert ratios_of(training.effect) == {"attached": pytest.approx(0.3), "detached": pytest.approx(0.0)}


def test_if_detaching_does_not_help_windows_go_on() -> None:
    training = run_until_slower(governed()).run(10 * STRETCH_STEPS_MIN)
    assert training.profiler.log[training.profiler.log.index("detach") :][:3] == ["detach", "full", "stop"]
    assert training.windows.skipped == {FIRST_OF_DEVICE: 2}
    assert training.plan.dropped == frozenset()
    assert training.windows_taken[-1].steps[-1].step > training.step - 2 * STRETCH_STEPS_MIN


def test_where_cupti_cannot_be_detached_windows_only_end() -> None:
    training = governed()
    training.detaches = False
    for _ in range(2):  # the second time confirms it
        run_until_slower(training).run(1)
    training.run(10 * STRETCH_STEPS_MIN)
    assert "detach" not in training.profiler.log
    assert training.plan.dropped == {"full_windows"}


def test_cupti_stays_until_it_is_known_that_there_is_no_graph() -> None:
    training = governed()
    training.detaches = None
    run_until_slower(training).run(10)
    assert "detach" not in training.profiler.log
    training.detaches = True
    assert "detach" in training.run(2).profiler.log


def test_nothing_is_detached_during_a_capture() -> None:
    training = run_until_slower(governed())
    training.captures_graph = True
    assert "detach" not in training.run(10).profiler.log
    training.captures_graph = False
    assert "detach" in training.run(2).profiler.log


def test_users_profiler_after_detaching_ends_windows_unjudged() -> None:
    training = run_until_slower(governed()).run(1)
    training.windows.on_user_profiler(True)
    training.windows.on_user_profiler(False)
    training.run(3 * STRETCH_STEPS_MIN)
    assert (training.effect.state, training.effect.detached_ratio) == (EffectState.ENDED, None)
    assert training.plan.dropped == {"full_windows"}


def test_first_window_follows_the_one_that_is_discarded() -> None:
    training = governed().run(FIRST + 1 + FULL_STEPS + 1)
    assert training.spans() == [("full", FIRST + 1, FIRST + 1 + FULL_STEPS)]


def test_nothing_attaches_without_budget_for_full_windows() -> None:
    training = governed()
    training.plan.allow(Allowance(0.0, 0, 0, frozenset({"full_windows"})))
    training.run(FIRST + STRETCH_STEPS_MIN)
    assert training.profiler.log == []


def test_what_does_not_become_known_within_a_minute_counts_as_no() -> None:
    training = governed()
    training.detaches = None
    now_ns = [0]
    training.windows._devices._read_clock_ns = lambda: now_ns[0]
    run_until_slower(training).run(2)
    states = []
    for _ in range(2):
        now_ns[0] += GRAPHS_WAIT_NS + 1
        training.run(1)
        states.append(training.effect.state)
        training.run(4 * STRETCH_STEPS_MIN)
    assert states == [EffectState.ATTACHED, EffectState.ENDED]


def test_cupti_is_not_reattached_after_a_graph_capture() -> None:
    training = run_until_slower(governed()).run(1)
    training.detaches = False
    training.run(10 * STRETCH_STEPS_MIN)
    assert training.effect.state is EffectState.KEPT
    assert training.profiler.log[-1] == "detach"


def test_steps_before_a_device_is_in_use_are_no_reference() -> None:
    training = governed()
    training.profiler.sees_device = False
    training.run(3 * STRETCH_STEPS_MIN)
    training.profiler.sees_device = True
    training.run(STRETCH_STEPS_MIN - 1)
    assert training.effect.state is EffectState.REFERENCE


def test_error_in_finding_a_due_window_leaves_the_steps_alone() -> None:
    training = without_driver()
    assert training.windows.find_next(0) == training.plan.find_next(0)
    assert training.guard.errors == {PART: 1}


def test_only_the_host_has_windows_where_device_recording_is_off() -> None:
    training = Training(light=False, effect=WindowEffect(warmup_steps=WARMUP_STEPS, state=EffectState.ENDED))
    training.run(WARMUP_STEPS + FULL_STEPS)
    training.profiler.sees_device = True
    training.run(10 * STRETCH_STEPS_MIN)
    assert training.profiler.log == ["full", "stop"]
    assert training.windows.find_next(training.step) > training.step + 1


def test_governed_windows_of_the_host_begin_as_without() -> None:
    effect = WindowEffect(warmup_steps=WARMUP_STEPS)
    assert Training(effect=effect).run(200).spans() == Training().run(200).spans()


# -- the lines of a window --------------------------------------------------------------------------------------------


def test_only_windows_of_a_device_but_the_first_are_sampled() -> None:
    training = Training()
    training.profiler.sees_device = True
    training.run(WARMUP_STEPS + FULL_STEPS + LIGHT + 2)
    assert [(full, window.lines is not None) for (full, *_), window in zip_windows(training)] == [
        ("full", True), ("light", False),
    ]  # fmt: skip


def zip_windows(training: Training) -> list[tuple[tuple[str, int, int], RawWindow]]:
    return list(zip(training.spans(), training.windows_taken, strict=True))


def test_windows_of_the_host_are_not_sampled() -> None:
    training = Training(light=False).run(WARMUP_STEPS + FULL_STEPS + 1)
    assert [window.lines for window in training.windows_taken] == [None]


def test_sampling_counts_as_cost_of_full_windows() -> None:
    training = Training(light=False)
    training.profiler.sees_device = True
    training.run(WARMUP_STEPS + 1)
    lines = training.sampler.end()
    assert lines is not None
    lines.cpu_ns = NS_PER_S
    training.sampler._current = lines  # as if its thread had sampled for a second
    training.run(FULL_STEPS)
    assert training.windows_taken[0].lines is lines
    assert NS_PER_S <= training.windows_taken[0].training_cost_ns < 2 * NS_PER_S
    assert NS_PER_S <= training.windows.full_spent_ns < 2 * NS_PER_S


def test_sampling_ends_before_the_device_is_waited_for() -> None:
    training = Training(light=False)
    training.profiler.sees_device = True
    found: list[object] = []
    training.profiler.while_waiting = lambda: found.append(training.sampler.end())
    training.run(WARMUP_STEPS + FULL_STEPS + 1)
    assert found == [None]
    assert training.windows_taken[0].lines is not None


def test_lines_are_kept_when_a_script_signal_ends_the_wait() -> None:
    training = Training(light=False)
    training.profiler.sees_device = True
    interrupts = [ScriptInterruptError(TimeoutError("preempted"))]

    def interrupt() -> None:
        if interrupts:
            raise interrupts.pop()

    training.profiler.while_waiting = interrupt
    training.run(WARMUP_STEPS + FULL_STEPS + 2)
    assert [window.lines is None for window in training.windows_taken] == [False]


@pytest.mark.parametrize("is_ours", [True, False])
def test_sampling_ends_with_a_window_that_is_given_up(is_ours: bool) -> None:
    training = Training(light=False)
    training.profiler.sees_device = True
    training.run(WARMUP_STEPS + 1)
    call = training.windows.on_user_profiler
    if is_ours:
        call(True)
    else:
        other = threading.Thread(target=call, args=(True,))
        other.start()
        other.join()
    assert training.sampler.end() is None


@pytest.mark.parametrize("sees_device", [True, False])
def test_no_session_begins_before_a_capturing_runs_first_graph(sees_device: bool) -> None:
    training = Training(cuda_graphs=YES)
    training.profiler.sees_device = sees_device
    training.run(WARMUP_STEPS + 8)
    assert (training.profiler.log, training.windows.skipped) == ([], {BEFORE_FIRST_GRAPH: 1})
    training.graphs.begun = 1
    training.run(2 * QUESTION_STEPS)
    assert training.profiler.log


def test_reference_of_a_device_begins_anew_after_the_first_graph() -> None:
    effect = WindowEffect(warmup_steps=WARMUP_STEPS)
    training = Training(light=False, effect=effect, cuda_graphs=YES)
    training.profiler.sees_device = True
    training.step_ns = 2 * NS_PER_S
    training.run(WARMUP_STEPS + STRETCH_STEPS_MIN + 2)
    assert (effect.state, training.profiler.log) == (EffectState.READY, [])
    training.graphs.begun, training.step_ns = 1, NS_PER_S
    training.run(QUESTION_STEPS + STRETCH_STEPS_MIN + 4)
    assert training.profiler.log[:3] == ["full", "stop", "full"]
    assert effect._reference.median_ns == NS_PER_S


def test_graph_that_does_not_come_is_awaited_for_a_few_steps() -> None:
    training = Training(light=False, cuda_graphs=YES)
    training.profiler.sees_device = True
    training.run(WAIT_STEPS)
    assert training.profiler.log == []
    training.run(QUESTION_STEPS + 1)
    assert training.profiler.log[:2] == ["full", "stop"]
    assert training.first_graph.describe() is not None


def test_script_profiler_ends_the_wait_for_the_first_graph() -> None:
    training = Training(light=False, cuda_graphs=YES)
    training.profiler.sees_device = True
    training.run(WARMUP_STEPS + 1)
    assert training.first_graph.is_waiting
    training.windows.on_user_profiler(begins=True)
    training.windows.on_user_profiler(begins=False)
    training.run(QUESTION_STEPS + 1)
    assert training.profiler.log


def test_sign_of_graphs_after_a_session_changes_nothing() -> None:
    training = Training(light=False)
    training.profiler.sees_device = True
    first = training.first_graph
    first._is_over, first._find = False, lambda: COMPILED if training.profiler.log else None
    training.run(WARMUP_STEPS + FULL_STEPS + 1)
    assert training.spans() == [("full", 2, 2 + FULL_STEPS)]
    assert not first.is_waiting
