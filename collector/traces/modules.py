"""Sum the time of each nn.Module: a tree by instance, forward and backward, on the host and on the device.

A call on the host belongs to the innermost range around it: of a module's forward (a Python frame of the profiler, or
a range that a capture has marked), or of a backward operator. That one belongs to the module in which its forward
operator ran: autograd gives both the same sequence number. Recomputed forwards (activation checkpointing) are forwards.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rankscope.collector.traces.column_table import Texts, text_column
from rankscope.collector.traces.module_ranges import find_module_ranges
from rankscope.collector.traces.report import ModuleRow
from rankscope.measure.backward_links import find_backward
from rankscope.measure.capture_limits import MODULE_PREFIX
from rankscope.measure.errors import TraceError
from rankscope.measure.kineto import NONE, Codes, Ints
from rankscope.measure.kineto_columns import bound_name
from rankscope.measure.nesting import OUTSIDE, Nesting
from rankscope.measure.rank_view import RankView

NO_FRAMES = "the trace has no Python frames: no modules; record with with_stack=True, or capture with modules"
"""Warning where modules were asked for; the table of modules gives it as its reason."""
MODULES_MAX = 10_000
"""Rows of one trace, those with the most time: about 3 MB of JSON. A model has some hundred modules."""
DEPTH_MAX = 500
"""Levels of modules in modules. Each is two Python calls or more, and Python's own limit is 1,000 of them."""
OUTSIDE_MODULES = "outside of modules"
BACKWARD_ELSEWHERE = "backward without a forward operator"
NOT_LAUNCHED = "launch not in the trace"


class ModuleTree(NamedTuple):
    """Paths of module instances: the name, the parent (OUTSIDE for a root) and the depth of each; the path of each
    module's frame; and the place of each path by its parent and the code of its name.
    """

    names: list[str]
    parents: list[int]
    depths: list[int]
    path_of_frame: Ints
    places: dict[tuple[int, int], int]

    def add_level(self, frames: Ints, parents: Sequence[int], codes: Ints, name_of: Callable[[int], str]) -> None:
        """Set the paths of these frames, by the path of each one's parent and the code of its name."""
        for frame, parent, code in zip(frames.tolist(), parents, codes[frames].tolist(), strict=True):
            place = self.places.get((parent, code))
            if place is None:
                place = self.places[parent, code] = len(self.names)
                self.names.append(name_of(code).removeprefix(MODULE_PREFIX))
                self.parents.append(parent)
                self.depths.append(0 if parent == OUTSIDE else self.depths[parent] + 1)
            self.path_of_frame[frame] = place

    def find_callers(self) -> dict[int, int]:
        """Return by the code of a name the path that calls this instance, without those with several."""
        callers: dict[int, set[int]] = {}
        for parent, code in self.places:
            callers.setdefault(code, set()).add(parent)
        return {code: parents.pop() for code, parents in callers.items() if len(parents) == 1}

    def path(self, place: int) -> str:
        """Return the instances from the root to this one: `Net_0/Linear_1`."""
        parts = []
        while place != OUTSIDE:
            parts.append(self.names[place])
            place = self.parents[place]
        return bound_name("/".join(reversed(parts)))

    def sum_up(self, values: Ints) -> Ints:
        """Return for each path the sum of its value and of those below it: parents come first in the tree."""
        total = values.copy()
        for place in range(len(self.parents) - 1, -1, -1):
            if self.parents[place] != OUTSIDE:
                total[self.parents[place]] += total[place]
        return total


class ModuleRanges(NamedTuple):
    """Frames of modules, then backward operators: the rows, their nesting, and the path that each belongs to: OUTSIDE
    for a backward operator whose forward one ran in no module, NO_FORWARD where that is not in the trace.
    """

    rows: Ints
    nesting: Nesting
    path: Ints
    is_backward: npt.NDArray[np.bool_]

    def find(self, view: RankView, rows: Ints) -> Ints:
        """Return the innermost of these ranges around the start of each row, OUTSIDE for none."""
        return self.find_at(view, view.events.thread[rows], view.events.start_ns[rows])

    def find_at(self, view: RankView, threads: Codes, times_ns: Ints) -> Ints:
        """Return the innermost of these ranges that is open at each time on a thread, OUTSIDE for none."""
        return _find_around(view, self.rows[~self.is_backward], self.nesting, threads, times_ns)

    def path_of(self, found: Ints) -> Ints:
        """Return the paths of these ranges, OUTSIDE for none, NO_FORWARD where the forward one is not in the trace."""
        return np.where(found == OUTSIDE, OUTSIDE, self.path[found])


NO_FORWARD = -2


class ModuleCalls(NamedTuple):
    """The tree of a trace's modules, and what belongs to each of its paths."""

    tree: ModuleTree
    ranges: ModuleRanges
    calls: Ints
    """Number of calls by path."""
    length_ns: Ints
    """Host time of the calls by path."""


def find_module_calls(view: RankView) -> ModuleCalls | None:
    """Return the modules of a trace; None without ranges of modules. It was read with the links of autograd. Raises
    TraceError for modules that are nested more than DEPTH_MAX deep.
    """
    frames = find_module_ranges(view)
    if not len(frames):
        return None
    nesting = view.host.nest_rows(frames)
    depth = int(nesting.depth.max()) + 1
    if depth > DEPTH_MAX:
        raise TraceError(f"its modules are {depth:,} levels deep; at most {DEPTH_MAX} are told apart")
    tree = _grow_tree(view, frames, nesting)
    length_ns = np.zeros(len(tree.names), dtype=np.int64)
    np.add.at(length_ns, tree.path_of_frame, view.events.duration_ns[frames])
    count = np.bincount(tree.path_of_frame, minlength=len(tree.names))
    return ModuleCalls(tree, _find_ranges(view, frames, nesting, tree), count, length_ns)


def find_module_names(view: RankView, threads: Codes, times_ns: Ints, known: npt.NDArray[np.bool_]) -> Texts:
    """Return the path of the module to which what runs on these threads at these times belongs, as a column; none where
    that is not `known`, or it belongs to no module, and without ranges of modules. Raises TraceError as
    `find_module_calls`.
    """
    found = find_module_calls(view)
    if found is None:
        return Texts(np.full(len(times_ns), NONE, dtype=np.int32), [])
    paths = np.maximum(found.ranges.path_of(found.ranges.find_at(view, threads, times_ns)), NONE)
    paths = np.where(known, paths, NONE)
    names = {place: found.tree.path(place) for place in np.unique(paths).tolist() if place != NONE}
    return text_column(paths, [names.get(place, "") for place in range(len(found.tree.names))])


def sum_modules(view: RankView) -> tuple[list[ModuleRow], int]:
    """Return the tree of modules in its order, the most costly first among siblings, then what belongs to none, and how
    many rows beyond MODULES_MAX are left out. Empty without ranges of modules. The device times of all rows sum to
    that of all device work. The trace was read with the links of autograd.
    """
    found = find_module_calls(view)
    if found is None:
        return [], 0
    host = _sum_host(found.ranges, len(found.tree.names))
    device = _sum_device(view, found.ranges, len(found.tree.names)) if view.has_device else None
    rows = _build_rows(found, host, device, _count_operators(view, found.ranges, len(found.tree.names)))
    return [*rows, *_build_rest(host, device)], len(found.tree.names) - len(rows)


class _Sums(NamedTuple):
    """Ns by path, and last outside of modules (`forward`, `backward`), of backward operators without a forward one
    (`elsewhere`) and of work whose launch is not known (`unknown`).
    """

    forward: Ints
    backward: Ints
    elsewhere: int
    unknown: int = 0


# -- the tree ---------------------------------------------------------------------------------------------------------


def _grow_tree(view: RankView, frames: Ints, nesting: Nesting) -> ModuleTree:
    """Return the paths of the frames, level by level, so that parents come first; then those of forwards that are
    repeated in the backward, where no module is around them: they belong where the instance is called in the forward.
    """
    codes = view.events.name[frames].astype(np.int64)
    tree = ModuleTree([], [], [], np.full(len(frames), OUTSIDE, dtype=np.int64), {})
    repeated = _find_repeated(view, frames, nesting)
    for rows in nesting.levels():
        level = rows[~repeated[rows]]
        tree.add_level(level, _parents_of(tree, nesting, level), codes, view.trace.names.__getitem__)
    callers = tree.find_callers()
    for depth, rows in enumerate(nesting.levels()):
        level = rows[repeated[rows]]
        parents = _parents_of(tree, nesting, level)
        if depth == 0:
            parents = [callers.get(code, OUTSIDE) for code in codes[level].tolist()]
        tree.add_level(level, parents, codes, view.trace.names.__getitem__)
    return tree


def _parents_of(tree: ModuleTree, nesting: Nesting, level: Ints) -> list[int]:
    above = nesting.parent[level]
    parents: list[int] = np.where(above == OUTSIDE, OUTSIDE, tree.path_of_frame[above]).tolist()
    return parents


def _find_repeated(view: RankView, frames: Ints, nesting: Nesting) -> npt.NDArray[np.bool_]:
    """Return for each frame whether the outermost frame around it was called in a backward operator."""
    backward, _ = find_backward(view)
    around = view.host.nest_rows(backward).find_innermost(view.events.thread[frames], view.events.start_ns[frames])
    repeated: npt.NDArray[np.bool_] = (around != OUTSIDE) & (nesting.depth == 0)
    for level in nesting.levels()[1:]:
        repeated[level] = repeated[nesting.parent[level]]
    return repeated


# -- which module a call belongs to -----------------------------------------------------------------------------------


def _find_ranges(view: RankView, frames: Ints, modules: Nesting, tree: ModuleTree) -> ModuleRanges:
    """Return the ranges to which calls belong, each with its path."""
    backward, forward = find_backward(view)
    known = np.flatnonzero(forward != NONE)
    rows = forward[known]
    inside = _find_around(view, frames, modules, view.events.thread[rows], view.events.start_ns[rows])
    path = np.full(len(backward), NO_FORWARD, dtype=np.int64)
    path[known] = np.where(inside == OUTSIDE, OUTSIDE, tree.path_of_frame[inside])
    rows = np.concatenate([frames, backward])
    is_backward = np.arange(len(rows)) >= len(frames)
    return ModuleRanges(rows, view.host.nest_rows(rows), np.concatenate([tree.path_of_frame, path]), is_backward)


def _find_around(view: RankView, frames: Ints, nesting: Nesting, threads: Codes, times_ns: Ints) -> Ints:
    """Return the innermost range at each time on a thread, by its index. Some versions of Kineto give Python's
    frames other thread ids: a single thread of frames that has no operators stands in for threads without ranges.
    """
    threads = threads.copy()
    own = np.unique(view.events.thread[frames])
    if len(own) == 1 and not (view.events.thread[view.host.operator_rows] == own[0]).any():
        threads[~np.isin(threads, nesting.thread)] = own[0]
    return nesting.find_innermost(threads, times_ns)


# -- sums -------------------------------------------------------------------------------------------------------------


def _sum_host(ranges: ModuleRanges, path_count: int) -> _Sums:
    return _sum_by_path(ranges, np.arange(len(ranges.rows)), ranges.nesting.self_ns(), path_count)


def _sum_device(view: RankView, ranges: ModuleRanges, path_count: int) -> _Sums:
    length_ns = view.work.end_ns - view.work.start_ns
    launched = np.flatnonzero(view.launch != NONE)
    call = view.launch[launched]
    sums = _sum_by_path(ranges, ranges.find(view, call), length_ns[launched], path_count)
    return sums._replace(unknown=int(length_ns[view.launch == NONE].sum()))


def _sum_by_path(ranges: ModuleRanges, inside: Ints, own_ns: Ints, path_count: int) -> _Sums:
    """Return the sums of `own_ns`, each of which belongs to the range `inside`, OUTSIDE for none."""
    path = ranges.path_of(inside)
    backward = (inside != OUTSIDE) & ranges.is_backward[inside]
    elsewhere = path == NO_FORWARD

    def add_up(mask: npt.NDArray[np.bool_]) -> Ints:
        total = np.zeros(path_count + 1, dtype=np.int64)
        np.add.at(total, path[mask], own_ns[mask])  # OUTSIDE, -1, is the last place
        return total

    return _Sums(add_up(~backward), add_up(backward & ~elsewhere), int(own_ns[elsewhere].sum()))


def _count_operators(view: RankView, ranges: ModuleRanges, path_count: int) -> Ints:
    """Return by path the operators that its forwards called themselves: not the modules inside, nor other operators."""
    inside = ranges.find(view, view.host.operator_rows)
    above = view.host.operators.parent
    is_called = (above == OUTSIDE) | (inside[above] != inside)
    counted = inside[is_called & (inside != OUTSIDE)]
    return np.bincount(ranges.path[counted[~ranges.is_backward[counted]]], minlength=path_count)


_NO_DEVICE = (None, None, None, None)


# -- rows -------------------------------------------------------------------------------------------------------------


def _build_rows(found: ModuleCalls, host: _Sums, device: _Sums | None, operators: Ints) -> list[ModuleRow]:
    tree, length, count = found.tree, found.length_ns, len(found.tree.names)
    operators_total = tree.sum_up(operators)
    backward_total = tree.sum_up(host.backward[:count])
    on_device = (device.forward[:count], device.backward[:count]) if device is not None else ()
    device_totals = [tree.sum_up(one) for one in on_device]
    cost = sum(device_totals) if device_totals else length + backward_total
    columns = [one for pair in zip(on_device, device_totals, strict=True) for one in pair]
    rows = []
    for place in order_modules(tree, np.asarray(cost).tolist()):
        own, total, backward_own, backward = [int(one[place]) for one in columns] or _NO_DEVICE
        rows.append(
            ModuleRow(
                path=tree.path(place), name=tree.names[place], depth=tree.depths[place], count=int(found.calls[place]),
                host_total_ns=int(length[place]), host_self_ns=int(host.forward[place]),
                backward_host_total_ns=int(backward_total[place]), backward_host_self_ns=int(host.backward[place]),
                device_self_ns=own, device_total_ns=total,
                backward_device_self_ns=backward_own, backward_device_total_ns=backward,
                operator_self_count=int(operators[place]), operator_count=int(operators_total[place]),
            )
        )  # fmt: skip
    return rows


def order_modules(tree: ModuleTree, cost: Sequence[int]) -> list[int]:
    """Return the MODULES_MAX most costly places in the order of the tree, the most costly first among siblings."""
    kept = set(sorted(range(len(cost)), key=lambda one: (-cost[one], tree.depths[one]))[:MODULES_MAX])
    children: dict[int, list[int]] = {}
    for place in sorted(kept, key=lambda one: (-cost[one], tree.names[one])):
        children.setdefault(tree.parents[place], []).append(place)
    found, pending = [], children.get(OUTSIDE, [])[::-1]
    while pending:
        place = pending.pop()
        found.append(place)
        pending += children.get(place, [])[::-1]
    return found


def _build_rest(host: _Sums, device: _Sums | None) -> list[ModuleRow]:
    """Return the rows of what belongs to no module, without those of nothing."""

    def row(name: str, backward_host_ns: int, forward_ns: int, backward_ns: int) -> ModuleRow:
        on_device = device is not None
        return ModuleRow(
            path=None, name=name, depth=0, count=None, host_total_ns=None, host_self_ns=None,
            backward_host_total_ns=backward_host_ns, backward_host_self_ns=backward_host_ns,
            device_self_ns=forward_ns if on_device else None, device_total_ns=forward_ns if on_device else None,
            backward_device_self_ns=backward_ns if on_device else None,
            backward_device_total_ns=backward_ns if on_device else None,
        )  # fmt: skip

    found = device or _Sums(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64), 0)
    rows = [
        row(OUTSIDE_MODULES, int(host.backward[-1]), int(found.forward[-1]), int(found.backward[-1])),
        row(BACKWARD_ELSEWHERE, host.elsewhere, 0, found.elsewhere),
        row(NOT_LAUNCHED, 0, found.unknown, 0),
    ]
    return [one for one in rows if one.backward_host_self_ns or one.device_self_ns or one.backward_device_self_ns]
