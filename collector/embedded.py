"""Decide when a collector stops that rank 0 has started for its own run."""

import os
from collections.abc import Callable

from rankscope.collector.runs.snapshot import RunSnapshot, Snapshot
from rankscope.measure.clock import Clock
from rankscope.measure.units import s_to_ns

FLUSH_S = 0.3
"""Time after the last goodbye in which acknowledgements are still sent."""


class Lifetime:
    """The lifetime of an embedded collector: until every rank of the run has ended, or `linger_s` after its parent
    has.
    """

    def __init__(
        self, parent_pid: int, linger_s: float, clock: Clock, read_parent_pid: Callable[[], int] = os.getppid
    ) -> None:
        self._parent_pid = parent_pid
        self._read_parent_pid = read_parent_pid
        self._linger_ns = s_to_ns(linger_s)
        self._clock = clock
        self._ended_ns: int | None = None
        self._orphaned_ns: int | None = None

    def is_over(self, snapshot: Snapshot) -> bool:
        """Return whether to stop now. Call it at every tick."""
        now_ns = self._clock.monotonic_ns()
        own = [run for run in snapshot.runs if not run.is_awaited]  # others come from the store
        if self._ended_ns is None and own and all(_has_ended(run) for run in own):
            self._ended_ns = now_ns
        if self._orphaned_ns is None and self._read_parent_pid() != self._parent_pid:
            self._orphaned_ns = now_ns
        has_flushed = self._ended_ns is not None and now_ns - self._ended_ns >= s_to_ns(FLUSH_S)
        has_lingered = self._orphaned_ns is not None and now_ns - self._orphaned_ns >= self._linger_ns
        return has_flushed or has_lingered


def _has_ended(run: RunSnapshot) -> bool:
    return len(run.ranks) == run.world_size and all(rank.ended not in (None, "silent") for rank in run.ranks)
