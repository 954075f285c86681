"""Split the difference of two mean steps into parts that sum to it exactly: by phase, and by use of the device. Pure.

By phase: the mean of each phase over the same steps. A step's duration and its phases are medians over the ranks, each
for itself, which need not sum; what is left is the part `between phases`, and it may be below 0.

By use: profiler windows say how a share of the time is spent, `compute + exposed communication + copies + idle =
window` (docs/definitions.md section 1). Summed over all ranks and windows, and as shares of the mean step, they sum to
the step. Of the idle time as much is `data wait` as the step was in its phase `data`: in that the device had nothing to
do for want of a batch. On a device whose host runs ahead, a loader may be slow without being waited for: hence at most
the idle time.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rankscope.collector.comparison.block_bootstrap import Floats, count_blocks, find_interval, resample_means
from rankscope.collector.comparison.run_side import RunSide
from rankscope.collector.steps.run_start import BETWEEN_PHASES, USES, USUAL_RATIO_MAX
from rankscope.collector.storage.rank_intervals import SUMS

INTERVALS_MIN: Final = 8
"""Intervals with windows that a side needs for its uses: with fewer nothing can be said of how sure they are."""

_WINDOW: Final = SUMS.index("window_ns")
_COMPUTE: Final = SUMS.index("compute_ns")
_EXPOSED: Final = SUMS.index("exposed_communication_ns")
_COPY: Final = SUMS.index("copy_ns")
_IDLE: Final = SUMS.index("idle_ns")


Bools = npt.NDArray[np.bool_]


class PartDifference(NamedTuple):
    """Mean of one part in a step of each side, in ns, and the interval of the difference `b_ns - a_ns`."""

    name: str
    a_ns: float
    b_ns: float
    low_ns: float
    high_ns: float

    @property
    def difference_ns(self) -> float:
        """How much longer it is in B, in ns; below 0 where it is shorter."""
        return self.b_ns - self.a_ns


class ResampledSide(NamedTuple):
    """Means over counted steps of a side: as they were in the first row, of its resamples in the others. Shape of
    `step_ns`: (1 + resamples,); of each phase, and of each row of `uses_ns` in the order of USES, the same. `uses_ns`
    is None where too few intervals have windows. They come from `blocks` blocks of steps, the uses from `use_blocks` of
    intervals too.
    """

    step_ns: Floats
    phases_ns: Mapping[str, Floats]
    uses_ns: Floats | None
    blocks: int
    use_blocks: int


def find_usual(side: RunSide) -> Bools:
    """Return which steps of a side are usual, at most USUAL_RATIO_MAX times as long as its median; shape (n,)."""
    return side.step_ns <= USUAL_RATIO_MAX * np.median(side.step_ns)


def resample_side(side: RunSide, counted: Bools, stream: int) -> ResampledSide:
    """Return the means of the counted steps of one side, shape (n,), and of its resamples, NaN for those without a
    counted step; sides with another `stream` are independent.
    """
    series = np.column_stack([np.ones_like(side.step_ns), side.step_ns, *side.phases_ns.values()])
    series *= counted[:, np.newaxis]
    summed = np.vstack([series.mean(axis=0), resample_means(series, stream)])
    shares = summed[:, :1]
    means = np.divide(summed, shares, out=np.full_like(summed, np.nan), where=shares > 0)
    phases_ns = {name: means[:, place] for place, name in enumerate(side.phases_ns, start=2)}
    return ResampledSide(
        step_ns=means[:, 1],
        phases_ns=phases_ns,
        uses_ns=_find_uses(side, means[:, 1], phases_ns.get("data"), stream),
        blocks=count_blocks(len(side.step_ns)),
        use_blocks=count_blocks(max(1, count_windowed(side))),
    )


def _find_uses(side: RunSide, step_ns: Floats, data_ns: Floats | None, stream: int) -> Floats | None:
    sums = side.sums[side.sums[:, _WINDOW] > 0]
    if len(sums) < INTERVALS_MIN:
        return None
    means = np.vstack([sums.mean(axis=0), resample_means(sums, stream)])
    compute, exposed, copies, idle = (
        step_ns * means[:, place] / means[:, _WINDOW] for place in (_COMPUTE, _EXPOSED, _COPY, _IDLE)
    )
    data_wait = np.zeros_like(idle) if data_ns is None else np.minimum(data_ns, idle)
    # The step less the others, not the idle share: so the parts sum to the step, whatever was reported.
    return np.array([compute, exposed, copies, data_wait, step_ns - compute - exposed - copies - data_wait])


def compare_phases(a: ResampledSide, b: ResampledSide) -> list[PartDifference]:
    """Return the difference by phase: the parts sum to that of the mean steps, to rounding. A phase that one side has
    not is 0 there.
    """
    names = dict.fromkeys([*a.phases_ns, *b.phases_ns])
    zero = np.zeros(1)
    of_a, of_b = ([side.phases_ns.get(name, zero) for name in names] for side in (a, b))
    rest_a, rest_b = a.step_ns - sum(of_a, zero), b.step_ns - sum(of_b, zero)
    named = zip([*names, BETWEEN_PHASES], [*of_a, rest_a], [*of_b, rest_b], strict=True)
    blocks = min(a.blocks, b.blocks)
    return [_compare(name, part_a, part_b, blocks) for name, part_a, part_b in named]


def compare_uses(a: ResampledSide, b: ResampledSide) -> list[PartDifference]:
    """Return the difference by use of the device, which sums to that of the mean steps, to rounding; none where a side
    has too few intervals with windows.
    """
    if a.uses_ns is None or b.uses_ns is None:
        return []
    blocks = min(a.blocks, b.blocks, a.use_blocks, b.use_blocks)
    return [_compare(*of, blocks) for of in zip(USES, a.uses_ns, b.uses_ns, strict=True)]


def count_windowed(side: RunSide) -> int:
    """Return how many intervals of a side have windows."""
    return int((side.sums[:, _WINDOW] > 0).sum())


def _compare(name: str, a_ns: Floats, b_ns: Floats, blocks: int) -> PartDifference:
    differences = b_ns - a_ns
    known = len(differences) > 1
    low_ns, high_ns = find_interval(differences[1:], float(differences[0]), blocks) if known else (0.0, 0.0)
    return PartDifference(name, float(a_ns[0]), float(b_ns[0]), low_ns, high_ns)
