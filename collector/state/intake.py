"""Reports whose steps and collectives wait to be placed in the window together.

numpy takes as long for the one row of a report as for a hundred rows: placed alone, a report costs 100 us, in a batch
of a hundred 2 us. So what a report says of its rank is taken at once, and its tables wait here until `settle`, which
whoever handles events calls after each batch, and the run itself before it looks at anything.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from rankscope.collector.state.excerpt import Excerpt
from rankscope.collector.state.rank import RankState
from rankscope.collector.steps.step_table import StepWindow
from rankscope.collector.turns import go_on
from rankscope.measure.table import stack_tables


class Waiting(NamedTuple):
    """A report that was admitted, and its rank."""

    rank: RankState
    report: Excerpt


class Intake:
    """The reports of one attempt on their way into its window."""

    def __init__(self, window: StepWindow) -> None:
        self._window = window
        self._waiting: list[Waiting] = []

    def add(self, rank: RankState, report: Excerpt) -> None:
        """One more; reports of one rank come in their order."""
        self._waiting.append(Waiting(rank, report))

    def settle(self, rest: Callable[[], None] = go_on) -> None:
        """Place everything that waits. `rest` is called between the parts of it."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        self._place_steps(waiting)
        rest()
        told = [one for one in waiting if one.report.collectives.table.row_count]
        for places, block in stack_tables([one.report.collectives.table for one in told]):
            chosen = [told[place] for place in places]
            numbers = [one.rank.identity.rank for one in chosen]
            self._window.add_collectives_of(numbers, [one.report.collectives for one in chosen], block)
            rest()
        self._cover(waiting)

    def _place_steps(self, waiting: Sequence[Waiting]) -> None:
        numbers = np.array([one.rank.identity.rank for one in waiting], dtype=np.int64)
        late, last = np.zeros(len(waiting), dtype=np.int64), np.full(len(waiting), -1)
        for places, block in stack_tables([one.report.steps for one in waiting]):
            late[places] = self._window.add_steps_of(numbers[places], block)
            last[places] = block.column("step").max(axis=1, initial=-1)
        for (rank, report), late_rows, step in zip(waiting, late.tolist(), last.tolist(), strict=True):
            rank.steps.take(report, late_rows)
            if report.steps.row_count:
                rank.last_step = step

    def _cover(self, waiting: Sequence[Waiting]) -> None:
        """Ranks mostly cover the same steps, those of one window of the profiler."""
        ranks: dict[tuple[int, int], list[int]] = {}
        for one in waiting:
            for covered in one.report.covered_steps:
                ranks.setdefault(covered, []).append(one.rank.identity.rank)
        for (first_step, last_step), numbers in ranks.items():
            self._window.cover_of(np.unique(numbers), first_step, last_step)


def find_end_of_steps(report: Excerpt, now_job_ns: int) -> int:
    """When the last step of a report that comes now ended: so long ago as it had when the report was made."""
    if not report.steps.row_count:
        return now_job_ns
    ends_host_ns = report.steps.column("start_host_ns") + report.steps.column("duration_ns")
    return now_job_ns - max(0, report.host_ns - int(ends_host_ns.max()))
