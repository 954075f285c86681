"""Extract the input of the advice rules from one trace: causes of idle time, launches that cost more than their
kernels, streams that compute and communicate, copies on the device, the largest matrix product in fp32.

Idle time is attributed to the activity of the host, the first of these: inside the data loader, inside a call that
waits for the device, allocating device memory, launching too late (the work that ended the gap was launched inside it).
The remainder waited on the device itself, for an event of another stream or for its own start.
"""

import math
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
import numpy as np

from rankscope.collector.traces.judged_time import find_judged_time
from rankscope.collector.traces.origin import DeviceProperties
from rankscope.collector.traces.report import Signs
from rankscope.collector.traces.stages import DATA_LOADER
from rankscope.measure import intervals
from rankscope.measure.blocking_calls import COPIES_WITHIN_DEVICE, find_blocking_calls, find_launching_threads
from rankscope.measure.communication import GEMMS, POINT_TO_POINT_OPS, find_operation
from rankscope.measure.counted_operators import find_innermost_places
from rankscope.measure.intervals import Intervals
from rankscope.measure.kineto import LAUNCHES, NONE, Category, Ints
from rankscope.measure.nesting import OUTSIDE
from rankscope.measure.rank_view import Bools, RankView
from rankscope.measure.traced_collectives import find_shape_bytes

_ALLOCATES = re.compile(r"^(?:cuda|hip)(?:Malloc|Free)(?!Host|Array|Mipmapped)|^cuMem(?:Alloc|Free|Create|Map|Unmap)")
_DEVICE_SYNCHRONIZE = re.compile(r"^(?:cuda|hip)DeviceSynchronize$")
_SINGLE_PROCESS = "_SingleProcessDataLoaderIter"
COPY_OPERATORS = frozenset({"aten::clone", "aten::contiguous", "aten::reshape", "aten::_to_copy"})
"""Operators that copy a tensor into another layout or type. `copy_` itself sets a value."""


def find_signs(view: RankView, devices: Sequence[DeviceProperties]) -> Signs:
    """Return the signs of one trace."""
    idle = _Idle(view)
    major, minor = _find_compute_capability(view, devices)
    gemm = _find_largest_fp32_gemm(view)
    launched, short, call_ns = _count_short_kernels(view)
    copied_ns, copied_host_ns, copying = _sum_copy_operators(view)
    loader = view.events.name[idle.loader_rows]
    return Signs(
        window_ns=intervals.total_ns(idle.windows) or None,
        exposed_communication_ns=idle.exposed_communication_ns,
        step_count=idle.judged.step_count,
        long_steps=idle.judged.long_steps,
        launch_count=view.launch_count if view.has_device else None,
        lost_launch_count=len(view.lost_launch_rows) if view.has_device else None,
        **idle.split(),
        launched_kernel_count=launched,
        short_kernel_count=short,
        launch_call_ns=call_ns,
        profiler_synchronization_ns=idle.profiler_synchronization_ns,
        data_loader_count=len(loader),
        data_loader_host_ns=idle.data_loader_host_ns,
        single_process_loader=any(_SINGLE_PROCESS in view.trace.names[code] for code in np.unique(loader).tolist())
        if len(loader)
        else None,
        shared_stream_communication_ns=_sum_shared_streams(view),
        copy_operator_device_ns=copied_ns,
        copy_operator_host_ns=copied_host_ns,
        copy_operator=copying,
        compute_capability_major=major,
        compute_capability_minor=minor,
        largest_fp32_gemm=gemm.shapes if gemm else None,
        largest_fp32_gemm_flops=gemm.flops if gemm else None,
        **_find_data_parallel(view),
        **_sum_gloo(view, idle),
    )


# -- idle time --------------------------------------------------------------------------------------------------------


class _Idle:
    """The idle time of the devices of a trace, over the time that shares are of."""

    def __init__(self, view: RankView) -> None:
        self.view = view
        self.judged = find_judged_time(view)
        self.windows = self.judged.windows

    def split(self) -> dict[str, Any]:
        """Return the fields of Signs with the idle time by cause."""
        names = ("idle_data_loader_ns", "idle_synchronization_ns", "idle_allocation_ns", "idle_launch_ns")
        if not self.view.has_device or not len(self.windows):
            return dict.fromkeys(("idle_ns", *names, "blocked_ns"))
        remaining, found = self.gaps, []
        late = self.gaps[self._ends_with_late_launch()]
        for part in (self._loader, self._of_rows(self.blocking_rows), self._allocation, late):
            mine = intervals.intersect(remaining, part)
            found.append(intervals.total_ns(mine))
            remaining = intervals.subtract(remaining, part)
        return {
            "idle_ns": intervals.total_ns(self.gaps),
            **dict(zip(names, found, strict=True)),
            "blocked_ns": self._blocked_ns(),
        }

    @cached_property
    def busy(self) -> Intervals:
        """Intervals of the window in which any device worked."""
        work = self.view.work
        return intervals.intersect(intervals.union(np.stack([work.start_ns, work.end_ns], axis=1)), self.windows)

    @cached_property
    def gaps(self) -> Intervals:
        """Intervals of the window in which no device worked."""
        return intervals.subtract(self.windows, self.busy)

    def _ends_with_late_launch(self) -> Bools:
        """Return for each gap whether the call that launched the work after it began inside the gap."""
        work, launch = self.view.work, self.view.launch
        following = np.searchsorted(work.start_ns, self.gaps[:, 1], side="left")
        call = launch[np.minimum(following, len(work) - 1)]
        late: Bools = (following < len(work)) & (call != NONE)
        late &= self.view.events.start_ns[call] >= self.gaps[:, 0]
        return late

    def _blocked_ns(self) -> int:
        """Return the host's time in blocking calls that found the device at work, on threads that launch."""
        events, rows = self.view.events, self.blocking_rows
        mine = np.isin(events.thread[rows], find_launching_threads(self.view))
        waited = intervals.contains(self.busy, events.start_ns[rows]) & mine
        return intervals.total_ns(intervals.intersect(self._of_rows(rows[waited]), self.windows))

    # -- what the host did --------------------------------------------------------------------------------------------

    @cached_property
    def loader_rows(self) -> Ints:
        """Rows in which a batch was requested from the data loader."""
        trace = self.view.trace
        return trace.rows_named(trace.rows(Category.CPU_OP, Category.ANNOTATION), DATA_LOADER.match)

    @cached_property
    def _loader(self) -> Intervals:
        return self._of_rows(self.loader_rows)

    @property
    def exposed_communication_ns(self) -> int:
        """Time in which something communicated and nothing computed."""
        compute, communication, _ = self.view.sets
        return intervals.total_ns(intervals.intersect(intervals.subtract(communication, compute), self.windows))

    @property
    def data_loader_host_ns(self) -> int:
        """Time in which a batch was requested."""
        return intervals.total_ns(intervals.intersect(self._loader, self.windows))

    @cached_property
    def _calls(self) -> Ints:
        return self.view.trace.rows(*LAUNCHES)

    @cached_property
    def _allocation(self) -> Intervals:
        return self._of_rows(self.view.trace.rows_named(self._calls, _ALLOCATES.match))

    @cached_property
    def blocking_rows(self) -> Ints:
        """Rows of calls that waited for the device, without the profiler's own."""
        rows = find_blocking_calls(self.view)
        mine: Ints = rows[rows != self._profiler_row]
        return mine

    @cached_property
    def _profiler_row(self) -> int:
        """Row of the device synchronization with which the profiler stops: the last one of the trace, when no device
        work was launched after it; else NONE.
        """
        view = self.view
        rows = view.trace.rows_named(self._calls, _DEVICE_SYNCHRONIZE.match)
        launched = view.launch[view.launch != NONE] if view.has_device else rows[:0]
        if not len(rows) or (len(launched) and view.events.start_ns[launched].max() > view.events.start_ns[rows[-1]]):
            return NONE
        return int(rows[-1])

    @property
    def profiler_synchronization_ns(self) -> int | None:
        """Duration of the profiler's own synchronization."""
        return int(self.view.events.duration_ns[self._profiler_row]) if self._profiler_row != NONE else None

    def _of_rows(self, rows: Ints) -> Intervals:
        return intervals.union(self.view.intervals_of(rows))


# -- kernels and streams ----------------------------------------------------------------------------------------------


def _count_short_kernels(view: RankView) -> tuple[int | None, int | None, int | None]:
    """Count the kernels whose launch is in the trace, those that ran shorter than the call, and the ns of the calls."""
    if not view.has_device:
        return None, None, None
    work = view.work
    kernels = np.flatnonzero(work.is_kernel & (view.launch != NONE))
    call_ns = view.events.duration_ns[view.launch[kernels]]
    kernel_ns = (work.end_ns - work.start_ns)[kernels]
    return len(kernels), int((kernel_ns < call_ns).sum()), int(call_ns.sum())


def _sum_shared_streams(view: RankView) -> int | None:
    """Return the communication time on streams with at least SHARED_STREAM_COMPUTE_SHARE_MIN of the compute."""
    work = view.work if view.has_device else None
    if work is None or not work.is_communication.any():
        return None
    length = work.end_ns - work.start_ns
    shared_ns = 0
    lanes = np.stack([work.device, work.stream], axis=1)
    for lane in np.unique(lanes[work.is_communication], axis=0):
        mine = (lanes == lane).all(axis=1)
        computes = int(length[mine & work.is_kernel & ~work.is_communication].sum())
        if computes >= SHARED_STREAM_COMPUTE_SHARE_MIN * int(length[work.is_kernel & ~work.is_communication].sum()):
            shared_ns += int(length[mine & work.is_communication].sum())
    return shared_ns


SHARED_STREAM_COMPUTE_SHARE_MIN = 0.1
"""A communication stream may scale or copy a buffer; with a tenth of the compute it runs the model."""


# -- copies on the device ---------------------------------------------------------------------------------------------


def _sum_copy_operators(view: RankView) -> tuple[int | None, int, str | None]:
    """Return the device time of copies within the device by copy operators, the host time of the outermost of these,
    and the name of the one with the most.
    """
    rows, parent = view.host.operator_rows, view.host.operators.parent
    is_copy = view.trace.names_like(lambda name: name in COPY_OPERATORS)[view.events.name[rows]]
    outermost = np.full(len(rows), OUTSIDE, dtype=np.int64)
    for level in view.host.operators.levels():
        above = np.where(parent[level] != OUTSIDE, outermost[parent[level]], OUTSIDE)
        outermost[level] = np.where(above != OUTSIDE, above, np.where(is_copy[level], level, OUTSIDE))
    tops = np.flatnonzero(outermost == np.arange(len(rows)))
    computing = np.isin(rows[tops], view.host.compute_rows)
    host_ns = np.zeros(len(rows), dtype=np.int64)
    host_ns[tops[computing]] = view.events.duration_ns[rows[tops[computing]]]
    device_ns = _device_time_under(view, outermost) if view.has_device else None
    counted = host_ns if device_ns is None else device_ns
    per_name = np.zeros(len(view.trace.names), dtype=np.int64)
    np.add.at(per_name, view.events.name[rows], counted)
    largest = int(np.argmax(per_name)) if len(per_name) else NONE
    return (
        None if device_ns is None else int(device_ns.sum()),
        int(host_ns.sum()),
        view.trace.names[largest] if largest != NONE and per_name[largest] else None,
    )


def _device_time_under(view: RankView, outermost: Ints) -> Ints:
    """Return for each outermost copy operator the device time launched under it, without copies from or to hosts."""
    work = view.work
    on_device = view.trace.names_like(lambda name: name.startswith(COPIES_WITHIN_DEVICE))
    stays = np.flatnonzero((work.is_kernel | on_device[work.name]) & ~work.is_communication & (view.launch != NONE))
    call = view.launch[stays]
    inside = view.host.operators.find_innermost(view.events.thread[call], view.events.start_ns[call])
    found = np.zeros(len(outermost), dtype=np.int64)
    stays, inside = stays[inside != OUTSIDE], inside[inside != OUTSIDE]
    top = outermost[inside]
    np.add.at(found, top[top != OUTSIDE], (work.end_ns - work.start_ns)[stays][top != OUTSIDE])
    return found


# -- wrappers and backends --------------------------------------------------------------------------------------------

_DATA_PARALLEL, _DDP = "DataParallel.forward", "DistributedDataParallel.forward"
"""Names of the ranges that torch opens around the forward of both wrappers."""
_GLOO = "gloo:"


def _find_ranges(view: RankView, name: str) -> Ints:
    trace = view.trace
    return trace.rows_named(trace.rows(Category.CPU_OP, Category.ANNOTATION), name.__eq__)


def _find_data_parallel(view: RankView) -> dict[str, Any]:
    """Return the fields of Signs about nn.DataParallel: each of its threads launches to a device of its own."""
    if not view.has_device:
        return {}
    rows = _find_ranges(view, _DATA_PARALLEL)
    places, calls_ns = view.work_by_call
    inside = intervals.contains(intervals.union(view.intervals_of(rows)), calls_ns)
    return {
        "data_parallel_count": len(rows),
        "data_parallel_devices": len(np.unique(view.work.device[places[inside]])),
    }


def _sum_gloo(view: RankView, idle: _Idle) -> dict[str, Any]:
    """Return the fields of Signs about collectives over gloo; barriers and messages are no traffic to move to another
    backend.
    """
    if not view.has_device:
        return {}
    rows, names = view.host.communication_rows, view.trace.names_like(_is_gloo_traffic)
    rows = rows[names[view.events.name[rows]]]
    rows = rows[intervals.contains(idle.windows, view.events.start_ns[rows])]
    sizes = [find_shape_bytes(view, row) for row in rows.tolist()]
    known = [size for size in sizes if size is not None]
    open_ns = intervals.intersect(intervals.union(view.intervals_of(rows)), idle.gaps)
    return {
        "gloo_count": len(rows),
        "gloo_bytes": sum(known) if len(known) == len(sizes) else None,
        "gloo_exposed_ns": intervals.total_ns(open_ns),
        "has_ddp_over_gloo": bool(len(rows) and len(_find_ranges(view, _DDP)) and not len(view.communication)),
    }


def _is_gloo_traffic(name: str) -> bool:
    return name.startswith(_GLOO) and find_operation(name) not in {"barrier", *POINT_TO_POINT_OPS}


# -- tensor cores -----------------------------------------------------------------------------------------------------


class _Gemm(NamedTuple):
    flops: int
    shapes: str


def _find_compute_capability(
    view: RankView, devices: Sequence[DeviceProperties]
) -> tuple[int, int] | tuple[None, None]:
    """Return the lowest of the CUDA devices at work; none for AMD, whose matrix cores accept fp32 as well."""
    is_cuda = any(name.startswith("cuda") for name in {view.trace.name(int(row)) for row in view.trace.rows(*LAUNCHES)})
    if not (view.has_device and is_cuda):
        return None, None
    at_work = set(np.unique(view.work.device).tolist())
    capabilities = [one.compute_capability for one in devices if one.device in at_work]
    return min((found for found in capabilities if found is not None), default=(None, None))


def _find_largest_fp32_gemm(view: RankView) -> _Gemm | None:
    """Return the matrix product in fp32 with the most work; None without shapes (`record_shapes=True`)."""
    rows = view.host.operator_rows[find_innermost_places(view, GEMMS.__contains__)]
    recorded = (view.trace.shapes.get(row) for row in rows.tolist())
    found = (_gemm_of(*one) for one in recorded if one is not None)
    return max((gemm for gemm in found if gemm is not None), default=None)


def _gemm_of(types_json: bytes, dims_json: bytes) -> _Gemm | None:
    try:
        types: Any = msgspec.json.decode(types_json)
        dims: Any = msgspec.json.decode(dims_json)
    except msgspec.DecodeError:
        return None
    if not (isinstance(types, list) and isinstance(dims, list)):
        return None
    factors = [shape for kind, shape in zip(types, dims, strict=False) if kind == "float" and _is_matrix(shape)]
    # The first input of addmm is the summand: the two factors come last.
    if len(factors) < 2 or factors[-2][-1] != factors[-1][-2]:  # noqa: PLR2004 - a product has two factors
        return None
    left, right = factors[-2:]
    text = " @ ".join("x".join(map(str, shape)) for shape in (left, right))
    return _Gemm(2 * math.prod(left) * right[-1], text)


def _is_matrix(shape: Any) -> bool:
    return isinstance(shape, list) and len(shape) >= 2 and all(type(size) is int for size in shape)  # noqa: PLR2004
