"""Measure how fast a run is in its first steps, so that later runs of the same work can be compared with it. Pure.

The first WARMUP_STEPS compile, allocate and fill caches, and do not count. Of the START_STEPS after them the usual ones
do, as in a comparison of two runs (docs/compare.md): those up to USUAL_RATIO_MAX times their median. All runs are
measured in the same steps, so that what a run does later (longer sequences, a fuller disk) is no difference between
them.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from rankscope.collector.steps.equal_work import Work
from rankscope.collector.steps.step_aggregates import PATIENCE_STEPS
from rankscope.collector.steps.step_series import Floats, Ints, StepSeries
from rankscope.measure.records import WindowBreakdown

WARMUP_STEPS: Final = 10
"""First steps that are left out: compiling and filling caches is not what a run trains like."""
START_STEPS: Final = 128
"""Steps that are measured: the mean of so many is known to 2 % where steps vary by a fifth, and 256 are kept."""
KNOWN_MIN: Final = 100
"""Of these so many must be known: the first ones may have left the table of a collector that was started later."""
USUAL_RATIO_MAX: Final = 1.5
"""A step that is longer than this times the median holds something that is not in each step: a checkpoint, a stall, a
batch that came late. Few of them decide a mean, and how many there were is chance."""
BETWEEN_PHASES: Final = "between phases"
USES: Final = ("compute", "exposed communication", "copies", "data wait", "idle without data wait")


class RunStart(msgspec.Struct, frozen=True, kw_only=True):
    """The first steps of an attempt of a run, from `first_step` to `last_step`. `step_ns` is the mean usual step, the
    median over the ranks of each, and `phases_ns` its phases; with `between phases` they sum to it. `uses_ns` is the
    same by use of the device, by the profiler windows so far; empty without windows. `begun_wall_s` is when the first
    rank process began, in seconds since 1970. `versions` are those of torch, Python and the agent.
    """

    begun_wall_s: float
    work: Work
    first_step: int
    last_step: int
    steps: int
    step_ns: float
    phases_ns: Mapping[str, float] = {}
    uses_ns: Mapping[str, float] = {}
    nodes: tuple[str, ...] = ()
    versions: Mapping[str, tuple[str, ...]] = {}
    was_disturbed: bool = False
    """Whether a finding of severity `warning` or `critical` was open by then."""


class EarlierRun(NamedTuple):
    """A run of the store, by its id, and its start."""

    run_id: str
    start: RunStart


class MeasuredStart(NamedTuple):
    """What the steps of a start are: first, last and number, mean in ns, and that by phase and use."""

    first_step: int
    last_step: int
    steps: int
    step_ns: float
    phases_ns: Mapping[str, float]
    uses_ns: Mapping[str, float]


def find_start_rows(series: StepSeries) -> Ints:
    """Return the rows of the steps of a start that all ranks have reported, shape (n,) with n at least KNOWN_MIN; empty
    as long as a rank is likely to report one of them, and where fewer are in the series.
    """
    steps, end = series.steps, WARMUP_STEPS + START_STEPS
    if not len(steps) or steps[-1] < end + PATIENCE_STEPS or steps[0] > end - KNOWN_MIN:
        return np.empty(0, dtype=np.int64)
    rows = np.flatnonzero((steps >= WARMUP_STEPS) & (steps < end))
    rows = rows[~np.isnan(series.step_ns[rows]).any(axis=1)]
    return rows if len(rows) >= KNOWN_MIN else rows[:0]


def measure_start(series: StepSeries, rows: Ints, breakdowns: Sequence[WindowBreakdown]) -> MeasuredStart:
    """Return how long the steps of these rows took, at least one. `breakdowns` are those of all ranks so far."""
    step_ns = np.median(series.step_ns[rows], axis=1)
    is_usual = step_ns <= USUAL_RATIO_MAX * np.median(step_ns)
    usual = rows[is_usual]
    mean_ns = float(step_ns[is_usual].mean())
    phases_ns = {name: _mean_median(cells[usual]) for name, cells in series.phases_ns.items()}
    phases_ns[BETWEEN_PHASES] = mean_ns - sum(phases_ns.values())
    uses_ns = split_by_use(mean_ns, phases_ns.get("data", 0.0), breakdowns)
    first, last = series.steps[rows[[0, -1]]].tolist()
    return MeasuredStart(first, last, len(usual), mean_ns, phases_ns, uses_ns)


def split_by_use(step_ns: float, data_ns: float, breakdowns: Sequence[WindowBreakdown]) -> dict[str, float]:
    """Return how a step of this length divides by use of the device, as the windows do, in ns by name of USES, which
    sum to it; empty without windows. `data_ns` of it was in the phase `data`; what the device idled of that is data
    wait.
    """
    window_ns = sum(one.window_ns for one in breakdowns)
    if not window_ns:
        return {}
    scale = step_ns / window_ns
    compute_ns = scale * sum(one.compute_ns for one in breakdowns)
    exposed_ns = scale * sum(one.exposed_communication_ns for one in breakdowns)
    copies_ns = scale * sum(one.copy_ns for one in breakdowns)
    data_wait_ns = min(data_ns, scale * sum(one.idle_ns for one in breakdowns))
    rest_ns = step_ns - compute_ns - exposed_ns - copies_ns - data_wait_ns
    return dict(zip(USES, (compute_ns, exposed_ns, copies_ns, data_wait_ns, rest_ns), strict=True))


def _mean_median(values: Floats) -> float:
    """Return the mean over the steps of the median over the ranks, shape (n, ranks) to a number; a step in
    which a rank had no such phase counts as 0.
    """
    known = values[~np.isnan(values).any(axis=1)]
    return float(np.median(known, axis=1).sum() / len(values)) if len(known) else 0.0
