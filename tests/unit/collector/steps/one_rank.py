"""Fill a step table by one rank, as most tests do."""

import numpy as np

from rankscope.collector.steps.stacked_tables import stack_tables
from rankscope.collector.steps.step_table import StepTable
from rankscope.measure.records import Collectives
from rankscope.measure.table import Table


def add_steps(window: StepTable, rank: int, table: Table) -> int:
    """Store a rank's steps; return how many came too late for the ring."""
    return sum(int(window.add_steps_of(np.array([rank]), block).sum()) for _, block in stack_tables([table]))


def add_collectives(window: StepTable, rank: int, collectives: Collectives) -> None:
    """Keep a rank's collectives until those of all ranks have come."""
    for _, block in stack_tables([collectives.table]):
        window.add_collectives_of([rank], [collectives], block)


def mark_complete(window: StepTable, rank: int, first_step: int, last_step: int, *, is_timed: bool = False) -> None:
    """Record that all collectives of these steps of that rank have come."""
    window.mark_complete_of(np.array([rank]), first_step, last_step, is_timed=is_timed)
