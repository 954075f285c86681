"""What is kept of the steps of a pass for the levels of a run."""

import numpy as np

from rankscope.collector.runs.run_view import keep_levels
from rankscope.collector.steps.step_levels import StepLevels
from tests.unit.collector.steps.step_series import series_of, view_of


def test_steps_are_kept_once_when_no_rank_is_awaited_for_them() -> None:
    levels = StepLevels()
    tokens = [[10.0, 30.0]] * 100
    keep_levels(levels, view_of(series_of([[100.0, 120.0]] * 80, tokens=tokens[:80])))
    assert levels.last_step == 47  # 32 before the last, which is 79
    keep_levels(levels, view_of(series_of([[100.0, 120.0]] * 100, tokens=tokens)))
    assert levels.last_step == 67
    found = levels.read()  # of each step the longest on any rank, and the mean batch of a rank
    assert (found.first_steps.tolist(), found.step_ns.tolist(), found.tokens.tolist()) == (
        [0, 32],
        [120e6] * 2,
        [20.0] * 2,
    )


def test_tokens_that_no_rank_reports_are_not_known() -> None:
    levels = StepLevels()
    keep_levels(levels, view_of(series_of([[100.0, 120.0]] * 64)))
    assert np.isnan(levels.read().tokens).all()
    keep_levels(levels, view_of(series_of([[100.0, 120.0]] * 64)))
    assert levels.last_step == 31
