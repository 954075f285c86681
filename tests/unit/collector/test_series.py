"""Medians over the last known steps of many ranks at once."""

import numpy as np
import pytest

from rankscope.collector.detect.series import medians_of_last

NAN = float("nan")


def test_median_is_of_the_last_known_values_of_each_rank() -> None:
    values = np.array([[1.0, NAN], [2.0, 6.0], [NAN, NAN], [NAN, 8.0], [9.0, NAN]])
    assert medians_of_last(values, 3).tolist() == [2.0, 7.0]
    assert medians_of_last(values, 1).tolist() == [9.0, 8.0]


def test_rank_of_which_nothing_is_known_has_none() -> None:
    assert np.isnan(medians_of_last(np.full((4, 2), NAN), 3)).all()
    assert medians_of_last(np.array([[NAN, 1.0]]), 3).tolist() == pytest.approx([NAN, 1.0], nan_ok=True)
