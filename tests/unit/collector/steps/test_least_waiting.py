"""Who waited least in nearly all steps, by numbers that can be added up in one's head: steps of 100 ns."""

import numpy as np
import pytest

from rankscope.collector.steps.least_waiting import STEPS_MAX, STEPS_MIN, LeastWaiting, find_least_waiting
from rankscope.collector.steps.step_series import StepSeries


def series_of(
    waits_ns: list[list[float]], ranks: tuple[int, ...] = (2, 5, 7), *, is_measured: bool = True
) -> StepSeries:
    """Steps of 100 ns of which each rank waited so long."""
    waits = np.array(waits_ns)
    steps_ns = np.full(waits.shape, 100.0)
    return StepSeries(
        steps=np.arange(len(waits)),
        ranks=ranks,
        step_ns=steps_ns,
        own_ns=steps_ns - waits,
        cpu_ns=np.full(waits.shape, np.nan),
        phases_ns={},
        own_is_measured=is_measured,
    )


def test_rank_that_waits_least_is_found_with_its_margin() -> None:
    found = find_least_waiting(series_of([[20.0, 3.0, 11.0]] * STEPS_MIN))
    assert found == LeastWaiting(rank=5, steps=STEPS_MIN, share=1.0, margin_ns=8.0)


def test_share_is_that_of_the_last_steps() -> None:
    other, usual = [3.0, 20.0, 30.0], [20.0, 3.0, 30.0]
    found = find_least_waiting(series_of([other] * 90 + [other] * 4 + [usual] * (STEPS_MAX - 4)))
    assert found is not None
    assert (found.rank, found.steps, found.share) == (5, STEPS_MAX, 60 / 64)


@pytest.mark.parametrize(
    "waits_ns",
    [
        [[20.0, 3.0, 30.0]] * (STEPS_MIN - 1),
        [[20.0, 3.0, 30.0], [3.0, 20.0, 30.0]] * STEPS_MIN,
        [[20.0, 16.0, 30.0]] * STEPS_MIN,
        [[20.0, np.nan, 30.0]] * STEPS_MIN,
    ],
    ids=["few steps", "now one, now another", "by less than 5 %", "a rank's waiting is not known"],
)
def test_nobody_is_found_without_evidence(waits_ns: list[list[float]]) -> None:
    assert find_least_waiting(series_of(waits_ns)) is None


def test_nobody_waits_least_without_measurement_or_another_rank() -> None:
    assert find_least_waiting(series_of([[20.0, 3.0, 30.0]] * STEPS_MIN, is_measured=False)) is None
    assert find_least_waiting(series_of([[3.0]] * STEPS_MIN, (0,))) is None
