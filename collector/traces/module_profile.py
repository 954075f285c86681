"""Sum FLOPs and time by module: what ran in it or in its backward, with the modules inside it."""

from typing import Any

import numpy as np

from rankscope.collector.traces.module_ranges import read_notes
from rankscope.collector.traces.modules import (
    BACKWARD_ELSEWHERE,
    NO_FORWARD,
    OUTSIDE_MODULES,
    ModuleCalls,
    find_module_calls,
    order_modules,
)
from rankscope.collector.traces.profile_rows import FlopsModule
from rankscope.measure.counted_operators import (
    BACKWARD,
    FORWARD,
    PHASES,
    RECOMPUTE,
    CountedOperators,
    ProfiledWindow,
)
from rankscope.measure.kineto import NONE, Ints
from rankscope.measure.rank_view import RankView
from rankscope.measure.units import NS_PER_S


def profile_modules(view: RankView, window: ProfiledWindow, counted: CountedOperators) -> list[FlopsModule]:
    """Return the modules in the order of their tree, the most costly first among siblings, at most MODULES_MAX, then
    what belongs to none. Empty without ranges of modules.
    """
    calls = find_module_calls(view)
    if calls is None:
        return []
    flops = _sum_flops(view, calls, counted)
    time_ns = _sum_times(view, window, calls)
    path_count = len(calls.tree.names)
    own, own_ns = flops[:, :path_count], time_ns[:path_count]
    total = np.array([calls.tree.sum_up(one) for one in own])
    total_ns = calls.tree.sum_up(own_ns)
    cost = (total.sum(axis=0) if total.any() else total_ns).tolist()
    has_times = view.has_device or not view.has_unknown_device
    tree = calls.tree
    notes = read_notes(view)
    rows = [
        _build_row(
            total[:, place], int(own[:, place].sum()), int(total_ns[place]) if has_times else None,
            path=tree.path(place), name=tree.names[place], depth=tree.depths[place], count=int(calls.calls[place]),
            parameters=notes.parameters.get(tree.names[place]), attributes=notes.paths.get(tree.names[place]),
        )
        for place in order_modules(tree, cost)
    ]  # fmt: skip
    rest = [
        _build_row(
            flops[:, place], int(flops[:, place].sum()), int(time_ns[place]) if has_times else None,
            path=None, name=name, depth=0, count=None, parameters=None,
        )
        for name, place in ((OUTSIDE_MODULES, path_count), (BACKWARD_ELSEWHERE, path_count + 1))
    ]  # fmt: skip
    return [*rows, *(row for row in rest if row.self_flops or row.time_ns)]


def _build_row(flops: Ints, self_flops: int, time_ns: int | None, **of_module: Any) -> FlopsModule:
    return FlopsModule(
        forward_flops=int(flops[FORWARD]),
        backward_flops=int(flops[BACKWARD]),
        recompute_flops=int(flops[RECOMPUTE]),
        self_flops=self_flops,
        time_ns=time_ns,
        flops_per_s=int(flops.sum()) * NS_PER_S / time_ns if time_ns else None,
        **of_module,
    )


def _places(calls: ModuleCalls, paths: Ints) -> Ints:
    """Return the columns of paths: after those of modules one for what is outside, and one for backward operators whose
    forward one is not known.
    """
    path_count = len(calls.tree.names)
    places: Ints = np.where(paths >= 0, paths, np.where(paths == NO_FORWARD, path_count + 1, path_count))
    return places


def _sum_flops(view: RankView, calls: ModuleCalls, counted: CountedOperators) -> Ints:
    """Return the FLOPs by phase and place."""
    paths = calls.ranges.path_of(calls.ranges.find(view, counted.row))
    sums = np.zeros((len(PHASES), len(calls.tree.names) + 2), dtype=np.int64)
    known = np.array([one.flops or 0 for one in counted.found], dtype=np.int64)
    np.add.at(sums, (counted.phase, _places(calls, paths)), known)
    return sums


def _sum_times(view: RankView, window: ProfiledWindow, calls: ModuleCalls) -> Ints:
    """Return the ns by place: of the device work that was launched in a module, on a CPU of the host in it."""
    ranges = calls.ranges
    if view.has_device:
        launched = np.flatnonzero(view.launch != NONE)
        launched = launched[window.select(view.events.start_ns[view.launch[launched]])]
        paths = ranges.path_of(ranges.find(view, view.launch[launched]))
        own_ns = (view.work.end_ns - view.work.start_ns)[launched]
    else:
        mine = window.select(view.events.start_ns[ranges.rows])
        paths, own_ns = ranges.path[mine], ranges.nesting.self_ns()[mine]
    sums = np.zeros(len(calls.tree.names) + 2, dtype=np.int64)
    np.add.at(sums, _places(calls, paths), own_ns)
    return sums
