"""Collect the changes that wait to be written to the store. Pure.

Newer states replace older ones, rows of the history accumulate, and both are bounded, however long writes fail.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from rankscope.collector.runs.rank import SavedRank
from rankscope.collector.runs.saved_runs import SavedRun, SavedStory
from rankscope.collector.runs.snapshot import Snapshot
from rankscope.collector.steps.collective_totals import CollectiveSums
from rankscope.collector.steps.step_aggregates import StepAggregate
from rankscope.collector.storage.rank_intervals import RankInterval

STEPS_WAITING_MAX: Final = 100_000
"""About 60 MB, a day of a run with a step a second; beyond it the oldest are dropped and counted."""
INTERVALS_WAITING_MAX: Final = 240
"""Four hours of one run; of 16,384 ranks 95 MB."""

FORGOTTEN_RUNS_MAX: Final = 1_000
"""Forgotten runs whose last state waits: three hours of a run that is started every 10 s."""
RANKS_WAITING_MAX: Final = 65_536
"""Ranks of all runs, about 130 MB; beyond it those of forgotten runs are dropped. Known runs have `ranks_max`."""

RankToWrite = SavedRank | Callable[[], SavedRank]
"""A saved rank, or what builds it."""


class WriteBatch:
    """Changes since the last write. For one thread at a time."""

    def __init__(self, steps_max: int = STEPS_WAITING_MAX, intervals_max: int = INTERVALS_WAITING_MAX) -> None:
        self._steps_max = steps_max
        self._intervals_max = intervals_max
        self.runs: dict[str, SavedRun] = {}
        self.stories: dict[str, SavedStory] = {}
        self.ranks: dict[tuple[str, int], tuple[int, RankToWrite]] = {}
        """By run and rank: the attempt, and the saved rank."""
        self.collectives: dict[str, CollectiveSums] = {}
        """By run: the collectives of all ranks in its present attempt."""
        self.steps: deque[tuple[str, StepAggregate]] = deque()
        self.intervals: deque[tuple[str, RankInterval]] = deque()
        self.forgotten: set[str] = set()
        """Runs that the collector has forgotten."""
        self.snapshot: Snapshot | None = None
        """The snapshot with the counters of these states."""
        self.dropped = 0
        """Dropped rows of the history, steps and intervals, and last states of forgotten runs."""

    def put_run(self, saved: SavedRun) -> None:
        """Replace the state of a run."""
        self.runs[saved.run] = saved
        self.forgotten.discard(saved.run)

    def forget(self, run: str) -> None:
        """Mark a run as forgotten; its last state is still written, as far as there is room."""
        self.forgotten.add(run)
        self._trim_runs()

    def add_step(self, run: str, step: StepAggregate) -> None:
        """Add a step to the history."""
        self.steps.append((run, step))
        self._trim()

    def add_interval(self, run: str, interval: RankInterval) -> None:
        """Add an interval of all ranks to the history."""
        self.intervals.append((run, interval))
        self._trim()

    def drop_rows(self) -> int:
        """Drop all rows of the history, and return how many there were."""
        count = len(self.steps) + len(self.intervals)
        self.steps.clear()
        self.intervals.clear()
        return count

    def merge_earlier(self, earlier: "WriteBatch") -> None:
        """Add an earlier batch that could not be written; changes in this one win."""
        self.forgotten |= earlier.forgotten - self.runs.keys()
        self.runs = {**earlier.runs, **self.runs}
        self.stories = {**earlier.stories, **self.stories}
        self.ranks = {**earlier.ranks, **self.ranks}
        self.collectives = {**earlier.collectives, **self.collectives}
        self.steps.extendleft(reversed(earlier.steps))
        self.intervals.extendleft(reversed(earlier.intervals))
        self.snapshot = self.snapshot or earlier.snapshot
        self._trim()
        self._trim_runs()

    def _trim_runs(self) -> None:
        """Drop the oldest forgotten runs beyond the limits: each start of a run adds one while writes fail."""
        forgotten = [run for run in self.runs if run in self.forgotten]
        while len(forgotten) > FORGOTTEN_RUNS_MAX or (forgotten and len(self.ranks) > RANKS_WAITING_MAX):
            oldest = forgotten.pop(0)
            del self.runs[oldest]
            self.stories.pop(oldest, None)
            self.collectives.pop(oldest, None)
            self.ranks = {key: rank for key, rank in self.ranks.items() if key[0] != oldest}
            self.dropped += 1

    def _trim(self) -> None:
        while len(self.steps) > self._steps_max:
            self.steps.popleft()
            self.dropped += 1
        while len(self.intervals) > self._intervals_max:
            self.intervals.popleft()
            self.dropped += 1
