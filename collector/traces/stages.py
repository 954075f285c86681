"""Divide the time of the steps by type of event, and by stage of the training step.

By type of event
----------------
At any time of a step exactly one type counts, the first of this list that is active (the order of the PyTorch
profiler's TensorBoard plugin): kernel, memcpy, memset, communication, runtime, data_loader, cpu_op, other. So the types
sum to the step. Communication means the host's ranges: on a device it is a kernel.

By stage
--------
On the thread that runs the steps: data_loader is inside the loader's `__next__`, optimizer inside `Optimizer.step`, but
not in the closure that it may be given (Lightning): that ends with the last range of autograd's engine inside. backward
is from the first to the last range of autograd's engine in each stretch between those (the engine may work on a
thread of its own), forward the remaining operators, other the remaining time. The device time of a stage is that of the
work launched during it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rankscope.collector.traces.module_ranges import is_module_range
from rankscope.collector.traces.report import EventTypeRow, ModelRow, StepEventTypes
from rankscope.measure import intervals
from rankscope.measure.intervals import Intervals
from rankscope.measure.kineto import LAUNCHES, Category, Ints
from rankscope.measure.rank_view import RankView

DATA_LOADER = re.compile(r"^enumerate\(DataLoader\)#.*\.__next__$")
_OPTIMIZER = re.compile(r"^Optimizer\.step#.*\.step$")
_BACKWARD = re.compile(r"^autograd::engine::evaluate_function|Backward\d*$|AccumulateGrad$")
"""Ranges of the engine; traces of 2021 have only the nodes that it runs."""

KINDS = ("kernel", "memcpy", "memset", "communication", "runtime", "data_loader", "cpu_op", "other")
STAGES = ("data_loader", "forward", "backward", "optimizer", "other")


# -- by type of event -------------------------------------------------------------------------------------------------


class EventTypes(NamedTuple):
    """The time by type of event: of all steps, without steps of the trace; and of each step."""

    whole: list[EventTypeRow]
    steps: list[StepEventTypes]


def sum_event_types(view: RankView) -> EventTypes:
    """Return the time of the steps by type of event; without steps that of the trace."""
    windows = [(step.start_ns, step.next_start_ns) for step in view.steps]
    if not windows:
        windows = [view.bounds_ns] if view.bounds_ns is not None else []
    kinds = kinds_of_time(view)
    found = [split_by_kind(kinds, start_ns, end_ns) for start_ns, end_ns in windows]
    totals = [sum(of_kind) for of_kind in zip(*found, strict=True)] or [0] * len(KINDS)
    whole = sum(totals)
    return EventTypes(
        [
            EventTypeRow(kind=kind, total_ns=total, ratio=total / whole if whole else None)
            for kind, total in zip(KINDS, totals, strict=True)
        ],
        [
            StepEventTypes(step=step.number, **{f"{kind}_ns": ns for kind, ns in zip(KINDS, of_step, strict=True)})
            for step, of_step in zip(view.steps, found, strict=False)  # without steps there is one of the trace
        ],
    )


def kinds_of_time(view: RankView, work: Ints | None = None) -> list[Intervals]:
    """Return for each kind but the last the intervals in which it is active; on the device only for these places in
    `work`.
    """
    events = view.events
    places = np.arange(len(view.work)) if work is None else work
    raw = np.stack([view.work.start_ns[places], view.work.end_ns[places]], axis=1)
    category = events.category[view.work.row[places]]
    host = view.trace.rows(Category.CPU_OP, Category.ANNOTATION)
    is_loader = view.trace.names_like(DATA_LOADER.match)[events.name[host]]
    is_module = view.trace.names_like(is_module_range)[events.name[host]]
    is_range = (events.category[host] == Category.ANNOTATION) & ~is_module
    is_operator = (np.isin(host, view.host.operator_rows) | is_range) & ~is_loader & ~np.isin(host, view.host.step_rows)
    return [
        *(intervals.union(raw[category == kind]) for kind in (Category.KERNEL, Category.MEMCPY, Category.MEMSET)),
        intervals.union(view.intervals_of(view.host.backend_rows)),
        intervals.union(view.intervals_of(view.trace.rows(*LAUNCHES))),
        intervals.union(view.intervals_of(host[is_loader])),
        intervals.union(view.intervals_of(host[is_operator])),
    ]


def split_by_kind(kinds: Sequence[Intervals], start_ns: int, end_ns: int) -> list[int]:
    """Return the ns of a window by kind or stage: the first active one counts, the last value is the remainder."""
    covered = intervals.EMPTY
    found = []
    for kind in kinds:
        mine = intervals.clip(intervals.touching(kind, start_ns, end_ns), start_ns, end_ns)
        together = intervals.union(np.concatenate([covered, mine]))
        found.append(intervals.total_ns(together) - intervals.total_ns(covered))
        covered = together
    return [*found, end_ns - start_ns - intervals.total_ns(covered)]


# -- by stage ---------------------------------------------------------------------------------------------------------


def sum_stages(view: RankView) -> list[ModelRow]:
    """Return the stages of all steps; empty without steps."""
    if not view.steps:
        return []
    sets = _sets_of_stages(view)
    of_steps = [split_by_kind([*sets.values()], step.start_ns, step.next_start_ns) for step in view.steps]
    host_ns = dict(zip((*sets, "other"), zip(*of_steps, strict=True), strict=True))
    device_ns = _device_time(view, sets)
    return [
        ModelRow(
            stage=stage,
            host_ns=sum(host_ns[stage]),
            device_ns=device_ns.get(stage, 0),
            count=len(view.steps),
            host_min_ns=min(host_ns[stage]),
            host_max_ns=max(host_ns[stage]),
        )
        for stage in STAGES
    ]


def find_backward(view: RankView) -> Intervals:
    """Return when backward ran: on a device what was launched during it, on a CPU the ranges of autograd's engine."""
    backward = _sets_of_stages(view)["backward"]
    if not view.has_device:
        return backward
    launched, call_ns = view.work_by_call
    mine = launched[intervals.contains(backward, call_ns)]
    return intervals.union(np.stack([view.work.start_ns[mine], view.work.end_ns[mine]], axis=1))


def find_host_backward(view: RankView) -> Intervals:
    """Return when autograd's engine ran on the host."""
    return _sets_of_stages(view)["backward"]


def _cut_closures(optimizer: Intervals, engine: Intervals) -> Intervals:
    """Return the intervals of the optimizer from the end of the last range of autograd's engine inside of each on."""
    if not len(optimizer) or not len(engine):
        return optimizer
    last = np.searchsorted(engine[:, 1], optimizer[:, 1], side="right") - 1
    ends_ns = np.where(last >= 0, engine[np.maximum(last, 0), 1], optimizer[:, 0])
    return np.stack([np.maximum(optimizer[:, 0], ends_ns), optimizer[:, 1]], axis=1)


def _sets_of_stages(view: RankView) -> dict[str, Intervals]:
    """Return the intervals of each stage, in the order of precedence."""
    host = view.trace.rows(Category.CPU_OP, Category.ANNOTATION)

    def of(matches: Callable[[str], object]) -> Intervals:
        return intervals.union(view.intervals_of(view.trace.rows_named(host, matches)))

    loader, engine = of(DATA_LOADER.match), of(_BACKWARD.search)
    optimizer = _cut_closures(of(_OPTIMIZER.match), engine)
    between = intervals.union(np.concatenate([loader, optimizer]))
    backward = _bridge(engine, between, np.array([step.start_ns for step in view.steps], dtype=np.int64))
    rows = view.host.operator_rows if view.has_device else view.host.compute_rows
    return {
        "data_loader": loader,
        "optimizer": optimizer,
        "backward": backward,
        "forward": intervals.union(view.intervals_of(rows)),
    }


def _bridge(engine: Intervals, between: Intervals, begins_ns: Ints) -> Intervals:
    """Return the engine's ranges with short gaps filled, without `between`; not the gaps in which one of the `begins`
    of steps is: what follows is the next forward, which may be short, too.
    """
    if len(engine) < 2:  # noqa: PLR2004 - one range has no gaps
        return engine
    gaps = np.stack([engine[:-1, 1], engine[1:, 0]], axis=1)
    short = (gaps[:, 1] - gaps[:, 0]) < GAP_NS_MAX
    short &= np.searchsorted(begins_ns, gaps[:, 0], side="right") == np.searchsorted(begins_ns, gaps[:, 1])
    filled = np.concatenate([engine, gaps[short]])
    return intervals.subtract(intervals.union(filled), between)


GAP_NS_MAX = 1_000_000
"""Within one backward the engine pauses for at most 0.2 ms; the next forward takes milliseconds."""


def _device_time(view: RankView, sets: Mapping[str, Intervals]) -> dict[str, int]:
    """Return the device time of the work launched during each stage; of stages at once the first counts."""
    if not view.has_device:
        return {}
    launched, call_ns = view.work_by_call
    steps = intervals.union(np.array([[step.start_ns, step.next_start_ns] for step in view.steps], dtype=np.int64))
    left = intervals.contains(steps, call_ns)
    length = (view.work.end_ns - view.work.start_ns)[launched]
    found = {}
    for stage, part in sets.items():
        mine = left & intervals.contains(part, call_ns)
        found[stage] = int(length[mine].sum())
        left = left & ~mine
    return {**found, "other": int(length[left].sum())}
