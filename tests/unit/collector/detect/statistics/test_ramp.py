"""Sudden or gradual: ramps with a known begin, with noise from a seeded generator."""

import numpy as np
import pytest

from rankscope.collector.detect.statistics.change_points import fit_ramp
from rankscope.collector.steps.step_series import Floats


def noisy(values: Floats, seed: int, deviation: float = 0.03) -> Floats:
    return values + np.random.default_rng(seed).normal(0.0, deviation, len(values))


def ramp(count: int, begin: int, length: int, height: float) -> Floats:
    return np.asarray(height * np.clip((np.arange(count) - begin) / length, 0.0, 1.0))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("begin", "length"), [(60, 60), (100, 100), (30, 200)])
def test_slowness_that_grows_is_gradual_and_dated_by_its_begin(begin: int, length: int, seed: int) -> None:
    found = fit_ramp(noisy(ramp(200, begin, length, 0.4), seed))
    assert found.is_gradual
    assert abs(found.begin - begin) <= 20


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("levels", [(0.0, 0.4), (0.0, 0.3, 0.8), (0.0, 0.3, 0.0)])
def test_sudden_changes_are_not(levels: tuple[float, ...], seed: int) -> None:
    values = np.repeat(np.array(levels), 70)
    assert not fit_ramp(noisy(values, seed)).is_gradual


@pytest.mark.parametrize("seed", range(10))
def test_noise_alone_is_not(seed: int) -> None:
    assert not fit_ramp(noisy(np.zeros(100), seed)).is_gradual


def test_series_of_two_values_or_of_equal_ones_has_no_ramp() -> None:
    assert not fit_ramp(np.array([0.0, 1.0])).is_gradual
    assert not fit_ramp(np.zeros(40)).is_gradual
