"""HookEventBuffer: when events are processed, on which thread, and what only an inline one may do."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from rankscope.agent.guard import Guard
from rankscope.agent.steps.batch_size import UNKNOWN
from rankscope.agent.steps.event_buffer import (
    BATCH_EVENTS,
    EVENT_NS_ASSUMED,
    PART,
    PROCESSING_COST_FACTOR,
    TIMED_EVENTS_MAX,
    WRITE_COST_FACTOR,
    WRITE_NS_MAX,
    HookCostMeter,
    HookEventBuffer,
)
from rankscope.agent.steps.step_boundaries import NextBoundary
from rankscope.agent.steps.step_timer import StepTimer
from rankscope.measure.records import StepRecord

DEADLINE_S = 300.0
EVERY = 4


def window_every_fourth(step: int) -> NextBoundary:
    """Run steps 4, 8, 12 ... and those after them inline, as windows do."""
    return NextBoundary(step + 1 if step % EVERY == 0 else step + EVERY - step % EVERY, runs_inline=True)


def clock_every_fourth(step: int) -> NextBoundary:
    """Read only the clock, at the same steps."""
    return window_every_fourth(step)._replace(runs_inline=False)


def clock_every_fourth_and_window_at_15(step: int) -> NextBoundary:
    """Do the same, and begin a window with step 15."""
    clocked = clock_every_fourth(step)
    return NextBoundary(15, runs_inline=True) if step < 15 <= clocked.step else clocked


class Loop:
    """A simple loop whose hooks write into a buffer, as those of torch do. One tick of the clock for each event."""

    def __init__(self, find_boundary: Callable[[int], NextBoundary] = window_every_fourth, **options: Any) -> None:
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
        self.buffer = HookEventBuffer(
            self.timer, self.guard, find_boundary, read_cpu_ns=lambda: self.now_ns // 2, **options
        )

    def write(self, event: Any, *arguments: object) -> "Loop":
        self.now_ns += 10
        self.buffer.entries.extend((event, self.now_ns, arguments))
        return self

    def ask(self) -> "Loop":
        if self.buffer.optimizer_steps_until_flush > 0:
            return self.write(self.timer.data_begin, True)
        self.now_ns += 10
        self.buffer.on_boundary_fetch(self.now_ns)
        return self

    def train(self) -> "Loop":
        self.write(self.timer.data_end, True, 1, UNKNOWN)
        return self.backward().optimize(1)

    def backward(self) -> "Loop":
        return self.write(self.timer.backward_begin).write(self.timer.backward_end)

    def optimize(self, optimizer: int) -> "Loop":
        self.write(self.timer.optimizer_begin, optimizer).write(self.timer.optimizer_end)
        self.buffer.optimizer_steps_until_flush -= 1
        if self.buffer.optimizer_steps_until_flush <= 0:
            self.buffer.on_last_optimizer_end(self.now_ns)
        return self

    def steps(self, count: int) -> "Loop":
        for _ in range(count):
            self.ask().train()
        return self


def on_another_thread(buffer: HookEventBuffer) -> None:
    thread = threading.Thread(target=buffer.flush_deferred)
    thread.start()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


def test_boundaries_are_announced_at_inline_steps_only() -> None:
    # Until the second step has ended the cycle of optimizers is unknown, and each event is processed inline.
    assert [step for step in Loop().steps(14).boundaries if step > 2] == [4, 5, 8, 9, 12, 13]


def test_steps_between_inline_ones_are_recorded_at_the_second() -> None:
    loop = Loop().steps(8)
    assert [record.step for record in loop.records] == [0, 1, 2, 3, 4]
    loop.ask()
    assert [record.step for record in loop.records] == list(range(8))
    assert {record.duration_ns for record in loop.records} == {60}


def test_cpu_time_needs_an_inline_begin_and_end() -> None:
    cpu_ns = {record.step: record.cpu_ns for record in Loop().steps(11).ask().records}
    assert (cpu_ns[4], cpu_ns[8]) == (30, 30)
    assert [cpu_ns[step] for step in (3, 5, 6, 7)] == [None] * 4


def test_clock_is_read_inline_and_events_are_deferred() -> None:
    loop = Loop(clock_every_fourth).steps(3)
    on_another_thread(loop.buffer)
    known = len(loop.records)
    loop.steps(8)
    assert len(loop.records) == known, "the training thread has processed nothing"
    on_another_thread(loop.buffer)
    assert [record.step for record in loop.records] == list(range(10))
    cpu_ns = {record.step: record.cpu_ns for record in loop.records}
    assert (cpu_ns[4], cpu_ns[8]) == (30, 30)
    assert [cpu_ns[step] for step in (3, 5, 6, 7, 9)] == [None] * 5


def test_clock_reads_announce_no_boundary_but_windows_do() -> None:
    loop = Loop(clock_every_fourth_and_window_at_15).steps(3)
    boundaries = list(loop.boundaries)
    assert loop.steps(20).boundaries == [*boundaries, 15]
    on_another_thread(loop.buffer)
    measured = [record.step for record in loop.records if record.cpu_ns is not None]
    assert [step for step in measured if step > 2] == [4, 8, 12, 15, 16, 20]


def test_clock_is_read_at_whole_steps_after_a_new_optimizer() -> None:
    loop = Loop(clock_every_fourth).steps(11)
    for _ in range(40):
        loop.ask().train().backward().optimize(2)
        on_another_thread(loop.buffer)
    loop.ask()
    on_another_thread(loop.buffer)
    assert [record.step for record in loop.records] == list(range(51))
    cpu_ns = {record.step: record.cpu_ns for record in loop.records if record.step >= 16}
    assert {cpu_ns[step] for step in range(16, 50, EVERY)} == {50}


def test_events_are_flushed_at_the_batch_after_a_loader_ended() -> None:
    loop = Loop(clock_every_fourth).steps(6).ask()
    loop.write(loop.timer.data_end, False, 1).buffer.on_loader_exhausted()
    loop.ask()
    assert [record.step for record in loop.records] == list(range(6))


def test_clock_is_not_read_when_planning_the_next_read_fails() -> None:
    loop = Loop(clock_every_fourth).steps(7)
    loop.buffer._find_boundary = lambda _step: NextBoundary(1 // 0, runs_inline=False)
    loop.steps(3)
    assert loop.guard.errors == {PART: 2}
    assert [record.step for record in loop.records] == list(range(9)), "each event is processed inline then"


def test_agent_thread_releases_the_lock_between_batches() -> None:
    loop = Loop(clock_every_fourth).steps(BATCH_EVENTS // 2)
    batches: list[int] = []

    def may_defer() -> bool:
        batches.append(len(loop.buffer.entries))
        return True

    loop.buffer._may_defer = may_defer
    on_another_thread(loop.buffer)
    assert len(batches) == 3, "512 events each, of six a step"
    assert loop.buffer.entries == []


def test_agent_thread_records_steps_while_training_hangs() -> None:
    loop = Loop().steps(7)
    on_another_thread(loop.buffer)
    assert [record.step for record in loop.records] == list(range(6)), "the seventh has not ended"
    assert [step for step in loop.boundaries if step > 5] == [], "that thread begins no window"


def test_boundary_is_inline_after_a_deferred_flush() -> None:
    loop = Loop().steps(7)
    on_another_thread(loop.buffer)
    loop.steps(3)
    assert loop.boundaries[-2:] == [8, 9]
    assert [record.step for record in loop.ask().records if record.cpu_ns is not None][-1] == 8


def test_events_stay_buffered_while_they_may_not_be_deferred() -> None:
    loop = Loop(may_defer=lambda: False).steps(7)
    records, events = len(loop.records), loop.buffer.event_count
    on_another_thread(loop.buffer)
    assert (len(loop.records), loop.buffer.event_count) == (records, events)
    assert len(loop.steps(2).records) == 8


def test_training_proceeds_while_another_thread_holds_the_lock() -> None:
    loop = Loop().steps(8)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with loop.buffer.flushed():
            held.set()
            done.wait(DEADLINE_S)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(DEADLINE_S)
    records = len(loop.records)
    loop.ask()
    assert len(loop.records) == records, "its event is deferred"
    done.set()
    thread.join(DEADLINE_S)
    assert [record.step for record in loop.train().steps(5).records] == list(range(13))


def test_nobody_waits_for_a_thread_that_keeps_the_events() -> None:
    # As one does that an exception of the script has interrupted where the lock is taken.
    loop = Loop()
    kept, over = threading.Event(), threading.Event()

    def keep() -> None:
        with loop.buffer._lock:
            kept.set()
            over.wait(60)

    keeper = threading.Thread(target=keep)
    keeper.start()
    try:
        assert kept.wait(60)
        with pytest.raises(TimeoutError, match="another thread"), loop.buffer.flushed():
            pass
    finally:
        over.set()
        keeper.join(60)
    with loop.buffer.flushed():
        pass


def test_timer_can_be_called_directly_once_flushed() -> None:
    loop = Loop().steps(7)
    with loop.buffer.flushed():
        loop.timer.user.begin_phase(loop.now_ns + 10, "checkpoint")
    assert [record.step for record in loop.records] == list(range(6))
    assert loop.buffer.entries == []


def test_event_count_includes_buffered_events() -> None:
    loop = Loop()
    for steps in (1, 5, 7):
        before = loop.buffer.event_count
        assert loop.steps(steps).buffer.event_count == before + 6 * steps


def test_part_that_is_off_gets_no_more_events() -> None:
    loop = Loop()

    def fail(_now_ns: int) -> None:
        raise KeyError("our own mistake")

    for _ in range(3):
        loop.write(fail)
    loop.steps(2)
    assert loop.guard.errors == {PART: 2}
    assert loop.records == []


def test_cost_of_windows_is_not_counted_as_that_of_hooks() -> None:
    assert Loop(read_other_cost_ns=iter(range(0, 10**18, 10**12)).__next__).steps(3).buffer.spent_ns < 10**9


def test_every_event_is_inline_when_planning_fails() -> None:
    loop = Loop()
    loop.buffer._find_boundary = lambda _step: NextBoundary(1 // 0, runs_inline=False)
    assert loop.ask().buffer.optimizer_steps_until_flush == 0
    assert loop.guard.errors == {PART: 1}


@pytest.mark.parametrize("steps", [1, 6])
def test_forked_child_does_not_wait_for_the_lock(steps: int) -> None:
    loop = Loop().steps(steps)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with loop.buffer._lock:
            held.set()
            done.wait(DEADLINE_S)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(DEADLINE_S)
    loop.buffer.reset_lock()
    with loop.buffer.flushed():
        assert loop.buffer.entries == []
    done.set()
    thread.join(DEADLINE_S)


def test_a_constant_is_assumed_before_the_first_timed_event() -> None:
    assert HookCostMeter().spent_ns(10) == 10 * EVENT_NS_ASSUMED


def test_event_costs_a_multiple_of_its_timed_write() -> None:
    meter = HookCostMeter()
    meter.record_write(300)
    meter.record_write(500)
    assert meter.spent_ns(10) == 10 * WRITE_COST_FACTOR * 400


def test_processing_costs_a_multiple_of_its_time() -> None:
    meter = HookCostMeter()
    meter.record_processing(50_000)
    meter.record_processing(30_000)
    assert meter.spent_ns(0) == PROCESSING_COST_FACTOR * 80_000


def test_spent_time_stays_when_events_become_cheaper() -> None:
    meter = HookCostMeter()
    meter.record_write(400)
    before_ns = meter.spent_ns(10)
    for _ in range(TIMED_EVENTS_MAX):
        meter.record_write(100)
    assert meter.spent_ns(15) - before_ns == 5 * WRITE_COST_FACTOR * 100


def test_write_during_which_the_core_was_lost_is_ignored() -> None:
    meter = HookCostMeter()
    meter.record_write(400)
    meter.record_write(WRITE_NS_MAX + 1)
    assert meter.event_ns == WRITE_COST_FACTOR * 400


def test_spent_time_never_decreases() -> None:
    meter = HookCostMeter()
    before_ns = meter.spent_ns(10)
    assert meter.spent_ns(4) == before_ns
    assert meter.spent_ns(10) == before_ns


def test_signal_error_raised_while_a_part_waited_leaves_the_hook() -> None:
    loop = Loop()
    loop.guard.hold(TimeoutError("preempted"))
    loop.write(loop.timer.data_begin, True)
    with pytest.raises(TimeoutError, match="preempted"):
        loop.buffer.flush_inline()
    loop.write(loop.timer.data_end, True).buffer.flush_inline()
    assert loop.buffer.event_count == 2
    assert loop.guard.errors == {}


def test_events_after_one_interrupted_by_a_signal_are_handled() -> None:
    loop, handled = Loop(), list[int]()

    def interrupt(_now_ns: int) -> None:
        raise KeyboardInterrupt

    for handle in (interrupt, handled.append, interrupt, handled.append):
        loop.write(handle)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            loop.buffer.flush_inline()
    loop.buffer.flush_inline()
    assert len(handled) == 2
    assert loop.guard.errors == {}


def test_event_of_another_part_is_handled_in_the_order_of_time() -> None:
    loop, places = Loop(), []
    loop.ask().train()
    loop.buffer.add(lambda now_ns, name: places.append((now_ns, name, loop.timer.find_place())), 33, "mine")
    assert places == []
    loop.ask().train()
    loop.buffer.flush_deferred()
    assert places == [(33, "mine", (0, "other"))]
    assert loop.timer.find_place() == (1, "other")


def test_event_of_another_part_is_not_kept_when_hooks_are_off() -> None:
    loop = Loop()
    for _ in range(2):
        loop.guard.record(PART, RuntimeError("mine"))
    loop.buffer.add(lambda _now_ns: None, 33)
    assert loop.buffer.entries == []
