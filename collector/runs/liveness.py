"""Decide whether one rank process runs, hangs or has ended, from all sources. Pure.

    the rank itself     its reports (progress of its groups, stall), its goodbye
    its sidecar         that the process does not answer, and where it is blocked; how it ended
    the collector       no report for long (silent); no such process any more (killed, until more is known)

Messages come on different connections, in any order. So each is kept, and the state is derived from all of them.
"""

from typing import Final, NamedTuple

from rankscope.collector.runs.clock_alignment import ClockAlignment
from rankscope.collector.runs.last_report import ReportFields
from rankscope.measure.messages import Goodbye, RankEnded, RankUnresponsive
from rankscope.measure.stalls import EXCUSED_FACTOR, GroupStatus, Stall
from rankscope.measure.units import NS_PER_S

GONE_NS_MIN: Final = 2 * NS_PER_S
"""How long a process must be gone before it counts as killed: a sidecar that has to load ZeroMQ first takes 0.3 s."""

SAID_BY_RANK: Final = frozenset({"failed", "interrupted"})
"""Reasons of a goodbye that explain the end; a later end of the process only follows from them."""
ENDED_WELL: Final = frozenset({"finished", "stopped", "replaced"})
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
    """Combine the rank's goodbye and what its sidecar saw. None without both.

    A rank that failed has failed, also when a signal ended it in the end; one that had finished and was then ended by a
    signal did not end well.
    """
    if said is None:
        return None if seen is None else Ending(seen.reason, seen.detail, seen.exit_code)
    if seen is None:
        return Ending(said.reason, said.detail, said.exit_code, said.line)
    if said.reason in SAID_BY_RANK:
        exit_code = said.exit_code if seen.exit_code is None else seen.exit_code
        return Ending(said.reason, said.detail, exit_code, said.line)
    if seen.reason == "finished":
        return Ending(said.reason, said.detail, seen.exit_code)
    return Ending(seen.reason, f"after it had {said.reason}: {seen.detail}", seen.exit_code)


class Liveness:
    """Liveness of one rank process. Written by RankState only."""

    def __init__(self) -> None:
        #: The rank's own goodbye; None before any.
        self._said: Goodbye | None = None
        #: What the sidecar saw of the end; None before any. Set once.
        self._seen: RankEnded | None = None
        #: Whether the process has been gone for GONE_NS_MIN. Never becomes False again.
        self._is_gone = False
        #: When the process was first found gone; None before that.
        self._gone_since_collector_ns: int | None = None
        #: Whether no report has come for long. The next report ends it.
        self._is_silent = False
        #: Since when its last report calls it stalled, by its host's clock; None where it does not.
        self._stalled_since_host_ns: int | None = None
        #: When its last report was made, by its host's clock; None before any.
        self._reported_host_ns: int | None = None
        #: Whether it is stalled, by its own report or its sidecar's; None before any report.
        self.is_stalled: bool | None = None
        #: How the process ended; None while it runs. Derived from the attributes above whenever one changes.
        self.ending: Ending | None = None
        #: The earliest known time of its end; None before any. May be set while `ending` is only `silent`.
        self.ended_collector_ns: int | None = None
        #: Progress of its process groups in its last report that had any.
        self.progress: tuple[GroupStatus, ...] = ()
        #: What the rank recorded in its present stall, or the last one before its end.
        self.stall: Stall | None = None
        #: What the sidecar saw from outside, while the rank does not answer, or last before its end.
        self.unresponsive: RankUnresponsive | None = None

    # -- while it is live ----------------------------------------------------------------------------------------------

    def record_report(self, report: ReportFields) -> None:
        """Record a report: the rank answers."""
        if self._is_silent:
            self._is_silent = False
            self._conclude()
        self._reported_host_ns = report.host_ns
        self._stalled_since_host_ns = report.stalled_since_host_ns
        self.progress = report.progress or self.progress
        if report.stall is not None:
            self.stall = report.stall
        elif report.stalled_since_host_ns is None:
            self.stall = None
        if self.unresponsive is not None and report.host_ns > self.unresponsive.host_ns:
            self.unresponsive = None
        self.is_stalled = self.unresponsive is not None or self._says_stalled(report)

    def record_unresponsive(self, found: RankUnresponsive) -> None:
        """Record that the rank's process runs and does not answer. Ignored if a report was made since."""
        if self._reported_host_ns is None or found.host_ns > self._reported_host_ns:
            self._is_silent = False
            self.unresponsive = found
            self.is_stalled = True
            self._conclude()

    def _says_stalled(self, report: ReportFields) -> bool:
        if report.stalled_since_host_ns is None:
            return False
        stall = self.stall
        if stall is None or not stall.is_excused:
            return True
        return report.host_ns - report.stalled_since_host_ns > EXCUSED_FACTOR * stall.limit_ns

    @property
    def stalled_since_host_ns(self) -> int | None:
        """Since when nothing has happened, by the host's clock; None where no stall is reported."""
        return self.unresponsive.since_host_ns if self.unresponsive is not None else self._stalled_since_host_ns

    @property
    def stalled_ns(self) -> int | None:
        """How long the stall had lasted at the last message of the rank or its sidecar; None without a stall."""
        heard_host_ns = self._reported_host_ns if self.unresponsive is None else self.unresponsive.host_ns
        since_host_ns = self.stalled_since_host_ns
        return None if since_host_ns is None or heard_host_ns is None else heard_host_ns - since_host_ns

    # -- its end -------------------------------------------------------------------------------------------------------

    def mark_silent(self) -> None:
        """Record that no report has come for long."""
        self._is_silent = True
        self._conclude()

    def record_process_gone(self, now_collector_ns: int) -> None:
        """Record that the process does not exist any more; called at every tick. Its sidecar has GONE_NS_MIN to report
        how it ended.
        """
        self._gone_since_collector_ns = self._gone_since_collector_ns or now_collector_ns
        if now_collector_ns - self._gone_since_collector_ns >= GONE_NS_MIN:
            self._is_gone = True
            self._end_at(self._gone_since_collector_ns)

    def record_goodbye(self, goodbye: Goodbye, now_collector_ns: int) -> None:
        """Record the rank's own goodbye."""
        self._said = goodbye
        self._end_at(now_collector_ns)

    def record_end(self, seen: RankEnded, clock: ClockAlignment, now_collector_ns: int) -> None:
        """Record what the sidecar saw; only the first time."""
        if self._seen is None:
            self._seen = seen
            aligned_ns = clock.to_collector_time(seen.host_ns, now_collector_ns)
            self._end_at(now_collector_ns if aligned_ns is None else aligned_ns)

    def _end_at(self, collector_ns: int) -> None:
        self.ended_collector_ns = (
            collector_ns if self.ended_collector_ns is None else min(self.ended_collector_ns, collector_ns)
        )
        self._conclude()

    def restore_end(self, said: Goodbye | None, seen: RankEnded | None, *, is_gone: bool, ended_ns: int | None) -> None:
        """Restore what an earlier collector knew."""
        self._said, self._seen, self._is_gone, self.ended_collector_ns = said, seen, is_gone, ended_ns
        self._conclude()

    @property
    def said(self) -> Goodbye | None:
        """The rank's own goodbye."""
        return self._said

    @property
    def is_gone(self) -> bool:
        """Whether the process was found to be gone."""
        return self._is_gone

    @property
    def seen(self) -> RankEnded | None:
        """What the sidecar saw of the end."""
        return self._seen

    def _conclude(self) -> None:
        known = conclude(self._said, self._seen)
        if known is None and self._is_gone:
            known = Ending("killed")
        self.ending = Ending("silent") if known is None and self._is_silent else known
