"""Break down windows of one rank: the whole trace, each step, each device, and what its idle time waited for; and bin
them for a timeline.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rankscope.collector.runs import ratios
from rankscope.collector.traces.origin import DeviceProperties
from rankscope.collector.traces.report import (
    DeviceReport,
    DeviceStep,
    IdleGapRow,
    IdleRow,
    LaunchedWork,
    StepReport,
    StepTimeline,
    Timeline,
)
from rankscope.collector.traces.tables import deviate
from rankscope.measure import intervals
from rankscope.measure.breakdown import break_down
from rankscope.measure.intervals import Intervals
from rankscope.measure.kineto import NONE, Floats, Ints
from rankscope.measure.rank_view import RankView, Step
from rankscope.measure.tensor_cores import uses_tensor_cores
from rankscope.measure.traced_collectives import find_communication_rows
from rankscope.measure.units import format_duration

TIMELINE_BINS = 1_000
BINS_OF_A_STEP_MAX = 200
STEP_BINS_MAX = 2_400
"""Bins of all steps of a rank together: about 50 kB of JSON. More than 12 steps have fewer bins each."""
OVERLAP_SHARE_MIN = 0.01
"""Share of the time on streams from which overlaps are shown. The ten traces of tests/traces with devices have none."""
TIMES = (
    "window_ns", "compute_ns", "communication_ns", "overlap_ns", "exposed_communication_ns", "copy_ns", "idle_ns",
)  # fmt: skip
"""Fields that a report's Breakdown copies from a WindowBreakdown."""


def break_down_window(view: RankView, start_ns: int, end_ns: int) -> dict[str, Any]:
    """Return the fields of a report's Breakdown for the window [start_ns, end_ns)."""
    compute, communication, copies = (intervals.touching(found, start_ns, end_ns) for found in view.sets)
    return _break_down(compute, communication, copies, start_ns, end_ns)


def _break_down(
    compute: Intervals, communication: Intervals, copies: Intervals, start_ns: int, end_ns: int
) -> dict[str, Any]:
    found = break_down(compute, communication, copies, start_ns=start_ns, end_ns=end_ns, first_step=0, step_count=0)
    idle_ratio = ratios.idle_ratio(found)
    return {
        **{name: getattr(found, name) for name in TIMES},
        "busy_ratio": None if idle_ratio is None else 1 - idle_ratio,
        "overlap_ratio": ratios.overlap_ratio(found),
    }


# -- steps ------------------------------------------------------------------------------------------------------------


def break_down_steps(view: RankView) -> list[StepReport]:
    """Return each step of the trace, broken down by its window, by the work it launched and by the device's clock."""
    on_device = {step.number: _break_down_on_device(view, *bounds) for step, bounds in find_device_steps(view).items()}
    lost = Counter(view.find_step_numbers(view.events.start_ns[view.lost_launch_rows]))
    return [
        StepReport(
            step=step.number,
            start_ns=step.start_ns - view.origin_ns,
            kernel_count=_count_started(view, step.start_ns, step.next_start_ns),
            launched=_launched_work(view, step) if view.has_device else None,
            on_device=on_device.get(step.number),
            lost_launch_count=lost[step.number],
            is_judged=step.number not in view.steps_with_lost_work,
            **break_down_window(view, step.start_ns, step.next_start_ns),
        )
        for step in view.steps
    ]


def find_device_steps(view: RankView) -> dict[Step, tuple[int, int]]:
    """Return the bounds of steps by the device's clock: from the first work that a step launched to that of the next
    one, for the last one to the end of its work. Steps that launched nothing, and those out of order, have none.
    """
    launched = [find_launched(view, step) for step in view.steps] if view.has_device else []
    begins_ns = [int(view.work.start_ns[mine].min()) if len(mine) else None for mine in launched]
    ends_ns = [*begins_ns[1:], int(view.work.end_ns[launched[-1]].max()) if launched and len(launched[-1]) else None]
    return {
        step: (begin_ns, end_ns)
        for step, begin_ns, end_ns in zip(view.steps, begins_ns, ends_ns, strict=False)
        if begin_ns is not None and end_ns is not None and begin_ns < end_ns
    }


def find_step_bounds(view: RankView) -> list[tuple[int, int, int]]:
    """Return (number, start, end) of the steps to compare ranks by, without those whose work is lost: by the device's
    clock where all have that.
    """
    steps = [step for step in view.steps if step.number not in view.steps_with_lost_work]
    on_device = find_device_steps(view)
    if steps and all(step in on_device for step in steps):
        return [(step.number, *on_device[step]) for step in steps]
    return [(step.number, step.start_ns, step.next_start_ns) for step in steps]


def _break_down_on_device(view: RankView, start_ns: int, end_ns: int) -> DeviceStep:
    return DeviceStep(
        start_ns=start_ns - view.origin_ns,
        kernel_count=_count_started(view, start_ns, end_ns),
        **break_down_window(view, start_ns, end_ns),
    )


def _count_started(view: RankView, start_ns: int, end_ns: int) -> int:
    first, last = np.searchsorted(view.unit_starts_ns, [start_ns, end_ns], side="left")
    return int(last - first)


def find_launched(view: RankView, step: Step) -> Ints:
    """Return the places in `work`, ascending, of what the calls that began inside the step launched."""
    by_call, call_ns = view.work_by_call
    first, last = np.searchsorted(call_ns, [step.start_ns, step.end_ns], side="left")
    return np.sort(by_call[first:last])


def find_steps_of_collectives(view: RankView) -> list[int | None]:
    """Return the number of the step that launched each collective, in the order of `find_communication_rows`; None
    outside of the steps, or when the launch is not in the trace.
    """
    rows = find_communication_rows(view)
    if view.has_device:
        rows = view.launch[view.work.is_communication]
    return view.find_step_numbers(np.where(rows == NONE, NONE, view.events.start_ns[rows]))


def _launched_work(view: RankView, step: Step) -> LaunchedWork:
    mine = find_launched(view, step)
    work = view.work
    raw = np.stack([work.start_ns[mine], work.end_ns[mine]], axis=1)
    kernel, communicates = work.is_kernel[mine], work.is_communication[mine]
    compute = intervals.union(raw[kernel & ~communicates])
    communication = intervals.union(raw[communicates])
    return LaunchedWork(
        kernel_count=int(kernel.sum()),
        copy_count=int((~kernel).sum()),
        first_ns=int(raw[:, 0].min()) - view.origin_ns if len(mine) else None,
        last_ns=int(raw[:, 1].max()) - view.origin_ns if len(mine) else None,
        busy_ns=intervals.total_ns(intervals.union(raw)),
        compute_ns=intervals.total_ns(compute),
        communication_ns=intervals.total_ns(communication),
        overlap_ns=intervals.total_ns(intervals.intersect(compute, communication)),
    )


# -- devices ----------------------------------------------------------------------------------------------------------


def summarize_devices(view: RankView, properties: Sequence[DeviceProperties]) -> list[DeviceReport]:
    """Return each device with work, over the trace's whole window; empty on a CPU."""
    if view.bounds_ns is None or not view.has_device:
        return []
    known = {one.device: one for one in properties}
    return [
        _summarize_device(view, int(device), known.get(int(device), DeviceProperties(int(device), None, None)))
        for device in np.unique(view.work.device)
    ]


def _summarize_device(view: RankView, device: int, properties: DeviceProperties) -> DeviceReport:
    start_ns, end_ns = view.bounds_ns or (0, 0)
    work = view.work
    mine = work.device == device
    raw = np.stack([work.start_ns, work.end_ns], axis=1)
    kernels = np.flatnonzero(mine & work.is_kernel)
    rates_start_ns, rates_end_ns = steps_window(view)
    rates_ns = rates_end_ns - rates_start_ns
    kernel_ns = intervals.total_ns(intervals.union(raw[kernels]))
    on_tensor_cores, may_be = tensor_core_ratios(view, kernels)
    return DeviceReport(
        device=device if device != NONE else None,
        name=properties.name,
        memory_bytes=properties.memory_bytes,
        compute_capability=".".join(map(str, properties.compute_capability or ())) or None,
        kernel_count=len(kernels),
        utilization_ratio=kernel_ns / rates_ns if rates_ns else None,
        sm_efficiency_ratio=sm_efficiency(view, kernels, rates_ns),
        achieved_occupancy_ratio=achieved_occupancy(view, kernels),
        tensor_core_ratio=on_tensor_cores,
        tensor_core_unknown_ratio=may_be,
        **_break_down(
            raw[mine & work.is_kernel & ~work.is_communication],
            raw[mine & work.is_communication],
            raw[mine & ~work.is_kernel],
            start_ns,
            end_ns,
        ),
    )


def steps_window(view: RankView) -> tuple[int, int]:
    """Return the window for rates of the device: from the first step's start to the last one's end, or to the end of
    the last work if that is later; without steps the device's own window. Time before the first kernel counts.
    """
    start_ns, end_ns = view.bounds_ns or (0, 0)
    if not view.steps:
        return start_ns, end_ns
    return view.steps[0].start_ns, max(end_ns, view.steps[-1].end_ns)


def sm_efficiency(view: RankView, kernels: Ints, window_ns: int) -> float | None:
    """Return the share of the device's multiprocessors that had a block to work on, in the mean over the window.

    Of one kernel min(1, "blocks per SM"), of kernels at the same time the sum, 1 at most, integrated over time and
    divided by the window. Range 0 to 1; None when the trace has no blocks. "Est. SM Efficiency" of the
    PyTorch profiler's TensorBoard plugin.
    """
    blocks = view.trace.device_work.blocks_per_sm[kernels]
    known = np.isfinite(blocks)
    if window_ns <= 0 or not known.any():
        return None
    work = view.work
    share = np.minimum(blocks[known], 1.0)
    return _integrate_sum(work.start_ns[kernels][known], work.end_ns[kernels][known], share) / window_ns


def _integrate_sum(start_ns: Ints, end_ns: Ints, value: Floats) -> float:
    """Return the integral over time of the sum of the values of all open intervals, at most 1."""
    times_ns = np.concatenate([start_ns, end_ns])
    changes = np.concatenate([value, -value])
    order = np.argsort(times_ns, kind="stable")
    level = np.minimum(np.cumsum(changes[order])[:-1], 1.0)
    return float((level * np.diff(times_ns[order])).sum())


def achieved_occupancy(view: RankView, kernels: Ints) -> float | None:
    """Return the profiler's "est. achieved occupancy" of the kernels that have one, weighted with their time.

    Range 0 to 1; None when no kernel has one. "Est. Achieved Occupancy" of the TensorBoard plugin.
    """
    percent = view.trace.device_work.occupancy_percent[kernels]
    length = (view.work.end_ns - view.work.start_ns)[kernels].astype(np.float64)
    known = np.isfinite(percent)
    weight = float(length[known].sum())
    return float((percent[known] * length[known]).sum()) / weight / 100 if weight else None


def tensor_core_ratios(view: RankView, kernels: Ints) -> tuple[float | None, float | None]:
    """Return the share of kernel time in kernels that use tensor cores, and in those of which that is not known; None
    without kernels.
    """
    length = (view.work.end_ns - view.work.start_ns)[kernels]
    whole = int(length.sum())
    if not whole:
        return None, None
    codes, of_kernel = np.unique(view.work.name[kernels], return_inverse=True)
    uses = [uses_tensor_cores(view.trace.names[code]) for code in codes.tolist()]
    known, unknown = (np.array([one is wanted for one in uses])[of_kernel] for wanted in (True, None))
    return int(length[known].sum()) / whole, int(length[unknown].sum()) / whole


def find_overlaps(view: RankView) -> list[str]:
    """Return a warning if work ran on a stream before the work in front of it had ended, for more than
    OVERLAP_SHARE_MIN of the time: a stream runs one piece of work after the other.
    """
    work, whole_ns, twice_ns = view.work, 0, 0
    longest_ns, name = 0, ""
    for mine in find_streams(view):
        raw = np.stack([work.start_ns[mine], work.end_ns[mine]], axis=1)
        length_ns = raw[:, 1] - raw[:, 0]
        whole_ns += int(length_ns.sum())
        twice_ns += int(length_ns.sum()) - intervals.total_ns(intervals.union(raw))
        covers = np.flatnonzero(raw[:-1, 1] > raw[1:, 0])
        if len(covers) and length_ns[covers].max() > longest_ns:
            longest = mine[covers[np.argmax(length_ns[covers])]]
            longest_ns, name = int(length_ns[covers].max()), view.trace.names[work.name[longest]]
    if twice_ns <= OVERLAP_SHARE_MIN * whole_ns:
        return []
    warning = (
        f"work on one stream overlaps by {format_duration(twice_ns)}; this is counted twice in times summed by name. "
        "Either the times are wrong, or the kernels use programmatic dependent launch. Longest such kernel or copy: "
        f"{name} ({format_duration(longest_ns)})"
    )
    return [warning]


def find_streams(view: RankView) -> list[Ints]:
    """Return the places in `work` of each stream of each device, ascending."""
    work = view.work
    if not len(work):
        return []
    order = np.lexsort((np.arange(len(work)), work.stream, work.device))
    device, stream = work.device[order], work.stream[order]
    edges = np.flatnonzero((np.diff(device) != 0) | (np.diff(stream) != 0)) + 1
    return np.split(order, edges)


# -- idle time --------------------------------------------------------------------------------------------------------


class IdleTime(NamedTuple):
    """The idle time of each device and, behind it, of each of its streams; and of these the gaps by kind."""

    lanes: list[IdleRow]
    gaps: list[IdleGapRow]


def sum_idle(view: RankView) -> IdleTime:
    """Return the idle time, and how long the gaps of each kind are; kinds without any have no row. Empty on a CPU.

    A gap between two pieces of work is a whole of one kind, by the call that launched the work after it: made in the
    gap, the work waited for the host; made before, the work waited on the device, for another stream, a dependency or
    its own start; not in the trace, the kind is not known.
    """
    idle = IdleTime([], [])
    for lane in _find_lanes(view):
        found = _find_gaps(view, lane.places)
        host_ns, kernel_ns, other_ns = (int(of_kind.sum()) for of_kind in found.by_kind.values())
        idle.lanes.append(
            IdleRow(
                device=lane.device,
                stream=lane.stream,
                is_device=lane.is_device,
                window_ns=found.window_ns,
                gap_count=len(found.length_ns),
                idle_ns=int(found.length_ns.sum()),
                longest_ns=int(found.length_ns.max()) if len(found.length_ns) else 0,
                host_wait_ns=host_ns,
                kernel_wait_ns=kernel_ns,
                other_ns=other_ns,
            )
        )
        idle.gaps.extend(
            _sum_gaps(lane, kind, length_ns) for kind, length_ns in found.by_kind.items() if len(length_ns)
        )
    return idle


class _Lane(NamedTuple):
    """One stream of a device, or all of them together, with the places of its work, ascending by start."""

    device: int | None
    stream: int | None
    is_device: bool
    places: Ints


def _find_lanes(view: RankView) -> list[_Lane]:
    """Return each device, and behind it each of its streams; none on a CPU."""
    if not view.has_device:
        return []
    found, work, streams = [], view.work, find_streams(view)
    for device in np.unique(work.device).tolist():
        mine = [lane for lane in streams if work.device[lane[0]] == device]
        whole = mine[0] if len(mine) == 1 else np.flatnonzero(work.device == device)
        found.append(_Lane(_known(device), None, is_device=True, places=whole))
        found += [
            _Lane(_known(device), _known(int(work.stream[lane[0]])), is_device=False, places=lane) for lane in mine
        ]
    return found


def _sum_gaps(lane: _Lane, kind: str, length_ns: Ints) -> IdleGapRow:
    p25, median, p75 = np.quantile(length_ns, [0.25, 0.5, 0.75]).tolist()
    return IdleGapRow(
        device=lane.device,
        stream=lane.stream,
        is_device=lane.is_device,
        kind=kind,
        count=len(length_ns),
        total_ns=int(length_ns.sum()),
        mean_ns=float(length_ns.mean()),
        min_ns=int(length_ns.min()),
        p25_ns=p25,
        median_ns=median,
        p75_ns=p75,
        max_ns=int(length_ns.max()),
        deviation_ns=deviate(length_ns),
    )


def _known(number: int) -> int | None:
    return number if number != NONE else None


class _Gaps(NamedTuple):
    """The time from the start of the first piece of work to the end of the last, and the gaps in it, also by kind."""

    window_ns: int
    length_ns: Ints
    by_kind: Mapping[str, Ints]


def _find_gaps(view: RankView, places: Ints) -> _Gaps:
    """Return the gaps between the pieces of work at these places, ascending by start."""
    work = view.work
    start_ns, reached_ns = work.start_ns[places], np.maximum.accumulate(work.end_ns[places])
    before = np.flatnonzero(start_ns[1:] > reached_ns[:-1])
    idle_since_ns = reached_ns[before]
    length_ns = start_ns[before + 1] - idle_since_ns
    call = view.launch[places[before + 1]]
    is_known = call != NONE
    by_host = is_known & (view.events.start_ns[call] >= idle_since_ns)
    kinds = {"host_wait": by_host, "kernel_wait": is_known & ~by_host, "other": ~is_known}
    return _Gaps(int(reached_ns[-1] - start_ns[0]), length_ns, {kind: length_ns[mask] for kind, mask in kinds.items()})


# -- timeline ---------------------------------------------------------------------------------------------------------


def draw_timelines(view: RankView) -> tuple[Timeline | None, list[StepTimeline]]:
    """Return the whole window and each step in equal bins; none without work."""
    if view.bounds_ns is None:
        return None, []
    parts = _find_parts(view)
    return draw_timeline(view, parts=parts), draw_step_timelines(view, parts)


def draw_timeline(
    view: RankView, bins: int = TIMELINE_BINS, parts: Mapping[str, Intervals] | None = None
) -> Timeline | None:
    """Return the whole window in equal bins; None without work."""
    if view.bounds_ns is None:
        return None
    return Timeline(**_bin_window(view, parts or _find_parts(view), *view.bounds_ns, bins))


def draw_step_timelines(view: RankView, parts: Mapping[str, Intervals]) -> list[StepTimeline]:
    """Return each step in equal bins, by the bounds that ranks are compared by. At most STEP_BINS_MAX steps, the first
    ones.
    """
    bounds = find_step_bounds(view)[:STEP_BINS_MAX]
    bins = min(BINS_OF_A_STEP_MAX, STEP_BINS_MAX // max(1, len(bounds)))
    return [
        StepTimeline(step=number, **_bin_window(view, parts, start_ns, end_ns, bins))
        for number, start_ns, end_ns in bounds
    ]


def _find_parts(view: RankView) -> dict[str, Intervals]:
    """Return the sets of time that a timeline shows, which share nothing."""
    compute, communication, copies = view.sets
    work = intervals.union(np.concatenate([compute, communication]))
    host = intervals.union(view.intervals_of(view.host.compute_rows)) if view.has_device else intervals.EMPTY
    return {
        "compute": intervals.subtract(compute, communication),
        "overlap": intervals.intersect(compute, communication),
        "communication": intervals.subtract(communication, compute),
        "copy": intervals.subtract(copies, work),
        "host": intervals.subtract(host, intervals.union(np.concatenate([work, copies]))),
    }


def _bin_window(
    view: RankView, parts: Mapping[str, Intervals], start_ns: int, end_ns: int, bins: int
) -> dict[str, Any]:
    """Return the fields of a Timeline of the window [start_ns, end_ns)."""
    bin_ns = max(1, -(-(end_ns - start_ns) // bins))
    edges = np.minimum(np.arange(start_ns, end_ns + bin_ns, bin_ns, dtype=np.int64), end_ns)
    return {
        "start_ns": start_ns - view.origin_ns,
        "bin_ns": bin_ns,
        "window_ns": end_ns - start_ns,
        **{name: np.diff(intervals.covered_before(part, edges)).tolist() for name, part in parts.items()},
    }
