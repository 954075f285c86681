"""Which ranks of a recording are named as slow, by all its steps: how much longer, how steadily, and whom they made
wait.
"""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from rankscope.collector.detect.finding import Abstain
from rankscope.collector.detect.stragglers.persistent import SlowRank, Thresholds
from rankscope.collector.detect.stragglers.recording import add_recorded, find_noise, measure_rank
from rankscope.collector.detect.view import RunView, Samples
from rankscope.collector.steps.peer_groups import PeerComparison, PeerGroups
from rankscope.collector.steps.step_series import StepSeries

MS = 1e6


def view_of(*steps_ms: Sequence[float], last: Sequence[int] = ()) -> RunView:
    """Return ranks with these own times; in each of some collectives all others wait 100 ms for the last one."""
    ranks, steps = tuple(range(len(steps_ms))), np.arange(len(steps_ms[0]))
    own_ns = MS * np.array(steps_ms, dtype=np.float64).T
    caused_ns = [100 * MS * (len(ranks) - 1) * last.count(rank) / len(steps) for rank in ranks]
    series = StepSeries(
        steps, ranks, own_ns, own_ns, np.full(own_ns.shape, np.nan), {}, own_is_measured=True,
        wait_caused_ns=np.tile(caused_ns, (len(steps), 1)),
    )  # fmt: skip
    return RunView(
        now_collector_ns=0,
        world_size=len(ranks),
        series=series,
        peer_groups=PeerGroups((PeerComparison(ranks, ranks, do_same_work=True),), dict.fromkeys(ranks, 0)),
        nodes=dict.fromkeys(ranks, ""),
        samples=Samples({}, {}, {}, are_of_traces=True),
    )


def ranks_of(found: Sequence[SlowRank] | Abstain) -> list[int] | str:
    return found.reason if isinstance(found, Abstain) else [one.rank for one in found]


def slow_in(*steps_ms: Sequence[float], last: Sequence[int]) -> list[int] | str:
    return ranks_of(add_recorded(view_of(*steps_ms, last=last), Abstain("too few steps"), Thresholds()))


def test_rank_that_is_much_slower_is_named() -> None:
    assert slow_in([160, 160], [100, 100], last=[0, 0]) == [0]


def test_steadily_slower_rank_is_named_below_the_ratio_of_noise() -> None:
    # 110, 100 and 90 ms more than 700: 1.143 times; 100 give or take 6.96 * 10 / sqrt(3) = 40.2 ms.
    steps = [810, 800, 790], [700, 700, 700]
    assert slow_in(*steps, last=[0] * 18 + [1] * 3) == [0]
    view = view_of(*steps)
    found = measure_rank(view, 0, view.peer_groups.of(0).peers_of(0))
    # In standard errors of 10 / sqrt(3) ms.
    assert found.excess_ns == pytest.approx(100 * MS)
    assert found.robust_z == pytest.approx(10 * 3**0.5)
    assert found.slowdown_ratio == pytest.approx(800 / 700)


def test_noise_is_half_of_the_interval_of_the_mean() -> None:
    assert find_noise([110.0, 100.0, 90.0]) == pytest.approx(6.96 * 10 / 3**0.5)


def test_difference_within_its_noise_is_not_named() -> None:
    # 300, 0 and 0 ms more: 100 give or take 6.96 * 173.2 / sqrt(3) = 696 ms.
    assert slow_in([1000, 701, 700], [700, 700, 700], last=[0] * 21) == []


def test_much_slower_rank_within_its_noise_is_doubted_not_named() -> None:
    # 600, 1 and 1 ms more than 700, 700 and 699: 200.7 ms, 1.287 times.
    # The standard error is 345.8 / sqrt(3) = 199.7 ms: 6.96 times that is 1389.7 ms (98 %), 2.92 times 583 ms (90 %).
    assert slow_in([1300, 701, 700], [700, 700, 699], last=[0] * 21) == (
        "rank 0: without waits its steps took 1.29 times as long as its peers', but the steps differ by as much "
        "(+200.7 ms in a step, give or take 1.4 s): record more of them."
    )


def test_much_slower_rank_is_named_beyond_a_smaller_interval() -> None:
    # 100, 200 and 300 ms more: 200, of standard error 57.7 ms: within 6.96 x that (401.8 ms), not 2.92 x (168.6 ms).
    assert slow_in([800, 900, 1000], [700, 700, 700], last=[0] * 21) == [0]


def test_much_slower_rank_without_any_noise_is_named() -> None:
    assert slow_in([900] * 3, [700] * 3, last=[0] * 21) == [0]


def test_much_slower_rank_beyond_its_noise_need_not_always_be_last() -> None:
    # 300, 310 and 320 ms more: 310 give or take 6.96 * 10 / sqrt(3) = 40.2 ms.
    assert slow_in([1000, 1010, 1020], [700, 700, 700], last=[0] * 11 + [1] * 10) == [0]


def test_two_steps_show_no_noise_and_name_nobody_by_little() -> None:
    assert slow_in([800, 800], [700, 700], last=[0] * 14) == []
    assert find_noise([100.0, 100.0]) is None


@pytest.mark.parametrize("last", [[0, 1] * 9, [1] * 18])
def test_longer_steps_alone_name_nobody(last: Sequence[int]) -> None:
    assert slow_in([800, 801, 799], [700, 700, 700], last=last) == []


def test_shorter_rank_that_others_wait_for_is_not_named() -> None:
    assert slow_in([160, 160], [100, 100], last=[1, 1]) == []


def test_slower_in_few_steps_is_not_named() -> None:
    assert slow_in([99, 300, 99, 99], [100, 100, 100, 100], last=[0] * 4) == []


def test_much_slower_rank_is_named_where_waiting_is_not_known() -> None:
    view = view_of([160, 160], [100, 100])
    view = replace(view, series=replace(view.series, wait_caused_ns=None))
    assert ranks_of(add_recorded(view, (), Thresholds())) == [0]


def test_ranks_that_only_waited_are_not_named() -> None:
    assert slow_in([0, 0, 0], [0, 0, 0], last=[0] * 3) == []


def test_ranks_without_peers_are_not_compared() -> None:
    view = view_of([160, 160], [100, 100], last=[0, 0])
    alone = PeerGroups((PeerComparison((0, 1), (0, 1), do_same_work=False),), {0: 0, 1: 0})
    assert add_recorded(replace(view, peer_groups=alone), (), Thresholds()) == ()


def test_what_the_tests_of_a_run_find_is_kept_with_its_begin() -> None:
    view = view_of([160] * 3, [100] * 3, [101, 100, 99], last=[0] * 3)
    found = measure_rank(view, 0, view.peer_groups.of(0).peers_of(0))._replace(since_step=2)
    assert add_recorded(view, (found,), Thresholds()) == (found,)


def test_rank_that_is_slow_now_and_then_is_not_said_to_be_slow_in_all_steps() -> None:
    # Twice as long in every third step, and by chance of 1 % longer in half of the others.
    chance = Random(1)
    ranks = [[100 + chance.random() for _ in range(36)] for _ in range(8)]
    ranks[2] = [200.0 if step % 3 == 0 else 101.0 for step in range(36)]
    assert slow_in(*ranks, last=[2] * 12) == []
    assert slow_in(*(steps[:20] for steps in ranks), last=[2] * 7) == [2]


def test_healthy_ranks_in_noise_are_not_named() -> None:
    # 200 runs of 3 steps, 2 to 8 ranks, each step up to 8 % longer on each rank by chance; the longest comes last.
    accused = 0
    for seed in range(200):
        chance = Random(seed)
        ranks = [[100 + 8 * chance.random() for _ in range(3)] for _ in range(chance.randint(2, 8))]
        last = [max(range(len(ranks)), key=lambda rank: ranks[rank][step]) for step in range(3) for _ in range(7)]
        accused += bool(slow_in(*ranks, last=last))
    assert accused == 0


# -- several slow ranks ------------------------------------------------------------------------------------------------

HEALTHY = [700, 701, 699]


def test_ranks_that_are_slow_together_are_all_named() -> None:
    found = slow_in([820, 818, 822], HEALTHY, [815, 821, 818], HEALTHY, HEALTHY, last=[0, 2, 0, 0, 2])
    assert found == [0, 2]


def test_rank_less_slow_by_half_is_not_named_beside_another() -> None:
    assert slow_in([900, 900, 900], HEALTHY, [760, 760, 760], HEALTHY, HEALTHY, last=[0] * 5) == [0]


def test_rank_differing_by_noise_is_not_named_beside_another() -> None:
    assert slow_in([900, 900, 900], HEALTHY, [1100, 702, 720], HEALTHY, HEALTHY, last=[0] * 5) == [0]


def test_most_ranks_are_not_named_beside_one() -> None:
    assert slow_in([900, 901, 899], [899, 901, 900], HEALTHY, last=[0, 1, 0]) == [0]
