"""CpuTimeSampling: the CPU time of all long steps and of some short ones is measured, the same on every rank."""

import itertools

import pytest

from rankscope.agent.steps.cpu_time_sampling import (
    SAMPLING_INTERVAL_NS,
    SAMPLING_INTERVAL_STEPS_MAX,
    CpuTimeSampling,
)
from rankscope.measure.units import NS_PER_MS


def sampling_with(step_ns: int) -> CpuTimeSampling:
    sampling = CpuTimeSampling()
    sampling.learn_step(step_ns)
    return sampling


def clock_steps_of(sampling: CpuTimeSampling, steps: int) -> list[int]:
    """Return the steps after the first at whose begin the clock is read."""
    found = [sampling.find_next(0)]
    while found[-1] < steps:
        found.append(sampling.find_next(found[-1]))
    return found[:-1]


def measured_of(step_ns: int, steps: int = 1024) -> list[int]:
    sampling = sampling_with(step_ns)
    return [step for step in range(steps) if sampling.is_measured(step)]


def test_every_step_is_measured_until_the_step_time_is_known() -> None:
    assert clock_steps_of(CpuTimeSampling(), 5) == [1, 2, 3, 4]


@pytest.mark.parametrize("step_ns", [SAMPLING_INTERVAL_NS // 2, SAMPLING_INTERVAL_NS, 10 * SAMPLING_INTERVAL_NS])
def test_long_steps_are_all_measured(step_ns: int) -> None:
    assert clock_steps_of(sampling_with(step_ns), 5) == [1, 2, 3, 4]


def test_clock_is_read_at_both_ends_of_measured_steps_only() -> None:
    step_ns = 60 * NS_PER_MS  # 800 ms are 13.3 of them: one in 16
    measured = measured_of(step_ns, 200)
    assert measured[:4] == [0, 16, 32, 48]
    both = sorted({step for found in measured for step in (found, found + 1)} - {0})
    assert clock_steps_of(sampling_with(step_ns), both[-1] + 1) == both


@pytest.mark.parametrize("step_ns", [1, 1_000, 10 * NS_PER_MS])
def test_one_in_64_of_the_shortest_steps_is_measured(step_ns: int) -> None:
    gaps = {
        after - before for before, after in itertools.pairwise(measured_of(step_ns, 100 * SAMPLING_INTERVAL_STEPS_MAX))
    }
    assert max(gaps) <= 2 * SAMPLING_INTERVAL_STEPS_MAX
    assert min(gaps) >= SAMPLING_INTERVAL_STEPS_MAX - 1


def test_measured_steps_of_ranks_nest() -> None:
    assert set(measured_of(15 * NS_PER_MS)) < set(measured_of(60 * NS_PER_MS))


@pytest.mark.parametrize("period", [2, 3, 4, 5, 8, 16])
def test_periodic_slow_steps_are_measured_too(period: int) -> None:
    assert {step % period for step in measured_of(60 * NS_PER_MS)} == set(range(period))


def test_step_time_near_a_limit_does_not_flap_the_interval() -> None:
    sampling = CpuTimeSampling()
    distances = []
    for step_ms in (98, 102, 98, 102, 90, 110):
        sampling.learn_step(step_ms * NS_PER_MS)
        distances.append(sampling.interval_steps)
    assert distances == [16] * 6  # 800 ms are 8.2 steps of 98 ms, and 7.8 of 102 ms
