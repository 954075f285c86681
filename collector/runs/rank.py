"""Keep the state of one rank process. Pure."""

from typing import Final

import msgspec

from rankscope.collector.detect.view import AllocatorCounts
from rankscope.collector.invariants import require
from rankscope.collector.runs.checkpoint import Clocks, LazySavedRank, SavedRank
from rankscope.collector.runs.clock_alignment import ClockAlignment
from rankscope.collector.runs.draft import LazyRankSnapshot
from rankscope.collector.runs.last_report import NOTHING_REPORTED, LastReport, ReportFields
from rankscope.collector.runs.liveness import Liveness
from rankscope.collector.runs.sample_rings import BreakdownRing, PackedRing, PauseRing
from rankscope.collector.runs.snapshot import RankSnapshot
from rankscope.collector.runs.step_accounting import StepAccounting
from rankscope.collector.steps.rank_medians import NO_MEDIANS
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import Hello
from rankscope.measure.records import WindowBreakdown

BREAKDOWNS_KEPT = 32
GC_PAUSES_KEPT = 256
ALLOCATOR_COUNTS_KEPT = 32

_ALLOCATORS: Final = msgspec.msgpack.Decoder(AllocatorCounts)


class RankState:
    """One rank process, from its Hello to its end. Written by RunState only."""

    def __init__(self, hello: Hello, now_collector_ns: int) -> None:
        #: Who it is. Never changes.
        self.identity: RankIdentity = hello.identity
        self._hello = hello
        #: When it last reported, or its sidecar last saw it alive; moved by absences of the collector.
        self.last_seen_collector_ns = now_collector_ns
        #: Wall time of its last report, in s since 1970; None before any, at any collector.
        self.last_report_wall_s: float | None = None
        #: When its clock is to be asked for next.
        self.next_ping_collector_ns = now_collector_ns
        #: Offset of its host's clock, from at most SAMPLES_MAX answers.
        self.clock = ClockAlignment()
        #: Whether it runs, hangs or has ended.
        self.liveness = Liveness()
        #: Frames of its last report and last samples; replaced by each report, never changed.
        self.latest: LastReport = NOTHING_REPORTED
        #: At most BREAKDOWNS_KEPT, oldest first.
        self.breakdowns = BreakdownRing(BREAKDOWNS_KEPT)
        #: The sum of `breakdowns`; None while there is none.
        self._breakdown: WindowBreakdown | None = None
        #: Where its step records went, as of the last report that is in the step table.
        self.steps = StepAccounting(hello.first_sequence)
        #: Numbered messages admitted, also those that an earlier collector acknowledged.
        self.admitted = 0
        #: Numbered messages that came again.
        self.duplicates = 0
        #: Number of the first message expected of it. Never changes, except when restored.
        self.first_sequence = hello.first_sequence
        #: Number of the last message admitted; `first_sequence - 1` before any. Only grows.
        self.last_sequence = hello.first_sequence - 1
        #: The last step of its last report that had steps; None before any.
        self.last_step: int | None = None
        #: Whether it is known from the store only: it has not reported since the collector was restarted.
        self.is_awaited = False
        #: At most ALLOCATOR_COUNTS_KEPT, oldest first.
        self.allocators = PackedRing(_ALLOCATORS, ALLOCATOR_COUNTS_KEPT)
        #: At most GC_PAUSES_KEPT, oldest first.
        self.gc_pauses = PauseRing(GC_PAUSES_KEPT)

    @classmethod
    def restore(cls, saved: SavedRank, clocks: Clocks) -> "RankState":
        """Return a rank process as it was saved. It counts as seen just now: it has all the time to come back."""
        rank = cls(saved.hello, clocks.collector_ns)
        rank.is_awaited = True
        rank.first_sequence, rank.last_sequence, rank.admitted = (
            saved.first_sequence, saved.last_sequence, saved.admitted,
        )  # fmt: skip
        rank.duplicates = saved.duplicates
        rank.steps.restore(saved.steps, saved.losses.steps_dropped_in_reports)
        rank.last_report_wall_s, rank.last_step = saved.last_report_wall_s, saved.last_step
        rank.latest = LastReport.restore(saved.totals, saved.losses, saved.devices)
        ended_ns = None if saved.ended_wall_s is None else clocks.to_collector_ns(saved.ended_wall_s)
        rank.liveness.restore_end(saved.said, saved.seen, is_gone=saved.is_gone, ended_ns=ended_ns)
        return rank

    def save(self, clocks: Clocks, step_ns_median: float | None) -> LazySavedRank:
        """Return what is saved of it, with the median of its steps."""
        liveness = self.liveness
        ended_ns = None if self.is_live else liveness.ended_collector_ns
        life = SavedRank(
            hello=self._hello,
            first_sequence=self.first_sequence,
            last_sequence=self.last_sequence,
            admitted=self.admitted,
            duplicates=self.duplicates,
            steps=self.steps.counts,
            last_report_wall_s=self.last_report_wall_s,
            last_step=self.last_step,
            step_ns_median=step_ns_median,
            said=liveness.said,
            seen=liveness.seen,
            is_gone=liveness.is_gone,
            ended_wall_s=None if ended_ns is None else clocks.to_wall_s(ended_ns),
        )
        return LazySavedRank(life, self.latest)

    @property
    def counters(self) -> tuple[object, ...]:
        """What must not be lost, in short: when this has changed the rank has to be saved."""
        return self.identity.boot_id, self.missing, self.steps.late, self.liveness.ending

    @property
    def ended(self) -> str | None:
        """How it ended; None while it is live."""
        ending = self.liveness.ending
        return None if ending is None else ending.reason

    @property
    def is_live(self) -> bool:
        """Whether it has not ended."""
        return self.ended is None

    def is_continued_by(self, identity: RankIdentity) -> bool:
        """Return whether that Hello is of the same process, whose agent was stopped and started again. A process of
        another container may have the same numbers, so this one must have stopped its agent and not have been seen to
        end.
        """
        mine = self.identity
        is_same = bool(identity.machine_id) and (mine.machine_id, mine.pid) == (identity.machine_id, identity.pid)
        return is_same and self.ended == "stopped" and self.liveness.seen is None

    def excuse_absence(self, away_ns: int, now_collector_ns: int) -> None:
        """Move the time it was last seen by the collector's own absence: what was sent meanwhile still waits to be
        read.
        """
        if self.is_live:
            self.last_seen_collector_ns = min(now_collector_ns, self.last_seen_collector_ns + away_ns)

    def record_report(self, report: ReportFields, now_collector_ns: int, now_wall_s: float) -> None:
        """Record a report without its steps and collectives."""
        dropped = 0  # asked for only of a rank that a collector before this one knew
        if self.is_awaited:
            dropped = report.reports_dropped - self.latest.counted.losses.reports_dropped
        self.count_admitted(report.sequence, dropped=dropped)
        self.last_seen_collector_ns = now_collector_ns
        self.last_report_wall_s = now_wall_s
        self.latest = self.latest.after(report)
        if report.breakdowns:
            for window in report.breakdowns:
                self.breakdowns.append(window)
            self._breakdown = self.breakdowns.sum
        if report.allocator is not None:
            self.allocators.append(AllocatorCounts(report.said.reported, report.allocator))
        if report.gc_pause_ns is not None:
            self.gc_pauses.append(report.said.reported, report.gc_pause_ns)
        self.liveness.record_report(report)

    @property
    def missing(self) -> int:
        """Numbered messages that were given up: the numbers up to the last one that never came."""
        return self.last_sequence - self.first_sequence + 1 - self.admitted

    def validate(self) -> None:
        """Raise InvariantError where an invariant does not hold; tests call it after events."""
        who = f"rank {self.identity.rank}"
        require(self.last_sequence >= self.first_sequence - 1, f"{who}: the last sequence number is below the first")
        require(min(self.admitted, self.missing, self.duplicates) >= 0, f"{who}: a negative count of messages")
        require(self.is_live == (self.liveness.ending is None), f"{who}: live and ended")
        steps = self.steps.counts
        counts = (steps.published, steps.published_elsewhere, steps.overwritten, steps.dropped_in_reports, steps.late)
        require(min(counts) >= 0, f"{who}: a negative count of step records: {steps}")
        kept = len(self.breakdowns) <= BREAKDOWNS_KEPT and len(self.allocators) <= ALLOCATOR_COUNTS_KEPT
        require(kept and len(self.gc_pauses) <= GC_PAUSES_KEPT, f"{who}: too many samples are kept")
        require(self._breakdown == self.breakdowns.sum, f"{who}: the sum of breakdowns is another one")

    def count_admitted(self, sequence: int, *, dropped: int = 0) -> None:
        """Count a numbered message. The first after a restart of the collector may skip some: an earlier collector
        acknowledged those and could not save that. Only as many are missing as the rank has dropped meanwhile.
        """
        if self.is_awaited:
            self.is_awaited = False
            between = max(0, sequence - self.last_sequence - 1)
            self.admitted += max(0, between - max(0, dropped))
        self.admitted += 1
        self.last_sequence = sequence

    def draft(self) -> LazyRankSnapshot:
        """Return the inputs of its snapshot at this time."""
        liveness = self.liveness
        return LazyRankSnapshot(
            self._hello,
            liveness.ending,
            self.last_report_wall_s,
            self.last_step,
            self.admitted,
            self.duplicates,
            self.first_sequence,
            self.last_sequence,
            self.steps.draft(),
            self._breakdown,
            self.latest,
            self.clock.samples,
            liveness.is_stalled,
            liveness.stall,
            liveness.unresponsive,
            liveness.progress,
            liveness.seen,
            liveness.ended_collector_ns,
            self.is_awaited,
        )

    def snapshot(self, now_collector_ns: int) -> RankSnapshot:
        """Return its snapshot alone, without medians and collectives."""
        return self.draft().build(now_collector_ns, NO_MEDIANS, ())
