"""Build the report of a run from the store: one object, rendered as text, JSON or a page."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
import numpy as np

from rankscope.collector.detect.finding import Finding, describe_faults, format_ranks
from rankscope.collector.detect.hang_state import EXIT_UNKNOWN
from rankscope.collector.incidents.incident import Incident
from rankscope.collector.incidents.store import read_store
from rankscope.collector.run_ids import read_run_name
from rankscope.collector.runs.blocked_lines import BlockingCalls, list_blocking_calls
from rankscope.collector.runs.checkpoints import NO_CHECKPOINTS, Checkpoints
from rankscope.collector.runs.compilations import NOTHING_COMPILED, RunCompilations
from rankscope.collector.runs.goodput import GoodputSnapshot
from rankscope.collector.runs.host_copies import describe_copies_of_run
from rankscope.collector.runs.live_settings import NOTHING_CHANGED, RunSettings
from rankscope.collector.runs.liveness import conclude
from rankscope.collector.runs.rank import SavedRank
from rankscope.collector.runs.run_end import RunEnd
from rankscope.collector.runs.run_energy import RunEnergy, find_run_energy
from rankscope.collector.runs.run_flops import average_known
from rankscope.collector.runs.run_origin import UNKNOWN_ORIGIN, RunOrigin, find_origin
from rankscope.collector.runs.run_status import find_lost_to_slow
from rankscope.collector.runs.snapshot import LostSeconds
from rankscope.collector.steps.expert_loads import ExpertLoads
from rankscope.collector.steps.layer_times import RunLayers
from rankscope.collector.steps.pipeline_stages import PipelineTimes
from rankscope.collector.storage.rank_intervals import RankInterval
from rankscope.collector.storage.run_reader import CurvePoint, StoredHistory, opening_run
from rankscope.collector.store_address import StoreAddress
from rankscope.collector.valid_answers import without_impossible

CURVE_POINTS_MAX: Final = 400
"""Points that a screen can show."""
RANKS_SHOWN_MAX: Final = 100
"""Number of worst ranks; the history has all."""
INTERVALS_READ_MAX: Final = 1_440
"""Intervals behind the means of the worst ranks: a day of minutes. A longer mean hides a rank that is slow now."""


class RankLine(msgspec.Struct, frozen=True, kw_only=True):
    """One rank over the last day of the run. `slowdown_ratio`, `own_ns` and `wait_caused_ns` are means over its
    intervals, weighted with their steps; None: unknown. `lost_rank_seconds` is over the whole run. `blocking_calls` are
    those with the longest waits in its last full windows; None without such a window of a GPU.
    """

    rank: int
    node: str
    steps: int
    ended: str | None
    slowdown_ratio: float | None = None
    own_ns: float | None = None
    wait_caused_ns: float | None = None
    lost_rank_seconds: float = 0.0
    blocking_calls: tuple[BlockingCalls, ...] | None = None


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """Report of one run. `ends` maps each end of a rank process, `still up` without one, to its ranks as text (`0-6`).
    `reports_lost` counts sequence numbers that never arrived, `steps_late` steps that arrived too late to be compared.
    `curve` is the step time over the run; `worst_ranks` are sorted by cost, then by slowdown. `end` is None while the
    run goes on, and for runs stored by an earlier version. `mfu_ratio` and `hfu_ratio` are means over the ranks, of the
    last minute of their steps; None unless they are known of all. `hfu_is_upper_bound`: HFU was at most what it says.
    `injected_faults` as in RunSnapshot. `origin` says whose run it was. `checkpoints` are those that its ranks have
    marked, `compilations` what was compiled, and `energy` what its GPUs have used, in the last attempt. `settings` are
    those that were changed while it went on. `pipeline` has the stages that its ranks announced, `layers` their
    models' repeated blocks, and `experts` their loads in all-to-alls; None while it goes on. `not_judged` says by kind
    of finding why there was no verdict about it at the end, empty while it goes on. `host_copies_said` tells what GPUs
    copied from their hosts, in all windows.
    """

    run: str
    run_id: str = ""
    world_size: int
    restart_count: int
    attempts: int
    begun_wall_s: float
    changed_wall_s: float
    is_over: bool
    steps: int
    steps_kept: int
    step_ns_median: float | None
    reports: int
    reports_lost: int
    steps_late: int
    ends: dict[str, str]
    goodput: GoodputSnapshot
    lost: tuple[LostSeconds, ...] = ()
    findings: tuple[Finding, ...] = ()
    incidents: tuple[Incident, ...] = ()
    curve: tuple[CurvePoint, ...] = ()
    worst_ranks: tuple[RankLine, ...] = ()
    end: RunEnd | None = None
    mfu_ratio: float | None = None
    hfu_ratio: float | None = None
    hfu_is_upper_bound: bool = False
    injected_faults: str = ""
    origin: RunOrigin = UNKNOWN_ORIGIN
    checkpoints: Checkpoints = NO_CHECKPOINTS
    compilations: RunCompilations = NOTHING_COMPILED
    energy: RunEnergy = RunEnergy()
    settings: RunSettings = NOTHING_CHANGED
    pipeline: PipelineTimes | None = None
    layers: RunLayers | None = None
    not_judged: Mapping[str, str] = {}
    experts: ExpertLoads | None = None
    host_copies_said: str = ""


def read_report(address: StoreAddress, run: str) -> RunReport:
    """Return the report of the run with this id, or the latest with this name, from the store at `address`, without
    numbers that cannot be. Raises UnavailableError when there is none.
    """
    with opening_run(address, run) as history:
        incidents = [one for one in read_store(address).incidents if one.run_id == history.kept.run.run]
        return without_impossible(build_report(history, incidents))


def report_as_json(address: StoreAddress, run: str) -> bytes:
    """Return the report as the API's JSON. Raises UnavailableError when there is none."""
    return msgspec.json.encode(read_report(address, run))


def build_report(history: StoredHistory, incidents: Iterable[Incident]) -> RunReport:
    """Return the report of one run from its history and its incidents."""
    run, saved, processes, _ = history.kept
    curve = history.read_curve(CURVE_POINTS_MAX)
    medians = [point.median_ns for point in curve]
    ends: dict[str, list[int]] = {}
    for process in processes:
        ends.setdefault(_end_of(process) or "still up", []).append(process.hello.identity.rank)
    return RunReport(
        run=read_run_name(run.run),
        run_id=run.run,
        world_size=run.world_size,
        restart_count=run.restart_count,
        attempts=run.attempt + 1,
        begun_wall_s=run.begun_wall_s,
        changed_wall_s=run.changed_wall_s,
        is_over=run.is_over,
        steps=max((process.totals.steps for process in processes), default=0),
        steps_kept=sum(point.steps for point in curve),
        step_ns_median=float(np.median(medians)) if medians else None,
        reports=sum(process.admitted for process in processes),
        reports_lost=sum(process.missing for process in processes),
        steps_late=sum(process.steps.late for process in processes),
        ends={reason: format_ranks(sorted(ranks)) for reason, ranks in sorted(ends.items())},
        goodput=run.goodput,
        lost=run.lost,
        findings=saved.findings,
        incidents=tuple(incidents),
        curve=tuple(curve),
        worst_ranks=tuple(_find_worst(processes, run.lost, list(history.read_intervals(INTERVALS_READ_MAX)))),
        end=run.end,
        checkpoints=saved.checkpoints,
        settings=saved.settings,
        pipeline=saved.pipeline,
        layers=saved.layers,
        not_judged=saved.not_judged,
        experts=saved.experts,
        compilations=saved.compilations,
        mfu_ratio=average_known([process.flops.mfu for process in processes]),
        hfu_ratio=average_known([process.flops.hfu for process in processes]),
        hfu_is_upper_bound=any(
            process.flops.hfu is not None and process.flops.executed_is_upper_bound for process in processes
        ),
        host_copies_said=describe_copies_of_run(process.totals for process in processes),
        energy=find_run_energy(
            ((process.totals, process.devices) for process in processes), find_lost_to_slow(run.goodput)
        ),
        origin=find_origin(process.hello.identity for process in processes),
        injected_faults=describe_faults(
            {process.hello.identity.rank: process.hello.fault for process in processes if process.hello.fault}
        ),
    )


def _end_of(process: SavedRank) -> str | None:
    ending = conclude(process.said, process.seen)
    if ending is not None:
        return ending.reason
    return EXIT_UNKNOWN if process.is_gone else None


def _find_worst(
    processes: Iterable[SavedRank], lost: Iterable[LostSeconds], intervals: list[RankInterval]
) -> list[RankLine]:
    """Return the worst ranks by cost, then by slowdown; those with neither last."""
    cost: dict[int, float] = {}
    for one in lost:
        if one.rank is not None:
            cost[one.rank] = cost.get(one.rank, 0.0) + one.lost_rank_seconds
    means = {name: _mean_by_rank(intervals, name) for name in ("slowdown_ratio", "own_ns", "wait_caused_ns")}
    lines = []
    for process in processes:
        identity = process.hello.identity
        line = RankLine(
            rank=identity.rank,
            node=identity.node,
            steps=process.totals.steps,
            ended=_end_of(process),
            lost_rank_seconds=cost.get(identity.rank, 0.0),
            blocking_calls=list_blocking_calls(process.synchronizations),
            **{name: found.get(identity.rank) for name, found in means.items()},
        )
        lines.append(line)
    lines.sort(key=lambda line: (-line.lost_rank_seconds, -(line.slowdown_ratio or 0.0), line.rank))
    return lines[:RANKS_SHOWN_MAX]


def _mean_by_rank(intervals: Iterable[RankInterval], name: str) -> dict[int, float]:
    """Return the mean of a column over the intervals by rank, weighted with the steps of each; unknown ones left
    out.
    """
    sums: dict[int, list[float]] = {}
    for interval in intervals:
        columns = interval.columns
        known = ~np.isnan(columns[name]) & (columns["steps"] > 0)
        rows = (columns["rank"][known].tolist(), columns["steps"][known].tolist(), columns[name][known].tolist())
        for rank, steps, value in zip(*rows, strict=True):
            found = sums.setdefault(int(rank), [0.0, 0.0])
            found[0] += steps
            found[1] += steps * value
    return {rank: total / steps for rank, (steps, total) in sums.items()}
