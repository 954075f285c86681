"""Observes one rank for hangs: progress of its process groups, stalls, and the heartbeat for its sidecar.

The agent thread runs it once per report. Errors here are counted and affect nothing else.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from rankscope.agent.captures.flight_recorder import FlightRecorder
from rankscope.agent.captures.stalls import StallWatch
from rankscope.agent.collector_address import CollectorAddress
from rankscope.agent.config import OFF, AgentConfig
from rankscope.agent.guard import Guard
from rankscope.agent.late_imports import LATE_IMPORTS
from rankscope.agent.own_thread import OwnThread
from rankscope.agent.sidecar.beacon import Heartbeat, RecorderPlace
from rankscope.agent.sidecar.link import SidecarLink
from rankscope.agent.sidecar.ras_address import find_ras_address
from rankscope.agent.steps.graph_captures import GraphCaptures
from rankscope.measure.clock import Clock
from rankscope.measure.identity import RankIdentity
from rankscope.measure.records import GroupInfo, StepRecord
from rankscope.measure.stalls import GroupStatus, Stall, find_deadline
from rankscope.measure.units import NS_PER_S, s_to_ns

STALLS = "stall_watch"
SIDECAR = "sidecar"
FROZEN_NS_MAX = 10 * NS_PER_S
"""Below the collector's `rank_silent_s`, so that the sidecar's notice arrives before the rank counts as silent."""
PROGRESS_NS = 4 * NS_PER_S
"""Interval of reading the progress of groups while training advances (0.1 ms each); without hook events it is read for
every report."""
FROZEN_INTERVALS = 5
"""Report intervals without heartbeat before the rank counts as frozen: analyzing a large window takes seconds."""


class Observation(NamedTuple):
    """The progress and stall of a rank, for one report."""

    progress: tuple[GroupStatus, ...] = ()
    stalled_since_host_ns: int | None = None
    stall: Stall | None = None


class Watchdog:
    """The watchdog of one rank.

    `find_groups` returns the process groups by torch's name, cheaply; `count_events` the number of hook events so far,
    None when the hooks are switched off: then stalls cannot be detected.
    """

    def __init__(
        self,
        config: AgentConfig,
        identity: RankIdentity,
        guard: Guard,
        clock: Clock,
        *,
        find_groups: Callable[[], Mapping[str, GroupInfo]],
        count_events: Callable[[], int | None],
        captures: GraphCaptures,
        recorder: FlightRecorder | None = None,
    ) -> None:
        self._guard = guard
        self._clock = clock
        self._find_groups = find_groups
        self._count_events = count_events
        self._recorder = recorder or FlightRecorder(find_groups, captures)
        self._stalls = StallWatch(
            s_to_ns(config.stall_s),
            self._recorder,
            read_wall_ns=clock.wall_ns,
            find_transfer=lambda age_ns: self._recorder.find_transfer(identity.rank, age_ns),
            waits_in_store=self._waits_in_store,
        )
        self._events: int | None = None
        self._progress: tuple[GroupStatus, ...] = ()
        self._progress_due_ns = 0
        self._groups_written: Mapping[str, GroupInfo] | None = None
        self._is_heartbeat_stopped = False
        self._link: SidecarLink | None = None
        if config.sidecar:
            frozen_ns = max(
                min(s_to_ns(config.stall_s), FROZEN_NS_MAX), FROZEN_INTERVALS * s_to_ns(config.report_interval_s)
            )
            self._link = SidecarLink(
                identity,
                os.environ,
                frozen_after_ns=frozen_ns,
                ras_address="" if config.nccl_ras == OFF else find_ras_address(os.environ),
            )

    def start(self) -> None:
        """Start the sidecar, on a thread of its own."""
        if self._link is not None:
            with self._contained(SIDECAR):
                OwnThread(target=self._open_link, name="rankscope-sidecar", daemon=True).start()

    def set_collector(self, address: CollectorAddress) -> None:
        """Pass the collector's address to the sidecar."""
        if self._link is not None:
            with self._contained(SIDECAR):
                self._link.update(endpoint=address.endpoint, keys=address.keys)

    def set_spill_folder(self, folder: str) -> None:
        """Pass the folder of spilled reports to the sidecar; cheap if it has not changed."""
        if self._link is not None:
            with self._contained(SIDECAR):
                self._link.update(spill_folder=folder)

    @property
    def recorder_place(self) -> RecorderPlace | None:
        """Where dumps of the flight recorder are left for the sidecar; None without one."""
        return None if self._link is None else self._link.recorder_place

    def observe(self, now_ns: int, steps: Sequence[StepRecord]) -> Observation:
        """Return progress and stalls for a report, and write a heartbeat. `steps` have ended since the last call."""
        found = Observation()
        if not self._guard.is_off(STALLS):
            with self._contained(STALLS):
                found = self._observe_progress(now_ns, steps)
        if self._link is not None and not self._guard.is_off(SIDECAR):
            with self._contained(SIDECAR):
                self._write_heartbeat(self._link, now_ns)
        elif self._link is not None and not self._is_heartbeat_stopped:
            self._is_heartbeat_stopped = True
            with self._contained(SIDECAR):  # else the sidecar would consider the rank frozen
                self._link.stop_heartbeat()
        return found

    def stop(self, exit_code: int | None, *, is_acknowledged: bool) -> None:
        """Record the end of the agent for the sidecar.

        `is_acknowledged`: the collector has acknowledged the goodbye with this exit code.
        """
        if self._link is not None:
            with self._contained(SIDECAR):
                self._link.end(exit_code, is_acknowledged=is_acknowledged)

    def _observe_progress(self, now_ns: int, steps: Sequence[StepRecord]) -> Observation:
        events = self._count_events()
        stall = None if events is None else self._stalls.observe(now_ns, events, steps)
        if events == self._events or now_ns >= self._progress_due_ns:
            self._progress, self._progress_due_ns = self._recorder.read_progress(), now_ns + PROGRESS_NS
        self._events = events
        return Observation(self._progress, self._stalls.stalled_since_host_ns, stall)

    def _waits_in_store(self) -> bool:
        place = self.recorder_place
        if place is None or not place.socket_path:
            return False
        with LATE_IMPORTS:
            from rankscope.agent.sidecar.store_wait import waits_in_store  # noqa: PLC0415 - few ranks stall

        return waits_in_store(place.socket_path)

    def _write_heartbeat(self, link: SidecarLink, now_ns: int) -> None:
        groups = self._find_groups()
        if groups != self._groups_written:  # fast for identical objects, the usual case
            link.update(group_labels={name: group.label for name, group in groups.items()})
            self._groups_written = groups
        stall = self._stalls.last
        deadline_ns = None if stall is None else find_deadline(stall.pending, stall.taken_host_ns)
        link.write_heartbeat(Heartbeat(now_ns, self._stalls.last_step, self._stalls.stalled_since_host_ns, deadline_ns))

    def _open_link(self) -> None:
        if self._link is not None:
            with self._contained(SIDECAR):
                self._link.open(self._clock.monotonic_ns())

    @contextlib.contextmanager
    def _contained(self, part: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - no error of the agent may reach the training script
            self._guard.record(part, error)
