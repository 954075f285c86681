"""The wait-for graph, collective by collective."""

import pytest

from rankscope.collector.detect.hang_state import RankHangState
from rankscope.collector.detect.hangs.wait_graph import (
    Groups,
    Stuck,
    WaitForGraph,
    find_call,
    find_calls,
    find_stuck,
    has_mismatch,
)
from tests.unit.collector.detect.hang_states import WORLD, call, dead, moving, still, waits

PIPE = "mesh_pp"
PIPES = {PIPE: (0, 2, 4)}
"""Places 0, 1, 2 of the pipeline are ranks 0, 2, 4."""


def graph_of(hang_states: dict[int, RankHangState], groups: Groups) -> WaitForGraph:
    return find_stuck(hang_states, groups, lambda one: one.is_gone)


def test_collective_is_described_once_for_all_waiting_ranks() -> None:
    graph = graph_of({0: waits(), 1: still({WORLD: (7, 7)}), 2: waits()}, {WORLD: (0, 1, 2, 3)})
    assert graph.stuck == (Stuck(WORLD, 8, "all_reduce", (0, 2), (1,), (3,), 8, oldest_of=2),)
    assert (graph.blocked, graph.roots, graph.waiting) == (frozenset({0, 2}), (1,), frozenset({0, 2}))


def test_a_rank_waits_for_those_behind_and_not_for_those_ahead() -> None:
    ahead = still({WORLD: (12, 9)}, call(sequence=10))
    behind = still({WORLD: (10, 9)}, call(sequence=10))
    graph = graph_of({0: ahead, 1: behind, 2: still({WORLD: (9, 9)})}, {WORLD: (0, 1, 2)})
    assert [(one.sequence, one.waiting, one.missing, one.furthest) for one in graph.stuck] == [(10, (0, 1), (2,), 12)]


def test_unknown_group_has_its_waiting_ranks_as_members() -> None:
    assert graph_of({0: waits("unheard")}, {}).stuck[0].missing == ()


def test_a_receiver_waits_for_its_sender() -> None:
    hang_states = {0: still({}), 2: still({}, call(PIPE, 4, "recv 1<-0"))}
    (one,) = graph_of(hang_states, PIPES).stuck
    assert (one.waiting, one.missing, one.unknown, one.is_point_to_point) == ((2,), (0,), (), True)


@pytest.mark.parametrize("posted", ["send 0->1", "send"])
def test_transfer_with_both_ends_posted_has_no_missing_rank(posted: str) -> None:
    hang_states = {0: still({}, call(PIPE, 9, posted)), 2: still({}, call(PIPE, 4, "recv 1<-0"))}
    assert [one.missing for one in graph_of(hang_states, PIPES).stuck if one.waiting == (2,)] == [()]


@pytest.mark.parametrize("posted", ["recv 0<-1", "send 0->2"])
def test_another_transfer_of_the_sender_does_not_answer(posted: str) -> None:
    hang_states = {0: still({}, call(PIPE, 9, posted)), 2: still({}, call(PIPE, 4, "recv 1<-0")), 4: still({})}
    assert next(one for one in graph_of(hang_states, PIPES).stuck if one.waiting == (2,)).missing == (0,)


def test_two_ranks_that_both_receive_are_in_a_circle() -> None:
    hang_states = {0: still({}, call(PIPE, 9, "recv 0<-1")), 2: still({}, call(PIPE, 4, "recv 1<-0"))}
    assert graph_of(hang_states, PIPES).find_cycle() == (0, 2)


@pytest.mark.parametrize(
    ("op", "unknown"),
    [
        ("recv 1<-2", (4,)),  # rank 4 has never been heard of
        ("recv 1<-7", ()),  # no such place
        ("recv anysource", ()),
    ],
)
def test_transfer_with_an_unknown_peer_has_no_missing_rank(op: str, unknown: tuple[int, ...]) -> None:
    (one,) = graph_of({2: still({}, call(PIPE, 4, op))}, PIPES).stuck
    assert (one.missing, one.unknown) == ((), unknown)


def test_dead_transfer_peer_is_missing_unless_the_hang_killed_it() -> None:
    hang_states = {0: dead(), 2: still({}, call(PIPE, 4, "recv 1<-0"))}
    assert graph_of(hang_states, PIPES).stuck[0].missing == (0,)
    assert find_stuck(hang_states, PIPES, lambda _: False).stuck[0].unknown == (0,)


def test_a_member_that_died_of_the_hang_is_not_known() -> None:
    hang_states = {0: waits(), 1: dead()}
    assert find_stuck(hang_states, {WORLD: (0, 1)}, lambda _: False).stuck[0].unknown == (1,)


def test_transfer_from_outside_the_group_has_no_peer() -> None:
    hang_states = {0: still({}, call(PIPE, 9, "send 0->1")), 9: still({}, call(PIPE, 4, "recv 1<-0"))}
    assert next(one for one in graph_of(hang_states, PIPES).stuck if one.waiting == (9,)).missing == (0,)


def test_counters_are_unknown_while_transfers_are_pending() -> None:
    hang_states = {0: waits(PIPE, 8), 2: still({PIPE: (3, 3)}, call(PIPE, 4, "recv 1<-0")), 4: moving()}
    graph = graph_of(hang_states, PIPES)
    assert [(one.missing, one.unknown) for one in graph.stuck if not one.is_point_to_point] == [((), (2, 4))]


def test_counters_count_while_an_unrecorded_transfer_is_pending() -> None:
    # gloo's counters are of collectives only: rank 2 has not entered the 8th.
    hang_states = {0: waits(PIPE, 8), 2: still({PIPE: (7, 7)}, call(PIPE, 0, "recv 1<-0")), 4: waits(PIPE, 8)}
    graph = graph_of(hang_states, PIPES)
    assert [(one.op, one.waiting, one.missing) for one in graph.stuck] == [
        ("recv 1<-0", (2,), (0,)), ("all_reduce", (0, 4), (2,)),
    ]  # fmt: skip
    assert graph.find_cycle() == (0, 2)


def test_what_is_named_is_what_the_missing_rank_would_enter_next() -> None:
    # Rank 1 waits in "a" and has enqueued the world's 8 behind it; ranks 2 and 3 only wait there.
    groups = {WORLD: (0, 1, 2, 3), "a": (0, 1)}
    ahead = still({"a": (3, 2), WORLD: (8, 7)}, call("a", 3), call())
    hang_states = {0: still({"a": (2, 2), WORLD: (7, 7)}), 1: ahead, 2: waits(), 3: waits()}
    missed = graph_of(hang_states, groups).find_stuck_without((0,))
    assert missed is not None
    assert (missed.group, missed.oldest_of) == ("a", 1)
    assert graph_of(hang_states, groups).find_stuck_without((1,)) is None


def test_no_cycle_without_waits_or_with_a_missing_rank() -> None:
    assert graph_of({0: moving()}, {WORLD: (0,)}).find_cycle() == ()
    assert graph_of({0: waits(), 1: still({})}, {WORLD: (0, 1)}).find_cycle() == ()


def test_calls_come_from_ranks_with_a_recorder() -> None:
    hang_states = {0: waits(), 1: still({WORLD: (8, 7)}), 2: waits(op="")}
    (one,) = graph_of(hang_states, {WORLD: (0, 1, 2)}).stuck
    assert find_calls(one, hang_states) == {("all_reduce", 4_096): [0]}
    assert find_call(one, hang_states[1]) is None
    assert not has_mismatch(one, hang_states)


def test_the_two_ends_of_a_transfer_are_no_mismatch() -> None:
    hang_states = {0: still({}, call(PIPE, 4, "send 0->1")), 2: still({}, call(PIPE, 4, "recv 1<-0"))}
    assert not any(has_mismatch(one, hang_states) for one in graph_of(hang_states, PIPES).stuck)
