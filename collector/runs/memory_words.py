"""Describe how much memory a rank has left, on its GPU and on its machine. Pure."""

from collections.abc import Sequence

from rankscope.collector.detect.memory.headroom import find_device_headroom
from rankscope.collector.runs.snapshot import RankSnapshot
from rankscope.measure.records import AllocatorSample
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
    parts = [] if rank.allocator is None else _describe_allocated(rank.allocator)
    if device is not None and device.memory_total_bytes is not None and room is not None:
        parts.append(f"{format_bytes(room)} left for tensors of {format_bytes(device.memory_total_bytes)}")
    return f"GPU: {', '.join(parts)}" if parts else ""


def _describe_allocated(allocator: AllocatorSample) -> list[str]:
    """Return what tensors take and torch's peak of it, each where it is known."""
    parts = [] if allocator.allocated_bytes is None else [f"{format_bytes(allocator.allocated_bytes)} allocated"]
    if allocator.allocated_peak_bytes:
        steps = describe_peak_steps(allocator.allocated_peak_after_step, allocator.allocated_peak_by_step)
        parts.append(f"peak {format_bytes(allocator.allocated_peak_bytes)}{steps and f' ({steps})'}")
    return parts


def describe_peak_steps(after_step: int | None, by_step: int | None) -> str:
    """Return between which steps a peak was reached; empty where neither is known.

    >>> describe_peak_steps(4799, 4820), describe_peak_steps(4799, None)
    ('reached between the ends of steps 4799 and 4820', 'reached after the end of step 4799')
    >>> describe_peak_steps(None, 12)
    'reached before the end of step 12'
    """
    if after_step is None:
        return "" if by_step is None else f"reached before the end of step {by_step}"
    if by_step is None:
        return f"reached after the end of step {after_step}"
    return f"reached between the ends of steps {after_step} and {by_step}"


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
