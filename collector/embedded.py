"""How long a collector lives that rank 0 has started for its own run."""

import os
from collections.abc import Callable

from rankscope.collector.runs.snapshot import RunSnapshot, Snapshot
from rankscope.measure.clock import Clock
from rankscope.measure.units import s_to_ns

FAREWELL_S = 0.3
"""After the last goodbye the acknowledgements still have to leave."""


class Lifetime:
    """Over once every rank of the run has ended, or some time after the process is gone that started it."""

    def __init__(
        self, parent_pid: int, linger_s: float, clock: Clock, read_parent_pid: Callable[[], int] = os.getppid
    ) -> None:
        self._parent_pid = parent_pid
        self._read_parent_pid = read_parent_pid
        self._linger_ns = s_to_ns(linger_s)
        self._clock = clock
        self._ended_ns: int | None = None
        self._orphan_ns: int | None = None

    def is_over(self, snapshot: Snapshot) -> bool:
        """Whether to stop now. Asked at every tick."""
        now_ns = self._clock.monotonic_ns()
        own = [run for run in snapshot.runs if not run.is_awaited]  # others are an earlier collector's, from its store
        if self._ended_ns is None and own and all(_has_ended(run) for run in own):
            self._ended_ns = now_ns
        if self._orphan_ns is None and self._read_parent_pid() != self._parent_pid:
            self._orphan_ns = now_ns
        farewell_over = self._ended_ns is not None and now_ns - self._ended_ns >= s_to_ns(FAREWELL_S)
        lingered = self._orphan_ns is not None and now_ns - self._orphan_ns >= self._linger_ns
        return farewell_over or lingered


def _has_ended(run: RunSnapshot) -> bool:
    return len(run.ranks) == run.world_size and all(rank.ended not in (None, "silent") for rank in run.ranks)
