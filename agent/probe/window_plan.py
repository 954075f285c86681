"""Which steps begin profiler windows: step numbers that every rank computes for itself, and how time and cost set
their distance.
"""

FULL_FIRST_INTERVAL_STEPS = 32
"""After the first full window the next come 32, 64, 128 ... steps later, until the interval aimed at is reached: a
young job is understood early, and the windows of a long one cost log2(steps) more."""
LIGHT_FIRST_INTERVAL_STEPS = 8
"""Until the step time is known."""
STRETCH_MARGIN = 1.25
"""A new power of two is chosen when the old one is off by this much, so that a step time near a limit does not make
two ranks disagree for long. While they do, the longer interval's windows are a subset of the shorter's."""


class WindowPlan:
    """Which step begins which window. Pure: step numbers and times in, decisions out."""

    def __init__(
        self,
        *,
        warmup_steps: int,
        collective_window_ns: int,
        full_window_interval_ns: int,
        full_window_steps: int,
        overhead_ratio_max: float,
    ) -> None:
        self._warmup_steps = warmup_steps
        self._collective_window_ns = collective_window_ns
        self._full_window_interval_ns = full_window_interval_ns
        self._full_window_steps = full_window_steps
        self._overhead_ratio_max = overhead_ratio_max
        self._full_cost_ns = 0
        self._light_cost_ns = 0
        self.light_interval_steps = LIGHT_FIRST_INTERVAL_STEPS
        self.full_interval_steps = FULL_FIRST_INTERVAL_STEPS

    def learn(self, step_ns: int, *, full_cost_ns: int | None = None, light_cost_ns: int | None = None) -> None:
        """Set the intervals from the present step time and, after a window, what it has cost all threads together."""
        if full_cost_ns is not None:
            self._full_cost_ns = max(full_cost_ns, self._full_cost_ns * 3 // 4)
        if light_cost_ns is not None:
            self._light_cost_ns = max(light_cost_ns, self._light_cost_ns * 3 // 4)
        share = self._overhead_ratio_max / 2
        light_ns = max(self._collective_window_ns, round(self._light_cost_ns / share))
        full_ns = max(self._full_window_interval_ns, round(self._full_cost_ns / share))
        self.light_interval_steps = _steps_for(light_ns, step_ns, self.light_interval_steps)
        self.full_interval_steps = max(
            _steps_for(full_ns, step_ns, self.full_interval_steps), _power_at_least(2 * self._full_window_steps)
        )

    def begins_full(self, step: int) -> bool:
        """Whether a full window begins with this step."""
        since = step - self._warmup_steps
        if since <= 0 or since % self.full_interval_steps == 0:
            return since >= 0
        return FULL_FIRST_INTERVAL_STEPS <= since < self.full_interval_steps and since & (since - 1) == 0

    def begins_light(self, step: int) -> bool:
        """Whether the light window is handed over at this step and a new one begun."""
        since = step - self._warmup_steps
        return since >= 0 and since % self.light_interval_steps == 0


def _power_at_least(count: float) -> int:
    power = 1
    while power < count:
        power *= 2
    return power


def _steps_for(interval_ns: int, step_ns: int, present_steps: int) -> int:
    """The power of two of steps that lasts at least the interval; the present one if it is near enough."""
    wanted = interval_ns / max(1, step_ns)
    if wanted / STRETCH_MARGIN <= present_steps <= 2 * wanted * STRETCH_MARGIN:
        return present_steps
    return _power_at_least(wanted)
