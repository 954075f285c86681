"""The levels of a noisy series: whether, and where, it has clearly changed.

A series is log(time / what it is compared with) step by step, shape (n,), without NaN: one rank over its twins, a group
of ranks over the others, the whole run over its own past.
"""

import math
from typing import Final

import numpy as np

from rankscope.collector.detect.change_point import find_change
from rankscope.collector.detect.noise import measure_noise
from rankscope.collector.steps.step_series import Floats

SIGMA_FLOOR: Final = 0.01
"""1 %: what identical ranks differ by for reasons nobody can act on."""
SURE_DEVIATIONS: Final = 3.0
"""By so many standard errors the medians on both sides must differ for a change to be clear."""


def find_clear_change(series: Floats, steps_min: int) -> int:
    """Where the level has changed most clearly; 0 when it has not, or fewer than `steps_min` values follow."""
    change = find_change(series)
    after, before = series[change:], series[:change]
    if change == 0 or len(after) < steps_min:
        return 0
    shift = abs(float(np.median(after)) - float(np.median(before)))
    noise = measure_noise(series, change)
    by_chance = SURE_DEVIATIONS * math.hypot(noise.median_error(len(before)), noise.median_error(len(after)))
    return change if shift > max(by_chance, SIGMA_FLOOR) else 0


def find_last_change(series: Floats, steps_min: int) -> int:
    """Where the present level begins: at the last clear change, up or down, else at 0.

    The clearest change of all need not be the last one: of a slowness that has passed it is the begin. So the part
    behind a change is searched again. A change so recent that fewer than `steps_min` values follow it is left to later
    looks.
    """
    since = 0
    while (change := find_clear_change(series[since:], steps_min)) > 0:
        since += change
    return since
