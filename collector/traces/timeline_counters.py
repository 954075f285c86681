"""Make counter tracks for a merged timeline: what each rank's devices did in the mean of short bins of time."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from rankscope.collector.traces.timeline_events import format_us
from rankscope.measure import intervals
from rankscope.measure.kineto import NONE, Floats, Ints
from rankscope.measure.rank_view import RankView
from rankscope.measure.traced_collectives import Collective
from rankscope.measure.units import NS_PER_S

COUNTER_BINS = 1_000
"""Points of each track of a rank: some 60 kB of JSON."""
GB = 1_000 * 1_000_000
MB = 1_000_000
HOST_DEVICE_TYPE = 0


class CounterTrack(NamedTuple):
    """One track: `times_ns` begin the bins, by the clock of the rank's host, and `values` are their means."""

    name: str
    times_ns: Ints
    values: Floats


def find_counters(view: RankView, collectives: Sequence[Collective], base_ns: int) -> list[CounterTrack]:
    """Return the tracks of one rank: of each device GPU utilization (%, the time with a kernel) and SM efficiency (%,
    the profiler's estimate), the length of the queue of launched work, the allocated memory (MB), and the bandwidth of
    copies and of collectives (GB/s: bytes over duration, of those under way, waiting included). None without steps of
    time; tracks of what was not recorded are left out.
    """
    if view.bounds_ns is None:
        return []
    edges_ns = np.unique(np.linspace(*view.bounds_ns, COUNTER_BINS + 1).astype(np.int64))
    found = [
        *_of_devices(view, edges_ns),
        *_of_memory(view, edges_ns),
        *_of_collectives(collectives, edges_ns, base_ns),
    ]
    return [CounterTrack(name, edges_ns[:-1] + base_ns, values) for name, values in found if len(edges_ns) > 1]


def mean_of_bins(start_ns: Ints, end_ns: Ints, weight: Floats, edges_ns: Ints, most: float = np.inf) -> Floats:
    """Return for each bin the mean over its time of the sum of the weights of all open intervals, `most` at most.

    >>> starts, ends, edges = np.array([0, 5]), np.array([10, 10]), np.array([0, 10, 20])
    >>> mean_of_bins(starts, ends, np.array([1.0, 2.0]), edges).tolist()
    [2.0, 0.0]
    """
    times_ns = np.concatenate([start_ns, end_ns])
    if not len(times_ns):
        return np.zeros(len(edges_ns) - 1)
    order = np.argsort(times_ns, kind="stable")
    times_ns = times_ns[order]
    levels = np.minimum(np.cumsum(np.concatenate([weight, -weight])[order]), most)
    # Sums of weights that ended leave rounding errors.
    levels[np.abs(levels) < 1e-9 * max(1.0, float(np.abs(weight).max()))] = 0.0
    integral = np.concatenate([[0.0], np.cumsum(levels[:-1] * np.diff(times_ns))])
    found: Floats = np.diff(np.interp(edges_ns, times_ns, integral)) / np.diff(edges_ns)
    return found


def _of_devices(view: RankView, edges_ns: Ints) -> Iterator[tuple[str, Floats]]:
    work = view.work
    for device in np.unique(work.device).tolist():
        mine = work.device == device
        label = f"GPU {device}" if device != NONE else "GPU"
        kernels = np.flatnonzero(mine & work.is_kernel)
        busy = intervals.union(np.stack([work.start_ns[kernels], work.end_ns[kernels]], axis=1))
        yield f"{label} utilization (%)", 100 * mean_of_bins(busy[:, 0], busy[:, 1], np.ones(len(busy)), edges_ns)
        blocks = view.trace.device_work.blocks_per_sm[kernels]
        known = kernels[np.isfinite(blocks)]
        if len(known):
            share = np.minimum(blocks[np.isfinite(blocks)], 1.0)
            yield (
                f"{label} SM efficiency (%)",
                100 * mean_of_bins(work.start_ns[known], work.end_ns[known], share, edges_ns, most=1.0),
            )
        queued = np.flatnonzero(mine & (view.launch != NONE))
        if len(queued):
            from_ns = view.events.start_ns[view.launch[queued]]
            until_ns = np.maximum(work.start_ns[queued], from_ns)
            yield f"{label} queue length", mean_of_bins(from_ns, until_ns, np.ones(len(queued)), edges_ns)
        size = view.trace.device_work.bytes
        copies = np.flatnonzero(mine & ~work.is_kernel & (size != NONE) & (work.end_ns > work.start_ns))
        if len(copies):
            rate = size[copies] / (work.end_ns - work.start_ns)[copies] * NS_PER_S / GB
            yield f"{label} copies (GB/s)", mean_of_bins(work.start_ns[copies], work.end_ns[copies], rate, edges_ns)


def _of_memory(view: RankView, edges_ns: Ints) -> Iterator[tuple[str, Floats]]:
    """Yield the allocator's totals, as they were at the end of each bin; before the first event what it began with."""
    memory = view.trace.memory
    on_device = (memory.device_type != HOST_DEVICE_TYPE) & (memory.allocated_bytes != NONE)
    for device in np.unique(memory.device[on_device]).tolist():
        mine = np.flatnonzero(on_device & (memory.device == device))
        last = np.searchsorted(memory.time_ns[mine], edges_ns[1:], side="left") - 1
        totals = memory.allocated_bytes[mine]
        levels = np.concatenate([[totals[0] - memory.bytes[mine[0]]], totals])
        yield f"GPU {device} allocated (MB)", levels[last + 1] / MB


def _of_collectives(collectives: Sequence[Collective], edges_ns: Ints, base_ns: int) -> Iterator[tuple[str, Floats]]:
    known = [
        (one.start_ns - base_ns, one.duration_ns, one.bytes) for one in collectives if one.bytes and one.duration_ns
    ]
    if known:
        start_ns, length_ns = (np.array(column, dtype=np.int64) for column in list(zip(*known, strict=True))[:2])
        size = np.array([one[2] for one in known], dtype=np.float64)
        yield (
            "collectives (GB/s)",
            mean_of_bins(start_ns, start_ns + length_ns, size / length_ns * NS_PER_S / GB, edges_ns),
        )


def write_counters(tracks: Sequence[CounterTrack], pid: int, label: str, shift_ns: int) -> list[dict[str, Any]]:
    """Return the events of a rank's tracks in a process of their own; `shift_ns` is added to their times. Points that
    repeat the value before are left out.
    """
    if not tracks:
        return []
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"{label} counters"}}
    ]
    for one in tracks:
        last = None
        for time_ns, value in zip(one.times_ns.tolist(), np.round(one.values, 3).tolist(), strict=True):
            if value != last:
                events.append(
                    {
                        "ph": "C", "cat": "counter", "name": one.name, "pid": pid,
                        "ts": msgspec.Raw(format_us(time_ns + shift_ns)), "args": {"value": value},
                    }
                )  # fmt: skip
            last = value
    return events
