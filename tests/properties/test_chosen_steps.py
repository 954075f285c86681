"""Laws of the steps that all ranks choose alone: one of each block, nested, and no period falls between them."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.agent.steps.step_intervals import find_chosen, find_next_chosen, is_chosen

steps = st.integers(0, 1 << 40)
powers = st.integers(0, 20).map(lambda exponent: 1 << exponent)
WINDOW_STEPS = 2
"""Steps of a full window."""
PERIODS = range(2, 201)
WAITS_MAX = 8
"""A stall every n-th step is met within this many times n windows. Were each offset as likely as any other, one of n
would be missed by so many windows with a probability of e^-16."""


def choose(interval_steps: int, until: int) -> list[int]:
    return [step for step in range(until) if is_chosen(step, interval_steps)]


@pytest.mark.parametrize("interval_steps", [1, 2, 8, 64, 1024])
def test_one_step_of_each_block_is_chosen(interval_steps: int) -> None:
    found = choose(interval_steps, 4096)
    assert [step // interval_steps for step in found] == list(range(4096 // interval_steps))
    assert found == [find_chosen(block, interval_steps) for block in range(4096 // interval_steps)]


@given(steps, powers)
def test_what_is_chosen_of_a_block_is_in_it_and_is_chosen(block: int, interval_steps: int) -> None:
    found = find_chosen(block, interval_steps)
    assert found // interval_steps == block
    assert is_chosen(found, interval_steps)


@given(steps, powers, powers)
def test_steps_of_a_longer_interval_are_among_those_of_a_shorter(block: int, one: int, other: int) -> None:
    assert is_chosen(find_chosen(block, max(one, other)), min(one, other))


@given(steps, st.integers(0, 10).map(lambda exponent: 1 << exponent))
def test_no_step_is_chosen_before_the_next_one(step: int, interval_steps: int) -> None:
    found = find_next_chosen(step, interval_steps)
    assert step < found < step + 2 * interval_steps
    assert [one for one in range(step + 1, found + 1) if is_chosen(one, interval_steps)] == [found]


@pytest.mark.parametrize("interval_steps", [64, 256, 1024])
def test_no_period_falls_between_the_windows(interval_steps: int) -> None:
    begins = [find_chosen(block, interval_steps) for block in range(2 * WAITS_MAX * PERIODS.stop)]
    for period in PERIODS:
        met: list[list[int]] = [[-1] for _ in range(period)]
        for window, (begin, ahead) in enumerate(itertools.product(begins, range(WINDOW_STEPS))):
            met[(begin + ahead) % period].append(window // WINDOW_STEPS)
        waits = [after - before for windows in met for before, after in itertools.pairwise([*windows, len(begins)])]
        assert max(waits) <= WAITS_MAX * period, period


def test_halves_are_chosen_equally_often() -> None:
    rights = sum(find_chosen(block, 2) % 2 for block in range(10_000))
    assert abs(rights - 5_000) < 4 * 50  # four times the standard deviation of as many coins
