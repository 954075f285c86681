"""InlineSteps: the nearest boundary of the parts and the clock, and whether a part acts there."""

import pytest

from rankscope.agent.steps.cpu_time_sampling import CpuTimeSampling
from rankscope.agent.steps.inline_steps import InlineSteps, NextBoundary
from rankscope.measure.units import NS_PER_MS


class Part:
    """A part that acts next at one step."""

    def __init__(self, step: int) -> None:
        self._step = step

    def find_next(self, step: int) -> int:
        return max(self._step, step + 1)


def make_sampling() -> CpuTimeSampling:
    """Return a sampling that reads the clock at steps 16, 17, 32, 33 ..."""
    sampling = CpuTimeSampling()
    sampling.learn_step(60 * NS_PER_MS)
    return sampling


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        pytest.param([], NextBoundary(16, runs_inline=False), id="no part acts"),
        pytest.param([20], NextBoundary(16, runs_inline=False), id="later"),
        pytest.param([16], NextBoundary(16, runs_inline=True), id="at the same step"),
        pytest.param([9, 12], NextBoundary(9, runs_inline=True), id="before"),
        pytest.param([40, 12], NextBoundary(12, runs_inline=True), id="the nearest of two"),
    ],
)
def test_next_boundary_is_inline_where_a_part_acts(wanted: list[int], expected: NextBoundary) -> None:
    assert InlineSteps(make_sampling(), [Part(step) for step in wanted]).next_boundary(5) == expected
