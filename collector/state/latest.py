"""What the last report of a rank says beside its steps: kept as the bytes that came, and read when a picture asks.

As objects the totals, losses, costs and samples of a rank are a hundred, 5 KB; the report's own frame is one block of a
kilobyte, and to keep it costs nothing, where packing them anew took 3 us of each report. The codec has checked all of
the frame before it came here. The samples stay until there is a newer one: not every report has each of them.
"""

import typing
from typing import Any, Final, NamedTuple

import msgspec

from rankscope.collector.state.excerpt import Excerpt
from rankscope.measure.codec import encode, find_body
from rankscope.measure.messages import Report
from rankscope.measure.records import AgentCost, AllocatorSample, DeviceSample, HostSample, Losses, Totals

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


class Latest(msgspec.Struct, frozen=True, gc=False):
    """The frame of the last report, and of the last ones that had each sample; never changed, so that pictures may
    refer to it. Read anew whenever asked for.
    """

    _counted: bytes = b""
    _host: bytes = b""
    _devices: bytes = b""
    _allocator: bytes = b""

    @classmethod
    def restore(cls, totals: Totals, losses: Losses, devices: tuple[DeviceSample, ...]) -> "Latest":
        """What a collector had saved that is no more."""
        frame = encode(Report(sequence=1, host_ns=0, totals=totals, losses=losses, devices=devices))
        return cls(frame, b"", frame)

    def after(self, report: Excerpt) -> "Latest":
        """The same with what a report has that is newer."""
        frame = report.frame if len(report.frame) <= FRAME_BYTES_KEPT else _pack(report.frame)
        return Latest(
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


NOTHING_REPORTED: Final = Latest()
