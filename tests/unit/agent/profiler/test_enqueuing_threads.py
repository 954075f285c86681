"""Collectives that other threads enqueue during a window, which no session records: what is known of the training
thread's stays known.
"""

import pytest

from rankscope.agent.profiler.process_groups import FlightEntry
from rankscope.agent.profiler.window_reduction import WindowReduction
from rankscope.agent.profiler.window_scheduler import RawWindow
from tests.unit.agent.profiler.test_window_reduction import (
    STEP,
    WORKER_A,
    WORKER_B,
    WORKER_C,
    FakeActivity,
    World,
    gloo,
    only_world,
    operator,
    placed,
    reduction,
    window,
)

TRAINING, HELPER, CALLBACK, AUTOGRAD = 1, 2, 3, 4
"""Threads, as Python numbers them."""
NAMES_OF_THREADS = {TRAINING: "python", HELPER: "python", CALLBACK: "pt_gloo_runloop", AUTOGRAD: "pt_autograd_0"}


def entry(group: int, sequence: int, thread: int | None = TRAINING, op: str = "all_reduce") -> FlightEntry:
    """The recorder's entry of a collective that this thread has enqueued."""
    return FlightEntry(group, sequence, op, 0, thread, "" if thread is None else NAMES_OF_THREADS[thread])


def window_of(
    activities: list[FakeActivity], enqueued: dict[int, tuple[int, int]], first_step: int = 5, *, full: bool = False
) -> RawWindow:
    """A window of two steps of the training thread."""
    return window(activities, enqueued, first_step=first_step, full=full)._replace(thread=TRAINING)


def one_each_step(first_step: int = 5, thread: int = WORKER_A) -> list[FakeActivity]:
    """What a window has of a training with one all_reduce in each of two steps."""
    return [gloo("all_reduce", step * STEP + 100, thread=thread) for step in (first_step, first_step + 1)]


BESIDE = {0: (3, 4), 1: (8, 9)}
"""Group 0 is the training's; another thread reduces in group 1, which has no range, once in each step."""
BESIDE_ENTRIES = [entry(0, 3), entry(1, 8, HELPER), entry(0, 4), entry(1, 9, HELPER)]
KNOWN = [("default_pg", 5, 3), ("default_pg", 6, 4)]


def reduce_beside(world: World) -> WindowReduction:
    """Reduce a first window beside which another thread reduces in its own group."""
    reducing = reduction(world)
    reduced = reducing.reduce(window_of(one_each_step(), BESIDE))
    assert (placed(reduced.collectives), reduced.covered_steps) == (KNOWN, (5, 6))
    return reducing


def test_group_of_another_thread_leaves_the_training_threads_collectives_known() -> None:
    reducing = reduce_beside(World(entries=BESIDE_ENTRIES))
    assert reducing.skipped == {"collectives_of_other_threads": 2}


def test_full_window_beside_another_threads_group_has_its_breakdown() -> None:
    reducing = reduction(World(entries=BESIDE_ENTRIES))
    activities = [operator("aten::mm", 5_000, 100), *one_each_step(), operator("aten::mm", 6_000, 100)]
    reducing.reduce(window_of(activities, BESIDE, full=True))
    assert [one.first_step for answer in reducing.finish() for one in answer.breakdowns] == [5, 6]


def test_group_of_another_thread_is_learned_once() -> None:
    world = World(entries=BESIDE_ENTRIES)
    reducing = reduce_beside(world)
    reads = world.entries_read
    for first_step, sequence in ((7, 5), (9, 7)):
        # How often the other thread reduces meanwhile does not matter.
        enqueued = {0: (sequence, sequence + 1), 1: (10, 10 + first_step)}
        reduced = reducing.reduce(window_of(one_each_step(first_step), enqueued, first_step))
        assert reduced.covered_steps == (first_step, first_step + 1)
        assert [one.sequence for one in reduced.collectives] == [sequence, sequence + 1]
    assert (reads, world.entries_read) == (1, 1)


def test_group_of_another_thread_that_training_uses_too_is_looked_at_again() -> None:
    world = World(entries=BESIDE_ENTRIES)
    reducing = reduce_beside(world)
    world.entries = [entry(0, 5), entry(1, 10, HELPER), entry(1, 11, op="barrier"), entry(0, 6)]
    activities = [*one_each_step(7), gloo("barrier", 7_500, thread=WORKER_B)]
    reduced = reducing.reduce(window_of(activities, {0: (5, 6), 1: (10, 11)}, 7))
    assert reduced.covered_steps == (7, 8)
    assert placed(reduced.collectives) == [("default_pg", 7, 5), ("default_pg", 8, 6), ("mesh_tp/0-1", 7, 11)]


@pytest.mark.parametrize("thread", [TRAINING, AUTOGRAD])
def test_collectives_of_two_threads_in_one_group_are_counted_by_thread(thread: int) -> None:
    entries = [entry(0, 3, thread), entry(0, 4, HELPER), entry(0, 5, HELPER), entry(0, 6, thread)]
    reducing = reduction(World(only_world().groups, entries))
    reduced = reducing.reduce(window_of(one_each_step(), {0: (3, 6)}))
    assert (placed(reduced.collectives), reduced.covered_steps) == (
        [("default_pg", 5, 3), ("default_pg", 6, 6)], (5, 6)
    )  # fmt: skip
    assert reducing.skipped == {"collectives_of_other_threads": 2}


def test_workers_of_groups_are_learned_beside_another_thread() -> None:
    entries = [entry(1, 8, op="all_gather"), entry(0, 3), entry(0, 4, HELPER)]
    activities = [gloo("all_gather", 5_100, thread=WORKER_C), gloo("all_reduce", 6_100, thread=WORKER_A)]
    reduced = reduction(World(entries=entries)).reduce(window_of(activities, {0: (3, 4), 1: (8, 8)}))
    assert placed(reduced.collectives) == [("default_pg", 6, 3), ("mesh_tp/0-1", 5, 8)]


def find_lost(entries: list[FlightEntry], enqueued: dict[int, tuple[int, int]]) -> dict[str, int]:
    """Reduce a window of which nothing may be known, and return what was counted."""
    reducing = reduction(World(only_world().groups, entries))
    reduced = reducing.reduce(window_of(one_each_step(), enqueued))
    assert reduced.covered_steps is None
    assert [one.sequence for one in reduced.collectives] == [None, None]
    return reducing.skipped


def test_collective_of_a_callback_on_a_thread_of_gloo_is_lost_since_training_waits_for_it() -> None:
    entries = [entry(0, 3), entry(0, 4, CALLBACK), entry(0, 5), entry(0, 6, CALLBACK)]
    assert find_lost(entries, {0: (3, 6)}) == {"collectives_lost": 2}


def test_collective_of_which_torch_does_not_say_the_thread_is_lost() -> None:
    entries = [entry(0, sequence, None) for sequence in range(3, 7)]
    assert find_lost(entries, {0: (3, 6)}) == {"collectives_lost": 2}


def test_collectives_that_the_recorder_no_longer_has_are_lost() -> None:
    entries = [entry(0, 4, HELPER), entry(0, 5, HELPER), entry(0, 6)]  # without 3
    assert find_lost(entries, {0: (3, 6)}) == {"collectives_lost": 2}


def test_collective_that_is_missing_beside_another_thread_is_lost() -> None:
    entries = [entry(0, 3), entry(0, 4, HELPER), entry(0, 5), entry(0, 6, CALLBACK), entry(0, 7, CALLBACK)]
    counted = find_lost(entries, {0: (3, 7)})
    assert counted == {"collectives_lost": 2, "collectives_of_other_threads": 1}


def test_recorder_that_does_not_help_is_read_ever_less_often() -> None:
    world = World(only_world().groups, [])
    reducing = reduction(world)
    for number in range(32):
        first_step, sequence = 5 + 2 * number, 1 + 4 * number
        reducing.reduce(window_of(one_each_step(first_step), {0: (sequence, sequence + 3)}, first_step))
    # In windows 0, 1, 3, 7, 15 and 31.
    assert world.entries_read == 6


def test_window_of_which_the_thread_is_not_known_asks_no_recorder() -> None:
    world = World(only_world().groups, BESIDE_ENTRIES)
    assert reduction(world).reduce(window(one_each_step(), {0: (3, 6)})).covered_steps is None
    assert world.entries_read == 0
