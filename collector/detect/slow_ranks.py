"""Ranks whose own work takes longer than their twins', as findings: who, how much, since when, why, at what cost."""

from collections.abc import Sequence

from rankscope.collector.detect.cost import lost_to, price
from rankscope.collector.detect.finding import STRAGGLER, Abstain, Finding
from rankscope.collector.detect.root_cause import find_cause
from rankscope.collector.detect.sentence import write_sentence
from rankscope.collector.detect.stragglers import Slow, Thresholds, find_stragglers, has_recovered
from rankscope.collector.detect.view import Candidate, JobView


class SlowRanks:
    """The detector of stragglers."""

    kinds = frozenset({STRAGGLER})

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds

    def find(self, view: JobView, explained: Sequence[Finding]) -> Sequence[Candidate] | Abstain:
        """Every rank that is slow now, slowest first."""
        verdict = find_stragglers(view, self._thresholds)
        if isinstance(verdict, Abstain):
            return verdict
        known = {rank: finding for finding in explained if finding.kind == STRAGGLER for rank in finding.ranks}
        return [_describe(view, slow, known.get(slow.rank)) for slow in verdict]

    def has_passed(self, view: JobView, finding: Finding) -> bool:
        """Whether every rank of the finding has recovered."""
        return all(has_recovered(view.excess_of(rank), self._thresholds) for rank in finding.ranks)


def _describe(view: JobView, slow: Slow, known: Finding | None) -> Candidate:
    # The more steps on either side, the surer the change; once it has left the window, what was found stands.
    if known is not None and known.since_step is not None and not slow.change_is_seen:
        slow = slow._replace(since_step=known.since_step)
    cause = find_cause(slow, view.series, view.samples)
    lost_ns = lost_to(slow, view.series)
    cost = price(lost_ns, view.series, slow.since_step)
    finding = Finding(
        kind=STRAGGLER,
        ranks=(slow.rank,),
        since_step=slow.since_step,
        slowdown_ratio=slow.slowdown_ratio,
        cause=cause.name,
        sentence=write_sentence(slow, cause, cost, view.series, view.nodes[slow.rank]),
        job_slowdown_ratio=cost.job_slowdown_ratio,
        evidence={
            **cause.evidence,
            "self_ns": slow.self_ns,
            "peers_self_ns": slow.peers_self_ns,
            "robust_z": slow.robust_z,
            "persistence_ratio": slow.persistence,
            "steps_looked_at": float(slow.steps_looked_at),
        },
    )
    return Candidate(finding, lost_ns)
