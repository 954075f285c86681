"""Intermittent stragglers: known slow periods in noise from a seeded generator."""

import math

import numpy as np
import pytest

from rankscope.collector.detect.stragglers.intermittent import (
    chance_of_sum,
    count_known_between,
    find_begin,
    find_deviations,
    find_intermittent,
    find_period,
    has_passed,
    probability_of,
)
from rankscope.collector.detect.stragglers.persistent import SlowRank, Thresholds
from rankscope.collector.detect.view import RunView
from rankscope.collector.steps.step_series import Floats
from tests.unit.collector.steps.step_series import UNKNOWN, series_of, view_of

THRESHOLDS = Thresholds()
SLOW = 3


def times(steps: int = 200, ranks: int = 8, seed: int = 1) -> Floats:
    return 100.0 * np.exp(np.random.default_rng(seed).normal(0.0, 0.02, (steps, ranks)))


def view(own_ms: Floats) -> RunView:
    return view_of(series_of(own_ms.tolist()))


def found(own_ms: Floats, known: tuple[int, ...] = ()) -> tuple[SlowRank, ...]:
    return find_intermittent(view(own_ms), THRESHOLDS, known)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("every", [3, 5, 10])
def test_rank_slow_every_kth_step_is_found_with_begin_and_ratio(every: int, seed: int) -> None:
    own_ms = times(seed=seed)
    own_ms[80::every, SLOW] *= 1.5
    (slow,) = found(own_ms)
    assert (slow.rank, slow.since_step, slow.pattern, slow.change_is_seen) == (SLOW, 80, "intermittent", True)
    assert slow.slowdown_ratio == pytest.approx(1.5, rel=0.05)
    assert slow.persistence == pytest.approx(1 / every, rel=0.1)
    assert slow.own_ns / slow.peers_own_ns == pytest.approx(1.5, rel=0.05)
    assert find_period(slow.slow_steps) == (every, True)


def test_it_is_found_among_those_that_do_the_same_work() -> None:
    """Noise of the ranks that sample half of their time would be slowness of the others."""
    own_ms = times()
    own_ms[:, 4:] *= np.exp(np.random.default_rng(2).normal(0.0, 0.5, (200, 4)))
    own_ms[80::5, SLOW] *= 1.5
    kinds = {rank: "train" if rank < 4 else "sample" for rank in range(8)}
    judged = view_of(series_of(own_ms.tolist()), signatures=kinds)
    assert [(slow.rank, slow.since_step) for slow in find_intermittent(judged, THRESHOLDS, ())] == [(SLOW, 80)]


def test_rank_always_intermittent_begins_at_its_first_slow_step() -> None:
    own_ms = times()
    own_ms[2::5, SLOW] *= 2
    assert [(slow.rank, slow.since_step) for slow in found(own_ms)] == [(SLOW, 2)]


@pytest.mark.parametrize("seed", range(5))
def test_begin_of_a_slowness_at_random_lies_in_its_range(seed: int) -> None:
    # From step 100 on every step is slow with a probability of a fifth: noise dates that to a few dozen steps.
    own_ms, random = times(seed=seed), np.random.default_rng(seed)
    own_ms[100:, 3] *= np.where(random.random(100) < 0.2, 1.6, 1.0)
    (slow,) = found(own_ms)
    assert slow.since_range is not None
    earliest, latest = slow.since_range
    assert earliest <= 100 <= latest
    assert earliest <= slow.since_step <= latest
    assert 5 <= latest - earliest <= 90


@pytest.mark.parametrize(("healthy_steps", "named"), [(11, [SLOW]), (12, []), (50, [])])
def test_steady_slowness_that_is_over_is_not_intermittent(healthy_steps: int, named: list[int]) -> None:
    # Slow from step 100 on but in two steps of it: three periods, of 38 of 40 steps.
    own_ms = times()
    own_ms[100:140, SLOW] *= 1.3
    own_ms[[110, 125], SLOW] /= 1.3
    assert [slow.rank for slow in found(own_ms[: 140 + healthy_steps])] == named


def test_begin_of_a_regular_slowness_is_sure_to_a_period_or_two() -> None:
    # 24 slow steps, none missed: 1 of 26 may be missed by Laplace's rule, which is more than 1 %; two of 26 are less.
    own_ms = times()
    own_ms[80::5, SLOW] *= 1.6
    (slow,) = found(own_ms)
    assert (slow.since_step, slow.since_range) == (80, (71, 80))


@pytest.mark.parametrize("seed", range(20))
def test_stalls_common_to_all_ranks_name_no_rank(seed: int) -> None:
    random = np.random.default_rng(seed)
    own_ms = times(seed=seed)
    own_ms[random.random(own_ms.shape) < 0.03] *= 5
    assert found(own_ms) == ()


@pytest.mark.parametrize(("bouts", "named"), [(3, [SLOW]), (2, [])])
def test_rank_that_is_slow_in_bouts_is_found_from_the_third_on(bouts: int, named: list[int]) -> None:
    own_ms = times(steps=240)
    for begin in range(100, 100 + 40 * bouts, 40):
        own_ms[begin : begin + 10, SLOW] *= 1.3
    assert [slow.rank for slow in found(own_ms)] == named


def test_long_slow_periods_common_to_all_ranks_name_no_rank() -> None:
    own_ms = times(steps=240)
    for rank in range(8):
        for begin in range(5 * rank, 240 - 10, 60):
            own_ms[begin : begin + 10, rank] *= 1.5
    assert found(own_ms) == ()


def test_long_stall_is_one_spell() -> None:
    own_ms = times()
    own_ms[50:80, SLOW] *= 5
    assert found(own_ms) == ()


def test_spells_that_cost_next_to_nothing_are_not_worth_naming() -> None:
    own_ms = times()
    own_ms[::10, SLOW] *= 1.09
    own_ms[::10, SLOW] = np.maximum(own_ms[::10, SLOW], 109.0)
    assert found(own_ms) == ()


def test_known_slow_ranks_are_skipped_and_the_costliest_is_first() -> None:
    own_ms = times()
    own_ms[::5, SLOW] *= 1.5
    own_ms[1::5, 5] *= 3
    assert [slow.rank for slow in found(own_ms)] == [5, SLOW]
    assert [slow.rank for slow in found(own_ms, known=(5,))] == [SLOW]


def test_few_steps_tell_nothing() -> None:
    own_ms = times(steps=23)
    own_ms[::2, SLOW] *= 3
    assert found(own_ms) == ()
    assert find_intermittent(view_of(series_of([[100.0, UNKNOWN, UNKNOWN]] * 30)), THRESHOLDS, ()) == ()


def test_random_slowness_has_passed_after_seven_usual_gaps() -> None:
    # Gaps of 10 steps in the mean: a gap of 50 steps is one of e^-5, and of 70 one of e^-7.
    own_ms = np.full((200, 8), 100.0)
    own_ms[[20, 24, 41, 47, 60, 72, 80], SLOW] = 200.0
    assert not has_passed(view(own_ms[:140]), [SLOW], THRESHOLDS, 10.0)
    assert has_passed(view(own_ms[:151]), [SLOW], THRESHOLDS, 10.0)
    # Where less is kept all of it counts, but no less than four times the distance.
    assert not has_passed(view(own_ms[85:124]), [SLOW], THRESHOLDS, 10.0)
    assert has_passed(view(own_ms[85:125]), [SLOW], THRESHOLDS, 10.0)


def test_it_has_passed_after_four_times_the_usual_distance() -> None:
    own_ms = times(steps=150)
    own_ms[20:100:10, SLOW] *= 2
    assert has_passed(view(own_ms[:135]), [SLOW], THRESHOLDS, 10.0)
    assert not has_passed(view(own_ms[:125]), [SLOW], THRESHOLDS, 10.0)
    assert not has_passed(view(own_ms[:30]), [SLOW], THRESHOLDS, 10.0)


def test_chance_is_the_tail_of_the_binomial() -> None:
    assert probability_of(3, 10, 0.2) == pytest.approx(
        1 - sum(math.comb(10, k) * 0.2**k * 0.8 ** (10 - k) for k in range(3))
    )
    assert probability_of(0, 10, 0.2) == 1.0
    assert probability_of(60, 100, 0.9) == probability_of(60, 100, 0.5)


def test_period_of_one_spell_is_not_known() -> None:
    assert find_period(np.array([7, 8, 9])) == (0, False)
    assert find_period(np.array([1, 4, 9, 11, 30])) == (4, False)


def test_intermittent_slowness_begins_before_its_last_slow_step() -> None:
    own_ms = times(steps=201)
    own_ms[::5, SLOW] *= 1.3
    assert [(slow.rank, slow.since_step) for slow in found(own_ms)] == [(SLOW, 0)]


def test_six_slow_periods_beside_healthy_ranks_are_not_chance() -> None:
    own_ms = times(steps=204)
    own_ms[60:204:24, SLOW] *= 1.6
    assert [(slow.rank, slow.since_step) for slow in found(own_ms)] == [(SLOW, 60)]
    assert found(own_ms[:140]) == ()


@pytest.mark.parametrize(("ranks", "stalls", "named"), [(3, 13, []), (3, 14, [1]), (4, 10, []), (4, 11, [1])])
def test_of_few_ranks_so_many_stalls_of_one_are_not_chance(ranks: int, stalls: int, named: list[int]) -> None:
    # Each stall is this rank's with a probability of 1/3: 3^-13 is 6.3e-7, 3^-14 is 2.1e-7, and 1e-6 / 3 is 3.3e-7. Of
    # four ranks 4^-10 is 9.5e-7, 4^-11 is 2.4e-7, and 1e-6 / 4 is 2.5e-7.
    own_ms = times(steps=50, ranks=ranks)
    own_ms[3 : 3 + 3 * stalls : 3, 1] += 200.0
    assert [slow.rank for slow in found(own_ms)] == named


def test_stall_every_other_step_among_few_ranks_adds_no_noise() -> None:
    own_ms = times(steps=60, ranks=3)
    own_ms[::2, 1] *= 1.5
    assert [slow.rank for slow in found(own_ms)] == [1]


def test_long_stalls_of_one_among_short_ones_of_all_are_its_own() -> None:
    # Each rank stalls for 20 ms in one step of ten, which hides from a count that one stalls for 200 in 15 others. Of
    # the time of all, 8 x 20 x 20 + 15 x 80 (four times the usual) = 4,400, it has 400 + 1,200: a third, not an eighth.
    own_ms = np.full((200, 8), 100.0)
    for rank in range(8):
        own_ms[rank::10, rank] = 120.0
    assert found(own_ms) == ()
    own_ms[8:158:10, SLOW] = 300.0
    assert [slow.rank for slow in found(own_ms)] == [SLOW]


def test_one_very_long_stall_counts_as_four_usual_ones() -> None:
    usual, mine = np.ones(16), np.arange(16) < 4
    longer = np.array([1e9, *usual[1:]])
    assert chance_of_sum(longer, mine, 4) == pytest.approx(chance_of_sum(np.array([4.0, *usual[1:]]), mine, 4))
    assert chance_of_sum(usual, mine, 4) == 1.0  # a quarter of all is its share


def test_rank_without_peers_is_judged_by_its_number_of_stalls() -> None:
    own_ms = times()
    own_ms[80::5, SLOW] *= 1.5
    kinds = {rank: f"work {rank}" for rank in range(8)}
    judged = view_of(series_of(own_ms.tolist()), signatures=kinds)
    assert [slow.rank for slow in find_intermittent(judged, THRESHOLDS, ())] == [SLOW]


@pytest.mark.parametrize(("until", "named"), [(171, [SLOW]), (172, [])])
def test_stalls_that_are_long_past_are_no_present_slowness(until: int, named: list[int]) -> None:
    own_ms = times()
    own_ms[20:100:10, SLOW] *= 2  # the last one is step 90, and eight gaps of ten later is step 170
    assert [slow.rank for slow in found(own_ms[:until])] == named


def test_usual_gap_is_the_mean_where_windows_make_gaps_unequal() -> None:
    own_ms = times(steps=120)
    judged = view(own_ms)
    assert count_known_between(judged, np.array([0, 2, 4, 30])) == 10.0  # gaps of 2, 2 and 26
    assert count_known_between(judged, np.array([0, 10, 20, 30])) == 10.0
    assert count_known_between(judged, np.array([7])) == 0.0


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_few_ranks_that_stall_alike_name_no_rank(ranks: int) -> None:
    random = np.random.default_rng(2)
    own_ms = times(ranks=ranks)
    own_ms += np.where(random.random(own_ms.shape) < 0.05, 50 * (1 + random.pareto(2.5, own_ms.shape)), 0.0)
    assert found(own_ms) == ()


@pytest.mark.parametrize("count", [24, 60, 250])
def test_usual_deviation_of_few_ranks_is_that_of_their_noise(count: int) -> None:
    drawn = np.random.default_rng(count).normal(0.0, 0.02, (count, 300))
    triples = [find_deviations(drawn[:, first : first + 3]) for first in range(0, 300, 3)]
    assert np.median(triples) == pytest.approx(0.02, rel=0.1)


def test_begin_is_no_end_of_frequent_slow_steps() -> None:
    slow = np.ones(200, dtype=bool)
    slow[:3] = slow[150:160] = False
    slow[196:] = False
    assert find_begin(slow)[0] == 3


def test_small_slow_steps_are_not_those_of_large_stalls() -> None:
    """Noise of 12 % now and then is no begin of stalls of 300 %, and no part of their period."""
    own_ms = times(steps=240)
    for step in (5, 23, 47, 61, 133, 177, 201):
        own_ms[step, SLOW] *= 1.14
    own_ms[100::10, SLOW] *= 4.0
    (slow,) = found(own_ms)
    assert (slow.since_step, slow.slow_steps.tolist()) == (100, list(range(100, 240, 10)))
    assert find_period(slow.slow_steps) == (10, True)


def test_small_slow_steps_that_hold_much_of_the_time_are_kept() -> None:
    """Logging every tenth step beside an evaluation every fiftieth."""
    own_ms = times(steps=240)
    own_ms[20::10, SLOW] *= 1.5
    own_ms[50::50, SLOW] *= 4.0
    (slow,) = found(own_ms)
    assert slow.slow_steps.tolist() == list(range(20, 240, 10))
