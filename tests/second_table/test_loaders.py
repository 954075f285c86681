"""Runs that wait for their loaders, by the physics of the table: told within 100 steps, and of healthy ones nothing."""

import pytest

from tests.second_table.families import ddp
from tests.second_table.worlds import Course, World, play

KIND = "data_bound"


def told_at(course: Course) -> list[int]:
    """After how many steps each pass told it."""
    return [one.step for one in course.passes if any(finding.kind == KIND for finding in one.open)]


def world(ranks: int, data_ms: float, *, steps: int = 260) -> World:
    layout, model = ddp(ranks, step_ms=16 - data_ms, data_ms=data_ms, on_gpu=False)
    return World(family="test", about="", layout=layout, model=model, steps=steps, truths=(), pass_s=1)


@pytest.mark.parametrize("ranks", [1, 2])
def test_loader_of_three_quarters_of_a_step_is_told_in_100_steps(ranks: int) -> None:
    course = play(world(ranks, 12.0))
    told = told_at(course)
    assert told[0] < 100
    assert told == [one.step for one in course.passes if one.step >= told[0]]
    (found,) = (one for one in course.findings if one.kind == KIND)
    assert found.evidence["data_ratio"] == pytest.approx(0.72, abs=0.06)  # of two the later one sets the pace
    assert found.since_step is not None
    assert found.since_step <= 3


@pytest.mark.parametrize("ranks", [1, 2])
def test_loader_of_an_eighth_is_told_once_the_run_is_old_enough(ranks: int) -> None:
    assert told_at(play(world(ranks, 2.4)))[0] >= 64


@pytest.mark.parametrize("ranks", [1, 2])
def test_loader_that_takes_a_twentieth_is_no_finding(ranks: int) -> None:
    assert told_at(play(world(ranks, 0.8))) == []
