"""Summarize a run in a few facts, for any number of ranks: how fast it trains, and its worst ranks. Pure.

Speeds (docs/definitions.md section 2) are computed from the totals of the ranks. Whether two ranks read different
batches (data parallel) or the same ones (tensor and pipeline parallel) is not visible from outside. So speeds are those
of one rank, the median over the ranks, and beside them the sum, which is the run's only if each rank reads batches of
its own.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from heapq import nsmallest
from statistics import median
from typing import NamedTuple

import msgspec

from rankscope.collector.detect.hang_state import SILENT
from rankscope.collector.runs.goodput import GoodputSnapshot
from rankscope.collector.runs.liveness import BROUGHT_DOWN, ENDED_WELL
from rankscope.collector.runs.run_energy import RunEnergy, find_run_energy
from rankscope.collector.runs.run_flops import RunFlops, find_run_flops
from rankscope.collector.runs.run_origin import UNKNOWN_ORIGIN, RunOrigin, find_origin
from rankscope.collector.runs.run_ratios import RunRatios
from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot
from rankscope.collector.runs.window_effect import RunWindows, read_windows
from rankscope.collector.steps.least_waiting import LeastWaiting
from rankscope.measure.records import Totals
from rankscope.measure.units import format_duration, format_share, s_to_ns

FAILED, NAMED, UNHEARD, STALLED, ALIVE, GONE = range(6)
"""Order of ranks in a status, the worst first: failed by itself; named by an open finding; does not report, or its
process does not answer; stalled; live; ended, well or because another rank had failed."""


class Speed(NamedTuple):
    """An amount per second: the median over the ranks that report it, and their sum, None unless every rank does."""

    per_rank: float
    summed: float | None


class RunThroughput(NamedTuple):
    """Throughput of a run over its rank processes, evaluations left out. None: not known of any rank."""

    steps_per_s: float
    reader_ratio: float
    samples_per_s: Speed | None
    tokens_per_s: Speed | None


def find_throughput(totals: Sequence[Totals], world_size: int) -> RunThroughput | None:
    """Return the throughput of a run from the totals of its ranks; None before the first step.

    >>> one = Totals(steps=4, step_ns=2 * 10**9, phases_ns={"data": 10**9}, samples=32, samples_step_ns=2 * 10**9)
    >>> found = find_throughput([one, one], world_size=2)
    >>> found.steps_per_s, found.reader_ratio, found.samples_per_s
    (2.0, 0.5, Speed(per_rank=16.0, summed=32.0))
    """
    stepped = [rank for rank in totals if rank.step_ns > 0]
    if not stepped:
        return None
    return RunThroughput(
        steps_per_s=median(rank.steps / rank.step_ns for rank in stepped) * s_to_ns(1),
        reader_ratio=sum(rank.phases_ns.get("data", 0) for rank in stepped) / sum(rank.step_ns for rank in stepped),
        samples_per_s=_find_speed([(rank.samples, rank.samples_step_ns) for rank in stepped], world_size),
        tokens_per_s=_find_speed([(rank.tokens, rank.tokens_step_ns) for rank in stepped], world_size),
    )


def _find_speed(amounts: Sequence[tuple[int | None, int]], world_size: int) -> Speed | None:
    known = [amount / known_ns * s_to_ns(1) for amount, known_ns in amounts if amount is not None and known_ns > 0]
    return Speed(median(known), sum(known) if len(known) == world_size else None) if known else None


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One run without its ranks (`run`), of which `ranks_known` are known. `states` counts them by state: `up`,
    `stalled`, `awaited`, or how they ended. `steps` is the most of any rank, `steps_per_s` and `step_ns_median` are
    medians over the ranks; None: not known of any. `worst` are its worst ranks, the worst first. `window_effect` says
    what full windows of GPUs have done to the steps, `timing_effect` what torch's timing of collectives has; None:
    nothing was measured. `flops` is over the live ranks, `energy` over all of them, `origin` says whose run it is.
    """

    run: RunSnapshot
    ranks_known: int
    states: Mapping[str, int]
    steps: int | None
    steps_per_s: float | None
    step_ns_median: float | None
    worst: tuple[RankSnapshot, ...]
    window_ratios: RunRatios = RunRatios()
    window_effect: str | None = None
    timing_effect: str | None = None
    flops: RunFlops = RunFlops()
    energy: RunEnergy = RunEnergy()
    origin: RunOrigin = UNKNOWN_ORIGIN


def build_status(run: RunSnapshot, worst_max: int, windows: RunWindows | None = None) -> RunStatus:
    """Return the status of a run, with at most `worst_max` of its worst ranks. `windows` is what `read_windows` returns
    of it, where that is known already.
    """
    windows = read_windows(run) if windows is None else windows
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
        window_ratios=windows.ratios,
        window_effect=windows.effect,
        timing_effect=windows.timing,
        flops=find_run_flops(find_live(run.ranks)),
        energy=find_energy(run),
        origin=find_origin(rank.identity for rank in run.ranks),
    )


def find_energy(run: RunSnapshot) -> RunEnergy:
    """Return the energy of the ranks that have reported."""
    reported = [(rank.totals, rank.devices) for rank in run.ranks if rank.reports_admitted]
    return find_run_energy(reported, find_lost_to_slow(run.goodput))


def find_lost_to_slow(goodput: GoodputSnapshot) -> float | None:
    """Return the share of a run's time that was lost to slow ranks; None before there is any time, and after a restart,
    since the time is that of all attempts.
    """
    return goodput.slow_ns / goodput.wall_ns if goodput.wall_ns and not goodput.restart_ns else None


def find_live(ranks: Sequence[RankSnapshot]) -> list[RankSnapshot]:
    """Return the ranks that have not ended and have reported to this collector."""
    return [rank for rank in ranks if rank.ended is None and not rank.awaited]


def describe_ranks_without_peers(run: RunSnapshot) -> str | None:
    """Return how many ranks are judged by their own past only; None where all have peers.

    >>> run = RunSnapshot(run="bert", world_size=16, restart_count=0, ranks=(), ranks_without_peers=12)
    >>> describe_ranks_without_peers(run)
    '12 of 16 ranks have no peers with equal work: judged by their own past only'
    """
    count, size = run.ranks_without_peers, run.size
    if not count:
        return None
    have, their = ("has", "its") if count == 1 else ("have", "their")
    have = have if run.end is None else "had"
    text = f"{count:,} of {size:,} ranks {have} no peers with equal work: judged by {their} own past only"
    least, named = run.least_waiting, {rank for finding in run.findings for rank in finding.ranks}
    if least is None or least.rank in named or (run.pipeline is not None and run.pipeline.pace is not None):
        return text
    return f"{text}. {describe_least_waiting(least)}"


def describe_least_waiting(least: LeastWaiting) -> str:
    """Return what it means that a rank waited least.

    >>> describe_least_waiting(LeastWaiting(rank=5, steps=40, share=0.95, margin_ns=8e6))
    'Rank 5 waited for others least in 95 % of 40 steps, the next one 8.0 ms longer: it is slower, or has more work'
    """
    return (
        f"Rank {least.rank} waited for others least in {format_share(least.share, 0)} of {least.steps} steps, the next "
        f"one {format_duration(least.margin_ns)} longer: it is slower, or has more work"
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
