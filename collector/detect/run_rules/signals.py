"""Compute the signals that the rules over a whole run judge: shares of the time, as most of its ranks have them.

The share that most ranks have is the lower median over them: more than half have at least that much, and of two ranks
both. So a single rank, however slow, makes no finding about the run. In a large run RANKS_SAMPLED_MAX ranks are read.

Shares of the device's time come from full profiler windows, of which every rank read must have WINDOWS_MIN; windows of
GPUs that have ended, or are old, do not count. The steps of a window take longer than others, because the profiler
slows the host: the difference is subtracted from the idle time. Communication counts only as data movement: per step at
most the exposed transfer of the rank's groups, which excludes waits for other ranks.

The first `steps` steps (start-up, compilation, the first batches) do not count. The phase of the data is exact in every
step, and only the first batches wait for the start of a loader: of a young run it is known from FIRST_STEPS more on.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median, median_high, median_low
from typing import Final, NamedTuple

import numpy as np

from rankscope.collector.detect.blocking_calls import describe_kind, find_costliest
from rankscope.collector.detect.finding import Abstain
from rankscope.collector.detect.finding_words import OF_IT
from rankscope.collector.detect.run_rules.thresholds import percent
from rankscope.collector.detect.statistics.excess import KNOWN_MIN
from rankscope.collector.detect.stragglers.host_times import share_of_time, time_per_step
from rankscope.collector.detect.view import AllocatorCounts, RunView, TimeCount
from rankscope.collector.steps.step_series import Floats, medians_of_last
from rankscope.measure.records import WindowBreakdown, WindowSynchronizations

RANKS_SAMPLED_MAX: Final = 64
"""Ranks read at most, evenly spread: the share of ranks that reach a value is then within 6 % (one standard error)."""
WINDOWS_MIN: Final = 3
"""One window may hold a checkpoint; the median of three does not."""
WINDOWS_READ: Final = 5
"""Only the last windows: they may be minutes apart."""
INTERVALS_MIN: Final = 4
INTERVALS_READ: Final = 8
"""Intervals between samples of the allocator, which come every few seconds: eight are about a minute."""


FIRST_STEPS: Final = 3
"""The first steps of a run, whose first batches wait for the loader's start, are nobody's."""
FIRST_PASSES: Final = 3
"""A run with fewer steps than this many times those that are judged has hardly been judged before."""


class RunSignals(NamedTuple):
    """Shares of the time, 0 to 1; None: not known.

    `idle`, `moving` and `hideable` are of GPUs only: on a CPU compute and communication share the cores. `moving` is
    exposed communication without waits; `hideable` the part of it that compute could hide, `overlap` the hidden part of
    all communication. `retrying` and `churning` are shares of the intervals between samples: those in which the
    allocator ran out of memory, and those in which it both allocated from the driver and freed to it; `retries` counts
    over all ranks read. `has_windows`: whether enough ranks have enough windows; `absent` why GPUs' windows do not
    count, None where those of enough ranks do; `since_step` is the first step used, `older_than` the same where no pass
    can have judged those before it.
    `computing` is the CPU time of the process, all threads together, over the time: of one core, so it may be more than
    1; more than half of the ranks do not exceed it. `queueing` is the wait of the training thread for a CPU core,
    `throttled` the share of its periods in which a CPU limit stops a rank, and `machine` the name of the machine where
    the run has one only. `has_gpus`: whether any rank has one.
    `pausing` are the pauses of Python's garbage collector in all ranks together over the time, so it may be more than
    1, and `beyond` the share of the steps' time that is beyond steps of the median.
    `too_few`: why nothing but `data` counts yet, empty where all does.
    `synchronizing` is the part of `idle` around calls in which the host waits for its GPU, at most, and
    `synchronizes_in` the calls with most of it, as text that ends a sentence, empty if there are none.
    `copying` is the time in which GPUs copied from their hosts and no kernel ran, `pageable` the part of it from memory
    that is not pinned, and `copied_bytes` what was copied in a step.
    """

    since_step: int
    step_ns: float
    has_windows: bool
    data: float | None
    idle: float | None
    moving: float | None
    hideable: float | None
    overlap: float | None
    retrying: float | None
    churning: float | None
    retries: int
    absent: str | None = None
    synchronizing: float | None = None
    synchronizes_in: str = ""
    older_than: int | None = None
    computing: float | None = None
    queueing: float | None = None
    throttled: float | None = None
    machine: str | None = None
    has_gpus: bool = True
    pausing: float | None = None
    beyond: float = 0.0
    too_few: str = ""
    copying: float | None = None
    pageable: float | None = None
    copied_bytes: float | None = None


def read_signals(view: RunView, steps: int) -> RunSignals | Abstain:
    """Compute the signals of a run over its last steps; abstain when it has made no more than `steps` after its first
    ones. Before twice `steps` they have `too_few`.
    """
    series = view.series
    made = int(series.steps[-1]) + 1 if len(series.steps) else 0
    are_few = made < 2 * steps or len(series.steps) < steps
    too_few = f"{made} steps are known, {2 * steps} are needed to judge the run as a whole" if are_few else ""
    if made < FIRST_STEPS + steps or len(series.steps) < steps:
        return Abstain(too_few)
    # An odd stride reaches all places of a node; an even one might read only the first rank of each.
    sampled = series.ranks[:: -(-len(series.ranks) // RANKS_SAMPLED_MAX) | 1]
    usual_ns = _usual_steps(view, sampled, steps)
    if not usual_ns:
        return Abstain("no rank's steps are known")
    windows, moved_ns = _find_windows(view, sampled, steps), _find_moved(view, sampled, steps)
    shares = [
        _read_shares(seen, usual_ns[rank], moved_ns.get(rank), has_gpu=bool(view.samples.devices.get(rank)))
        for rank, seen in windows.items()
        if rank in usual_ns
    ]
    firsts = [seen[0].first_step for seen in windows.values()]
    intervals = [one for rank in sampled if (one := _read_intervals(view.samples.allocators.get(rank, ()), steps))]
    since_step = min([int(series.steps[-steps]), *firsts])
    latest_ns = _find_latest(view, sampled)
    return RunSignals(
        since_step=since_step,
        older_than=since_step if int(series.steps[-1]) < FIRST_PASSES * steps else None,
        step_ns=median(usual_ns.values()),
        has_windows=len(shares) >= KNOWN_MIN * len(sampled),
        data=_data_share(view, sampled, steps),
        idle=_of_most((one.idle for one in shares), len(sampled)),
        moving=_of_most((one.moving for one in shares), len(sampled)),
        hideable=_of_most((one.hideable for one in shares), len(sampled)),
        overlap=_at_most((one.overlap for one in shares), len(sampled)),
        retrying=_of_most((one.retrying for one in intervals), len(sampled)),
        churning=_of_most((one.churning for one in intervals), len(sampled)),
        retries=sum(one.retries for one in intervals),
        absent=_find_absence_of_most(view, sampled),
        computing=_at_most(_host_shares(view, view.samples.process_cpu, usual_ns, steps), len(sampled)),
        queueing=_of_most(_host_shares(view, view.samples.core_waits, usual_ns, steps), len(sampled)),
        throttled=_of_most((_find_throttled(view, rank) for rank in sampled), len(sampled)),
        machine=_find_only_machine(view),
        has_gpus=_has_gpus(view, sampled),
        pausing=_find_pausing(view, sampled, steps, latest_ns),
        beyond=_find_beyond(latest_ns),
        too_few=too_few,
        copying=_of_most((one.copying for one in shares), len(sampled)),
        pageable=_of_most((one.pageable for one in shares), len(sampled)),
        copied_bytes=_of_most((one.copied_bytes for one in shares), len(sampled)),
        **_read_synchronizations(view, windows, steps, usual_ns, len(sampled))._asdict(),
    )


def _has_gpus(view: RunView, sampled: Sequence[int]) -> bool:
    """Return whether any of these ranks has a GPU, also one that NVML does not show."""
    samples = view.samples
    return view.series.is_by_device or any(
        samples.devices.get(rank) or len(samples.allocators.get(rank, ())) for rank in sampled
    )


def _find_absence_of_most(view: RunView, sampled: Sequence[int]) -> str | None:
    """Return why windows do not count, where too few ranks are left for a verdict; None where enough are."""
    reasons = [why for rank in sampled if (why := _find_absence(view, rank)) is not None]
    are_enough = len(sampled) - len(reasons) >= KNOWN_MIN * len(sampled)
    return None if are_enough else reasons[0]


def _find_absence(view: RunView, rank: int) -> str | None:
    """Return why the windows of a rank with a GPU do not count. On a CPU nothing of them is used but that there are
    some.
    """
    return view.samples.absent_ratios.get(rank) if view.samples.devices.get(rank) else None


def _known(values: Iterable[float | None], ranks: int) -> list[float]:
    """Return the known values; none when they are not known of KNOWN_MIN of the ranks."""
    known = [value for value in values if value is not None]
    return known if len(known) >= KNOWN_MIN * ranks else []


def _of_most(values: Iterable[float | None], ranks: int) -> float | None:
    """Return the value that more than half of the ranks reach."""
    known = _known(values, ranks)
    return median_low(known) if known else None


def _at_most(values: Iterable[float | None], ranks: int) -> float | None:
    """Return the value that more than half of the ranks do not exceed."""
    known = _known(values, ranks)
    return median_high(known) if known else None


# -- the host's time --------------------------------------------------------------------------------------------------


def _usual_steps(view: RunView, sampled: Sequence[int], steps: int) -> dict[int, float]:
    """Return the median step of each rank that has any, in ns."""
    usual_ns = medians_of_last(view.series.step_ns[-steps:, view.series.columns_of(sampled)], steps)
    return {rank: found for rank, found in zip(sampled, usual_ns.tolist(), strict=True) if not math.isnan(found)}


def _data_share(view: RunView, sampled: Sequence[int], steps: int) -> float | None:
    """Return the data phase over the step, the smaller of both halves: one long wait (a new epoch) is in one only."""
    columns = view.series.columns_of(sampled)
    data_ns = view.series.phases_ns.get("data")
    if data_ns is None:
        return None
    data_ns, step_ns = data_ns[-steps:, columns], view.series.step_ns[-steps:, columns]
    middle = steps // 2
    halves = [_ratio_of_sums(data_ns[rows], step_ns[rows]) for rows in (slice(middle), slice(middle, None))]
    shares = np.minimum(*halves)
    return _of_most(shares[~np.isnan(shares)].tolist(), len(sampled))


def _host_shares(
    view: RunView, counts: Mapping[int, Sequence[TimeCount]], ranks: Iterable[int], steps: int
) -> list[float | None]:
    """Return a time of the process over all that has passed, of each of these ranks."""
    clock = view.samples.host_clock
    return [share_of_time(counts.get(rank, ()), clock.get(rank, ()), steps) for rank in ranks]


def _find_pausing(view: RunView, sampled: Sequence[int], steps: int, step_ns: Floats) -> float | None:
    """Return the pauses of the garbage collector of all ranks over the time, if all pause as long as the median rank,
    so that those of one rank do not count; None where too few are known. Pauses in the first `steps` of the run are its
    start-up's. `step_ns`: see `_find_latest`.
    """
    if not len(step_ns):
        return None
    since = max(steps, int(view.series.steps[view.series.earlier_count]))
    known = [time_per_step(view.samples.gc_pauses.get(rank, ()), since) for rank in sampled]
    pauses_ns = _known(known, len(sampled))
    return median_low(pauses_ns) * len(view.series.ranks) / max(1.0, float(np.mean(step_ns))) if pauses_ns else None


def _find_beyond(step_ns: Floats) -> float:
    """Return the share of the time that steps take beyond their median."""
    return max(0.0, 1.0 - float(np.median(step_ns)) / max(1.0, float(np.mean(step_ns)))) if len(step_ns) else 0.0


def _find_latest(view: RunView, sampled: Sequence[int]) -> Floats:
    """Return what the latest steps took in the mean of these ranks, in ns, without those of before of which long ones
    are kept for longer. Their sum is the time that passed (`RunView.mean_ns`).
    """
    rows = np.arange(view.series.earlier_count, len(view.series.steps))
    step_ns: Floats = view.series.step_ns[np.ix_(rows, view.series.columns_of(sampled))].mean(axis=1)
    return step_ns[~np.isnan(step_ns)]


def _find_throttled(view: RunView, rank: int) -> float | None:
    host = view.samples.hosts.get(rank)
    return None if host is None else host.throttled_ratio


def _find_only_machine(view: RunView) -> str | None:
    machines = set(view.nodes.values())
    return machines.pop() if len(machines) == 1 else None


def _ratio_of_sums(part: Floats, whole: Floats) -> Floats:
    """Return the ratio per column over the rows where both are known, NaN where none is; shape (n, m) to (m,)."""
    known = ~np.isnan(part) & ~np.isnan(whole)
    part_sum, whole_sum = (np.where(known, values, 0.0).sum(axis=0) for values in (part, whole))
    ratio: Floats = np.divide(part_sum, whole_sum, out=np.full(part.shape[1], np.nan), where=whole_sum > 0)
    return ratio


# -- the device's time ------------------------------------------------------------------------------------------------


class _RankShares(NamedTuple):
    """The shares of one rank, as in RunSignals."""

    idle: float | None
    moving: float | None
    hideable: float | None
    overlap: float | None
    copying: float | None
    pageable: float | None
    copied_bytes: float | None


def _find_windows(view: RunView, sampled: Sequence[int], steps: int) -> Mapping[int, Sequence[WindowBreakdown]]:
    """Return the last windows of each rank that has enough of them."""
    found = {
        rank: [
            window
            for window in view.samples.breakdowns.get(rank, ())
            if window.first_step >= steps and window.step_count > 0 and window.window_ns > 0
        ][-WINDOWS_READ:]
        for rank in sampled
        if _find_absence(view, rank) is None
    }
    return {rank: windows for rank, windows in found.items() if len(windows) >= WINDOWS_MIN}


def _read_shares(
    windows: Sequence[WindowBreakdown], usual_ns: float, moved_ns: float | None, *, has_gpu: bool
) -> _RankShares:
    overlaps = [window.overlap_ns / window.communication_ns for window in windows if window.communication_ns > 0]
    moving = hideable = None
    if has_gpu and moved_ns is not None:
        exposed = median(window.exposed_communication_ns / window.window_ns for window in windows)
        computing = median(window.compute_ns / window.window_ns for window in windows)
        alone = median((window.compute_ns - window.overlap_ns) / window.window_ns for window in windows)
        moving = min(exposed, moved_ns / usual_ns)
        # Overlapped, the longer of the two sets the pace: only with enough compute can all be hidden.
        hideable = min(moving, alone) if computing >= moving else 0.0
    copies = [(one.host_copies, one) for one in windows if one.host_copies is not None]
    are_known = len(copies) == len(windows)
    is_told, is_sized = (
        are_known and not any(getattr(one, name) for one, _ in copies) for name in ("untold", "unsized")
    )
    return _RankShares(
        copying=median(one.exposed_ns / window.window_ns for one, window in copies) if are_known else None,
        pageable=median(one.pageable_exposed_ns / window.window_ns for one, window in copies) if is_told else None,
        copied_bytes=median(one.bytes / window.step_count for one, window in copies) if is_sized else None,
        idle=median(_idle_share(window, usual_ns) for window in windows) if has_gpu else None,
        moving=moving,
        hideable=hideable,
        overlap=median(overlaps) if overlaps else None,
    )


def _idle_share(window: WindowBreakdown, usual_ns: float) -> float:
    """Return the device's idle share in a window, as it would have been without the profiler."""
    step_ns = window.window_ns / window.step_count
    return _share_without_profiler(window.idle_ns / window.step_count, step_ns, usual_ns)


def _share_without_profiler(idle_ns: float, step_ns: float, usual_ns: float) -> float:
    """Return the share of idle time in a step, which the profiler has made longer than it usually is."""
    stretched_ns = max(0.0, step_ns - usual_ns)
    return max(0.0, idle_ns - stretched_ns) / (step_ns - stretched_ns)


class _Synchronizations(NamedTuple):
    """As in RunSignals."""

    synchronizing: float | None
    synchronizes_in: str


def _read_synchronizations(
    view: RunView,
    breakdowns: Mapping[int, Sequence[WindowBreakdown]],
    steps: int,
    usual_ns: Mapping[int, float],
    sampled: int,
) -> _Synchronizations:
    """Return the idle share around blocking calls on the basis of `idle`, and the costliest of these calls."""
    windows = {
        rank: [
            window
            for window in view.samples.synchronizations.get(rank, ())
            if window.first_step >= steps and window.step_count > 0
        ][-WINDOWS_READ:]
        for rank in breakdowns
        if rank in usual_ns
    }
    shares = [
        _synchronizing_share(found, breakdowns[rank], usual_ns[rank])
        for rank, found in windows.items()
        if len(found) >= WINDOWS_MIN
    ]
    costliest = find_costliest([window for found in windows.values() for window in found])
    where = "" if costliest is None else f"{percent(costliest[1])}{OF_IT}{describe_kind(costliest[0])}"
    return _Synchronizations(_of_most(shares, sampled), where)


def _synchronizing_share(
    windows: Sequence[WindowSynchronizations], breakdowns: Sequence[WindowBreakdown], usual_ns: float
) -> float:
    """Return the idle share around blocking calls, as it would have been without the profiler, at most that of all idle
    time. All of what the profiler stretched is taken from it, as from `idle`.
    """
    idle_ns = median(max(0, window.idle_ns) / window.step_count for window in windows)
    step_ns = median(window.window_ns / window.step_count for window in breakdowns)
    idle_share = median(_idle_share(window, usual_ns) for window in breakdowns)
    return min(idle_share, _share_without_profiler(idle_ns, step_ns, usual_ns))


def _find_moved(view: RunView, sampled: Sequence[int], steps: int) -> dict[int, float]:
    """Return the exposed transfer per step of all of each rank's groups, in ns, where it is known."""
    names = list(view.transfers.exposed_ns)
    if not names:
        return {}
    of_groups = medians_of_last(np.stack([view.transfers.exposed_ns[name][-steps:] for name in names], axis=1), steps)
    wanted, found = set(sampled), dict[int, float]()
    for name, exposed_ns in zip(names, of_groups.tolist(), strict=True):
        if not math.isnan(exposed_ns):
            for rank in wanted.intersection(view.groups.get(name, ())):
                found[rank] = found.get(rank, 0.0) + exposed_ns
    return found


# -- the allocator ----------------------------------------------------------------------------------------------------


class _Intervals(NamedTuple):
    """The activity of one rank's allocator between samples."""

    retrying: float
    churning: float
    retries: int


def _read_intervals(counts: Sequence[AllocatorCounts], steps: int) -> _Intervals | None:
    """Return the activity over the last intervals with steps; None when they are too few, or nothing was counted."""
    settled = [one for one in counts if one.steps >= steps][-INTERVALS_READ - 1 :]
    pairs = [(a, b) for a, b in itertools.pairwise(settled) if b.steps > a.steps]
    retries = [_growth(a.sample.retries, b.sample.retries) for a, b in pairs]
    churned = [
        min(
            _growth(a.sample.device_allocs, b.sample.device_allocs),
            _growth(a.sample.device_frees, b.sample.device_frees),
        )
        for a, b in pairs
    ]
    if len(pairs) < INTERVALS_MIN:
        return None
    return _Intervals(
        retrying=sum(count > 0 for count in retries) / len(pairs),
        churning=sum(count > 0 for count in churned) / len(pairs),
        retries=sum(retries),
    )


def _growth(before: int | None, after: int | None) -> int:
    """Return by how much a count has grown; 0 where it was reset or is not known."""
    return max(0, (after or 0) - (before or 0)) if before is not None and after is not None else 0
