"""Distinguish work that one rank does by itself every so many steps (a log line, a checkpoint, an evaluation) from a
slowness.

A rank is slow in some steps only (`intermittent.py`). It is work of its own, and nothing that is wrong with the rank,
when

    where   most of these steps are longer by at least EXPLAINS of the excess in the phase `other`: after the optimizer
            and before the next batch, where a training loop does what is not training; or in `checkpoint`
    when    nearly all steps that are longer there are every k-th ones, for at most PERIODS_MAX different k, each kept
            up to now

The phases are known of every step, so that both hold of all steps and not only of those in profiler windows.
"""

from typing import Final, NamedTuple

import msgspec
import numpy as np

from rankscope.collector.detect.finding import PERIODIC_WORK, Finding
from rankscope.collector.detect.finding_words import OF_IT
from rankscope.collector.detect.stragglers.persistent import SlowRank
from rankscope.collector.detect.stragglers.root_cause import EXPLAINS, HOST_CPU, SHOWN_BEFORE, UNSEEN_WAIT, Cause
from rankscope.collector.detect.stragglers.storage import describe_saving
from rankscope.collector.detect.suggestions import suggest
from rankscope.collector.detect.view import RunView
from rankscope.collector.steps.step_series import Floats, Ints, StepSeries
from rankscope.measure.records import CHECKPOINT
from rankscope.measure.units import format_duration

SYNC: Final = "host_device_sync"
OWN_CAUSES: Final = frozenset({"unattributed", HOST_CPU, UNSEEN_WAIT, SYNC})
"""Causes that such work has. What the rank's loader, GPU or memory is slow at is no work of its own."""
PERIODS_MAX: Final = 3
"""Kinds of such work at once, as logging, evaluating and saving."""
OCCURRENCES_MIN: Final = 3
"""Least steps of a period: fewer prove none."""
REGULAR_MIN: Final = 0.8
"""Share of the slow steps that are longer in the phase `other`, and share of the steps of a period that are."""
EXPLAINED_MIN: Final = 0.7
"""Share of the longer steps that periods explain: the rest are stalls, which every rank has."""
PARTS_MAX: Final = 4
"""A period may be this part of a distance: where every 10th and every 25th step are longer, only every other of the
25th is no 10th."""
WORK_SHARE_MAX: Final = 0.2
"""Share of the time from which work that comes every few steps is a warning: logging and evaluating are by design."""
DOES: Final = {HOST_CPU: "computing", UNSEEN_WAIT: "off the CPU"}
"""What the training thread does meanwhile, by the cause."""
EXPLAINED_KEPT_MIN: Final = 0.5
"""Both shares of an open finding: a second kind of work has no period that is seen until it has come three times."""


class OwnWork(NamedTuple):
    """Work of one rank: its first step, its `periods` in steps, ascending, by how much a step with it is longer in the
    median, the line or call in which the host waits for its GPU in it, empty where windows have not shown it, the
    clause that says what it saves, empty where it is no save, and what its training thread does, empty where that is
    not known.
    """

    since_step: int
    periods: tuple[int, ...]
    longer_ns: float
    call: str
    saving: str = ""
    doing: str = ""


def find_own_work(view: RunView, slow: SlowRank, cause: Cause, known: Finding | None) -> OwnWork | None:
    """Return the work that explains an intermittently slow rank; None where it is none, or phases are not known.
    `known` is the open finding about the rank.
    """
    if "other" not in view.series.phases_ns or cause.name not in OWN_CAUSES:
        return None
    longer_ns, saves_ns = (
        _find_longer(view.series, slow, name) if name in view.series.phases_ns else np.zeros(len(view.series.steps))
        for name in ("other", CHECKPOINT)
    )
    longer_ns = longer_ns + saves_ns
    is_open = known is not None and known.kind == PERIODIC_WORK
    is_longer = longer_ns >= EXPLAINS * max(1.0, slow.excess_ns)
    is_longer &= view.series.steps >= slow.since_step
    steps = view.series.steps[is_longer]
    if np.mean(np.isin(slow.slow_steps, steps)) < (EXPLAINED_KEPT_MIN if is_open else REGULAR_MIN):
        return None
    periods = find_periods(steps, view.series.steps, EXPLAINED_KEPT_MIN if is_open else EXPLAINED_MIN)
    if not periods:
        return None
    call = cause.because.partition(OF_IT)[2].partition(SHOWN_BEFORE)[0] if cause.name == SYNC else ""
    saving = ""
    if float(np.median(saves_ns[is_longer])) >= EXPLAINS * float(np.median(longer_ns[is_longer])):
        found = describe_saving(slow.rank, slow.peers.ranks, view.samples.saves)
        saving = "saving a checkpoint" if found is None else found.because
    each_ns = float(np.median(longer_ns[is_longer]))
    return OwnWork(min(periods.values()), tuple(periods), each_ns, call, saving, DOES.get(cause.name, ""))


def _find_longer(series: StepSeries, slow: SlowRank, phase: str) -> Floats:
    """Return by how much a phase of the rank is longer than its peers' in each step, in ns, shape (n,); 0 where that is
    not known.
    """
    rows, values = np.arange(len(series.steps)), series.phases_ns[phase]
    peers = np.median(values[np.ix_(rows, series.columns_of(slow.peers.ranks))], axis=1)
    return np.asarray(np.nan_to_num(values[rows, series.column_of(slow.rank)] - peers, nan=0.0))


def find_periods(steps: Ints, kept: Ints, explained_min: float = EXPLAINED_MIN) -> dict[int, int]:
    """Return the periods that explain at least this share of the steps, ascending, with the first step of each; none
    where they do not. `kept` are all steps that are known, of which older ones may be left out.

    >>> find_periods(np.array([10, 20, 25, 30, 40, 50, 60, 70, 75, 80, 90, 100]), np.arange(105))
    {10: 10, 25: 25}
    """
    remaining = steps
    periods: dict[int, int] = {}
    for _ in range(PERIODS_MAX):
        found = _find_most_common(steps, remaining, kept)
        if found is None:
            break
        period, offset = found
        periods[period] = int(steps[steps % period == offset][0])
        remaining = remaining[remaining % period != offset]
    is_explained = bool(periods) and len(remaining) <= (1 - explained_min) * len(steps)
    return dict(sorted(periods.items())) if is_explained else {}


def _find_most_common(steps: Ints, remaining: Ints, kept: Ints) -> tuple[int, int] | None:
    """Return the period, with its offset, that explains the most of the remaining steps; of equal ones the shortest."""
    distances = np.concatenate([np.diff(remaining), remaining[2:] - remaining[:-2]])
    parts = np.concatenate([distances[distances % part == 0] // part for part in range(1, PARTS_MAX + 1)])
    best, most = None, 0
    for period in np.unique(parts[parts > 1]).tolist():
        offsets, counts = np.unique(remaining % period, return_counts=True)
        offset, count = int(offsets[counts.argmax()]), int(counts.max())
        members = steps[steps % period == offset]
        expected = np.count_nonzero((kept >= members[0]) & (kept % period == offset))
        if count > most and len(members) >= max(OCCURRENCES_MIN, REGULAR_MIN * expected):
            best, most = (period, offset), count
    return best


def describe_own_work(
    finding: Finding, slow: SlowRank, work: OwnWork, cost: float, *, known: Finding | None = None
) -> Finding:
    """Return the finding about an intermittent straggler as one about work of its own. It has begun with the `known`
    one.
    """
    since_step = work.since_step
    if known is not None and known.since_step is not None:
        since_step = min(since_step, known.since_step)
    finding = msgspec.structs.replace(finding, since_step=since_step)
    return msgspec.structs.replace(
        finding,
        kind=PERIODIC_WORK,
        cause=PERIODIC_WORK,
        severity="info" if 1 - 1 / max(1.0, cost) < WORK_SHARE_MAX else "warning",
        suggestion=suggest(PERIODIC_WORK, PERIODIC_WORK),
        what=f"work of its own {_name_periods(work)}",
        why=_write_why(slow, work),
        run_slowdown_ratio=cost,
        cost_of="",
        evidence={**finding.evidence, "period_steps": float(work.periods[0]), "longer_ns": work.longer_ns},
    )


def _name_periods(work: OwnWork) -> str:
    *first, last = (f"every {period} steps" for period in work.periods)
    return " and ".join(part for part in (", ".join(first), last) if part)


def _write_why(slow: SlowRank, work: OwnWork) -> str:
    whose, what = ("its", "peer") if slow.peers.do_same_work else ("the other", "rank")
    peers = f"{whose} {slow.peers.size} {what}{'' if slow.peers.size == 1 else 's'}"
    where = work.saving or "between optimizer and next batch"
    text = f"{where}, {format_duration(work.longer_ns)} longer than on {peers}"
    if work.call:
        return f"{text}; its host waiting for the GPU at {work.call}"
    return f"{text}; its training thread {work.doing}" if work.doing else text
