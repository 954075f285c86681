"""The findings of a run over time, from a detector that finds what the test tells it to."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from rankscope.collector.detect.detectors import detect
from rankscope.collector.detect.finding import Abstain, Finding
from rankscope.collector.detect.view import Candidate, RunView, SingleLosses
from rankscope.collector.runs.events import CloseFinding, FindingOpened, RunEffect, UpdateFinding
from rankscope.collector.runs.findings import RunFindings, _Open
from rankscope.collector.steps.step_series import Floats, StepSeries
from rankscope.measure.units import NS_PER_S
from tests.unit.collector.detect.findings import RUN, slow
from tests.unit.collector.steps.step_series import view_of


class Told:
    """The detector: `answer` is what it finds, `passed` what it says of findings it does not give again."""

    kinds = frozenset({"straggler", "slow_link", "uneven_work"})

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


def view_until(step: int, step_s: float = 0.001) -> RunView:
    own_ns = np.full((step + 1, 4), float(step_s * NS_PER_S))
    return view_of(StepSeries(np.arange(step + 1), (0, 1, 2, 3), own_ns, own_ns, own_ns, {}, own_is_measured=True))


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
    assert isinstance(opened, FindingOpened)
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


def test_no_single_straggler_held_until_a_straggler_began() -> None:
    uneven = Finding(kind="uneven_work", ranks=(), cause="unattributed", since_step=2, sentence="")
    told, verdicts = started(uneven)
    told.answer = [Candidate(uneven), Candidate(slow(2, since_step=6))]
    look(verdicts, told, view_until(9))
    assert [one.until_step for one in verdicts.findings_as_closed if one.kind == "uneven_work"] == [5]  # as saved
    told.answer, told.passed = told.answer[1:], True
    (closed,) = (one for one in look(verdicts, told, view_until(12)) if isinstance(one, CloseFinding))
    assert (closed.finding.kind, closed.finding.until_step) == ("uneven_work", 5)
    assert closed.finding.lasted_s is not None
    assert closed.finding.lasted_s < 0.006  # it began after step 1, and steps are of 1 ms


def test_finding_no_longer_judged_closes_with_the_reason() -> None:
    told, verdicts = started(slow(2), slow(3))
    told.answer, told.passed = [], Abstain("full windows ended after step 80")
    closed = [one for one in look(verdicts, told, view_until(5)) if isinstance(one, CloseFinding)]
    assert [one.reason for one in closed] == ["can no longer be judged: full windows ended after step 80"] * 2
    assert (verdicts.held, [one.number for one in verdicts.closed_findings]) == ((), [1, 2])


def test_finding_and_reason_stay_while_a_detector_abstains() -> None:
    told, verdicts = started(slow(2))
    told.answer, told.passed = Abstain("too few steps"), True
    assert look(verdicts, told, view_until(4)) == []
    assert verdicts.abstained == dict.fromkeys(Told.kinds, "too few steps")
    told.answer = []
    look(verdicts, told, view_until(5))
    assert (verdicts.abstained, verdicts.open_findings) == ({}, ())


def test_each_step_is_charged_once_with_unknown_ones_before() -> None:
    told, verdicts = started()
    told.answer = [Candidate(slow(2, since_step=1), seconds(5.0, 0.1, np.nan, 0.2))]
    look(verdicts, told, view_until(3, step_s=10))
    look(verdicts, told, view_until(3, step_s=10))
    told.answer = [Candidate(slow(2, since_step=1), seconds(5.0, 0.1, 0.4, 0.2, 0.3))]
    look(verdicts, told, view_until(4, step_s=10))
    lost_s = 0.1 + 2 * 0.2 + 0.3
    assert [found.lost_rank_seconds for found in verdicts.open_findings] == [pytest.approx(4 * lost_s)]
    (lost,) = verdicts.lost
    assert (lost.rank, lost.cause) == (2, "host_cpu")
    assert lost.lost_rank_seconds == pytest.approx(4 * lost_s)


def test_step_of_unknown_loss_is_charged_as_the_next_known_one() -> None:
    # So that a run that has charged it to another finding counts it once.
    told, verdicts = started()
    told.answer = [Candidate(slow(2, since_step=1), seconds(5.0, 0.1, np.nan, 0.2))]
    look(verdicts, told, view_until(3, step_s=10))
    ((steps, lost_ns),) = verdicts.charged
    assert steps.tolist() == [1, 2, 3]
    assert (lost_ns / 1e9).tolist() == pytest.approx([0.1, 0.2, 0.2])


def test_steps_to_the_end_are_charged_as_the_last_known_ones() -> None:
    # Windows show 3 s of each of steps 1 to 3. Of 4 to 7 only the lengths are known: 10, 10, 8 and 6 s.
    told, verdicts = started()
    lost_ns = seconds(5.0, 3.0, 3.0, 3.0, *[np.nan] * 4)
    told.answer = [Candidate(slow(2, since_step=1), lost_ns)]
    view = view_until(7, step_s=10)
    view.series.step_ns[6:] = seconds(8.0, 6.0)[:, None]
    look(verdicts, told, view)
    (lost,) = verdicts.lost
    assert lost.lost_rank_seconds == pytest.approx(4 * 9.0)  # they may be known later
    look(verdicts, told, replace(view, is_last=True))
    (lost,) = verdicts.lost
    assert lost.lost_rank_seconds == pytest.approx(4 * (9.0 + 3.0 + 3.0 + 1.0 + 0.0))


def test_stall_is_charged_once_even_if_another_finding_follows() -> None:
    told, verdicts = started()
    stalls = SingleLosses(np.array([1, 3, 5]), seconds(0.1, 0.2, 0.4))
    told.answer = [Candidate(slow(2, since_step=1), SingleLosses(stalls.steps[:2], stalls.lost_ns[:2]))]
    look(verdicts, told, view_until(4))
    told.answer, told.passed = [], True
    look(verdicts, told, view_until(4))
    told.answer, told.passed = [Candidate(slow(2, since_step=1), stalls)], False
    look(verdicts, told, view_until(6))
    (lost,) = verdicts.lost
    assert lost.lost_rank_seconds == pytest.approx(4 * 0.7)
    # In another attempt the steps count anew.
    verdicts.begin_attempt()
    look(verdicts, told, view_until(6))
    (lost,) = verdicts.lost
    assert lost.lost_rank_seconds == pytest.approx(4 * 1.4)


@pytest.mark.parametrize(("ranks", "charged"), [((1, 2), None), ((1,), 1), ((), None)])
def test_group_is_charged_to_a_rank_only_where_one_is_named(ranks: tuple[int, ...], charged: int | None) -> None:
    told, verdicts = started()
    link = Finding(kind="slow_link", ranks=ranks, group="mesh_dp/1-2", since_step=0, cause="slow_link", sentence="")
    told.answer = [Candidate(link, seconds(1.0, 1.0))]
    look(verdicts, told, view_until(1, step_s=1))
    assert [lost.rank for lost in verdicts.lost] == [charged]


@pytest.mark.parametrize(("pattern", "lost_s"), [("steady", 100 * 0.5), ("intermittent", 0.5)])
def test_slow_step_of_some_stands_for_none_that_left_the_table(pattern: str, lost_s: float) -> None:
    told, verdicts = started()
    told.answer = [Candidate(msgspec.structs.replace(slow(2, since_step=1), pattern=pattern), seconds(0.5))]
    own_ns = np.full((1, 4), 1.0 * NS_PER_S)
    series = StepSeries(np.array([100]), (0, 1, 2, 3), own_ns, own_ns, own_ns, {}, own_is_measured=True)
    look(verdicts, told, view_of(series))
    (lost,) = verdicts.lost
    assert lost.lost_rank_seconds == pytest.approx(4 * lost_s)


def test_step_stands_for_others_by_no_more_than_they_lasted() -> None:
    # Step 3, of 10 s, lost 5 s; steps 1 and 2, whose waits are not known, took 1 s each: 12 s in all, not 15.
    told, verdicts = started()
    told.answer = [Candidate(slow(2, since_step=1), seconds(0.0, np.nan, np.nan, 5.0))]
    view = view_until(3, step_s=10)
    view.series.step_ns[1:3] = NS_PER_S
    look(verdicts, told, view)
    (lost,) = verdicts.lost
    assert lost.lost_rank_seconds == pytest.approx(4 * 12)


@pytest.mark.parametrize("lost_s", [-0.5, 2.0, 200_000.0])
def test_loss_that_cannot_be_is_left_out_and_noted(lost_s: float) -> None:
    told, verdicts = started()
    told.answer = [Candidate(slow(2, since_step=2), seconds(0.0, 0.0, lost_s, 0.5))]
    look(verdicts, told, view_until(3, step_s=1))
    # The last step stands for the one before it: 2 x 0.5 s.
    assert [lost.lost_rank_seconds for lost in verdicts.lost] == [pytest.approx(4 * 2 * 0.5)]
    (noted,) = verdicts.impossible.pop()
    assert (noted.kind, noted.times) == ("loss", 1)
    assert noted.inputs == f"straggler of rank 2: {lost_s * NS_PER_S:.0f} ns lost of the 1000000000 ns of step 2"


@pytest.mark.parametrize("evidence", [{"core_wait_ratio": 8.25}, {"own_ns": -7e6}, {"robust_z": float("nan")}])
def test_finding_with_a_number_that_cannot_be_says_nothing(evidence: dict[str, float]) -> None:
    told, verdicts = started()
    told.answer = [Candidate(msgspec.structs.replace(slow(2), evidence=evidence))]
    assert look(verdicts, told, view_until(3)) == []
    assert [(one.kind, one.times) for one in verdicts.impossible.pop()] == [(name, 1) for name in evidence]


# -- what a finding says that it costs --------------------------------------------------------------------------------


def steps_of(first: int, last: int) -> RunView:
    """The steps from the first to the last are kept, each of 1 s."""
    own_ns = np.full((last + 1 - first, 4), float(NS_PER_S))
    steps = np.arange(first, last + 1)
    return view_of(StepSeries(steps, (0, 1, 2, 3), own_ns, own_ns, own_ns, {}, own_is_measured=True))


def stated(verdicts: RunFindings) -> float | None:
    (finding,) = verdicts.open_findings
    return finding.run_slowdown_ratio


def test_slowness_of_some_steps_costs_all_it_was_charged_so_far() -> None:
    told, verdicts = Told(), RunFindings(RUN, 10)
    found = slow(2, since_step=2, pattern="intermittent", run_slowdown_ratio=1.9)
    told.answer = [Candidate(found, seconds(0, 0, 0.5, 0, 0, 0, 0.5, 0, 0, 0))]
    look(verdicts, told, steps_of(0, 9))
    assert stated(verdicts) == pytest.approx(8 / (8 - 1))
    told.answer = [Candidate(found, np.zeros(10))]  # the slow steps have left the table
    look(verdicts, told, steps_of(10, 19))
    assert stated(verdicts) == pytest.approx(18 / (18 - 1))


def test_steady_slowness_costs_what_its_present_size_does() -> None:
    told, verdicts = Told(), RunFindings(RUN, 10)
    told.answer = [Candidate(slow(2, since_step=2, run_slowdown_ratio=1.9), np.zeros(10))]
    look(verdicts, told, steps_of(0, 9))
    assert stated(verdicts) == 1.9


def test_slowness_that_comes_and_goes_costs_all_its_times() -> None:
    told, verdicts = Told(), RunFindings(RUN, 10)
    told.answer = [Candidate(slow(2, since_step=5), seconds(*[0] * 5, *[0.4] * 5))]
    look(verdicts, told, steps_of(0, 9))
    told.answer, told.passed = [], True
    look(verdicts, told, steps_of(10, 19))
    told.answer = [Candidate(slow(2, since_step=25), seconds(*[0] * 5, *[0.4] * 5))]
    look(verdicts, told, steps_of(20, 29))
    (finding,) = verdicts.open_findings
    assert (finding.recurs, finding.since_step) == (True, 5)
    assert finding.run_slowdown_ratio == pytest.approx(25 / (25 - 10 * 0.4))


# -- findings that come and go ----------------------------------------------------------------------------------------


class Clock:
    """The findings of a run whose rank 2 is slow or not, pass by pass, on a clock of the collector."""

    def __init__(self, kind: str = "straggler") -> None:
        self._told, self.findings = Told(), RunFindings(RUN, 10)
        self._kind = kind
        self.now_s = 0

    def look(self, now_s: int, *, is_slow: bool, since_step: int = 60) -> list[RunEffect]:
        self.now_s = now_s
        found = msgspec.structs.replace(slow(2), kind=self._kind, since_step=since_step)
        self._told.answer = [Candidate(found)] if is_slow else []
        self._told.passed = not is_slow
        return look(self.findings, self._told, replace(view_until(80), now_collector_ns=now_s * NS_PER_S))

    def come_back(self, kept_away_s: int = 20) -> Finding:
        """Be slow, pass, and be slow again after so long; return the finding."""
        self.look(0, is_slow=True)
        (closed,) = self.look(30, is_slow=False)
        assert isinstance(closed, CloseFinding)
        self.look(30 + kept_away_s, is_slow=True, since_step=70)
        (finding,) = self.findings.open_findings
        return finding


def test_straggler_that_has_come_back_stays_open_for_5_minutes() -> None:
    clock = Clock()
    finding = clock.come_back()
    assert (finding.number, finding.recurs) == (2, True)
    assert clock.look(80, is_slow=False) == []
    (paused,) = clock.findings.open_findings
    assert (paused.is_paused, paused.until_step) == (True, None)
    assert clock.findings.held == (), "detection judges anew"
    assert clock.look(379, is_slow=False) == []
    (closed,) = clock.look(380, is_slow=False)
    assert isinstance(closed, CloseFinding)
    assert (closed.reason, closed.finding.until_step) == ("passed", 80)
    assert (closed.finding.recurs, closed.finding.is_paused, closed.finding.since_step) == (True, False, 60)


def test_paused_straggler_that_is_found_again_is_the_same() -> None:
    clock = Clock()
    clock.come_back()
    clock.look(80, is_slow=False)
    assert clock.look(110, is_slow=True, since_step=78) == []
    (finding,) = clock.findings.open_findings
    assert (finding.number, finding.since_step, finding.recurs, finding.is_paused) == (2, 60, True, False)
    # The 5 minutes begin anew.
    assert clock.look(140, is_slow=False) == []
    assert clock.look(439, is_slow=False) == []
    assert len(clock.look(440, is_slow=False)) == 1


def test_returned_straggler_has_the_range_of_its_first_begin() -> None:
    found = slow(2, since_step=70)
    before = msgspec.structs.replace(found, since_step=60, since_step_min=55, since_step_max=61)
    kept = _Open(before, 59, recurs=True).describe(msgspec.structs.replace(found, since_step_min=66, since_step_max=71))
    assert (kept.since_step, kept.since_range) == (60, (55, 61))


def test_straggler_that_comes_back_late_is_another_one() -> None:
    clock = Clock()
    finding = clock.come_back(kept_away_s=300)
    assert not finding.recurs
    assert len(clock.look(400, is_slow=False)) == 1


def test_only_stragglers_are_kept_open() -> None:
    clock = Clock("slow_link")
    assert not clock.come_back().recurs
    assert len(clock.look(80, is_slow=False)) == 1


def test_what_passed_in_an_earlier_attempt_has_not_come_back() -> None:
    clock = Clock()
    clock.look(0, is_slow=True)
    clock.look(30, is_slow=False)
    clock.findings.begin_attempt()
    clock.look(50, is_slow=True)
    assert len(clock.look(80, is_slow=False)) == 1


def test_most_severe_findings_come_first_and_equals_by_rank() -> None:
    found = {3: "info", 2: "warning", 1: "critical", 0: "warning"}
    _, verdicts = started(*(msgspec.structs.replace(slow(rank), severity=found[rank]) for rank in found))
    assert [one.ranks for one in verdicts.open_findings] == [(1,), (0,), (2,), (3,)]


def test_returned_straggler_keeps_its_cause_if_none_is_known_now() -> None:
    known = msgspec.structs.replace(slow(2, since_step=60), cause="data_loading", why="late data")
    unknown = msgspec.structs.replace(slow(2, since_step=70), cause="unattributed", why="no known cause")
    told, verdicts = started()
    told.answer = [Candidate(known)]
    look(verdicts, told, view_until(64))
    told.answer, told.passed = [], True
    look(verdicts, told, view_until(68))
    told.answer, told.passed = [Candidate(unknown)], False
    (opened,) = (one for one in look(verdicts, told, view_until(74)) if isinstance(one, FindingOpened))
    assert (opened.finding.cause, opened.finding.why, opened.finding.since_step) == ("data_loading", "late data", 60)
