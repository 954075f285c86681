"""Reduce one trace to its rank's report, and to what the comparison of ranks needs."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import numpy as np

from rankscope.collector.traces import stages, tables, windows
from rankscope.collector.traces.asked import NOTHING_ASKED, Asked
from rankscope.collector.traces.asked_rows import add_asked, list_asked
from rankscope.collector.traces.call_trees import CallTrees, record_calls
from rankscope.collector.traces.hardware_counters import sum_counters
from rankscope.collector.traces.judged_time import find_judged_time
from rankscope.collector.traces.launch_queue import sum_queues
from rankscope.collector.traces.made_tables import Makers, make_tables
from rankscope.collector.traces.memory import summarize_memory
from rankscope.collector.traces.origin import Origin, match_devices, read_origin, refuse_foreign, refuse_several
from rankscope.collector.traces.path_record import PathRecord, record_path
from rankscope.collector.traces.report import UNKNOWN_DEVICE, CpuUse, DeviceReport, RankReport
from rankscope.collector.traces.signs import find_signs
from rankscope.collector.traces.step_parts import StepParts, divide_steps
from rankscope.collector.traces.user_ranges import sum_user_ranges
from rankscope.measure import intervals
from rankscope.measure.capture_limits import CPU_KEY
from rankscope.measure.errors import NotATraceError, TraceError
from rankscope.measure.intervals import EMPTY, Intervals
from rankscope.measure.kineto import LAUNCHES, NONE, Category, KinetoTrace, find_uncounted
from rankscope.measure.rank_view import RankView
from rankscope.measure.traced_collectives import Collective, complete_groups, find_collectives
from rankscope.measure.traced_messages import TracedMessage, find_messages
from rankscope.measure.units import format_duration

DEVICES_MAX = 1_024
"""Devices of one process, for each of which the trace is read once more. Servers have 16, partitions of them some
hundreds."""
STREAMS_MAX = 10_000
"""Streams of all devices of a process, each looked at by itself. CUDA has at most some hundreds at work."""
COLLECTIVE_KINDS_MAX = 10_000
"""Kinds of collectives, by group, operation and type. A rank of a large job is in some dozens of groups."""
UNCOUNTED_SHOWN_MAX = 5
STEPS_MAX = 20_000
"""Steps that are divided into parts one by one. A profiler's cycle has a handful."""
STEPS_NAMED_MAX = 8
"""Steps that a warning names."""
StepRange = tuple[int | None, int | None]
"""Steps from the first number up to, not including, the second; None leaves an end open."""


class RankAnalysis(NamedTuple):
    """Result of one file: the report, and what the comparison of ranks needs, with times on the host's clock. `steps`
    are (number, start, end), by the device's clock where all steps have that; `collective_steps` the number of the step
    that launched each collective, None outside of the steps; `messages` those between two ranks, by their place among
    the collectives; `parts` the steps divided, None unless asked for, and without steps; `origin_ns` is when the
    trace's first event began; `backward` is when the backward ran, of a trace with messages; `path` what the critical
    path needs, None unless asked for; `judged` is the time that shares are of; `calls` the
    trees of calls of the steps, None unless asked for.
    """

    report: RankReport
    collectives: list[Collective]
    overlap: Intervals
    steps: list[tuple[int, int, int]]
    collective_steps: list[int | None]
    messages: dict[int, TracedMessage]
    parts: StepParts | None = None
    origin_ns: int = 0
    backward: Intervals = EMPTY
    path: PathRecord | None = None
    judged: Intervals = EMPTY
    calls: CallTrees | None = None


def reduce_trace(
    trace: KinetoTrace,
    path: str,
    steps: StepRange | None = None,
    rank: int | None = None,
    communication_kernels: re.Pattern[str] | None = None,
    *,
    divides_steps: bool = False,
    asked: Asked = NOTHING_ASKED,
    may_guess: bool = True,
    on_part: Callable[[float], None] | None = None,
) -> RankAnalysis:
    """Return the analysis of a trace, limited to the steps of a range; `rank` goes before the one that it says, which
    its file's name may tell if `may_guess`; kernels in whose names the pattern is found communicate too.
    `divides_steps` adds the parts of the steps, `asked` what else is asked for: the trace was then read with it.
    `on_part` is told which part of the tables is made, up to 1. Raises NotATraceError for what is no trace of one rank,
    TraceError where none of its steps is in the range.
    """
    origin = read_origin(trace.head, path if may_guess else "")
    refuse_foreign(trace)
    refuse_several(trace)
    view = RankView(
        trace,
        steps,
        has_unknown_device=_has_unknown_device(trace),
        communication_kernels=communication_kernels,
    )
    _refuse_other_steps(view, steps)
    devices = np.unique(view.work.device).tolist()
    _refuse_too_many(view, len(devices))
    origin = origin if rank is None else origin._replace(rank=rank)
    origin = origin._replace(devices=match_devices(origin.devices, devices))
    collectives = complete_groups(find_collectives(view, origin.base_ns, origin.only_group_size))
    kinds = len({tables.kind_of(collective) for collective in collectives})
    if kinds > COLLECTIVE_KINDS_MAX:
        raise TraceError(f"it has {kinds:,} kinds of collectives; at most {COLLECTIVE_KINDS_MAX:,} are summed up")
    devices = windows.summarize_devices(view, origin.devices)
    always = _list_tables(view, origin, collectives, asked)
    when_asked = list_asked(view, asked, _name_device(view, devices), devices)
    makers = {**always, **when_asked}
    if divides_steps:
        makers["parts"] = lambda: divide_steps(view, collectives)
    if asked.calls:
        makers["calls"] = lambda: record_calls(view)
    if asked.critical_path:
        makers["path"] = lambda: record_path(view, collectives, origin.base_ns)
    made = make_tables(makers, on_part)
    report = _build_report(view, path, origin, devices, {name: made[name] for name in always})
    report = add_asked(report, view, asked, {name: made[name] for name in when_asked})
    compute, communication, _ = view.sets
    overlap = intervals.intersect(compute, communication)
    step_bounds = [
        (number, start_ns + origin.base_ns, end_ns + origin.base_ns)
        for number, start_ns, end_ns in windows.find_step_bounds(view)
    ]
    messages = find_messages(view, collectives, origin.base_ns, origin.rank, origin.groups)
    return RankAnalysis(
        report,
        collectives,
        overlap + origin.base_ns,
        step_bounds,
        windows.find_steps_of_collectives(view),
        messages,
        made.get("parts"),
        view.origin_ns + origin.base_ns,
        stages.find_backward(view) + origin.base_ns if messages else EMPTY,
        made.get("path"),
        find_judged_time(view).windows + origin.base_ns,
        made.get("calls"),
    )


def _refuse_too_many(view: RankView, device_count: int) -> None:
    """Raise TraceError where something that is looked at one by one is there too often."""
    if device_count > DEVICES_MAX:
        raise NotATraceError(f"it has work on {device_count:,} devices; a machine has at most {DEVICES_MAX:,}")
    streams = len(np.unique(np.stack([view.work.device, view.work.stream]), axis=1).T)
    if streams > STREAMS_MAX:
        raise NotATraceError(f"it has work on {streams:,} streams; one process has at most {STREAMS_MAX:,}")
    if len(view.steps) > STEPS_MAX:
        raise TraceError(f"it has {len(view.steps):,} steps; choose some of them (--steps A:B), at most {STEPS_MAX:,}")


def _refuse_other_steps(view: RankView, steps: StepRange | None) -> None:
    """Raise TraceError where a range of steps leaves nothing of a trace: figures of no step would look measured."""
    if steps is None or view.steps:
        return
    numbers = sorted(step.number for step in view.all_steps)
    if not numbers:
        raise TraceError("it has no steps to choose from: profiler.step() was not called while it was recorded")
    known = f"step {numbers[0]}" if len(numbers) == 1 else f"{len(numbers):,} steps from {numbers[0]} to {numbers[-1]}"
    first, end = ("" if one is None else one for one in steps)
    raise TraceError(f"none of its steps is in {first}:{end}; it has {known}")


def _list_tables(view: RankView, origin: Origin, collectives: list[Collective], asked: Asked) -> Makers:
    """Return what makes the tables that need not be asked for: of each its name in the report, but for some that are
    made together.
    """
    return {
        "timelines": lambda: windows.draw_timelines(view),
        "counters": lambda: sum_counters(view),
        "breakdown": lambda: windows.break_down_window(view, *_find_bounds(view)),
        "steps": lambda: [] if view.has_unknown_device else windows.break_down_steps(view),
        "event_types": lambda: stages.sum_event_types(view),
        "model": lambda: stages.sum_stages(view),
        "collectives": lambda: tables.sum_collectives(collectives),
        "operators": lambda: tables.sum_operators(view),
        "kernels": lambda: tables.sum_kernels(view),
        "copies": lambda: tables.sum_copies(view),
        "user_ranges": lambda: sum_user_ranges(view),
        "synchronizations": lambda: tables.sum_synchronizations(view),
        "memory": lambda: summarize_memory(view, asked.memory_every, with_flow=asked.memory_flow),
        "signs": lambda: find_signs(view, origin.devices),
        "idle": lambda: windows.sum_idle(view),
        "launch_queue": lambda: sum_queues(view),
    }


def _find_bounds(view: RankView) -> tuple[int, int]:
    return view.bounds_ns or (view.origin_ns, view.origin_ns)


def _build_report(
    view: RankView, path: str, origin: Origin, devices: list[DeviceReport], made: dict[str, Any]
) -> RankReport:
    """Return the report with the tables of `_list_tables`, `made`: all that is left in it has a field of its name."""
    timeline, step_timelines = made.pop("timelines")
    counters, counter_warnings = made.pop("counters")
    breakdown = made.pop("breakdown")
    event_types: stages.EventTypes = made.pop("event_types")
    idle: windows.IdleTime = made.pop("idle")
    return RankReport(
        rank=origin.rank,
        file=path,
        device=_name_device(view, devices),
        world_size=origin.world_size,
        backend=origin.backend,
        host=origin.host,
        start_ns=_find_bounds(view)[0] - view.origin_ns,
        kernel_count=int(view.work.is_kernel.sum()),
        event_count=view.trace.event_count,
        devices=devices,
        timeline=timeline,
        step_timelines=step_timelines,
        hardware_counters=counters,
        event_types=event_types.whole,
        step_event_types=event_types.steps,
        idle_time=idle.lanes,
        idle_gaps=idle.gaps,
        warnings=[*_find_warnings(view, len(devices)), *counter_warnings],
        cpu_use=_read_cpu_use(view),
        **breakdown,
        **made,
    )


def _read_cpu_use(view: RankView) -> CpuUse | None:
    """Return what a capture has noted of the processors; None where it has not, or where that is not sound."""
    try:
        found = msgspec.convert(view.trace.head.get(CPU_KEY), CpuUse)
    except msgspec.ValidationError:
        return None
    return found if found.window_ns > 0 and found.process_ns >= 0 else None


def _has_unknown_device(trace: KinetoTrace) -> bool:
    """Return whether a device worked whose work is not in the trace, or not known: it is no trace of a CPU."""
    if len(trace.device_work.row):
        return False
    launches = trace.rows_named(trace.rows(*LAUNCHES), lambda name: "launch" in name.lower())
    return bool(len(launches)) or bool(trace.counters) or bool(find_uncounted(trace.categories))


def _name_device(view: RankView, devices: list[DeviceReport]) -> str | None:
    if devices:
        is_ascend = any(category.startswith("ascend ") for category in view.trace.categories)
        return devices[0].name or ("Ascend NPU" if is_ascend else "unnamed device")
    if view.has_unknown_device:
        return UNKNOWN_DEVICE
    return "CPU" if len(view.compute) else None


def _warn_of_devices(view: RankView) -> list[str]:
    uncounted = sorted(find_uncounted(view.trace.categories).items(), key=lambda item: (-item[1], item[0]))
    found = [f"{count:,} events are not counted: their category {name!r} is not known" for name, count in uncounted]
    if len(found) > UNCOUNTED_SHOWN_MAX:
        left = sum(count for _, count in uncounted[UNCOUNTED_SHOWN_MAX:])
        found = [*found[:UNCOUNTED_SHOWN_MAX], f"{left:,} more events of other unknown categories are not counted"]
    if view.has_unknown_device:
        found.append("a device was used, but the trace has no work of a known device: its time is not broken down")
    return found


def _find_warnings(view: RankView, device_count: int) -> list[str]:
    return [*view.trace.warnings, *_warn_of_devices(view), *_warn(view, device_count)]


def _warn(view: RankView, device_count: int) -> list[str]:
    found = []
    if device_count > 1:
        found.append(f"{device_count} devices in one file: the totals are sums over all of them, see devices")
    if view.bounds_ns is None and not view.has_unknown_device:
        found.append("no device work, and no operators either: nothing to break down")
    if not view.steps:
        found.append("no ProfilerStep in the trace (profiler.step() was not called): no steps")
    if view.repeated_step_count:
        found.append(
            f"{view.repeated_step_count:,} steps repeat the number of an earlier step and are left out. Does the file "
            "have several recordings?"
        )
    found += windows.find_overlaps(view)
    found += _warn_of_lost(view)
    found += _check_ascend(view)
    lost = int((view.launch == NONE).sum()) if view.has_device else 0
    if lost:
        found.append(
            f"{lost:,} of {len(view.work):,} pieces of device work were launched before the record, or by calls that "
            "are not in it: they are in no step's launched view"
        )
    return found


def _warn_of_lost(view: RankView) -> list[str]:
    lost = len(view.lost_launch_rows)
    if not lost:
        return []
    steps = sorted(view.steps_with_lost_work)
    named = ", ".join(map(str, steps[:STEPS_NAMED_MAX]))
    more = f" and {len(steps) - STEPS_NAMED_MAX:,} more" if len(steps) > STEPS_NAMED_MAX else ""
    told = f"{lost:,} of {view.launch_count:,} launches have no work in the trace"
    if view.steps:
        which = f"step{'s' * (len(steps) > 1)} {named}{more}"
        return [f"{told}: {which} {'are' if len(steps) > 1 else 'is'} not judged for idle time" if steps else told]
    return [f"{told}: its idle time is not judged" if view.has_lost_work else told]


ASCEND_LANE = "Computing"
"""Name of the events with which Ascend's profiler itself marks when something computed."""
ASCEND_DIFFERENCE_MAX = 0.1


def _check_ascend(view: RankView) -> list[str]:
    """Return a warning where what is read as computing is not what Ascend's own lane says."""
    rows = view.trace.rows_named(view.trace.rows(Category.OTHER), ASCEND_LANE.__eq__)
    if not len(rows) or not any(spelling.startswith("ascend ") for spelling in view.trace.categories):
        return []
    lane_ns = intervals.total_ns(intervals.union(view.intervals_of(rows)))
    mine_ns = intervals.total_ns(view.sets[0])
    if abs(mine_ns - lane_ns) <= ASCEND_DIFFERENCE_MAX * lane_ns:
        return []
    warning = (
        f"the file's own lane {ASCEND_LANE!r} has {format_duration(lane_ns)}, its tasks that are read as computing "
        f"{format_duration(mine_ns)}: types of tasks may be read wrongly"
    )
    return [warning]
