"""Why "no rank was slower" is not known: time that was lost in steps of which it is not known whose they were."""

from dataclasses import replace

import numpy as np
import pytest

from rankscope.collector.detect.stragglers.doubt import LOST_MIN, START_STEPS, describe_doubt
from rankscope.collector.detect.view import RunView
from rankscope.collector.steps.long_steps import EVERYBODY, UNKNOWN, LongStepsSeen, RareLongStep
from rankscope.collector.steps.step_series import Floats, Ints, StepSeries
from rankscope.measure.records import CompiledFrame
from tests.unit.collector.steps.step_series import MS, series_of, view_of

STEPS, STEP_MS = 100, 20.0


def view(own_ms: Floats | None = None, step_ms: Floats | None = None, *long_steps: tuple[int, int, float]) -> RunView:
    """A run of two ranks; `long_steps`: the step, its owner and its excess in ms."""
    own_ms = np.full((STEPS, 2), STEP_MS - 1.0) if own_ms is None else own_ms
    step_ms = np.full((STEPS, 2), STEP_MS) if step_ms is None else step_ms
    found = view_of(series_of(own_ms.tolist(), step_ms=step_ms.tolist()))
    seen = tuple(RareLongStep(step, owner, "", MS * ms, 0.0, 0.0, MS * STEP_MS) for step, owner, ms in long_steps)
    total_ns = MS * float(np.nanmax(step_ms, axis=1).sum()) + sum(one.excess_ns for one in seen)
    return replace(found, long_steps=LongStepsSeen(seen, total_ns))


def test_nothing_is_doubtful_where_all_steps_are_alike_and_known() -> None:
    assert describe_doubt(view()) == ""


def test_few_known_steps_are_enough_if_others_take_as_long() -> None:
    own_ms = np.full((STEPS, 2), np.nan)
    own_ms[::6] = STEP_MS - 1.0
    assert describe_doubt(view(own_ms)) == ""


def test_unknown_steps_that_take_longer_are_named() -> None:
    own_ms, step_ms = np.full((STEPS, 2), STEP_MS - 1.0), np.full((STEPS, 2), STEP_MS)
    own_ms[40:60], step_ms[40:60] = np.nan, 2 * STEP_MS
    # 20 steps of 20 ms more, of 120 x 20 ms.
    expected = (
        "17 % of the time was lost in 20 longer steps (steps 40-59), and the ranks' own times in them are not known"
    )
    assert describe_doubt(view(own_ms, step_ms)) == expected


def test_long_steps_of_nobody_known_are_named() -> None:
    found = describe_doubt(view(None, None, (17, UNKNOWN, 200.0), (50, UNKNOWN, 300.0), (60, 1, 100.0)))
    expected = "19 % of the time was lost in 2 longer steps (steps 17-50)"
    assert found == f"{expected}, and which rank the others waited for in them is not known"


def test_ranks_that_compiled_in_them_are_named() -> None:
    doubted = view(None, None, (17, UNKNOWN, 200.0), (50, UNKNOWN, 300.0))
    frames = [CompiledFrame(step=step, duration_ns=int(ms * MS)) for step, ms in ((17, 190), (50, 280))]
    late = replace(doubted, samples=doubted.samples._replace(compiled={0: frames, 1: frames[:1]}))
    expected = "20 % of the time was lost in 2 longer steps (steps 17-50)"
    assert describe_doubt(late) == f"{expected}, in which rank 0 compiled for 470.0 ms (torch.compile)"


def test_too_few_long_steps_of_one_rank_are_said_to_be_its() -> None:
    found = describe_doubt(view(None, None, (17, 1, 300.0), (50, 1, 300.0), (60, UNKNOWN, 20.0)))
    expected = "23 % of the time was lost in 2 longer steps (steps 17-50) of rank 1"
    assert found == f"{expected}: too few to say that it stops again and again"


def test_cheap_long_steps_of_many_ranks_are_no_doubt() -> None:
    assert describe_doubt(view(None, None, *((step, step % 9, 30.0) for step in range(10, 19)))) == ""


def test_long_steps_of_everybody_are_nobodys_fault() -> None:
    assert describe_doubt(view(None, None, (17, EVERYBODY, 900.0))) == ""


@pytest.mark.parametrize(("share", "is_doubtful"), [(LOST_MIN * 0.95, False), (LOST_MIN * 1.05, True)])
def test_only_what_matters_is_doubtful(share: float, is_doubtful: bool) -> None:
    lost_ms = STEPS * STEP_MS * share / (1 - share)
    assert bool(describe_doubt(view(None, None, (17, UNKNOWN, lost_ms)))) is is_doubtful


def test_one_step_is_one_step() -> None:
    assert "in 1 longer step (step 17), " in describe_doubt(view(None, None, (17, UNKNOWN, 900.0)))


def test_long_steps_of_the_start_do_not_count() -> None:
    assert describe_doubt(view(None, None, (START_STEPS - 1, UNKNOWN, 900.0))) == ""
    assert describe_doubt(view(None, None, (START_STEPS, UNKNOWN, 900.0))) != ""


def test_latest_long_steps_count_before_their_rank_is_known() -> None:
    step_ms = np.full((STEPS, 2), STEP_MS)
    step_ms[-3:-1] = 200.0
    expected = "15 % of the time was lost in 2 longer steps (steps 97-98)"
    assert describe_doubt(view(None, step_ms)).startswith(expected)
    step_ms[-3:-1] = 28.0
    assert describe_doubt(view(None, step_ms)) == ""


def test_few_steps_after_unreported_ones_are_no_verdict() -> None:
    whole = view()
    gap = replace(whole, series=replace_steps(whole, np.where(np.arange(STEPS) < 92, 0, 108) + np.arange(STEPS)))
    assert describe_doubt(gap) == "steps 92-199 are missing from every rank, and 8 steps since then are too few"
    enough = replace(whole, series=replace_steps(whole, np.where(np.arange(STEPS) < 88, 0, 108) + np.arange(STEPS)))
    assert describe_doubt(enough) == ""


def replace_steps(whole: RunView, steps: Ints) -> StepSeries:
    return replace(whole.series, steps=steps)


@pytest.mark.parametrize(("late_steps", "is_said"), [(30, True), (20, False)])
def test_latest_steps_a_rank_has_not_reported_are_not_judged(late_steps: int, is_said: bool) -> None:
    step_ms = np.full((STEPS, 2), 400.0)
    step_ms[STEPS - late_steps :, 1] = np.nan
    expected = "steps 70-99 (12 s) are missing from rank 1" if is_said else ""
    assert describe_doubt(view(np.where(np.isnan(step_ms), np.nan, 300.0), step_ms)) == expected


def test_latest_steps_missing_in_part_name_the_ranks_they_lack() -> None:
    step_ms = np.full((STEPS, 3), 400.0)
    step_ms[70:85, 1] = step_ms[85:, 2] = np.nan
    said = "steps 70-99 (12 s) are missing from ranks 1-2, some from each of them"
    assert describe_doubt(view(np.where(np.isnan(step_ms), np.nan, 300.0), step_ms)) == said


def test_latest_long_step_may_be_of_a_rank_that_stopped_before() -> None:
    """Whose it is is not known yet. Neither it nor what rank 1 owns matters by itself."""
    step_ms = np.full((STEPS, 2), STEP_MS)
    step_ms[-2] += 70.0
    found = describe_doubt(view(None, step_ms, (17, 1, 40.0), (50, 1, 40.0)))
    expected = "7 % of the time was lost in 3 longer steps (steps 17-98), 2 of them of rank 1"
    assert found == f"{expected}: too few to say that it stops again and again"
    assert describe_doubt(view(None, None, (17, 1, 40.0), (50, 1, 40.0), (70, UNKNOWN, 70.0))) == ""
