"""Medians over the last known steps of many ranks at once."""

import numpy as np
import pytest

from rankscope.collector.steps import step_series as series_module
from rankscope.collector.steps.step_series import in_blocks, medians_of_last

NAN = float("nan")


def test_median_is_of_the_last_known_values_of_each_rank() -> None:
    values = np.array([[1.0, NAN], [2.0, 6.0], [NAN, NAN], [NAN, 8.0], [9.0, NAN]])
    assert medians_of_last(values, 3).tolist() == [2.0, 7.0]
    assert medians_of_last(values, 1).tolist() == [9.0, 8.0]


def test_rank_of_which_nothing_is_known_has_none() -> None:
    assert np.isnan(medians_of_last(np.full((4, 2), NAN), 3)).all()
    assert medians_of_last(np.array([[NAN, 1.0]]), 3).tolist() == pytest.approx([NAN, 1.0], nan_ok=True)


@pytest.mark.parametrize(("rows", "at_once"), [(0, 2), (1, 2), (5, 2), (4, 2), (3, 1)])
def test_rows_come_in_blocks_each_once_and_in_order(rows: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of two rows of ten columns; a row wider than a block comes alone."""
    monkeypatch.setattr(series_module, "CELLS_AT_ONCE", 20)
    blocks = [block.tolist() for block in in_blocks(np.arange(rows), 20 // at_once)]
    assert [row for block in blocks for row in block] == list(range(rows))
    assert all(len(block) == at_once for block in blocks[:-1])
