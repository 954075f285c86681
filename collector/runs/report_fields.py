"""Define the fields of a report that the state of its run works with. Pure.

Reports wait in batches: between the receive thread and the run, where of 16,384 ranks thousands gather during a
detection pass, and until the step table has them. As they are decoded each would take 3.5 KB more, of totals, losses,
costs and samples that nobody reads before a snapshot is built, and some hundred would exceed a core's cache
(docs/scale.md). Those stay in the frame, which is one block.
"""

from typing import Final

import msgspec

from rankscope.collector.runs.ratio_basis import ON_DEMAND
from rankscope.measure.codec import encode
from rankscope.measure.enqueues import Enqueues
from rankscope.measure.messages import Report
from rankscope.measure.out_of_memory import OutOfMemory
from rankscope.measure.records import (
    AllocatorSample,
    Collectives,
    Compilations,
    GroupInfo,
    HostSample,
    LayerTimes,
    NodeSample,
    PipelineSchedule,
    WindowBreakdown,
    WindowSynchronizations,
)
from rankscope.measure.stalls import GroupStatus, QuietPlace, Stall
from rankscope.measure.table import Table

NAMES_MAX: Final = 1024
"""Lists of column names shared among reports: a program has one or two, but a client may send any."""

_NO_COLLECTIVES: Final = Collectives()
_shared_names: dict[tuple[str, ...], tuple[str, ...]] = {}


class StepTotals(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the agent reports of its steps, from Losses and Totals."""

    made: int | None
    buffered: int | None
    overwritten: int
    dropped_in_reports: int
    reported: int


class HostTimes(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """When a host sample was read, the CPU time of the process until then, the wait of its main thread for one, its
    resident memory, the wait of that thread for block I/O, and the pauses of Python's garbage collector.
    """

    host_ns: int
    cpu_ns: int | None
    run_queue_wait_ns: int | None
    resident_bytes: int | None = None
    block_io_wait_ns: int | None = None
    gc_pause_ns: int | None = None


class ReportFields(msgspec.Struct, frozen=True, gc=False):
    """The fields of a report that the state of a run uses; the rest stays in `frame`, the report as it came. The
    report's objects, 3.5 KB, are freed at once.

    Derived fields: `step_totals`: its counts of steps. `step_ns`: all steps of the rank process so far, in ns.
    `host_times`: from its host sample. `has_host`, `has_devices`: whether it has such samples.
    `on_demand`: whether its breakdowns, if any, are of captures (`ratio_basis.py`).
    """

    sequence: int
    host_ns: int
    steps: Table
    collectives: Collectives
    covered_steps: tuple[tuple[int, int], ...]
    timed_steps: tuple[tuple[int, int], ...]
    breakdowns: tuple[WindowBreakdown, ...]
    synchronizations: tuple[WindowSynchronizations, ...]
    groups: tuple[GroupInfo, ...] | None
    allocator: AllocatorSample | None
    progress: tuple[GroupStatus, ...]
    stalled_since_host_ns: int | None
    stall: Stall | None
    node: NodeSample | None
    out_of_memory: tuple[OutOfMemory, ...]
    enqueues: Enqueues | None
    compilations: Compilations | None
    pipeline: PipelineSchedule | None
    layers: LayerTimes | None
    quiet: tuple[QuietPlace, ...]
    step_totals: StepTotals
    step_ns: int
    reports_dropped: int
    host_times: HostTimes | None
    has_host: bool
    has_devices: bool
    on_demand: bool
    frame: bytes

    @classmethod
    def of(cls, report: Report, frame: bytes = b"") -> "ReportFields":
        """Return the fields of a report. `frame` is the report as it came; without it the report is encoded anew."""
        steps, host, losses, totals = report.steps, report.host, report.losses, report.totals
        return cls(
            report.sequence,
            report.host_ns,
            Table(_share(steps.names), steps.row_count, steps.data),
            report.collectives if report.collectives.table.row_count else _NO_COLLECTIVES,
            report.covered_steps,
            report.timed_steps,
            report.breakdowns,
            report.synchronizations,
            report.groups,
            report.allocator,
            report.progress,
            report.stalled_since_host_ns,
            report.stall,
            report.node,
            report.out_of_memory,
            report.enqueues,
            report.compilations,
            report.pipeline,
            report.layers,
            report.quiet,
            StepTotals(
                losses.steps_made,
                losses.steps_buffered,
                losses.steps_overwritten,
                losses.steps_dropped_in_reports,
                totals.steps,
            ),
            totals.step_ns,
            losses.reports_dropped,
            None if host is None else _read_host(host),
            host is not None,
            bool(report.devices),
            report.cost.window_effect == ON_DEMAND,
            frame or encode(report),
        )


def _read_host(host: HostSample) -> HostTimes:
    return HostTimes(
        host.host_ns,
        host.cpu_ns,
        host.run_queue_wait_ns,
        host.resident_bytes,
        host.block_io_wait_ns,
        host.gc_pause_ns,
    )


def _share(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the same names, as one object for all reports that have them."""
    shared = _shared_names.get(names)
    if shared is None:
        if len(_shared_names) >= NAMES_MAX:
            _shared_names.clear()
        shared = _shared_names[names] = names
    return shared
