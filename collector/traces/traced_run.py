"""Show the steps of traces to the detector of stragglers, as a run that is over.

Live runs are judged by `collector/detect/stragglers`, and so are these: which ranks are slow, as which sets, since
when, why and at which cost. Traces know less of a host than an agent (no CPU times, no samples of the machine) and more
of the work: every kernel, and in each collective who came last.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from rankscope.collector.detect.finding import Abstain, Finding
from rankscope.collector.detect.stragglers.detector import Stragglers
from rankscope.collector.detect.stragglers.more_work import MORE_WORK
from rankscope.collector.detect.stragglers.persistent import Thresholds
from rankscope.collector.detect.view import RunView, Samples
from rankscope.collector.steps.peer_groups import PeerComparison, PeerGroups
from rankscope.collector.steps.step_series import StepSeries
from rankscope.collector.traces.longer_work import describe_longer
from rankscope.collector.traces.rank_analysis import RankAnalysis
from rankscope.collector.traces.report import (
    Breakdown,
    MatchedCollective,
    RankReport,
    RankStanding,
    StepReport,
    TraceFinding,
)
from rankscope.collector.traces.stages import STAGES
from rankscope.collector.traces.standings import describe_few_steps, describe_last, find_standings, sum_caused
from rankscope.measure.records import DeviceSample, WindowBreakdown
from rankscope.measure.units import format_duration

IMBALANCE: Final = "imbalance"
"""Kind of finding about ranks that do more work, which is no slowness."""
GPU_COMPUTE: Final = "gpu_compute"


def view_steps(
    ranked: Mapping[int, RankAnalysis],
    own_ns: Mapping[int, Mapping[int, int]],
    groups: Iterable[Sequence[int]],
    collectives: Iterable[MatchedCollective],
) -> RunView | None:
    """Return the steps that all ranks have, None without any, from their own times in ns by rank and step. Only ranks
    of one of the `groups` do the same work.
    """
    ranks = tuple(sorted(ranked))
    steps = sorted(set.intersection(*(set(own_ns[rank]) for rank in ranks)))
    if not steps:
        return None
    lengths = {rank: {number: end_ns - start_ns for number, start_ns, end_ns in ranked[rank].steps} for rank in ranks}
    reports = {rank: one.report for rank, one in ranked.items()}
    caused_ns = sum_caused(collectives)
    works = [tuple(group) for group in groups if len(group) > 1]
    alone = tuple(rank for rank in ranks if not any(rank in work for work in works))
    comparisons = [PeerComparison(work, work, do_same_work=True) for work in works]
    comparisons += [PeerComparison(alone, ranks, do_same_work=False)] if alone else []
    hosts = [reports[rank].host or "" for rank in ranks]
    return RunView(
        now_collector_ns=0,
        world_size=len(ranks),
        series=StepSeries(
            steps=np.array(steps, dtype=np.int64),
            ranks=ranks,
            step_ns=np.array([[lengths[rank][step] for rank in ranks] for step in steps], dtype=np.float64),
            own_ns=np.array([[own_ns[rank][step] for rank in ranks] for step in steps], dtype=np.float64),
            cpu_ns=np.full((len(steps), len(ranks)), np.nan),
            phases_ns={
                stage.removesuffix("_loader"): np.tile(
                    [_stage_ns(reports[rank], stage) for rank in ranks], (len(steps), 1)
                )
                for stage in STAGES
            },
            own_is_measured=True,
            wait_caused_ns=np.tile([caused_ns[rank] / len(steps) for rank in ranks], (len(steps), 1)),
        ),
        peer_groups=PeerGroups(
            tuple(comparisons),
            {rank: place for place, one in enumerate(comparisons) for rank in one.members},
            tuple(works),
        ),
        nodes=dict(zip(ranks, hosts if all(hosts) else [""] * len(ranks), strict=True)),
        samples=Samples(
            breakdowns={rank: [_break_down(one) for one in reports[rank].steps if one.step in steps] for rank in ranks},
            gc_pauses={},
            devices={rank: (DeviceSample(host_ns=0, uuid=""),) for rank in ranks if reports[rank].devices},
            are_of_traces=True,
        ),
        is_last=True,
    )


def _stage_ns(report: RankReport, stage: str) -> float:
    """Return the host's time in a stage of the training step, in ns of a step: the mean."""
    return sum(row.host_ns for row in report.model if row.stage == stage) / max(1, len(report.steps))


def _break_down(step: StepReport) -> WindowBreakdown:
    spent = step.on_device or step
    parts = {name: getattr(spent, name) for name in Breakdown.__struct_fields__ if name.endswith("_ns")}
    return WindowBreakdown(first_step=step.step, step_count=1, operator_count=spent.kernel_count, **parts)


# -- the verdict ------------------------------------------------------------------------------------------------------


class Verdict(NamedTuple):
    """What the detector finds, and the evidence about each rank; `undecided` is why it gives no verdict, if it does
    not.
    """

    findings: list[TraceFinding]
    standings: list[RankStanding]
    undecided: str | None


def judge_steps(view: RunView, reports: Mapping[int, RankReport], collectives: Sequence[MatchedCollective]) -> Verdict:
    """Return the verdict on the ranks, with what only traces know of the slow ones."""
    verdict = Stragglers(Thresholds()).find(view, ())
    undecided = verdict.reason if isinstance(verdict, Abstain) else None
    found = [] if isinstance(verdict, Abstain) else [one.finding for one in verdict]
    standings = find_standings(view, collectives, {rank for one in found for rank in one.ranks})
    return Verdict([_describe(one, view, reports, standings) for one in found], standings, undecided)


def _describe(
    found: Finding, view: RunView, reports: Mapping[int, RankReport], standings: Sequence[RankStanding]
) -> TraceFinding:
    mine = [one for one in standings if one.rank in found.ranks]
    also: list[str] = []
    if mine:  # a rank without peers has none
        slowest = max(mine, key=lambda one: one.slowdown_ratio or 0.0)
        if found.cause == GPU_COMPUTE:
            others = [report for rank, report in reports.items() if rank not in found.ranks]
            also.append(describe_longer(reports[slowest.rank], others))
        if slowest.late_count and set(found.ranks) <= set(view.peer_groups.of(slowest.rank).members):
            also.append(describe_last(mine))
        also.append(_describe_noise(slowest))
    found = msgspec.structs.replace(
        found,
        also=(*found.also, *filter(None, also)),
        until_step=int(view.series.steps[-1]),
        world_size=view.world_size,
    )
    return TraceFinding(
        kind=IMBALANCE if found.cause == MORE_WORK else found.kind,
        rank=found.ranks[0],
        ranks=list(found.ranks),
        nodes=list(found.nodes),
        slowdown_ratio=found.slowdown_ratio,
        run_slowdown_ratio=found.run_slowdown_ratio,
        cause=found.cause,
        sentence=found.sentence,
    )


def _describe_noise(one: RankStanding) -> str:
    if one.noise_ns is None:
        return f"{describe_few_steps(one.step_count)} to tell how much steps differ by themselves: record more of them"
    if one.noise_ns <= (one.excess_ns or 0):
        return ""
    return f"the steps differ a lot (give or take {format_duration(one.noise_ns)}): record more of them"
