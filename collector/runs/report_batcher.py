"""Add the reports of an attempt to its table of steps in batches. Pure.

numpy takes as long for the one row of a report as for a hundred rows: added alone, a report costs 100 us, in a batch of
a hundred 2 us. So the fields of a report are stored at once, and its tables wait here until `flush`, which is called
after each batch of events, and before the table of steps is read.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rankscope.collector.invariants import require
from rankscope.collector.runs.rank import RankState
from rankscope.collector.runs.report_fields import ReportFields
from rankscope.collector.steps.enqueue_times import EnqueueTimes
from rankscope.collector.steps.stacked_tables import stack_tables
from rankscope.collector.steps.step_table import StepTable


class PendingReport(NamedTuple):
    """A report that was admitted, and the number of its rank."""

    rank: int
    report: ReportFields


class ReportBatcher:
    """The reports of one attempt that are not in its step table yet. `enqueues` gets what is in none."""

    def __init__(self, window: StepTable, enqueues: EnqueueTimes, ranks: dict[int, RankState]) -> None:
        self._window = window
        self._enqueues = enqueues
        #: The ranks of the attempt, whose states `flush` replaces.
        self._ranks = ranks
        #: In the order of their arrival.
        self._pending: list[PendingReport] = []

    @property
    def pending(self) -> int:
        """Reports that are not in the step table yet."""
        return len(self._pending)

    def add(self, rank: int, report: ReportFields) -> None:
        """Add a report; those of one rank come in their order."""
        self._pending.append(PendingReport(rank, report))

    def flush(self) -> None:
        """Add everything pending to the table."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        self._place_steps(pending)
        with_collectives = [one for one in pending if one.report.collectives.table.row_count]
        for places, block in stack_tables([one.report.collectives.table for one in with_collectives]):
            chosen = [with_collectives[place] for place in places]
            numbers = [one.rank for one in chosen]
            self._window.add_collectives_of(numbers, [one.report.collectives for one in chosen], block)
        self._mark_complete(pending)
        self._add_enqueues(pending)

    def validate(self) -> None:
        """Raise InvariantError where an invariant does not hold; tests call it after events."""
        require(all(one.rank in self._ranks for one in self._pending), "a report of an unknown rank is pending")

    def _place_steps(self, pending: Sequence[PendingReport]) -> None:
        numbers = np.array([one.rank for one in pending], dtype=np.int64)
        late, last = np.zeros(len(pending), dtype=np.int64), np.full(len(pending), -1)
        for places, block in stack_tables([one.report.steps for one in pending]):
            late[places] = self._window.add_steps_of(numbers[places], block)
            last[places] = block.column("step").max(axis=1, initial=-1)
        ranks = self._ranks
        for (rank, report), late_rows, step in zip(pending, late.tolist(), last.tolist(), strict=True):
            ranks[rank] = ranks[rank].record_steps(report, late_rows, step)

    def _add_enqueues(self, pending: Sequence[PendingReport]) -> None:
        """Add the times at which collectives were enqueued; ranks of one booted machine share its clock."""
        for rank, report in pending:
            if report.enqueues is not None:
                self._enqueues.add(rank, self._ranks[rank].identity.machine_id or rank, report.enqueues)
        self._enqueues.match(lambda rank, host_ns: self._ranks[rank].clock.at_host_time(host_ns))

    def _mark_complete(self, pending: Sequence[PendingReport]) -> None:
        """Mark the steps of profiler windows, and those that are timed; ranks mostly have the same ones."""
        ranks: dict[tuple[int, int, bool], list[int]] = {}
        for one in pending:
            for first_step, last_step in one.report.covered_steps:
                ranks.setdefault((first_step, last_step, False), []).append(one.rank)
            for first_step, last_step in one.report.timed_steps:
                ranks.setdefault((first_step, last_step, True), []).append(one.rank)
        for (first_step, last_step, is_timed), numbers in ranks.items():
            self._window.mark_complete_of(np.unique(numbers), first_step, last_step, is_timed=is_timed)
