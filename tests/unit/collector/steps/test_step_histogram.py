"""StepHistogram: each step counts once, in the class of its duration."""

import numpy as np
import pytest

from rankscope.collector.steps.step_histogram import BOUNDS_S, StepDurations, StepHistogram
from rankscope.measure.units import NS_PER_MS as MS


def at_most(seen: StepDurations) -> dict[float, int]:
    return dict(zip(BOUNDS_S, seen.at_most, strict=True))


def test_bounds_are_ten_a_decade_from_1_ms_to_100_s() -> None:
    assert BOUNDS_S[:4] == (0.001, 0.00126, 0.00158, 0.002)
    assert (BOUNDS_S[-1], len(BOUNDS_S)) == (100.0, 51)
    ratios = np.diff(np.log10(BOUNDS_S))
    assert ratios == pytest.approx(np.full(50, 0.1), abs=0.003)


def test_steps_are_counted_up_to_the_bound_that_they_reach() -> None:
    histogram = StepHistogram()
    histogram.add(np.array([3, 4, 5, 6]), np.array([0.5, 100.0, 101.0, 200_000.0]) * MS)
    seen = histogram.read()
    counts = at_most(seen)
    assert [counts[bound] for bound in (0.001, 0.0794, 0.1, 0.126, 100.0)] == [1, 1, 2, 3, 3]
    assert seen.steps == 4
    assert seen.sum_s == pytest.approx(200.2015)
    histogram.validate()


def test_step_counts_once_and_an_unknown_one_never() -> None:
    histogram = StepHistogram()
    histogram.add(np.array([3, 4]), np.array([10.0 * MS, np.nan]))
    histogram.add(np.array([3, 4, 5]), np.array([10.0, 10.0, 10.0]) * MS)
    assert (histogram.read().steps, histogram.last_step) == (2, 5)
    histogram.add(np.empty(0, dtype=np.int64), np.empty(0))
    assert (histogram.read().steps, histogram.last_step) == (2, 5)
