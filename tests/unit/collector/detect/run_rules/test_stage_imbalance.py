"""Imbalanced stages: two pipeline stages of four ranks each unless stated otherwise. Seeded noise."""

import numpy as np
import pytest

from rankscope.collector.detect.finding import Abstain, Finding
from rankscope.collector.detect.run_rules.stage_imbalance import StageImbalance
from rankscope.collector.detect.stragglers.persistent import Thresholds
from rankscope.collector.detect.view import Candidate, RunView
from rankscope.collector.steps.step_series import Floats
from tests.unit.collector.steps.step_series import MS, series_of, view_of

FIRST, LAST = (0, 1, 2, 3), (4, 5, 6, 7)
STAGES = dict.fromkeys(FIRST, "first") | dict.fromkeys(LAST, "last")
DETECTOR = StageImbalance(Thresholds(slowdown_ratio_min=1.15, slowdown_close_ratio=1.075, persistence_ratio=0.9))


def work(*stages_ms: float, steps: int = 100, spread: float = 0.02, seed: int = 1) -> Floats:
    """Own times in ms of stages of four ranks."""
    usual = np.repeat(np.array(stages_ms), 4)
    return usual * np.exp(np.random.default_rng(seed).normal(0.0, spread, (steps, len(usual))))


def view(own_ms: Floats, signatures: dict[int, str] | None = None, *, first_step: int = 0) -> RunView:
    series = series_of(own_ms.tolist(), first_step=first_step)
    return view_of(series, signatures=STAGES if signatures is None else signatures)


def candidates(own_ms: Floats, *known: Finding, signatures: dict[int, str] | None = None) -> list[Candidate]:
    found = DETECTOR.find(view(own_ms, signatures), known)
    assert not isinstance(found, Abstain)
    return list(found)


def findings(own_ms: Floats, *known: Finding, signatures: dict[int, str] | None = None) -> list[Finding]:
    return [candidate.finding for candidate in candidates(own_ms, *known, signatures=signatures)]


def straggler(*ranks: int) -> Finding:
    return Finding(kind="straggler", ranks=ranks, cause="host_cpu", sentence="")


def test_stage_with_more_work_is_named_with_all_its_ranks() -> None:
    # 140 ms against a mean of (100 + 140) / 2 = 120.
    (finding,) = findings(work(100, 140))
    assert (finding.kind, finding.cause, finding.severity) == ("imbalance", "more_work", "info")
    assert (finding.ranks, finding.since_step) == (LAST, 0)
    assert finding.slowdown_ratio == pytest.approx(140 / 120, rel=0.01)


def test_sentence_states_the_saving_of_an_even_split() -> None:
    # Without noise: steps of 140 ms would take 120; 20 of 140 parts of eight ranks are lost.
    (finding,) = findings(work(100, 140, spread=0.0))
    assert finding.headline == "Ranks 4-7: 1.17x as much work as the mean of all ranks in every step since step 0"
    assert finding.figures == "Own time 140.0 ms per step, mean of all ranks 120.0 ms"
    assert finding.cost == "run 1.17x slower than with an even split"


@pytest.mark.parametrize(("last_ms", "count"), [(130, 0), (140, 1)])
def test_a_seventh_more_than_the_mean_is_an_imbalance(last_ms: float, count: int) -> None:
    # 130 / 115 is 1.13 and 140 / 120 is 1.17.
    assert len(findings(work(100, last_ms))) == count


def test_lighter_stage_is_not_named() -> None:
    # 40 / 85 and 100 / 85 = 1.18: the three others have more than the mean.
    signatures = {rank: "abcd"[rank // 4] for rank in range(16)}
    found = findings(work(100, 100, 40, 100), signatures=signatures)
    assert sorted(finding.ranks[0] for finding in found) == [0, 4, 12]


def test_step_is_charged_to_the_heaviest_group_only() -> None:
    signatures = {rank: "abc"[rank // 4] for rank in range(12)}
    # The mean of 60, 150 and 140 is 117.
    one, other = candidates(work(60, 150, 140, spread=0.0), signatures=signatures)
    assert one.finding.ranks == (4, 5, 6, 7)
    assert one.lost_ns == pytest.approx((150 - 350 / 3) * MS)
    assert other.lost_ns == pytest.approx(0.0)


def test_steps_that_are_not_known_of_all_ranks_are_not_charged() -> None:
    own_ms = work(100, 140)
    own_ms[7, 0] = np.nan
    (candidate,) = candidates(own_ms)
    assert candidate.lost_ns is not None
    assert np.flatnonzero(np.isnan(candidate.lost_ns)).tolist() == [7]


def test_ranks_without_peers_count_for_the_mean() -> None:
    # (8 * 100 + 4 * 150 + 2 * 60) / 14 = 108.6
    groups = dict.fromkeys(range(8), "a") | dict.fromkeys(range(8, 12), "b") | {12: "c", 13: "d"}
    own_ms = np.concatenate([work(100, 100, 150), work(60)[:, :2]], axis=1)
    (finding,) = findings(own_ms, signatures=groups)
    assert finding.slowdown_ratio == pytest.approx(150 / 108.6, rel=0.01)


# -- what is no imbalance ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("spread", [0.02, 0.15])
def test_equal_stages_are_balanced(spread: float, seed: int) -> None:
    assert findings(work(100, 100, spread=spread, seed=seed)) == []


def test_stage_that_became_slower_is_not_called_imbalanced() -> None:
    own_ms = work(100, 100)
    own_ms[50:, 4:] *= 1.5
    assert findings(own_ms) == []


def test_one_slow_rank_makes_no_imbalance() -> None:
    own_ms = work(100, 100)
    own_ms[:, 4] *= 3
    assert findings(own_ms) == []


@pytest.mark.parametrize(("ranks", "count"), [(LAST, 0), ((4, 5), 1)])
def test_stage_of_known_slow_ranks_is_explained(ranks: tuple[int, ...], count: int) -> None:
    assert len(findings(work(100, 140), straggler(*ranks))) == count


PAIRS = {rank: f"stage {rank // 2}" for rank in range(8)}


def test_stage_of_two_ranks_is_named() -> None:
    # pp 4 x dp 2: 160 ms beside three stages of 80 ms, whose mean is 100 ms.
    own_ms = work(80, 80)
    own_ms[:, 6:] *= 2
    (finding,) = findings(own_ms, signatures=PAIRS)
    assert finding.ranks == (6, 7)
    assert finding.slowdown_ratio == pytest.approx(1.6, rel=0.01)


def test_one_slow_rank_of_two_is_no_heavy_stage() -> None:
    own_ms = work(100, 100)
    own_ms[:, 6] *= 1.6
    assert findings(own_ms, signatures=PAIRS) == []


@pytest.mark.parametrize("signatures", [{}, dict.fromkeys(range(8), "one")])
def test_ranks_that_all_do_the_same_work_cannot_be_imbalanced(signatures: dict[int, str]) -> None:
    found = DETECTOR.find(view(work(100, 140), signatures), ())
    assert found == Abstain("no two groups of two ranks or more that do different work are known")


def test_no_verdict_on_too_few_steps() -> None:
    found = DETECTOR.find(view(work(100, 140, steps=5)), ())
    assert found == Abstain("too few steps are known of all groups of ranks that do different work")


def test_no_verdict_before_all_ranks_have_been_heard_of() -> None:
    partly = view(work(100, 140))
    more = RunView(
        now_collector_ns=0,
        world_size=9,
        series=partly.series,
        peer_groups=partly.peer_groups,
        nodes={},
        samples=partly.samples,
    )
    assert DETECTOR.find(more, ()) == Abstain("no steps of 1 of 9 ranks are known")


# -- over time --------------------------------------------------------------------------------------------------------


def test_open_finding_keeps_its_first_step() -> None:
    (known,) = findings(work(100, 140))
    found = DETECTOR.find(view(work(100, 140, seed=2), first_step=500), [known])
    assert not isinstance(found, Abstain)
    assert [candidate.finding.since_step for candidate in found] == [0]


@pytest.mark.parametrize(("last_ms", "passed"), [(130, False), (110, True)])
def test_imbalance_has_passed_when_half_of_it_is_gone(last_ms: float, passed: bool) -> None:
    (known,) = findings(work(100, 140))
    assert DETECTOR.has_passed(view(work(100, last_ms)), known, ()) is passed


def test_dissolved_group_is_not_known_to_have_passed() -> None:
    (known,) = findings(work(100, 140))
    assert not DETECTOR.has_passed(view(work(100, 100), dict.fromkeys(range(8), "one")), known, ())
