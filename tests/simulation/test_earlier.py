"""Simulated runs are compared with earlier ones: one that is slower from the start is found, healthy ones are not.

The whole score is `python -m tests.simulation.earlier` (bench/results/earlier_runs.md).
"""

import pytest

from tests.simulation.earlier import MadeRun, as_earlier, simulate_history, simulate_run


@pytest.fixture(scope="module")
def history() -> list[MadeRun]:
    """Eight healthy runs, the last three of which were compared with five or more."""
    return simulate_history(8)


def test_healthy_runs_are_not_slower_than_earlier_ones(history: list[MadeRun]) -> None:
    assert [one.found for one in history] == [None] * 8


def test_run_that_is_slow_from_its_first_step_is_found(history: list[MadeRun]) -> None:
    slow = simulate_run(500, as_earlier(history), slower=1.15)
    assert slow.found is not None
    usual_ns = sorted(one.start.step_ns for one in history)[4]
    assert slow.found.slowdown_ratio == pytest.approx(slow.start.step_ns / usual_ns, rel=0.02)
    assert "% of the difference in compute" in slow.found.why


def test_slow_first_run_is_not_found() -> None:
    assert simulate_run(501, [], slower=1.5).found is None
