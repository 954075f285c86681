"""Which steps begin profiler windows: step numbers that every rank computes for itself, and how time and cost set their
distance.

Nobody talks: a rank whose windows cost more has them at fewer of the same steps
--------------------------------------------------------------------------------
Windows begin at multiples of a power of two of steps after the warm-up. The power follows from the step time and from
what a window has cost; it changes only when it would be too small, or more than ROOM too large. So two ranks with
different costs or step times have the same power, or powers of which one divides the other: the rarer windows are a
subset of the more frequent ones. Of a young job there are full windows at the powers of two from
FULL_FIRST_INTERVAL_STEPS on, as far as they are paid for: whether they are is asked for all windows up to that step
together, as if each had been taken, so that it does not depend on which were.

Light windows follow each other without a gap while they are paid for. When they are not, they keep their length and
begin less often: a longer one would cost more. What one records stays in the heap until it ends, between the buffers of
the training, which then have to be made elsewhere: so one has no more steps than have LIGHT_EVENTS_MAX events.

`Allowance` bounds all this: no window begins that would overdraw the agent's account (`governor.py`).
"""

from typing import NamedTuple

from rankscope.agent.governor import FULL_WINDOWS, HEAD_START_NS, LIGHT_WINDOWS, Allowance
from rankscope.agent.steps.step_intervals import UNKNOWN_STEPS, nearest_power, power_at_least
from rankscope.measure.units import NS_PER_MS, NS_PER_S

FULL_FIRST_INTERVAL_STEPS = 32
"""Where the second full window of a young job may be; the next ones at 64, 128 ... until the interval aimed at is
reached."""
LIGHT_FIRST_INTERVAL_STEPS = 8
"""Until the step time is known a light window begins after 8, 16, 32, 64 ... steps."""
LIGHT_LENGTH_STEPS_MAX = 4096
"""Until the step time is known: should it never be, a window must not fill the memory."""
FULL_COST_ASSUMED_NS = 60 * NS_PER_MS
"""Until one has been paid for: two steps of 3,000 operators at 10 us. At the default budget one of them is within the
first head start, two are not."""
LIGHT_COST_ASSUMED_NS = NS_PER_MS
"""Of a light window whatever it sees: 1.1 ms of its begin and end, on two cores. Each step is 0.19 to 0.26 ms more with
FSDP2 (45 events), 0.03 to 0.04 with DDP (6)."""
INTERVAL_NS_MAX = 3600 * NS_PER_S
"""Full windows that would have to be further apart are not taken: no one would wait for the next."""
LIGHT_EVENTS_MAX = 512
"""FSDP2 on a CPU, 75 events and 3 MiB of buffers a step, was left with 64 and 80 MiB more by 20 s with windows of 16
steps, with 35 and 55 by such of 8, and with 10 to 24 by such of 4 (30 to 57 by 40 s). DDP has 7 events a step and keeps
its buffers."""


class _LightCost(NamedTuple):
    """What a light window costs at all, and for each step in it."""

    at_all_ns: float
    a_step_ns: float


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
        self._allowance = Allowance(overhead_ratio_max, int(overhead_ratio_max * HEAD_START_NS), 0)
        self._step_ns: int | None = None
        self._full_cost_ns: int | None = None
        self._light_cost: _LightCost | None = None
        self._light_steps_timed = UNKNOWN_STEPS
        self._light_events_a_step = 0.0
        self._full_is_too_rare = False
        self.full_window_steps = full_window_steps
        """How many steps the next full window spans; 0 when even one step has too many events to be read."""
        self.light_interval_steps = UNKNOWN_STEPS
        self.light_window_steps = UNKNOWN_STEPS
        self.full_interval_steps = UNKNOWN_STEPS
        self.full_stretch_ratio = 1.0
        """How many times further apart full windows are than without regard to cost, and light ones."""
        self.light_stretch_ratio = 1.0

    # -- what is learnt -----------------------------------------------------------------------------------------------

    def allow(self, allowance: Allowance) -> None:
        """From now on windows may spend this."""
        self._allowance = allowance

    def learn_step(self, step_ns: int) -> None:
        """The present step time. Until it is known windows begin at powers of two of steps."""
        self._step_ns = max(1, step_ns)
        self._set_intervals()

    def learn_full(self, cost_ns: int) -> None:
        """What a full window has cost all threads together."""
        self._full_cost_ns = max(cost_ns, (self._full_cost_ns or 0) * 3 // 4)
        self._set_intervals()

    def learn_light(self, cost_ns: int, steps: int, events_a_step: float | None) -> None:
        """What a light window of so many steps has cost all threads together, and what it has recorded of each."""
        if events_a_step is not None:
            self._light_events_a_step = max(events_a_step, self._light_events_a_step * 3 / 4)
        at_all_ns = min(cost_ns, LIGHT_COST_ASSUMED_NS)
        a_step_ns = (cost_ns - at_all_ns) / max(1, steps)
        before = self._light_cost or _LightCost(0.0, 0.0)
        self._light_cost = _LightCost(
            max(at_all_ns, before.at_all_ns * 3 / 4), max(a_step_ns, before.a_step_ns * 3 / 4)
        )
        self._set_intervals()

    def learn_too_large(self, *, full: bool) -> None:
        """A window had more events than may be read: all it cost was for nothing, so the next one is shorter."""
        if full:
            self.full_window_steps //= 2
        else:
            self._collective_window_ns //= 2

    def _set_intervals(self) -> None:
        if self._step_ns is not None:
            self._set_light(self._step_ns)
            self._set_full(self._step_ns)

    def _set_light(self, step_ns: int) -> None:
        wished = self._collective_window_ns / step_ns
        self._light_steps_timed = nearest_power(wished, self._light_steps_timed)
        self.light_window_steps = min(self._light_steps_timed, self._light_steps_max)
        share = 1.0 if FULL_WINDOWS in self._allowance.dropped else 0.5
        paid_ns = _interval_paying(self._expected_light_ns, share * self._allowance.windows_ratio)
        paid = paid_ns / step_ns
        if paid <= self.light_window_steps:
            self.light_interval_steps = self.light_window_steps
        else:
            self.light_interval_steps = nearest_power(paid, self.light_interval_steps)
        self.light_stretch_ratio = self.light_interval_steps / self.light_window_steps

    def _set_full(self, step_ns: int) -> None:
        wished = max(self._full_window_interval_ns / step_ns, 2 * self.full_window_steps)
        paid_ns = _interval_paying(self._expected_full_ns, self._full_ratio)
        self._full_is_too_rare = paid_ns > INTERVAL_NS_MAX
        self.full_interval_steps = nearest_power(max(wished, paid_ns / step_ns), self.full_interval_steps)
        self.full_stretch_ratio = max(1.0, self.full_interval_steps / power_at_least(wished))

    # -- what is decided ----------------------------------------------------------------------------------------------

    @property
    def dropped(self) -> frozenset[str]:
        """The kinds of window that are not taken at all, here or by the governor."""
        full_is_off = self._full_is_too_rare or not self.full_window_steps
        own = frozenset({FULL_WINDOWS}) if full_is_off else frozenset()
        return own | (self._allowance.dropped & {FULL_WINDOWS, LIGHT_WINDOWS})

    def find_next(self, step: int) -> int:
        """A step after this one before which no window begins or ends that has not begun yet."""
        since = step - self._warmup_steps
        if since < 0:
            return self._warmup_steps
        light = self.light_interval_steps
        begun = since - since % light
        found = [_next_multiple(since, self.full_interval_steps), _next_multiple(since, light)]
        if since < begun + self.light_window_steps:
            found.append(begun + self.light_window_steps)
        if since < self.full_interval_steps or light == UNKNOWN_STEPS:
            found.append(1 << since.bit_length())  # the next power of two
        if light == UNKNOWN_STEPS:
            found.append(_next_multiple(since, LIGHT_LENGTH_STEPS_MAX))
        return self._warmup_steps + min(found)

    def begins_full(self, step: int) -> bool:
        """Whether a full window begins with this step."""
        since = step - self._warmup_steps
        if since < 0 or not self._is_full_step(since) or FULL_WINDOWS in self.dropped:
            return False
        return self._is_paid(self._expected_full_ns) and (since == 0 or self._are_all_paid(since))

    def begins_light(self, step: int) -> bool:
        """Whether the light window is handed over at this step and a new one begun."""
        since = step - self._warmup_steps
        return since >= 0 and self._is_light_step(since) and self._light_is_allowed

    def is_light(self, step: int) -> bool:
        """Whether a light window may go on over this step."""
        since = step - self._warmup_steps
        if LIGHT_WINDOWS in self._allowance.dropped or (self._is_light_step(since) and not self._light_is_allowed):
            return False
        return since & (self.light_interval_steps - 1) < self.light_window_steps

    @property
    def _expected_full_ns(self) -> int:
        return FULL_COST_ASSUMED_NS if self._full_cost_ns is None else self._full_cost_ns

    @property
    def _expected_light_ns(self) -> int:
        """What the next light window will cost: one that is shorter than those before will cost less."""
        if self._light_cost is None:
            return LIGHT_COST_ASSUMED_NS
        is_unknown = self.light_window_steps == UNKNOWN_STEPS
        steps = LIGHT_FIRST_INTERVAL_STEPS if is_unknown else self.light_window_steps
        return round(self._light_cost.at_all_ns + steps * self._light_cost.a_step_ns)

    @property
    def _light_steps_max(self) -> int:
        """The power of two of steps whose events are not too many."""
        if not self._light_events_a_step:
            return UNKNOWN_STEPS
        return 1 << max(0, int(LIGHT_EVENTS_MAX / self._light_events_a_step).bit_length() - 1)

    @property
    def _full_ratio(self) -> float:
        return (1.0 if LIGHT_WINDOWS in self._allowance.dropped else 0.5) * self._allowance.windows_ratio

    @property
    def _light_is_allowed(self) -> bool:
        return LIGHT_WINDOWS not in self._allowance.dropped and self._is_paid(self._expected_light_ns)

    def _is_full_step(self, since: int) -> bool:
        if since & (self.full_interval_steps - 1) == 0:
            return True
        return FULL_FIRST_INTERVAL_STEPS <= since < self.full_interval_steps and since & (since - 1) == 0

    def _is_light_step(self, since: int) -> bool:
        if self.light_interval_steps == UNKNOWN_STEPS:
            is_power = since >= LIGHT_FIRST_INTERVAL_STEPS and since & (since - 1) == 0
            return is_power or since % LIGHT_LENGTH_STEPS_MAX == 0
        return since & (self.light_interval_steps - 1) == 0

    def _is_paid(self, cost_ns: int) -> bool:
        return cost_ns <= self._allowance.budget_left_ns

    def _are_all_paid(self, since: int) -> bool:
        """Whether the full windows' share of the time so far pays for all of them up to this step."""
        interval = self.full_interval_steps
        young = max(0, min(since, interval - 1).bit_length() - FULL_FIRST_INTERVAL_STEPS.bit_length() + 1)
        count = 1 + young + since // interval
        return count * self._expected_full_ns <= self._full_ratio * (self._allowance.elapsed_ns + HEAD_START_NS)


def _interval_paying(cost_ns: int, ratio: float) -> float:
    """The interval of which the cost is that ratio."""
    return cost_ns / ratio if ratio > 0 else float(UNKNOWN_STEPS)


def _next_multiple(number: int, of: int) -> int:
    return (number // of + 1) * of
