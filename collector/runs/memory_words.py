"""Describe how much memory a rank has left, on its GPU and on its machine. Pure."""

from collections.abc import Sequence

from rankscope.collector.detect.memory.headroom import find_device_headroom
from rankscope.collector.runs.snapshot import RankSnapshot
from rankscope.measure.units import format_bytes


def describe_memory(rank: RankSnapshot, ranks: Sequence[RankSnapshot]) -> str:
    """Return what a rank has in use and left, as of its last report; empty where nothing is known. `ranks` are those of
    the run, one of which reads the machine.
    """
    texts = (_describe_device(rank), _describe_host(rank, ranks))
    return "; ".join(text for text in texts if text)


def _describe_device(rank: RankSnapshot) -> str:
    device = rank.devices[0] if rank.devices else None
    room = find_device_headroom(device, rank.allocator)
    if device is None or device.memory_total_bytes is None or room is None:
        return ""
    allocated = None if rank.allocator is None else rank.allocator.allocated_bytes
    held = "" if allocated is None else f"{format_bytes(allocated)} allocated, "
    return f"GPU: {held}{format_bytes(room)} left for tensors of {format_bytes(device.memory_total_bytes)}"


def _describe_host(rank: RankSnapshot, ranks: Sequence[RankSnapshot]) -> str:
    resident = None if rank.host is None else rank.host.resident_bytes
    machines = (one.node for one in ranks if one.identity.node == rank.identity.node and one.node is not None)
    available = next((one.memory_available_bytes for one in machines), None)
    parts = [
        "" if resident is None else f"{format_bytes(resident)} resident",
        "" if available is None else f"{format_bytes(available)} available on its machine",
    ]
    known = ", ".join(part for part in parts if part)
    return f"host: {known}" if known else ""
