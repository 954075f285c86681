"""Divide the time of one rank's steps among what took it, so that the parts sum to the steps exactly.

At any time of a step one thing counts, chosen as in the breakdown: what computes, else what communicates, else what
copies, else nothing (idle). Of several that compute at once the one that started last counts: of operators on a CPU
the innermost. The same parts are named in several ways: by kernel, collective, operator, range of the user, module.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from rankscope.collector.traces.module_ranges import find_module_ranges
from rankscope.collector.traces.user_ranges import find_threads_of_calls, find_user_ranges, nest_ranges
from rankscope.collector.traces.windows import find_device_steps
from rankscope.measure import intervals
from rankscope.measure.blocking_calls import find_launching_threads, find_synchronizations
from rankscope.measure.capture_limits import MODULE_PREFIX
from rankscope.measure.intervals import Intervals
from rankscope.measure.kineto import NONE, Category, Ints
from rankscope.measure.nesting import OUTSIDE
from rankscope.measure.rank_view import RankView
from rankscope.measure.traced_collectives import Collective

COMPUTE, COMMUNICATION, COPY, IDLE = "compute", "communication", "copy", "idle"
WAITING = "waiting"


class Name(NamedTuple):
    """Name of a part, with the ranks of its group and its shapes or bytes, empty where it has none or is without."""

    text: str
    group: str = ""
    size: str = ""


class Label(NamedTuple):
    """Name of a part, and its kind: compute, communication, copy or idle; waiting where that is told from
    communication.
    """

    kind: str
    name: Name


WHOLE = {
    COMPUTE: Name("everything that computes"),
    COMMUNICATION: Name("all communication"),
    COPY: Name("all copies"),
    IDLE: Name("idle"),
}
"""Names of what a table does not tell apart."""


class Amount(NamedTuple):
    """Time of a part, and how many pieces of it began."""

    total_ns: int
    pieces: int


Parts = Mapping[Label, Amount]


class _Pieces(NamedTuple):
    """Events of one kind. `call`: the row of what launched each, on a CPU the event itself; NONE where not known."""

    kind: str
    row: Ints
    call: Ints


class _Painted(NamedTuple):
    """Pieces of one kind, with the disjoint segments of time in which one of them counts, and which one that is."""

    kind: str
    raw: Intervals
    segments: Intervals
    owner: Ints


class _Named(NamedTuple):
    """Names of pieces: the different ones, and which of them each piece has."""

    names: list[Name]
    code: Ints


class Exposed(NamedTuple):
    """The communication of the steps, in times from the trace's first event: the pieces with their names by table, and
    the time of the steps in which nothing computes.
    """

    painted: _Painted
    free: Intervals
    names: Mapping[str, _Named]


class DividedSteps(NamedTuple):
    """The steps of one rank by one clock: their number, their length, and by table the parts that sum to it."""

    step_count: int
    total_ns: int
    tables: Mapping[str, Parts]
    exposed: Exposed


class StepParts(NamedTuple):
    """The steps by the host's clock, and by the device's where every step has bounds by it."""

    by_host: DividedSteps
    by_device: DividedSteps | None


def divide_steps(view: RankView, collectives: Sequence[Collective]) -> StepParts | None:
    """Return the parts of the steps; None without steps, and without work that is known. The collectives are in the
    order of `find_communication_rows`.
    """
    if not view.steps or view.bounds_ns is None:
        return None
    pieces = _find_pieces(view)
    painted = [_paint(view, one) for one in pieces]
    names = _name_pieces(view, pieces, list(map(_name_collective, collectives)))
    waits = _find_waiting_host(view)

    def divide(bounds: Iterable[tuple[int, int]]) -> DividedSteps:
        window = intervals.union(np.array(list(bounds), dtype=np.int64))
        own, idle = _share_out(painted, window)
        kinds = [one.kind for one in pieces]
        place = kinds.index(COMMUNICATION)
        free = intervals.subtract(window, intervals.union(painted[kinds.index(COMPUTE)].raw))
        parts = {table: _sum_parts(painted, named, own, window, idle) for table, named in names.items()}
        parts["operators"] = _split_idle(parts["operators"], waits, idle)
        exposed = Exposed(
            _shift(painted[place], -view.origin_ns),
            free - view.origin_ns,
            {table: named[place] for table, named in names.items()},
        )
        return DividedSteps(len(view.steps), intervals.total_ns(window), parts, exposed)

    on_device = find_device_steps(view)
    has_all = len(on_device) == len(view.steps)
    return StepParts(
        divide((step.start_ns, step.next_start_ns) for step in view.steps),
        divide(on_device.values()) if has_all else None,
    )


def _shift(painted: _Painted, by_ns: int) -> _Painted:
    return painted._replace(raw=painted.raw + by_ns, segments=painted.segments + by_ns)


def split_waiting(divided: DividedSteps, waits: Mapping[int, Intervals]) -> DividedSteps:
    """Return the parts with the waiting for each rank told from communication. `waits` has by the rank that was late
    raw intervals (n, 2) in ns from the trace's first event; at a time in several the lowest rank counts.
    """
    painted, free, names = divided.exposed
    found = {table: dict(parts) for table, parts in divided.tables.items()}
    for late in sorted(waits):
        waiting = intervals.union(waits[late])
        own_ns = _measure(painted, intervals.intersect(free, waiting))
        free = intervals.subtract(free, waiting)
        label, waited_ns = Label(WAITING, Name(f"waiting for rank {late}")), int(own_ns.sum())
        for table, parts in found.items():
            for name, amount in _sum_by_name(names[table], own_ns, own_ns < 0):
                mine = Label(COMMUNICATION, name)
                parts[mine] = Amount(parts[mine].total_ns - amount.total_ns, parts[mine].pieces)
            if waited_ns:
                parts[label] = Amount(waited_ns, 0)
    return divided._replace(tables=found)


# -- time -------------------------------------------------------------------------------------------------------------


def find_last_started(raw: Intervals) -> tuple[Intervals, Ints]:
    """Return disjoint segments that cover what the intervals cover, and the place of the interval that each belongs to:
    of those that are open the one that started last, of equal starts the one that ends first.

    >>> segments, owner = find_last_started(np.array([[0, 10], [2, 5], [4, 12]]))
    >>> segments.tolist(), owner.tolist()
    ([[0, 2], [2, 4], [4, 12]], [0, 1, 2])
    """
    order = np.lexsort((-raw[:, 1], raw[:, 0]))
    if (raw[order[:-1], 1] <= raw[order[1:], 0]).all():
        return raw[order], order
    starts_ns, ends_ns = raw[order, 0].tolist(), raw[order, 1].tolist()
    found: list[tuple[int, int, int]] = []
    opened: list[int] = []
    reached_ns = 0
    for place, start_ns in enumerate([*starts_ns, max(ends_ns)]):
        while opened and reached_ns < start_ns:
            last = opened[-1]
            until_ns = min(ends_ns[last], start_ns)
            if until_ns > reached_ns:
                found.append((reached_ns, until_ns, last))
                reached_ns = until_ns
            if ends_ns[last] <= reached_ns:
                opened.pop()
        reached_ns = start_ns
        opened.append(place)
    columns = np.array(found, dtype=np.int64).reshape(-1, 3)
    return columns[:, :2], order[columns[:, 2]]


def _paint(view: RankView, pieces: _Pieces) -> _Painted:
    raw = view.intervals_of(pieces.row)
    return _Painted(pieces.kind, raw, *find_last_started(raw))


def _share_out(painted: Sequence[_Painted], window: Intervals) -> tuple[list[Ints], Intervals]:
    """Return for each kind the ns of the window in which each piece counts, and the set in which none does."""
    free, own = window, []
    for one in painted:
        own.append(_measure(one, free))
        free = intervals.subtract(free, intervals.union(one.raw))
    return own, free


def _measure(painted: _Painted, free: Intervals) -> Ints:
    """Return how many ns of the set each piece has."""
    start_ns, end_ns = painted.segments[:, 0], painted.segments[:, 1]
    own = np.zeros(len(painted.raw), dtype=np.int64)
    covered_ns = intervals.covered_before(free, end_ns) - intervals.covered_before(free, start_ns)
    np.add.at(own, painted.owner, covered_ns)
    return own


def _sum_parts(
    painted: Sequence[_Painted], named: Sequence[_Named], own: Sequence[Ints], window: Intervals, idle: Intervals
) -> dict[Label, Amount]:
    """Return time and count of each name, without those that have no share of the window."""
    idle_ns = intervals.total_ns(idle)
    found = {Label(IDLE, WHOLE[IDLE]): Amount(idle_ns, 0)} if idle_ns else {}
    for one, names, own_ns in zip(painted, named, own, strict=True):
        begun = intervals.contains(window, one.raw[:, 0])
        for name, amount in _sum_by_name(names, own_ns, begun):
            found[Label(one.kind, name)] = amount
    return found


def _sum_by_name(named: _Named, own_ns: Ints, counts: npt.NDArray[np.bool_]) -> list[tuple[Name, Amount]]:
    """Return time and count of each name that has either."""
    total_ns = np.zeros(len(named.names), dtype=np.int64)
    np.add.at(total_ns, named.code, own_ns)
    pieces = np.bincount(named.code[counts], minlength=len(named.names))
    amounts = map(Amount, total_ns.tolist(), pieces.tolist())
    return [(name, amount) for name, amount in zip(named.names, amounts, strict=True) if any(amount)]


def _split_idle(parts: dict[Label, Amount], waits: tuple[_Painted, _Named], idle: Intervals) -> dict[Label, Amount]:
    """Return the parts with the idle time of a device by what the threads that launch its work did meanwhile."""
    painted, named = waits
    rest = Label(IDLE, WHOLE[IDLE])
    if not named.names or rest not in parts:
        return parts
    own_ns = _measure(painted, idle)
    found = {label: amount for label, amount in parts.items() if label != rest}
    for name, amount in _sum_by_name(named, own_ns, own_ns > 0):
        found[Label(IDLE, Name(f"idle, host in {name.text}"))] = amount
    left_ns = parts[rest].total_ns - int(own_ns.sum())
    return {**found, Label(IDLE, Name("idle, host in no operator")): Amount(left_ns, 0)} if left_ns else found


# -- pieces and their names -------------------------------------------------------------------------------------------


def _find_pieces(view: RankView) -> list[_Pieces]:
    """Return the pieces of each kind, what goes first in front."""
    if not view.has_device:
        rows = {COMPUTE: view.host.compute_rows, COMMUNICATION: view.host.communication_rows}
        return [_Pieces(kind, found, found) for kind, found in rows.items()]
    work = view.work
    places = {
        COMPUTE: np.flatnonzero(work.is_kernel & ~work.is_communication),
        COMMUNICATION: np.flatnonzero(work.is_communication),
        COPY: np.flatnonzero(~work.is_kernel),
    }
    return [_Pieces(kind, work.row[found], view.launch[found]) for kind, found in places.items()]


def _name_pieces(view: RankView, pieces: Sequence[_Pieces], collectives: Sequence[Name]) -> dict[str, list[_Named]]:
    """Return the names of all pieces in each table."""
    names: dict[str, list[Sequence[Name]]] = {
        "operators": [_name_operators(view, one) for one in pieces],
        "collectives": [
            collectives if one.kind == COMMUNICATION else [WHOLE[one.kind]] * len(one.row) for one in pieces
        ],
    }
    if view.has_device:
        names["kernels"] = [_names_of(view, one.row) for one in pieces]
    ranges = find_user_ranges(view)
    if len(ranges):
        names["ranges"] = [_name_around(view, one, ranges, "outside of these ranges") for one in pieces]
    modules = find_module_ranges(view)
    if len(modules):
        names["modules"] = [_name_around(view, one, modules, "outside of modules") for one in pieces]
    return {table: list(map(_encode, named)) for table, named in names.items()}


def _encode(names: Sequence[Name]) -> _Named:
    codes: dict[Name, int] = {}
    code = np.array([codes.setdefault(name, len(codes)) for name in names], dtype=np.int64)
    return _Named(list(codes), code)


def _names_of(view: RankView, rows: Ints) -> list[Name]:
    codes = view.events.name[rows]
    names = {code: Name(view.trace.names[code].removeprefix(MODULE_PREFIX)) for code in np.unique(codes).tolist()}
    return [names[code] for code in codes.tolist()]


def _name_collective(one: Collective) -> Name:
    group = f", {one.group_size} ranks" if one.group_size is not None else ""
    return Name(one.op, group, f", {one.bytes:,} bytes" if one.bytes is not None else "")


def _name_operators(view: RankView, pieces: _Pieces) -> list[Name]:
    """Return the operator that launched each piece, on a CPU itself, with its shapes where the reader keeps them."""
    rows = view.host.find_callers(pieces.call) if view.has_device else pieces.row
    known, nothing = rows != NONE, Name("launched by no operator")
    names = iter(_names_of(view, rows[known]))
    return [_add_shapes(view, row, next(names)) if row != NONE else nothing for row in rows.tolist()]


def _add_shapes(view: RankView, row: int, name: Name) -> Name:
    shapes = view.trace.shapes.get(row)
    try:
        dims = msgspec.json.decode(shapes[1]) if shapes is not None else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return name
    return name._replace(size=f" {msgspec.json.encode(dims).decode()}") if isinstance(dims, list) else name


def _name_around(view: RankView, pieces: _Pieces, ranges: Ints, otherwise: str) -> list[Name]:
    """Return the name of the innermost of these ranges around each call, also around one by autograd's threads."""
    known = pieces.call != NONE
    call, threads = pieces.call[known], find_threads_of_calls(view)
    nesting, of_calls = nest_ranges(view, ranges, threads), threads[call]
    own = np.unique(nesting.thread)
    if len(own) == 1 and view.events.category[ranges[0]] == Category.PYTHON:
        of_calls = np.full_like(of_calls, own[0])  # some versions of Kineto give Python's frames other thread ids
    inside = np.full(len(pieces.row), OUTSIDE, dtype=np.int64)
    inside[known] = nesting.find_innermost(of_calls, view.events.start_ns[call])
    names, outside = _names_of(view, ranges), Name(otherwise)
    return [names[place] if place != OUTSIDE else outside for place in inside.tolist()]


def _find_waiting_host(view: RankView) -> tuple[_Painted, _Named]:
    """Return what the threads did that launch work on a device: operators, ranges, calls that wait; with their names.
    Nothing on a CPU.
    """
    rows = np.empty(0, dtype=np.int64)
    if view.has_device:
        rows = np.concatenate([view.host.operator_rows, find_user_ranges(view), find_synchronizations(view)])
        rows = np.unique(rows[np.isin(view.events.thread[rows], find_launching_threads(view))])
    return _paint(view, _Pieces(IDLE, rows, rows)), _encode(_names_of(view, rows))
