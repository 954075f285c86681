"""The range of a begin: it holds the true one, as narrowly as the noise allows. Noise from seeded generators."""

import numpy as np
import pytest

from rankscope.collector.detect.statistics.begin_range import find_begin_range, to_since_range
from rankscope.collector.steps.step_series import Floats

BEGIN, COUNT = 100, 200


def rise(height: float, length: int, seed: int, deviation: float, correlation: float = 0.0) -> Floats:
    """Return a rise from BEGIN on, in noise of this deviation whose neighbors are correlated (first order)."""
    drawn = np.random.default_rng(seed).normal(0.0, deviation, COUNT)
    for index in range(1, COUNT):
        drawn[index] = correlation * drawn[index - 1] + np.sqrt(1 - correlation**2) * drawn[index]
    return np.asarray(height * np.clip((np.arange(COUNT) - BEGIN + 1) / length, 0.0, 1.0) + drawn)


@pytest.mark.parametrize("length", [1, 60])
@pytest.mark.parametrize(("deviation", "correlation"), [(0.02, 0.0), (0.1, 0.0), (0.05, 0.9)])
def test_range_holds_the_true_begin(length: int, deviation: float, correlation: float) -> None:
    # It is to do so in 99 of 100 cases; that all of 20 do has a probability of 0.82, and the seeds are fixed.
    for seed in range(20):
        first, last = find_begin_range(rise(0.1, length, seed, deviation, correlation), BEGIN, COUNT)
        assert first <= BEGIN <= last, (seed, first, last)


@pytest.mark.parametrize(
    ("height", "length", "deviation", "width"),
    # Ten deviations date a step exactly; a begin within one twentieth of a deviation a step is uncertain by dozens.
    [(0.3, 1, 0.02, 2), (0.1, 1, 0.02, 14), (0.3, 60, 0.02, 30), (0.1, 60, 0.02, 60)],
)
def test_range_is_as_wide_as_the_noise_makes_it(height: float, length: int, deviation: float, width: int) -> None:
    for seed in range(10):
        first, last = find_begin_range(rise(height, length, seed, deviation), BEGIN, COUNT)
        assert last - first <= width, (seed, first, last)
    loud = [find_begin_range(rise(height, length, seed, 10 * deviation), BEGIN, COUNT) for seed in range(10)]
    assert np.median([last - first for first, last in loud]) > width


def test_range_contains_a_begin_that_fits_badly() -> None:
    first, last = find_begin_range(rise(0.3, 1, 0, 0.02), BEGIN + 30, COUNT)
    assert first <= BEGIN
    assert last == BEGIN + 30


def test_range_does_not_reach_into_an_earlier_slowness() -> None:
    earlier = rise(0.1, 1, 0, 0.1)
    earlier[:40] += 1.0  # it was slow until value 40, far more
    first, _ = find_begin_range(earlier, BEGIN, COUNT)
    assert 40 <= first <= BEGIN


def test_levels_that_rise_one_after_the_other_are_one_rise() -> None:
    # Dated to the second of two steps: the first may be the begin.
    steps = rise(0.05, 1, 0, 0.01)
    steps[140:] += 0.05
    first, _ = find_begin_range(steps, 140, COUNT)
    assert first <= BEGIN


def test_of_few_values_the_begin_is_what_it_is_said_to_be() -> None:
    assert find_begin_range(np.array([0.0, 0.0, 1.0, 1.0]), 2, 4) == (2, 2)


def test_range_begins_after_the_last_known_step() -> None:
    steps = np.array([0, 8, 16, 24])
    assert to_since_range(steps, 1, 2) == (1, 16)
    assert to_since_range(steps, 0, 3) == (0, 24)
