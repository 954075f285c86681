"""Watch the open findings of a simulated run from pass to pass, for what no end state shows (`wrongs.py`)."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from rankscope.collector.detect.finding import BLAME, NOBODY, NOT_KNOWN, RUN_SLOWDOWN, SLOW_LINK, STRAGGLER, Finding
from rankscope.collector.detect.run_rules.regressions import STAGE
from rankscope.collector.detect.stragglers.persistent import CLOSE_STEPS_MAX, steps_to_close
from tests.simulation.faults import TRANSFER, Fault
from tests.simulation.topology import Topology
from tests.simulation.wrongs import CLOSED, CONTRADICTION, MOVED, UNTRUE, Wrong

PASSES_STEPS: Final = 16
"""Steps of two detection passes: between a recovery and the first step that shows it, and until it is read."""


class FindingWatch:
    """Collects what is wrong in one run."""

    def __init__(self, faults: Sequence[Fault], topology: Topology) -> None:
        self._faults = tuple(faults)
        self._topology = topology
        self._since: dict[int, int] = {}
        self._found: dict[Wrong, None] = {}

    @property
    def violations(self) -> tuple[Wrong, ...]:
        """Return everything that is wrong once, in the order seen."""
        return tuple(self._found)

    def observe(self, findings: Sequence[Finding], step: int) -> None:
        """Check the findings that are open after `step` steps."""
        self._check_named_once(findings)
        if {SLOW_LINK, RUN_SLOWDOWN} <= {one.kind for one in findings}:
            self._check_link_told_once(findings)
        for finding in findings:
            self._check_since(finding)
            if finding.kind == STRAGGLER:
                self._check_present(finding, step)
            if finding.kind in (RUN_SLOWDOWN, STAGE):
                self._check_shared(finding, findings, step)

    def observe_passed(self, finding: Finding, step: int) -> None:
        """Check a finding that has passed after `step` steps."""
        lasting = [fault for fault in self._about(finding) if fault.lasts_at(step)]
        if lasting:
            self._add(CLOSED, f"finding {finding.number} ({finding.subject}) passed while {lasting[0].cause} lasts")

    def _add(self, kind: str, text: str) -> None:
        self._found[Wrong(kind, text)] = None

    def _check_named_once(self, findings: Iterable[Finding]) -> None:
        named = Counter(rank for one in findings if one.kind == STRAGGLER for rank in one.ranks)
        for rank, count in named.items():
            if count > 1:
                self._add(CONTRADICTION, f"{count} findings say that rank {rank} is slow")

    def _check_link_told_once(self, findings: Iterable[Finding]) -> None:
        if any(one.kind == RUN_SLOWDOWN and one.cause == SLOW_LINK for one in findings):
            self._add(CONTRADICTION, "the run is said to be slower, beside the link that slows it, by a link")

    def _check_since(self, finding: Finding) -> None:
        if finding.since_step is None:
            return
        before = self._since.setdefault(finding.number, finding.since_step)
        if finding.since_step > before:
            self._add(MOVED, f"the begin of finding {finding.number} ({finding.subject}) moved forward")
        self._since[finding.number] = finding.since_step

    def _check_present(self, finding: Finding, step: int) -> None:
        """Check that a straggler is said to be slow while it is so, and for no longer than it takes to see the end; and
        that it is not said to be healthy for longer than it takes to find it again.
        """
        mine, subject = self._about(finding), f"finding {finding.number} ({finding.subject})"
        limit = (steps_to_close(finding) or CLOSE_STEPS_MAX) + PASSES_STEPS
        lasting = [fault for fault in mine if fault.lasts_at(step)]
        if finding.is_paused:
            if any(fault.lasts_at(step - limit) for fault in lasting):
                self._add(UNTRUE, f"{subject} says that it is not slow, and it is")
            return
        ends = [fault.end for fault in mine if fault.end is not None]
        if not lasting and ends and step - max(ends) > limit:
            self._add(UNTRUE, f"{subject} says that it is slow, and it was until step {max(ends)}")

    def _check_shared(self, shared: Finding, findings: Sequence[Finding], step: int) -> None:
        """Check a finding about a stage or the run by its fields, however it is worded: whether it denies that a rank
        is to blame that is, or that another finding accuses; and of the run, whether it stands beside one about a rank
        that is slow, without anything else that makes the run slower.
        """
        ranks = set(shared.ranks or range(self._topology.world_size))
        stragglers = [one for one in findings if one.kind == STRAGGLER]
        accused = ranks.intersection(rank for one in stragglers for rank in one.ranks)
        if shared.details[BLAME] == NOBODY and accused:
            self._add(CONTRADICTION, f"{shared.kind} denies that rank {min(accused)} is to blame")
        causes = [one for one in self._faults if ranks <= set(one.ranks) or one.effect.kind == TRANSFER]
        if any(fault.begin < step for fault in causes):
            return
        if shared.details[BLAME] != NOT_KNOWN:
            self._add(UNTRUE, f"{shared.kind} blames no rank where one is to blame")
        explaining = [one for one in stragglers if self._about(one)]
        if shared.kind == RUN_SLOWDOWN and explaining:
            self._add(CONTRADICTION, f"the run is said to be slower, beside {explaining[0].subject}, which explains it")

    def _about(self, finding: Finding) -> list[Fault]:
        """Return the faults that a straggler is about."""
        if finding.kind != STRAGGLER:
            return []
        return [fault for fault in self._faults if not set(finding.ranks).isdisjoint(fault.ranks)]
