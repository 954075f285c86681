"""Where a series changes its level."""

import numpy as np
import pytest

from rankscope.collector.detect.statistics.change_points import SIDE_MIN, find_change, find_levels


def series(
    *levels: tuple[int, float], spread: float = 0.0, seed: int = 1
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """So many values at each level, with noise of a seeded generator on top."""
    steps = np.concatenate([np.full(count, level) for count, level in levels])
    return steps + np.random.default_rng(seed).normal(0.0, spread, len(steps))


@pytest.mark.parametrize("change", range(SIDE_MIN, 21 - SIDE_MIN))
def test_clean_change_is_found_wherever_it_is(change: int) -> None:
    assert find_change(series((change, 1.0), (20 - change, 2.0))) == change


@pytest.mark.parametrize("level", [-5.0, 0.5, 1e9])
def test_direction_and_size_do_not_matter(level: float) -> None:
    assert find_change(series((8, 0.0), (12, level))) == 8


@pytest.mark.parametrize("seed", range(10))
def test_change_of_three_deviations_is_found_to_a_step_or_two(seed: int) -> None:
    assert abs(find_change(series((60, 0.0), (40, 0.3), spread=0.1, seed=seed)) - 60) <= 2


@pytest.mark.parametrize("count", range(2 * SIDE_MIN))
def test_too_few_values_have_no_change(count: int) -> None:
    assert find_change(np.arange(count, dtype=np.float64)) == 0


def test_change_near_an_end_is_put_three_values_inside() -> None:
    assert find_change(series((19, 0.0), (1, 5.0))) == 20 - SIDE_MIN
    assert find_change(series((1, 5.0), (19, 0.0))) == SIDE_MIN


def test_series_that_does_not_change_is_cut_at_the_first_place() -> None:
    # Some place is always the most likely one; whether it is a change at all is for the caller to judge.
    assert find_change(series((20, 1.0))) == SIDE_MIN


def test_one_huge_stall_does_not_hide_a_small_change() -> None:
    values = series((50, 0.0), (50, 0.2), spread=0.02)
    values[20] += 100.0
    assert find_change(values) == 50


def test_of_two_changes_the_one_that_splits_better_is_found() -> None:
    assert find_change(series((40, 0.0), (40, 1.0), (20, 1.2))) == 40
    assert find_change(series((20, 0.0), (40, 0.2), (40, 1.2))) == 60


def test_series_is_not_changed_by_looking_at_it() -> None:
    values = series((10, 0.0), (10, 9.0))
    find_change(values)
    assert values.tolist() == [0.0] * 10 + [9.0] * 10


def test_levels_of_a_series_are_found_and_noise_is_none() -> None:
    values = series((50, 0.0), (40, 0.3), (60, 0.1), spread=0.02)
    assert find_levels(values, 12) == (50, 90)
    assert find_levels(series((150, 0.0), spread=0.1), 12) == ()


def test_level_of_too_few_values_is_none() -> None:
    assert find_levels(series((8, 0.0), (40, 0.5), spread=0.01), 12) == ()
