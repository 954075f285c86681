"""Groups whose members have called different numbers of collectives."""

import dataclasses

import numpy as np
import pytest

from rankscope.collector.config import CollectorConfig
from rankscope.collector.detect.detectors import read_thresholds
from rankscope.collector.detect.finding import Finding
from rankscope.collector.detect.run_rules.unmatched_collectives import FINDINGS_MAX, UnmatchedCollectives
from rankscope.collector.detect.view import Candidate, RunView
from rankscope.collector.steps.step_series import Lag
from tests.unit.collector.steps.step_series import series_of, view_of

STEPS_MIN = 8
DETECTOR = UnmatchedCollectives(dataclasses.replace(read_thresholds(CollectorConfig()), steps_min=STEPS_MIN))


def view(*lags: Lag) -> RunView:
    """Steps 0 to 39 of four ranks."""
    return view_of(dataclasses.replace(series_of(np.full((40, 4), 100.0).tolist()), lags=lags))


def find(*lags: Lag) -> list[Finding]:
    return [one.finding for one in DETECTOR.find(view(*lags), ())]


def test_rank_behind_is_named_with_its_group_and_nothing_blamed() -> None:
    (finding,) = find(Lag("dp/0-3", 3, 1, 20, 20))
    assert (finding.kind, finding.ranks, finding.group, finding.since_step, finding.severity) == (
        "unmatched_collectives", (3,), "dp/0-3", 20, "info",
    )  # fmt: skip
    assert finding.headline == "Rank 3: 1 collective behind most members of group dp/0-3 since step 20"
    assert finding.why == "fewer of them called, or one in another step"
    assert finding.also == ("the group's waits cannot be matched, so its members are not compared by it",)
    assert finding.evidence == {"collectives_behind/3": 1.0}


def test_rank_that_is_ahead_by_several() -> None:
    (finding,) = find(Lag("dp/0-3", 1, -2, 20, 20))
    assert finding.what == "2 collectives ahead of most members of group dp/0-3"
    assert finding.why.startswith("more of them called")


def test_begin_between_two_known_steps_has_a_range() -> None:
    (finding,) = find(Lag("dp/0-3", 3, 1, 20, 5))
    assert finding.since_range == (5, 20)
    assert finding.headline.endswith("since about step 20 (5-20)")


def test_several_ranks_of_a_group_are_one_finding_from_the_first() -> None:
    (finding,) = find(Lag("dp/0-3", 3, 1, 25, 25), Lag("dp/0-3", 1, -1, 20, 20))
    assert (finding.ranks, finding.since_step) == ((1, 3), 20)
    assert finding.headline == (
        "Ranks 1, 3: some collectives behind or ahead of most members of group dp/0-3 since step 20"
    )


def test_where_only_the_numbers_differ_the_waits_are_known() -> None:
    (finding,) = find(Lag("dp/0-3", 3, 1, 20, 20, is_matched=True))
    assert finding.why.startswith("only sequence numbers differ: the calls of a step still match")
    assert finding.also == ()
    (finding,) = find(Lag("dp/0-3", 2, 1, 20, 20), Lag("dp/0-3", 3, 1, 20, 20, is_matched=True))
    assert finding.also[0].startswith("the group's waits cannot be matched")


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


# -- what it costs ----------------------------------------------------------------------------------------------------


def slower(since: int, lag_since: int, *, matched: bool = False, members: tuple[int, ...] = (0, 1, 2, 3)) -> Candidate:
    """80 steps of 100 ms, and of 150 ms from `since` on, in which rank 3 is behind from `lag_since` on."""
    lag = Lag("dp/0-3", 3, 1, lag_since, lag_since - 3, is_matched=matched)
    times = [[100.0] * 4] * since + [[150.0] * 4] * (80 - since)
    (found,) = DETECTOR.find(
        view_of(dataclasses.replace(series_of(times), lags=(lag,)), groups={"dp/0-3": members}), ()
    )
    return found


def test_shift_costs_by_what_the_steps_are_longer_since_then() -> None:
    found = slower(40, 41)
    assert found.finding.run_slowdown_ratio == pytest.approx(1.5)
    assert found.finding.severity == "warning"
    # 39 steps of 50 ms.
    assert isinstance(found.lost_ns, np.ndarray)
    assert found.lost_ns.sum() == pytest.approx(39 * 50e6)


@pytest.mark.parametrize(
    "found", [slower(40, 60), slower(40, 41, matched=True), slower(40, 41, members=(2, 3)), slower(80, 41)]
)
def test_slowdown_of_another_begin_or_other_ranks_is_not_charged(found: Candidate) -> None:
    assert (found.finding.run_slowdown_ratio, found.finding.severity, found.lost_ns) == (None, "info", None)


def test_cost_is_kept_at_the_level_of_its_begin() -> None:
    known = slower(40, 41).finding
    # The steps before are kept no more, and something else has made the last 40 steps longer.
    times = [[150.0] * 4] * 40 + [[300.0] * 4] * 40
    lag = Lag("dp/0-3", 3, 1, 0, 0)
    later = view_of(dataclasses.replace(series_of(times), lags=(lag,)), groups={"dp/0-3": (0, 1, 2, 3)})
    (found,) = DETECTOR.find(later, [known])
    assert isinstance(found.lost_ns, np.ndarray)
    assert found.lost_ns.max() == pytest.approx(50e6)
