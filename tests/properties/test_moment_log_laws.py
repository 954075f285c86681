"""Laws of the moment log: that moments are gone through late and many at once changes nothing in the steps."""

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
from rankscope.agent.steps.plain_steps import Events
from rankscope.agent.steps.step_timer import StepTimer
from rankscope.measure.records import StepRecord

Moments = list[tuple[str, tuple[Any, ...]]]

ASK: tuple[str, tuple[Any, ...]] = "data_begin", (True,)
FETCH: Moments = [ASK, ("data_end", (True, 1, BatchSize(4, 32)))]
FETCH_UNKNOWN: Moments = [ASK, ("data_end", (True, 2, UNKNOWN))]
BACKWARD: Moments = [("backward_begin", ()), ("backward_end", ())]
STEP_1: Moments = [("optimizer_begin", (1,)), ("optimizer_end", ())]
STEP_2: Moments = [("optimizer_begin", (2,)), ("optimizer_end", ())]
PLAIN = [*FETCH, *BACKWARD, *STEP_1]
PARTS: list[Moments] = [
    PLAIN,
    3 * PLAIN,
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
    """A timer, and all it tells."""

    def __init__(self) -> None:
        self.records: list[StepRecord] = []
        self.pauses = 0
        self.timer = StepTimer(self.records.append, on_pause=self._on_pause, read_cpu_ns=int)

    def _on_pause(self) -> None:
        self.pauses += 1


def play_one_by_one(moments: Moments) -> Watched:
    watched = Watched()
    watched.timer.is_live = False
    for now_ns, (name, arguments) in enumerate(moments):
        getattr(watched.timer, name)(now_ns * now_ns, *arguments)
    watched.timer.finish()
    return watched


def play_from_the_log(moments: Moments, lengths: list[int], clocked: Collection[int] = ()) -> Watched:
    """In heaps of these lengths, one after the other; the clock is read right before some of the moments."""
    watched = Watched()
    log = HookEventBuffer(watched.timer, Guard(1))
    times_ns = itertools.count()
    heaps = itertools.cycle(lengths)
    while moments:
        length = next(heaps)
        heap, moments = moments[:length], moments[length:]
        for (name, arguments), now_ns in zip(heap, times_ns, strict=False):
            if now_ns in clocked and name == "data_begin":
                log.entries.extend((log.events.clock_read, now_ns * now_ns, (now_ns, 0)))
            log.entries.extend((log.events[Events._fields.index(name)], now_ns * now_ns, arguments))
        log.catch_up_late()
    watched.timer.finish()
    return watched


@given(scripts, st.lists(st.integers(1, 40), min_size=1, max_size=4))
@settings(max_examples=300)
def test_steps_are_the_same_gone_through_one_by_one_and_in_heaps(moments: Moments, lengths: list[int]) -> None:
    alone, together = play_one_by_one(moments), play_from_the_log(moments, lengths)
    assert together.records == alone.records
    assert together.pauses == alone.pauses


@given(scripts, st.lists(st.integers(1, 40), min_size=1, max_size=4), st.sets(st.integers(0, 400)))
@settings(max_examples=300)
def test_reading_the_clock_changes_nothing_but_the_cpu_time(
    moments: Moments, lengths: list[int], clocked: set[int]
) -> None:
    alone, together = play_one_by_one(moments), play_from_the_log(moments, lengths, clocked)
    assert [msgspec.structs.replace(record, cpu_ns=None) for record in together.records] == alone.records
    for record in together.records:
        began, ended = (math.isqrt(ns) for ns in (record.start_host_ns, record.start_host_ns + record.duration_ns))
        assert record.cpu_ns in {None, ended - began}
        if record.cpu_ns is not None:
            assert {began, ended} <= clocked


@given(st.integers(1, 30), st.lists(st.integers(1, 40), min_size=1, max_size=4), st.sets(st.integers(0, 30)))
def test_plain_steps_have_their_cpu_time_where_the_clock_was_read_at_both_ends(
    steps: int, lengths: list[int], clocked: set[int]
) -> None:
    together = play_from_the_log([*(steps * PLAIN), ASK], lengths, {len(PLAIN) * step for step in clocked})
    known = {record.step for record in together.records if record.cpu_ns is not None}
    assert known == {step for step in range(2, steps) if {step, step + 1} <= clocked} | (known & {0, 1})
