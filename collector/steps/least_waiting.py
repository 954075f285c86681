"""Find the rank that waited least for the others, where ranks cannot be compared by their own times. Pure.

Whoever waits least is the one that the others wait for: it is slower, or it has more work. Of ranks with equal work the
own times tell which; of others nothing does, so it is evidence and no verdict.
"""

from typing import Final, NamedTuple

import msgspec
import numpy as np

from rankscope.collector.steps.step_series import Floats, StepSeries

STEPS_MAX: Final = 64
STEPS_MIN: Final = 16
SHARE_MIN: Final = 0.9
"""Of ranks that are equally fast each waits least in its share of the steps: half of them where there are two."""
MARGIN_MIN: Final = 0.05
"""Of the median step: the same as the smallest slowness that is reported."""


class Foremost(NamedTuple):
    """A column that has the least in a `share` of the rows, and in the median `margin` less than the next."""

    column: int
    share: float
    margin: float


class LeastWaiting(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The rank that waited least in a `share` of the last `steps` measured steps, SHARE_MIN at least. In the median the
    rank that waited second least did so for `margin_ns` longer.
    """

    rank: int
    steps: int
    share: float
    margin_ns: float


def find_least_waiting(series: StepSeries) -> LeastWaiting | None:
    """Return the rank that waited least in nearly all of the last steps of which the waiting of all ranks is known;
    None: no single one did, or too few such steps are known.
    """
    if not series.own_is_measured or len(series.ranks) < 2:  # noqa: PLR2004 - nobody to wait for
        return None
    waits_ns = series.step_ns - series.own_ns
    rows = np.flatnonzero(~np.isnan(waits_ns).any(axis=1))[-STEPS_MAX:]
    if len(rows) < STEPS_MIN:
        return None
    found = find_foremost(waits_ns[rows], float(np.median(series.step_ns[rows].max(axis=1))))
    return None if found is None else LeastWaiting(series.ranks[found.column], len(rows), found.share, found.margin)


def find_foremost(values: Floats, step: float) -> Foremost | None:
    """Return the column that has the least in nearly all rows, by MARGIN_MIN of a step at least; None for none.
    `values`: shape (rows, columns), two columns at least, in the unit of `step`.
    """
    least = values.argmin(axis=1)
    column = int(np.bincount(least).argmax())
    share = float((least == column).mean())
    margin = float(np.median(np.delete(values, column, axis=1).min(axis=1) - values[:, column]))
    return None if share < SHARE_MIN or margin < MARGIN_MIN * step else Foremost(column, share, margin)
