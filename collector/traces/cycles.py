"""Set the cycles of a profiler's schedule side by side: the mean step of each rank in each cycle. Pure."""

from collections.abc import Mapping, Sequence

from rankscope.collector.traces.report import Breakdown, CycleRow, RankReport, TraceReport


def build_cycle_rows(reports: Mapping[int, TraceReport]) -> list[CycleRow]:
    """Return a row for each rank of each cycle's report, by cycle. The difference is from the rank's cycle before, of
    those that have steps.
    """
    rows, before_ns = [], dict[int | None, int]()
    for cycle in sorted(reports):
        slow = _find_slow(reports[cycle])
        for rank in reports[cycle].ranks:
            row = _build_row(cycle, rank, before_ns.get(rank.rank), is_slow=None if slow is None else rank.rank in slow)
            rows.append(row)
            if row.step_ns is not None:
                before_ns[rank.rank] = row.step_ns
    return rows


def _find_slow(report: TraceReport) -> set[int] | None:
    """Return the ranks named as slow; None where ranks were not compared."""
    across = report.cross_rank
    if across is None or not (across.findings or across.standings):
        return None
    return report.named_ranks


def _build_row(cycle: int, rank: RankReport, before_ns: int | None, *, is_slow: bool | None) -> CycleRow:
    numbers = [step.step for step in rank.steps]
    spent = [step.on_device or step for step in rank.steps]
    step_ns = _mean_ns(spent, "window_ns")
    difference_ns = step_ns - before_ns if step_ns is not None and before_ns is not None else None
    return CycleRow(
        cycle=cycle,
        rank=rank.rank,
        file=rank.file,
        step_count=len(numbers),
        first_step=min(numbers, default=None),
        last_step=max(numbers, default=None),
        step_ns=step_ns,
        compute_ns=_mean_ns(spent, "compute_ns"),
        overlap_ns=_mean_ns(spent, "overlap_ns"),
        exposed_communication_ns=_mean_ns(spent, "exposed_communication_ns"),
        copy_ns=_mean_ns(spent, "copy_ns"),
        idle_ns=_mean_ns(spent, "idle_ns"),
        difference_ns=difference_ns,
        difference_ratio=difference_ns / before_ns if difference_ns is not None and before_ns else None,
        is_slow=is_slow,
    )


def _mean_ns(spent: Sequence[Breakdown], part: str) -> int | None:
    """Return the mean of a part over the steps, in whole ns; None without steps."""
    return round(sum(getattr(one, part) for one in spent) / len(spent)) if spent else None
