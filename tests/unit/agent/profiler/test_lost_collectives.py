"""WindowReduction with windows that lack an enqueued communication: the results that remain."""

import pytest

from rankscope.agent.profiler.process_groups import FlightEntry
from tests.unit.agent.profiler.test_window_reduction import (
    STEP,
    WORKER_A,
    WORKER_B,
    World,
    gloo,
    only_world,
    operator,
    placed,
    reduction,
    window,
)


def test_missing_collective_at_an_unknown_step_covers_no_step() -> None:
    activities = [gloo("all_reduce", 5_100), gloo("all_reduce", 6_100)]
    reducing = reduction(only_world())
    reduced = reducing.reduce(window(activities, {0: (3, 5)}))
    assert (reduced.covered_steps, reducing.skipped) == (None, {"collectives_lost": 1})


@pytest.mark.parametrize(
    ("seen", "last", "covered", "sequences"),
    [
        ((5, 6, 7), 12, (5, 7), [10, 11, 12]),  # nothing is missing
        ((5, 6), 12, (5, 6), [10, 11]),  # the last step's: the other steps are whole
        ((5, 7), 12, (5, 5), [10, None]),  # that of step 6: behind it nothing is sure
        ((6, 7), 12, None, [None, None]),  # that of the first step
        ((5, 5, 6, 6, 7), 15, (5, 6), [10, 11, 12, 13, None]),
        ((5, 5, 6, 7), 14, None, [None] * 4),  # steps 6 and 7 have one less, and only one is missing
        ((), 12, None, []),
    ],
)
def test_missing_collective_keeps_earlier_equal_steps_covered(
    seen: tuple[int, ...], last: int, covered: tuple[int, int] | None, sequences: list[int | None]
) -> None:
    activities = [gloo("all_reduce", step * STEP + 100 + place) for place, step in enumerate(seen)]
    reduced = reduction(only_world()).reduce(window(activities, {0: (10, last)}, steps=3))
    assert reduced.covered_steps == covered
    assert [record.sequence for record in reduced.collectives] == sequences


def test_missing_collective_keeps_sequences_of_other_groups() -> None:
    world = World(entries=[FlightEntry(0, 1, "all_reduce", 0), FlightEntry(1, 1, "all_gather", 0)])
    activities = [gloo("all_reduce", 5_100, thread=WORKER_A), gloo("all_gather", 5_200, thread=WORKER_B)]
    reducing = reduction(world)
    reducing.reduce(window(activities, {0: (1, 1), 1: (1, 1)}, steps=1))
    again = [
        gloo("all_reduce", 6_100, thread=WORKER_A),
        gloo("all_gather", 6_200, thread=WORKER_B),
        gloo("all_reduce", 7_100, thread=WORKER_A),
    ]
    reduced = reducing.reduce(window(again, {0: (2, 3), 1: (2, 3)}, first_step=6))
    assert reduced.covered_steps == (6, 6)
    assert placed(reduced.collectives) == [
        ("default_pg", 6, 2),
        ("default_pg", 7, 3),
        ("mesh_tp/0-1", 6, 2),
    ]


@pytest.mark.parametrize(
    ("last", "broken_down", "skipped"),
    [
        (10, [5], {"collectives_lost": 1, "steps_cut": 1}),  # that of step 6, which would seem to have had none
        (11, [], {"collectives_lost": 2, "steps_cut": 2}),
    ],
)
def test_step_that_may_lack_communication_has_no_breakdown(
    last: int, broken_down: list[int], skipped: dict[str, int]
) -> None:
    reducing = reduction(only_world())
    activities = [operator("aten::mm", 5_000, 100), gloo("all_reduce", 5_200), operator("aten::mm", 6_000, 100)]
    reducing.reduce(window(activities, {0: (9, last)}, full=True))
    assert [one.first_step for answer in reducing.finish() for one in answer.breakdowns] == broken_down
    assert reducing.skipped == skipped
