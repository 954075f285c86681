"""The cost of a straggler, worked out by hand. Times in ms unless named otherwise."""

import dataclasses

import pytest

from rankscope.collector.detect.stragglers.cost import Cost, lost_to, price, spared_by
from tests.unit.collector.steps.step_series import MS, UNKNOWN, Rows, series_of, slow_of, to_ns, view_of

NO_COST = Cost(1.0, 0.0, 0.0)


def cost(self_ms: Rows, rank: int, *, step_ms: Rows | None = None, from_step: int = 0, since_step: int = 0) -> Cost:
    """Of a rank whose peers are all the others."""
    peers = tuple(other for other in range(len(self_ms[0])) if other != rank)
    slow = slow_of(rank, peers, self_ms=150.0, peers_ms=100.0, since_step=since_step)
    view = view_of(series_of(self_ms, step_ms=step_ms))
    return price(lost_to(slow, view), view, max(from_step, since_step))


def test_step_loses_the_excess_of_the_straggler() -> None:
    # Self time 150 against a median of 100, in steps of 160: the ideal step takes 110. Ten steps lose 50 ms on 4 ranks.
    found = cost([[90.0, 100.0, 110.0, 150.0]] * 10, 3, step_ms=[[160.0] * 4] * 10)
    assert found.run_slowdown_ratio == pytest.approx(160 / 110)
    assert found.lost_rank_seconds == pytest.approx(10 * 0.050 * 4)
    assert found.lost_rank_hours_per_hour == pytest.approx(50 / 160 * 4)


def test_only_slow_steps_from_the_given_step_are_charged() -> None:
    self_ms = [[100.0, 100.0, 150.0]] * 10
    assert cost(self_ms, 2, since_step=4).lost_rank_seconds == pytest.approx(6 * 0.050 * 3)
    assert cost(self_ms, 2, since_step=4, from_step=7).lost_rank_seconds == pytest.approx(3 * 0.050 * 3)
    assert cost(self_ms, 2, from_step=10) == NO_COST


def test_two_stragglers_do_not_pay_for_the_same_step_twice() -> None:
    self_ms = [[100.0, 100.0, 100.0, 150.0, 130.0]] * 6 + [[100.0, 100.0, 100.0, 120.0, 130.0]] * 4
    # Rank 3 is the longest in six steps and rank 4 in four; the median of the others is 100 for both.
    assert cost(self_ms, 3).lost_rank_seconds == pytest.approx(6 * 0.050 * 5)
    assert cost(self_ms, 4).lost_rank_seconds == pytest.approx(4 * 0.030 * 5)


def test_of_two_equally_slow_stragglers_one_pays() -> None:
    self_ms = [[100.0, 100.0, 100.0, 150.0, 150.0]] * 10
    assert cost(self_ms, 3).lost_rank_seconds == pytest.approx(10 * 0.050 * 5)
    assert cost(self_ms, 4).lost_rank_seconds == 0.0


def test_fast_step_of_a_straggler_costs_and_gains_nothing() -> None:
    assert cost([[100.0, 100.0, 60.0]] * 10, 2) == NO_COST


def test_ideal_step_is_not_shorter_than_the_peers_self_time() -> None:
    # Clocked from outside, the step seems shorter than the rank's self time: no more than 120 - 100 can be lost.
    found = cost([[100.0, 100.0, 150.0]] * 10, 2, step_ms=[[120.0] * 3] * 10)
    assert found.lost_rank_seconds == pytest.approx(10 * 0.020 * 3)


def test_step_shorter_than_the_peers_self_time_loses_nothing() -> None:
    assert cost([[100.0, 100.0, 150.0]] * 10, 2, step_ms=[[90.0] * 3] * 10) == NO_COST


def test_steps_with_unknown_self_times_are_not_charged() -> None:
    self_ms = [[100.0, 100.0, 150.0]] * 4 + [[UNKNOWN, UNKNOWN, 150.0], [100.0, 100.0, UNKNOWN]] * 3
    assert cost(self_ms, 2, step_ms=[[150.0] * 3] * 10).lost_rank_seconds == pytest.approx(4 * 0.050 * 3)


def test_step_lasts_as_long_as_on_the_ranks_that_know_it() -> None:
    # Where the phases stand in for self times, a self time may be known and a duration not.
    step_ms = [[150.0, UNKNOWN, UNKNOWN]] * 6 + [[UNKNOWN] * 3] * 4
    found = cost([[100.0, 100.0, 150.0]] * 10, 2, step_ms=step_ms)
    assert tuple(found) == pytest.approx((1.5, 6 * 0.050 * 3, 1.0))


def test_nothing_known_costs_nothing() -> None:
    assert cost([[UNKNOWN] * 3] * 10, 2) == NO_COST
    assert cost([[0.0] * 3] * 10, 2) == NO_COST


def lost_in_a_pipeline(handover_ms: list[float], *, do_same_work: bool = True) -> list[float]:
    """What one step of 160 ms loses to rank 3, of 150 ms against 100, with these times in point-to-point operations."""
    series = series_of([[100.0, 100.0, 100.0, 150.0]], step_ms=[[160.0] * 4])
    view = view_of(dataclasses.replace(series, handover_ns=to_ns([handover_ms])))
    slow = slow_of(3, (0, 1, 2), self_ms=150.0, peers_ms=100.0, do_same_work=do_same_work)
    found: list[float] = (lost_to(slow, view) / MS).tolist()
    return found


def test_bubbles_that_a_slow_stage_hides_are_no_cost() -> None:
    # As fast as its peers it would wait in the pipeline as they do: 20 ms instead of 5.
    assert lost_in_a_pipeline([20.0, 10.0, 30.0, 5.0]) == pytest.approx([50.0 - (20.0 - 5.0)])


def test_rank_that_waits_longer_in_the_pipeline_gains_nothing() -> None:
    assert lost_in_a_pipeline([5.0, 5.0, 5.0, 20.0]) == pytest.approx([50.0])


def test_unknown_waits_in_the_pipeline_hide_nothing() -> None:
    assert lost_in_a_pipeline([20.0, UNKNOWN, 20.0, 5.0]) == pytest.approx([50.0])


def test_waits_of_other_stages_say_nothing_about_bubbles() -> None:
    # Without peers of equal work the others of its pipeline are among them: they wait for the rank itself.
    assert lost_in_a_pipeline([20.0, 20.0, 20.0, 5.0], do_same_work=False) == pytest.approx([50.0])


def spared(lost_ms: float, self_ms: list[float], others: list[int]) -> float:
    """How much shorter a step of 160 ms would be without a slowness alone."""
    view = view_of(series_of([self_ms], step_ms=[[160.0] * len(self_ms)]))
    return float(spared_by(to_ns([[lost_ms]])[0], view, others)[0] / MS)


def test_step_is_no_shorter_than_the_self_time_of_another_slow_rank() -> None:
    self_ms = [100.0, 100.0, 150.0, 130.0]
    assert spared(50.0, self_ms, [3]) == pytest.approx(160 - 130)
    assert spared(30.0, self_ms, [2]) == pytest.approx(160 - 150)
    assert spared(50.0, self_ms, []) == pytest.approx(50.0)


def test_nothing_is_spared_where_another_rank_is_longer_than_the_step() -> None:
    assert spared(50.0, [100.0, 170.0, 180.0], [1]) == 0.0


def test_unknown_self_times_of_others_bound_no_step() -> None:
    assert spared(50.0, [UNKNOWN, 130.0, 150.0], [0, 1]) == pytest.approx(160 - 130)
    assert spared(50.0, [UNKNOWN] * 3, [0]) == pytest.approx(50.0)
