"""Compute each rank's medians over its last steps after a detection pass, for the snapshot of the run. Pure."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from rankscope.collector.steps.step_series import Cells, Floats, Ints, StepSeries, medians_of_last

CAUSED_STEPS: Final = 12
CAUSED_STEPS_MIN: Final = 3
"""Attributed steps whose medians are taken, and the fewest that have one. They are some of those that are measured: 32
of them would reach back for a minute, and one or two are those of the start."""

Known = Sequence[float | None]
"""One value a rank, None where it is not known."""


class MedianSteps(msgspec.Struct, frozen=True, gc=False):
    """The steps that the medians of a run's ranks are of: of each rank the last `count` known ones, the newest
    `last_step`; and the same of own times, which are known of fewer steps where waiting is measured now and then, and
    go back to `own_first_step`. `own_count` is 0 where no own time is known.
    """

    count: int
    last_step: int
    own_count: int
    own_first_step: int
    own_last_step: int


def describe_median_steps(of: MedianSteps | None) -> str:
    """Return which steps the medians of a table of ranks are of; empty where nothing is known.

    >>> describe_median_steps(MedianSteps(32, 159, 32, 128, 159))
    "medians of each rank's last 32 steps, to step 159"
    >>> describe_median_steps(MedianSteps(32, 159, 12, 40, 150))
    "medians of each rank's last 32 steps, to step 159; own time of 12 measured steps, 40-150"
    """
    if of is None:
        return ""
    text = f"medians of each rank's last {of.count} step{'' if of.count == 1 else 's'}, to step {of.last_step}"
    if (of.own_count, of.own_last_step) == (of.count, of.last_step) or not of.own_count:
        return text
    own = f"step {of.own_last_step}" if of.own_count == 1 else f"steps, {of.own_first_step}-{of.own_last_step}"
    return f"{text}; own time of {of.own_count} measured {own}"


class RankMedians(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Medians of the ranks that were compared, in columns. Never changed."""

    #: Numbers of the ranks, ascending, shape (ranks).
    ranks: tuple[int, ...] = ()
    #: Columns of that shape by field of RankSnapshot.
    columns: Mapping[str, Known] = {}
    #: Columns of that shape by phase, in ns.
    phases_ns: Mapping[str, Known] = {}
    #: Waiting in a step that no rank is charged, in ns; None where it is not known.
    wait_untraced_ns: float | None = None
    #: The steps that the medians are of; None where no step is known.
    of_steps: MedianSteps | None = None

    @classmethod
    def compute(cls, series: StepSeries, slowdowns: Floats, steps: int) -> "RankMedians":
        """Return the medians over the last `steps` steps; `slowdowns` are those of the ranks, shape (ranks,)."""

        def read_medians(cells: Cells) -> Known:
            return _read(medians_of_last(cells, steps))

        caused_ns, untraced_ns = series.wait_caused_ns, series.wait_untraced_ns
        caused = [None] * len(series.ranks) if caused_ns is None else _read(_medians_of_caused(caused_ns))
        untraced = None if untraced_ns is None else _read(_medians_of_caused(untraced_ns[:, np.newaxis]))[0]
        columns = {
            "step_ns_median": read_medians(series.step_ns),
            "own_ns_median": read_medians(series.own_ns),
            "slowdown_ratio": _read(slowdowns),
            "wait_caused_ns_median": caused,
        }
        phases_ns = {name: read_medians(values) for name, values in series.phases_ns.items()}
        return cls(series.ranks, columns, phases_ns, untraced, _find_steps(series, steps))

    def of(self, rank: int) -> Mapping[str, Any]:
        """Return the values of one rank by field of RankSnapshot; empty for a rank that was not compared."""
        place = self._find(rank)
        if place is None:
            return {}
        phases_ns = {name: values[place] for name, values in self.phases_ns.items() if values[place] is not None}
        return {"phases_ns_median": phases_ns, **{name: values[place] for name, values in self.columns.items()}}

    def summary_of(self, rank: int) -> Mapping[str, Any]:
        """Return the same without the phases."""
        place = self._find(rank)
        return {} if place is None else {name: values[place] for name, values in self.columns.items()}

    def step_ns_median(self, rank: int) -> float | None:
        """Return the median step of one rank, in ns; None where it is not known."""
        place = self._find(rank)
        return None if place is None else self.columns["step_ns_median"][place]

    def _find(self, rank: int) -> int | None:
        place = bisect_left(self.ranks, rank)
        return place if place < len(self.ranks) and self.ranks[place] == rank else None


def _find_steps(series: StepSeries, steps: int) -> MedianSteps | None:
    known, own = (_rows_of(cells)[-steps:] for cells in (series.step_ns, series.own_ns))
    if not len(known):
        return None
    of_step, of_own = series.steps[known].tolist(), series.steps[own].tolist() or [0]
    return MedianSteps(len(known), of_step[-1], len(own), of_own[0], of_own[-1])


def _rows_of(cells: Floats) -> Ints:
    """Return the rows in which any rank's value is known."""
    return np.flatnonzero(~np.isnan(cells).all(axis=1))


def _medians_of_caused(caused_ns: Floats) -> Floats:
    """Return the median of the last CAUSED_STEPS known values of every column, NaN of fewer than CAUSED_STEPS_MIN."""
    medians = medians_of_last(caused_ns, CAUSED_STEPS)
    return np.where(np.count_nonzero(~np.isnan(caused_ns), axis=0) < CAUSED_STEPS_MIN, np.nan, medians)


def _read(values: Floats) -> Known:
    known: list[float | None] = values.tolist()
    for place in np.flatnonzero(np.isnan(values)).tolist():
        known[place] = None
    return known


NO_MEDIANS: Final = RankMedians()
"""The medians before the first detection pass."""
