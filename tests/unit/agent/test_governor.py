"""Tests of the governor: budget of windows, dropping and restoring parts.

The budget is 0.5 %: 5 ms of every second, and 100 ms for the 20 s of head start.
"""

import itertools
from collections.abc import Sequence

from rankscope.agent.governor import (
    AGENT_THREAD,
    DROP_ORDER,
    DROP_ORDER_WITHOUT_WINDOWS,
    DROP_PAUSE_NS,
    FREQUENT_REPORTS,
    FULL_WINDOWS,
    GPU_SAMPLES,
    HOST_SAMPLES,
    LIGHT_WINDOWS,
    RESTORE_PAUSE_NS,
    STEP_HOOKS,
    Allowance,
    DropRule,
    Governor,
)
from rankscope.measure.units import NS_PER_MS, NS_PER_S, ns_to_s

BUDGET = 0.005
MINUTE_S = 60


class Job:
    """A run with a governor that decides once per second."""

    def __init__(self, order: Sequence[DropRule] = DROP_ORDER) -> None:
        self.governor = Governor(BUDGET, order)
        self.second = 0
        self.spent_ns = {STEP_HOOKS: 0, AGENT_THREAD: 0, LIGHT_WINDOWS: 0, FULL_WINDOWS: 0, GPU_SAMPLES: 0}
        self.dropped_at: list[tuple[int, frozenset[str]]] = []
        self.allowance = self.governor.decide(self.spent_ns, 0)

    def run(self, seconds: int, **ms_per_second: float) -> Allowance:
        """Spend these ms per second in each part; `dropped_at` records changes of the dropped parts."""
        for _ in range(seconds):
            self.second += 1
            for part, spent_ms in ms_per_second.items():
                self.spent_ns[part] += round(spent_ms * NS_PER_MS)
            before = self.allowance.dropped
            self.allowance = self.governor.decide(self.spent_ns, self.second * NS_PER_S)
            if self.allowance.dropped != before:
                self.dropped_at.append((self.second, self.allowance.dropped))
        return self.allowance


def test_a_job_that_has_spent_nothing_may_spend_the_head_start() -> None:
    assert Job().allowance == Allowance(windows_ratio=BUDGET, budget_left_ns=100 * NS_PER_MS, elapsed_ns=0)


def test_windows_get_the_rest_of_the_budget() -> None:
    allowance = Job().run(80, step_hooks=1.0, agent_thread=0.25)
    # 100 ms of the 500 ms that 80 s and the head start allow.
    assert allowance.windows_ratio == BUDGET * (1 - 100 / 500)
    assert (allowance.budget_left_ns, allowance.dropped) == (400 * NS_PER_MS, frozenset())


def test_spent_windows_reduce_the_budget_left_not_the_ratio() -> None:
    allowance = Job().run(80, full_windows=2.0, light_windows=1.0)
    assert (allowance.windows_ratio, allowance.budget_left_ns) == (BUDGET, (500 - 240) * NS_PER_MS)


def test_cheap_past_does_not_pay_for_costly_present() -> None:
    job = Job()
    job.run(60 * MINUTE_S, step_hooks=1.0)
    allowance = job.run(5 * MINUTE_S, step_hooks=4.0, light_windows=2.0)
    # Of the 18 s that the hour allowed 3.6 were spent; the 1.6 s of the last 300 to 305 and 20 are overdrawn by 0.2.
    assert -200 * NS_PER_MS <= allowance.budget_left_ns < -150 * NS_PER_MS
    assert BUDGET * (1 - 1.2 / 1.6) <= allowance.windows_ratio < BUDGET * 0.27


def test_parts_are_dropped_in_order() -> None:
    job = Job()
    job.run(31, step_hooks=4.9)
    assert job.dropped_at.pop() == (30, frozenset({FULL_WINDOWS}))
    job.run(10 * MINUTE_S, step_hooks=50.0)
    # Without light windows the rest takes as much as with them: what comes next need not wait to see it.
    assert [dropped for _, dropped in job.dropped_at] == [
        {FULL_WINDOWS, LIGHT_WINDOWS, FREQUENT_REPORTS},
        {FULL_WINDOWS, LIGHT_WINDOWS, FREQUENT_REPORTS, GPU_SAMPLES},
        {FULL_WINDOWS, LIGHT_WINDOWS, FREQUENT_REPORTS, GPU_SAMPLES, HOST_SAMPLES},
    ]
    assert [second for second, _ in job.dropped_at] == [ns_to_s(DROP_PAUSE_NS) * n for n in (2, 3, 4)]
    assert job.governor.changes == 5


def test_nothing_is_dropped_while_windows_have_a_tenth() -> None:
    job = Job()
    job.run(120 * MINUTE_S, step_hooks=4.5)
    assert job.dropped_at == []


def test_only_full_windows_are_dropped_at_first() -> None:
    job = Job()
    allowance = job.run(120 * MINUTE_S, step_hooks=4.9)
    assert allowance.dropped == {FULL_WINDOWS}
    assert allowance.windows_ratio > 0


def test_next_drop_waits_for_the_effect_of_the_last() -> None:
    # Without GPU samples the rest is under the budget: the process is still sampled as often, whatever was before.
    job = Job()
    job.run(59, step_hooks=4.0, gpu_samples=8.0)
    allowance = job.run(10 * MINUTE_S, step_hooks=4.0, gpu_samples=0.5)
    assert allowance.dropped == {FULL_WINDOWS, LIGHT_WINDOWS, FREQUENT_REPORTS, GPU_SAMPLES}


def test_short_steps_are_kept_within_the_budget_by_rarer_reports() -> None:
    """As measured of steps of 10 ms: hooks take 3.8 ms a second, and the agent thread 1.7 for a report a second."""
    job = Job()
    for _ in range(30 * MINUTE_S):
        job.run(1, step_hooks=3.8, agent_thread=0.5 if FREQUENT_REPORTS in job.allowance.dropped else 1.7)
    # At once: the head start pays windows, and no part of what always runs.
    assert job.dropped_at == [(30, frozenset({FULL_WINDOWS, LIGHT_WINDOWS, FREQUENT_REPORTS}))]
    assert job.governor.changes == 3, "and it stays so"
    assert sum(job.spent_ns.values()) <= BUDGET * job.second * NS_PER_S + 100 * NS_PER_MS


def test_parts_come_back_in_reverse_when_the_cost_has_fallen() -> None:
    job = Job()
    job.run(3 * MINUTE_S, step_hooks=10.0)
    job.dropped_at.clear()
    job.run(60 * MINUTE_S, step_hooks=1.0)
    assert [len(dropped) for _, dropped in job.dropped_at] == [4, 3, 2, 1, 0]
    seconds = [second for second, _ in job.dropped_at]
    assert min(b - a for a, b in itertools.pairwise(seconds)) >= ns_to_s(RESTORE_PAUSE_NS)


def test_flapping_doubles_the_restore_pause() -> None:
    job = Job()
    returns = []
    for _ in range(8 * 60 * MINUTE_S):
        gpu = 0.0 if GPU_SAMPLES in job.allowance.dropped else 4.0
        before = job.allowance.dropped
        job.run(1, step_hooks=3.0, gpu_samples=gpu)
        if before > job.allowance.dropped == {FULL_WINDOWS, LIGHT_WINDOWS, FREQUENT_REPORTS}:
            returns.append(job.second)
    distances = [b - a for a, b in itertools.pairwise(returns)]
    assert len(returns) < 12
    assert distances[-1] > 2 * distances[0]


def test_there_is_a_floor() -> None:
    job = Job()
    allowance = job.run(20 * MINUTE_S, step_hooks=900.0)
    assert allowance.dropped == {dropping.part for dropping in DROP_ORDER}
    assert job.governor.changes == len(DROP_ORDER)


# -- without windows: a fifth of the budget, 1 ms of every second ------------------------------------------------------


def test_without_windows_reports_get_rarer_above_a_fifth() -> None:
    job = Job(DROP_ORDER_WITHOUT_WINDOWS)
    job.run(2 * MINUTE_S, step_hooks=0.3, agent_thread=1.1)
    job.run(60 * MINUTE_S, step_hooks=0.3, agent_thread=0.3)
    assert job.dropped_at == [(30, frozenset({FREQUENT_REPORTS}))]


def test_without_windows_a_cheap_agent_reports_as_usual() -> None:
    job = Job(DROP_ORDER_WITHOUT_WINDOWS)
    job.run(60 * MINUTE_S, step_hooks=0.2, agent_thread=0.8)
    assert job.dropped_at == []


def test_without_windows_samples_drop_above_the_budget() -> None:
    job = Job(DROP_ORDER_WITHOUT_WINDOWS)
    job.run(10 * MINUTE_S, step_hooks=4.9)
    assert job.governor.dropped == {FREQUENT_REPORTS}
    job.run(60 * MINUTE_S, step_hooks=20.0)
    assert job.governor.dropped == {FREQUENT_REPORTS, GPU_SAMPLES, HOST_SAMPLES}
