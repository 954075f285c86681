"""What a run's verdicts say of a finding that has become part of another one."""

from collections.abc import Sequence

import numpy as np

from rankscope.collector.detect.finding import Finding
from rankscope.collector.detect.series import StepSeries
from rankscope.collector.detect.view import Candidate, JobView
from rankscope.collector.state.effects import CloseFinding
from rankscope.collector.state.verdicts import Verdicts
from tests.unit.collector.findings import RUN, slow
from tests.unit.collector.step_series import view_of


class Told:
    """A detector that finds what the test tells it to."""

    kinds = frozenset({"straggler"})

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def find(self, view: JobView, explained: Sequence[Finding]) -> Sequence[Candidate]:
        """What it was told."""
        del view, explained
        return [Candidate(finding) for finding in self.findings]

    def has_passed(self, view: JobView, finding: Finding, explained: Sequence[Finding]) -> bool:
        """Never."""
        del view, finding, explained
        return False


def test_the_end_of_a_merged_finding_names_the_one_that_took_it_in() -> None:
    self_ns = np.full((4, 4), 1e6)
    view = view_of(StepSeries(np.arange(4), (0, 1, 2, 3), self_ns, self_ns, self_ns, {}, self_is_measured=True))
    told = Told()
    verdicts = Verdicts(RUN, (told,), 10)
    told.findings = [slow(2), slow(3)]
    verdicts.look(view)
    told.findings = [slow(ranks=(2, 3))]
    closed = [effect for effect in verdicts.look(view) if isinstance(effect, CloseFinding)]
    assert [(end.finding.ranks, end.reason, end.merged_into) for end in closed] == [((3,), "part of finding 1", 1)]
    assert [end.merged_into for end in verdicts.close_all("restarted") if isinstance(end, CloseFinding)] == [None]
