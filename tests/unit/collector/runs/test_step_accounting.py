"""The account of the step records of a rank process, by the agent's counts and by what was admitted here."""

import pytest

from rankscope.collector.runs.report_fields import ReportFields
from rankscope.collector.runs.step_accounting import StepAccounting, StepCounts
from rankscope.measure.messages import Report
from rankscope.measure.records import Losses, StepRecord, Totals, steps_to_table


def report(sequence: int, steps: int, total: int, **losses: int) -> Report:
    """Report `sequence` with so many steps, `total` of them in all reports so far; the agent told its losses."""
    records = [StepRecord(step=number, start_host_ns=0, duration_ns=1, phases_ns={}) for number in range(steps)]
    told = {"steps_made": total, "steps_buffered": 0, **losses}
    return Report(
        sequence=sequence,
        host_ns=0,
        steps=steps_to_table(records),
        totals=Totals(steps=total),
        losses=Losses(**told),  # type: ignore[arg-type]
    )


def account_of(*reports: Report, first_sequence: int = 1, late: int = 0) -> StepCounts:
    account = StepAccounting(first_sequence == 1)
    for each in reports:
        account = account.record_report(ReportFields.of(each), late)
    assert account.counts.unaccounted == 0
    return account.counts


def test_without_losses_every_record_is_published() -> None:
    counts = account_of(report(1, 4, 4), report(2, 3, 7))
    assert counts == StepCounts(made=7, buffered=0, published=7)


def test_records_in_reports_that_never_came_are_dropped() -> None:
    """Reports 2 and 3 held 11 - 4 - 2 = 5 steps; the agent had not told yet when it made report 4."""
    counts = account_of(report(1, 4, 4), report(4, 2, 11))
    assert (counts.published, counts.dropped_in_reports, counts.published_elsewhere) == (6, 5, 0)


def test_report_with_a_lost_acknowledgement_is_not_dropped() -> None:
    counts = account_of(report(1, 4, 4), report(2, 3, 7, steps_dropped_in_reports=4))
    assert (counts.published, counts.dropped_in_reports) == (7, 0)


def test_records_of_an_earlier_collector_are_not_lost() -> None:
    counts = account_of(report(9, 2, 20), report(10, 3, 23), first_sequence=9)
    assert (counts.published, counts.published_elsewhere, counts.dropped_in_reports) == (5, 18, 0)


def test_earlier_drops_are_counted_by_the_agent() -> None:
    """Of the 18 steps reported before, the agent has dropped 6; the rest another collector has."""
    counts = account_of(report(9, 2, 20, steps_dropped_in_reports=6), first_sequence=9)
    assert (counts.published_elsewhere, counts.dropped_in_reports) == (12, 6)


def test_later_drops_are_not_the_earlier_collectors() -> None:
    counts = account_of(report(9, 2, 20), report(12, 1, 30), first_sequence=9)
    assert (counts.published_elsewhere, counts.dropped_in_reports) == (18, 9)  # 30 - 20 - 1 = 9 in reports 10 and 11


def test_the_agent_cannot_have_dropped_more_than_is_not_here() -> None:
    counts = account_of(report(9, 2, 20, steps_dropped_in_reports=99), first_sequence=9)
    assert (counts.published_elsewhere, counts.dropped_in_reports) == (0, 18)


def restored(counts: StepCounts, next_report: Report, *, first_sequence: int = 1, dropped_said: int = 0) -> StepCounts:
    account = StepAccounting.restore(first_sequence, counts, dropped_said)
    account = account.record_report(ReportFields.of(next_report), 0)
    assert account.counts.unaccounted == 0
    return account.counts


def test_records_acknowledged_after_the_save_stay_published() -> None:
    """Saved when 7 steps were published; 12 - 2 - 7 = 3 more had been acknowledged when the collector was killed."""
    counts = restored(StepCounts(made=7, buffered=0, published=7), report(5, 2, 12))
    assert (counts.published, counts.dropped_in_reports, counts.published_elsewhere) == (12, 0, 0)


def test_drops_without_a_collector_are_not_published() -> None:
    """Of the 12 - 2 - 7 = 3 steps that did not come here the agent has dropped 2."""
    saved = StepCounts(made=9, buffered=0, published=4, published_elsewhere=2, dropped_in_reports=1)
    told = report(5, 2, 12, steps_dropped_in_reports=3)
    counts = restored(saved, told, first_sequence=3, dropped_said=1)
    assert (counts.published, counts.dropped_in_reports, counts.published_elsewhere) == (4 + 1 + 2, 3, 2)


def test_restored_account_continues_after_one_report() -> None:
    account = StepAccounting.restore(1, StepCounts(made=7, buffered=0, published=6, late=1), 0)
    account = account.record_report(ReportFields.of(report(5, 2, 12)), 1)
    account = account.record_report(ReportFields.of(report(8, 3, 20)), 0)
    counts = account.counts
    assert (counts.published, counts.late, counts.dropped_in_reports) == (6 + 3 + 1 + 3, 2, 5)


def test_late_records_are_not_published() -> None:
    counts = account_of(report(1, 4, 4), late=1)
    assert (counts.published, counts.late) == (3, 1)


def test_overwritten_and_buffered_records_are_in_no_report() -> None:
    counts = account_of(report(1, 4, 4, steps_made=9, steps_overwritten=3, steps_buffered=2))
    assert (counts.published, counts.overwritten, counts.buffered) == (4, 3, 2)


def test_unaccounted_records_are_the_difference() -> None:
    account = StepAccounting(is_known_from_birth=True).record_report(ReportFields.of(report(1, 4, 4, steps_made=6)), 0)
    assert account.counts.unaccounted == 2


@pytest.mark.parametrize("losses", [Losses(), Losses(steps_made=4), Losses(steps_buffered=0)])
def test_unaccounted_is_unknown_for_old_agents(losses: Losses) -> None:
    account = StepAccounting(is_known_from_birth=True).record_report(
        ReportFields.of(Report(sequence=1, host_ns=0, losses=losses)), 0
    )
    assert account.counts.unaccounted is None
