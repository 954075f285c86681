"""The medians of ranks over their last steps."""

import dataclasses

import numpy as np
import pytest

from rankscope.collector.steps.rank_medians import MedianSteps, RankMedians
from tests.unit.collector.steps.step_series import MS, UNKNOWN, Rows, series_of, to_ns


def caused(rows_ms: Rows) -> tuple[list[float | None], float | None]:
    """What each rank caused in a step, and what none is charged: the last column."""
    waits_ns = to_ns(rows_ms)
    series = dataclasses.replace(
        series_of([[10.0, 10.0]] * len(waits_ns)), wait_caused_ns=waits_ns[:, :-1], wait_untraced_ns=waits_ns[:, -1]
    )
    medians = RankMedians.compute(series, np.ones(2), 32)
    return list(medians.columns["wait_caused_ns_median"]), medians.wait_untraced_ns


@pytest.mark.parametrize(("attributed", "known"), [(0, False), (2, False), (3, True)])
def test_caused_waits_of_a_step_or_two_are_not_known(attributed: int, known: bool) -> None:
    rows = [[0.0, 30.0, 1.0]] * attributed + [[UNKNOWN] * 3] * 20
    assert caused(rows) == (([0, 30 * MS], MS) if known else ([None, None], None))


def test_caused_waits_are_those_of_the_last_attributed_steps() -> None:
    # 20 attributed steps before rank 1 was slow, every other one, and 7 since then: most of the last 12.
    before, since = [[1.0, 0.0, 0.0], [UNKNOWN] * 3] * 20, [[0.0, 30.0, 0.0]] * 7
    assert caused(before + since) == ([0, 30 * MS], 0)


def steps_of(own_ms: Rows, steps: int = 4) -> MedianSteps | None:
    series = series_of(own_ms, step_ms=[[20.0, 20.0]] * len(own_ms), first_step=100)
    return RankMedians.compute(series, np.ones(2), steps).of_steps


def test_medians_are_of_the_last_steps() -> None:
    assert steps_of([[10.0, 10.0]] * 6) == MedianSteps(4, 105, 4, 102, 105)


def test_own_times_may_be_of_earlier_and_fewer_steps() -> None:
    assert steps_of([[10.0, 10.0], *[[UNKNOWN] * 2] * 3, [10.0, UNKNOWN], [UNKNOWN] * 2]) == MedianSteps(
        4, 105, 2, 100, 104
    )


def test_medians_without_a_step_are_of_none() -> None:
    assert RankMedians().of_steps is None
    assert steps_of([[UNKNOWN] * 2] * 6) == MedianSteps(4, 105, 0, 0, 0)
