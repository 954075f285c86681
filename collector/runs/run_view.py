"""Connect an attempt with detection: the view that detectors read, and what is kept of a pass. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from rankscope.collector.detect.finding import HANG, Finding, describe_faults
from rankscope.collector.detect.hang_state import RankHangState, date_failure
from rankscope.collector.detect.statistics.excess import slowdown_ratios
from rankscope.collector.detect.stragglers.detector import read_usual
from rankscope.collector.detect.view import RunView, Samples
from rankscope.collector.runs.attempt import Attempt
from rankscope.collector.runs.hang_witnesses import find_dumps, find_ras_answer
from rankscope.collector.runs.live_settings import LiveSettings
from rankscope.collector.runs.liveness import BROUGHT_DOWN, ENDED_WELL, Liveness
from rankscope.collector.runs.rank import RankState
from rankscope.collector.steps.expert_loads import find_expert_loads
from rankscope.collector.steps.layer_times import find_layers
from rankscope.collector.steps.least_waiting import find_least_waiting
from rankscope.collector.steps.pipeline_stages import find_pipeline
from rankscope.collector.steps.rank_medians import RankMedians
from rankscope.collector.steps.step_aggregates import PATIENCE_STEPS
from rankscope.collector.steps.step_levels import StepLevels
from rankscope.collector.steps.step_series import Floats

SKIP_STEPS: Final = 3
"""The first steps compile, allocate and fill caches; detection skips them."""


def build_view(
    attempt: Attempt,
    now_collector_ns: int,
    *,
    held: Sequence[Finding],
    settings: LiveSettings,
    attempts: int,
    is_last: bool,
    now_wall_s: float | None = None,
) -> RunView:
    """Return the view of an attempt. `attempts` is the number of attempts before it, `held` are the findings that the
    run holds, `settings` its settings. `is_last`: the run is over, and its end closes hangs, which the view is without.
    How fast the run has been so far is added by `SpeedHistory`.
    """
    ranks = tuple(sorted(attempt.ranks))
    has_hang_states = bool(attempt.stalled_ranks) and not is_last
    hang_states = build_hang_states(attempt.ranks, now_collector_ns) if has_hang_states else {}
    series = attempt.read_series(ranks, skip_steps=SKIP_STEPS)
    peer_groups = attempt.find_peer_groups(series)
    return RunView(
        now_collector_ns=now_collector_ns,
        world_size=attempt.world_size,
        series=series,
        peer_groups=peer_groups,
        nodes={number: rank.identity.node for number, rank in attempt.ranks.items()},
        samples=read_samples(attempt),
        groups=attempt.groups.by_label,
        transfers=attempt.window.transfers(skip_steps=SKIP_STEPS),
        hang_states=hang_states,
        ras=find_ras_answer(attempt.ranks, attempt.world_size) if has_hang_states else None,
        dumps=find_dumps(attempt.ranks, hang_states, now_collector_ns),
        known_usual=read_usual(held),
        steps_min=settings.config.detect_steps_min,
        open_findings=[one for one in held if not is_last or one.kind != HANG],
        attempt=attempts,
        is_last=is_last,
        injected_faults=describe_faults(attempt.faults),
        thresholds=settings.thresholds,
        thresholds_said=settings.thresholds_said,
        is_stricter=settings.is_stricter,
        now_wall_s=now_wall_s,
        layers=find_layers(attempt.layers_by_rank, peer_groups, series.step_ns),
    )


def keep_pass(attempt: Attempt, view: RunView, steps_max: int) -> None:
    """Keep the slowdowns and medians of a detection pass over this view, of the last `steps_max` steps."""
    attempt.slowdowns = slowdown_ratios(view.excess, steps_max)
    attempt.medians = RankMedians.compute(view.series, attempt.slowdowns, steps_max)
    attempt.peer_search.least_waiting = (
        find_least_waiting(view.series) if view.peer_groups.ranks_without_peers else None
    )
    attempt.pipeline = find_pipeline(view.series, attempt.pipelines)
    attempt.layers = view.layers
    attempt.experts = find_expert_loads(view.series, attempt.groups.by_label, attempt.window.exchanging)


def keep_levels(levels: StepLevels, view: RunView) -> None:
    """Add the steps of a view that no rank is likely to report any more, with the mean tokens of a rank's batch."""
    steps = view.series.steps
    rows = np.flatnonzero((steps > levels.last_step) & (steps <= steps.max(initial=-1) - PATIENCE_STEPS))
    if len(rows):
        tokens = np.full(len(rows), np.nan) if view.series.tokens is None else view.series.tokens[rows].mean(axis=1)
        levels.add(steps[rows], view.longest_ns[rows], tokens)


def find_run_slowdown(slowdowns: Floats | None, open_findings: Sequence[Finding]) -> float | None:
    """Return the slowdown of the run, the largest of any finding: 1 when none has a cost, None before the ranks could
    be compared.
    """
    if slowdowns is None or bool(np.isnan(slowdowns).all()):
        return None
    return max((finding.run_slowdown_ratio or 1.0 for finding in open_findings), default=1.0)


def build_hang_states(ranks: Mapping[int, RankState], now_collector_ns: int) -> dict[int, RankHangState]:
    """Return the hang state of each rank."""
    return {number: _build_hang_state(rank, now_collector_ns) for number, rank in ranks.items()}


def _build_hang_state(rank: RankState, now_collector_ns: int) -> RankHangState:
    liveness, ending = rank.liveness, rank.liveness.ending
    since_host_ns = liveness.stalled_since_host_ns
    return RankHangState(
        ended=None if ending is None else ending.reason,
        ended_detail="" if ending is None else ending.detail,
        ended_collector_ns=None if ending is None else liveness.ended_collector_ns,
        failed_collector_ns=_date_failure(liveness),
        is_stalled=liveness.is_stalled,
        stalled_ns=liveness.stalled_ns,
        since_collector_ns=None
        if since_host_ns is None
        else rank.clock.to_collector_time(since_host_ns, now_collector_ns),
        last_step=rank.last_step,
        progress=liveness.progress,
        progress_unchanged_ns=liveness.progress_unchanged_ns,
        group_unchanged_ns=liveness.group_unchanged_ns,
        stall=liveness.stall,
        unresponsive=liveness.unresponsive,
    )


def _date_failure(liveness: Liveness) -> int | None:
    """Return when a rank began to end badly by itself; None where it did not."""
    ending, ended_collector_ns = liveness.ending, liveness.ended_collector_ns
    if ending is None or ended_collector_ns is None or ending.reason in ENDED_WELL | BROUGHT_DOWN:
        return None
    is_only_seen = liveness.seen is not None and ending.detail == liveness.seen.detail
    return date_failure(ending.reason, ended_collector_ns, is_only_seen=is_only_seen)


class _PerRank(Mapping[int, Any]):
    """A value of every rank, read on access: of 16,384 ranks few are."""

    def __init__(self, ranks: Mapping[int, Any], read: Callable[[Any], Any]) -> None:
        self._ranks = ranks
        self._read = read

    def __getitem__(self, rank: int) -> Any:
        return self._read(self._ranks[rank])

    def __iter__(self) -> Iterator[int]:
        return iter(self._ranks)

    def __len__(self) -> int:
        return len(self._ranks)


def read_samples(attempt: Attempt) -> Samples:
    """Return the samples of the ranks, read on access."""
    ranks, samples = attempt.ranks, attempt.samples
    return Samples(
        breakdowns=_PerRank(samples, lambda one: one.breakdowns),
        gc_pauses=_PerRank(samples, lambda one: one.gc_pauses),
        devices=_PerRank(ranks, lambda rank: rank.devices),
        allocators=_PerRank(samples, lambda one: one.allocators),
        hosts=_PerRank(ranks, lambda rank: rank.host),
        absent_ratios=_PerRank(ranks, lambda rank: rank.absent_ratios),
        synchronizations=_PerRank(samples, lambda one: one.synchronizations),
        machines=_PerRank(samples, lambda one: one.machines),
        process_cpu=_PerRank(samples, lambda one: one.process_cpu),
        core_waits=_PerRank(samples, lambda one: one.core_waits),
        host_clock=_PerRank(samples, lambda one: one.host_clock),
        memory_errors=_PerRank(ranks, lambda rank: rank.memory_errors),
        memory_levels=_PerRank(samples, lambda one: one.resident),
        compiled=_PerRank(samples, lambda one: one.compiled),
        block_io=_PerRank(samples, lambda one: one.block_io),
        saves=_PerRank(ranks, lambda rank: rank.last_report.saves),
    )
