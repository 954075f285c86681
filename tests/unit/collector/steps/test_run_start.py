"""How long the first steps of a run took, and what they consist of."""

import numpy as np
import pytest

from rankscope.collector.steps.run_start import (
    BETWEEN_PHASES,
    KNOWN_MIN,
    START_STEPS,
    WARMUP_STEPS,
    find_start_rows,
    measure_start,
    split_by_use,
)
from rankscope.collector.steps.step_aggregates import PATIENCE_STEPS
from rankscope.measure.records import WindowBreakdown
from tests.unit.collector.steps.step_series import MS, UNKNOWN, series_of

ENOUGH = WARMUP_STEPS + START_STEPS + PATIENCE_STEPS + 1


def window_of(**ms: int) -> WindowBreakdown:
    return WindowBreakdown(first_step=20, step_count=1, window_ns=100 * MS, overlap_ns=0, communication_ns=0,
                           **{f"{name}_ns": value * MS for name, value in ms.items()})  # type: ignore[arg-type]  # fmt: skip


def test_start_is_measured_once_no_rank_is_awaited() -> None:
    assert not len(find_start_rows(series_of([[100.0, 100.0]] * (ENOUGH - 1))))
    rows = find_start_rows(series_of([[100.0, 100.0]] * ENOUGH))
    assert (rows[0], rows[-1], len(rows)) == (WARMUP_STEPS, WARMUP_STEPS + START_STEPS - 1, START_STEPS)


def test_start_that_has_left_the_table_is_not_measured() -> None:
    last_first = WARMUP_STEPS + START_STEPS - KNOWN_MIN
    for first_step, known in ((last_first, KNOWN_MIN), (last_first + 1, 0)):
        assert len(find_start_rows(series_of([[100.0]] * ENOUGH, first_step=first_step))) == known
    assert not len(find_start_rows(series_of(np.empty((0, 1)).tolist() or [[1.0]])))


def test_steps_that_a_rank_lacks_do_not_count() -> None:
    lacking = [[100.0, UNKNOWN]] * (START_STEPS - KNOWN_MIN)
    head, rest = [[100.0, 100.0]] * WARMUP_STEPS, [[100.0, 100.0]] * ENOUGH
    step_ms = [*head, *lacking, *rest]
    assert len(find_start_rows(series_of(step_ms, step_ms=step_ms))) == KNOWN_MIN
    step_ms = [*head, [UNKNOWN, 100.0], *lacking, *rest]
    assert not len(find_start_rows(series_of(step_ms, step_ms=step_ms)))


def test_mean_is_that_of_usual_steps_and_phases_sum_to_it() -> None:
    # Of 200 steps each fourth has a checkpoint: 100 ms of 75 % of the steps, 400 ms of the others.
    long = [number % 4 == 0 for number in range(ENOUGH)]
    step_ms = [[400.0] * 3 if one else [90.0, 100.0, 120.0] for one in long]
    phases = {"data": [[10.0, 10.0, 10.0]] * ENOUGH, "forward": [[60.0, 50.0, 70.0]] * ENOUGH,
              "rare": [[UNKNOWN, 1.0, 1.0]] * ENOUGH}  # fmt: skip
    series = series_of(step_ms, step_ms=step_ms, phases_ms=phases)
    found = measure_start(series, find_start_rows(series), [])
    assert (found.first_step, found.last_step) == (WARMUP_STEPS, WARMUP_STEPS + START_STEPS - 1)
    assert found.steps == 96
    assert found.step_ns == pytest.approx(100 * MS)
    assert found.phases_ns == pytest.approx({"data": 10 * MS, "forward": 60 * MS, "rare": 0, BETWEEN_PHASES: 30 * MS})
    assert found.uses_ns == {}


def test_uses_are_the_shares_of_all_windows() -> None:
    # 60 and 40 of 100 ms compute, so half of the step; the loader took 30 ms and the device idled 20 of 200.
    windows = [window_of(compute=60, exposed_communication=25, copy=5, idle=10),
               window_of(compute=40, exposed_communication=45, copy=5, idle=10)]  # fmt: skip
    assert split_by_use(50 * MS, 30 * MS, windows) == pytest.approx(
        {"compute": 25 * MS, "exposed communication": 17.5 * MS, "copies": 2.5 * MS, "data wait": 5 * MS,
         "idle without data wait": 0.0}
    )  # fmt: skip
    assert split_by_use(50 * MS, 1 * MS, windows)["data wait"] == 1 * MS
    assert split_by_use(50 * MS, 1 * MS, []) == {}
