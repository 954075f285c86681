"""Detects stalls of a rank and captures its stacks and pending collectives.

A rank is stalled after max(stall_s, 10 x the median step) without a hook event (batch, backward, optimizer step), or
START_UP_FACTOR x stall_s before the first step has ended. An evaluation has hook events too, as long as it fetches
batches.
Limits: a rank that works without hook events (text generation, an upload in a callback) counts as stalled; `activity`
shows what its main thread does, `samples` whether it works. A rank that fetches batches without training does not count
as stalled.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from rankscope.agent.captures.flight_dump import Pending
from rankscope.agent.captures.flight_recorder import FlightRecorder
from rankscope.agent.captures.stacks import Stacks, capture_stacks
from rankscope.agent.late_imports import LATE_IMPORTS
from rankscope.measure.median import find_median
from rankscope.measure.records import StepRecord
from rankscope.measure.stalls import GroupStatus, PendingCollective, Stall, is_transfer
from rankscope.measure.units import NS_PER_S

if TYPE_CHECKING:
    from rankscope.agent.captures.stall_samples import StallSampler

STEP_FACTOR: Final = 10
START_UP_FACTOR: Final = 10
"""A rendezvous of thousands of ranks takes minutes, and so may compiling."""
STEPS_KEPT: Final = 64
REFRESH_NS: Final = 60 * NS_PER_S
SAMPLES_MIN: Final = 2
"""Samples that a description needs: one does not show whether the rank works."""


class _LastDump(NamedTuple):
    """The last full dump: still valid while the progress of the groups does not change."""

    progress: tuple[GroupStatus, ...]
    pending: Pending
    absent: dict[str, str]
    at_host_ns: int


class StallWatch:
    """The stall detector of one rank, run once per report."""

    def __init__(
        self,
        stall_ns: int,
        recorder: FlightRecorder,
        *,
        capture: Callable[[], Stacks] = capture_stacks,
        read_wall_ns: Callable[[], int] = time.time_ns,
        refresh_ns: int = REFRESH_NS,
        sampler: "StallSampler | None" = None,
        find_transfer: Callable[[int], PendingCollective | None] = lambda _: None,
        waits_in_store: Callable[[], bool] = lambda: False,
    ) -> None:
        self._stall_ns = stall_ns
        self._recorder = recorder
        self._capture = capture
        self._read_wall_ns = read_wall_ns
        self._refresh_ns = refresh_ns
        self._sampler = sampler
        """None until nothing has happened for half a limit."""
        self._find_transfer = find_transfer
        self._waits_in_store = waits_in_store
        self._events = -1
        self._last_event_ns = 0
        self._durations_ns: deque[int] = deque(maxlen=STEPS_KEPT)
        self._stalls = 0
        self._last_dump: _LastDump | None = None
        self.last_step: int | None = None
        self.last_step_end_host_ns: int | None = None
        self.last: Stall | None = None
        """The last description of the present stall; None while there is none."""

    @property
    def stalled_since_host_ns(self) -> int | None:
        """Begin of the present stall by the host clock (ns), exact to one report interval; None while there is none."""
        return None if self.last is None else self.last.since_host_ns

    @property
    def limit_ns(self) -> int:
        """Time without a hook event after which the rank is stalled."""
        if not self._durations_ns:
            return self._stall_ns * START_UP_FACTOR
        return max(self._stall_ns, STEP_FACTOR * round(find_median(self._durations_ns)))

    def observe(self, now_ns: int, events: int, steps: Sequence[StepRecord]) -> Stall | None:
        """Update with the number of hook events so far and the steps that have ended since the last call.

        Return the stall to report if one has just begun, its description is due for a refresh, or the rank has begun or
        ceased to work meanwhile; else None.
        """
        for record in steps:
            self._durations_ns.append(record.duration_ns)
            self.last_step, self.last_step_end_host_ns = record.step, record.end_host_ns
        if events != self._events or steps:
            self._events, self._last_event_ns, self.last = events, now_ns, None
            if self._sampler is not None:
                self._sampler.clear()
            return None
        limit_ns = self.limit_ns if self.last is None else self.last.limit_ns
        quiet_ns = now_ns - self._last_event_ns
        if 2 * quiet_ns > limit_ns:
            self._find_sampler().add(now_ns, limit_ns)
        if self.last is None:
            if quiet_ns <= limit_ns or self._find_sampler().count < SAMPLES_MIN:
                return None
            self._stalls += 1
            self._last_dump = None
        elif not self._is_due(self.last, now_ns):
            return None
        self.last = self._describe(now_ns, limit_ns)
        return self.last

    def _find_sampler(self) -> "StallSampler":
        if self._sampler is None:
            with LATE_IMPORTS:
                from rankscope.agent.captures.stall_samples import StallSampler  # noqa: PLC0415 - few ranks stall

            self._sampler = StallSampler()
        return self._sampler

    def _is_due(self, last: Stall, now_ns: int) -> bool:
        """Return whether to describe a stall again; because of its work at most once in a limit."""
        age_ns = now_ns - last.taken_host_ns
        if age_ns >= self._refresh_ns:
            return True
        if age_ns <= last.limit_ns:
            return False
        present = msgspec.structs.replace(last, samples=self._find_sampler().summarize())
        return present.is_busy is not last.is_busy

    def _describe(self, now_ns: int, limit_ns: int) -> Stall:
        absent: dict[str, str] = {}
        pending = self._read_pending(now_ns, absent)
        stacks = self._capture()
        transfer = self._find_transfer(now_ns - self._last_event_ns)
        if transfer is not None and not any(is_transfer(one) for one in pending.collectives):
            pending = Pending((*pending.collectives, transfer), pending.left_out)
        # A wait for an isend or irecv, or in the store, is a method in C: its innermost frame may be one of the script.
        activity = stacks.activity if transfer is None else "collective"
        if activity == "other" and self._waits_in_store():
            activity = "store"
        return Stall(
            number=self._stalls,
            since_host_ns=self._last_event_ns,
            taken_host_ns=now_ns,
            limit_ns=limit_ns,
            activity=activity,
            last_step=self.last_step,
            stacks=stacks.threads,
            threads_left_out=stacks.left_out,
            pending=pending.collectives,
            pending_left_out=pending.left_out,
            absent=absent,
            samples=self._find_sampler().summarize(),
        )

    def _read_pending(self, now_ns: int, absent: dict[str, str]) -> Pending:
        """Return the pending collectives from a full dump, or the last one with ages updated if nothing progressed."""
        progress = self._recorder.read_progress()
        last = self._last_dump
        if last is not None and last.progress == progress:
            absent.update(last.absent)
            return _add_age(last.pending, now_ns - last.at_host_ns)
        pending = self._recorder.read_pending(self._read_wall_ns(), absent)
        self._last_dump = _LastDump(progress, pending, dict(absent), now_ns)
        return pending


def _add_age(pending: Pending, by_ns: int) -> Pending:
    def older(one: PendingCollective) -> PendingCollective:
        return msgspec.structs.replace(one, age_ns=one.age_ns + by_ns)

    return Pending(tuple(older(one) for one in pending.collectives), pending.left_out)
