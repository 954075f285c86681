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

from rankscope.collector.runs.last_report import ReportFields, StepTotals


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


class StepCountInputs(msgspec.Struct, frozen=True, gc=False):
    """Inputs of the account: since when the process is known, what was published and late, and the last report, None
    where only the counts of an earlier collector are known.
    """

    is_known_from_birth: bool
    reported_before: int
    published: int
    late: int
    said: StepTotals | None
    restored: StepCounts

    def build(self) -> StepCounts:
        """Return the account as of that report."""
        said = self.said
        if said is None:
            return self.restored
        not_here = max(0, said.reported - self.published - self.late)
        missing_since = max(0, not_here - self.reported_before)
        dropped = min(max(missing_since, said.dropped_in_reports), not_here)
        if self.is_known_from_birth:
            dropped = not_here
        return StepCounts(
            made=said.made,
            buffered=said.buffered,
            published=self.published,
            published_elsewhere=not_here - dropped,
            overwritten=said.overwritten,
            dropped_in_reports=dropped,
            late=self.late,
        )


class StepAccounting:
    """Account of one rank process. `first_sequence` is from its first Hello: one known from number 1 on has reported to
    no other collector.
    """

    def __init__(self, first_sequence: int) -> None:
        self._is_known_from_birth = first_sequence == 1
        self._reported_before: int | None = None
        self._published = 0
        self.late = 0
        """Records that came too late to be compared."""
        self._saved_reported: int | None = None
        self._saved_dropped = 0
        self._said: StepTotals | None = None
        self._restored = NOTHING_COUNTED

    def restore(self, counts: StepCounts, dropped_said: int) -> None:
        """Restore the counts of an earlier collector; `dropped_said` is the agent's count of dropped records by then.
        Late records are saved at once, the others with a delay: those acknowledged after that are not sent again, and
        count as published when the next report shows how many they are.
        """
        self._published, self.late = counts.published, counts.late
        self._reported_before = counts.published_elsewhere
        self._saved_reported = counts.published + counts.late + counts.published_elsewhere + counts.dropped_in_reports
        self._saved_dropped = dropped_said
        self._restored = counts

    def record_report(self, report: ReportFields, late: int) -> None:
        """Record a report that was admitted, `late` of whose step records came too late to be compared."""
        rows, said = report.steps.row_count, report.said
        if self._reported_before is None:
            self._reported_before = 0 if self._is_known_from_birth else max(0, said.reported - rows)
        if self._saved_reported is not None:
            dropped_since = max(0, said.dropped_in_reports - self._saved_dropped)
            self._published += max(0, said.reported - rows - self._saved_reported - dropped_since)
            self._saved_reported = None
        self._published += rows - late
        self.late += late
        self._said = said

    def draft(self) -> StepCountInputs:
        """Return the inputs of the account at this time."""
        before = self._reported_before or 0
        return StepCountInputs(
            self._is_known_from_birth, before, self._published, self.late, self._said, self._restored
        )

    @property
    def counts(self) -> StepCounts:
        """The account at this time."""
        return self.draft().build()
