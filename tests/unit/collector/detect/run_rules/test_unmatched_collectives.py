"""Groups whose members have called different numbers of collectives."""

import dataclasses

import numpy as np

from rankscope.collector.detect.finding import Finding
from rankscope.collector.detect.run_rules.unmatched_collectives import FINDINGS_MAX, UnmatchedCollectives
from rankscope.collector.detect.view import RunView
from rankscope.collector.steps.step_series import Lag
from tests.unit.collector.steps.step_series import series_of, view_of

STEPS_MIN = 8
DETECTOR = UnmatchedCollectives(STEPS_MIN)


def view(*lags: Lag) -> RunView:
    """Steps 0 to 39 of four ranks."""
    return view_of(dataclasses.replace(series_of(np.full((40, 4), 100.0).tolist()), lags=lags))


def find(*lags: Lag) -> list[Finding]:
    return [one.finding for one in DETECTOR.find(view(*lags), ())]


def test_rank_that_is_behind_is_named_with_its_group_and_nothing_is_blamed() -> None:
    (finding,) = find(Lag("dp/0-3", 3, 1, 20, 20))
    assert (finding.kind, finding.ranks, finding.group, finding.since_step, finding.severity) == (
        "unmatched_collectives", (3,), "dp/0-3", 20, "info",
    )  # fmt: skip
    assert finding.sentence == (
        "In group dp/0-3 rank 3 is 1 collective behind most members since step 20: it has called fewer of them, or one "
        "of them in another step. What the group waits for cannot be matched, so that its members are not compared by "
        "it."
    )
    assert finding.past == (
        "In group dp/0-3 rank 3 was 1 collective behind most members{when}: it had called fewer of them, or one of "
        "them in another step. What the group waited for could not be matched, so that its members were not compared "
        "by it."
    )
    assert finding.evidence == {"collectives_behind/3": 1.0}


def test_rank_that_is_ahead_by_several() -> None:
    (finding,) = find(Lag("dp/0-3", 1, -2, 20, 20))
    assert "rank 1 is 2 collectives ahead of most members since step 20: it has called more of them" in finding.sentence


def test_begin_between_two_known_steps_has_a_range() -> None:
    (finding,) = find(Lag("dp/0-3", 3, 1, 20, 5))
    assert finding.since_range == (5, 20)
    assert "behind most members since about step 20 (between 5 and 20): it has" in finding.sentence


def test_several_ranks_of_a_group_are_one_finding_since_the_first() -> None:
    (finding,) = find(Lag("dp/0-3", 3, 1, 25, 25), Lag("dp/0-3", 1, -1, 20, 20))
    assert (finding.ranks, finding.since_step) == ((1, 3), 20)
    assert finding.sentence.startswith(
        "In group dp/0-3 ranks 1, 3 are behind or ahead of most members by some collectives since step 20: they have"
    )
    assert "ranks 1, 3 were behind or ahead of most members by some collectives{when}: they had" in finding.past


def test_where_only_the_numbers_differ_the_waits_are_known() -> None:
    (finding,) = find(Lag("dp/0-3", 3, 1, 20, 20, is_matched=True))
    assert finding.sentence.endswith(
        "since step 20: only its sequence numbers differ. All members leave a collective together, and the ends of the "
        "calls show that those of a step still match: the group's waits are known."
    )
    assert "showed that those of a step still matched: the group's waits were known." in finding.past
    (finding,) = find(Lag("dp/0-3", 2, 1, 20, 20), Lag("dp/0-3", 3, 1, 20, 20, is_matched=True))
    assert "What the group waits for cannot be matched" in finding.sentence


def test_it_is_said_after_as_many_steps_as_a_verdict_takes() -> None:
    assert find(Lag("dp/0-3", 3, 1, 33, 33)) == []
    assert len(find(Lag("dp/0-3", 3, 1, 32, 32))) == 1


def test_of_many_groups_the_first_are_said() -> None:
    found = find(*(Lag(f"dp/{rank}", rank, 1, 30 - rank, 30 - rank) for rank in range(4)))
    assert [one.ranks for one in found] == [(3,), (2,), (1,)]
    assert len(found) == FINDINGS_MAX


def test_it_has_passed_once_the_group_is_matched_again() -> None:
    (finding,) = find(Lag("dp/0-3", 3, 1, 20, 20))
    assert DETECTOR.has_passed(view(), finding, ())
    assert not DETECTOR.has_passed(view(Lag("dp/0-3", 2, 1, 38, 38)), finding, ())
