"""Watch the open findings of a simulated run from pass to pass, for what no end state shows.

A *violation* is a `since_step` that moves forward, a verdict that says "no single rank is to blame" while a rank is
open as a straggler or while no fault of all its ranks is active, or a finding that has passed while a fault that it is
about lasts.
"""

from collections.abc import Sequence

from rankscope.collector.detect.finding import STRAGGLER, Finding
from rankscope.collector.detect.run_rules.regressions import NO_RANK
from tests.simulation.faults import TRANSFER, Fault
from tests.simulation.topology import Topology


class FindingWatch:
    """Collects the violations of one run."""

    def __init__(self, faults: Sequence[Fault], topology: Topology) -> None:
        self._faults = tuple(faults)
        self._topology = topology
        self._since: dict[int, int] = {}
        self._found: dict[str, None] = {}

    @property
    def violations(self) -> tuple[str, ...]:
        """Return every violation once, in the order seen."""
        return tuple(self._found)

    def observe(self, findings: Sequence[Finding], step: int) -> None:
        """Check the findings that are open after `step` steps."""
        for finding in findings:
            self._check_since(finding)
            if NO_RANK in finding.sentence:
                self._check_denial(finding, findings, step)

    def observe_passed(self, finding: Finding, step: int) -> None:
        """Check a finding that has passed after `step` steps."""
        lasting = [fault for fault in self._faults if self._is_about(finding, fault) and fault.lasts_at(step)]
        if lasting:
            self._found[f"finding {finding.number} ({finding.subject}) passed while {lasting[0].cause} lasts"] = None

    def _check_since(self, finding: Finding) -> None:
        if finding.since_step is None:
            return
        before = self._since.setdefault(finding.number, finding.since_step)
        if finding.since_step > before:
            self._found[f"the begin of finding {finding.number} ({finding.subject}) moved forward"] = None
        self._since[finding.number] = finding.since_step

    def _check_denial(self, denial: Finding, findings: Sequence[Finding], step: int) -> None:
        ranks = set(denial.ranks or range(self._topology.world_size))
        accused = {rank for one in findings if one.kind == STRAGGLER for rank in one.ranks}
        if ranks & accused:
            self._found[f"{denial.kind} denies that rank {min(ranks & accused)} is to blame"] = None
        shared = [one for one in self._faults if ranks <= set(one.ranks) or one.effect.kind == TRANSFER]
        if not any(fault.begin < step for fault in shared):
            self._found[f"{denial.kind} blames no rank where one is to blame"] = None

    def _is_about(self, finding: Finding, fault: Fault) -> bool:
        return finding.kind == STRAGGLER and not set(finding.ranks).isdisjoint(fault.ranks)
