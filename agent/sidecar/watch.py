"""Watches the ranks of one run on a node from the sidecar process, and reports those that end or freeze.

    every TICK_NS, or at once when a process ends:
      find beacons -> one watched process each -> ended?  -> exit status, OOM count, beacon  -> RankEnded
                                               -> frozen? -> what is readable from outside   -> RankUnresponsive
                                               -> stalled? -> NCCL's RAS service, if rank 0 is here -> RasAnswered
      parse dumps of flight recorders that ranks have left (recorder_files.py)
    it exits after the last rank, when notices and orphaned reports are delivered, and removes the ranks' files

A rank whose goodbye was acknowledged and whose exit code matches it needs no notice. One sidecar per node instead of
one per rank saves memory (20 MB each), and sees all ranks end, so that victims of the OOM killer can be distinguished
from ranks killed by the launcher.
"""

import select
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from rankscope.agent.captures.stacks import CAUGHT, find_torch_folder, parse_crash
from rankscope.agent.sidecar import beacon
from rankscope.agent.sidecar.endings import Evidence, classify_ending
from rankscope.agent.sidecar.exit_status import ExitStatus, close_process, has_ended, open_process, read_exit_status
from rankscope.agent.sidecar.faults import SidecarFaults
from rankscope.agent.sidecar.frozen_rank import inspect_frozen
from rankscope.agent.sidecar.notice_sender import GIVE_UP_NS, RUN_NS, NoticeSender, NoticeSenders
from rankscope.agent.sidecar.oom_kills import OomKills, find_counter
from rankscope.agent.sidecar.orphan_delivery import ORPHANS_NS_MAX, OrphanDelivery
from rankscope.agent.sidecar.ras_inquiries import RasInquiries, WatchedStall
from rankscope.agent.sidecar.recorder_files import reduce_dump
from rankscope.measure.clock import Clock
from rankscope.measure.messages import RankEnded
from rankscope.measure.stalls import PendingCollective, find_deadline
from rankscope.measure.units import NS_PER_MS, NS_PER_S

TICK_NS: Final = 500 * NS_PER_MS
RANKS_MAX: Final = 256
"""Largest number of ranks watched on one node."""
REPEAT_NS: Final = 10 * NS_PER_S
"""Interval of inspecting a rank that stays frozen: below the collector's `rank_silent_s`."""
PAUSE_NS_MIN: Final = 5 * NS_PER_S
"""Gap between passes from which the sidecar itself counts as suspended, perhaps with the ranks, which then get time for
a heartbeat."""
EARLY_NS_MAX: Final = NS_PER_S
"""Tolerance of timeouts: the recorder's age of a collective and the watchdog's timeout start slightly apart."""
DUMPS_MAX: Final = 16
"""Largest number of dumps parsed in one pass, 0.3 s: ends of ranks are noticed between passes."""
FIRST_BEACON_NS: Final = 60 * NS_PER_S


@dataclass
class _Watched:
    """A running rank. `inspected_ns` is the time of the last inspection in the present freeze."""

    descriptor: beacon.Descriptor
    pidfd: int | None
    ooms: OomKills
    inspected_ns: int | None = None
    pending: tuple[PendingCollective, ...] = ()
    deadline_ns: int | None = None

    @property
    def pid(self) -> int:
        return self.descriptor.identity.pid


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
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._proc = proc
        self._mounts = mounts
        self._notices = NoticeSenders(make_sender)
        self._faults = faults or SidecarFaults(folder)
        self._orphans = orphans or OrphanDelivery(clock, faults=self._faults)
        self._ras = ras or RasInquiries(clock)
        self._watched: dict[str, _Watched] = {}
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
        self._reduce_dumps()
        self._ask_ras()
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
            self._watched[name] = _Watched(descriptor, pidfd, self._find_ooms(pid))

    def _find_ooms(self, pid: int) -> OomKills:
        """Return the OOM counter of a process, which the ranks of one cgroup share."""
        counter = find_counter(pid, self._proc, self._mounts)
        path = "" if counter is None else counter.path
        return self._ooms.setdefault(path, OomKills(counter))

    def _has_ended(self, rank: _Watched) -> bool:
        if rank.pidfd is None:
            return has_ended(rank.pid, rank.descriptor.start_ticks, self._proc)
        return bool(select.select([rank.pidfd], [], [], 0)[0])

    # -- ended --------------------------------------------------------------------------------------------------------

    def _report_end(self, name: str, rank: _Watched) -> None:
        status = read_exit_status(rank.pid, rank.descriptor.start_ticks, rank.pidfd, self._proc)
        if rank.pidfd is not None:
            self._poll.unregister(rank.pidfd)
            close_process(rank.pidfd)
        heartbeat = beacon.read_heartbeat(self._folder, name) or beacon.Heartbeat(0)
        crash = beacon.read_crash(self._folder, name)
        beacon.remove_files(self._folder, name)
        del self._watched[name]
        damage = self._orphans.queue_ended(rank.descriptor)
        if not _is_as_said(status, heartbeat, crash):
            absent = {} if status is not None else {"exit_code": "its parent reaped it before it could be read"}
            if damage:
                absent["spill"] = damage[:200]
            self._notices.enqueue(rank.descriptor, self._describe_end(rank, heartbeat, status, crash, absent))

    def _describe_end(
        self,
        rank: _Watched,
        heartbeat: beacon.Heartbeat,
        status: ExitStatus | None,
        crash: str,
        absent: Mapping[str, str],
    ) -> RankEnded:
        now_ns = self._clock.monotonic_ns()
        number = None if status is None else status.signal
        has_exited = status is not None and number is None
        deadlines_ns = (heartbeat.deadline_host_ns, rank.deadline_ns)
        evidence = Evidence(
            oom_kills=rank.ooms.claim(now_ns) if number in {signal.SIGKILL, None} and not has_exited else None,
            oom_place=rank.ooms.place,
            overdue=any(at is not None and now_ns >= at - EARLY_NS_MAX for at in deadlines_ns),
            stalled=heartbeat.stalled_since_host_ns is not None,
            frozen=rank.inspected_ns is not None,
            crashed=bool(crash),
        )
        ending = classify_ending(status, evidence)
        return RankEnded(
            sequence=1,
            identity=rank.descriptor.identity,
            host_ns=now_ns,
            wall_ns=self._clock.wall_ns(),
            reason=ending.reason,
            detail=ending.detail[:1024],
            exit_code=None if status is None else status.exit_code,
            signal=number,
            core_dumped=None if status is None else status.core_dumped,
            oom_kills=evidence.oom_kills,
            last_step=heartbeat.last_step,
            pending=rank.pending,
            stacks=parse_crash(crash, find_torch_folder()) if status is None or number in CAUGHT else (),
            absent=dict(absent),
        )

    # -- frozen -------------------------------------------------------------------------------------------------------

    def _is_frozen(self, name: str, rank: _Watched) -> bool:
        heartbeat = beacon.read_heartbeat(self._folder, name)
        now_ns = self._clock.monotonic_ns()
        if heartbeat is None or heartbeat.state != beacon.ALIVE:
            return False
        if now_ns - max(heartbeat.written_host_ns, self._awake_since_ns) <= rank.descriptor.frozen_after_ns:
            rank.inspected_ns = None
            return False
        return rank.inspected_ns is None or now_ns - rank.inspected_ns >= REPEAT_NS

    def _inspect_frozen(self, name: str, rank: _Watched) -> None:
        heartbeat = beacon.read_heartbeat(self._folder, name) or beacon.Heartbeat(0)
        notice, are_dumps_read = inspect_frozen(rank.descriptor, heartbeat, self._clock, self._proc)
        rank.inspected_ns = notice.host_ns
        if are_dumps_read:  # else what was pending at the last inspection is still so
            rank.pending = notice.pending
            rank.deadline_ns = find_deadline(rank.pending, rank.inspected_ns)
        self._notices.enqueue(rank.descriptor, notice)

    # -- stalled ------------------------------------------------------------------------------------------------------

    def _ask_ras(self) -> None:
        answered = self._ras.run_pass([self._find_stall(name, rank) for name, rank in self._watched.items()])
        if answered is not None:
            self._notices.enqueue(*answered)

    def _find_stall(self, name: str, rank: _Watched) -> WatchedStall:
        """Return since when a rank makes no progress, by its own heartbeat, or because it has none any more."""
        heartbeat = beacon.read_heartbeat(self._folder, name)
        if heartbeat is None or heartbeat.state != beacon.ALIVE:
            return WatchedStall(rank.descriptor, None)
        frozen_since_ns = None if rank.inspected_ns is None else heartbeat.written_host_ns
        return WatchedStall(rank.descriptor, heartbeat.stalled_since_host_ns or frozen_since_ns)

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
