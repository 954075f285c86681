"""Account for the step records of one rank process: each is published, lost and counted, or still with the agent. Pure.

    made = published + published_elsewhere + overwritten + dropped_in_reports + late + buffered

It holds at any time, as of the last report admitted. Both sides count for themselves: `made`, `overwritten` and
`buffered` are the agent's (Losses), `published` and `late` are counted here, row by row. The remainder, records in
reports that this collector does not have, is the agent's count of reported records less those received here. They were
dropped from the agent's full buffer, or delivered to an earlier collector. Only the agent knows which, and it may count
one as dropped whose acknowledgement was lost. So its count is used between two bounds: at least what is missing since
the process is known here, at most all that is not here.
"""

from typing import Final

import msgspec

from rankscope.collector.runs.report_fields import ReportFields, StepTotals


class StepCounts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Step records of a rank process by destination, up to the last report admitted.

    `made` and `buffered` (made, but in no report yet) are None where the agent does not report them: one older than
    0.1.0.
    """

    made: int | None = None
    buffered: int | None = None
    published: int = 0
    published_elsewhere: int = 0
    overwritten: int = 0
    dropped_in_reports: int = 0
    late: int = 0

    @property
    def unaccounted(self) -> int | None:
        """Records that are nowhere: 0 unless a count is wrong; None where the agent does not report it.

        >>> StepCounts(made=12, buffered=1, published=6, overwritten=2, dropped_in_reports=3).unaccounted
        0
        """
        if self.made is None or self.buffered is None:
            return None
        lost = self.overwritten + self.dropped_in_reports + self.late
        return self.made - self.buffered - self.published - self.published_elsewhere - lost


NOTHING_COUNTED: Final = StepCounts()
RECORDS_MAX: Final = 2**62
"""Bound of a count that is added to others, so that the sum can be encoded, whatever the rank has sent."""


class StepAccounting(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Account of one rank process. Never changed: each report makes another one."""

    #: Whether it has reported to no other collector: its first Hello here announced number 1.
    is_known_from_birth: bool
    #: Records that were with an earlier collector when the process became known here; None before any report.
    reported_before: int | None = None
    #: Records that came in time to be compared. Only grows.
    published: int = 0
    #: Records that came too late to be compared. Only grows.
    late: int = 0
    #: The agent's own counts, as of the last report; None before any.
    reported: StepTotals | None = None
    #: The account of an earlier collector, until the first report here; then None.
    restored: StepCounts | None = None
    #: The agent's count of dropped records when that account was saved.
    restored_dropped: int = 0

    @classmethod
    def restore(cls, first_sequence: int, counts: StepCounts, dropped: int) -> "StepAccounting":
        """Return the account of an earlier collector; `dropped` is the agent's count of dropped records by then."""
        return cls(
            first_sequence == 1, counts.published_elsewhere, counts.published, counts.late, None, counts, dropped
        )

    def record_report(self, report: ReportFields, late: int) -> "StepAccounting":
        """Return this with a report that was admitted, `late` of whose step records came too late to be compared."""
        rows, reported, before = report.steps.row_count, report.step_totals, self.reported_before
        if before is None:
            before = 0 if self.is_known_from_birth else max(0, reported.reported - rows)
        return StepAccounting(
            self.is_known_from_birth,
            before,
            self.published + self._count_saved_late(report) + rows - late,
            self.late + late,
            reported,
        )

    def _count_saved_late(self, report: ReportFields) -> int:
        """Return the records that the earlier collector acknowledged after it had saved its account. Late records are
        saved at once, the others with a delay: these are not sent again, and the first report here shows how many they
        are.
        """
        counts = self.restored
        if counts is None:
            return 0
        saved = counts.published + counts.late + counts.published_elsewhere + counts.dropped_in_reports
        reported = report.step_totals
        dropped_since = max(0, reported.dropped_in_reports - self.restored_dropped)
        return min(RECORDS_MAX, max(0, reported.reported - report.steps.row_count - saved - dropped_since))

    @property
    def counts(self) -> StepCounts:
        """The account as of the last report."""
        reported = self.reported
        if reported is None:
            return self.restored or NOTHING_COUNTED
        not_here = max(0, reported.reported - self.published - self.late)
        missing_since = max(0, not_here - (self.reported_before or 0))
        dropped = min(max(missing_since, reported.dropped_in_reports), not_here)
        if self.is_known_from_birth:
            dropped = not_here
        return StepCounts(
            made=reported.made,
            buffered=reported.buffered,
            published=self.published,
            published_elsewhere=not_here - dropped,
            overwritten=reported.overwritten,
            dropped_in_reports=dropped,
            late=self.late,
        )
