"""Choose the steps at which profiler windows begin, from step time and cost, on each rank alone.

A rank whose windows cost more has them at fewer of the same steps
------------------------------------------------------------------
The interval of windows is a power of two of steps after the warm-up. The power follows from the step time and the cost
of a window; it changes only when it would be too small, or more than HYSTERESIS times too large. Light windows begin at
its multiples, full ones at the step that `find_chosen` chooses of each interval, so that no stall every so many steps
falls between them for good. So of two ranks with different costs or step times the windows of one are a subset of the
other's. Early in a run intervals double from FULL_FIRST_INTERVAL_STEPS on, as far as the budget pays for all full
windows up to that step together, whether or not each was taken, so that ranks agree.

Two full windows may be a few steps apart. Then the second one is left out while the first one runs, or where the budget
does not pay for both.

Light windows follow each other without a gap while the budget pays for them. Otherwise they keep their length and begin
less often, since a longer one would cost more. The records of a window stay in the heap until it ends, between the
buffers of the training, which then need new memory: so a light window has at most LIGHT_EVENTS_MAX events.

`Allowance` bounds all this: no window begins that would exceed the agent's budget (`governor.py`). There is one
exception. When steps become LOOK_RATIO times as long, LOOK_WINDOWS light windows begin soon, at multiples of the length
that was asked for: early in a run the first windows have spent the budget, and windows alone tell who is slow in
backward. That costs some 10 ms, at most every LOOK_PAUSE_NS, and the windows after them come later for it.

What the first full window of a run costs follows from the events that a step seems to have (`step_size.py`).
"""

import math
from typing import NamedTuple

from rankscope.agent.governor import FULL_WINDOWS, HEAD_START_NS, LIGHT_WINDOWS, Allowance
from rankscope.agent.steps.step_intervals import (
    UNKNOWN_STEPS,
    find_next_chosen,
    is_chosen,
    nearest_power,
    power_at_least,
)
from rankscope.measure.units import NS_PER_MS, NS_PER_S

FULL_FIRST_INTERVAL_STEPS = 32
"""The second full window of a run is within so many steps from this one on; the next ones are within 64 from the 64th
step on, 128 from the 128th ... until the intended interval is reached."""
LIGHT_FIRST_INTERVAL_STEPS = 8
"""Until the step time is known a light window begins after 8, 16, 32, 64 ... steps."""
LIGHT_LENGTH_STEPS_MAX = 4096
"""Largest length of a light window while the step time is not known, so that it cannot fill the memory."""
FULL_COST_ASSUMED_NS = 60 * NS_PER_MS
"""Cost assumed for a full window until one has been measured: two steps of 3,000 operators at 10 us each. The head
start of the default budget pays for one such window, not for two."""
EVENT_NS = 6_000
"""Cost of an event, of all threads together: 4.1 us to end, list, read and let go (`bench/results/windows.md`), 0.5 us
to record; the rest for machines that are slower."""
LONG_STEP_EVENTS = 10_000
"""A step with more events is recorded alone."""
EVENTS_MAX_TIMES = 2.0
"""A step is not recorded if it seems to have so many times the events that may be read: the estimate may be as high."""
LIGHT_COST_ASSUMED_NS = NS_PER_MS
"""The cost of a light window without its events: 1.1 ms of its begin and end. Each step adds 0.03 ms (DDP, 6 events) to
0.26 ms (FSDP2, 45 events)."""
INTERVAL_NS_MAX = 3600 * NS_PER_S
"""Full windows that would have to be further apart are not taken."""
LIGHT_EVENTS_MAX = 512
"""Bounds the memory that windows fragment. FSDP2 on a CPU, with 75 events and 3 MiB of buffers a step, held 64 to 80
MiB more after 20 s with windows of 16 steps, and 10 to 24 with windows of 4."""
LOOK_RATIO = 1.25
LOOK_WINDOWS = 3
"""Ranks learn within a report's time of each other that steps are longer. Where that is at most two lengths (4 s by
default, of reports each second), at least one window is common to all."""
LOOK_PAUSE_NS = 60 * NS_PER_S


class _LightCost(NamedTuple):
    """The cost of a light window: a fixed part, and a part per step."""

    fixed_ns: float
    step_ns: float


class WindowCosts:
    """The expected cost of the next window of each kind. After a costly one it falls by a quarter with each window.

    >>> costs = WindowCosts()
    >>> costs.learn_light(3_000_000, 4, events_a_step=100.0)
    >>> costs.expect_light_ns(4), costs.light_steps_max
    (3000000, 4)
    """

    def __init__(self) -> None:
        self._full_ns = FULL_COST_ASSUMED_NS
        self._is_full_known = False
        self._light: _LightCost | None = None
        self._light_events_a_step = 0.0
        self.collectives_a_step = 0.0
        """How many a step has, as far as that is known: the least events that a light window has of it."""

    def learn_full(self, cost_ns: int) -> None:
        """Record the cost of a full window, of all threads together."""
        self._full_ns = max(cost_ns, self._full_ns * 3 // 4) if self._is_full_known else cost_ns
        self._is_full_known = True

    def expect_full_ns(self, events: float) -> int:
        """Return the expected cost of a full window, which seems to have so many events."""
        return self._full_ns if self._is_full_known else max(self._full_ns, round(events * EVENT_NS))

    def learn_light(self, cost_ns: int, steps: int, events_a_step: float | None) -> None:
        """Record the cost of a light window of `steps`, of all threads together, and its events per step."""
        if events_a_step is not None:
            self._light_events_a_step = max(events_a_step, self._light_events_a_step * 3 / 4)
        fixed_ns = min(cost_ns, LIGHT_COST_ASSUMED_NS)
        per_step_ns = (cost_ns - fixed_ns) / max(1, steps)
        before = self._light or _LightCost(0.0, 0.0)
        self._light = _LightCost(max(fixed_ns, before.fixed_ns * 3 / 4), max(per_step_ns, before.step_ns * 3 / 4))

    def expect_light_ns(self, steps: int) -> int:
        """Return the expected cost of a light window of this length."""
        if self._light is None:
            return LIGHT_COST_ASSUMED_NS
        return round(self._light.fixed_ns + steps * self._light.step_ns)

    @property
    def is_full_known(self) -> bool:
        """Whether the cost of a full window has been measured."""
        return self._is_full_known

    @property
    def light_steps_max(self) -> int:
        """The largest power of two of steps with at most LIGHT_EVENTS_MAX events."""
        events = self._light_events_a_step or self.collectives_a_step
        return 1 << max(0, int(LIGHT_EVENTS_MAX / events).bit_length() - 1) if events else UNKNOWN_STEPS


class WindowPlan:
    """Decide which step begins which window. Pure: step numbers and times in, decisions out."""

    def __init__(
        self,
        *,
        warmup_steps: int,
        collective_window_ns: int,
        full_window_interval_ns: int,
        full_window_steps: int,
        overhead_ratio_max: float,
        events_max: float = math.inf,
    ) -> None:
        self.warmup_steps = warmup_steps
        self._events_max = events_max
        self.events_a_step = 0.0
        """The events that a full window would have of a step, estimated; 0: not known."""
        self._collective_window_ns = collective_window_ns
        self._full_window_interval_ns = full_window_interval_ns
        self.allowance = Allowance(overhead_ratio_max, int(overhead_ratio_max * HEAD_START_NS), 0)
        """What windows may spend at present."""
        self.step_ns: int | None = None
        """The present step time; None: not known yet."""
        self._costs = WindowCosts()
        self._light_steps_timed = UNKNOWN_STEPS
        self._full_is_too_rare = False
        self._look_steps = range(0)  # the begins of its windows, since the warm-up
        self._looked_ns: int | None = None  # the elapsed time of the last look
        self._fastest_ns: int | None = None  # the shortest step time since then
        self._owes_full = False  # whether a full window has begun that the allowance does not know of
        self._fulls_begun = 0
        self.full_has_ended = False
        """Whether there are to be no more full windows, for another reason than their cost."""
        self._full_window_steps = full_window_steps
        self.light_interval_steps = UNKNOWN_STEPS
        self.light_window_steps = UNKNOWN_STEPS
        self.full_interval_steps = UNKNOWN_STEPS
        self.full_stretch_ratio = 1.0
        """Interval between full windows, divided by the one without regard to cost; `light_stretch_ratio` likewise."""
        self.light_stretch_ratio = 1.0

    # -- inputs -------------------------------------------------------------------------------------------------------

    def allow(self, allowance: Allowance) -> None:
        """Set what windows may spend from now on."""
        self.allowance = allowance
        self._owes_full = False

    def on_full(self) -> None:
        """A full window begins: before the next allowance a second one begins only if there is enough for both."""
        self._owes_full = True
        self._fulls_begun += 1

    def learn_step(self, step_ns: int, step: int) -> None:
        """Set the present step time, as of this step. Until it is known light windows begin at powers of two of steps,
        full ones at the step chosen from each to the next.
        """
        self.step_ns = max(1, step_ns)
        self._set_intervals()
        self._look_where_slower(self.step_ns, step - self.warmup_steps)

    def _look_where_slower(self, step_ns: int, since: int) -> None:
        """Have light windows after this step if steps have become longer."""
        if self._fastest_ns is None or step_ns < LOOK_RATIO * self._fastest_ns:
            self._fastest_ns = min(step_ns, self._fastest_ns or step_ns)
            return
        now_ns = self.allowance.elapsed_ns
        if self._looked_ns is None or now_ns - self._looked_ns >= LOOK_PAUSE_NS:
            begin, distance = _next_multiple(since, self._light_steps_timed), self._light_steps_timed
            self._look_steps = range(begin, begin + LOOK_WINDOWS * distance, distance)
            self._looked_ns, self._fastest_ns = now_ns, step_ns

    def learn_collectives(self, count: int, step: int) -> None:
        """Set how many collectives this rank has enqueued before this step, which a light window is about to record."""
        self._costs.collectives_a_step = count / max(1, step)

    def set_times(self, collective_window_ns: int, full_window_interval_ns: int) -> None:
        """Set the wanted length of light windows and interval of full ones, which are bounded as those before."""
        self._collective_window_ns, self._full_window_interval_ns = collective_window_ns, full_window_interval_ns
        self._set_intervals()

    def learn_full(self, cost_ns: int) -> None:
        """Record the cost of a full window, of all threads together."""
        self._costs.learn_full(cost_ns)
        self._set_intervals()

    def learn_light(self, cost_ns: int, steps: int, events_a_step: float | None) -> None:
        """Record the cost of a light window of `steps`, of all threads together, and its events per step."""
        self._costs.learn_light(cost_ns, steps, events_a_step)
        self._set_intervals()

    def learn_too_large(self, steps: int, *, full: bool) -> None:
        """Shorten the next window: one of so many steps had more events than may be read, so its cost was wasted."""
        if full:
            self._full_window_steps = steps // 2
        else:
            self._collective_window_ns //= 2

    def _set_intervals(self) -> None:
        if self.step_ns is not None:
            self._set_light(self.step_ns)
            self._set_full(self.step_ns)

    def _set_light(self, step_ns: int) -> None:
        wanted = self._collective_window_ns / step_ns
        self._light_steps_timed = nearest_power(wanted, self._light_steps_timed)
        self.light_window_steps = min(self._light_steps_timed, self._costs.light_steps_max)
        affordable_ns = _affordable_interval_ns(self._expected_light_ns, _share_beside(FULL_WINDOWS, self.allowance))
        affordable = affordable_ns / step_ns
        if affordable <= self.light_window_steps:
            self.light_interval_steps = self.light_window_steps
        else:
            self.light_interval_steps = nearest_power(affordable, self.light_interval_steps)
        self.light_stretch_ratio = self.light_interval_steps / self.light_window_steps

    def _set_full(self, step_ns: int) -> None:
        wanted = max(self._full_window_interval_ns / step_ns, 2 * self.full_window_steps)
        affordable_ns = _affordable_interval_ns(self._full_ns, _share_beside(LIGHT_WINDOWS, self.allowance))
        self._full_is_too_rare = affordable_ns > INTERVAL_NS_MAX
        self.full_interval_steps = nearest_power(max(wanted, affordable_ns / step_ns), self.full_interval_steps)
        self.full_stretch_ratio = max(1.0, self.full_interval_steps / power_at_least(wanted))

    # -- decisions ----------------------------------------------------------------------------------------------------

    @property
    def full_window_steps(self) -> int:
        """How many steps the next full window spans; 0 when even one step has too many events to be read."""
        events = self.events_a_step
        if events > EVENTS_MAX_TIMES * self._events_max:
            return 0
        return min(self._full_window_steps, 1) if events > LONG_STEP_EVENTS else self._full_window_steps

    @property
    def _full_ns(self) -> int:
        return self._costs.expect_full_ns(self.full_window_steps * self.events_a_step)

    @property
    def dropped(self) -> frozenset[str]:
        """The kinds of window that are off, by this plan or by the governor."""
        full_is_off = self._full_is_too_rare or self.full_has_ended or not self.full_window_steps
        planned = frozenset({FULL_WINDOWS}) if full_is_off else frozenset()
        return planned | (self.allowance.dropped & {FULL_WINDOWS, LIGHT_WINDOWS})

    def find_next(self, step: int) -> int:
        """Return a step after this one before which no planned window begins or ends."""
        since = step - self.warmup_steps
        if since < 0:
            return self.warmup_steps
        light = self._find_light_interval(since)
        begun = since - since % light
        longest = self._costs.light_steps_max
        found = [
            find_next_chosen(since, full_interval_at(since, self.full_interval_steps)),
            _next_multiple(since, light),
            *(begin for begin in self._look_steps if begin > since),
        ]
        if since < begun + self.light_window_steps:
            found.append(begun + self.light_window_steps)
        if longest < self.light_window_steps:  # also of a window that began elsewhere
            found.append(since + longest)
        if light == UNKNOWN_STEPS:
            found += [1 << since.bit_length(), _next_multiple(since, LIGHT_LENGTH_STEPS_MAX)]  # the next power of two
        return self.warmup_steps + min(found)

    def affords_full(self, times: int = 1) -> bool:
        """Return whether a full window may begin now, as far as its cost is concerned: one that costs so many times
        what the last ones did, if that has been measured.
        """
        owed_ns = self._full_ns if self._owes_full else 0
        pays = times * self._full_ns + owed_ns <= self.allowance.budget_left_ns
        if not self._costs.is_full_known:
            pays = times == 1 and (pays or (not self._fulls_begun and self.pays_first(self._full_ns)))
        return FULL_WINDOWS not in self.dropped and pays

    def affords_one_step(self) -> bool:
        """Return whether a full window of one step may begin now, unless its steps are of the usual size."""
        estimated_ns = round(self.events_a_step * EVENT_NS)
        is_paid = estimated_ns <= FULL_COST_ASSUMED_NS or self.pays_first(estimated_ns)
        return FULL_WINDOWS not in self.dropped and is_paid

    def pays_first(self, estimated_ns: int) -> bool:
        """Return whether the windows' share of the time since the start pays for a first window of this estimated cost.
        Not what is left of the budget: over five minutes that is never enough for the largest that may be read.
        """
        return estimated_ns <= self.allowance.windows_ratio * self.allowance.elapsed_ns

    def begins_full(self, step: int) -> bool:
        """Return whether a full window begins with this step."""
        since = step - self.warmup_steps
        if since < 0 or not is_chosen(since, full_interval_at(since, self.full_interval_steps)):
            return False
        is_first = not self._fulls_begun and not self._costs.is_full_known
        return self.affords_full() and (is_first or self._are_all_affordable(since))

    def begins_light(self, step: int) -> bool:
        """Return whether a light window begins with this step, and the one before ends."""
        since = step - self.warmup_steps
        return since >= 0 and self._is_light_step(since) and self._light_is_allowed(since)

    def is_light(self, step: int, steps: int = 0) -> bool:
        """Return whether a light window of so many `steps` may continue over this one."""
        since = step - self.warmup_steps
        if (
            steps >= self._costs.light_steps_max
            or LIGHT_WINDOWS in self.allowance.dropped
            or (self._is_light_step(since) and not self._light_is_allowed(since))
        ):
            return False
        return since & (self._find_light_interval(since) - 1) < self.light_window_steps

    @property
    def _expected_light_ns(self) -> int:
        """The expected cost of the next light window, by its length."""
        is_unknown = self.light_window_steps == UNKNOWN_STEPS
        return self._costs.expect_light_ns(LIGHT_FIRST_INTERVAL_STEPS if is_unknown else self.light_window_steps)

    def _light_is_allowed(self, since: int) -> bool:
        is_paid = since in self._look_steps or self._expected_light_ns <= self.allowance.budget_left_ns
        return is_paid and LIGHT_WINDOWS not in self.allowance.dropped

    def _find_light_interval(self, since: int) -> int:
        is_of_look = since - since % self.light_window_steps in self._look_steps
        return self.light_window_steps if is_of_look else self.light_interval_steps

    def _is_light_step(self, since: int) -> bool:
        interval = self._find_light_interval(since)
        if interval == UNKNOWN_STEPS:
            is_power = since >= LIGHT_FIRST_INTERVAL_STEPS and since & (since - 1) == 0
            return is_power or since % LIGHT_LENGTH_STEPS_MAX == 0
        return since & (interval - 1) == 0

    def _are_all_affordable(self, since: int) -> bool:
        """Return whether the full windows' share of the time so far pays for all of them up to this step."""
        interval = self.full_interval_steps
        early = max(0, min(since, interval - 1).bit_length() - FULL_FIRST_INTERVAL_STEPS.bit_length() + 1)
        count = 1 + early + since // interval if self._costs.is_full_known else 1 + self._fulls_begun
        share = _share_beside(LIGHT_WINDOWS, self.allowance)
        return count * self._full_ns <= share * (self.allowance.elapsed_ns + HEAD_START_NS)


def full_interval_at(since: int, intended: int) -> int:
    """Return the interval of which one step is chosen at this step: early in a run as many steps as there were before.

    >>> [full_interval_at(since, 512) for since in (0, 31, 64, 127, 128, 511, 512, 9_999)]
    [32, 32, 64, 64, 128, 256, 512, 512]
    """
    return min(intended, max(FULL_FIRST_INTERVAL_STEPS, 1 << since.bit_length() >> 1))


def _share_beside(other_kind: str, allowance: Allowance) -> float:
    """Return the share of the time that windows of one kind may cost: half of that of all, unless the other is off."""
    return (1.0 if other_kind in allowance.dropped else 0.5) * allowance.windows_ratio


def _affordable_interval_ns(cost_ns: int, ratio: float) -> float:
    """Return the interval of which the cost is this ratio."""
    return cost_ns / ratio if ratio > 0 else float(UNKNOWN_STEPS)


def _next_multiple(number: int, of: int) -> int:
    return (number // of + 1) * of
