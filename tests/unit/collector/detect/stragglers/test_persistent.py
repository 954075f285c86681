"""Persistent stragglers: synthetic own times with a known truth, from a seeded generator."""

import dataclasses
import math

import numpy as np
import pytest

from rankscope.collector.detect.finding import Abstain
from rankscope.collector.detect.statistics.change_points import find_change
from rankscope.collector.detect.statistics.excess import find_excess, slowdown_ratios
from rankscope.collector.detect.stragglers.persistent import SlowRank, Thresholds, find_stragglers, has_recovered
from rankscope.collector.steps.peer_groups import find_peer_groups
from rankscope.collector.steps.step_series import Floats, StepSeries
from tests.unit.collector.steps.step_series import view_of

STEP_NS = 100e6


def noise(steps: int, ranks: int, spread: float = 0.05, seed: int = 7) -> Floats:
    return STEP_NS * np.exp(np.random.default_rng(seed).normal(0.0, spread, (steps, ranks)))


def series(own_ns: Floats, first_step: int = 0) -> StepSeries:
    steps, ranks = own_ns.shape
    step_ns = np.repeat(own_ns.max(axis=1, keepdims=True), ranks, axis=1)
    return StepSeries(
        steps=np.arange(first_step, first_step + steps),
        ranks=tuple(range(ranks)),
        step_ns=step_ns,
        own_ns=own_ns,
        cpu_ns=np.full_like(own_ns, np.nan),
        phases_ns={},
        own_is_measured=True,
    )


def excess_of(own_ns: Floats) -> Floats:
    return find_excess(series(own_ns), find_peer_groups(range(own_ns.shape[1]), {}))


def judge(own_ns: Floats, first_step: int = 0) -> tuple[SlowRank, ...] | Abstain:
    return find_stragglers(view_of(series(own_ns, first_step)), Thresholds())


def found(own_ns: Floats, first_step: int = 0) -> tuple[SlowRank, ...]:
    verdict = judge(own_ns, first_step)
    assert not isinstance(verdict, Abstain)
    return verdict


def test_rank_that_becomes_slow_is_named_with_step_and_ratio() -> None:
    own_ns = noise(100, 4)
    own_ns[60:, 2] *= 1.5
    (slow,) = found(own_ns, first_step=1_000)
    assert slow.rank == 2
    assert abs(slow.since_step - 1_060) <= 2
    assert slow.slowdown_ratio == pytest.approx(1.5, rel=0.05)
    assert slow.peers_own_ns == pytest.approx(STEP_NS, rel=0.05)


def test_rank_fast_in_first_known_steps_is_not_slow_since_first() -> None:
    own_ns = noise(63, 4, spread=0.01)
    own_ns[50:, 2] *= 1.5
    own_ns[3:54] = np.nan  # no profiler window: three steps without slowness are known, and nine with it
    (slow,) = found(own_ns)
    assert (slow.rank, slow.since_step, slow.before_step, slow.level_from_step) == (2, 54, 2, 54)


def test_rank_always_slow_is_slow_since_the_first_known_step() -> None:
    own_ns = noise(64, 8)
    own_ns[:, 5] *= 1.3
    assert [(slow.rank, slow.since_step) for slow in found(own_ns)] == [(5, 0)]


@pytest.mark.parametrize("seed", range(20))
def test_healthy_ranks_are_not_called_slow(seed: int) -> None:
    assert found(noise(200, 8, spread=0.15, seed=seed)) == ()


@pytest.mark.parametrize("seed", range(10))
def test_healthy_ranks_with_rare_long_stalls_are_not_called_slow(seed: int) -> None:
    random = np.random.default_rng(seed)
    own_ns = noise(200, 8, seed=seed)
    own_ns[random.random(own_ns.shape) < 0.03] *= 10
    assert found(own_ns) == ()


def test_ten_per_cent_is_found_where_the_noise_allows_it() -> None:
    own_ns = noise(120, 8, spread=0.02)
    own_ns[60:, 1] *= 1.12
    assert [slow.rank for slow in found(own_ns)] == [1]


@pytest.mark.parametrize(("until", "slow"), [(69, ()), (71, (2,)), (72, (2,))])
def test_stretch_that_has_ended_is_no_steady_slowness(until: int, slow: tuple[int, ...]) -> None:
    own_ns = noise(72, 8, spread=0.02)
    own_ns[60:until, 2] *= 1.2  # in 9 of the last 12 steps, in 11, or in all
    assert tuple(one.rank for one in found(own_ns)) == slow


@pytest.mark.parametrize(
    ("ratio", "peers", "slow"),
    [
        (4.0, (0.75, 1.0, 1.3), (0,)),
        (2.0, (0.9, 1.0, 1.1), (0,)),
        (1.5, (0.75, 1.0, 1.3), ()),
        (1.2, (0.9, 1.0, 1.1), ()),
    ],
)
def test_one_of_four_is_named_if_farther_off_than_peers_differ(
    ratio: float, peers: tuple[float, ...], slow: tuple[int, ...]
) -> None:
    own_ns = noise(84, 4, spread=0.02) * np.array([1.0, *peers])
    own_ns[40:, 0] *= ratio
    assert tuple(one.rank for one in found(own_ns)) == slow


def test_effect_below_the_minimum_is_not_worth_a_verdict() -> None:
    own_ns = noise(120, 8, spread=0.005)
    own_ns[60:, 1] *= 1.05
    assert found(own_ns) == ()


def test_rank_slow_every_other_step_is_not_persistent() -> None:
    own_ns = noise(120, 8, spread=0.02)
    own_ns[::2, 1] *= 1.5
    assert found(own_ns) == ()


def test_too_recent_a_change_is_left_for_later() -> None:
    own_ns = noise(100, 4)
    own_ns[-5:, 2] *= 3
    assert found(own_ns) == ()


def test_rank_that_recovered_is_not_slow_any_more() -> None:
    own_ns = noise(120, 4)
    own_ns[20:80, 2] *= 2
    assert found(own_ns) == ()


def test_two_stragglers_are_both_found_the_slower_first() -> None:
    own_ns = noise(100, 8)
    own_ns[40:, 2] *= 1.5
    own_ns[40:, 6] *= 2.5
    assert [slow.rank for slow in found(own_ns)] == [6, 2]


def test_two_ranks_are_enough_to_name_one() -> None:
    own_ns = noise(100, 2)
    own_ns[40:, 1] *= 2
    assert [slow.rank for slow in found(own_ns)] == [1]


def test_single_rank_is_not_compared() -> None:
    assert judge(noise(100, 1)) == Abstain("only 1 rank reports: there is no other rank to compare it with")


def test_too_few_steps_give_no_verdict() -> None:
    assert judge(noise(11, 4)) == Abstain("11 of 12 comparable steps: those with the own times of all 4 ranks")


def test_timed_devices_with_unknown_times_abstain_with_reason() -> None:
    unknown = dataclasses.replace(series(np.full((20, 4), np.nan)), own_is_measured=False, is_by_device=True)
    assert find_stragglers(view_of(unknown), Thresholds()) == Abstain(
        "0 of 12 comparable steps: those with the own times of all 4 ranks (without profiler windows they are not "
        "known while a process group has several, but not all ranks)"
    )


def test_steps_that_one_rank_did_not_report_are_left_out() -> None:
    own_ns = noise(100, 4)
    own_ns[60:, 2] *= 2
    own_ns[::3, 0] = np.nan
    assert [slow.rank for slow in found(own_ns)] == [2]


def test_first_stage_is_not_compared_with_the_last() -> None:
    own_ns = noise(100, 8)
    own_ns[:, 4:] *= 3
    signatures = dict.fromkeys(range(4), "first") | dict.fromkeys(range(4, 8), "last")
    assert find_stragglers(view_of(series(own_ns), signatures=signatures), Thresholds()) == ()


def test_slowdown_and_recovery_are_read_from_the_last_steps() -> None:
    own_ns = noise(100, 4, spread=0.01)
    own_ns[:60, 2] *= 2
    excess = excess_of(own_ns)[:, 2]
    assert slowdown_ratios(excess[:, np.newaxis], 32)[0] == pytest.approx(1.0, abs=0.02)
    assert has_recovered(excess, Thresholds())
    assert not has_recovered(excess[:60], Thresholds())
    assert not has_recovered(excess[:5], Thresholds())


def test_change_point_needs_three_values_on_each_side() -> None:
    assert find_change(np.array([0.0, 0.0, 1.0, 1.0, 1.0])) == 0
    assert find_change(np.array([0.0, 0.0, 0.0, 1.0, 1.0, 1.0])) == 3


def test_log_excess_of_a_rank_twice_as_slow_is_log_two() -> None:
    own_ns = np.array([[1.0, 1.0, 2.0], [3.0, 3.0, 6.0]])
    assert excess_of(own_ns)[:, 2].tolist() == pytest.approx([math.log(2)] * 2)


def test_slowdown_ratios_are_those_of_every_column() -> None:
    excess = excess_of(noise(50, 5))
    excess[40:, 1] = np.nan
    excess[:, 2] = np.nan
    excess[49] = np.nan
    last = {0: slice(17, 49), 1: slice(8, 40), 3: slice(17, 49), 4: slice(17, 49)}
    expected = [float(np.exp(np.median(excess[last[c], c]))) if c in last else math.nan for c in range(5)]
    assert slowdown_ratios(excess, 32).tolist() == pytest.approx(expected, nan_ok=True)
    assert np.isnan(slowdown_ratios(np.full((0, 2), np.nan), 32)).all()


def test_rank_is_compared_with_known_peers_if_half_are_known() -> None:
    own_ns = np.array([[1.0, 1.0, 4.0, np.nan, 3.0], [1.0, np.nan, 4.0, np.nan, np.nan]])
    found_excess = excess_of(own_ns)
    assert found_excess[0, 2] == pytest.approx(math.log(4.0))  # the median of 1, 1 and 3
    assert np.isnan(found_excess[0, 3])
    assert np.isnan(found_excess[1]).all()


def test_steps_of_a_rank_that_stopped_reporting_are_not_needed() -> None:
    own_ns = noise(100, 8)
    own_ns[60:, 2] *= 2
    own_ns[20:, 0] = np.nan
    assert [slow.rank for slow in found(own_ns)] == [2]


# -- one or two peers -------------------------------------------------------------------------------------------------

PAIRS = {rank: rank // 2 for rank in range(8)}
"""A pipeline of four stages with two ranks each."""


def found_in_pairs(own_ns: Floats, pairs: dict[int, int]) -> list[int]:
    verdict = find_stragglers(view_of(series(own_ns), signatures=pairs), Thresholds())
    assert not isinstance(verdict, Abstain)
    return [slow.rank for slow in verdict]


def test_rank_always_slower_than_its_only_peer_is_named() -> None:
    own_ns = noise(100, 8, spread=0.02)
    own_ns[:, 4:6] *= 2
    own_ns[:, 5] *= 1.2
    assert found_in_pairs(own_ns, PAIRS) == [5]


def test_pair_no_further_apart_than_other_pairs_is_not_judged() -> None:
    # The ranks of every pair are 10 % apart: 1.4826 x log(1.1) is the spread, and rank 5 is no further off.
    own_ns = noise(100, 8, spread=0.02)
    own_ns[:, 1::2] *= 1.1
    assert found_in_pairs(own_ns, PAIRS) == []


def test_pair_beside_too_few_others_has_its_own_noise() -> None:
    own_ns = noise(100, 3, spread=0.02)
    own_ns[:, 1] *= 1.3
    assert found_in_pairs(own_ns, {0: 0, 1: 0, 2: 1}) == [1]
