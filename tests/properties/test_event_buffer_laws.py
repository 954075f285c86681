"""Laws of the event buffer: processing events late and in batches does not change the steps."""

import itertools
import math
from collections.abc import Collection
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.agent.guard import Guard
from rankscope.agent.steps.batch_size import UNKNOWN, BatchSize
from rankscope.agent.steps.event_buffer import HookEventBuffer
from rankscope.agent.steps.step_timer import StepTimer
from rankscope.measure.records import StepRecord

EventList = list[tuple[str, tuple[Any, ...]]]

ASK: tuple[str, tuple[Any, ...]] = "data_begin", (True,)
FETCH: EventList = [ASK, ("data_end", (True, 1, BatchSize(4, 32)))]
FETCH_UNKNOWN: EventList = [ASK, ("data_end", (True, 2, UNKNOWN))]
BACKWARD: EventList = [("backward_begin", ()), ("backward_end", ())]
STEP_1: EventList = [("optimizer_begin", (1,)), ("optimizer_end", ())]
STEP_2: EventList = [("optimizer_begin", (2,)), ("optimizer_end", ())]
SIMPLE = [*FETCH, *BACKWARD, *STEP_1]
PARTS: list[EventList] = [
    SIMPLE,
    3 * SIMPLE,
    [*FETCH_UNKNOWN, *BACKWARD, *STEP_1],
    [*FETCH, *BACKWARD, *STEP_2],
    [*FETCH, *BACKWARD, *STEP_1, *BACKWARD, *STEP_2],
    [*FETCH, *BACKWARD, *FETCH, *BACKWARD, *STEP_1],
    [*FETCH, STEP_1[0], *BACKWARD, STEP_1[1]],
    [*BACKWARD, *STEP_1],
    [ASK, ("data_end", (False, 1))],
    [("data_begin", (False,)), ("data_end", (True, 3, UNKNOWN))],
    [ASK, *FETCH, ("data_end", (True, 1, UNKNOWN))],
    *([one] for one in (*FETCH, *BACKWARD, *STEP_1)),
]
scripts = st.lists(st.sampled_from(PARTS), max_size=20).map(lambda parts: list(itertools.chain(*parts)))


class Watched:
    """A timer with everything that it emits."""

    def __init__(self) -> None:
        self.records: list[StepRecord] = []
        self.pauses = 0
        self.timer = StepTimer(self.records.append, on_pause=self._on_pause, read_cpu_ns=int)

    def _on_pause(self) -> None:
        self.pauses += 1


def replay_singly(events: EventList) -> Watched:
    watched = Watched()
    watched.timer.recorder.is_inline = False
    for now_ns, (name, arguments) in enumerate(events):
        getattr(watched.timer, name)(now_ns * now_ns, *arguments)
    watched.timer.finish()
    return watched


def replay_in_batches(events: EventList, lengths: list[int], clocked: Collection[int] = ()) -> Watched:
    """Replay in batches of these lengths; the clock is read at some of the events."""
    watched = Watched()
    buffer = HookEventBuffer(watched.timer, Guard(1))
    times_ns = itertools.count()
    lengths_in_turn = itertools.cycle(lengths)
    while events:
        length = next(lengths_in_turn)
        batch, events = events[:length], events[length:]
        for (name, arguments), now_ns in zip(batch, times_ns, strict=False):
            read = (now_ns,) if now_ns in clocked and name == "data_begin" else ()
            buffer.entries.extend((getattr(watched.timer, name), now_ns * now_ns, (*arguments, *read)))
        buffer.flush_deferred()
    watched.timer.finish()
    return watched


@given(scripts, st.lists(st.integers(1, 40), min_size=1, max_size=4))
@settings(max_examples=300)
def test_batches_give_the_same_steps_as_single_events(events: EventList, lengths: list[int]) -> None:
    alone, together = replay_singly(events), replay_in_batches(events, lengths)
    assert together.records == alone.records
    assert together.pauses == alone.pauses


@given(scripts, st.lists(st.integers(1, 40), min_size=1, max_size=4), st.sets(st.integers(0, 400)))
@settings(max_examples=300)
def test_clock_reads_change_only_the_cpu_time(events: EventList, lengths: list[int], clocked: set[int]) -> None:
    alone, together = replay_singly(events), replay_in_batches(events, lengths, clocked)
    assert [msgspec.structs.replace(record, cpu_ns=None) for record in together.records] == alone.records
    for record in together.records:
        began, ended = (math.isqrt(ns) for ns in (record.start_host_ns, record.start_host_ns + record.duration_ns))
        assert record.cpu_ns in {None, ended - began}
        if record.cpu_ns is not None:
            assert {began, ended} <= clocked


@given(st.integers(1, 30), st.lists(st.integers(1, 40), min_size=1, max_size=4), st.sets(st.integers(0, 30)))
def test_simple_steps_have_cpu_time_if_clock_was_read_twice(steps: int, lengths: list[int], clocked: set[int]) -> None:
    together = replay_in_batches([*(steps * SIMPLE), ASK], lengths, {len(SIMPLE) * step for step in clocked})
    known = {record.step for record in together.records if record.cpu_ns is not None}
    assert known == {step for step in range(2, steps) if {step, step + 1} <= clocked} | (known & {0, 1})
