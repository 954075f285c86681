"""The noise of a series, and the error of its median."""

import math

import numpy as np
import pytest

from rankscope.collector.detect.statistics.noise import CORRELATION_MAX, Noise, measure_noise
from rankscope.collector.steps.step_series import Floats


def white(count: int, deviation: float = 0.1, seed: int = 3) -> Floats:
    return np.random.default_rng(seed).normal(0.0, deviation, count)


def alike(count: int, correlation: float, seed: int = 3) -> Floats:
    """Noise of deviation 0.1 in which each value takes over so much of the one before."""
    fresh, values = white(count, 0.1 * math.sqrt(1 - correlation**2), seed), np.zeros(count)
    for index in range(1, count):
        values[index] = correlation * values[index - 1] + fresh[index]
    return values


def test_deviation_is_that_of_normal_noise() -> None:
    assert measure_noise(white(10_000), 0).deviation == pytest.approx(0.1, rel=0.03)


def test_change_of_level_is_no_noise() -> None:
    values = white(200)
    shifted = values.copy()
    shifted[120:] += 5.0
    assert measure_noise(shifted, 120).deviation == pytest.approx(measure_noise(values, 120).deviation)
    assert measure_noise(shifted, 0).deviation > 2 * measure_noise(values, 0).deviation


def test_correlation_is_taken_at_the_upper_end_of_what_it_may_be() -> None:
    # 10,000 values give it to 0.01: the estimate plus twice that.
    assert measure_noise(alike(10_000, 0.5), 0).correlation == pytest.approx(0.5 + 0.02, abs=0.03)
    assert measure_noise(white(10_000), 0).correlation == pytest.approx(0.02, abs=0.03)


def test_few_values_may_be_as_alike_as_can_be() -> None:
    # Of 4 values two standard errors are 2 / sqrt(4) = 1.
    assert measure_noise(np.array([0.0, 0.4, 0.6, 1.0]), 0).correlation == CORRELATION_MAX


def test_values_that_alternate_count_as_independent() -> None:
    assert measure_noise(np.tile([-1.0, 1.0], 200), 0).correlation == 0.0


def test_values_without_noise_have_none() -> None:
    assert measure_noise(np.full(400, 7.0), 0) == Noise(deviation=0.0, correlation=0.1)
    assert measure_noise(np.full(1, 7.0), 0).median_error(1) == 0.0


def test_one_stall_changes_neither_deviation_nor_correlation() -> None:
    values = alike(1_000, 0.8)
    stalled = values.copy()
    stalled[500] += 1_000.0
    calm, noisy = measure_noise(values, 0), measure_noise(stalled, 0)
    assert noisy.deviation == pytest.approx(calm.deviation, rel=0.01)
    assert noisy.correlation == pytest.approx(calm.correlation, abs=0.02)


def test_error_of_a_median_falls_with_the_root_of_the_count() -> None:
    noise = Noise(deviation=0.1, correlation=0.0)
    assert noise.median_error(25) == pytest.approx(1.2533 * 0.1 / 5)
    assert noise.median_error(100) == pytest.approx(noise.median_error(25) / 2)


def test_values_that_are_alike_count_for_fewer() -> None:
    # (1 - 0.6) / (1 + 0.6) = 1 / 4: 100 of them are worth 25.
    assert Noise(0.1, 0.6).median_error(100) == pytest.approx(Noise(0.1, 0.0).median_error(25))
    assert Noise(0.1, 0.9).median_error(3) == pytest.approx(1.2533 * 0.1)


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.8])
def test_median_error_matches_its_estimate(correlation: float) -> None:
    rows = np.array([alike(200, correlation, seed) for seed in range(200)])
    seen = float(np.std(np.median(rows, axis=1)))
    said = float(np.median([measure_noise(row, 0).median_error(200) for row in rows]))
    assert seen <= said <= 2 * seen


def test_several_changes_of_level_are_no_noise() -> None:
    values = white(300)
    shifted = values.copy()
    shifted[100:200] += 5.0
    shifted[200:] += 9.0
    assert measure_noise(shifted, 100, 200).deviation == pytest.approx(measure_noise(values, 0).deviation, rel=0.02)
    assert measure_noise(shifted, 200).deviation > 10 * measure_noise(values, 0).deviation
