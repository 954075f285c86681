"""Ranks whose batches have more tokens than those of others in every step."""

import numpy as np
import pytest

from rankscope.collector.steps.token_classes import APART_RATIO, STEPS_MIN, find_token_classes


def tokens_of(*of_ranks: float, steps: int = 20) -> np.ndarray:
    return np.tile(np.array(of_ranks, dtype=np.float64), (steps, 1))


def classes_of(tokens: np.ndarray) -> list[int]:
    return list(find_token_classes(tokens, range(tokens.shape[1])).values())


def test_ranks_with_clearly_more_tokens_are_a_class_of_their_own() -> None:
    assert classes_of(tokens_of(100, 130, 100, 131)) == [0, 1, 0, 1]
    assert classes_of(tokens_of(300, 100, 130)) == [2, 0, 1]


@pytest.mark.parametrize(("ratio", "found"), [(APART_RATIO, [0, 1]), (APART_RATIO - 0.01, [])])
def test_few_tokens_more_are_no_class(ratio: float, found: list[int]) -> None:
    assert classes_of(tokens_of(1_000, 1_000 * ratio)) == found


def test_a_range_without_a_gap_is_one_class() -> None:
    assert classes_of(tokens_of(100, 105, 110, 115, 120)) == []


@pytest.mark.parametrize(("steps", "found"), [(STEPS_MIN - 1, []), (STEPS_MIN, [0, 1])])
def test_few_steps_make_no_class(steps: int, found: list[int]) -> None:
    assert classes_of(tokens_of(100, 130, steps=steps)) == found


def test_batches_that_differ_from_step_to_step_make_no_class() -> None:
    tokens = tokens_of(100, 130)
    tokens[::5, 1] = 90
    assert classes_of(tokens) == []


def test_tokens_that_are_not_known_make_no_class() -> None:
    assert find_token_classes(None, (0, 1)) == {}
    assert classes_of(np.full((20, 2), np.nan)) == []
    assert classes_of(tokens_of(0, 0)) == []


def test_steps_that_a_rank_has_not_reported_do_not_count() -> None:
    tokens = tokens_of(100, 130)
    tokens[-3:, 0] = np.nan
    assert classes_of(tokens) == [0, 1]
