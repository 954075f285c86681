"""Summarise a run in a few facts and its worst ranks, for `rankscope status`, for any number of ranks. Pure."""

from collections import Counter
from collections.abc import Mapping
from heapq import nsmallest
from statistics import median

import msgspec

from rankscope.collector.detect.hang_state import SILENT
from rankscope.collector.runs.liveness import BROUGHT_DOWN, ENDED_WELL
from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot
from rankscope.collector.runs.throughput import find_throughput

FAILED, NAMED, UNHEARD, STALLED, ALIVE, GONE = range(6)
"""Order of ranks in a status, the worst first: failed by itself; named by an open finding; does not report, or its
process does not answer; stalled; live; ended, well or because another rank had failed."""


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One run without its ranks (`run`), of which `ranks_known` are known. `states` counts them by state: `up`,
    `stalled`, `awaited`, or how they ended. `steps` is the most of any rank, `steps_per_s` and `step_ns_median` are
    medians over the ranks; None: not known of any. `worst` are its worst ranks, the worst first.
    """

    run: RunSnapshot
    ranks_known: int
    states: Mapping[str, int]
    steps: int | None
    steps_per_s: float | None
    step_ns_median: float | None
    worst: tuple[RankSnapshot, ...]


def build_status(run: RunSnapshot, worst_max: int) -> RunStatus:
    """Return the status of a run, with at most `worst_max` of its worst ranks."""
    medians_ns = [rank.step_ns_median for rank in run.ranks if rank.step_ns_median is not None]
    throughput = find_throughput([rank.totals for rank in run.ranks], run.world_size)
    return RunStatus(
        run=msgspec.structs.replace(run, ranks=()),
        ranks_known=len(run.ranks),
        states=dict(Counter(describe_state(rank) for rank in run.ranks).most_common()),
        steps=max((rank.totals.steps for rank in run.ranks if rank.reports_admitted), default=None),
        steps_per_s=None if throughput is None else throughput.steps_per_s,
        step_ns_median=median(medians_ns) if medians_ns else None,
        worst=find_worst(run, worst_max),
    )


def describe_state(rank: RankSnapshot) -> str:
    """Return the state of a rank in one word."""
    if rank.ended is not None:
        return rank.ended
    if rank.stalled:
        return "stalled"
    return "awaited" if rank.awaited else "up"


def find_worst(run: RunSnapshot, worst_max: int) -> tuple[RankSnapshot, ...]:
    """Return at most `worst_max` ranks, the worst first: the first to fail, others that failed in the order of their
    ends, then those that an open finding names, that do not report, that are stalled; of equals the slower, then the
    lower number.
    """
    named = {number for finding in run.open_findings for number in finding.ranks}
    first = run.end.first.rank if run.end is not None and run.end.first is not None else None

    def badness(rank: RankSnapshot) -> tuple[int, float, int]:
        number = rank.identity.rank
        if rank.ended is not None and rank.ended not in ENDED_WELL | BROUGHT_DOWN:
            return FAILED, -1 if number == first else rank.ended_collector_ns or 0, number
        return _judge(rank, is_named=number in named), -(rank.slowdown_ratio or 0.0), number

    return tuple(nsmallest(worst_max, run.ranks, key=badness))


def _judge(rank: RankSnapshot, *, is_named: bool) -> int:
    if rank.ended is not None and rank.ended != SILENT:
        return GONE if rank.ended in ENDED_WELL or not is_named else NAMED
    if is_named:
        return NAMED
    if rank.ended == SILENT or rank.unresponsive is not None:
        return UNHEARD
    return STALLED if rank.stalled else ALIVE
