"""Find that a run has grown slower over thousands of steps: too slowly to show in the few hundred that are kept.

The levels of a run (`steps/step_levels.py`) are the medians of blocks of its steps. The run is compared with the
shortest steps that it has had for LASTING blocks in a row, so that a slow warm-up is no level to be back at:

    rise        log(median of the last known steps / that level), at least `slowdown_ratio_min`
    certain     at least `robust_z_min` deviations of a block about the ramp, and CHANCE_DEVIATIONS more, by which the
                shortest of many levels is short by chance
    lasts       the last LASTING blocks are all above half of the rise
    not work    the tokens in a batch have not grown as much, where they are known
    begin       where the ramp that fits the blocks best begins, between the first block near the level and the one
                after the last such block: growth that is less than the noise of a block cannot be dated
"""

import math
from typing import Final, NamedTuple

import numpy as np

from rankscope.collector.detect.statistics.change_points import SIGMA_FLOOR, fit_ramp
from rankscope.collector.detect.statistics.noise import MAD_TO_SIGMA, measure_noise
from rankscope.collector.detect.stragglers.persistent import CLOSE_STEPS_MAX, Thresholds
from rankscope.collector.detect.view import RunView
from rankscope.collector.steps.step_series import Floats, Ints

LASTING: Final = 4
"""Blocks of a level: 128 steps at least."""
BLOCKS_MIN: Final = 3 * LASTING
"""Fewer blocks, 384 steps, are hardly more than is kept anyway."""
CHANCE_DEVIATIONS: Final = 2.0
"""Deviations of a block by which the shortest level may be short by chance."""
NEAR_DEVIATIONS: Final = 3.0
"""A block this near to the level is at it."""


class SlowGrowth(NamedTuple):
    """A growth of the steps of a run: its most likely first step, the earliest and the latest, the level before it and
    by now in ns, its size in deviations, and the first step of those that it was measured in. `more_tokens`: how many
    times as many tokens the batches have by now, for which `before_ns` counts, in proportion to them.
    """

    since_step: int
    earliest_step: int
    latest_step: int
    before_ns: float
    after_ns: float
    robust_z: float
    level_from_step: int
    more_tokens: float


def find_slow_growth(view: RunView, times_ns: Floats, thresholds: Thresholds) -> SlowGrowth | None:
    """Return the growth of a run up to now; None where it is not slower than it was. `times_ns`: what remains of the
    steps of the view without what other findings explain, shape (n,), NaN where not known.
    """
    levels, rows = view.levels, np.flatnonzero(~np.isnan(times_ns))[-CLOSE_STEPS_MAX:]
    if len(levels.step_ns) < BLOCKS_MIN or len(rows) < thresholds.steps_min:
        return None
    logs, last = np.log(levels.step_ns), np.log(times_ns[rows])
    windows = np.median(np.lib.stride_tricks.sliding_window_view(logs, LASTING), axis=1)
    lowest = int(np.argmin(windows))
    before, after = float(windows[lowest]), float(np.median(last))
    rise = after - before
    if rise < math.log(thresholds.slowdown_ratio_min) or len(logs) - lowest < BLOCKS_MIN:
        return None
    deviation = _deviation(logs[lowest:], last, levels.block_steps)
    is_certain = rise >= (thresholds.robust_z_min + CHANCE_DEVIATIONS) * deviation
    if not is_certain or (logs[-LASTING:] <= before + rise / 2).any():
        return None
    more_tokens = _more_tokens(view, lowest, rows)
    if rise - more_tokens < math.log(thresholds.slowdown_ratio_min):
        return None
    near = np.flatnonzero(logs <= before + NEAR_DEVIATIONS * deviation)
    ramp = fit_ramp(logs[near[0] :])
    since = min(near[0] + ramp.begin, near[-1] + 1) if ramp.is_gradual else near[-1] + 1
    return SlowGrowth(
        since_step=int(levels.first_steps[since]),
        earliest_step=int(levels.first_steps[near[0]]),
        latest_step=int(levels.first_steps[near[-1] + 1]),
        before_ns=math.exp(before + more_tokens),
        after_ns=math.exp(after),
        robust_z=rise / deviation,
        level_from_step=int(view.series.steps[rows[0]]),
        more_tokens=math.exp(more_tokens),
    )


def _deviation(logs: Floats, last: Floats, block_steps: int) -> float:
    """Return the deviation of one block about a ramp: the largest of that of the blocks `logs`, that by the last steps,
    whose correlation is known, and SIGMA_FLOOR.

    Steps that wander, as on machines that others use too, leave the ramp by more than neighboring blocks differ.
    """
    residual = logs - fit_ramp(logs).values(logs)
    of_blocks = MAD_TO_SIGMA * float(np.median(np.abs(residual)))
    return max(of_blocks, measure_noise(last).median_error(min(block_steps, len(last))), SIGMA_FLOOR)


def _more_tokens(view: RunView, lowest: int, rows: Ints) -> float:
    """Return the log of by how much more tokens the batches of these last steps have than those of the level; 0 where
    not known. The last blocks end before these steps: where batches grow within a few hundred, theirs are too few.
    """
    if view.series.tokens is None:
        return 0.0
    last = view.series.tokens[rows].mean(axis=1)
    last = last[~np.isnan(last)]
    before, after = np.median(view.levels.tokens[lowest : lowest + LASTING]), np.median(last) if len(last) else 0.0
    return max(0.0, math.log(after / before)) if before > 0 and after > 0 else 0.0
