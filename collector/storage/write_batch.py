"""What waits to be written to the store. Pure: states take the place of older ones, lines of the history add up, and
both are bounded, however long nothing can be written.
"""

from collections import deque
from typing import Final

from rankscope.collector.runs.checkpoint import LazySavedRank, SavedRank, SavedRun, SavedStory
from rankscope.collector.runs.snapshot import Snapshot
from rankscope.collector.steps.collective_totals import CollectiveSums
from rankscope.collector.steps.step_aggregates import StepAggregate
from rankscope.collector.storage.rank_intervals import RankInterval

STEPS_WAITING_MAX: Final = 100_000
"""About 60 MB, and a day of a run with a step a second; beyond that the oldest give way and are counted."""
INTERVALS_WAITING_MAX: Final = 240
"""Four hours of one run; of 16,384 ranks 95 MB."""

FORGOTTEN_RUNS_MAX: Final = 1_000
"""Runs that are over and no longer known, whose last state waits: three hours of a job that is started every 10 s."""
LIVES_WAITING_MAX: Final = 65_536
"""Lives of all runs, some 130 MB; beyond that those of forgotten runs give way. Of runs that are known `ranks_max`."""


class Batch:
    """Everything that has changed since it was last written. Of one thread at a time."""

    def __init__(self, steps_max: int = STEPS_WAITING_MAX, intervals_max: int = INTERVALS_WAITING_MAX) -> None:
        self._steps_max = steps_max
        self._intervals_max = intervals_max
        self.runs: dict[str, SavedRun] = {}
        self.stories: dict[str, SavedStory] = {}
        self.ranks: dict[tuple[str, int], tuple[int, SavedRank | LazySavedRank]] = {}
        """By run and rank: the attempt, and the life in it, or what it is made from when it is written."""
        self.collectives: dict[str, CollectiveSums] = {}
        """Of all ranks of a run's present attempt."""
        self.steps: deque[tuple[str, StepAggregate]] = deque()
        self.intervals: deque[tuple[str, RankInterval]] = deque()
        self.forgotten: set[str] = set()
        """Runs that the collector no longer knows."""
        self.snapshot: Snapshot | None = None
        """The picture whose counters these states hold."""
        self.dropped = 0
        """What gave way: lines of the history, steps and intervals, and the last states of forgotten runs."""

    def put_run(self, saved: SavedRun) -> None:
        """A run as it is now."""
        self.runs[saved.run] = saved
        self.forgotten.discard(saved.run)

    def forget(self, run: str) -> None:
        """A run is no longer known; what it was last stays to be written, as far as there is room."""
        self.forgotten.add(run)
        self._trim_runs()

    def add_step(self, run: str, step: StepAggregate) -> None:
        """One more line of the history."""
        self.steps.append((run, step))
        self._trim()

    def add_interval(self, run: str, interval: RankInterval) -> None:
        """One more stretch of all ranks."""
        self.intervals.append((run, interval))
        self._trim()

    def drop_lines(self) -> int:
        """Let go of all lines of the history, and return how many there were."""
        count = len(self.steps) + len(self.intervals)
        self.steps.clear()
        self.intervals.clear()
        return count

    def take_back(self, earlier: "Batch") -> None:
        """A batch that could not be written, before this one was begun: what has changed since counts."""
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
        """Each start of a name is another run: while nothing can be written their number is not that of the names."""
        forgotten = [run for run in self.runs if run in self.forgotten]
        while len(forgotten) > FORGOTTEN_RUNS_MAX or (forgotten and len(self.ranks) > LIVES_WAITING_MAX):
            oldest = forgotten.pop(0)
            del self.runs[oldest]
            self.stories.pop(oldest, None)
            self.collectives.pop(oldest, None)
            self.ranks = {key: life for key, life in self.ranks.items() if key[0] != oldest}
            self.dropped += 1

    def _trim(self) -> None:
        while len(self.steps) > self._steps_max:
            self.steps.popleft()
            self.dropped += 1
        while len(self.intervals) > self._intervals_max:
            self.intervals.popleft()
            self.dropped += 1
