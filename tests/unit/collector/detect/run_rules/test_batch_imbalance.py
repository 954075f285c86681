"""Work that differs from step to step, drawn from a seeded generator. A usual step of a rank is 100 ms."""

import numpy as np
import pytest

from rankscope.collector.detect.finding import Abstain, Finding
from rankscope.collector.detect.run_rules.batch_imbalance import (
    STEPS_JUDGED,
    BatchImbalance,
    correlate_with_batches,
    find_chance_limit,
    find_gaps,
)
from rankscope.collector.detect.stragglers.persistent import Thresholds
from rankscope.collector.detect.view import Candidate, RunView, Samples, TimeCount
from rankscope.collector.steps.step_series import Floats
from tests.unit.collector.steps.step_series import MS, series_of, view_of

DETECTOR = BatchImbalance(cost_ratio_min=0.1, thresholds=Thresholds())


def draw(steps: int = 150, ranks: int = 8, spread: float = 0.15, seed: int = 1) -> Floats:
    """Factors on the work, shape (steps, ranks)."""
    return np.asarray(np.exp(np.random.default_rng(seed).normal(0.0, spread, (steps, ranks))))


def view(
    own_ms: Floats, *, forward_ms: Floats | None = None, tokens: Floats | None = None, signatures: object = None
) -> RunView:
    series = series_of(
        own_ms.tolist(),
        phases_ms=None if forward_ms is None else {"forward": forward_ms.tolist()},
        tokens=None if tokens is None else tokens.tolist(),
    )
    return view_of(series, signatures=signatures)  # type: ignore[arg-type]


def candidates(looked_at: RunView, *known: Finding) -> list[Candidate]:
    found = DETECTOR.find(looked_at, known)
    assert not isinstance(found, Abstain)
    return list(found)


def only(looked_at: RunView, *known: Finding) -> Finding:
    (candidate,) = candidates(looked_at, *known)
    return candidate.finding


def two_and_two(steps: int = 128) -> Floats:
    """One of four ranks, a different one in each step, takes 140 ms and the others 100."""
    return np.where(np.arange(steps)[:, np.newaxis] % 4 == np.arange(4), 140.0, 100.0)


# -- what is found ----------------------------------------------------------------------------------------------------


def test_alternating_slow_ranks_are_uneven_work_of_no_rank() -> None:
    finding = only(view(two_and_two()))
    assert (finding.kind, finding.cause, finding.severity) == ("uneven_work", "unattributed", "info")
    assert (finding.ranks, finding.group, finding.rank) == ((), None, None)
    # 40 of 140 ms: the run takes 1.4 times as long, and of four ranks 4 * 40 / 140 hours an hour are lost.
    assert finding.headline.startswith(
        "No single straggler, a different rank slowest in each step, by 40.0 ms (29 % of a step) since step "
    )
    assert (finding.why, finding.cost) == ("not seen to depend on the size of the batches", "run 1.40x slower")
    assert finding.evidence == pytest.approx(
        {"gap_ns": 40 * MS, "gap_step_ratio": 40 / 140, "most_often_slowest_ratio": 0.25, "steps_judged": 64}
    )


def test_uneven_work_is_dated_beyond_the_steps_that_prove_it() -> None:
    even = np.full((60, 4), 100.0)
    finding = only(view(np.concatenate([even, two_and_two(140)])))
    assert (finding.since_step, finding.since_range) == (60, (60, 60))


def test_uneven_work_of_changing_size_began_with_the_first_size() -> None:
    more = np.where(np.arange(64)[:, np.newaxis] % 4 == np.arange(4), 180.0, 100.0)
    finding = only(view(np.concatenate([np.full((60, 4), 100.0), more, two_and_two(140)])))
    assert (finding.since_step, finding.since_range) == (60, (60, 60))


def test_uneven_work_in_all_known_steps_may_be_older() -> None:
    finding = only(view(two_and_two(140)))
    assert (finding.since_step, finding.is_older) == (0, True)


def test_each_step_loses_the_gap_of_its_slowest_rank() -> None:
    (candidate,) = candidates(view(two_and_two(130)))
    assert candidate.lost_ns is not None
    assert np.isnan(candidate.lost_ns[:66]).all()
    assert candidate.lost_ns[66:] == pytest.approx(40 * MS)


def test_stages_are_compared_each_within_itself() -> None:
    # The last stage has twice the work, always: that is no work that differs from step to step.
    own_ms = 100 * np.concatenate([draw(spread=0.01, ranks=4), 2 * draw(spread=0.01, ranks=4, seed=2)], axis=1)
    assert candidates(view(own_ms, signatures={rank: rank // 4 for rank in range(8)})) == []


@pytest.mark.parametrize("seed", range(10))
def test_jitter_of_two_per_cent_is_not_worth_saying(seed: int) -> None:
    assert candidates(view(100 * draw(spread=0.02, seed=seed))) == []


@pytest.mark.parametrize("seed", range(10))
def test_rare_stalls_are_no_uneven_work(seed: int) -> None:
    own_ms = 100 * draw(spread=0.02, seed=seed)
    own_ms[np.random.default_rng(seed).random(own_ms.shape) < 0.03] *= 5
    assert candidates(view(own_ms)) == []


def test_rank_slowest_more_often_than_by_chance_is_slow_itself() -> None:
    own_ms = 100 * draw()
    own_ms[:, 3] *= 1.3
    assert candidates(view(own_ms)) == []


@pytest.mark.parametrize(("steps", "count"), [(127, 0), (128, 1)])
def test_finding_without_a_cause_needs_many_steps(steps: int, count: int) -> None:
    assert len(candidates(view(two_and_two(steps)))) == count


def test_without_a_cause_the_time_before_counts_too() -> None:
    own_ms = np.concatenate([np.full((70, 4), 100.0), two_and_two(80)])
    assert candidates(view(own_ms)) == []


def test_finding_with_a_cause_opens_soon() -> None:
    batch = draw(steps=40)
    assert only(view(100 * batch, forward_ms=30 * batch)).cause == "data_imbalance"


@pytest.mark.parametrize("slow", [(3, 4), (4, 5, 6, 7)])
def test_several_alternating_slow_ranks_are_not_chance(slow: tuple[int, ...]) -> None:
    own_ms = 100 * draw(spread=0.05)
    own_ms[:, list(slow)] *= 1.3
    assert candidates(view(own_ms)) == []


# -- why --------------------------------------------------------------------------------------------------------------


def held_up(wait_ms: float, *, ranks: int = 8, known: int = 8, tokens: bool = False) -> RunView:
    """Work whose forward and rest go together, with a median gap of 25 to 26 ms; all but rank 0 wait so long for a
    core, and rank 0 not at all.
    """
    batch = draw(ranks=ranks)
    series = series_of(
        (100 * batch).tolist(),
        phases_ms={"forward": (30 * batch).tolist()},
        tokens=(1000 * batch).tolist() if tokens else None,
    )
    waits = {
        rank: [TimeCount(steps, round(steps * (wait_ms if rank else 0.0) * MS)) for steps in (90, 149)]
        for rank in range(known)
    }
    usual_ns = float(np.median(series.step_ns[-STEPS_JUDGED:, 0]))
    clock = {rank: [TimeCount(steps, round(steps * usual_ns)) for steps in (90, 149)] for rank in range(known)}
    return view_of(series, samples=Samples({}, {}, {}, core_waits=waits, host_clock=clock))


def test_core_waits_explain_uneven_work_from_half_of_its_gap() -> None:
    gap_ms = only(held_up(0.0)).evidence["gap_ns"] / MS
    assert 25 < gap_ms < 26
    assert only(held_up(gap_ms / 2 - 0.1)).cause == "data_imbalance"
    finding = only(held_up(gap_ms / 2 + 0.1))
    assert (finding.cause, finding.severity) == ("cpu_pressure", "info")
    assert finding.suggestion.startswith("See what else runs on the machine")


def test_waits_for_cores_are_told_with_their_length() -> None:
    finding = only(held_up(30.0))
    assert finding.why == "training threads of most ranks waiting for a CPU core, 30.0 ms or more per step"
    assert finding.evidence["core_wait_ns_per_step"] == pytest.approx(30 * MS)


@pytest.mark.parametrize(("known", "cause"), [(3, "data_imbalance"), (4, "cpu_pressure")])
def test_waits_for_cores_must_be_known_of_half_of_the_ranks(known: int, cause: str) -> None:
    assert only(held_up(30.0, known=known)).cause == cause


def test_tokens_tell_more_than_waits_for_cores() -> None:
    assert only(held_up(30.0, tokens=True)).cause == "data_imbalance"


def test_cause_of_an_open_finding_gives_way_to_waits_for_cores() -> None:
    known = Finding(kind="uneven_work", cause="data_imbalance", sentence="", since_step=3)
    finding = only(held_up(30.0), known)
    assert (finding.cause, finding.since_step) == ("cpu_pressure", 3)


def test_open_finding_says_its_wait_for_cores_was_found_earlier() -> None:
    known = Finding(kind="uneven_work", cause="cpu_pressure", sentence="", since_step=3)
    finding = only(held_up(30.0, known=3), known)
    assert finding.why == "training threads of most ranks waiting for a CPU core (found earlier)"
    assert "core_wait_ns_per_step" not in finding.evidence


def test_correlated_phases_mean_uneven_batches() -> None:
    batch = draw()
    own = draw(spread=0.01, seed=2)
    finding = only(view(100 * batch, forward_ms=30 * batch * own))
    assert finding.cause == "data_imbalance"
    assert finding.evidence["correlation"] > 0.9
    assert finding.severity == "warning"
    assert finding.suggestion.startswith("Give all ranks equal work in each step")


def test_part_that_varies_by_itself_does_not() -> None:
    forward_ms = 30 * draw(spread=0.3, seed=2)
    finding = only(view(forward_ms + 70 * draw(), forward_ms=forward_ms))
    assert (finding.cause, finding.suggestion[:22]) == ("unattributed", "A capture of all ranks")
    assert abs(finding.evidence["correlation"]) < 0.3


def test_common_step_times_and_constant_ranks_do_not_correlate() -> None:
    steps, ranks = 1 + np.arange(150)[:, np.newaxis] / 50, 1 + np.arange(8) / 50
    forward_ms, rest_ms = 30 * steps * ranks * draw(seed=2), 70 * steps * ranks * draw()
    looked_at = view(forward_ms + rest_ms, forward_ms=forward_ms)
    correlation = correlate_with_batches(looked_at, np.arange(150))
    assert correlation is not None
    assert abs(correlation) < 0.3


def test_tokens_tell_more_than_phases() -> None:
    batch = np.round(512 * draw())
    waiting = 30 * draw(seed=3)  # forward waits for other ranks
    assert only(view(100 * batch / 512, forward_ms=waiting, tokens=batch)).cause == "data_imbalance"


def test_tokens_that_are_alike_in_all_batches_are_no_reason() -> None:
    finding = only(view(100 * draw(), tokens=np.full((150, 8), 512.0)))
    assert finding.cause == "unattributed"
    assert "correlation" not in finding.evidence


def test_phases_are_used_without_token_counts() -> None:
    batch = draw()
    assert only(view(100 * batch, forward_ms=30 * batch, tokens=np.full((150, 8), np.nan))).cause == "data_imbalance"


def test_parts_that_are_not_known_correlate_nothing() -> None:
    looked_at = view(two_and_two(64), forward_ms=np.full((64, 4), np.nan))
    assert correlate_with_batches(looked_at, np.arange(64)) is None


# -- chance -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "ranks", "limit"), [(64, 8, 20), (32, 8, 13), (64, 4, 30), (64, 1024, 4)])
def test_limit_is_what_chance_reaches_in_one_of_a_thousand(steps: int, ranks: int, limit: int) -> None:
    assert find_chance_limit(steps, ranks) == limit
    random = np.random.default_rng(1)
    slowest = random.integers(0, ranks, (4_000, steps))
    most = np.array([np.bincount(row).max() for row in slowest])
    assert np.mean(most >= limit) <= 0.003


# -- over time --------------------------------------------------------------------------------------------------------


def test_open_finding_keeps_its_cause_and_first_step() -> None:
    batch = draw()
    known = only(view(100 * batch, forward_ms=30 * batch))
    later = only(view(100 * draw(seed=2)), known)
    assert (later.cause, later.since_step) == (known.cause, known.since_step)
    assert later.is_about_the_same(known)


@pytest.mark.parametrize(("spread", "passed"), [(0.15, False), (0.05, False), (0.01, True)])
def test_finding_passes_when_half_of_the_least_cost_is_gone(spread: float, passed: bool) -> None:
    # Of 5 % of noise the longest of eight ranks is 7 % above the median.
    known = only(view(100 * draw()))
    assert DETECTOR.has_passed(view(100 * draw(spread=spread)), known, ()) is passed


def test_finding_has_passed_when_one_rank_is_slow_instead() -> None:
    own_ms = 100 * draw()
    own_ms[:, 3] *= 2
    assert DETECTOR.has_passed(view(own_ms), only(view(100 * draw())), ())


def test_too_few_steps_have_not_passed() -> None:
    few = view(100 * draw(steps=31))
    assert find_gaps(few) is None
    assert DETECTOR.find(few, ()) == Abstain("fewer than 32 steps are known of all ranks")
    assert not DETECTOR.has_passed(few, only(view(100 * draw())), ())


def test_no_verdict_on_too_few_ranks() -> None:
    assert DETECTOR.find(view(100 * draw(ranks=3)), ()) == Abstain("the run has 3 ranks, and at least 4 are needed")
