"""Compute each rank's medians over its last steps after a detection pass, for the snapshot of the run. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from rankscope.collector.steps.step_series import Cells, Floats, StepSeries, medians_of_last

Known = Sequence[float | None]
"""One value a rank, None where it is not known."""


class RankMedians:
    """Medians over the last `steps` steps by rank. Never changed."""

    def __init__(
        self,
        series: StepSeries | None,
        slowdowns: Floats | None,
        steps: int,
    ) -> None:
        self._columns: dict[str, Known] = {}
        self._phases_ns: dict[str, Known] = {}
        self._place: dict[int, int] = {}
        if series is None or slowdowns is None:
            return
        self._place = {number: place for place, number in enumerate(series.ranks)}

        def read_medians(cells: Cells) -> Known:
            return _read(medians_of_last(cells, steps))

        caused_ns = series.wait_caused_ns
        self._columns = {
            "step_ns_median": read_medians(series.step_ns),
            "self_ns_median": read_medians(series.self_ns),
            "slowdown_ratio": _read(slowdowns),
            "wait_caused_ns_median": [None] * len(series.ranks) if caused_ns is None else read_medians(caused_ns),
        }
        self._phases_ns = {name: read_medians(values) for name, values in series.phases_ns.items()}

    def of(self, rank: int) -> Mapping[str, Any]:
        """Return the values of one rank by field of RankSnapshot; empty for a rank that was not compared."""
        place = self._place.get(rank)
        if place is None:
            return {}
        phases_ns = {name: values[place] for name, values in self._phases_ns.items() if values[place] is not None}
        return {"phases_ns_median": phases_ns, **self.summary_of(rank)}

    def summary_of(self, rank: int) -> Mapping[str, Any]:
        """Return the same without the phases."""
        place = self._place.get(rank)
        return {} if place is None else {name: values[place] for name, values in self._columns.items()}

    def step_ns_median(self, rank: int) -> float | None:
        """Return the median step of one rank, in ns; None where it is not known."""
        place = self._place.get(rank)
        return None if place is None else self._columns["step_ns_median"][place]


def _read(values: Floats) -> Known:
    known: list[float | None] = values.tolist()
    for place in np.flatnonzero(np.isnan(values)).tolist():
        known[place] = None
    return known


NO_MEDIANS: Final = RankMedians(None, None, 1)
"""The medians before the first detection pass."""
