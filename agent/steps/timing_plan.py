"""Choose the steps that are timed more closely, on the device or block by block, the same on every rank."""

from rankscope.agent.steps.step_intervals import find_next_chosen, is_chosen

INTERVAL_STEPS_FIRST = 16
"""Used until the step time is known."""

INTERVAL_STEPS_MAX = 4096


class TimingPlan:
    """Choose the steps that are timed more closely. Pure: step numbers and times in, decisions out.

    From `warmup_steps` on these are the chosen ones of every 2^n steps (`step_intervals.py`), with the smallest n at
    which the events cost at most `overhead_ratio_max` of the time of all steps. Ranks with different n have all steps
    of the larger n in common.
    """

    def __init__(self, *, warmup_steps: int, overhead_ratio_max: float) -> None:
        self._warmup_steps = warmup_steps
        self._overhead_ratio_max = overhead_ratio_max
        self._step_ns = 0
        self._cost_ns = 0
        self.interval_steps = INTERVAL_STEPS_FIRST

    def learn_step(self, step_ns: int) -> None:
        """Set the present step time."""
        self._step_ns = step_ns
        self._choose()

    def learn_cost(self, cost_ns: int) -> None:
        """Record the cost of timing one step. An earlier higher cost decays by a quarter with every timed step."""
        self._cost_ns = max(cost_ns, self._cost_ns * 3 // 4)
        self._choose()

    def is_due(self, step: int) -> bool:
        """Return whether this step is to be timed.

        >>> plan = TimingPlan(warmup_steps=4, overhead_ratio_max=0.001)
        >>> plan.learn_cost(25_000)
        >>> plan.learn_step(10_000_000)   # 25 us are 0.0025 of 10 ms: every 2nd step would cost too much
        >>> plan.interval_steps, [step for step in range(16) if plan.is_due(step)]
        (4, [4, 10, 12])
        """
        since = step - self._warmup_steps
        return since >= 0 and is_chosen(since, self.interval_steps)

    def find_next(self, step: int) -> int:
        """Return the first step after this one that is to be timed."""
        since = step - self._warmup_steps
        return self._warmup_steps + (0 if since < 0 else find_next_chosen(since, self.interval_steps))

    def _choose(self) -> None:
        """Set the smallest sufficient power of two; shorten the interval only with a margin, so that it is stable."""
        allowed_ns = self._overhead_ratio_max * self._step_ns
        if allowed_ns <= 0 or self._cost_ns <= 0:
            return
        interval = self.interval_steps
        while interval < INTERVAL_STEPS_MAX and interval * allowed_ns < self._cost_ns:
            interval *= 2
        while interval > 1 and interval * allowed_ns > 2.5 * self._cost_ns:
            interval //= 2
        self.interval_steps = interval
