"""What the state of a run takes from a report; the rest stays in the frame it came in (latest.py).

A report is a hundred objects, 3.5 KB. Those of some hundred reports on their way from one thread to the other are more
than a core's cache holds: to make and to free them was a quarter of what the collector computed at 8,192 ranks. Of an
excerpt there are twenty, and the report it was made from is let go of at once, so that the next one is made in the same
memory.
"""

from typing import Final

import msgspec

from rankscope.measure.codec import encode
from rankscope.measure.messages import Report
from rankscope.measure.records import AllocatorSample, Collectives, GroupInfo, WindowBreakdown
from rankscope.measure.stalls import GroupStatus, Stall
from rankscope.measure.table import Table

NAMES_MAX: Final = 1024
"""Lists of column names that are shared among reports: a program has one or two. A stranger may send any."""

_NO_COLLECTIVES: Final = Collectives()
_shared_names: dict[tuple[str, ...], tuple[str, ...]] = {}


class StepsSaid(msgspec.Struct, frozen=True, gc=False):
    """What the agent says of its steps in a report: as Losses and Totals have it."""

    made: int | None
    buffered: int | None
    overwritten: int
    dropped_in_reports: int
    reported: int


class Excerpt(msgspec.Struct, frozen=True, gc=False):
    """Of one report. The fields are the report's, but for these:

    `said`: what it says of its steps. `step_ns`: all steps of the life so far, in ns. `gc_pause_ns`: of its host
    sample. `has_host`, `has_devices`: whether it has such samples. `frame`: the report as it came.
    """

    sequence: int
    host_ns: int
    steps: Table
    collectives: Collectives
    covered_steps: tuple[tuple[int, int], ...]
    breakdowns: tuple[WindowBreakdown, ...]
    groups: tuple[GroupInfo, ...] | None
    allocator: AllocatorSample | None
    progress: tuple[GroupStatus, ...]
    stalled_since_host_ns: int | None
    stall: Stall | None
    said: StepsSaid
    step_ns: int
    reports_dropped: int
    gc_pause_ns: int | None
    has_host: bool
    has_devices: bool
    frame: bytes

    @classmethod
    def of(cls, report: Report, frame: bytes = b"") -> "Excerpt":
        """The excerpt of a report. `frame` is the report as it came; where that is not known it is packed anew."""
        steps, host, losses, totals = report.steps, report.host, report.losses, report.totals
        return cls(
            report.sequence,
            report.host_ns,
            Table(_share(steps.names), steps.row_count, steps.data),
            report.collectives if report.collectives.table.row_count else _NO_COLLECTIVES,
            report.covered_steps,
            report.breakdowns,
            report.groups,
            report.allocator,
            report.progress,
            report.stalled_since_host_ns,
            report.stall,
            StepsSaid(
                losses.steps_made,
                losses.steps_buffered,
                losses.steps_overwritten,
                losses.steps_dropped_in_reports,
                totals.steps,
            ),
            totals.step_ns,
            losses.reports_dropped,
            None if host is None else host.gc_pause_ns,
            host is not None,
            bool(report.devices),
            frame or encode(report),
        )


def _share(names: tuple[str, ...]) -> tuple[str, ...]:
    """The same names, as one object for all reports that have them."""
    shared = _shared_names.get(names)
    if shared is None:
        if len(_shared_names) >= NAMES_MAX:
            _shared_names.clear()
        shared = _shared_names[names] = names
    return shared
