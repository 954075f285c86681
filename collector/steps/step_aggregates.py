"""Aggregate finished steps for the history: one row a step for all ranks together. Pure.

A step is finished once every rank has reported it, or PATIENCE_STEPS later steps have come. Lines come in the order of
the steps, each once. What the median hides is in `longest_ns` and `slowest_rank`.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np

from rankscope.collector.steps.step_series import Cells, Floats, Ints

PATIENCE_STEPS: Final = 32
"""Steps to wait for a rank that has not reported; a rank that is later has usually died. At 16,384 ranks these steps
take 4 MB."""

NS_MAX: Final = 2**63 - 1
"""The largest integer of SQLite; a reported time may exceed it once rounded as a float."""


class StepAggregate(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a run: `attempt` and `step` name it, `wall_s` is when the collector had it (seconds since 1970).

    Over the `ranks` that have reported it: the median and the longest duration, and the lowest rank with the longest.
    `phases_ns` are medians by phase. In synchronous training all durations are nearly equal: the findings say which
    rank delayed the others.
    """

    attempt: int
    step: int
    wall_s: float
    ranks: int
    median_ns: int
    longest_ns: int
    slowest_rank: int
    phases_ns: Mapping[str, int] = {}


def aggregate_steps(
    attempt: int, wall_s: float, steps: Ints, durations_ns: Floats, phases_ns: Mapping[str, Cells]
) -> list[StepAggregate]:
    """Return a line for each step that any rank has reported. Shapes: steps (n,), durations and each phase (n, ranks)
    in ns, NaN where a rank has not reported.
    """
    rows = np.flatnonzero(~np.isnan(durations_ns).all(axis=1))
    durations_ns = durations_ns[rows]
    if not len(rows):
        return []
    known = (~np.isnan(durations_ns)).sum(axis=1).tolist()
    medians, slowest = _medians(durations_ns), np.nanargmax(durations_ns, axis=1)
    longest = durations_ns[np.arange(len(rows)), slowest]
    phases = {name: _medians(values[rows]) for name, values in phases_ns.items()}
    return [
        StepAggregate(
            attempt=attempt,
            step=int(steps[row]),
            wall_s=wall_s,
            ranks=known[place],
            median_ns=min(round(medians[place]), NS_MAX),
            longest_ns=min(int(longest[place]), NS_MAX),
            slowest_rank=int(slowest[place]),
            phases_ns={name: round(values[place]) for name, values in phases.items() if not np.isnan(values[place])},
        )
        for place, row in enumerate(rows)
    ]


def _medians(values: Floats) -> list[float]:
    """Return the median of the known values of each row, NaN for a row without any."""
    gaps = np.isnan(values).any(axis=1)
    if not gaps.any():
        return [float(median) for median in np.median(values, axis=1)]
    return [float(np.median(row[~np.isnan(row)])) if not np.isnan(row).all() else float("nan") for row in values]
