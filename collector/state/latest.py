"""What the last report of a rank says beside its steps, packed: nearly all of it is only asked for by a picture.

As objects the totals, losses, costs and samples of a rank are a hundred, 5 KB; packed they are 0.6, and the next report
lets go of one block of memory instead of a hundred small ones all over it. The samples stay until there is a newer one:
not every report has each of them.
"""

from typing import Final, NamedTuple

import msgspec

from rankscope.measure.messages import Report
from rankscope.measure.records import AgentCost, AllocatorSample, DeviceSample, HostSample, Losses, Totals

_ENCODER: Final = msgspec.msgpack.Encoder()


class Counted(NamedTuple):
    """What every report has: the totals of the life so far, its losses, and what the agent costs."""

    totals: Totals = Totals()
    losses: Losses = Losses()
    overhead_ratio: float | None = None
    cost: AgentCost = AgentCost()


_COUNTED: Final = msgspec.msgpack.Decoder(Counted)
_HOST: Final = msgspec.msgpack.Decoder(HostSample)
_DEVICES: Final = msgspec.msgpack.Decoder(tuple[DeviceSample, ...])
_ALLOCATOR: Final = msgspec.msgpack.Decoder(AllocatorSample)


class Latest(msgspec.Struct, frozen=True, gc=False):
    """The last of each, packed; never changed, so that pictures may refer to it. Unpacked anew whenever asked for."""

    _counted: bytes = _ENCODER.encode(Counted())
    _host: bytes = b""
    _devices: bytes = b""
    _allocator: bytes = b""

    @classmethod
    def restore(cls, totals: Totals, losses: Losses, devices: tuple[DeviceSample, ...]) -> "Latest":
        """What a collector had saved that is no more."""
        return cls(_ENCODER.encode(Counted(totals, losses)), b"", _ENCODER.encode(devices))

    def after(self, report: Report) -> "Latest":
        """The same with what a report has that is newer."""
        return Latest(
            _ENCODER.encode((report.totals, report.losses, report.overhead_ratio, report.cost)),
            self._host if report.host is None else _ENCODER.encode(report.host),
            _ENCODER.encode(report.devices) if report.devices else self._devices,
            self._allocator if report.allocator is None else _ENCODER.encode(report.allocator),
        )

    @property
    def counted(self) -> Counted:
        """What every report has."""
        return _COUNTED.decode(self._counted)

    @property
    def host(self) -> HostSample | None:
        """The last sample of the rank's process; None before any."""
        return _HOST.decode(self._host) if self._host else None

    @property
    def devices(self) -> tuple[DeviceSample, ...]:
        """The last sample of each GPU; none before any."""
        return _DEVICES.decode(self._devices) if self._devices else ()

    @property
    def allocator(self) -> AllocatorSample | None:
        """The last sample of torch's allocator; None before any."""
        return _ALLOCATOR.decode(self._allocator) if self._allocator else None


NOTHING_REPORTED: Final = Latest()
