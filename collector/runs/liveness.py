"""Whether one life of a rank moves, hangs or has ended, from everybody who can say something about it.

    the rank itself     its reports (progress of its groups, stall), its goodbye
    its sidecar         that it does not answer, and what it is in; how its process ended
    the collector       no report for long (silent); no such process any more (killed, until somebody knows better)

The messages come on different ways, in any order. So each is kept, and what they mean together is asked for.
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
"""Reasons of a goodbye that tell why the life ends; whatever ends the process afterwards only carries that out."""
ENDED_WELL: Final = frozenset({"finished", "stopped", "replaced"})
BROUGHT_DOWN: Final = frozenset({"terminated", "interrupted", "silent"})
"""Ends that others cause, or nobody knows: no rank that ended so made its job fail, as far as can be told."""


class Ending(NamedTuple):
    """How a life ended: a reason of END_REASONS or one of the collector's own, a sentence, the process's exit code, and
    the line of the script that raised, where the rank said so.
    """

    reason: str
    detail: str = ""
    exit_code: int | None = None
    line: str = ""


def conclude(said: Goodbye | None, seen: RankEnded | None) -> Ending | None:
    """What the rank said and what its sidecar saw, together. None when neither said anything.

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
    """Written by RankState only."""

    def __init__(self) -> None:
        self._said: Goodbye | None = None
        self._seen: RankEnded | None = None
        self._is_gone = False
        self._gone_since_collector_ns: int | None = None
        self._is_silent = False
        self._stalled_since_host_ns: int | None = None
        self._reported_host_ns: int | None = None
        self.is_stalled: bool | None = None
        """Whether the rank is stalled, by its own or its sidecar's word; None before any report."""
        self.ending: Ending | None = None
        """How the life ended; None while it lives. Found when something changes: it is asked for at every tick."""
        self.ended_collector_ns: int | None = None
        self.progress: tuple[GroupStatus, ...] = ()
        self.stall: Stall | None = None
        """What the rank wrote down in its present stall, or the last of its life."""
        self.unresponsive: RankUnresponsive | None = None
        """What the sidecar saw from outside, while the rank does not answer, or last in its life."""

    # -- while it lives -----------------------------------------------------------------------------------------------

    def take(self, report: ReportFields) -> None:
        """A report: the rank answers."""
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

    def take_unresponsive(self, found: RankUnresponsive) -> None:
        """The sidecar says that the rank's process lives and does not answer. A report made since knows better."""
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
        """Since when nothing has happened, by its host's clock; None where nobody says that it stands still."""
        return self.unresponsive.since_host_ns if self.unresponsive is not None else self._stalled_since_host_ns

    @property
    def stalled_ns(self) -> int | None:
        """How long that was when it was last heard of, by itself or its sidecar."""
        heard_host_ns = self._reported_host_ns if self.unresponsive is None else self.unresponsive.host_ns
        since_host_ns = self.stalled_since_host_ns
        return None if since_host_ns is None or heard_host_ns is None else heard_host_ns - since_host_ns

    # -- its end ------------------------------------------------------------------------------------------------------

    def fall_silent(self) -> None:
        """No report for long."""
        self._is_silent = True
        self._conclude()

    def lose_process(self, now_collector_ns: int) -> None:
        """There is no such process any more; said again at every look. Its sidecar has a moment to say how it ended."""
        self._gone_since_collector_ns = self._gone_since_collector_ns or now_collector_ns
        if now_collector_ns - self._gone_since_collector_ns >= GONE_NS_MIN:
            self._is_gone = True
            self._end_at(self._gone_since_collector_ns)

    def take_goodbye(self, goodbye: Goodbye, now_collector_ns: int) -> None:
        """What the rank says itself."""
        self._said = goodbye
        self._end_at(now_collector_ns)

    def take_end(self, seen: RankEnded, clock: ClockAlignment, now_collector_ns: int) -> None:
        """What its sidecar saw; only the first time."""
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
        """What a collector knew that is no more."""
        self._said, self._seen, self._is_gone, self.ended_collector_ns = said, seen, is_gone, ended_ns
        self._conclude()

    @property
    def said(self) -> Goodbye | None:
        """What the rank said itself at its end."""
        return self._said

    @property
    def is_gone(self) -> bool:
        """Whether its process was seen to be gone."""
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
