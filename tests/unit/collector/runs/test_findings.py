"""The findings of a run over time, from a detector that finds what the test tells it to."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from rankscope.collector.detect.detectors import detect
from rankscope.collector.detect.finding import Abstain, Finding
from rankscope.collector.detect.view import Candidate, RunView
from rankscope.collector.runs.events import CloseFinding, OpenFinding, RunEffect, UpdateFinding
from rankscope.collector.runs.findings import RunFindings
from rankscope.collector.steps.step_series import Floats, StepSeries
from rankscope.measure.units import NS_PER_S
from tests.unit.collector.detect.findings import RUN, slow
from tests.unit.collector.steps.step_series import view_of


class Told:
    """The detector: `answer` is what it finds, `passed` what it says of findings it does not give again."""

    kinds = frozenset({"straggler", "slow_link"})

    def __init__(self) -> None:
        self.answer: Sequence[Candidate] | Abstain = []
        self.passed: bool | Abstain = False

    def find(self, view: RunView, explained: Sequence[Finding]) -> Sequence[Candidate] | Abstain:
        """What it was told."""
        del view, explained
        return self.answer

    def has_passed(self, view: RunView, finding: Finding, explained: Sequence[Finding]) -> bool | Abstain:
        """What it was told."""
        del view, finding, explained
        return self.passed


def view_until(step: int) -> RunView:
    self_ns = np.full((step + 1, 4), 1e6)
    return view_of(StepSeries(np.arange(step + 1), (0, 1, 2, 3), self_ns, self_ns, self_ns, {}, self_is_measured=True))


def seconds(*lost_s: float) -> Floats:
    return np.array(lost_s) * NS_PER_S


def look(findings: RunFindings, detector: Told, view: RunView) -> list[RunEffect]:
    """One detection pass."""
    return findings.apply(detect(replace(view, open_findings=findings.held), (detector,)))


def started(*findings: Finding) -> tuple[Told, RunFindings]:
    told = Told()
    told.answer = [Candidate(finding) for finding in findings]
    verdicts = RunFindings(RUN, 10)
    look(verdicts, told, view_until(3))
    return told, verdicts


def test_merged_finding_names_the_one_it_is_part_of() -> None:
    told, verdicts = started(slow(2), slow(3))
    told.answer = [Candidate(slow(ranks=(2, 3)))]
    closed = [effect for effect in look(verdicts, told, view_until(3)) if isinstance(effect, CloseFinding)]
    assert [(end.finding.ranks, end.reason, end.merged_into) for end in closed] == [((3,), "part of finding 1", 1)]
    assert [end.merged_into for end in verdicts.close_all("restarted") if isinstance(end, CloseFinding)] == [None]


def test_finding_keeps_its_number_and_updates_on_change() -> None:
    told, verdicts = started()
    told.answer = [Candidate(slow(2))]
    (opened,) = look(verdicts, told, view_until(3))
    assert isinstance(opened, OpenFinding)
    assert opened.finding.number == 1
    assert look(verdicts, told, view_until(4)) == []
    told.answer = [Candidate(slow(ranks=(2, 3)))]
    (changed,) = look(verdicts, told, view_until(5))
    assert isinstance(changed, UpdateFinding)
    assert (changed.finding.number, changed.finding.ranks) == (1, (2, 3))


def test_finding_not_detected_again_stays_until_it_passes() -> None:
    told, verdicts = started(slow(2))
    told.answer = []
    assert look(verdicts, told, view_until(4)) == []
    told.passed = True
    (closed,) = look(verdicts, told, view_until(5))
    assert isinstance(closed, CloseFinding)
    assert closed.reason == "passed"
    assert (verdicts.open_findings, len(verdicts.closed_findings)) == ((), 1)


def test_finding_that_cannot_be_judged_any_more_closes_with_the_reason() -> None:
    told, verdicts = started(slow(2), slow(3))
    told.answer, told.passed = [], Abstain("full windows ended after step 80")
    closed = [one for one in look(verdicts, told, view_until(5)) if isinstance(one, CloseFinding)]
    assert [one.reason for one in closed] == ["can no longer be judged: full windows ended after step 80"] * 2
    assert (verdicts.held, [one.number for one in verdicts.closed_findings]) == ((), [1, 2])


def test_finding_and_reason_stay_while_a_detector_abstains() -> None:
    told, verdicts = started(slow(2))
    told.answer, told.passed = Abstain("too few steps"), True
    assert look(verdicts, told, view_until(4)) == []
    assert verdicts.abstained == {"slow_link": "too few steps", "straggler": "too few steps"}
    told.answer = []
    look(verdicts, told, view_until(5))
    assert (verdicts.abstained, verdicts.open_findings) == ({}, ())


def test_each_step_is_charged_once_with_unknown_ones_before() -> None:
    told, verdicts = started()
    told.answer = [Candidate(slow(2, since_step=1), seconds(5.0, 0.1, np.nan, 0.2))]
    look(verdicts, told, view_until(3))
    look(verdicts, told, view_until(3))
    told.answer = [Candidate(slow(2, since_step=1), seconds(5.0, 0.1, 0.4, 0.2, 0.3))]
    look(verdicts, told, view_until(4))
    lost_s = 0.1 + 2 * 0.2 + 0.3
    assert [found.lost_rank_seconds for found in verdicts.open_findings] == [pytest.approx(4 * lost_s)]
    (lost,) = verdicts.lost
    assert (lost.rank, lost.cause) == (2, "host_cpu")
    assert lost.lost_rank_seconds == pytest.approx(4 * lost_s)


@pytest.mark.parametrize(("ranks", "charged"), [((1, 2), None), ((1,), 1), ((), None)])
def test_group_is_charged_to_a_rank_only_where_one_is_named(ranks: tuple[int, ...], charged: int | None) -> None:
    told, verdicts = started()
    link = Finding(kind="slow_link", ranks=ranks, group="mesh_dp/1-2", since_step=0, cause="slow_link", sentence="")
    told.answer = [Candidate(link, seconds(1.0, 1.0))]
    look(verdicts, told, view_until(1))
    assert [lost.rank for lost in verdicts.lost] == [charged]
