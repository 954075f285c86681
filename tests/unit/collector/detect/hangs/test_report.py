"""A hang in words, its numbers and its stacks."""

from dataclasses import replace

import pytest

from rankscope.collector.detect.hang_state import RankHangState
from rankscope.collector.detect.hangs.detector import Hangs
from rankscope.collector.detect.hangs.report import (
    STACKS_SHOWN_MAX,
    HangFacts,
    describe_place,
    describe_stack,
    write_hang,
)
from rankscope.collector.detect.hangs.wait_graph import find_stuck
from rankscope.collector.detect.view import Candidate
from rankscope.measure.stalls import GroupStatus, KernelThread, StackFrame, Stall, ThreadStack
from tests.unit.collector.detect.hang_states import (
    LIMIT_NS,
    WORLD,
    busy,
    call,
    dead,
    ended,
    frozen,
    moving,
    silent,
    stall_of,
    still,
    stopped,
    view_on,
    waits,
)

THREAD = KernelThread(thread=7, name="python", state="S", wait_channel="futex_wait")


@pytest.mark.parametrize(
    ("standing", "place"),
    [
        (still(), "stalled at train.py:74 (main)"),
        (still(activity="synchronize"), "stalled in synchronize at train.py:74 (main)"),
        (still(stall=stall_of(line=None)), "stalled"),
        (busy(), "busy without training in evaluate at train.py:55"),
        (still(activity="data"), "waiting for data in main at train.py:74"),
        (RankHangState(is_stalled=True), "stalled"),
        (moving(), "still running"),
        (
            RankHangState(is_stalled=False, stall=stall_of("checkpoint")),
            "busy without training in main at train.py:74 (checkpoint)",
        ),
        (frozen(), "not responding, its Python interpreter not running (state S)"),
        (frozen(state=""), "not responding, its Python interpreter not running"),
        (stopped({}), "not responding, its process stopped (state T)"),
        (stopped({}, "D"), "not responding, its process blocked in the kernel (state D)"),
        (silent(), "not reporting (whether its process is alive: not known)"),
        (silent(is_stalled=True), "stalled, no longer reporting"),
        (dead(), "ended: killed (SIGKILL)"),
        (ended("finished"), "ended: finished"),
    ],
)
def test_where_a_rank_is(standing: RankHangState, place: str) -> None:
    assert describe_place(standing) == place


def test_a_stack_is_written_innermost_line_first() -> None:
    frames = (StackFrame("a.py", 1, "inner"), StackFrame("b.py", 2, "outer"))
    stall = Stall(
        number=1,
        since_host_ns=0,
        taken_host_ns=0,
        limit_ns=LIMIT_NS,
        stacks=(ThreadStack(name="MainThread", frames=frames, frames_left_out=3),),
    )
    assert describe_stack(still(stall=stall)) == "a.py:1 in inner\nb.py:2 in outer\nand 3 more"


def test_stack_of_a_frozen_rank_is_the_kernel_view() -> None:
    hidden = KernelThread(thread=8, name="gloo", state="R")
    assert describe_stack(frozen(threads=[THREAD, hidden])) == (
        "no Python stack: the interpreter is not running\nthread 7 (python): S in futex_wait\nthread 8 (gloo): R in ?"
    )


def test_rank_without_a_stall_has_no_stack() -> None:
    assert describe_stack(dead()) == ""


def test_a_finding_keeps_a_few_stacks_of_many_ranks() -> None:
    hang_states = {rank: still({WORLD: (7, 7)}) for rank in range(STACKS_SHOWN_MAX + 3)}
    hang_states[99] = waits()
    (candidate,) = find(hang_states)
    assert len(candidate.finding.ranks) == STACKS_SHOWN_MAX + 3
    assert [name for name in candidate.finding.details if name.endswith("which waits")] == [
        "stack of rank 99, which waits"
    ]
    assert len(candidate.finding.details) == STACKS_SHOWN_MAX + 1


def find(hang_states: dict[int, RankHangState]) -> list[Candidate]:
    found = Hangs().find(view_on(hang_states), ())
    assert isinstance(found, tuple), found
    return list(found)


def test_what_is_not_known_is_left_out_of_sentence_and_numbers() -> None:
    bare = RankHangState(is_stalled=True, progress=waits().progress)
    (candidate,) = find({0: bare, 1: RankHangState(is_stalled=True, progress=still({WORLD: (7, 7)}).progress)})
    assert (candidate.finding.what, candidate.finding.why, candidate.finding.also) == (
        "rank 1 (node-a) stalled",
        "1 rank waiting for it in collective 8 of default_pg",
        ("last collective of rank 1 there: 7",),
    )
    assert set(candidate.finding.evidence) == {
        "stalled_ranks", "waiting_ranks", "sequence", "group_max_sequence", "missing_sequence",
    }  # fmt: skip


def test_unmatched_transfer_has_no_missing_sequence() -> None:
    hang_states = {0: still({}), 1: still({}, call(WORLD, 4, "recv 1<-0"))}
    (candidate,) = find(hang_states)
    assert candidate.finding.why == "1 rank waiting for it in recv 1<-0 4 of default_pg (4096 bytes)"
    assert candidate.finding.also == ()
    assert "missing_sequence" not in candidate.finding.evidence


def test_rank_without_a_known_node_is_named_so() -> None:
    view = view_on({5: still({WORLD: (7, 7)}), 0: waits()}, {WORLD: (0, 5)}, world=2)
    graph = find_stuck(view.hang_states, view.groups, lambda _: False)
    facts = HangFacts(view, graph, (5,), graph.stuck[0])
    assert write_hang("missing_rank", facts).what.startswith("rank 5 (node not known) stalled")


@pytest.mark.parametrize(
    ("started", "told"),
    [
        ((8, 7, 8), ("not started on the device of rank 1",)),
        # Devices are not distinguished where none has started it, or where the backend does not report it.
        ((7, 7, 7), ()),
        ((8, None, 8), ()),
    ],
)
def test_device_that_has_not_started_is_named(started: tuple[int | None, ...], told: tuple[str, ...]) -> None:
    hang_states = {
        rank: replace(waits(), progress=(GroupStatus(group=WORLD, enqueued=8, started=sequence, completed=7),))
        for rank, sequence in enumerate(started)
    }
    (candidate,) = find(hang_states)
    assert (candidate.finding.cause, candidate.finding.ranks) == ("all_in_collective", ())
    assert candidate.finding.also == told
