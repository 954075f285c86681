"""Hold what the last report of a rank says beside its steps: the frame as it came, decoded on demand. Pure.

As objects the totals, losses, costs and samples of a rank are 5 KB; the frame is one block of a kilobyte, which the
codec has checked already. A sample stays until a newer report has one.
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

NAMES_MAX: Final = 1024
"""Lists of column names shared among reports: a program has one or two, but a client may send any."""

_NO_COLLECTIVES: Final = Collectives()
_shared_names: dict[tuple[str, ...], tuple[str, ...]] = {}


class StepTotals(msgspec.Struct, frozen=True, gc=False):
    """What the agent reports of its steps, from Losses and Totals."""

    made: int | None
    buffered: int | None
    overwritten: int
    dropped_in_reports: int
    reported: int


class ReportFields(msgspec.Struct, frozen=True, gc=False):
    """The fields of a report that the state of a run uses; the rest stays in `frame`, the report as it came. The
    report's objects, 3.5 KB, are freed at once.

    Derived fields: `said`: its counts of steps. `step_ns`: all steps of the rank process so far, in ns. `gc_pause_ns`:
    from its host sample. `has_host`, `has_devices`: whether it has such samples.
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
        """Return the fields of a report. `frame` is the report as it came; without it the report is encoded anew."""
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
    """Return the same names, as one object for all reports that have them."""
    shared = _shared_names.get(names)
    if shared is None:
        if len(_shared_names) >= NAMES_MAX:
            _shared_names.clear()
        shared = _shared_names[names] = names
    return shared


FRAME_BYTES_KEPT: Final = 4096
"""A larger frame, of a thousand collectives or a stall, is reduced to the fields that are needed."""


class Counted(NamedTuple):
    """The parts of every report: the totals of the rank process, its losses, and the agent's cost."""

    totals: Totals = Totals()
    losses: Losses = Losses()
    overhead_ratio: float | None = None
    cost: AgentCost = AgentCost()


def _make_reader(*names: str) -> msgspec.msgpack.Decoder[Any]:
    """Return a decoder of these fields of a report's body, which makes no objects of the others."""
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
    """The frame of the last report, and of the last ones with each kind of sample. Never changed, so that snapshots may
    refer to it. Decoded on each access.
    """

    _counted: bytes = b""
    _host: bytes = b""
    _devices: bytes = b""
    _allocator: bytes = b""

    @classmethod
    def restore(cls, totals: Totals, losses: Losses, devices: tuple[DeviceSample, ...]) -> "LastReport":
        """Return what an earlier collector had saved."""
        frame = encode(Report(sequence=1, host_ns=0, totals=totals, losses=losses, devices=devices))
        return cls(frame, b"", frame)

    def after(self, report: ReportFields) -> "LastReport":
        """Return this, updated by a report."""
        frame = report.frame if len(report.frame) <= FRAME_BYTES_KEPT else _pack(report.frame)
        return LastReport(
            frame,
            frame if report.has_host else self._host,
            frame if report.has_devices else self._devices,
            self._allocator if report.allocator is None else frame,
        )

    @property
    def counted(self) -> Counted:
        """The parts of every report."""
        if not self._counted:
            return Counted()
        part = _COUNTED.decode(find_body(self._counted))
        return Counted(part.totals, part.losses, part.overhead_ratio, part.cost)

    @property
    def totals(self) -> Totals:
        """The totals of `counted`, without decoding the rest."""
        return _TOTALS.decode(find_body(self._counted)).totals if self._counted else Totals()

    @property
    def devices_and_totals(self) -> tuple[tuple[DeviceSample, ...], Totals]:
        """Both, decoded at once where they are in one report, as mostly."""
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
        """The last sample of each GPU; empty before any."""
        return _DEVICES.decode(find_body(self._devices)).devices if self._devices else ()

    @property
    def allocator(self) -> AllocatorSample | None:
        """The last sample of torch's allocator; None before any."""
        return _ALLOCATOR.decode(find_body(self._allocator)).allocator if self._allocator else None


def _pack(frame: bytes) -> bytes:
    """Return the frame of a report with only the fields that are kept."""
    part = _KEPT.decode(find_body(frame))
    return encode(Report(**{name: getattr(part, name) for name in _KEPT_FIELDS}))


NOTHING_REPORTED: Final = LastReport()
