"""The cost of a straggler, worked out by hand. Times in ms unless named otherwise."""

import dataclasses
from typing import NamedTuple

import numpy as np
import pytest

from rankscope.collector.detect.finding import Finding
from rankscope.collector.detect.finding_memory import FindingMemory, remember
from rankscope.collector.detect.stragglers.cost import (
    Healthy,
    find_pipeline_before,
    lost_to,
    lost_together,
    price,
    spared_by,
)
from rankscope.measure.units import NS_PER_S
from tests.unit.collector.steps.step_series import MS, UNKNOWN, Rows, series_of, slow_of, to_ns, view_of


class Cost(NamedTuple):
    """The steps over those without what they lost, and what they lost, all ranks together."""

    run_slowdown_ratio: float
    lost_rank_seconds: float


NO_COST = Cost(1.0, 0.0)


def cost(
    own_ms: Rows,
    rank: int,
    *,
    step_ms: Rows | None = None,
    from_step: int = 0,
    since_step: int = 0,
    also_slow: tuple[int, ...] = (),
) -> Cost:
    """Of a rank whose peers are all the others, of which some are slow as well."""
    peers = tuple(other for other in range(len(own_ms[0])) if other != rank)
    slow = slow_of(rank, peers, own_ms=150.0, peers_ms=100.0, since_step=since_step)
    view = view_of(series_of(own_ms, step_ms=step_ms))
    lost_ns = lost_to(slow, view, Healthy(view, {rank, *also_slow}))
    first = max(from_step, since_step)
    lost_s = float(np.nansum(lost_ns[(view.series.steps >= first) & ~np.isnan(view.longest_ns)])) / NS_PER_S
    return Cost(price(lost_ns, view, first), lost_s * len(view.series.ranks))


def test_step_loses_the_excess_over_the_slowest_healthy_rank() -> None:
    # Own time 150 against at most 110, in steps of 160: the ideal step takes 120. Ten steps lose 40 ms on 4 ranks.
    found = cost([[90.0, 100.0, 110.0, 150.0]] * 10, 3, step_ms=[[160.0] * 4] * 10)
    assert found.run_slowdown_ratio == pytest.approx(160 / 120)
    assert found.lost_rank_seconds == pytest.approx(10 * 0.040 * 4)


def test_cost_covers_all_steps_where_half_are_longer_anyway() -> None:
    # Of 110 ms 10 are lost, of 150 in every second step none: 260 instead of 250 for two. The median step is 150
    # or 110 ms, whichever comes once more.
    rows = [[100.0, 100.0, 100.0, 110.0], [100.0, 150.0, 100.0, 110.0]]
    for more in (rows[:1], rows[1:]):
        found = cost(rows * 50 + more, 3)
        assert found.run_slowdown_ratio == pytest.approx(260 / 250, abs=0.001)


def test_stall_of_a_minute_hides_no_cost() -> None:
    # 50 of 150 ms are lost in each of 12 steps; in the longest one a minute more is not, and counts as 4 x 100 ms.
    found = cost([[100.0, 100.0, 100.0, 150.0]] * 11 + [[100.0, 60_000.0, 100.0, 150.0]], 3)
    assert found.run_slowdown_ratio == pytest.approx(1 + 11 * 50 / (11 * 100 + 400))


def test_cost_over_a_level_of_the_past_is_by_medians() -> None:
    # A third of the steps have a stall of 100 ms, as they had before, when all others took 100 ms; now they take 110.
    view = view_of(series_of([[110.0], [110.0], [210.0]] * 4))
    lost_ns = view.longest_ns - 100 * MS
    assert price(lost_ns, view, 0, is_over_level=True) == pytest.approx(110 / 100)


def test_rank_of_other_work_does_not_bound_what_is_lost() -> None:
    # Rank 2 is a stage by itself: that it takes 130 ms may be waiting for the slow rank where no report shows it.
    slow = slow_of(3, (0, 1), own_ms=150.0, peers_ms=100.0)
    view = view_of(series_of([[100.0, 100.0, 130.0, 150.0]]), signatures={0: "a", 1: "a", 2: "b", 3: "a"})
    assert lost_to(slow, view, Healthy(view, {3})) / MS == pytest.approx(50)


def test_healthy_rank_on_a_slower_gpu_bounds_what_is_lost() -> None:
    # Its peers are on the same model, and the step would last for those with the same work on the other.
    slow = slow_of(3, (0, 1), own_ms=150.0, peers_ms=100.0)
    models = {0: "new", 1: "new", 2: "old", 3: "new", 4: "old"}
    view = view_of(series_of([[100.0, 100.0, 107.0, 150.0, 110.0]]), models=models)
    assert lost_to(slow, view, Healthy(view, {3})) / MS == pytest.approx(150 - 110)


def test_only_slow_steps_from_the_given_step_are_charged() -> None:
    own_ms = [[100.0, 100.0, 150.0]] * 10
    assert cost(own_ms, 2, since_step=4).lost_rank_seconds == pytest.approx(6 * 0.050 * 3)
    assert cost(own_ms, 2, since_step=4, from_step=7).lost_rank_seconds == pytest.approx(3 * 0.050 * 3)
    assert cost(own_ms, 2, from_step=10) == NO_COST


def test_two_stragglers_do_not_pay_for_the_same_step_twice() -> None:
    own_ms = [[100.0, 100.0, 100.0, 150.0, 130.0]] * 6 + [[100.0, 100.0, 100.0, 120.0, 130.0]] * 4
    # Rank 3 is the longest in six steps and rank 4 in four; the median of the others is 100 for both.
    assert cost(own_ms, 3, also_slow=(4,)).lost_rank_seconds == pytest.approx(6 * 0.050 * 5)
    assert cost(own_ms, 4, also_slow=(3,)).lost_rank_seconds == pytest.approx(4 * 0.030 * 5)


def test_of_two_equally_slow_stragglers_one_pays() -> None:
    own_ms = [[100.0, 100.0, 100.0, 150.0, 150.0]] * 10
    assert cost(own_ms, 3, also_slow=(4,)).lost_rank_seconds == pytest.approx(10 * 0.050 * 5)
    assert cost(own_ms, 4, also_slow=(3,)).lost_rank_seconds == 0.0


def test_fast_step_of_a_straggler_costs_and_gains_nothing() -> None:
    assert cost([[100.0, 100.0, 60.0]] * 10, 2) == NO_COST


def test_ideal_step_is_not_shorter_than_the_peers_own_time() -> None:
    # Clocked from outside, the step seems shorter than the rank's own time: no more than 120 - 100 can be lost.
    found = cost([[100.0, 100.0, 150.0]] * 10, 2, step_ms=[[120.0] * 3] * 10)
    assert found.lost_rank_seconds == pytest.approx(10 * 0.020 * 3)


def test_step_shorter_than_the_peers_own_time_loses_nothing() -> None:
    assert cost([[100.0, 100.0, 150.0]] * 10, 2, step_ms=[[90.0] * 3] * 10) == NO_COST


def test_steps_with_unknown_own_times_are_not_charged() -> None:
    own_ms = [[100.0, 100.0, 150.0]] * 4 + [[UNKNOWN, UNKNOWN, 150.0], [100.0, 100.0, UNKNOWN]] * 3
    assert cost(own_ms, 2, step_ms=[[150.0] * 3] * 10).lost_rank_seconds == pytest.approx(4 * 0.050 * 3)


def test_step_lasts_as_long_as_on_the_ranks_that_know_it() -> None:
    # Where the phases stand in for own times, an own time may be known and a duration not.
    step_ms = [[150.0, UNKNOWN, UNKNOWN]] * 6 + [[UNKNOWN] * 3] * 4
    found = cost([[100.0, 100.0, 150.0]] * 10, 2, step_ms=step_ms)
    assert tuple(found) == pytest.approx((1.5, 6 * 0.050 * 3))


def test_nothing_known_costs_nothing() -> None:
    assert cost([[UNKNOWN] * 3] * 10, 2) == NO_COST
    assert cost([[0.0] * 3] * 10, 2) == NO_COST


def lost_in_a_pipeline(
    handover_ms: list[float], *, do_same_work: bool = True, peers_ms: tuple[float, float, float] = (100.0, 100.0, 100.0)
) -> list[float]:
    """What one step of 160 ms loses to rank 3, of 150 ms against 100, with these times in point-to-point operations."""
    series = series_of([[*peers_ms, 150.0]], step_ms=[[160.0] * 4])
    view = view_of(dataclasses.replace(series, handover_ns=to_ns([handover_ms])))
    slow = slow_of(3, (0, 1, 2), own_ms=150.0, peers_ms=100.0, do_same_work=do_same_work)
    found: list[float] = (lost_to(slow, view, Healthy(view, {3})) / MS).tolist()
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


def test_longest_peer_in_the_pipeline_bounds_what_is_lost() -> None:
    assert lost_in_a_pipeline([20.0, 20.0, 20.0, 5.0], peers_ms=(90.0, 100.0, 120.0)) == pytest.approx([30.0 - 15.0])


def before_of_pipeline(is_pipeline: bool, *known: Finding) -> float | None:
    """The step before step 12, in ms: 20 steps, of which the first 12 take 140 ms, the others 160."""
    series = series_of([[100.0] * 4] * 20, step_ms=[[140.0] * 4] * 12 + [[160.0] * 4] * 8)
    handover = to_ns([[20.0] * 4] * 20) if is_pipeline else None
    found = find_pipeline_before(view_of(dataclasses.replace(series, handover_ns=handover)), 12, known)
    return None if found is None else found / MS


def test_pipeline_step_loses_its_excess_over_those_before() -> None:
    series = dataclasses.replace(
        series_of([[100.0, 100.0, 100.0, 150.0]], step_ms=[[160.0] * 4]), handover_ns=to_ns([[5.0] * 4])
    )
    view, slow = view_of(series), slow_of(3, (0, 1, 2), own_ms=150.0, peers_ms=100.0)
    for before_ms, lost_ms in ((140.0, 20.0), (100.0, 50.0), (170.0, 0.0)):
        assert lost_to(slow, view, Healthy(view, {3}, before_ms * MS)) / MS == pytest.approx(lost_ms)


def test_step_before_is_known_of_pipelines_and_kept_by_findings() -> None:
    told = remember(Finding(kind="straggler", cause=""), FindingMemory(step_before_ns=130.0 * MS))
    assert before_of_pipeline(True) == 140.0
    assert before_of_pipeline(True, told) == 130.0
    assert before_of_pipeline(False, told) is None


def together(first_ms: float, second_ms: float, step_ms: float, *, is_one_set: bool = False) -> float:
    """What a step loses to ranks 2 and 3 since step 12, before which steps of 110 ms had own times of 100 ms."""
    own_ms = [[100.0] * 4] * 12 + [[100.0, 100.0, first_ms, second_ms]] * 4
    view = view_of(series_of(own_ms, step_ms=[[110.0] * 4] * 12 + [[step_ms] * 4] * 4))
    slow = [
        slow_of(rank, (0, 1, 5 - rank), own_ms=ms, peers_ms=100.0, since_step=12)
        for rank, ms in ((2, first_ms), (3, second_ms))
    ]
    sets = [slow] if is_one_set else [[one] for one in slow]
    return float(lost_together(sets, view, Healthy(view, {2, 3}), 12)[-1] / MS)


def test_ranks_slow_at_different_places_of_a_step_add_up() -> None:
    assert together(150.0, 130.0, step_ms=190.0) == pytest.approx(50 + 30)


def test_ranks_that_are_slow_at_once_hide_each_other() -> None:
    # The step is 50 ms longer than it was: 160 - 100 less the 10 ms by which it was longer than an own time before.
    assert together(150.0, 130.0, step_ms=160.0) == pytest.approx(50)


def test_ranks_of_one_set_hide_each_other_whatever_else_is_there() -> None:
    assert together(150.0, 130.0, step_ms=190.0, is_one_set=True) == pytest.approx(50)


def spared(lost_ms: float, own_ms: list[float], others: list[int]) -> float:
    """How much shorter a step of 160 ms would be without a slowness alone."""
    view = view_of(series_of([own_ms], step_ms=[[160.0] * len(own_ms)]))
    return float(spared_by(to_ns([[lost_ms]])[0], view, others)[0] / MS)


def test_step_is_no_shorter_than_own_time_of_another_slow_rank() -> None:
    own_ms = [100.0, 100.0, 150.0, 130.0]
    assert spared(50.0, own_ms, [3]) == pytest.approx(160 - 130)
    assert spared(30.0, own_ms, [2]) == pytest.approx(160 - 150)
    assert spared(50.0, own_ms, []) == pytest.approx(50.0)


def test_usual_excess_of_a_step_over_its_ranks_is_not_spared() -> None:
    view = view_of(series_of([[100.0, 100.0, 150.0, 130.0]], step_ms=[[160.0] * 4]))
    assert spared_by(to_ns([[50.0]])[0], view, [3], to_ns([[10.0]])[0, 0])[0] / MS == pytest.approx(160 - 130 - 10)


def test_nothing_is_spared_if_another_rank_exceeds_the_step() -> None:
    assert spared(50.0, [100.0, 170.0, 180.0], [1]) == 0.0


def test_unknown_own_times_of_others_bound_no_step() -> None:
    assert spared(50.0, [UNKNOWN, 130.0, 150.0], [0, 1]) == pytest.approx(160 - 130)
    assert spared(50.0, [UNKNOWN] * 3, [0]) == pytest.approx(50.0)
