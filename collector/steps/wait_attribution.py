"""Attribute the waiting in a step to the ranks that caused it, along chains of waits. Pure.

The member of a synchronizing operation that came last made the others wait. It may be late only because another rank
had made it wait before: then the wait is passed on, and the first rank is charged. So for each rank the *lateness* so
far in the step is kept, in ns by origin. For an operation with the waiting w, and a its last member:

    own[r]      = what r is later than its lateness explains, -w[r] - sum(lateness[r]), minus the least of the members
    lateness[r] gets own[r] at r itself, so that w[r] = sum(lateness[a]) - sum(lateness[r])
    w[r] is charged to the origins o in proportion to max(0, lateness[a][o] - lateness[r][o])
    lateness[r] = lateness[a] for all members: they leave together

Example: rank 1 is 20 ms late to an all_reduce with rank 0, which then is 20 ms late to one with rank 2. Charged to the
last member of each, as seems natural, rank 0 would be blamed for the second wait. But own is 0 for both members of it:
that rank 0 came late is what its lateness {1: 20} explains, and so rank 1 is charged 40 ms, and rank 0 nothing.

Only durations are used; no two clocks are compared. The charges of a step sum to the waiting in it, to the nanosecond:
shares are rounded by their running sum.

A rank has two latenesses. Waiting delays the thread that starts operations only while the thread has nothing else to do
(`wait_times.match_operations`), and no operation that the thread has started meanwhile. What is queued behind an
operation, on a stream or for a worker thread, is delayed by all of its waiting: an operation that starts as soon as an
earlier one ends has the lateness of that one's end, any other the thread's.

An operation with a root is not left by all together. Where it is known for which member another one waited
(`rooted_waits.py`), the two are attributed as above; in a group of two, who waits, waits for the other.

What a rank caused (`caused_ns`) is told as time: who waits in two operations at once, such as buckets of gradients or
buffers, waits once, and what is charged for its waits is scaled to the time in which it waited.

Not traced: who made a receiver of a point-to-point operation wait, or a member of one with a root where that is not
known. It is counted (`not_traced_ns`), and is lateness without an origin
(`untraced_ns`), so that ranks behind such an operation are not charged for it. A lateness from the step before counts
as the rank's own.

Cost: about 0.15 ms an operation and 100 ns for each origin of each row; a step at both limits takes less than 0.3 s. So
of several steps that arrive together one is attributed, and others while they take little (`step_table.py`).
"""

import itertools
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rankscope.collector.steps.collectives import Step, count_rows, find_ranks
from rankscope.collector.steps.rooted_waits import NOBODY
from rankscope.collector.steps.step_series import Floats, Ints
from rankscope.collector.steps.wait_times import MatchedOperations, match_operations
from rankscope.measure import intervals
from rankscope.measure.units import NS_PER_MS

OPERATIONS_MAX: Final = 1024
"""Operations of a step that is attributed: three times those of a sharded model with 100 layers."""
CELLS_MAX: Final = 1_000_000
"""Rows times ranks of such a step: 64 ranks with 240 operations of all of them, or 512 ranks with 3."""
BEHIND_NS: Final = NS_PER_MS // 10
"""An operation that starts this soon after the end of an earlier one has waited for that: kernels on a stream follow
each other within 10 us, gloo's worker thread starts the next one after 41 us."""


class WaitAttribution(NamedTuple):
    """The waiting of one step by the rank that caused it. `charged_ns` has shape (ranks, ranks): the waiting of the
    row's rank that the column's caused; the diagonal is lateness that comes back to its origin. All else has shape
    (ranks,): `untraced_ns` is the waiting of each rank that is traced, for lateness without a known cause,
    `not_traced_ns` that which is not, and `passed_on_ns` the waiting that each rank passed on. `once_ratio` is the time
    in which each rank waited over the sum of its waits, 0 to 1: in several operations at once, as in two buckets of
    gradients or buffers, it waits only once.
    """

    ranks: tuple[int, ...]
    charged_ns: Ints
    untraced_ns: Ints
    passed_on_ns: Ints
    not_traced_ns: Ints
    once_ratio: Floats

    @property
    def caused_ns(self) -> Floats:
        """The time for which ranks waited because of each rank, shape (ranks,); that of several operations at once
        counts once.
        """
        return np.asarray(self.once_ratio @ self.charged_ns)

    @property
    def unknown_ns(self) -> float:
        """The time for which ranks waited, and of which it is not known who caused it."""
        return float(self.once_ratio @ (self.untraced_ns + self.not_traced_ns))

    @property
    def waited_ns(self) -> Ints:
        """The waiting of each rank that is traced, shape (ranks,)."""
        return np.asarray(self.charged_ns.sum(axis=1) + self.untraced_ns)


def attribute_waits(
    step: Step, group_sizes: Mapping[str, int], host_groups: Collection[str] = ()
) -> WaitAttribution | None:
    """Attribute the waiting of one step; None when it has more than OPERATIONS_MAX operations or CELLS_MAX cells."""
    ranks = find_ranks(step)
    if len(ranks) * count_rows(step) > CELLS_MAX:
        return None
    matched = match_operations(step, group_sizes, host_groups)
    operation = _number_operations(matched.key)
    if operation.max(initial=-1) >= OPERATIONS_MAX:
        return None
    columns = np.searchsorted(ranks, matched.rank)
    paths = _Paths(matched, columns)
    charges = _Charges(len(ranks))
    for rows in _in_order(matched, operation):
        if matched.key[rows[0]] < 0:
            charges.add_untraced(paths, rows)
        elif matched.is_rooted[rows[0]]:
            charges.attribute_rooted(paths, rows, matched.releaser[rows])
        else:
            charges.attribute(paths, rows, paths.wait_ns[rows])
    paid_ns, once_ratio = charges.paid_ns, np.ones(len(ranks))
    for column in _find_overlapping(matched, columns):
        once_ratio[column] = _find_once_ratio(matched, columns == column)
    return WaitAttribution(
        tuple(ranks.tolist()), paid_ns[:, :-1], paid_ns[:, -1], charges.passed_on_ns, charges.not_traced_ns, once_ratio
    )


def _find_overlapping(matched: MatchedOperations, column: Ints) -> list[int]:
    """Return the columns of the ranks that wait in two operations at once."""
    # A rank's rows come by their start: of disjoint ones each ends before the next one starts.
    lasts_ns = (matched.start_ns + matched.wait_ns)[:-1] - matched.start_ns[1:]
    return sorted(set(column[1:][(lasts_ns > 0) & (column[:-1] == column[1:])].tolist()))


def _find_once_ratio(matched: MatchedOperations, rows: npt.NDArray[np.bool_]) -> float:
    """Return the time in which the rank of these rows waited over the sum of its waits; 1 where it did not wait."""
    waits_ns = matched.wait_ns[rows]
    whole_ns = int(waits_ns.sum())
    if not whole_ns:
        return 1.0
    return intervals.total_ns(intervals.union(intervals.from_starts(matched.start_ns[rows], waits_ns))) / whole_ns


def _in_order(matched: MatchedOperations, operation: Ints) -> Iterator[Ints]:
    """Yield the rows of each operation after those of all operations that any of its members took part in before.

    Where ranks disagree on the order (two streams), the operation that one of them started the earliest comes first.
    """
    if len(operation) == 0:
        return
    place = np.arange(len(operation)) - np.searchsorted(matched.rank, matched.rank)
    by_operation = np.argsort(operation, kind="stable")
    rows_of = np.split(by_operation, np.flatnonzero(np.diff(operation[by_operation])) + 1)
    follows: list[list[int]] = [[] for _ in rows_of]
    awaited = [0] * len(rows_of)
    for (rank, one), (next_rank, other) in itertools.pairwise(
        zip(matched.rank.tolist(), operation.tolist(), strict=True)
    ):
        if rank == next_rank:
            follows[one].append(other)
            awaited[other] += 1
    earliest_first = iter(sorted(range(len(rows_of)), key=lambda number: int(place[rows_of[number]].min())))
    ready = deque(number for number, count in enumerate(awaited) if count == 0)
    done = [False] * len(rows_of)
    for _ in rows_of:
        number = ready.popleft() if ready else next(one for one in earliest_first if not done[one])
        done[number] = True
        yield rows_of[number]
        for other in follows[number]:
            awaited[other] -= 1
            if awaited[other] == 0 and not done[other]:
                ready.append(other)


def _number_operations(key: Ints) -> Ints:
    """Return a number for each row, the same for rows of one key; rows without a key get their own."""
    alone = key < 0
    apart = np.where(alone, int(key.max(initial=0)) + 1 + np.arange(len(key)), key)
    return np.unique(apart, return_inverse=True)[1]


class _Paths:
    """The rows, for each its rank's column, and the row whose end it waited for before it could start, NOBODY if none;
    `is_awaited` marks these.
    """

    def __init__(self, matched: MatchedOperations, column: Ints) -> None:
        self.column = column
        self.wait_ns = matched.wait_ns
        self.hindered_ns = matched.hindered_ns
        end_ns = matched.start_ns + matched.duration_ns
        behind = np.full(len(column), NOBODY)
        for rows in np.split(np.arange(len(column)), np.flatnonzero(np.diff(column)) + 1):
            behind[rows] = _find_awaited(matched.start_ns[rows], end_ns[rows], rows)
        is_awaited = np.zeros(len(column), dtype=bool)
        is_awaited[behind[behind != NOBODY]] = True
        # Lists: these are read row by row, which takes an array several times as long.
        self.start_ns: list[int] = matched.start_ns.tolist()
        self.end_ns: list[int] = end_ns.tolist()
        self.behind: list[int] = behind.tolist()
        self.is_awaited: list[bool] = is_awaited.tolist()
        self.is_hindered: list[bool] = (matched.hindered_ns > 0).tolist()


def _find_awaited(start_ns: Ints, end_ns: Ints, rows: Ints) -> Ints:
    """Return for each of one rank's rows, by start, the earlier one at whose end it starts, NOBODY if there is none."""
    by_end = np.argsort(end_ns, kind="stable")
    last = by_end[np.maximum(np.searchsorted(end_ns[by_end], start_ns + BEHIND_NS, side="right") - 1, 0)]
    is_behind = (last < np.arange(len(rows))) & (np.abs(start_ns - end_ns[last]) <= BEHIND_NS)
    return np.where(is_behind, rows[last], NOBODY)


class _Charges:
    """Latenesses and charges of `count` ranks; the last origin is the unknown one."""

    def __init__(self, count: int) -> None:
        self.paid_ns = np.zeros((count, count + 1), dtype=np.int64)
        self.passed_on_ns = np.zeros(count, dtype=np.int64)
        self.not_traced_ns = np.zeros(count, dtype=np.int64)
        self._of_thread = np.zeros((count, count + 1))
        #: By rank, what its thread is later by from the end of an operation on.
        self._coming: list[deque[tuple[int, Floats]]] = [deque() for _ in range(count)]
        #: Lateness at the end of each operation that another one awaits, by row.
        self._at_end: dict[int, Floats] = {}

    def add_untraced(self, paths: _Paths, rows: Ints) -> None:
        """Add the rows of an operation whose waiting has no known origin."""
        lateness, _ = self._read_lateness(paths, rows)
        hindered = np.zeros_like(lateness)
        lateness[:, -1] += paths.wait_ns[rows]
        hindered[:, -1] = paths.hindered_ns[rows]
        np.add.at(self.not_traced_ns, paths.column[rows], paths.wait_ns[rows])
        self._leave(paths, rows, lateness, hindered)

    def attribute_rooted(self, paths: _Paths, rows: Ints, releaser: Ints) -> None:
        """Attribute an operation of these rows with a root, given the row for which each one waited: who was waited for
        and then waited itself comes first.
        """
        waited_for = np.unique(releaser[releaser != NOBODY])
        for row in sorted(waited_for.tolist(), key=lambda row: -_count_hops(row, rows, releaser)):
            together = np.concatenate([[row], rows[releaser == row]])
            self.attribute(paths, together, np.where(together == row, 0, paths.wait_ns[together]))
        self.add_untraced(paths, rows[releaser == NOBODY])

    def attribute(self, paths: _Paths, rows: Ints, wait_ns: Ints) -> None:
        """Attribute an operation that its members, these rows, leave together, and in which they waited so long."""
        columns = paths.column[rows]
        lateness, by_thread = self._read_lateness(paths, rows)
        own = -wait_ns - lateness.sum(axis=1)
        own -= own.min()
        lateness[np.arange(len(rows)), columns] += own
        self._of_thread[columns, columns] += np.where(by_thread, own, 0.0)
        last = int(wait_ns.argmin())
        gap = lateness[last] - lateness
        shares_ns = _split_by_weight(wait_ns, np.maximum(gap, 0.0))
        np.add.at(self.paid_ns, columns, shares_ns)
        self.passed_on_ns[columns[last]] += wait_ns.sum() - shares_ns[:, columns[last]].sum()
        hindered = np.divide(paths.hindered_ns[rows], wait_ns, out=np.zeros(len(rows)), where=wait_ns > 0)
        self._leave(paths, rows, [lateness[last]] * len(rows), gap * hindered[:, np.newaxis])

    def _read_lateness(self, paths: _Paths, rows: Ints) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """Return the lateness with which each row started, shape (rows, origins), and whether it is the thread's."""
        columns = paths.column[rows]
        of_queues: dict[int, Floats] = {}
        for place, (row, column) in enumerate(zip(rows.tolist(), columns.tolist(), strict=True)):
            coming, start_ns = self._coming[column], paths.start_ns[row]
            while coming and coming[0][0] <= start_ns + BEHIND_NS:
                self._of_thread[column] += coming.popleft()[1]
            if (of_queue := self._at_end.get(paths.behind[row])) is not None:
                of_queues[place] = of_queue
        lateness, by_thread = self._of_thread[columns], np.ones(len(rows), dtype=bool)
        for place, of_queue in of_queues.items():
            lateness[place], by_thread[place] = of_queue, False
        return lateness, by_thread

    def _leave(self, paths: _Paths, rows: Ints, lateness: Sequence[Floats] | Floats, hindered: Floats) -> None:
        """Keep the lateness with which each row ended, and by how much its thread was hindered until then."""
        for place, (row, column) in enumerate(zip(rows.tolist(), paths.column[rows].tolist(), strict=True)):
            if paths.is_awaited[row]:
                self._at_end[row] = lateness[place]
            if paths.is_hindered[row]:
                self._coming[column].append((paths.end_ns[row], hindered[place]))


def _count_hops(row: int, rows: Ints, releaser: Ints) -> int:
    """Return how many members were waited for, one by the other, from the one for which this one waited."""
    row_of = dict(zip(rows.tolist(), releaser.tolist(), strict=True))
    hops = 0
    while (row := row_of[row]) != NOBODY:
        hops += 1
    return hops


def _split_by_weight(amounts_ns: Ints, weights: npt.NDArray[np.float64]) -> Ints:
    """Return each amount split in proportion to its row of weights, in whole ns that sum to it; shape (k,), (k, n) to
    (k, n).

    The running sum of the shares is rounded, so that each is off by less than 1 ns. The weights of an amount above 0
    are not all 0.
    """
    running: Floats = np.cumsum(weights, axis=1)
    whole = running[:, -1:]
    ratio = np.divide(running, whole, out=np.zeros_like(running), where=whole > 0)
    rounded = np.rint(ratio * amounts_ns[:, np.newaxis]).astype(np.int64)
    rounded[:, 1:] -= rounded[:, :-1].copy()
    return rounded
