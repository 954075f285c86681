"""Counters of ranks that are heard of no more, raised to what their peers have completed."""

from dataclasses import replace

from rankscope.collector.detect.hang_state import add_progress_of_peers
from tests.unit.collector.detect.hang_states import (
    MOVES,
    WORLD,
    busy,
    call,
    dead,
    progress_of,
    silent,
    stall_of,
    still,
    stopped,
    waits,
)

OTHER = "mesh_tp/0-1"
GROUPS = {WORLD: (0, 1, 2), OTHER: (0, 1)}


def test_ranks_that_report_are_left_as_they_are() -> None:
    hang_states = {0: waits(), 1: still({WORLD: (5, 4)}), 2: dead(counters={WORLD: (3, 3)})}
    assert add_progress_of_peers(hang_states, GROUPS) is hang_states


def test_stopped_rank_has_entered_what_a_peer_completed() -> None:
    hang_states = {0: waits(), 1: stopped({WORLD: (5, 4)}), 2: waits(sequence=7)}
    raised = add_progress_of_peers(hang_states, GROUPS)
    # Rank 0 has completed the world's 7th, rank 2 its 6th; nobody has communicated in the other group.
    assert raised[1] == replace(hang_states[1], progress=progress_of({WORLD: (7, 7)}))
    assert (raised[0], raised[2]) == (hang_states[0], hang_states[2])


def test_rank_outside_collectives_has_left_what_a_peer_completed() -> None:
    # Seen with gloo on a busy machine: the loop of a script held Python's lock, and the last all-reduce stayed open.
    hang_states = {0: waits(sequence=9), 1: busy(counters={WORLD: (8, 7)}), 2: waits(sequence=9)}
    raised = add_progress_of_peers(hang_states, GROUPS)
    assert raised[1].progress == progress_of({WORLD: (8, 8)})
    assert raised[1].is_stalled
    in_it = replace(hang_states[1], stall=stall_of("other", (call(sequence=8),), samples=MOVES))
    unknown = replace(hang_states[1], stall=stall_of("other", samples=MOVES, absent={"pending": "no flight recorder"}))
    for state in (in_it, unknown, still({WORLD: (8, 7)})):
        assert add_progress_of_peers({**hang_states, 1: state}, GROUPS)[1] is state


def test_group_that_a_silent_rank_had_not_reported_is_added() -> None:
    hang_states = {0: still({WORLD: (7, 7), OTHER: (2, 1)}), 1: silent({WORLD: (9, 8)})}
    raised = add_progress_of_peers(hang_states, GROUPS)
    assert raised[1].progress == progress_of({WORLD: (9, 8), OTHER: (1, 1)})


def test_silent_rank_that_went_on_is_no_longer_stalled() -> None:
    hang_states = {0: waits(), 1: silent({WORLD: (7, 7)}, is_stalled=True), 2: silent({WORLD: (6, 5)}, is_stalled=True)}
    raised = add_progress_of_peers(hang_states, GROUPS)
    assert (raised[1].is_stalled, raised[2].is_stalled) == (True, False)
