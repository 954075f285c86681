"""HookEventBuffer: when events are processed, on which thread, and what only an inline one may do."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from rankscope.agent.guard import Guard
from rankscope.agent.steps.batch_size import UNKNOWN
from rankscope.agent.steps.due_steps import Due
from rankscope.agent.steps.event_buffer import PART, TURN_MOMENTS, HookEventBuffer
from rankscope.agent.steps.step_timer import StepTimer
from rankscope.measure.records import StepRecord

DEADLINE_S = 60.0
EVERY = 4


def every_fourth(step: int) -> Due:
    """Steps 4, 8, 12 ... and those after them are due live, as those of windows are."""
    return Due(step + 1 if step % EVERY == 0 else step + EVERY - step % EVERY, is_live=True)


def every_fourth_clocked(step: int) -> Due:
    """At the same steps the clock is read, and nothing else happens."""
    return every_fourth(step)._replace(is_live=False)


def every_fourth_clocked_and_fifteenth_live(step: int) -> Due:
    """The same, and a window that begins with step 15."""
    clocked = every_fourth_clocked(step)
    return Due(15, is_live=True) if step < 15 <= clocked.step else clocked


class Loop:
    """A plain loop whose hooks write into a log, as those of torch do. One tick of the clock a moment."""

    def __init__(self, find_due: Callable[[int], Due] = every_fourth, **options: Any) -> None:
        self.now_ns = 0
        self.records: list[StepRecord] = []
        self.boundaries: list[int] = []
        self.guard = Guard(2)
        self.timer = StepTimer(
            self.records.append,
            self.boundaries.append,
            read_clock_ns=lambda: self.now_ns,
            read_cpu_ns=lambda: self.now_ns // 2,
        )
        self.log = HookEventBuffer(self.timer, self.guard, find_due, read_cpu_ns=lambda: self.now_ns // 2, **options)

    def write(self, event: Any, *arguments: object) -> "Loop":
        self.now_ns += 10
        self.log.entries.extend((event, self.now_ns, arguments))
        return self

    def ask(self) -> "Loop":
        if self.log.ends_left > 0:
            return self.write(self.log.events.data_begin, True)
        self.now_ns += 10
        self.log.fetch_when_due(self.now_ns, (True,))
        return self

    def train(self) -> "Loop":
        self.write(self.log.events.data_end, True, 1, UNKNOWN)
        return self.backward().optimize(1)

    def backward(self) -> "Loop":
        return self.write(self.log.events.backward_begin).write(self.log.events.backward_end)

    def optimize(self, optimizer: int) -> "Loop":
        self.write(self.log.events.optimizer_begin, optimizer).write(self.log.events.optimizer_end)
        self.log.ends_left -= 1
        if self.log.ends_left <= 0:
            self.log.end_when_due(self.now_ns)
        return self

    def steps(self, count: int) -> "Loop":
        for _ in range(count):
            self.ask().train()
        return self


def on_another_thread(log: HookEventBuffer) -> None:
    thread = threading.Thread(target=log.catch_up_late)
    thread.start()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


def test_boundaries_are_told_of_the_steps_that_must_begin_live_and_of_no_others() -> None:
    # Until the second step has ended it is open what a cycle of optimizers is, and each moment is live.
    assert [step for step in Loop().steps(14).boundaries if step > 2] == [4, 5, 8, 9, 12, 13]


def test_steps_between_two_live_ones_are_all_there_when_the_second_begins() -> None:
    loop = Loop().steps(8)
    assert [record.step for record in loop.records] == [0, 1, 2, 3, 4]
    loop.ask()
    assert [record.step for record in loop.records] == list(range(8))
    assert {record.duration_ns for record in loop.records} == {60}


def test_only_a_step_that_began_and_ended_live_has_a_cpu_time() -> None:
    cpu_ns = {record.step: record.cpu_ns for record in Loop().steps(11).ask().records}
    assert (cpu_ns[4], cpu_ns[8]) == (30, 30)
    assert [cpu_ns[step] for step in (3, 5, 6, 7)] == [None] * 4


def test_the_clock_is_read_at_the_very_moment_while_all_else_is_left_to_the_agent_thread() -> None:
    loop = Loop(every_fourth_clocked).steps(3)
    on_another_thread(loop.log)
    known = len(loop.records)
    loop.steps(8)
    assert len(loop.records) == known, "the training thread has gone through nothing"
    on_another_thread(loop.log)
    assert [record.step for record in loop.records] == list(range(10))
    cpu_ns = {record.step: record.cpu_ns for record in loop.records}
    assert (cpu_ns[4], cpu_ns[8]) == (30, 30)
    assert [cpu_ns[step] for step in (3, 5, 6, 7, 9)] == [None] * 5


def test_no_boundary_is_told_where_the_clock_alone_is_wanted_and_one_is_where_a_window_begins() -> None:
    loop = Loop(every_fourth_clocked_and_fifteenth_live).steps(3)
    boundaries = list(loop.boundaries)
    assert loop.steps(20).boundaries == [*boundaries, 15]
    on_another_thread(loop.log)
    measured = [record.step for record in loop.records if record.cpu_ns is not None]
    assert [step for step in measured if step > 2] == [4, 8, 12, 15, 16, 20]


def test_when_a_loop_gets_another_optimizer_the_clock_is_read_at_whole_steps_again() -> None:
    loop = Loop(every_fourth_clocked).steps(11)
    for _ in range(40):
        loop.ask().train().backward().optimize(2)
        on_another_thread(loop.log)
    loop.ask()
    on_another_thread(loop.log)
    assert [record.step for record in loop.records] == list(range(51))
    cpu_ns = {record.step: record.cpu_ns for record in loop.records if record.step >= 16}
    assert {cpu_ns[step] for step in range(16, 50, EVERY)} == {50}


def test_after_the_end_of_the_data_all_is_gone_through_at_the_next_batch() -> None:
    loop = Loop(every_fourth_clocked).steps(6).ask()
    loop.write(loop.log.events.data_end, False, 1).log.note_end_of_data()
    loop.ask()
    assert [record.step for record in loop.records] == list(range(6))


def test_a_clock_that_cannot_be_planned_on_is_not_read_on() -> None:
    loop = Loop(every_fourth_clocked).steps(7)
    loop.log._find_due = lambda _step: Due(1 // 0, is_live=False)
    loop.steps(3)
    assert loop.guard.errors == {PART: 2}
    assert [record.step for record in loop.records] == list(range(9)), "each moment is live then"


def test_the_agent_thread_gives_the_turn_back_again_and_again() -> None:
    loop = Loop(every_fourth_clocked).steps(TURN_MOMENTS // 2)
    turns: list[int] = []

    def may_be_late() -> bool:
        turns.append(len(loop.log.entries))
        return True

    loop.log._may_be_late = may_be_late
    on_another_thread(loop.log)
    assert len(turns) == 4, "three times 512 moments of six a step, and the reads of the clock"
    assert loop.log.entries == []


def test_the_agent_thread_finds_the_steps_of_a_training_that_stands_still() -> None:
    loop = Loop().steps(7)
    on_another_thread(loop.log)
    assert [record.step for record in loop.records] == list(range(6)), "the seventh has not ended"
    assert [step for step in loop.boundaries if step > 5] == [], "that thread begins no window"


def test_a_boundary_is_live_although_the_agent_thread_went_through_what_came_before() -> None:
    loop = Loop().steps(7)
    on_another_thread(loop.log)
    loop.steps(3)
    assert loop.boundaries[-2:] == [8, 9]
    assert [record.step for record in loop.ask().records if record.cpu_ns is not None][-1] == 8


def test_moments_stay_in_the_log_while_they_may_not_be_late() -> None:
    loop = Loop(may_be_late=lambda: False).steps(7)
    records, moments = len(loop.records), loop.log.moments
    on_another_thread(loop.log)
    assert (len(loop.records), loop.log.moments) == (records, moments)
    assert len(loop.steps(2).records) == 8


def test_training_goes_on_while_another_thread_holds_the_turn() -> None:
    loop = Loop().steps(8)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with loop.log.caught_up():
            held.set()
            done.wait(DEADLINE_S)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(DEADLINE_S)
    records = len(loop.records)
    loop.ask()
    assert len(loop.records) == records, "its moment is late"
    done.set()
    thread.join(DEADLINE_S)
    assert [record.step for record in loop.train().steps(5).records] == list(range(13))


def test_the_user_may_call_the_timer_once_it_has_had_all_moments() -> None:
    loop = Loop().steps(7)
    with loop.log.caught_up():
        loop.timer.phase_begin(loop.now_ns + 10, "checkpoint")
    assert [record.step for record in loop.records] == list(range(6))
    assert loop.log.entries == []


def test_every_moment_is_counted_whether_it_has_been_gone_through_or_not() -> None:
    loop = Loop()
    for steps in (1, 5, 7):
        before = loop.log.moments
        assert loop.steps(steps).log.moments == before + 6 * steps


def test_a_part_that_is_switched_off_gets_no_more_moments() -> None:
    loop = Loop()

    def fail(_now_ns: int) -> None:
        raise KeyError("our own mistake")

    for _ in range(3):
        loop.write(fail)
    loop.steps(2)
    assert loop.guard.errors == {PART: 2}
    assert loop.records == []


def test_what_windows_take_at_a_boundary_is_not_counted_as_the_hooks() -> None:
    assert Loop(read_elsewhere_ns=iter(range(0, 10**18, 10**12)).__next__).steps(3).log.spent_ns < 10**9


def test_when_the_next_live_step_cannot_be_found_every_moment_is_live() -> None:
    loop = Loop()
    loop.log._find_due = lambda _step: Due(1 // 0, is_live=False)
    assert loop.ask().log.ends_left == 0
    assert loop.guard.errors == {PART: 1}


@pytest.mark.parametrize("steps", [1, 6])
def test_a_forked_child_does_not_wait_for_a_thread_that_it_does_not_have(steps: int) -> None:
    loop = Loop().steps(steps)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with loop.log._turn:
            held.set()
            done.wait(DEADLINE_S)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(DEADLINE_S)
    loop.log.renew_turn()
    with loop.log.caught_up():
        assert loop.log.entries == []
    done.set()
    thread.join(DEADLINE_S)
