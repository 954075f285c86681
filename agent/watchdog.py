"""Keeps watch over one rank: how far its process groups are, whether it is stalled, and the beacon for its sidecar.

The agent thread looks once a report. What fails here is counted and costs nothing else.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from rankscope.agent.capture.flight_recorder import FlightRecorder
from rankscope.agent.capture.stalls import StallWatch
from rankscope.agent.collector_address import CollectorAddress
from rankscope.agent.config import AgentConfig
from rankscope.agent.guard import Guard
from rankscope.agent.sidecar.beacon import Heartbeat
from rankscope.agent.sidecar.link import SidecarLink
from rankscope.agent.steps.graph_captures import GraphCaptures
from rankscope.measure.clock import Clock
from rankscope.measure.identity import RankIdentity
from rankscope.measure.records import GroupInfo, StepRecord
from rankscope.measure.stalls import GroupStatus, Stall, find_deadline
from rankscope.measure.units import NS_PER_S, s_to_ns

STALLS = "stall_watch"
SIDECAR = "sidecar"
FROZEN_NS_MAX = 10 * NS_PER_S
"""Below the collector's `rank_silent_s`, so that it hears from the sidecar before it takes the rank for gone."""
PROGRESS_NS = 4 * NS_PER_S
"""How old the progress of groups may be while training moves: whoever stands still is asked at each look, and to ask
takes 0.1 ms amid training."""
FROZEN_INTERVALS = 5
"""Reports that may be late before the interpreter counts as held: reading a large window takes seconds."""


class Look(NamedTuple):
    """What a look gives a report."""

    progress: tuple[GroupStatus, ...] = ()
    stalled_since_host_ns: int | None = None
    stall: Stall | None = None


class Watchdog:
    """`find_groups` gives the process groups by torch's own name, and is cheap; `read_moments` how many moments the
    hooks have seen, None when they are switched off: then nobody knows whether anything moves.
    """

    def __init__(
        self,
        config: AgentConfig,
        identity: RankIdentity,
        guard: Guard,
        clock: Clock,
        *,
        find_groups: Callable[[], Mapping[str, GroupInfo]],
        read_moments: Callable[[], int | None],
        captures: GraphCaptures,
        recorder: FlightRecorder | None = None,
    ) -> None:
        self._guard = guard
        self._clock = clock
        self._find_groups = find_groups
        self._read_moments = read_moments
        self._recorder = recorder or FlightRecorder(find_groups, captures)
        self._stalls = StallWatch(s_to_ns(config.stall_s), self._recorder, read_wall_ns=clock.wall_ns)
        self._moments: int | None = None
        self._progress: tuple[GroupStatus, ...] = ()
        self._progress_due_ns = 0
        self._groups_told: Mapping[str, GroupInfo] | None = None
        self._has_stopped_beating = False
        self._link: SidecarLink | None = None
        if config.sidecar:
            frozen_ns = max(
                min(s_to_ns(config.stall_s), FROZEN_NS_MAX), FROZEN_INTERVALS * s_to_ns(config.report_interval_s)
            )
            self._link = SidecarLink(identity, os.environ, frozen_after_ns=frozen_ns, crash_stacks=config.crash_stacks)

    def start(self) -> None:
        """Begin. The sidecar is started beside training."""
        if self._link is not None:
            threading.Thread(target=self._open_link, name="rankscope-sidecar", daemon=True).start()

    def set_collector(self, address: CollectorAddress) -> None:
        """The collector has been found."""
        if self._link is not None:
            with self._contained(SIDECAR):
                self._link.tell(endpoint=address.endpoint, keys=address.keys)

    def set_spill_folder(self, folder: str) -> None:
        """The reports are on the disk as well, in that folder. To say so again costs next to nothing."""
        if self._link is not None:
            with self._contained(SIDECAR):
                self._link.tell(spill_folder=folder)

    def look(self, now_ns: int, steps: Sequence[StepRecord]) -> Look:
        """What there is to report, and a heartbeat. `steps` are those that have ended since the last look."""
        found = Look()
        if not self._guard.is_off(STALLS):
            with self._contained(STALLS):
                found = self._look_for_stalls(now_ns, steps)
        if self._link is not None and not self._guard.is_off(SIDECAR):
            with self._contained(SIDECAR):
                self._beat(self._link, now_ns)
        elif self._link is not None and not self._has_stopped_beating:
            self._has_stopped_beating = True
            with self._contained(SIDECAR):  # else the sidecar would take the rank for frozen
                self._link.stop_heartbeat()
        return found

    def stop(self, exit_code: int | None, *, is_acknowledged: bool) -> None:
        """The agent ends; `is_acknowledged`: the collector has acknowledged the goodbye with this exit code."""
        if self._link is not None:
            with self._contained(SIDECAR):
                self._link.say_goodbye(exit_code, is_acknowledged=is_acknowledged)

    def _look_for_stalls(self, now_ns: int, steps: Sequence[StepRecord]) -> Look:
        moments = self._read_moments()
        stall = None if moments is None else self._stalls.look(now_ns, moments, steps)
        if moments == self._moments or now_ns >= self._progress_due_ns:
            self._progress, self._progress_due_ns = self._recorder.read_progress(), now_ns + PROGRESS_NS
        self._moments = moments
        return Look(self._progress, self._stalls.stalled_since_host_ns, stall)

    def _beat(self, link: SidecarLink, now_ns: int) -> None:
        groups = self._find_groups()
        if groups != self._groups_told:  # fast where they are the same objects, as from one second to the next
            link.tell(group_labels={name: group.label for name, group in groups.items()})
            self._groups_told = groups
        stall = self._stalls.last
        deadline_ns = None if stall is None else find_deadline(stall.pending, stall.taken_host_ns)
        link.beat(Heartbeat(now_ns, self._stalls.last_step, self._stalls.stalled_since_host_ns, deadline_ns))

    def _open_link(self) -> None:
        if self._link is not None:
            with self._contained(SIDECAR):
                self._link.open(self._clock.monotonic_ns())

    @contextlib.contextmanager
    def _contained(self, part: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the training script
            self._guard.record(part, error)
