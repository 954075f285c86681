"""Compute each rank's medians over its last steps after a detection pass, for the snapshot of the run. Pure."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from rankscope.collector.steps.step_series import Cells, Floats, StepSeries, medians_of_last

Known = Sequence[float | None]
"""One value a rank, None where it is not known."""


class RankMedians(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Medians of the ranks that were compared, in columns. Never changed."""

    #: Numbers of the ranks, ascending, shape (ranks).
    ranks: tuple[int, ...] = ()
    #: Columns of that shape by field of RankSnapshot.
    columns: Mapping[str, Known] = {}
    #: Columns of that shape by phase, in ns.
    phases_ns: Mapping[str, Known] = {}

    @classmethod
    def compute(cls, series: StepSeries, slowdowns: Floats, steps: int) -> "RankMedians":
        """Return the medians over the last `steps` steps; `slowdowns` are those of the ranks, shape (ranks,)."""

        def read_medians(cells: Cells) -> Known:
            return _read(medians_of_last(cells, steps))

        caused_ns = series.wait_caused_ns
        columns = {
            "step_ns_median": read_medians(series.step_ns),
            "self_ns_median": read_medians(series.self_ns),
            "slowdown_ratio": _read(slowdowns),
            "wait_caused_ns_median": [None] * len(series.ranks) if caused_ns is None else read_medians(caused_ns),
        }
        return cls(series.ranks, columns, {name: read_medians(values) for name, values in series.phases_ns.items()})

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


def _read(values: Floats) -> Known:
    known: list[float | None] = values.tolist()
    for place in np.flatnonzero(np.isnan(values)).tolist():
        known[place] = None
    return known


NO_MEDIANS: Final = RankMedians()
"""The medians before the first detection pass."""
