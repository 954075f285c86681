"""The begin of a slowness in a gap between the steps in which ranks are compared."""

import dataclasses

import numpy as np
import pytest

from rankscope.collector.detect.finding import Finding
from rankscope.collector.detect.stragglers.begin import date_begin, find_since_range
from rankscope.collector.detect.stragglers.persistent import SlowRank, Thresholds, find_stragglers
from rankscope.collector.detect.view import RunView
from tests.unit.collector.steps.step_series import UNKNOWN, series_of, view_of


def view(longer_from: int, *, gap: tuple[int, int] = (40, 80), longer: float = 1.4) -> RunView:
    """Rank 1 is slow from step 60 on; own times are not known in the gap, step times are."""
    random = np.random.default_rng(1)
    step_ms = 100 * np.exp(random.normal(0.0, 0.01, (120, 4)))
    own_ms = step_ms.copy()
    own_ms[60:, 1] *= 1.4
    step_ms[longer_from:] *= longer
    own_ms[gap[0] : gap[1]] = UNKNOWN
    return view_of(series_of(own_ms.tolist(), step_ms=step_ms.tolist()))


def slow_rank(look: RunView) -> SlowRank:
    verdict = find_stragglers(look, Thresholds())
    assert isinstance(verdict, tuple)
    (slow,) = verdict
    return slow


@pytest.mark.parametrize(
    ("longer_from", "longer", "expected"), [(60, 1.4, 60), (60, 1.1, 80), (95, 1.4, 80), (30, 1.4, 80)]
)
def test_begin_in_a_gap_is_when_the_steps_became_longer(longer_from: int, longer: float, expected: int) -> None:
    look = view(longer_from, longer=longer)
    slow = slow_rank(look)
    assert (slow.before_step, slow.since_step) == (39, 80)
    assert date_begin(slow, look, ()).since_step == expected


@pytest.mark.parametrize(("since_step", "expected"), [(39, 80), (40, 40), (55, 55), (80, 80), (81, 80), (None, 80)])
def test_begin_in_a_gap_is_that_of_the_slower_run(since_step: int | None, expected: int) -> None:
    look = view(120)
    run = Finding(kind="run_slowdown", since_step=since_step, cause="unattributed", sentence="")
    assert date_begin(slow_rank(look), look, [run]).since_step == expected


@pytest.mark.parametrize(
    ("of_run", "expected"), [((50, 70), (50, 70)), ((30, 57), (40, 57)), ((50, 99), (50, 80)), ((None, None), (57, 57))]
)
def test_begin_that_is_the_runs_lies_where_the_runs_may(
    of_run: tuple[int | None, int | None], expected: tuple[int, int]
) -> None:
    look, (earliest, latest) = view(120), of_run
    run = Finding(
        kind="run_slowdown", since_step=57, since_step_min=earliest, since_step_max=latest, cause="unattributed"
    )
    slow = date_begin(slow_rank(look), look, [run])
    assert (slow.since_step, range_of(slow, look)) == (57, expected)


def test_begin_that_is_known_stays() -> None:
    look = view(60, gap=(0, 0))
    slow = slow_rank(look)
    assert date_begin(slow, look, ()) == slow
    unseen = dataclasses.replace(look, series=look.series)
    assert date_begin(slow._replace(before_step=None), unseen, ()).since_step == slow.since_step


def range_of(slow: SlowRank, look: RunView, found: tuple[int, int] | None = None) -> tuple[int, int] | None:
    return find_since_range(slow, slow.since_step, look, found)


def test_begin_between_known_steps_has_no_range_beyond_its_noise() -> None:
    look = view(60, gap=(0, 0))
    assert range_of(slow_rank(look), look) == (60, 60)


def test_range_of_a_begin_in_a_gap_is_the_gap() -> None:
    look = view(120)
    assert range_of(date_begin(slow_rank(look), look, ()), look) == (40, 80)


def test_begin_dated_in_a_gap_by_steps_is_no_wider_than_they_say() -> None:
    look = view(60)
    assert range_of(date_begin(slow_rank(look), look, ()), look) == (60, 60)


def test_begin_before_the_first_known_step_keeps_the_old_range() -> None:
    look = view(60)
    slow = slow_rank(look)._replace(before_step=None)
    assert range_of(slow, look) is None
    assert range_of(slow, look, (55, 61)) == (55, 61)


def test_range_reaching_the_first_known_step_keeps_the_old_one() -> None:
    look = view(60, gap=(0, 0))
    slow = slow_rank(look)._replace(since_range=(0, 70))
    assert range_of(slow, look) == (0, 70)
    assert range_of(slow, look, (50, 62)) == (50, 62)


def test_range_ends_no_later_than_when_it_was_found() -> None:
    look = view(60, gap=(0, 0))
    assert range_of(slow_rank(look)._replace(since_range=(58, 110)), look, (50, 70)) == (58, 70)


def test_range_ends_where_a_slow_rank_becomes_slower() -> None:
    look = view(60, gap=(0, 0))
    slower = look.series.own_ns.copy()
    slower[90:, 1] *= 2
    look = dataclasses.replace(look, series=dataclasses.replace(look.series, own_ns=slower))
    slow = slow_rank(look)
    assert slow.since_step == 60 < slow.level_from_step
    earliest, latest = range_of(slow, look) or (0, 120)
    assert 40 <= earliest <= 60 <= latest < 90


def test_begin_that_was_dated_back_is_in_the_range_that_is_kept() -> None:
    look = view(60, gap=(0, 0))
    unseen = slow_rank(look)._replace(before_step=None)
    assert find_since_range(unseen, 3, look, (4, 15)) == (3, 15)
    assert find_since_range(unseen, 10, look, (4, 15)) == (4, 15)
