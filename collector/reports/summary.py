"""A run in a few lines when it is over: how it went, how each rank ended, and the verdict in one sentence."""

from rankscope.collector.detect.finding import Finding
from rankscope.collector.state.snapshot import RunSnapshot
from rankscope.measure.units import format_duration

HEALTHY = "No rank was slower than the others."


def verdict(run: RunSnapshot) -> str:
    """One sentence: the costliest finding of the run's life, else that there was none, else why nobody can say."""
    costliest = _costliest(run)
    if costliest is not None:
        return costliest.sentence
    return HEALTHY if run.abstained is None else f"No verdict: {run.abstained}."


def summarise(run: RunSnapshot) -> str:
    """The summary of a run."""
    ends: dict[str, list[int]] = {}
    for rank in run.ranks:
        ends.setdefault(rank.ended or "still up", []).append(rank.identity.rank)
    medians = sorted(rank.step_ns_median for rank in run.ranks if rank.step_ns_median is not None)
    median = f", median step {format_duration(medians[len(medians) // 2])}" if medians else ""
    steps = max((rank.totals.steps for rank in run.ranks), default=0)
    reports = sum(rank.reports_admitted for rank in run.ranks)
    lost = sum(rank.report_gaps for rank in run.ranks)
    lines = [
        f"run {run.run}: {run.world_size} ranks, {steps} steps{median}; {reports} reports, {lost} lost",
        "ended: " + "; ".join(f"{reason}: {_ranks(ranks)}" for reason, ranks in sorted(ends.items())),
    ]
    costliest = _costliest(run)
    lines += [f"finding: {finding.sentence}" for finding in run.findings if finding is not costliest]
    lines.append(f"verdict: {verdict(run)}")
    return "\n".join(lines)


def _costliest(run: RunSnapshot) -> Finding | None:
    return max(run.findings, key=lambda finding: finding.lost_rank_seconds or 0.0, default=None)


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:8])
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}{', ...' if len(ranks) > 8 else ''}"  # noqa: PLR2004
