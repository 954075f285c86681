"""EarlyEvents: which events of a thread that turns out to train are passed on, and that they are bounded."""

import contextlib
import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from rankscope.agent.guard import Guard
from rankscope.agent.steps.early_events import EVENTS_MAX, EarlyEvents
from rankscope.agent.steps.event_buffer import HookEventBuffer
from rankscope.agent.steps.step_timer import StepTimer
from rankscope.measure.records import StepRecord

DEADLINE_S = 300.0


class Early:
    """Early events whose clock is at the number of events so far, with the records of their timer."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.records: list[StepRecord] = []
        self.timer = StepTimer(self.records.append, read_clock_ns=self.read_ns, read_cpu_ns=lambda: 0)
        self.buffer = HookEventBuffer(self.timer, Guard(1))
        self.events = EarlyEvents(self.buffer, self.timer, self.read_ns)

    def read_ns(self) -> int:
        self.now_ns += 10
        return self.now_ns

    def fetch(self) -> None:
        self.events.fetch(torch, next, iter(DataLoader(TensorDataset(torch.ones(6, 4)), batch_size=3)))

    def run_backward(self) -> None:
        self.events.run_backward(lambda: None, (), {})

    def step(self) -> None:
        """Claim the thread, as the first optimizer step does, and step."""
        self.events.claim()
        with self.buffer.flushed():
            self.timer.optimizer_begin(self.read_ns(), 1)
            self.timer.optimizer_end(self.read_ns())


def on_another_thread(*actions: Callable[[], object]) -> None:
    thread = threading.Thread(target=lambda: [action() for action in actions])
    thread.start()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


def test_first_step_of_another_thread_has_its_phases() -> None:
    early = Early()
    on_another_thread(early.fetch, early.run_backward, early.step)
    early.timer.finish()
    # Events at 10 (fetch), 20 (batch), 30 and 40 (backward), 50 and 60 (optimizer).
    (record,) = early.records
    assert (record.start_host_ns, record.duration_ns) == (10, 50)
    assert record.phases_ns == {"data": 10, "forward": 10, "backward": 10, "optimizer": 10, "other": 10}
    assert (record.batches, record.backwards, record.samples) == (1, 1, 3)


def test_events_before_a_marked_evaluation_count_to_no_step() -> None:
    early = Early()

    def evaluate() -> None:
        early.timer.user.begin_evaluation(early.read_ns())
        early.timer.user.end_evaluation(early.read_ns())

    on_another_thread(early.fetch, evaluate, early.fetch, early.run_backward, early.step)
    early.timer.finish()
    (record,) = early.records
    assert (record.batches, record.start_host_ns) == (1, 50)  # after 10 and 20 of the first fetch, 30 and 40


def test_ended_loader_and_failed_backward_end_their_events() -> None:
    early = Early()

    def fail() -> None:
        with contextlib.suppress(StopIteration):
            early.events.fetch(torch, next, iter([]))
        with contextlib.suppress(ZeroDivisionError):
            early.events.run_backward(lambda: 1 // 0, (), {})

    on_another_thread(fail, early.run_backward, early.step)
    early.timer.finish()
    assert [(record.batches, record.backwards) for record in early.records] == [(0, 2)]
    assert not early.events.threads_inside


class EntriesWithAnotherThread(list[Any]):
    """Entries during whose writing another thread keeps the event that it had begun to keep before."""

    def __init__(self, keep: Callable[[Any], None]) -> None:
        self._keep = keep

    def extend(self, event: Iterable[Any]) -> None:
        super().extend(event)
        self._keep((0, event, 0, ()))


def test_another_thread_may_keep_an_event_while_one_is_claimed() -> None:
    early = Early()

    def claim() -> None:
        early.buffer.entries = EntriesWithAnotherThread(early.events._kept.append)
        early.events.claim()

    on_another_thread(early.fetch, early.run_backward, claim)
    assert early.events.first_thread == early.buffer.thread
    assert early.buffer.event_count == 4


def test_a_loop_that_never_steps_keeps_no_more_than_its_bound() -> None:
    early = Early()
    on_another_thread(*[early.run_backward] * EVENTS_MAX, early.step)
    early.timer.finish()
    (record,) = early.records
    assert record.backwards == EVENTS_MAX // 2  # two events each
