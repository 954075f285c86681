"""Decide whether one rank process runs, hangs or has ended, from all sources. Pure.

    the rank itself     its reports (progress of its groups, stall), its goodbye
    its sidecar         that the process does not answer, and where it is blocked; how it ended
    the collector       no report for long (silent); no such process any more (killed, until more is known)

Messages come on different connections, in any order. So each is kept, and the state is derived from all of them.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from rankscope.collector.detect.hang_state import EXIT_UNKNOWN
from rankscope.collector.invariants import require
from rankscope.collector.runs.clock_alignment import ClockAlignment
from rankscope.collector.runs.nccl_bandwidths import NcclBandwidths, find_bandwidths
from rankscope.collector.runs.report_fields import ReportFields
from rankscope.measure.messages import Goodbye
from rankscope.measure.node_messages import InspectorRead, RankEnded, RankUnresponsive, RasAnswered
from rankscope.measure.stalls import EXCUSED_FACTOR, GroupStatus, Stall
from rankscope.measure.units import NS_PER_S

GONE_NS_MIN: Final = 2 * NS_PER_S
"""How long a process must be gone before that is its end: a sidecar that has to load ZeroMQ first takes 0.3 s."""

SAID_BY_RANK: Final = frozenset({"failed", "interrupted"})
"""Reasons of a goodbye that explain the end; a later end of the process only follows from them."""
ENDED_WELL: Final = frozenset({"finished", "stopped"})
NO_ERROR_SEEN: Final = "its agent had seen no error"
BROUGHT_DOWN: Final = frozenset({"terminated", "interrupted", "silent"})
"""Ends caused by others, or of unknown cause: no rank that ended so made its run fail, as far as is known."""


class Ending(NamedTuple):
    """How a rank process ended: a reason of END_REASONS or one of the collector's own, a sentence, the exit code, and
    the line of the script that raised, where the rank reported it.
    """

    reason: str
    detail: str = ""
    exit_code: int | None = None
    line: str = ""


def conclude(said: Goodbye | None, seen: RankEnded | None) -> Ending | None:
    """Combine the rank's goodbye and what its sidecar saw. None where neither has come.

    A rank that failed has failed, also when a signal ended it in the end; one that had finished and was then ended by a
    signal did not end well. Where the exit status could not be read the goodbye stands.
    """
    if said is None:
        return None if seen is None else Ending(seen.reason, seen.detail, seen.exit_code)
    if seen is None or seen.reason == EXIT_UNKNOWN:
        return Ending(said.reason, said.detail, said.exit_code, said.line)
    if said.reason in SAID_BY_RANK:
        exit_code = said.exit_code if seen.exit_code is None else seen.exit_code
        return Ending(said.reason, said.detail, exit_code, said.line)
    if seen.reason == "finished":
        return Ending(said.reason, said.detail, seen.exit_code)
    if said.reason == "finished" and seen.exit_code is not None:
        # `sys.exit(3)`, which an exit handler does not see, or a status that was made after the script had finished.
        return Ending(seen.reason, f"{seen.detail}; {NO_ERROR_SEEN}", seen.exit_code)
    return Ending(seen.reason, f"after it had {said.reason}: {seen.detail}", seen.exit_code)


class Liveness(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Liveness of one rank process. Never changed: each message makes another one."""

    #: The rank's own goodbye; None before any.
    said: Goodbye | None = None
    #: What the sidecar saw of the end; None before any. Set once.
    seen: RankEnded | None = None
    #: Whether the process has been gone for GONE_NS_MIN. Never becomes False again.
    is_gone: bool = False
    #: When the process was first found gone; None before that.
    gone_since_collector_ns: int | None = None
    #: Whether no report has come for long. The next report ends it.
    is_silent: bool = False
    #: How the process ended; None while it runs. Derived from the fields above whenever one changes.
    ending: Ending | None = None
    #: The earliest known time of its end; None before any. May be set while `ending` is only `silent`.
    ended_collector_ns: int | None = None
    #: When its last report was made, by its host's clock; None before any.
    reported_host_ns: int | None = None
    #: Since when its last report calls it stalled, by its host's clock; None where it does not.
    reported_stall_host_ns: int | None = None
    #: Whether it is stalled, by its own report or its sidecar's; None before any report.
    is_stalled: bool | None = None
    #: What the rank recorded in its present stall, or the last one before its end.
    stall: Stall | None = None
    #: What the sidecar saw from outside, while the rank does not answer, or last before its end.
    unresponsive: RankUnresponsive | None = None
    #: Progress of its process groups in its last report that had any.
    progress: tuple[GroupStatus, ...] = ()
    #: When it first reported that progress, by its host's clock; None before any report.
    progress_since_host_ns: int | None = None
    #: When it first reported the progress of a group, by its host's clock, of those in which that is earlier: another
    #: group has progressed in the present stall.
    group_since_host_ns: Mapping[str, int] = {}
    #: The last answer of NCCL's RAS service about the job, of rank 0 only, also one from an earlier stall.
    ras: RasAnswered | None = None
    #: What its sidecar last read in the dumps of NCCL's Inspector; None where it has none.
    inspector: InspectorRead | None = None

    @classmethod
    def restore(
        cls, said: Goodbye | None, seen: RankEnded | None, *, is_gone: bool, ended_collector_ns: int | None
    ) -> "Liveness":
        """Return what an earlier collector knew of the end."""
        return _change(cls(said, seen, is_gone, ended_collector_ns=ended_collector_ns))

    @property
    def nccl_bandwidths(self) -> NcclBandwidths:
        """The bandwidths of NCCL's operations in that, if it is of the present, or why there are none."""
        return find_bandwidths(self.inspector, self.reported_host_ns)

    # -- while it is live ----------------------------------------------------------------------------------------------

    def record_report(self, report: ReportFields) -> "Liveness":
        """Return this after a report: the rank answers."""
        since_host_ns, unresponsive = report.stalled_since_host_ns, self.unresponsive
        stall = report.stall
        if stall is None and since_host_ns is not None:
            stall = self.stall
        if unresponsive is not None and report.host_ns > unresponsive.host_ns:
            unresponsive = None
        progress, progress_since_host_ns = report.progress or self.progress, self.progress_since_host_ns
        group_since_host_ns = self.group_since_host_ns
        if progress_since_host_ns is None or progress != self.progress:
            group_since_host_ns = {} if since_host_ns is None else self._find_unchanged(progress)
            progress_since_host_ns = report.host_ns
        after = msgspec.structs.replace(
            self,
            reported_host_ns=report.host_ns,
            reported_stall_host_ns=since_host_ns,
            is_stalled=unresponsive is not None or _reports_stall(report, stall),
            stall=stall,
            unresponsive=unresponsive,
            progress=progress,
            progress_since_host_ns=progress_since_host_ns,
            group_since_host_ns=group_since_host_ns,
        )
        return _change(after, is_silent=False) if self.is_silent else after

    def record_unresponsive(self, found: RankUnresponsive) -> "Liveness":
        """Return this after the rank's process was seen to run and not to answer; the same if a report was made
        since.
        """
        if self.reported_host_ns is not None and found.host_ns <= self.reported_host_ns:
            return self
        return _change(self, is_silent=False, unresponsive=found, is_stalled=True)

    @property
    def stalled_since_host_ns(self) -> int | None:
        """Since when nothing has happened, by the host's clock; None where no stall is reported."""
        return self.unresponsive.since_host_ns if self.unresponsive is not None else self.reported_stall_host_ns

    @property
    def stalled_ns(self) -> int | None:
        """How long the stall had lasted at the last message of the rank or its sidecar; None without a stall."""
        return self._find_age(self.stalled_since_host_ns)

    @property
    def progress_unchanged_ns(self) -> int | None:
        """How long the progress of its groups had been what it is at the last message of the rank or its sidecar; None
        where the sidecar has read a later one, and before any report.
        """
        found = self.unresponsive
        is_older = found is not None and bool(found.progress) and found.progress != self.progress
        return None if is_older else self._find_age(self.progress_since_host_ns)

    @property
    def group_unchanged_ns(self) -> dict[str, int]:
        """The same of single groups, of those in which it is longer."""
        if self.progress_unchanged_ns is None:
            return {}
        ages = {group: self._find_age(since_ns) for group, since_ns in self.group_since_host_ns.items()}
        return {group: age_ns for group, age_ns in ages.items() if age_ns is not None}

    def _find_unchanged(self, progress: tuple[GroupStatus, ...]) -> dict[str, int]:
        """Return when the groups that have the same progress as before were first reported to have it."""
        known, since_ns = frozenset(self.progress), self.progress_since_host_ns
        if since_ns is None:
            return {}
        return {one.group: self.group_since_host_ns.get(one.group, since_ns) for one in progress if one in known}

    def _find_age(self, since_host_ns: int | None) -> int | None:
        heard_host_ns = self.reported_host_ns if self.unresponsive is None else self.unresponsive.host_ns
        return None if since_host_ns is None or heard_host_ns is None else heard_host_ns - since_host_ns

    # -- its end -------------------------------------------------------------------------------------------------------

    def mark_silent(self) -> "Liveness":
        """Return this after no report has come for long."""
        return _change(self, is_silent=True)

    def record_process_gone(self, now_collector_ns: int) -> "Liveness":
        """Return this after the process was found not to exist any more; called at every tick. Its sidecar has
        GONE_NS_MIN to report how it ended.
        """
        since_ns = self.gone_since_collector_ns or now_collector_ns
        if now_collector_ns - since_ns < GONE_NS_MIN:
            return _change(self, gone_since_collector_ns=since_ns)
        return self._end_at(since_ns, gone_since_collector_ns=since_ns, is_gone=True)

    def record_goodbye(self, goodbye: Goodbye, now_collector_ns: int) -> "Liveness":
        """Return this after the rank's own goodbye."""
        return self._end_at(now_collector_ns, said=goodbye)

    def record_end(self, seen: RankEnded, clock: ClockAlignment, now_collector_ns: int) -> "Liveness":
        """Return this after the sidecar saw the end; the same after the first time."""
        if self.seen is not None:
            return self
        aligned_ns = clock.to_collector_time(seen.host_ns, now_collector_ns)
        return self._end_at(now_collector_ns if aligned_ns is None else aligned_ns, seen=seen)

    def validate(self) -> None:
        """Raise InvariantError where an invariant does not hold; tests call it after events."""
        require(self == _change(self), "the ending is not that of what was said and seen")
        require(not self.is_gone or self.ended_collector_ns is not None, "a process is gone at no time")

    def _end_at(self, collector_ns: int, **changes: Any) -> "Liveness":
        known_ns = self.ended_collector_ns
        ended_ns = collector_ns if known_ns is None else min(known_ns, collector_ns)
        return _change(self, ended_collector_ns=ended_ns, **changes)


def _change(before: Liveness, **changes: Any) -> Liveness:
    """Return the liveness with these changes, and with the ending that follows from them."""
    after = msgspec.structs.replace(before, **changes)
    ending = conclude(after.said, after.seen)
    if ending is None and after.is_gone:
        ending = Ending(EXIT_UNKNOWN)
    if ending is None and after.is_silent:
        ending = Ending("silent")
    return msgspec.structs.replace(after, ending=ending)


def _reports_stall(report: ReportFields, stall: Stall | None) -> bool:
    if report.stalled_since_host_ns is None:
        return False
    if stall is None or not stall.is_excused:
        return True
    return report.host_ns - report.stalled_since_host_ns > EXCUSED_FACTOR * stall.limit_ns
