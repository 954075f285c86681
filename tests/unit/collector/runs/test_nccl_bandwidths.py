"""Which bandwidths of NCCL's Inspector are those of a rank, and why there are none."""

import math

import msgspec
import pytest

from rankscope.collector.publish.metrics.catalog import CATALOG
from rankscope.collector.runs.nccl_bandwidths import (
    AGE_NS_MAX,
    NO_INSPECTOR,
    NO_OPERATION,
    NcclBandwidth,
    NcclBandwidths,
    find_bandwidths,
)
from rankscope.measure.identity import RankIdentity
from rankscope.measure.nccl_inspector import InspectorBandwidth, InspectorCommunicator
from rankscope.measure.node_messages import InspectorRead

IDENTITY = RankIdentity(
    run="r", rank=0, local_rank=0, world_size=2, node="a", restart_count=0, boot_id="boot-of-0", pid=1
)

UNREADABLE = "damaged, of another process, or of a format other than v4"


def communicator(id_: str, name: str, size: int | None, **counts: int) -> InspectorCommunicator:
    """One whose bandwidths are 10^9 bytes/s a call."""
    found = tuple(
        InspectorBandwidth(op=op, count=count, bus_bandwidth_bytes_per_s=count * 1e9) for op, count in counts.items()
    )
    return InspectorCommunicator(id=id_, name=name, size=size, bandwidths=found)


READ = InspectorRead(
    sequence=1, identity=IDENTITY, host_ns=5_000,
    communicators=(
        communicator("0xa", "TP 0", 4, AllGather=8, ReduceScatter=9),
        communicator("0xb", "", 8, AllReduce=2),
        communicator("0xc", "", 8, AllReduce=3),
        communicator("0xd", "", None, Reduce=1),
    ),
)  # fmt: skip


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 0.0])
def test_what_is_no_bandwidth_is_left_out(value: float) -> None:
    wrong = InspectorBandwidth(op="Reduce", count=9, bus_bandwidth_bytes_per_s=value)
    read = msgspec.structs.replace(
        READ, communicators=(InspectorCommunicator(id="0xa", name="TP 0", size=4, bandwidths=(wrong,)),)
    )
    assert find_bandwidths(read, None) == NcclBandwidths((), NO_OPERATION)


def test_bandwidths_are_those_of_each_communicator_and_operation() -> None:
    assert find_bandwidths(READ, None) == NcclBandwidths(
        (
            NcclBandwidth("TP 0", "ReduceScatter", 9, 9e9),
            NcclBandwidth("TP 0", "AllGather", 8, 8e9),
            NcclBandwidth("8 ranks", "AllReduce", 3, 3e9),  # of two alike the busier one
            NcclBandwidth("unnamed", "Reduce", 1, 1e9),
        ),
        "",
    )


@pytest.mark.parametrize(
    ("read", "reason"),
    [
        (None, NO_INSPECTOR),
        (msgspec.structs.replace(READ, communicators=(), absent={"dump": "it is gone"}), "it is gone"),
        (msgspec.structs.replace(READ, communicators=()), NO_OPERATION),
        (msgspec.structs.replace(READ, communicators=(communicator("0xa", "", 4),)), NO_OPERATION),
        (
            msgspec.structs.replace(READ, communicators=(), lines_skipped=1),
            f"{NO_OPERATION}; since the sidecar began 1 line was {UNREADABLE}",
        ),
        (
            msgspec.structs.replace(READ, communicators=(), lines_skipped=40),
            f"{NO_OPERATION}; since the sidecar began 40 lines were {UNREADABLE}",
        ),
    ],
)
def test_without_bandwidths_there_is_a_reason(read: InspectorRead | None, reason: str) -> None:
    assert find_bandwidths(read, 5_000) == NcclBandwidths((), reason)


def test_old_reading_has_none() -> None:
    assert find_bandwidths(READ, 5_000 + AGE_NS_MAX).kinds
    old = find_bandwidths(READ, 5_001 + AGE_NS_MAX)
    assert old == NcclBandwidths((), "the last reading of its sidecar was 120.0 s old")


def test_metric_has_their_labels() -> None:
    (measure,) = [one for one in CATALOG if one.name == "rankscope_nccl_bus_bandwidth_bytes_per_second"]
    assert measure.labels == ("run", "rank", "communicator", "op")
