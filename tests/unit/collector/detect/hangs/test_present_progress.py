"""Counters of ranks that are heard of no more, raised to what their peers have completed."""

from dataclasses import replace

from rankscope.collector.detect.hang_state import add_progress_of_peers
from tests.unit.collector.detect.hang_states import WORLD, dead, progress_of, silent, still, stopped, waits

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


def test_group_that_a_silent_rank_had_not_reported_is_added() -> None:
    hang_states = {0: still({WORLD: (7, 7), OTHER: (2, 1)}), 1: silent({WORLD: (9, 8)})}
    raised = add_progress_of_peers(hang_states, GROUPS)
    assert raised[1].progress == progress_of({WORLD: (9, 8), OTHER: (1, 1)})


def test_silent_rank_that_went_on_is_no_longer_stalled() -> None:
    hang_states = {0: waits(), 1: silent({WORLD: (7, 7)}, is_stalled=True), 2: silent({WORLD: (6, 5)}, is_stalled=True)}
    raised = add_progress_of_peers(hang_states, GROUPS)
    assert (raised[1].is_stalled, raised[2].is_stalled) == (True, False)
