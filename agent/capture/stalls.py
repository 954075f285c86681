"""When a rank counts as stalled, and what is written down then.

The hooks see the moments of training: a batch, a backward, an optimizer step. A rank is stalled when none has come for
longer than max(stall_s, 10 x the median step), and longer by START_UP_FACTOR before the first step has ended. This
holds in evaluations too, as long as they fetch batches. Not known here: whether a rank that goes on without moments
(text generation, a callback that uploads) is hung or at work; `activity` says what its main thread is in. Nor is a rank
called stalled that fetches batches for ever and trains on none.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from rankscope.agent.capture.flight_dump import Pending
from rankscope.agent.capture.flight_recorder import FlightRecorder
from rankscope.agent.capture.stacks import Stacks, capture_stacks
from rankscope.measure.records import StepRecord
from rankscope.measure.stalls import GroupStatus, PendingCollective, Stall
from rankscope.measure.units import NS_PER_S

STEP_FACTOR: Final = 10
START_UP_FACTOR: Final = 10
"""Importing torch._dynamo alone has taken 6 s, a rendezvous over thousands of ranks takes minutes."""
STEPS_KEPT: Final = 64
REFRESH_NS: Final = 60 * NS_PER_S


class _Seen(NamedTuple):
    """What was pending when, and how far the groups were then: while they stay there, it still is."""

    progress: tuple[GroupStatus, ...]
    pending: Pending
    absent: dict[str, str]
    at_host_ns: int


class StallWatch:
    """Looked at once a report. `stalled_since_host_ns` is None while the rank is not stalled."""

    def __init__(
        self,
        stall_ns: int,
        recorder: FlightRecorder,
        *,
        take: Callable[[], Stacks] = capture_stacks,
        read_wall_ns: Callable[[], int] = time.time_ns,
        refresh_ns: int = REFRESH_NS,
    ) -> None:
        self._stall_ns = stall_ns
        self._recorder = recorder
        self._take = take
        self._read_wall_ns = read_wall_ns
        self._refresh_ns = refresh_ns
        self._moments = -1
        self._moved_ns = 0
        self._durations_ns: deque[int] = deque(maxlen=STEPS_KEPT)
        self._stalls = 0
        self._seen: _Seen | None = None
        self.last_step: int | None = None
        self.last_step_end_host_ns: int | None = None
        self.last: Stall | None = None
        """What was written down last in the stall that goes on; None while there is none."""

    @property
    def stalled_since_host_ns(self) -> int | None:
        """Since when the rank is stalled, to one report interval."""
        return None if self.last is None else self.last.since_host_ns

    @property
    def limit_ns(self) -> int:
        """How long nothing may happen before it is called a stall."""
        if not self._durations_ns:
            return self._stall_ns * START_UP_FACTOR
        from statistics import median  # noqa: PLC0415 - imported by the agent's thread, not at the start of training

        return max(self._stall_ns, STEP_FACTOR * round(median(self._durations_ns)))

    def look(self, now_ns: int, moments: int, steps: Sequence[StepRecord]) -> Stall | None:
        """Take in how many moments the hooks have seen, and the steps that have ended since the last look.

        Returns what is to be reported: a stall that has just begun, or that has gone on for long; None otherwise.
        """
        for record in steps:
            self._durations_ns.append(record.duration_ns)
            self.last_step, self.last_step_end_host_ns = record.step, record.end_host_ns
        if moments != self._moments or steps:
            self._moments, self._moved_ns, self.last = moments, now_ns, None
            return None
        if self.last is None:
            limit_ns = self.limit_ns
            if now_ns - self._moved_ns <= limit_ns:
                return None
            self._stalls += 1
            self._seen = None
            self.last = self._describe(now_ns, limit_ns)
            return self.last
        if now_ns - self.last.taken_host_ns >= self._refresh_ns:
            self.last = self._describe(now_ns, self.last.limit_ns)
            return self.last
        return None

    def _describe(self, now_ns: int, limit_ns: int) -> Stall:
        absent: dict[str, str] = {}
        pending = self._read_pending(now_ns, absent)
        stacks = self._take()
        return Stall(
            number=self._stalls,
            since_host_ns=self._moved_ns,
            taken_host_ns=now_ns,
            limit_ns=limit_ns,
            activity=stacks.activity,
            last_step=self.last_step,
            stacks=stacks.threads,
            threads_left_out=stacks.left_out,
            pending=pending.collectives,
            pending_left_out=pending.left_out,
            absent=absent,
        )

    def _read_pending(self, now_ns: int, absent: dict[str, str]) -> Pending:
        """From the whole recorder, once a stall unless the groups move; later looks only let it grow older."""
        progress = self._recorder.read_progress()
        seen = self._seen
        if seen is not None and seen.progress == progress:
            absent.update(seen.absent)
            return _grown_older(seen.pending, now_ns - seen.at_host_ns)
        pending = self._recorder.read_pending(self._read_wall_ns(), absent)
        self._seen = _Seen(progress, pending, dict(absent), now_ns)
        return pending


def _grown_older(pending: Pending, by_ns: int) -> Pending:
    def older(one: PendingCollective) -> PendingCollective:
        return msgspec.structs.replace(one, age_ns=one.age_ns + by_ns)

    return Pending(tuple(older(one) for one in pending.collectives), pending.left_out)
