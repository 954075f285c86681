"""DueSteps: the nearest of what parts and the clock want, and whether anybody acts there."""

import pytest

from rankscope.agent.steps.cpu_time_sampling import CpuTimeSampling
from rankscope.agent.steps.due_steps import Due, DueSteps
from rankscope.measure.units import NS_PER_MS


class Wanting:
    """A part that next acts at one step."""

    def __init__(self, step: int) -> None:
        self._step = step

    def find_next(self, step: int) -> int:
        return max(self._step, step + 1)


def clocked() -> CpuTimeSampling:
    """At 16, 17, 32, 33 ... the clock is read."""
    found = CpuTimeSampling()
    found.learn_step(60 * NS_PER_MS)
    return found


@pytest.mark.parametrize(
    ("wanted", "due"),
    [
        pytest.param([], Due(16, is_live=False), id="nobody acts"),
        pytest.param([20], Due(16, is_live=False), id="later"),
        pytest.param([16], Due(16, is_live=True), id="at the same step"),
        pytest.param([9, 12], Due(9, is_live=True), id="before"),
        pytest.param([40, 12], Due(12, is_live=True), id="the nearest of two"),
    ],
)
def test_the_nearest_is_due_and_live_where_a_part_acts(wanted: list[int], due: Due) -> None:
    assert DueSteps(clocked(), [Wanting(step) for step in wanted]).find(5) == due
