"""Find what has changed in a run since it was last handed to the store: state, story, ranks, collectives, new steps."""

import heapq
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from rankscope.collector.runs.clock_alignment import Clocks
from rankscope.collector.runs.run import RunState
from rankscope.collector.runs.saved_runs import SavedRun, SavedStory, collect_finished_steps, save_run
from rankscope.collector.steps.collective_totals import CollectiveSums
from rankscope.collector.steps.step_aggregates import StepAggregate
from rankscope.collector.storage.write_batch import RankToWrite, WriteBatch

REFRESH_S: Final = 30.0
"""Age at which the totals of a rank are saved again, where neither its counters nor the collectives of its run have
changed."""
REFRESHED_MAX: Final = 512
"""Most ranks of a run whose totals are refreshed in one tick, the oldest first: /metrics waits for the write."""


class _Saved(NamedTuple):
    """Counters of a rank when it was saved, and how many steps of its run had counted collectives then."""

    counters: tuple[object, ...]
    at_wall_s: float
    steps: int


class Changes(NamedTuple):
    """Changes of one run: its state, story, ranks and history. `known` is in the store once they are written."""

    saved: SavedRun
    story: SavedStory
    ranks: Mapping[tuple[str, int], tuple[int, RankToWrite]]
    collectives: CollectiveSums
    known: Mapping[tuple[str, int], _Saved]
    steps: Sequence[StepAggregate]


class RunChanges:
    """The changes of all runs. `find` and `put` are called in turn for each run."""

    def __init__(self) -> None:
        self._saved: dict[tuple[str, int], _Saved] = {}
        self._stories: dict[str, SavedStory] = {}
        #: By run: the attempt whose collectives were put last, and how many steps were counted then.
        self._collectives: dict[str, tuple[int, int]] = {}

    def find(self, state: RunState, clocks: Clocks, *, is_last: bool) -> "Changes | None":
        """Return what has changed in a run since the last call; None while it has nothing to save."""
        run, steps = state.run, collect_finished_steps(state, clocks.wall_s)
        to_save = save_run(state, clocks)
        if to_save is None:
            return None
        saved_ranks, known, old = {}, {}, []
        ranks, collectives = to_save.ranks, to_save.collectives
        changed = []
        for number, rank in ranks.items():
            before = self._saved.get((run, number))
            if is_last or before is None or before.counters != rank.counters:
                changed.append(number)
            elif before.steps != collectives.steps or self._is_old(before, clocks.wall_s):
                old.append((before.at_wall_s, number))
        changed += [number for _, number in heapq.nsmallest(REFRESHED_MAX, old)]
        for number in changed:
            saved_ranks[run, number] = to_save.run.attempt, to_save.save_rank(number, clocks)
            known[run, number] = _Saved(ranks[number].counters, clocks.wall_s, collectives.steps)
        return Changes(to_save.run, to_save.story, saved_ranks, collectives, known, steps)

    def put(self, changes: "Changes", pending: WriteBatch) -> None:
        """Add changes to a batch, which will be written."""
        run = changes.saved.run
        pending.put_run(changes.saved)
        if self._stories.get(run) != changes.story:
            pending.stories[run] = self._stories[run] = changes.story
        counted = changes.saved.attempt, changes.collectives.steps
        if self._collectives.get(run) != counted:
            pending.collectives[run], self._collectives[run] = changes.collectives, counted
        pending.ranks.update(changes.ranks)
        self._saved.update(changes.known)
        for step in changes.steps:
            pending.add_step(run, step)

    def forget(self, run: str) -> None:
        """Forget a run."""
        self._stories.pop(run, None)
        self._collectives.pop(run, None)
        self._saved = {key: saved for key, saved in self._saved.items() if key[0] != run}

    def _is_old(self, saved: _Saved, wall_s: float) -> bool:
        # A wall clock that was set back must not delay it.
        return not 0.0 <= wall_s - saved.at_wall_s < REFRESH_S
