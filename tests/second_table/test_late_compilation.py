"""Ranks that torch.compile holds up late in a run: who, since when, at what cost, by the physics of the table."""

import pytest

from tests.second_table import disturbances as of
from tests.second_table.disturbances import Cost, When
from tests.second_table.families import ddp, slow
from tests.second_table.judging import judge
from tests.second_table.worlds import Course, World, play

BEGIN, STEPS = 130, 260


def world(count: int, ranks: tuple[int, ...], *, on_gpu: bool = True, steps: int = 3, ms: float = 6000) -> World:
    cost = Cost(part=of.COMPILE, ranks=ranks, when=When(begin=BEGIN, end=BEGIN + steps), ms=ms)
    return slow("test", "", ddp(count, step_ms=100, on_gpu=on_gpu), cost, STEPS)


def accused(course: Course) -> set[int]:
    return {rank for finding in course.findings for rank in finding.ranks}


@pytest.mark.parametrize(
    ("count", "ranks", "on_gpu", "steps"), [(8, (1, 4), True, 3), (4, (0, 3), False, 2), (3, (1,), False, 1)]
)
def test_ranks_that_compile_late_are_named_with_what_that_cost(
    count: int, ranks: tuple[int, ...], on_gpu: bool, steps: int
) -> None:
    course = play(world(count, ranks, on_gpu=on_gpu, steps=steps))
    (truth,) = (told := judge(course)).truths
    assert (truth.named, truth.begin, truth.cause, truth.cost) == (True, True, True, True)
    assert told.lost is not None
    assert list(told.lost) == pytest.approx([truth.share] * 2, abs=0.01)
    assert (told.false_findings, told.wrongs, accused(course)) == ((), (), set(ranks))
    (found,) = course.findings
    assert found.lost_rank_seconds == pytest.approx(6.0 * steps * count, rel=0.02)
    assert "6.0 s" in found.why
    assert "train.py:24 (forward): tensor 'x' size mismatch at index 0, expected 4, actual 5" in found.why
    assert truth.delay_s is not None
    assert truth.delay_s < 6 * steps + 8


def test_nobody_is_accused_where_all_ranks_compile() -> None:
    assert accused(play(world(4, (0, 1, 2, 3)))) == set()


def test_frame_compiled_once_more_in_half_a_second_is_no_finding() -> None:
    assert play(world(4, (2,), steps=1, ms=500)).findings == ()


def test_compilation_of_more_than_five_minutes_ago_is_over() -> None:
    one = world(4, (1, 2), on_gpu=False, steps=1, ms=20_000)
    course = play(World(**{**vars(one), "steps": 3400, "pass_s": 10}))
    (found,) = course.findings
    assert found.ranks == (1, 2)
    assert found.until_step is not None
    held_ns = course.ends_ns[found.until_step] - course.ends_ns[BEGIN - 1]
    assert held_ns / 1e9 == pytest.approx(300, abs=12)  # it is looked at each 10 s
