"""Keep the checkpoints of a run: the time of its ranks in the phase `checkpoint`. Pure.

The agent finds saves (`agent/steps/saves.py`), a script marks them by `rankscope.phase("checkpoint")`, or a framework's
callback does. All ranks that save in one step make
one checkpoint. A script may enter the phase in every step and save in a few: less than MARKED_MIN_NS is no checkpoint.
"""

from bisect import bisect_left
from typing import Final

import msgspec
import numpy as np

from rankscope.collector.invariants import require
from rankscope.collector.runs.report_fields import ReportFields
from rankscope.measure.records import CHECKPOINT, PHASE_PREFIX
from rankscope.measure.units import NS_PER_MS, ns_to_s

COLUMN: Final = PHASE_PREFIX + CHECKPOINT
KEPT_MAX: Final = 64
"""Checkpoints that are listed, the latest: of one each half hour those of a day and more; 5 KB in the store."""
MARKED_MIN_NS: Final = NS_PER_MS
"""A call that decides not to save takes microseconds; torch.save of one small layer took 4 ms."""

NS_MAX: Final = 2**62
"""Bound of durations and their sum, so that they can be encoded, whatever a rank has sent."""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint. `step` of `attempt` holds its time; it ended at `wall_s` (seconds since 1970, by the collector's
    clock). `duration_ns` is the longest time that a rank spent in the phase in that step, `rank` that rank.
    """

    attempt: int
    step: int
    wall_s: float
    duration_ns: int
    rank: int


class Checkpoints(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoints of a run: how many were seen, the sum of their durations, and the latest, at most KEPT_MAX, in
    the order of their steps. `count` 0: none was found, which does not say that there are none.
    """

    count: int = 0
    duration_ns: int = 0
    latest: tuple[Checkpoint, ...] = ()


NO_CHECKPOINTS: Final = Checkpoints()


class RunCheckpoints:
    """The checkpoints of one run, over its attempts. Written by Attempt only."""

    def __init__(self) -> None:
        #: The present attempt, counted from 0.
        self.attempt = 0
        #: All of them. Replaced at each change.
        self.seen = NO_CHECKPOINTS

    def begin_attempt(self) -> None:
        """Begin another attempt, in which steps count from 0 again."""
        self.attempt += 1

    def restore(self, attempt: int, seen: Checkpoints) -> None:
        """Set what an earlier collector has saved."""
        self.attempt, self.seen = attempt, seen

    def record(self, rank: int, report: ReportFields, now_wall_s: float) -> None:
        """Record the checkpoints in the steps of a report that arrives now, as if it had been made just now."""
        table = report.steps
        if COLUMN not in table.names:
            return
        spent_ns = table.column(COLUMN)
        steps, ends_host_ns = table.column("step"), table.column("start_host_ns") + table.column("duration_ns")
        rows = np.flatnonzero((spent_ns >= MARKED_MIN_NS) & (steps >= 0))
        for row in rows.tolist():
            age_ns = max(0, report.host_ns - int(ends_host_ns[row]))
            self._add(
                Checkpoint(
                    attempt=self.attempt,
                    step=int(steps[row]),
                    wall_s=now_wall_s - ns_to_s(age_ns),
                    duration_ns=min(NS_MAX, int(spent_ns[row])),
                    rank=rank,
                )
            )

    def _add(self, one: Checkpoint) -> None:
        """Add what one rank has marked in a step; a step before those that are listed has been counted."""
        seen = self.seen
        keys = [(each.attempt, each.step) for each in seen.latest]
        place = bisect_left(keys, (one.attempt, one.step))
        if keys[place : place + 1] == [(one.attempt, one.step)]:
            known = seen.latest[place]
            joined = _join(known, one)
            if joined == known:
                return
            latest = (*seen.latest[:place], joined, *seen.latest[place + 1 :])
            added, added_ns = 0, joined.duration_ns - known.duration_ns
        elif place == 0 and seen.count > len(seen.latest):
            return
        else:
            latest = (*seen.latest[:place], one, *seen.latest[place:])[-KEPT_MAX:]
            added, added_ns = 1, one.duration_ns
        total_ns = min(NS_MAX, seen.duration_ns + added_ns)
        self.seen = Checkpoints(count=seen.count + added, duration_ns=total_ns, latest=latest)

    def validate(self) -> None:
        """Raise InvariantError where an invariant does not hold; tests call it after events."""
        keys = [(one.attempt, one.step) for one in self.seen.latest]
        require(keys == sorted(set(keys)), "checkpoints are not in order, or there twice")
        require(len(keys) <= min(KEPT_MAX, self.seen.count), "more checkpoints are listed than were counted")
        require(all(attempt <= self.attempt for attempt, _ in keys), "a checkpoint of an attempt to come")


def _join(known: Checkpoint, other: Checkpoint) -> Checkpoint:
    """Return the checkpoint with what another rank has marked in the same step."""
    longest = max(known, other, key=lambda one: (one.duration_ns, -one.rank))
    return msgspec.structs.replace(longest, wall_s=min(known.wall_s, other.wall_s))
