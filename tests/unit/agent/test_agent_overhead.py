"""Tests of AgentOverhead: CPU time by part, and the governor's effect on windows and samplers."""

import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from rankscope.agent.agent_overhead import CAPTURES, DEVICE_TIMES, NCCL_TIMING, WINDOW_CHILDREN, AgentOverhead
from rankscope.agent.governor import (
    AGENT_THREAD,
    COLLECTIVE_TIMES,
    DROP_ORDER,
    DROP_PAUSE_NS,
    FREQUENT_REPORTS,
    FULL_WINDOWS,
    GPU_SAMPLES,
    HOST_SAMPLES,
    LIGHT_WINDOWS,
    STEP_HOOKS,
)
from rankscope.agent.profiler.measured_timing import TimingState
from rankscope.agent.profiler.window_effect import EffectState, WindowEffect
from rankscope.agent.profiler.window_plan import WindowPlan
from rankscope.agent.sample.loop import RARER_TIMES, SampleLoop
from rankscope.measure.clock import SystemClock
from rankscope.measure.units import NS_PER_MS, NS_PER_S

WARMUP_STEPS = 1


@dataclass
class Agent:
    """The parts of an agent with CPU times set by the test, in a rank started at 0."""

    hooks: Any = field(default_factory=lambda: SimpleNamespace(spent_ns=0))
    windows: Any = field(default_factory=lambda: SimpleNamespace(full_spent_ns=0, light_spent_ns=0))
    timers: Any = field(default_factory=lambda: SimpleNamespace(spent_ns=0))
    reduction: Any = field(
        default_factory=lambda: SimpleNamespace(
            full_reduced_ns=0, light_reduced_ns=0, full_recording_ns=0, light_recording_ns=0, child_cpu_ns=0
        )
    )
    timed: Any = field(
        default_factory=lambda: SimpleNamespace(
            thread_ns=0, outside_ns=0, timing_ns=None, is_used=False, is_held=False, allow=lambda _share, _left_ns: None
        )
    )
    captures: Any = None
    effect: WindowEffect | None = None
    awaits_graph: bool = False
    timing: Any = None
    samples: SampleLoop[int] = field(
        default_factory=lambda: SampleLoop({"host": lambda: 1}, SystemClock(), NS_PER_S, lambda _part, _error: None)
    )

    def __post_init__(self) -> None:
        self.plan = WindowPlan(
            warmup_steps=WARMUP_STEPS,
            collective_window_ns=NS_PER_S,
            full_window_interval_ns=NS_PER_S,
            full_window_steps=1,
            overhead_ratio_max=0.005,
        )
        self.reduction.timed = self.timed
        self.cost = AgentOverhead(
            0.005,
            self.plan,
            self.samples,
            hooks=self.hooks,
            windows=self.windows,
            timers=self.timers,
            reduction=self.reduction,
            captures=self.captures,
            started_ns=0,
            find_effect=lambda: self.effect,
            awaits_graph=lambda: self.awaits_graph,
            timing=self.timing,
        )

    def overspend(self) -> None:
        """Let the hooks use twice the budget until all optional parts are dropped."""
        for count in range(1, len(DROP_ORDER) + 1):
            now_ns = count * DROP_PAUSE_NS + 3600 * NS_PER_S
            self.hooks.spent_ns = now_ns // 100
            self.cost.govern(now_ns)


def test_effect_of_windows_on_steps_is_reported_with_the_cost() -> None:
    effect = WindowEffect(warmup_steps=WARMUP_STEPS)
    effect.attached_ratio, effect.detached_ratio = 0.3, 0.01
    found = [Agent(effect=one).cost.govern(NS_PER_S) for one in (None, effect)]
    assert [(one.attached_ratio, one.detached_ratio) for one in found] == [(None, None), (0.3, 0.01)]
    assert [one.window_effect for one in found] == ["", "reference"]


def test_collective_times_are_a_part_with_ungoverned_timing() -> None:
    agent = Agent()
    allowed = []
    agent.timed = SimpleNamespace(
        thread_ns=0, outside_ns=60 * NS_PER_MS, timing_ns=90 * NS_PER_MS, is_used=True, is_held=True,
        allow=lambda share, left_ns: allowed.append((share, left_ns)),
    )  # fmt: skip
    agent.__post_init__()
    cost = agent.cost.govern(20 * NS_PER_S)
    assert (cost.part_ns[COLLECTIVE_TIMES], cost.part_ns[NCCL_TIMING]) == (60 * NS_PER_MS, 90 * NS_PER_MS)
    assert cost.dropped[COLLECTIVE_TIMES]
    ((share, left_ns),) = allowed
    assert share <= 0.0025, "half of what base leaves, as each kind of window"
    # 0.005 of 20 s and of the head start of 20 s, less 60 ms and this thread's own time
    assert left_ns <= 140 * NS_PER_MS
    assert agent.cost.overhead_ratio(cost, 20 * NS_PER_S) >= 0.0075, "150 ms of 20 s: the timing is cost all the same"


def test_measured_slowing_by_timing_counts_above_the_estimate() -> None:
    found = []
    timing = SimpleNamespace(state=TimingState.SLOWER, ratio=0.08, slowed_ns=0)
    agent = Agent(timing=timing)
    agent.timed.timing_ns = 90 * NS_PER_MS
    for timing.slowed_ns in (0, 70 * NS_PER_MS, 200 * NS_PER_MS):
        cost = agent.cost.govern(20 * NS_PER_S)
        assert (cost.timing_ratio, cost.timing_effect) == (0.08, "slower")
        found.append(cost.part_ns[NCCL_TIMING])
    assert found == [90 * NS_PER_MS, 90 * NS_PER_MS, 200 * NS_PER_MS]
    agent.timed.timing_ns = None
    cost = agent.cost.govern(40 * NS_PER_S)
    assert cost.part_ns[NCCL_TIMING] == 200 * NS_PER_MS, "also where no duration was read"
    assert agent.cost.overhead_ratio(cost, 40 * NS_PER_S) >= 0.005, "200 ms of 40 s"


def test_without_timed_collectives_they_are_no_part() -> None:
    cost = Agent().cost.govern(NS_PER_S)
    assert not {COLLECTIVE_TIMES, NCCL_TIMING} & (cost.part_ns.keys() | cost.dropped.keys())


def test_each_part_has_its_own_time() -> None:
    agent = Agent()
    agent.hooks.spent_ns = 7 * NS_PER_MS
    agent.timers.spent_ns = 2 * NS_PER_MS
    agent.windows.full_spent_ns = 4 * NS_PER_MS
    agent.windows.light_spent_ns = NS_PER_MS
    agent.reduction.full_reduced_ns = 20 * NS_PER_MS
    agent.reduction.light_reduced_ns = 3 * NS_PER_MS
    agent.reduction.full_recording_ns = 6 * NS_PER_MS
    agent.reduction.light_recording_ns = NS_PER_MS // 2
    part_ns = agent.cost.govern(NS_PER_S).part_ns
    assert part_ns[STEP_HOOKS] == 7 * NS_PER_MS
    assert part_ns[DEVICE_TIMES] == 2 * NS_PER_MS
    assert part_ns[FULL_WINDOWS] == 30 * NS_PER_MS
    assert part_ns[LIGHT_WINDOWS] == 4.5 * NS_PER_MS
    windows = {FULL_WINDOWS, LIGHT_WINDOWS, WINDOW_CHILDREN}
    assert set(part_ns) == {STEP_HOOKS, DEVICE_TIMES, *windows, AGENT_THREAD, HOST_SAMPLES}


def test_child_cpu_time_is_reported_but_not_governed() -> None:
    agent = Agent()
    # So long that what the thread of the tests has spent, which stands for the agent's, is within the budget.
    agent.reduction.child_cpu_ns = elapsed_ns = 1_000_000 * NS_PER_S
    cost = agent.cost.govern(elapsed_ns)
    assert cost.part_ns[WINDOW_CHILDREN] == elapsed_ns
    assert not any(cost.dropped.values())


def test_remaining_cpu_time_belongs_to_the_agent_thread() -> None:
    agent = Agent()
    before_ns = agent.cost.govern(NS_PER_S).part_ns[AGENT_THREAD]
    end_ns = time.thread_time_ns() + 20 * NS_PER_MS
    while time.thread_time_ns() < end_ns:
        pass
    assert agent.cost.govern(NS_PER_S).part_ns[AGENT_THREAD] - before_ns >= 20 * NS_PER_MS


def test_a_sampler_s_time_is_not_counted_twice() -> None:
    agent = Agent()
    agent.samples.run(0)
    part_ns = agent.cost.govern(NS_PER_S).part_ns
    assert part_ns[HOST_SAMPLES] > 0
    assert part_ns[HOST_SAMPLES] + part_ns[AGENT_THREAD] <= time.thread_time_ns()


def test_without_windows_only_reports_get_rarer() -> None:
    agent = Agent(windows=None)
    # Hours on, so that what the thread of the tests has spent, which stands for the agent's, is next to nothing.
    agent.hooks.spent_ns = (elapsed_ns := 1_000_000 * NS_PER_S) * 2 // 1000
    assert agent.cost.govern(elapsed_ns).dropped == {FREQUENT_REPORTS: True, GPU_SAMPLES: False, HOST_SAMPLES: False}
    assert agent.cost.reports_less_often
    assert not Agent().cost.govern(elapsed_ns).dropped[FREQUENT_REPORTS]


def test_report_has_the_state_of_each_droppable_part() -> None:
    cost = Agent().cost.govern(NS_PER_S)
    assert cost.dropped == dict.fromkeys(
        (FULL_WINDOWS, LIGHT_WINDOWS, FREQUENT_REPORTS, GPU_SAMPLES, HOST_SAMPLES), False
    )
    assert (cost.full_stretch_ratio, cost.light_stretch_ratio, cost.changes) == (1.0, 1.0, 0)


def test_full_windows_that_the_plan_gave_up_count_as_dropped() -> None:
    agent = Agent()
    agent.plan.learn_too_large(1, full=True)
    assert agent.cost.govern(NS_PER_S).dropped[FULL_WINDOWS]


def test_costly_agent_drops_all_optional_parts() -> None:
    agent = Agent()
    agent.samples.run(0)
    agent.overspend()
    assert not any(agent.plan.begins_light(step) or agent.plan.begins_full(step) for step in range(100))
    agent.samples.run(NS_PER_S)
    assert not agent.samples.due(RARER_TIMES * NS_PER_S)
    assert agent.samples.due((RARER_TIMES + 1) * NS_PER_S)
    assert agent.cost.reports_less_often


def test_captures_are_a_part_that_no_budget_limits() -> None:
    agent = Agent()
    agent.captures = SimpleNamespace(training_ns=500 * NS_PER_S, written_ns=0, upload_ns=0)
    agent.__post_init__()
    cost = agent.cost.govern(1000 * NS_PER_S)
    assert cost.part_ns[CAPTURES] == 500 * NS_PER_S
    assert agent.cost.overhead_ratio(cost, 1000 * NS_PER_S) < 0.5, "half of the time went into what the user asked for"
    assert cost.dropped == Agent().cost.govern(1000 * NS_PER_S).dropped


def test_writing_a_capture_is_no_time_of_the_agent_thread() -> None:
    agent = Agent()
    agent.captures = SimpleNamespace(training_ns=0, written_ns=3600 * NS_PER_S, upload_ns=0)
    agent.__post_init__()
    assert agent.cost.govern(NS_PER_S).part_ns[AGENT_THREAD] == 0


@pytest.mark.parametrize(
    ("state", "expected"),
    [(None, "awaits_graph"), ("reference", "awaits_graph"), ("ended", "ended"), ("on_demand", "on_demand")],
)
def test_due_windows_are_said_to_await_the_first_graph(state: str | None, expected: str) -> None:
    effect = None if state is None else WindowEffect(warmup_steps=WARMUP_STEPS, state=EffectState(state))
    agent = Agent(effect=effect, awaits_graph=True)
    assert agent.cost.govern(NS_PER_S).window_effect == expected
    agent.awaits_graph = False
    assert agent.cost.govern(2 * NS_PER_S).window_effect == (state or "")
