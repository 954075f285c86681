"""The sidecar: one small process a node that watches the ranks of one run and speaks for those that cannot.

    every TICK_NS, or at once when a process ends:
      find beacons -> a watched process each -> ended?  -> how (exit status, OOM count, beacon)  -> RankEnded
                                             -> frozen? -> what can be read from outside         -> RankUnresponsive
    it ends with the last rank, after a few seconds for the last notices, and removes what the ranks have left

A rank that said goodbye and ended as it said needs no notice. One a node and not one a rank: 20 MB instead of 160 on a
node of eight GPUs, and it sees all of them die, so that the OOM killer's victims are told from the launcher's.

What the ranks have left on the disk (`spill_dir`) is delivered beside all that, see orphan_delivery.py.
"""

import contextlib
import os
import select
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from rankscope.agent.capture.flight_dump import find_names, find_pending, to_statuses
from rankscope.agent.capture.stacks import find_torch_folder
from rankscope.agent.sidecar import beacon
from rankscope.agent.sidecar.beacon import Descriptor, Heartbeat
from rankscope.agent.sidecar.crash_text import CAUGHT, parse_crash
from rankscope.agent.sidecar.endings import Evidence, classify_ending
from rankscope.agent.sidecar.exit_status import ExitStatus, has_ended, open_process, read_exit_status
from rankscope.agent.sidecar.faults import SidecarFaults
from rankscope.agent.sidecar.kernel_view import read_threads
from rankscope.agent.sidecar.notice_sender import GIVE_UP_NS, TURN_NS, Notice, NoticeSender
from rankscope.agent.sidecar.oom_kills import OomKills, find_counter
from rankscope.agent.sidecar.orphan_delivery import ORPHANS_NS_MAX, OrphanDelivery
from rankscope.agent.sidecar.worker_server import ask_dumps, ask_waits
from rankscope.measure.clock import Clock
from rankscope.measure.messages import RankEnded, RankUnresponsive
from rankscope.measure.stalls import PendingCollective, find_deadline
from rankscope.measure.units import NS_PER_MS, NS_PER_S

TICK_NS: Final = 500 * NS_PER_MS
RANKS_MAX: Final = 256
"""Ranks watched on one node; further ones go unwatched."""
REPEAT_NS: Final = 10 * NS_PER_S
"""A rank that stays frozen is looked at again so often: below the collector's `rank_silent_s`."""
ASK_S: Final = 1.0
"""Patience with a worker server: a full recorder takes 0.2 s."""
PAUSE_NS_MIN: Final = 5 * NS_PER_S
"""A sidecar that has not looked for so long was stopped itself, perhaps with the ranks: they get time to beat."""
EARLY_NS_MAX: Final = NS_PER_S
"""The age of a collective is its recorder's, the patience its watchdog's: they may begin a moment apart."""
FIRST_BEACON_NS: Final = 60 * NS_PER_S


@dataclass
class _Watched:
    """One rank that lives. `looked_ns`: when it was last looked at from outside in the freeze that goes on."""

    descriptor: Descriptor
    pidfd: int | None
    ooms: OomKills
    looked_ns: int | None = None
    pending: tuple[PendingCollective, ...] = ()
    deadline_ns: int | None = None

    @property
    def pid(self) -> int:
        return self.descriptor.identity.pid


@dataclass
class _Post:
    """The senders, by the collector they go to."""

    make: Callable[[str], NoticeSender]
    senders: dict[str, NoticeSender] = field(default_factory=dict)

    def post(self, descriptor: Descriptor, notice: Notice) -> None:
        endpoint = descriptor.endpoint
        if not endpoint:
            return
        if endpoint not in self.senders:
            self.senders[endpoint] = self.make(endpoint)
            self.senders[endpoint].keys = descriptor.keys
        self.senders[endpoint].post(notice)

    def take_turns(self, now_ns: int) -> None:
        for courier in self.senders.values():
            courier.take_turn(now_ns)

    @property
    def is_idle(self) -> bool:
        return all(courier.is_idle for courier in self.senders.values())


class Watch:
    """Watches the beacons in `folder`. `proc` and `mounts` stand for /proc and /sys/fs/cgroup."""

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
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._proc = proc
        self._mounts = mounts
        self._post = _Post(make_sender)
        self._left_reports = orphans or OrphanDelivery(clock, faults=faults or SidecarFaults(folder))
        self._watched: dict[str, _Watched] = {}
        self._ooms: dict[str, OomKills] = {}
        self._poll = select.poll()
        self._has_seen_any = False
        self._awake_since_ns = self._looked_ns = clock.monotonic_ns()

    def run(self) -> None:
        """Watch until the last rank has ended."""
        empty_since_ns: int = self._clock.monotonic_ns()
        while True:
            self.look()
            now_ns = self._clock.monotonic_ns()
            if self._watched:
                empty_since_ns = now_ns
            patience_ns = 0 if self._post.is_idle else GIVE_UP_NS
            if not self._left_reports.is_idle:
                patience_ns = ORPHANS_NS_MAX
            if not self._has_seen_any:
                patience_ns = FIRST_BEACON_NS
            if not self._watched and now_ns - empty_since_ns >= patience_ns:
                return
            self._poll.poll((TICK_NS if self._post.is_idle else TURN_NS) // NS_PER_MS)

    def look(self) -> None:
        """One round over all ranks. At most one that is frozen is looked at from outside: that may take seconds."""
        self._find_new()
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._looked_ns > PAUSE_NS_MIN:
            self._awake_since_ns = now_ns
        frozen: list[str] = []
        for ooms in self._ooms.values():
            ooms.look(now_ns)
        for name, rank in list(self._watched.items()):
            rank.descriptor = beacon.read_descriptor(self._folder, name) or rank.descriptor
            self._left_reports.queue_earlier(rank.descriptor)
            if self._has_ended(rank):
                self._take_end(name, rank)
            elif self._is_frozen(name, rank):
                frozen.append(name)
        for name in frozen[:1]:
            self._look_from_outside(name, self._watched[name])
        self._looked_ns = self._clock.monotonic_ns()
        self._post.take_turns(self._looked_ns)

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
                os.close(pidfd)  # perhaps another process's by now
                pidfd = None
            if pidfd is not None:
                self._poll.register(pidfd, select.POLLIN)
            self._has_seen_any = True
            self._watched[name] = _Watched(descriptor, pidfd, self._find_ooms(pid))

    def _find_ooms(self, pid: int) -> OomKills:
        """Ranks in one cgroup share its count: a victim is put down to one of them."""
        counter = find_counter(pid, self._proc, self._mounts)
        path = "" if counter is None else counter.path
        return self._ooms.setdefault(path, OomKills(counter))

    def _has_ended(self, rank: _Watched) -> bool:
        if rank.pidfd is None:
            return has_ended(rank.pid, rank.descriptor.start_ticks, self._proc)
        return bool(select.select([rank.pidfd], [], [], 0)[0])

    # -- ended --------------------------------------------------------------------------------------------------------

    def _take_end(self, name: str, rank: _Watched) -> None:
        status = read_exit_status(rank.pid, rank.descriptor.start_ticks, rank.pidfd, self._proc)
        if rank.pidfd is not None:
            self._poll.unregister(rank.pidfd)
            os.close(rank.pidfd)
        beat = beacon.read_heartbeat(self._folder, name) or Heartbeat(0)
        crash = beacon.read_crash(self._folder, name)
        beacon.remove_files(self._folder, name)
        del self._watched[name]
        damage = self._left_reports.take(rank.descriptor)
        if beat.state != beacon.GOODBYE_ACKNOWLEDGED or status is None or not _is_as_said(status, beat):
            absent = {} if status is not None else {"exit_code": "its parent took it before it could be read"}
            if damage:
                absent["spill"] = damage[:200]
            end = self._describe_end(rank, beat, status, crash)
            self._post.post(rank.descriptor, msgspec.structs.replace(end, absent=absent))

    def _describe_end(self, rank: _Watched, beat: Heartbeat, status: ExitStatus | None, crash: str) -> RankEnded:
        now_ns = self._clock.monotonic_ns()
        number = None if status is None else status.signal
        deadlines_ns = (beat.deadline_host_ns, rank.deadline_ns)
        evidence = Evidence(
            oom_kills=rank.ooms.take(now_ns) if number == signal.SIGKILL else None,
            oom_place=rank.ooms.place,
            overdue=any(at is not None and now_ns >= at - EARLY_NS_MAX for at in deadlines_ns),
            stalled=beat.stalled_since_host_ns is not None,
            frozen=rank.looked_ns is not None,
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
            last_step=beat.last_step,
            pending=rank.pending,
            stacks=parse_crash(crash, find_torch_folder()) if status is None or number in CAUGHT else (),
        )

    # -- frozen -------------------------------------------------------------------------------------------------------

    def _is_frozen(self, name: str, rank: _Watched) -> bool:
        beat = beacon.read_heartbeat(self._folder, name)
        now_ns = self._clock.monotonic_ns()
        if beat is None or beat.state != beacon.ALIVE:
            return False
        if now_ns - max(beat.written_host_ns, self._awake_since_ns) <= rank.descriptor.frozen_after_ns:
            rank.looked_ns = None
            return False
        return rank.looked_ns is None or now_ns - rank.looked_ns >= REPEAT_NS

    def _look_from_outside(self, name: str, rank: _Watched) -> None:
        descriptor = rank.descriptor
        beat = beacon.read_heartbeat(self._folder, name) or Heartbeat(0)
        view = read_threads(rank.pid, self._proc)
        absent: dict[str, str] = {}
        dumps = []
        waits: dict[str, int] = {}
        if descriptor.socket_path:
            dumps = ask_dumps(descriptor.socket_path, ASK_S, absent)
            waits = ask_waits(descriptor.socket_path, ASK_S) if dumps else {}
        else:
            absent["pending"] = f"torch's worker server does not run in the rank: {descriptor.why_no_socket}"
        labels = self._find_labels(descriptor, find_names(dumps))
        if dumps:
            rank.pending = find_pending(dumps, labels, self._clock.wall_ns()).collectives
        rank.looked_ns = self._clock.monotonic_ns()
        rank.deadline_ns = find_deadline(rank.pending, rank.looked_ns) if dumps else rank.deadline_ns
        notice = RankUnresponsive(
            sequence=1,
            identity=descriptor.identity,
            host_ns=rank.looked_ns,
            since_host_ns=beat.written_host_ns,
            last_step=beat.last_step,
            state=view.state,
            threads=view.threads,
            threads_left_out=view.left_out,
            progress=to_statuses(dumps, labels),
            pending=rank.pending if dumps else (),
            waits=waits,
            absent=absent,
        )
        self._post.post(descriptor, notice)

    @staticmethod
    def _find_labels(descriptor: Descriptor, names: dict[int, str]) -> dict[int, str]:
        known = descriptor.group_labels
        return {number: known[name] for number, name in names.items() if name in known}

    def close(self) -> None:
        """Let go of everything."""
        self._left_reports.close()
        for courier in self._post.senders.values():
            courier.close()
        for rank in self._watched.values():
            if rank.pidfd is not None:
                with contextlib.suppress(OSError):
                    os.close(rank.pidfd)


def _is_as_said(status: ExitStatus, beat: Heartbeat) -> bool:
    """Whether the process ended with the exit code that its goodbye had; a script that runs to its end says none."""
    return status.signal is None and status.exit_code == (beat.exit_code or 0)
