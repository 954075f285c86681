"""Bring the counters of ranks that no longer speak for themselves up to what their peers show. Pure.

The last report of a silent or stopped rank is some seconds older than the moment in which it stopped: in a training
that communicates most of the time it fell into a collective that all have left since. What a member of a group has
completed, every member has entered.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rankscope.collector.detect.hang_state import RankHangState
from rankscope.measure.stalls import GroupStatus


def add_progress_of_peers(
    hang_states: Mapping[int, RankHangState], groups: Mapping[str, Sequence[int]]
) -> Mapping[int, RankHangState]:
    """Return the states with the counters of ranks that are heard of no more at least those that their peers show.

    A silent rank whose peers have completed more than it had is no longer where its last report saw it stalled.
    """
    outdated = {rank for rank, state in hang_states.items() if state.has_old_counters}
    if not outdated:
        return hang_states
    shown: dict[int, dict[str, int]] = {rank: {} for rank in outdated}
    for group, members in groups.items():
        if here := outdated.intersection(members):
            completed = max(hang_states[one].completed_in(group) for one in members if one in hang_states)
            for rank in here:
                shown[rank][group] = completed
    return {rank: _raise(state, shown[rank]) if rank in outdated else state for rank, state in hang_states.items()}


def _raise(state: RankHangState, completed_of_peers: Mapping[str, int]) -> RankHangState:
    ahead = {group: last for group, last in completed_of_peers.items() if last > state.completed_in(group)}
    if not ahead:
        return state
    known = {status.group: status for status in state.progress}
    for group, last in ahead.items():
        status = known.get(group, GroupStatus(group=group))
        known[group] = GroupStatus(
            group=group, enqueued=max(status.enqueued or 0, last), started=status.started, completed=last
        )
    is_stalled = False if state.is_silent else state.is_stalled
    return replace(state, progress=tuple(known.values()), is_stalled=is_stalled)
