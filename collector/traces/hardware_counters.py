"""Sum the hardware counters of kernels, as CUPTI's range profiler measures them for torch's `profiler_metrics`.

With a range for each kernel (`profiler_measure_per_kernel=True`) a device's ranges are in the order of its launches;
their times mean nothing, for Kineto splits the session evenly. So the n-th range is that of the n-th launch where there
is one device and as many launches as ranges; otherwise no operator is named.
"""

import re
from collections.abc import Sequence

import numpy as np

from rankscope.collector.traces.report import CounterRow, CounterSum
from rankscope.measure.kineto import LAUNCHES, NONE, Category, Ints
from rankscope.measure.rank_view import RankView

COUNTER_ROWS_MAX = 10_000
"""Rows of one trace, those of the most ranges: about 10 MB of JSON with ten counters."""
_LAUNCHES_KERNEL = re.compile(r"^(?:cudaLaunch(?:Cooperative)?Kernel|cuLaunch(?:Cooperative)?Kernel)")
_ADDS_UP = ".sum"


def sum_counters(view: RankView) -> tuple[list[CounterRow], list[str]]:
    """Return the counters by kernel and operator, the most ranges first, and warnings; empty without ranges."""
    rows = view.trace.rows(Category.COUNTERS)
    if not len(rows):
        return [], []
    operators, warnings = _find_operators(view, rows)
    found: dict[tuple[str, str | None], list[int]] = {}
    for row, operator in zip(rows.tolist(), operators, strict=True):
        found.setdefault((view.trace.name(row), operator), []).append(row)
    table = [
        CounterRow(name=name, operator=operator, count=len(mine), counters=_sum_each(view, mine))
        for (name, operator), mine in found.items()
    ]
    table.sort(key=lambda one: (-one.count, one.name, one.operator or ""))
    left_out = len(table) - COUNTER_ROWS_MAX
    if left_out > 0:
        warnings.append(f"{left_out:,} rows of hardware counters left out: {COUNTER_ROWS_MAX:,} are listed")
    return table[:COUNTER_ROWS_MAX], warnings


def _sum_each(view: RankView, rows: Sequence[int]) -> list[CounterSum]:
    values: dict[str, list[float]] = {}
    for row in rows:
        for name, value in view.trace.counters.get(row, {}).items():
            values.setdefault(name, []).append(value)
    return [
        CounterSum(
            name=name, mean=sum(mine) / len(mine), min=min(mine), max=max(mine),
            total=sum(mine) if name.endswith(_ADDS_UP) else None,
        )
        for name, mine in sorted(values.items())
    ]  # fmt: skip


def _find_operators(view: RankView, rows: Ints) -> tuple[list[str | None], list[str]]:
    """Return the innermost operator that launched the kernel of each range, None where it is not known, and why."""
    calls = view.trace.rows_named(view.trace.rows(*LAUNCHES), _LAUNCHES_KERNEL.match)
    devices = len({view.trace.threads[code][0] for code in np.unique(view.events.thread[rows]).tolist()})
    if devices > 1 or len(calls) != len(rows):
        where = f"{devices} devices" if devices > 1 else f"{len(calls):,} launches of kernels in the trace"
        return [None] * len(rows), [
            f"{len(rows):,} ranges of hardware counters, but {where}: which operator launched which kernel is not known"
        ]
    operators = view.host.find_callers(calls)
    return [view.trace.name(row) if row != NONE else None for row in operators.tolist()], []
