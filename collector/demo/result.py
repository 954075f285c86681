"""Build the result that `rankscope demo --json` writes."""

from collections.abc import Mapping

import msgspec

from rankscope.collector.runs import ratios
from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot


class DemoRank(msgspec.Struct, frozen=True, kw_only=True):
    """One rank; medians over the last steps, ratios over the last windows, null where not measured."""

    rank: int
    steps: int
    step_ns_median: float | None
    phases_ns: Mapping[str, float]
    own_ns_median: float | None
    compute_ratio: float | None
    communication_ratio: float | None
    overlap_ratio: float | None
    exposed_communication_ratio: float | None
    idle_ratio: float | None


class DemoFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One finding. `rank` is None where it names no rank."""

    kind: str
    rank: int | None
    since_step: int | None
    slowdown_ratio: float | None
    cause: str
    sentence: str


class DemoResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the demo's run."""

    run: str
    world_size: int
    steps: int
    ranks: tuple[DemoRank, ...]
    findings: tuple[DemoFinding, ...]
    metrics_sample_count: int


def build_result(run: RunSnapshot, metrics_sample_count: int) -> DemoResult:
    """Return the result of a run that is over."""
    return DemoResult(
        run=run.run,
        world_size=run.world_size,
        steps=max((rank.totals.steps for rank in run.ranks), default=0),
        ranks=tuple(_build_rank(rank) for rank in run.ranks),
        findings=tuple(
            DemoFinding(
                kind=found.kind,
                rank=found.rank,
                since_step=found.since_step,
                slowdown_ratio=found.slowdown_ratio,
                cause=found.cause,
                sentence=found.sentence,
            )
            for found in run.findings
        ),
        metrics_sample_count=metrics_sample_count,
    )


def _build_rank(rank: RankSnapshot) -> DemoRank:
    window = rank.breakdown
    return DemoRank(
        rank=rank.identity.rank,
        steps=rank.totals.steps,
        step_ns_median=rank.step_ns_median,
        phases_ns=rank.phases_ns_median,
        own_ns_median=rank.own_ns_median,
        compute_ratio=None if window is None else ratios.compute_ratio(window),
        communication_ratio=None if window is None else ratios.communication_ratio(window),
        overlap_ratio=None if window is None else ratios.overlap_ratio(window),
        exposed_communication_ratio=None if window is None else ratios.exposed_communication_ratio(window),
        idle_ratio=None if window is None else ratios.idle_ratio(window),
    )
