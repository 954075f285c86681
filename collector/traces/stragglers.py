"""Find the ranks that were slow in the steps of these traces, by self time (docs/definitions.md section 4).

A rank's self time in a step is the step less its exposed waits for other ranks. Traces hold few steps: a rank is named
only when it was clearly slower than its peers over all steps, and in most single steps, and waited the least of all
ranks.
"""

from collections.abc import Mapping
from statistics import median

from rankscope.collector.traces.cross_rank import Matching, find_waiting
from rankscope.collector.traces.rank_analysis import RankAnalysis
from rankscope.collector.traces.report import Finding, RankReport
from rankscope.measure import intervals
from rankscope.measure.units import NS_PER_MS

SLOWDOWN_MIN = 1.15
"""Healthy ranks on busy cores differ by up to 13.5 % over three steps."""
STEPS_SHARE_MIN = 0.6
MORE_WORK_MIN = 1.1
"""Times as many kernels as the others run: then it is the work that differs, not the device."""
CAUSE_SHARE_MIN = 0.5
"""A stage must explain half of the excess to be named as its cause."""

_CAUSE_TEXTS = {
    "data_loading": "waiting for data",
    "host_cpu": "stalled on the host",
    "gpu_compute": "computing slower",
    "more_work": "doing more work",
    "unattributed": "for a reason that the traces do not show",
}


def find_stragglers(found: Mapping[int, RankAnalysis], matching: Matching) -> list[Finding]:
    """Return the slow ranks; empty when all are alike, or nothing can be compared."""
    self_ns = {rank: self_times(one, matching, rank) for rank, one in found.items()}
    common = set.intersection(*(set(times) for times in self_ns.values())) if len(self_ns) > 1 else set()
    waited_ns = {rank: intervals.total_ns(intervals.union(find_waiting(matching, rank))) for rank in found}
    findings = []
    for rank in sorted(self_ns) if common else ():
        others = [times for other, times in self_ns.items() if other != rank]
        peers = {step: median(times[step] for times in others) for step in common}
        ratio = sum(self_ns[rank][step] for step in common) / max(1, sum(peers.values()))
        slower = sum(self_ns[rank][step] > peers[step] for step in common)
        least = min(waited_ns.values()) == waited_ns[rank]
        if ratio >= SLOWDOWN_MIN and slower >= STEPS_SHARE_MIN * len(common) and least:
            excess = [self_ns[rank][step] - peers[step] for step in sorted(common)]
            findings.append(_describe(found, rank, ratio, excess))
    return findings


def self_times(one: RankAnalysis, matching: Matching, rank: int) -> dict[int, int]:
    """Return by step its length less the waits not hidden by compute, in ns."""
    waiting = intervals.subtract(intervals.union(find_waiting(matching, rank)), one.overlap)
    return {
        number: end_ns - start_ns - intervals.total_ns(intervals.clip(waiting, start_ns, end_ns))
        for number, start_ns, end_ns in one.steps
    }


def _describe(found: Mapping[int, RankAnalysis], rank: int, ratio: float, excess_ns: list[float]) -> Finding:
    report = found[rank].report
    peers = [one.report for other, one in found.items() if other != rank]
    cause = find_cause(report, peers, sum(excess_ns) / len(excess_ns))
    return Finding(
        kind="straggler",
        rank=rank,
        slowdown_ratio=ratio,
        cause=cause,
        sentence=(
            f"Rank {rank} took {ratio:.2f} times as long as its peers, "
            f"{sum(excess_ns) / len(excess_ns) / NS_PER_MS:.1f} ms more in a step, {_CAUSE_TEXTS[cause]}."
        ),
    )


def find_cause(report: RankReport, peers: list[RankReport], excess_ns: float) -> str:
    """Return the cause by the part of the step that holds the excess. `excess_ns` is that of one step."""
    steps = max(1, len(report.steps))
    limit_ns = CAUSE_SHARE_MIN * excess_ns * steps

    def over(value: str) -> float:
        return _stage(report, value) - median(_stage(peer, value) for peer in peers)

    if over("data_loader") >= limit_ns:
        return "data_loading"
    computes = _of_steps(report, "compute_ns") - median(_of_steps(peer, "compute_ns") for peer in peers)
    if computes >= limit_ns:
        kernels = median(peer.kernel_count for peer in peers)
        return "more_work" if report.kernel_count > MORE_WORK_MIN * kernels else "gpu_compute"
    idles = _of_steps(report, "idle_ns") - median(_of_steps(peer, "idle_ns") for peer in peers)
    host = max(over(stage) for stage in ("forward", "backward", "optimizer", "other"))
    return "host_cpu" if max(idles, host) >= limit_ns else "unattributed"


def _stage(report: RankReport, stage: str) -> int:
    return next((row.host_ns for row in report.model if row.stage == stage), 0)


def _of_steps(report: RankReport, name: str) -> int:
    return sum(getattr(step.on_device or step, name) for step in report.steps)
