"""Watches the ranks of one run on a node from the sidecar process, and reports those that end or freeze.

    every TICK_NS, or at once when a process ends:
      find beacons -> one watched process each -> ended?  -> exit status, OOM count, beacon  -> RankEnded
                                               -> frozen? -> what is readable from outside   -> RankUnresponsive
                                               -> stalled? -> NCCL's RAS service, if rank 0 is here -> RasAnswered
      every 15 s, if NCCL's Inspector writes dumps -> the end of each rank's (inspector_readings.py) -> InspectorRead
      parse dumps of flight recorders that ranks have left (recorder_files.py)
    it exits after the last rank, when notices and orphaned reports are delivered, and removes the ranks' files

A rank whose goodbye was acknowledged and whose exit code matches it needs no notice. One sidecar per node instead of
one per rank saves memory (20 MB each), and sees all ranks end, so that victims of the OOM killer can be distinguished
from ranks killed by the launcher.
"""

import select
from collections.abc import Callable
from typing import Final

from rankscope.agent.sidecar import beacon
from rankscope.agent.sidecar.exit_status import ExitStatus, close_process, has_ended, open_process, read_exit_status
from rankscope.agent.sidecar.faults import SidecarFaults
from rankscope.agent.sidecar.frozen_rank import inspect_frozen
from rankscope.agent.sidecar.inspector_readings import InspectorReadings
from rankscope.agent.sidecar.notice_sender import GIVE_UP_NS, RUN_NS, NoticeSender, NoticeSenders
from rankscope.agent.sidecar.oom_kills import OomKills, find_counter
from rankscope.agent.sidecar.orphan_delivery import ORPHANS_NS_MAX, OrphanDelivery
from rankscope.agent.sidecar.ras_inquiries import RasInquiries
from rankscope.agent.sidecar.recorder_files import reduce_dump
from rankscope.agent.sidecar.watched_rank import WatchedRank
from rankscope.measure.clock import Clock
from rankscope.measure.stalls import find_deadline
from rankscope.measure.units import NS_PER_MS, NS_PER_S

TICK_NS: Final = 500 * NS_PER_MS
RANKS_MAX: Final = 256
"""Largest number of ranks watched on one node."""
REPEAT_NS: Final = 10 * NS_PER_S
"""Interval of inspecting a rank that stays frozen: below the collector's `rank_silent_s`."""
PAUSE_NS_MIN: Final = 5 * NS_PER_S
"""Gap between passes from which the sidecar itself counts as suspended, perhaps with the ranks, which then get time for
a heartbeat."""
DUMPS_MAX: Final = 16
"""Largest number of dumps parsed in one pass, 0.3 s: ends of ranks are noticed between passes."""
FIRST_BEACON_NS: Final = 60 * NS_PER_S


class Watch:
    """The watch over the beacons in `folder`. `proc` and `mounts` replace /proc and /sys/fs/cgroup."""

    def __init__(
        self,
        folder: str,
        clock: Clock,
        *,
        proc: str = "/proc",
        mounts: str = "/sys/fs/cgroup",
        make_sender: Callable[[str], NoticeSender] = NoticeSender,
        orphans: OrphanDelivery | None = None,
        faults: SidecarFaults | None = None,
        ras: RasInquiries | None = None,
        inspector: InspectorReadings | None = None,
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._proc = proc
        self._mounts = mounts
        self._notices = NoticeSenders(make_sender)
        self._faults = faults or SidecarFaults(folder)
        self._orphans = orphans or OrphanDelivery(clock, faults=self._faults)
        self._ras = ras or RasInquiries(clock)
        self._inspector = inspector or InspectorReadings(clock)
        self._watched: dict[str, WatchedRank] = {}
        self._ooms: dict[str, OomKills] = {}
        self._poll = select.poll()
        self._has_seen_any = False
        self._awake_since_ns = self._last_pass_ns = clock.monotonic_ns()

    def run(self) -> None:
        """Watch until the last rank has ended."""
        empty_since_ns: int = self._clock.monotonic_ns()
        while True:
            self.run_pass()
            now_ns = self._clock.monotonic_ns()
            if self._watched:
                empty_since_ns = now_ns
            patience_ns = 0 if self._notices.is_idle else GIVE_UP_NS
            if not self._orphans.is_idle:
                patience_ns = ORPHANS_NS_MAX
            if not self._has_seen_any:
                patience_ns = FIRST_BEACON_NS
            if not self._watched and now_ns - empty_since_ns >= patience_ns:
                return
            self._poll.poll((TICK_NS if self._notices.is_idle else RUN_NS) // NS_PER_MS)

    def run_pass(self) -> None:
        """Check all ranks once. Inspect at most one frozen rank, since that may take seconds."""
        self._find_new()
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._last_pass_ns > PAUSE_NS_MIN:
            self._awake_since_ns = now_ns
        frozen: list[str] = []
        for ooms in self._ooms.values():
            ooms.update(now_ns)
        for name, rank in list(self._watched.items()):
            rank.descriptor = beacon.read_descriptor(self._folder, name) or rank.descriptor
            self._orphans.queue_earlier(rank.descriptor)
            if self._has_ended(rank):
                self._report_end(name, rank)
            elif self._is_frozen(name, rank):
                frozen.append(name)
        for name in frozen[:1]:
            self._inspect_frozen(name, self._watched[name])
        self._orphans.start_if_needed()
        self._reduce_dumps()
        self._ask_nccl()
        self._last_pass_ns = self._clock.monotonic_ns()
        self._notices.run_once(self._last_pass_ns)

    def _reduce_dumps(self) -> None:
        """Parse the dumps that ranks have left, at most DUMPS_MAX: 15 to 20 ms for each of 2,000 entries."""
        left = DUMPS_MAX
        for name in self._watched:
            try:
                left -= reduce_dump(self._folder, name)
            except Exception as error:  # noqa: BLE001 - the watch over the ranks goes on
                self._faults.note("collectives", error)
            if not left:
                return

    def _find_new(self) -> None:
        for name in beacon.find_names(self._folder):
            if name in self._watched or len(self._watched) >= RANKS_MAX:
                continue
            descriptor = beacon.read_descriptor(self._folder, name)
            if descriptor is None or descriptor.identity.boot_id != name:
                continue
            pid = descriptor.identity.pid
            pidfd = open_process(pid)
            if has_ended(pid, descriptor.start_ticks, self._proc) and pidfd is not None:
                close_process(pidfd)  # the id may belong to another process by now
                pidfd = None
            if pidfd is not None:
                self._poll.register(pidfd, select.POLLIN)
            self._has_seen_any = True
            self._watched[name] = WatchedRank(descriptor, pidfd, self._find_ooms(pid))

    def _find_ooms(self, pid: int) -> OomKills:
        """Return the OOM counter of a process, which the ranks of one cgroup share."""
        counter = find_counter(pid, self._proc, self._mounts)
        path = "" if counter is None else counter.path
        return self._ooms.setdefault(path, OomKills(counter))

    def _has_ended(self, rank: WatchedRank) -> bool:
        if rank.pidfd is None:
            return has_ended(rank.pid, rank.descriptor.start_ticks, self._proc)
        return bool(select.select([rank.pidfd], [], [], 0)[0])

    # -- ended --------------------------------------------------------------------------------------------------------

    def _report_end(self, name: str, rank: WatchedRank) -> None:
        status = read_exit_status(rank.pid, rank.descriptor.start_ticks, rank.pidfd, self._proc)
        if rank.pidfd is not None:
            self._poll.unregister(rank.pidfd)
            close_process(rank.pidfd)
        heartbeat = beacon.read_heartbeat(self._folder, name) or beacon.Heartbeat(0)
        crash = beacon.read_last_crash(self._folder, name, heartbeat)
        beacon.remove_files(self._folder, name)
        del self._watched[name]
        damage = self._orphans.queue_ended(rank.descriptor)
        if not _is_as_said(status, heartbeat, crash):
            absent = {} if status is not None else {"exit_code": "its parent reaped it before it could be read"}
            if damage:
                absent["spill"] = damage[:200]
            self._notices.enqueue(rank.descriptor, rank.describe_end(self._clock, heartbeat, status, crash, absent))

    # -- frozen -------------------------------------------------------------------------------------------------------

    def _is_frozen(self, name: str, rank: WatchedRank) -> bool:
        heartbeat = beacon.read_heartbeat(self._folder, name)
        now_ns = self._clock.monotonic_ns()
        if heartbeat is None or heartbeat.state != beacon.ALIVE:
            return False
        if now_ns - max(heartbeat.written_host_ns, self._awake_since_ns) <= rank.descriptor.frozen_after_ns:
            rank.inspected_ns = None
            return False
        return rank.inspected_ns is None or now_ns - rank.inspected_ns >= REPEAT_NS

    def _inspect_frozen(self, name: str, rank: WatchedRank) -> None:
        heartbeat = beacon.read_heartbeat(self._folder, name) or beacon.Heartbeat(0)
        notice, are_dumps_read = inspect_frozen(rank.descriptor, heartbeat, self._clock, self._proc)
        rank.inspected_ns = notice.host_ns
        if are_dumps_read:  # else what was pending at the last inspection is still so
            rank.pending = notice.pending
            rank.deadline_ns = find_deadline(rank.pending, rank.inspected_ns)
        self._notices.enqueue(rank.descriptor, notice)

    # -- stalled ------------------------------------------------------------------------------------------------------

    def _ask_nccl(self) -> None:
        """Ask NCCL's RAS service in a stall, and read what NCCL has dumped."""
        watched = [self._find_stall(name, rank) for name, rank in self._watched.items()]
        answered = self._ras.run_pass(watched)
        if answered is not None:
            self._notices.enqueue(*answered)
        for descriptor, read in self._inspector.run_pass(watched):
            self._notices.enqueue(descriptor, read)

    def _find_stall(self, name: str, rank: WatchedRank) -> beacon.WatchedStall:
        """Return since when a rank makes no progress, by its own heartbeat, or because it has none any more."""
        heartbeat = beacon.read_heartbeat(self._folder, name)
        if heartbeat is None or heartbeat.state != beacon.ALIVE:
            return beacon.WatchedStall(rank.descriptor, None)
        frozen_since_ns = None if rank.inspected_ns is None else heartbeat.written_host_ns
        return beacon.WatchedStall(rank.descriptor, heartbeat.stalled_since_host_ns or frozen_since_ns)

    def close(self) -> None:
        """Close all senders and process handles."""
        self._orphans.close()
        self._notices.close()
        for rank in self._watched.values():
            if rank.pidfd is not None:
                close_process(rank.pidfd)


def _is_as_said(status: ExitStatus | None, heartbeat: beacon.Heartbeat, crash: str) -> bool:
    """Return whether the collector knows the end from the rank's goodbye: neither the exit code of the process (that of
    the goodbye is absent for a completed script), nor a signal or a crash speaks against it.
    """
    if heartbeat.state != beacon.GOODBYE_ACKNOWLEDGED:
        return False
    if status is None:
        return not crash
    return status.signal is None and status.exit_code == (heartbeat.exit_code or 0)
