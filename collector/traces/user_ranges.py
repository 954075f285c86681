"""Sum the ranges that the script or torch marks: their time on the host and on the device, and the kernels launched
inside of each.

A launch is inside the ranges that are open on its thread, one by autograd's engine inside those of the thread that
runs the steps, which waits for the engine in its backward.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from rankscope.collector.traces.module_ranges import is_module_range
from rankscope.collector.traces.report import RangeKernelRow, RangeRow
from rankscope.collector.traces.tables import by_name, deviate
from rankscope.measure import communication
from rankscope.measure.backward_links import ENGINE
from rankscope.measure.errors import TraceError
from rankscope.measure.kineto import NONE, Category, Codes, Ints
from rankscope.measure.nesting import OUTSIDE, Nesting, nest
from rankscope.measure.rank_view import STEP_NAME, Bools, RankView

DEPTH_MAX = 500
"""Different ranges around one another. Programs have a dozen."""
KINDS_MAX = 1_000_000
"""Kinds of work by the ranges that it was launched in. Programs have some thousands."""


def find_user_ranges(view: RankView) -> Ints:
    """Return the rows of the ranges on the host, without steps, collectives and modules."""
    rows = view.trace.rows(Category.ANNOTATION)
    return rows[~_find_others(view)[view.events.name[rows]]]


def _find_others(view: RankView) -> Bools:
    """Return by name whether a range is a step, a collective or a module."""
    return view.trace.names_like(
        lambda name: STEP_NAME.match(name) or communication.is_backend_range(name) or is_module_range(name)
    )


def find_threads_of_calls(view: RankView) -> Codes:
    """Return the thread of each event; for the threads of autograd's engine the one that runs the steps, which waits
    for them in its backward.
    """
    threads = view.events.thread.copy()
    steps = np.unique(threads[view.host.step_rows])
    if len(steps) == 1:
        engine = np.unique(threads[view.trace.rows_named(view.host.operator_rows, ENGINE.match)])
        threads[np.isin(threads, engine)] = steps[0]
    return threads


def nest_ranges(view: RankView, ranges: Ints, threads: Codes) -> Nesting:
    """Nest these rows by the threads of `find_threads_of_calls`; the result's indices count within them."""
    return nest(threads[ranges], view.events.start_ns[ranges], view.events.end_ns[ranges])


# -- one line a name --------------------------------------------------------------------------------------------------


def sum_user_ranges(view: RankView) -> list[RangeRow]:
    """Return the ranges by name, on host and device, the longest on the host first. Raises TraceError for ranges that
    are nested more than DEPTH_MAX deep, where their time on the device has to be found by launches.
    """
    device = view.trace.rows(Category.GPU_ANNOTATION)
    device = device[~_find_others(view)[view.events.name[device]]]
    host = find_user_ranges(view)
    on_device, on_host = (
        {code: view.events.duration_ns[rows[mine]] for code, mine in by_name(view.events.name[rows])}
        for rows in (device, host)
    )
    is_needed = bool(on_host.keys() - on_device.keys() and (view.launch != NONE).any())
    launched_ns = _sum_launched(view, on_host) if is_needed else {}
    rows = []
    for code in on_host.keys() | on_device.keys():
        mine_ns, device_ns = on_host.get(code, host[:0]), on_device.get(code)
        rows.append(
            RangeRow(
                name=view.trace.names[code],
                count=len(mine_ns),
                host_total_ns=int(mine_ns.sum()),
                device_total_ns=int(device_ns.sum()) if device_ns is not None else launched_ns.get(code),
                device_from="ranges" if device_ns is not None else "launches" if code in launched_ns else None,
                host_min_ns=int(mine_ns.min()) if len(mine_ns) else None,
                host_max_ns=int(mine_ns.max()) if len(mine_ns) else None,
                host_deviation_ns=deviate(mine_ns),
                device_count=len(device_ns) if device_ns is not None else None,
                device_min_ns=int(device_ns.min()) if device_ns is not None else None,
                device_max_ns=int(device_ns.max()) if device_ns is not None else None,
                device_deviation_ns=deviate(device_ns) if device_ns is not None else None,
            )
        )
    return sorted(rows, key=lambda row: (-row.host_total_ns, -(row.device_total_ns or 0), row.name))


def _sum_launched(view: RankView, names: Mapping[int, Ints]) -> dict[int, int]:
    """Return for each of these names of ranges the device time launched inside."""
    total_ns = dict.fromkeys(names, 0)
    within, _ = _sum_work_in_ranges(view, by_kind=False)
    for code, ns in zip(within.where.tolist(), within.total_ns.tolist(), strict=True):
        if code != OUTSIDE:
            total_ns[code] += ns
    return total_ns


# -- the kernels of each name -----------------------------------------------------------------------------------------


def sum_range_kernels(view: RankView) -> list[RangeKernelRow]:
    """Return the kernels and copies launched in the ranges of each name, the range with the most first, in it the
    kernel with the most; last those launched in none. Empty without a device. Raises TraceError as `sum_user_ranges`.
    """
    if not view.has_device:
        return []
    within, innermost = _sum_work_in_ranges(view, by_kind=True)
    own = {(where, what): (count, ns) for where, what, count, ns, _, _ in innermost.rows()}
    whole_ns: dict[int, int] = {}
    for where, _, _, ns, _, _ in within.rows():
        whole_ns[where] = whole_ns.get(where, 0) + ns
    names = view.trace.names
    found = [
        RangeKernelRow(
            range_name=names[where] if where != OUTSIDE else None,
            name=names[what],
            count=count,
            total_ns=total_ns,
            mean_ns=round(total_ns / count),
            min_ns=min_ns,
            max_ns=max_ns,
            pct=100 * total_ns / whole_ns[where] if whole_ns[where] else 0.0,
            own_count=own.get((where, what), (0, 0))[0],
            own_ns=own.get((where, what), (0, 0))[1],
        )
        for where, what, count, total_ns, min_ns, max_ns in within.rows()
    ]
    whole_by_name = {names[where] if where != OUTSIDE else None: ns for where, ns in whole_ns.items()}
    return sorted(
        found,
        key=lambda row: (
            row.range_name is None, -whole_by_name[row.range_name], row.range_name or "", -row.total_ns, row.name,
        ),
    )  # fmt: skip


class _Sums(NamedTuple):
    """Work by two codes, `where` it was launched and `what` it is: pieces of it, and their times in ns."""

    where: Ints
    what: Ints
    pieces: Ints
    total_ns: Ints
    min_ns: Ints
    max_ns: Ints

    def rows(self) -> Iterator[tuple[int, ...]]:
        """Return the rows as numbers of Python."""
        return zip(*(column.tolist() for column in self), strict=True)

    def of(self, rows: Ints | Bools) -> "_Sums":
        """Return some of the rows."""
        return _Sums(*(column[rows] for column in self))

    def merge(self) -> "_Sums":
        """Return one row for each pair of codes, ascending."""
        order = np.lexsort((self.what, self.where))
        if not len(order):
            return self
        mine = self.of(order)
        is_first = (np.diff(mine.where, prepend=OUTSIDE - 1) != 0) | (np.diff(mine.what, prepend=NONE) != 0)
        first = np.flatnonzero(is_first)
        return _Sums(
            mine.where[first],
            mine.what[first],
            np.add.reduceat(mine.pieces, first),
            np.add.reduceat(mine.total_ns, first),
            np.minimum.reduceat(mine.min_ns, first),
            np.maximum.reduceat(mine.max_ns, first),
        )


class _Paths(NamedTuple):
    """The different ways of ranges around one another, by name: the name of the innermost one of each way, and the way
    around it, OUTSIDE for none; a name is on a way once. `of_range` has the way of each range.
    """

    name: Ints
    parent: Ints
    of_range: Ints


def _sum_work_in_ranges(view: RankView, *, by_kind: bool) -> tuple[_Sums, _Sums]:
    """Return all device work by the ranges' names, and `by_kind` by its own: in the ranges of a name or in others
    inside of these, once in ranges of one name inside each other; and by the innermost range alone. OUTSIDE stands for
    no range. Raises TraceError for more than KINDS_MAX.
    """
    ranges, threads = find_user_ranges(view), find_threads_of_calls(view)
    nesting, names = nest_ranges(view, ranges, threads), view.events.name[ranges].astype(np.int64)
    inside = np.full(len(view.work), OUTSIDE, dtype=np.int64)
    launched = np.flatnonzero(view.launch != NONE)
    call = view.launch[launched]
    inside[launched] = nesting.find_innermost(threads[call], view.events.start_ns[call])
    paths = _find_paths(nesting, names.tolist())

    length_ns = view.work.end_ns - view.work.start_ns
    kinds = view.work.name.astype(np.int64) if by_kind else np.zeros_like(inside)
    pieces = _Sums(inside, kinds, np.ones_like(inside), length_ns, length_ns, length_ns)

    def renamed(sums: _Sums, codes: Ints) -> _Sums:
        """Return the sums with the codes in place of the indices in `where`."""
        return sums._replace(where=np.append(codes, OUTSIDE)[sums.where])  # OUTSIDE, -1, is the last place

    level = renamed(pieces, paths.of_range).merge()
    levels, found = [level], len(level.where)
    while len((inner := level.of(level.where != OUTSIDE)).where):
        level = renamed(inner, paths.parent).merge()
        levels.append(level.of(level.where != OUTSIDE))
        found += len(levels[-1].where)
        if found > KINDS_MAX:
            raise TraceError(f"more than {KINDS_MAX:,} kinds of work are told apart by its user ranges")
    within = _Sums(*(np.concatenate(columns) for columns in zip(*levels, strict=True)))
    return renamed(within, paths.name).merge(), renamed(pieces, names).merge()


def _find_paths(nesting: Nesting, names: list[int]) -> _Paths:
    places: dict[tuple[int, int], int] = {}
    name: list[int] = []
    above: list[int] = []
    depth: list[int] = []
    parents, of_range = nesting.parent.tolist(), [OUTSIDE] * len(names)
    for one in nesting.order.tolist():
        way = of_range[parents[one]] if parents[one] != OUTSIDE else OUTSIDE
        key = (way, names[one])
        if key not in places:
            place = way
            while place != OUTSIDE and name[place] != names[one]:
                place = above[place]
            if place != OUTSIDE:
                places[key] = way
            else:
                places[key] = len(name)
                name.append(names[one])
                above.append(way)
                depth.append(depth[way] + 1 if way != OUTSIDE else 1)
                if depth[-1] > DEPTH_MAX:
                    raise TraceError(f"more than {DEPTH_MAX} different user ranges are inside one another")
        of_range[one] = places[key]
    return _Paths(*(np.array(column, dtype=np.int64) for column in (name, above, of_range)))
