"""CpuTimeSampling: the CPU time is measured of all long steps, of short ones now and then, and ranks agree of which."""

import itertools

import pytest

from rankscope.agent.steps.cpu_time_sampling import (
    SAMPLING_INTERVAL_NS,
    SAMPLING_INTERVAL_STEPS_MAX,
    CpuTimeSampling,
)
from rankscope.measure.units import NS_PER_MS


def clocked_with(step_ns: int) -> CpuTimeSampling:
    clocked = CpuTimeSampling()
    clocked.learn_step(step_ns)
    return clocked


def looks_of(clocked: CpuTimeSampling, steps: int) -> list[int]:
    """The steps after the first that begin with a look at the clock."""
    found = [clocked.find_next(0)]
    while found[-1] < steps:
        found.append(clocked.find_next(found[-1]))
    return found[:-1]


def measured_of(step_ns: int, steps: int = 1024) -> list[int]:
    clocked = clocked_with(step_ns)
    return [step for step in range(steps) if clocked.is_measured(step)]


def test_every_step_is_measured_until_the_step_time_is_known() -> None:
    assert looks_of(CpuTimeSampling(), 5) == [1, 2, 3, 4]


@pytest.mark.parametrize("step_ns", [SAMPLING_INTERVAL_NS // 2, SAMPLING_INTERVAL_NS, 10 * SAMPLING_INTERVAL_NS])
def test_long_steps_are_all_measured(step_ns: int) -> None:
    assert looks_of(clocked_with(step_ns), 5) == [1, 2, 3, 4]


def test_a_measured_step_and_the_one_after_it_begin_with_a_look_and_no_others() -> None:
    step_ns = 60 * NS_PER_MS  # 800 ms are 13.3 of them: one in 16
    measured = measured_of(step_ns, 200)
    assert measured[:4] == [0, 16, 32, 48]
    both = sorted({step for found in measured for step in (found, found + 1)} - {0})
    assert looks_of(clocked_with(step_ns), both[-1] + 1) == both


@pytest.mark.parametrize("step_ns", [1, 1_000, 10 * NS_PER_MS])
def test_however_short_the_steps_one_in_so_many_is_measured(step_ns: int) -> None:
    gaps = {
        after - before for before, after in itertools.pairwise(measured_of(step_ns, 100 * SAMPLING_INTERVAL_STEPS_MAX))
    }
    assert max(gaps) <= 2 * SAMPLING_INTERVAL_STEPS_MAX
    assert min(gaps) >= SAMPLING_INTERVAL_STEPS_MAX - 1


def test_steps_measured_on_a_faster_rank_are_among_those_of_a_slower_one() -> None:
    assert set(measured_of(15 * NS_PER_MS)) < set(measured_of(60 * NS_PER_MS))


@pytest.mark.parametrize("period", [2, 3, 4, 5, 8, 16])
def test_a_rank_that_is_slow_every_so_many_steps_is_measured_in_such_a_step_too(period: int) -> None:
    assert {step % period for step in measured_of(60 * NS_PER_MS)} == set(range(period))


def test_a_step_time_near_a_limit_does_not_make_the_distance_go_to_and_fro() -> None:
    clocked = CpuTimeSampling()
    distances = []
    for step_ms in (98, 102, 98, 102, 90, 110):
        clocked.learn_step(step_ms * NS_PER_MS)
        distances.append(clocked.interval_steps)
    assert distances == [16] * 6  # 800 ms are 8.2 steps of 98 ms, and 7.8 of 102 ms
