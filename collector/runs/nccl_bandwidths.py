"""Say at what bandwidth NCCL's operations of a rank ran, by the dumps of its Inspector plugin, or why that is unknown.

They are as the plugin computes them, from the time of the kernel on this rank: of a rank that came early that includes
waiting for the last one, so of the members of a communicator the highest is the nearest to what the links did.
"""

import math
from typing import Final

import msgspec

from rankscope.measure.node_messages import InspectorRead
from rankscope.measure.units import NS_PER_S, format_duration

AGE_NS_MAX: Final = 120 * NS_PER_S
"""Age of a reading, at the rank's last report, beyond which it is old: a sidecar sends one each minute at least."""
NO_INSPECTOR: Final = "no sidecar has read a dump of NCCL's Inspector, which NCCL_INSPECTOR_ENABLE=1 switches on"
NO_OPERATION: Final = "no operation of NCCL with a timed kernel was dumped between the last two readings"


class NcclBandwidth(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`count` operations `op` of a communicator between two readings, and the median of their bus bandwidths.
    `communicator` is its name, `8 ranks` where NCCL has none.
    """

    communicator: str
    op: str
    count: int
    bus_bandwidth_bytes_per_s: float


class NcclBandwidths(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The bandwidths of a rank, those with most operations first, or why there are none."""

    kinds: tuple[NcclBandwidth, ...] = ()
    absent: str = NO_INSPECTOR


NOT_READ: Final = NcclBandwidths()


def find_bandwidths(read: InspectorRead | None, reported_host_ns: int | None) -> NcclBandwidths:
    """Return the bandwidths of the last reading, if it is of the present. `reported_host_ns` is when the rank's last
    report was made, by the same clock; None before any.
    """
    if read is None:
        return NOT_READ
    if read.absent:
        return NcclBandwidths(absent=next(iter(read.absent.values())))
    age_ns = 0 if reported_host_ns is None else reported_host_ns - read.host_ns
    if age_ns > AGE_NS_MAX:
        return NcclBandwidths(absent=f"the last reading of its sidecar was {format_duration(age_ns)} old")
    kinds: dict[tuple[str, str], NcclBandwidth] = {}
    for one in read.communicators:
        communicator = one.name or ("unnamed" if one.size is None else f"{one.size} ranks")
        for found in one.bandwidths:
            if not 0.0 < found.bus_bandwidth_bytes_per_s < math.inf:  # a client may send anything
                continue
            kind = NcclBandwidth(communicator, found.op, found.count, found.bus_bandwidth_bytes_per_s)
            known = kinds.get((communicator, found.op))
            if known is None or kind.count > known.count:  # of communicators alike the busiest
                kinds[communicator, found.op] = kind
    order = sorted(kinds.values(), key=lambda kind: (-kind.count, kind.communicator, kind.op))
    return NcclBandwidths(tuple(order), "" if order else _explain(read))


def _explain(read: InspectorRead) -> str:
    if not read.lines_skipped:
        return NO_OPERATION
    lines = "1 line was" if read.lines_skipped == 1 else f"{read.lines_skipped} lines were"
    return f"{NO_OPERATION}; since the sidecar began {lines} damaged, of another process, or of a format other than v4"
