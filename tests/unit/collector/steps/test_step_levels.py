"""Levels of a run: medians of blocks by hand, and their bound."""

import numpy as np
import pytest

from rankscope.collector.steps.step_levels import BLOCK_STEPS, BLOCKS_MAX, NO_LEVELS, StepLevels
from rankscope.collector.steps.step_series import Floats


def levels_of(step_ns: Floats, tokens: Floats | None = None) -> StepLevels:
    levels = StepLevels()
    levels.add(np.arange(len(step_ns)), step_ns, np.full(len(step_ns), np.nan) if tokens is None else tokens)
    levels.validate()
    return levels


def test_block_has_the_median_of_its_steps_and_of_their_tokens() -> None:
    step_ns = np.concatenate([np.full(20, 100.0), np.full(12, 900.0), np.full(32, 200.0), np.full(31, 300.0)])
    found = levels_of(step_ns, tokens=np.repeat([10.0, 20.0, 30.0], [32, 32, 31])).read()
    assert found.first_steps.tolist() == [0, 32]
    assert (found.step_ns.tolist(), found.tokens.tolist()) == ([100.0, 200.0], [10.0, 20.0])
    assert found.block_steps == BLOCK_STEPS == 32


def test_of_less_than_a_block_nothing_is_known() -> None:
    assert levels_of(np.full(31, 100.0)).read() is NO_LEVELS


def test_steps_count_once_and_those_that_are_not_known_not() -> None:
    levels = levels_of(np.full(20, 100.0))
    levels.add(np.arange(60), np.where(np.arange(60) < 28, np.nan, 100.0), np.full(60, np.nan))
    # 20 before, and 12 of the 32 from step 28 on fill a block; the 20 that remain do not.
    assert levels.read().first_steps.tolist() == [0]
    levels.add(np.array([59, 60]), np.full(2, 100.0), np.full(2, np.nan))
    assert levels.last_step == 60


@pytest.mark.parametrize(("steps", "blocks", "block_steps"), [(4064, 127, 32), (4096, 64, 64), (20_000, 78, 256)])
def test_blocks_are_joined_where_there_are_too_many(steps: int, blocks: int, block_steps: int) -> None:
    # 4,096 steps are 128 blocks of 32, so 64 of 64; from 8,192 on 64 of 128, from 16,384 on 64 of 256, and 14 more.
    found = levels_of(np.arange(steps, dtype=np.float64)).read()
    assert (len(found.step_ns), found.block_steps) == (blocks, block_steps)
    assert found.first_steps.tolist() == list(range(0, blocks * block_steps, block_steps))
    assert found.step_ns.tolist() == [first + (block_steps - 1) / 2 for first in found.first_steps.tolist()]
    assert len(found.step_ns) < BLOCKS_MAX
