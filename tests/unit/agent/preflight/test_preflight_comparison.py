"""Rates beside those of peers: numbers computed by hand."""

import random

import pytest

from rankscope.agent.preflight.comparison import compare, find_spread, median_error


def test_half_the_rate_of_quiet_peers_is_slow() -> None:
    found = compare([50.0, 50.0, 50.0], [[100.0] * 3, [101.0] * 3, [99.0] * 3], ratio_min=1.05)
    # sigma: (log 101 - log 99) / 1.693 = 0.0118; log 2 = 0.693
    assert [found.own, found.against, found.ratio] == pytest.approx([50.0, 100.0, 0.5])
    assert found.deviations == pytest.approx(0.6931 / 0.01181, rel=1e-3)
    assert found.is_slow


def test_a_rate_below_the_smallest_ratio_is_not_slow() -> None:
    # 4 % of equal peers: beyond the noise (0.041 / 0.01 = 4.1 would not be; of a floor of 1 %), and under 5 %.
    assert not compare([96.0], [[100.0]] * 6, ratio_min=1.05).is_slow


def test_peers_that_differ_as_much_hide_a_slow_one() -> None:
    peers = [[100.0], [60.0], [140.0]]
    found = compare([50.0], peers, ratio_min=1.3)
    # log(140 / 60) / 1.693 = 0.50: half the rate is 1.4 deviations
    assert found.deviations == pytest.approx(0.6931 / 0.5005, rel=1e-3)
    assert not found.is_slow


def test_faster_than_the_peers_is_not_slow() -> None:
    assert not compare([200.0], [[100.0], [100.0], [101.0]], ratio_min=1.05).is_slow


def test_noise_within_the_own_values_counts() -> None:
    own = [20.0, 50.0, 125.0]  # log deviations 0.916: 1.2533 x 1.4826 x 0.916 / sqrt(3) = 0.983
    assert compare(own, [[100.0]] * 3, ratio_min=1.3).deviations == pytest.approx(0.6931 / 0.983, rel=1e-3)


def test_one_of_seven_peers_that_is_slow_too_hides_nothing() -> None:
    peers = [[100.0], [101.0], [99.0], [100.5], [99.5], [100.2], [30.0]]
    assert compare([50.0], peers, ratio_min=1.05).is_slow


def test_spread_of_few_is_their_range() -> None:
    assert find_spread([0.0, 0.0, 0.1, 0.4]) == pytest.approx(0.4 / 2.059)


def test_spread_of_many_is_their_median_deviation() -> None:
    # middle 0.3; deviations 0.3 0.2 0.1 0 0.1 0.2 8.7: median 0.2
    assert find_spread([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 9.0]) == pytest.approx(1.4826 * 0.2)


def test_one_value_has_no_error() -> None:
    assert median_error([3.0], 4) == 0.0


@pytest.mark.parametrize("count", [4, 8, 64])
def test_equal_ranks_are_named_in_less_than_one_of_hundred_twice(count: int) -> None:
    seed = 20260101 + count
    draw = random.Random(seed)
    named = 0
    for _ in range(200):
        slow = set(range(count))
        for _ in range(2):
            ranks = [[draw.lognormvariate(0.0, 0.2) for _ in range(8)] for _ in range(count)]
            slow = {one for one in slow if compare(ranks[one], ranks[:one] + ranks[one + 1 :], 1.05).is_slow}
        named += bool(slow)
    assert named <= 1, f"seed {seed}"
