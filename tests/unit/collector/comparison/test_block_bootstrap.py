"""Intervals of a mean and of quantiles, for independent values and for ones that depend on their neighbors."""

import math
from collections.abc import Iterable

import numpy as np
import pytest

from rankscope.collector.comparison.block_bootstrap import (
    BLOCKS_MIN,
    Floats,
    choose_block_length,
    count_blocks,
    find_interval,
    find_widening,
    resample_means,
    resample_quantiles,
)


def depend_on_neighbors(seed: int, count: int = 1_000, kept: float = 0.8) -> Floats:
    """A series with mean 0 of which each value keeps so much of the one before."""
    random = np.random.default_rng(seed)
    series, value = [], 0.0
    for _ in range(count):
        value = kept * value + random.normal()
        series.append(value)
    return np.array(series)


def find_mean_interval(values: Floats) -> tuple[float, float]:
    """The interval of the mean of a series."""
    means = resample_means(values[:, np.newaxis], 0)[:, 0]
    return find_interval(means, float(values.mean()), count_blocks(len(values)))


def count_covered(series: Iterable[Floats]) -> int:
    """How many intervals of the means of these series contain 0."""
    intervals = [find_mean_interval(values) for values in series]
    return sum(low <= 0.0 <= high for low, high in intervals)


@pytest.mark.parametrize("count", [1, 2, 15, 16, 100, 1_000, 50_000])
def test_series_has_many_blocks_of_one_value_or_more(count: int) -> None:
    length = choose_block_length(count)
    assert 1 <= length <= max(1, count // BLOCKS_MIN)


def test_constant_series_has_no_width() -> None:
    assert find_interval(resample_means(np.full((50, 1), 7.0), 0)[:, 0], 7.0, 8) == (7.0, 7.0)
    assert find_interval(resample_quantiles(np.full(50, 7.0), (0.5,), 0)[:, 0], 7.0, 8) == (7.0, 7.0)


def test_width_is_that_of_the_textbook_for_independent_values() -> None:
    values = np.random.default_rng(1).normal(0.0, 1.0, 10_000)
    low, high = find_mean_interval(values)
    assert high - low == pytest.approx(2 * 1.96 / 100, rel=0.15)  # of a mean of 10,000 values: sigma / 100


def test_interval_covers_the_mean_where_neighbors_depend() -> None:
    # Of 60 series with a true mean of 0 the interval would cover it in 57; one by one, in 34 (a third as wide).
    assert count_covered(depend_on_neighbors(seed) for seed in range(60)) >= 53


def test_interval_covers_the_mean_of_a_short_series() -> None:
    # 0.95 x 300 = 285, with a standard deviation of 4; without the factor it is 271.
    random = np.random.default_rng(5)
    assert 277 <= count_covered(random.normal(size=100) for _ in range(300)) <= 297


def test_interval_of_few_blocks_is_wider() -> None:
    # sqrt(b / (b - 1)) t / z, with t from a table: 2.3646 (7 degrees of freedom), 2.0096 (49), and z = 1.9600.
    assert find_widening(8) == pytest.approx(math.sqrt(8 / 7) * 2.3646 / 1.96, rel=1e-3)
    assert find_widening(50) == pytest.approx(math.sqrt(50 / 49) * 2.0096 / 1.96, rel=1e-3)
    assert find_widening(1) == 1.0
    resampled = np.linspace(1.0, 3.0, 1_001)
    low, high = find_interval(resampled, 2.0, 8)
    assert (low, high) == pytest.approx((2 - 0.95 * find_widening(8), 2 + 0.95 * find_widening(8)))


def test_columns_are_resampled_together() -> None:
    values = np.random.default_rng(2).normal(size=200)
    means = resample_means(np.column_stack([values, 3.0 - values]), 0)
    np.testing.assert_allclose(means.sum(axis=1), 3.0)


def test_same_stream_gives_the_same_and_another_gives_another() -> None:
    series = np.random.default_rng(3).normal(size=(100, 1))
    assert (resample_means(series, 0) == resample_means(series, 0)).all()
    assert (resample_means(series, 0) != resample_means(series, 1)).any()


def test_quantile_is_that_of_the_values_of_the_blocks() -> None:
    values = np.repeat([1.0, 2.0], 500)
    low, high = find_interval(resample_quantiles(values, (0.99,), 0)[:, 0], 2.0, count_blocks(1_000))
    assert (low, high) == (2.0, 2.0)
