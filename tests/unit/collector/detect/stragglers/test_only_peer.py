"""Two ranks: nobody became slow when one of them became faster."""

import dataclasses

import numpy as np

from rankscope.collector.detect.stragglers.persistent import Thresholds, find_stragglers
from rankscope.collector.detect.view import RunView, TimeCount
from rankscope.collector.steps.step_levels import Levels
from tests.unit.collector.steps.step_series import series_of, view_of

NOISE = np.random.default_rng(5).normal(1.0, 0.003, (400, 2))


def pair(before_ms: tuple[float, float], after_ms: tuple[float, float], changed_at: int = 200) -> RunView:
    own_ms = np.where(np.arange(400)[:, None] < changed_at, before_ms, after_ms) * NOISE
    return view_of(series_of(own_ms.tolist()))


def slow_in(view: RunView) -> list[int]:
    found = find_stragglers(view, Thresholds())
    assert isinstance(found, tuple)
    return [slow.rank for slow in found]


def remembering(view: RunView, *levels_ms: tuple[float, ...]) -> RunView:
    first_steps = 32 * np.arange(len(levels_ms[0]))
    levels = (Levels(first_steps, 1e6 * np.array(ms), np.full(len(ms), np.nan), 32) for ms in levels_ms)
    return dataclasses.replace(view, own_levels=tuple(levels))


def test_rank_that_became_slower_is_named() -> None:
    assert slow_in(pair((50, 50), (50, 65))) == [1]


def test_nobody_is_named_when_the_other_became_faster() -> None:
    assert slow_in(pair((50, 50), (50, 40))) == []


def test_of_both_the_larger_change_counts() -> None:
    assert slow_in(pair((50, 50), (48, 60))) == [1]
    assert slow_in(pair((50, 50), (40, 52))) == []


def test_start_that_was_slow_for_both_does_not_count() -> None:
    own_ms = np.repeat([(60.0, 60.0), (30.0, 30.0), (28.0, 40.0)], [150, 50, 200], axis=0) * NOISE
    assert slow_in(view_of(series_of(own_ms.tolist()))) == [1]


def test_what_has_left_the_table_is_remembered() -> None:
    slower = pair((50, 65), (50, 65))
    assert slow_in(slower) == [1]  # slow since the first step that is known
    assert slow_in(remembering(slower, (50.0, 50.0), (50.0, 65.0))) == [1]
    assert slow_in(remembering(slower, (65.0, 50.0), (65.0, 65.0))) == []
    assert slow_in(remembering(slower, (50.0, 50.0), (65.0, 65.0))) == [1]  # never as fast as each other


def waiting(view: RunView, before_ms: float, after_ms: float, *, from_step: int = 0) -> RunView:
    """The same, with the waits of both for a CPU core in each step before and after step 200, sampled since a step."""
    at = {0: 0.0, 200: 200 * before_ms, 395: 200 * before_ms + 195 * after_ms, 400: 200 * (before_ms + after_ms)}
    counts = tuple(TimeCount(steps, round(1e6 * ms)) for steps, ms in at.items() if steps >= from_step)
    return dataclasses.replace(view, samples=view.samples._replace(core_waits=dict.fromkeys((0, 1), counts)))


def test_peer_that_waits_less_for_a_core_became_no_faster() -> None:
    alike = pair((30, 30), (18, 30))  # 12 ms less for both, by a machine with less to do, and 12 ms more for one
    assert slow_in(waiting(alike, 15, 3)) == [1]
    assert slow_in(waiting(alike, 3, 3)) == []
    assert slow_in(waiting(alike, 3, 15)) == []


def test_waits_for_a_core_before_are_not_guessed() -> None:
    assert slow_in(waiting(pair((30, 30), (18, 30)), 15, 3, from_step=200)) == []
    assert slow_in(waiting(pair((30, 30), (18, 30)), 15, 3, from_step=395)) == []
