"""What the last report of a rank says beside its steps: kept as the bytes that came, and read when a picture asks.

As objects the totals, losses, costs and samples of a rank are a hundred, 5 KB; the report's own frame is one block of a
kilobyte, and to keep it costs nothing, where packing them anew took 3 us of each report. The codec has checked all of
the frame before it came here. The samples stay until there is a newer one: not every report has each of them.
"""

import typing
from typing import Any, Final, NamedTuple

import msgspec

from rankscope.measure.codec import encode, find_body
from rankscope.measure.messages import Report
from rankscope.measure.records import (
    AgentCost,
    AllocatorSample,
    Collectives,
    DeviceSample,
    GroupInfo,
    HostSample,
    Losses,
    Totals,
    WindowBreakdown,
)
from rankscope.measure.stalls import GroupStatus, Stall
from rankscope.measure.table import Table

# What the state of a run takes from a report; the rest stays in the frame it came in (last_report.py).
#
# A report is a hundred objects, 3.5 KB. Those of some hundred reports on their way from one thread to the other are
# more than a core's cache holds: to make and to free them was a quarter of what the collector computed at 8,192 ranks.
# Of an excerpt there are twenty, and the report it was made from is let go of at once, so that the next one is made in
# the same memory.

NAMES_MAX: Final = 1024
"""Lists of column names that are shared among reports: a program has one or two. A stranger may send any."""

_NO_COLLECTIVES: Final = Collectives()
_shared_names: dict[tuple[str, ...], tuple[str, ...]] = {}


class StepTotals(msgspec.Struct, frozen=True, gc=False):
    """What the agent says of its steps in a report: as Losses and Totals have it."""

    made: int | None
    buffered: int | None
    overwritten: int
    dropped_in_reports: int
    reported: int


class ReportFields(msgspec.Struct, frozen=True, gc=False):
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
    said: StepTotals
    step_ns: int
    reports_dropped: int
    gc_pause_ns: int | None
    has_host: bool
    has_devices: bool
    frame: bytes

    @classmethod
    def of(cls, report: Report, frame: bytes = b"") -> "ReportFields":
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
            StepTotals(
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


FRAME_BYTES_KEPT: Final = 4096
"""A larger frame, of a thousand collectives or a stall, is not kept: what is needed of it is packed alone."""


class Counted(NamedTuple):
    """What every report has: the totals of the life so far, its losses, and what the agent costs."""

    totals: Totals = Totals()
    losses: Losses = Losses()
    overhead_ratio: float | None = None
    cost: AgentCost = AgentCost()


def _make_reader(*names: str) -> msgspec.msgpack.Decoder[Any]:
    """Reads these fields of a report's body; of the others, and of what comes after them, it makes no objects."""
    types = typing.get_type_hints(Report, include_extras=True)
    fields: list[Any] = []
    for field in msgspec.structs.fields(Report):
        kind = types[field.name] if field.name in names else msgspec.Raw
        if field.required:
            fields.append((field.name, kind))
        else:
            fields.append((field.name, kind, field.default if field.name in names else msgspec.Raw()))
        if field.name == names[-1]:
            break
    part = msgspec.defstruct("Part", fields, array_like=True, frozen=True, gc=False, kw_only=True)
    return msgspec.msgpack.Decoder(part)


_KEPT_FIELDS: Final = (
    "sequence", "host_ns", "host", "devices", "totals", "losses", "overhead_ratio", "cost", "allocator",
)  # fmt: skip
_KEPT: Final = _make_reader(*_KEPT_FIELDS)
_COUNTED: Final = _make_reader("totals", "losses", "overhead_ratio", "cost")
_HOST: Final = _make_reader("host")
_DEVICES: Final = _make_reader("devices")
_ALLOCATOR: Final = _make_reader("allocator")
_TOTALS: Final = _make_reader("totals")
_DEVICES_AND_TOTALS: Final = _make_reader("devices", "totals")


class LastReport(msgspec.Struct, frozen=True, gc=False):
    """The frame of the last report, and of the last ones that had each sample; never changed, so that pictures may
    refer to it. Read anew whenever asked for.
    """

    _counted: bytes = b""
    _host: bytes = b""
    _devices: bytes = b""
    _allocator: bytes = b""

    @classmethod
    def restore(cls, totals: Totals, losses: Losses, devices: tuple[DeviceSample, ...]) -> "LastReport":
        """What a collector had saved that is no more."""
        frame = encode(Report(sequence=1, host_ns=0, totals=totals, losses=losses, devices=devices))
        return cls(frame, b"", frame)

    def after(self, report: ReportFields) -> "LastReport":
        """The same with what a report has that is newer."""
        frame = report.frame if len(report.frame) <= FRAME_BYTES_KEPT else _pack(report.frame)
        return LastReport(
            frame,
            frame if report.has_host else self._host,
            frame if report.has_devices else self._devices,
            self._allocator if report.allocator is None else frame,
        )

    @property
    def counted(self) -> Counted:
        """What every report has."""
        if not self._counted:
            return Counted()
        part = _COUNTED.decode(find_body(self._counted))
        return Counted(part.totals, part.losses, part.overhead_ratio, part.cost)

    @property
    def totals(self) -> Totals:
        """Those of `counted`, without making the rest."""
        return _TOTALS.decode(find_body(self._counted)).totals if self._counted else Totals()

    @property
    def devices_and_totals(self) -> tuple[tuple[DeviceSample, ...], Totals]:
        """Both, in three quarters of the time where they are in one report, as mostly."""
        if self._counted and self._counted is self._devices:
            part = _DEVICES_AND_TOTALS.decode(find_body(self._counted))
            return part.devices, part.totals
        return self.devices, self.totals

    @property
    def host(self) -> HostSample | None:
        """The last sample of the rank's process; None before any."""
        return _HOST.decode(find_body(self._host)).host if self._host else None

    @property
    def devices(self) -> tuple[DeviceSample, ...]:
        """The last sample of each GPU; none before any."""
        return _DEVICES.decode(find_body(self._devices)).devices if self._devices else ()

    @property
    def allocator(self) -> AllocatorSample | None:
        """The last sample of torch's allocator; None before any."""
        return _ALLOCATOR.decode(find_body(self._allocator)).allocator if self._allocator else None


def _pack(frame: bytes) -> bytes:
    """The frame of a report that has nothing but what is kept of this one."""
    part = _KEPT.decode(find_body(frame))
    return encode(Report(**{name: getattr(part, name) for name in _KEPT_FIELDS}))


NOTHING_REPORTED: Final = LastReport()
