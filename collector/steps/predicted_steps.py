"""What finding own times of steps without a window has in common, however they are found: which of these steps they
explain, and what must differ for ranks to differ. Pure.

In synchronous training a step lasts on every rank for the longest own time, and for a rest, which is mostly a transfer.
Where own times say that, no rank's can have been longer by more than the tolerance where it mattered.
"""

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from rankscope.collector.steps.step_series import Floats, Ints, in_blocks

MEASURED_MIN: Final = 6
"""Measured steps that own times are held against: the median of six is off by half of their noise."""
MEASURED_LAST: Final = 32
"""The last of them only: what a step does may change."""
UNLIKE_ERRORS: Final = 4.0
"""Standard errors by which medians must differ."""
TOLERANCE_DEVIATIONS: Final = 5.0
"""Deviations of the noise by which a step may differ from the prediction."""
TOLERANCE_RATIO_MAX: Final = 0.25
"""Share of a step up to which it may: on a busy machine five deviations are a whole step, and any would be as
predicted."""
MEDIAN_ERROR: Final = 1.253 * 1.4826
"""Standard error of the median of n values, times the root of n, over their median deviation; of normal noise."""


def fill_as_predicted(
    known_ns: Floats,
    step_ns: Floats,
    rows: Ints,
    find_own_ns: Callable[[Ints], Floats],
    *,
    rest_ns: float,
    noise_ns: float,
    tolerance_ratio: float,
) -> Floats:
    """Return the known own times, shape (n, ranks) in ns, with those found in the `rows` whose longest duration is the
    longest own time and the rest. `find_own_ns` returns the own times of some rows, none of them unknown;
    `tolerance_ratio` is the share of a step that it may be off, and TOLERANCE_DEVIATIONS of the noise, up to
    TOLERANCE_RATIO_MAX of a step.
    """
    filled: Floats = known_ns.copy()
    for some in in_blocks(rows, step_ns.shape[1]):
        own_ns, longest_ns = find_own_ns(some), step_ns[some].max(axis=1)
        off_ns = np.abs(own_ns.max(axis=1) + rest_ns - longest_ns)
        by_noise_ns = np.minimum(TOLERANCE_DEVIATIONS * noise_ns, TOLERANCE_RATIO_MAX * longest_ns)
        is_predicted = off_ns <= np.maximum(tolerance_ratio * longest_ns, by_noise_ns)
        filled[some[is_predicted]] = own_ns[is_predicted]
    return filled


def find_least_difference(noise_ns: float, step_ns: Floats, ratio: float) -> float:
    """Return by how much medians over these measured steps, shape (m, ranks) in ns, must differ to be different:
    UNLIKE_ERRORS of them, and the share `ratio` of a step.
    """
    error_ns = MEDIAN_ERROR * noise_ns / math.sqrt(len(step_ns))
    return max(UNLIKE_ERRORS * error_ns, ratio * float(np.median(step_ns)))


def find_usual(off_ns: Floats) -> tuple[Floats, float]:
    """Return the median of each rank, shape (ranks,), and the median deviation from these; `off_ns`: (m, ranks)."""
    medians_ns = np.median(off_ns, axis=0)
    return medians_ns, float(np.median(np.abs(off_ns - medians_ns)))


def are_unlike(off_ns: Floats, step_ns: Floats, ratio: float) -> bool:
    """Return whether windows show ranks that differ from each other clearly, and by more than the share `ratio` of a
    step, otherwise than own times found without them do. They differ from these by `off_ns`, shape (m, ranks), in steps
    that took `step_ns`. What all ranks differ by, as on a host that was busy meanwhile, makes none slower.
    """
    medians_ns, noise_ns = find_usual(off_ns - find_common(off_ns, axis=1)[:, None])
    apart_ns = np.abs(medians_ns - find_common(medians_ns, axis=0))
    return bool(apart_ns.max() > find_least_difference(noise_ns, step_ns, ratio))


def find_common(values: Floats, axis: int) -> Floats:
    """Return what the values of most ranks are, along the axis of ranks: of two ranks the lower value."""
    return np.asarray(np.percentile(values, 50, axis=axis, method="lower"))
