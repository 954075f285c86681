"""StepBoundaries: the next boundary of parts and of the CPU clock; all ranks measure the CPU time of the same steps."""

from collections.abc import Sequence

import pytest

from rankscope.agent.steps.step_boundaries import (
    CPU_TIME_INTERVAL_NS,
    CPU_TIME_INTERVAL_STEPS_MAX,
    NextBoundary,
    StepBoundaries,
)
from rankscope.measure.units import NS_PER_MS


class Part:
    """A part that acts next at one step."""

    def __init__(self, step: int) -> None:
        self._step = step

    def find_next(self, step: int) -> int:
        return max(self._step, step + 1)


def boundaries_with(step_ns: int, parts: Sequence[Part] = ()) -> StepBoundaries:
    boundaries = StepBoundaries(parts)
    boundaries.learn_step(step_ns)
    return boundaries


def clock_steps_of(boundaries: StepBoundaries, steps: int) -> list[int]:
    """Return the steps after the first at whose begin the clock is read."""
    found = [boundaries.next_boundary(0).step]
    while found[-1] < steps:
        found.append(boundaries.next_boundary(found[-1]).step)
    return found[:-1]


def measured_of(step_ns: int, steps: int = 1024) -> list[int]:
    boundaries = boundaries_with(step_ns)
    return [step for step in range(steps) if boundaries.measures_cpu_time(step)]


def test_every_step_is_measured_until_the_step_time_is_known() -> None:
    assert clock_steps_of(StepBoundaries(), 5) == [1, 2, 3, 4]


@pytest.mark.parametrize("step_ns", [CPU_TIME_INTERVAL_NS // 2, CPU_TIME_INTERVAL_NS, 10 * CPU_TIME_INTERVAL_NS])
def test_long_steps_are_all_measured(step_ns: int) -> None:
    assert clock_steps_of(boundaries_with(step_ns), 5) == [1, 2, 3, 4]


def test_clock_is_read_at_both_ends_of_measured_steps_only() -> None:
    step_ns = 60 * NS_PER_MS  # 800 ms are 13.3 of them: one in 16
    measured = measured_of(step_ns, 200)
    assert [step // 16 for step in measured] == list(range(len(measured)))  # one of each block
    both = sorted({step for found in measured for step in (found, found + 1)} - {0})
    assert clock_steps_of(boundaries_with(step_ns), both[-1] + 1) == both


@pytest.mark.parametrize("step_ns", [1, 1_000, 10 * NS_PER_MS])
def test_one_in_64_of_the_shortest_steps_is_measured(step_ns: int) -> None:
    blocks = [step // CPU_TIME_INTERVAL_STEPS_MAX for step in measured_of(step_ns, 100 * CPU_TIME_INTERVAL_STEPS_MAX)]
    assert blocks == list(range(100))


def test_measured_steps_of_ranks_nest() -> None:
    assert set(measured_of(15 * NS_PER_MS)) < set(measured_of(60 * NS_PER_MS))


@pytest.mark.parametrize("step_ms", [1, 60])
@pytest.mark.parametrize("period", [2, 3, 4, 5, 7, 8, 9, 16, 21, 63])
def test_periodic_slow_steps_are_measured_too(period: int, step_ms: int) -> None:
    """Whatever step of the period is the slow one, a fair share of the measured steps are slow."""
    measured = measured_of(step_ms * NS_PER_MS, 64 * 1024)
    counts = [sum(step % period == slow for step in measured) for slow in range(period)]
    assert min(counts) >= len(measured) / period / 4


def test_step_time_near_a_limit_does_not_flap_the_interval() -> None:
    boundaries = StepBoundaries()
    distances = []
    for step_ms in (98, 102, 98, 102, 90, 110):
        boundaries.learn_step(step_ms * NS_PER_MS)
        distances.append(boundaries.cpu_time_interval_steps)
    assert distances == [16] * 6  # 800 ms are 8.2 steps of 98 ms, and 7.8 of 102 ms


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        pytest.param([], NextBoundary(24, runs_inline=False), id="no part acts"),
        pytest.param([28], NextBoundary(24, runs_inline=False), id="later"),
        pytest.param([24], NextBoundary(24, runs_inline=True), id="at the same step"),
        pytest.param([9, 12], NextBoundary(9, runs_inline=True), id="before"),
        pytest.param([40, 12], NextBoundary(12, runs_inline=True), id="the nearest of two"),
    ],
)
def test_next_boundary_is_inline_where_a_part_acts(wanted: list[int], expected: NextBoundary) -> None:
    # The clock is read at steps 0, 1, 24, 25 ...
    boundaries = boundaries_with(60 * NS_PER_MS, [Part(step) for step in wanted])
    assert boundaries.next_boundary(5) == expected
