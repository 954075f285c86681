"""Find each rank's own time in the steps between profiler windows from the phases of every step, which the measured
steps teach to read. Pure.

In synchronous training a step takes as long on every rank, so its duration does not tell whose it was; its parts do. A
rank that is late spends the time in one phase (its loader, its forward), and the others spend as much in the phases in
which they wait for it. Which those are depends on the script: backward with gloo, on a GPU the phase in which the host
waits for its device (`loss.item()`). Measured steps show it: they have the waits, and

    waits in these phases - waits measured      varies least for the phases in which ranks wait.

What is left of a step without them varies with the own time, and differs from it by what the device does meanwhile:

    own time = the step - the phases with waits + what measured steps had on top, in the median

A step is known this way only when its longest duration on any rank is as predicted, the longest own time and the usual
rest. So a step in which a rank is late within the phases with waits stays unknown, and so does all where these phases
do not explain most of how the measured waits vary: hosts that run ahead of their devices, kernels that are slow. So
does all while the last measured steps differ from it. What else is known of waits (`host_own_times.py`) is a bound.

Example: 8 ranks, steps of 200 ms of which the host waits 150 for its device in `other`. In two of twelve measured steps
rank 3 has 60 ms more in `data` and 60 less in `other`, and the others wait 60 ms: `other` varies as the waits do. In
each step in which rank 3 shows that, and that takes 260 ms, its own time was 260 and that of the others 200.
"""

import itertools
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from rankscope.collector.steps.predicted_steps import (
    MEASURED_LAST,
    MEASURED_MIN,
    are_unlike,
    fill_as_predicted,
    find_least_difference,
    find_usual,
)
from rankscope.collector.steps.step_series import Cells, Flags, Floats, Ints
from rankscope.measure.records import CHECKPOINT_WAIT

PHASES_TRIED: Final = 6
"""Phases that may contain the waits: those that vary most."""
WAITED_IN_MAX: Final = 3
RANKS_READ: Final = 128
"""Ranks that are read to find the phases with waits, evenly spread: all wait for a late one."""
UNEXPLAINED_MAX: Final = 0.5
"""Share of the variation of waits that the phases may leave."""
STEADY_RATIO: Final = 2.0
"""Waits that vary by so much more from rank to rank than from step to step are of the same ranks in all steps."""
UNLIKE_RATIO: Final = 0.05
"""Share of a step by which what ranks have on top must differ to be each rank's own."""
UNLIKE_LAST_RATIO: Final = 0.1
"""The same for the last measured steps, which show that ranks have begun to wait elsewhere."""
TOLERANCE_RATIO: Final = 0.05
"""Share of a step by which it may differ from the prediction."""


def fill_from_phases(
    own_ns: Floats, step_ns: Floats, phases_ns: Mapping[str, Cells], at_most_ns: Floats | None = None
) -> Floats:
    """Return the own times with those that phases show, shape (n, ranks) in ns as all; NaN where neither is known.
    `at_most_ns`: what else is known that ranks do not work longer than, NaN where it is not; None for nothing.
    """
    is_reported = ~np.isnan(step_ns).any(axis=1)
    is_measured = is_reported & ~np.isnan(own_ns).any(axis=1)
    measured, open_ = np.flatnonzero(is_measured)[-MEASURED_LAST:], np.flatnonzero(is_reported & ~is_measured)
    if len(measured) < MEASURED_MIN or not len(open_):
        return own_ns
    taught_ns = {name: np.nan_to_num(ns[measured], nan=0.0) for name, ns in phases_ns.items()}
    waited_in = _find_waited_in(step_ns[measured] - own_ns[measured], taught_ns)
    if not waited_in:
        return own_ns
    waited_in += tuple({CHECKPOINT_WAIT} & set(phases_ns) - set(waited_in))

    def find_apart_ns(rows: Ints) -> Floats:
        """Return these steps without the phases with waits."""
        waits_ns = (np.nan_to_num(phases_ns[name][rows], nan=0.0) for name in waited_in)
        apart_ns: Floats = np.asarray(step_ns[rows] - sum(waits_ns))
        return apart_ns if at_most_ns is None else np.fmin(apart_ns, at_most_ns[rows])

    on_top_ns = own_ns[measured] - find_apart_ns(measured)
    of_ranks_ns, noise_ns = find_usual(on_top_ns)
    more_ns = _same_unless_unlike(of_ranks_ns, noise_ns, step_ns[measured])
    if are_unlike(on_top_ns[-MEASURED_MIN:] - more_ns, step_ns[measured[-MEASURED_MIN:]], UNLIKE_LAST_RATIO):
        return own_ns
    return fill_as_predicted(
        own_ns, step_ns, open_, lambda rows: np.clip(find_apart_ns(rows) + more_ns, 0.0, step_ns[rows]),
        rest_ns=float(np.median(step_ns[measured].max(axis=1) - own_ns[measured].max(axis=1))),
        noise_ns=noise_ns, tolerance_ratio=TOLERANCE_RATIO,
    )  # fmt: skip


def _find_waited_in(waits_ns: Floats, phases_ns: Mapping[str, Floats]) -> tuple[str, ...]:
    """Return the phases in which ranks wait by these measured steps, shape (m, ranks) each; none where none explain
    the waits. Where the same ranks wait in all of these steps, their waits vary from rank to rank.
    """
    every = -(-waits_ns.shape[1] // RANKS_READ)
    waits_ns, phases_ns = waits_ns[:, ::every], {name: ns[:, ::every] for name, ns in phases_ns.items()}
    by_step, by_rank = _vary_by_step(waits_ns), _vary_by_rank(waits_ns)
    measures = (_vary_by_rank, _vary_by_step) if by_rank > STEADY_RATIO * by_step else (_vary_by_step,)
    return next(filter(None, (_find_explaining(waits_ns, phases_ns, vary) for vary in measures)), ())


def _find_explaining(
    waits_ns: Floats, phases_ns: Mapping[str, Floats], vary: Callable[[Floats], float]
) -> tuple[str, ...]:
    """Return the phases that leave the least of how the waits vary; none where that is too much."""
    tried = sorted(phases_ns, key=lambda name: -vary(phases_ns[name]))[:PHASES_TRIED]
    chosen = [some for count in range(1, WAITED_IN_MAX + 1) for some in itertools.combinations(tried, count)]
    left_ns = {some: vary(np.sum([phases_ns[name] for name in some], axis=0) - waits_ns) for some in chosen}
    best = min(left_ns, key=lambda some: left_ns[some], default=())
    return best if best and left_ns[best] < UNEXPLAINED_MAX * vary(waits_ns) else ()


def _vary_by_step(ns: Floats) -> float:
    """Return the mean distance from each rank's median; shape (m, ranks) to a number. A few steps that differ count."""
    return float(np.abs(ns - np.median(ns, axis=0)).mean())


def _vary_by_rank(ns: Floats) -> float:
    """Return the mean distance from the median of all; shape (m, ranks) to a number. A few ranks that differ count."""
    return float(np.abs(ns - np.median(ns)).mean())


def _same_unless_unlike(of_ranks_ns: Floats, noise_ns: float, step_ns: Floats) -> Floats:
    """Return what ranks have on top, shape (ranks,): their own where that clearly differs, else that of all. Of few
    noisy steps each rank's own would be a difference between ranks that there is not.
    """
    usual_ns = float(np.median(of_ranks_ns))
    is_unlike: Flags = np.abs(of_ranks_ns - usual_ns) > find_least_difference(noise_ns, step_ns, UNLIKE_RATIO)
    return np.where(is_unlike, of_ranks_ns, usual_ns)
