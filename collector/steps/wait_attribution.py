"""Attribute the waiting in a step to the ranks that caused it, along chains of waits. Pure.

The member of a synchronising operation that came last made the others wait. It may be late only because another rank
had made it wait before: then the wait is passed on, and the first rank is charged. So for each rank the *lateness* so
far in the step is kept, in ns by origin. For an operation with the waiting w, and a its last member:

    own[r]      = what r is later than its lateness explains, -w[r] - sum(lateness[r]), minus the least of the members
    lateness[r] gets own[r] at r itself, so that w[r] = sum(lateness[a]) - sum(lateness[r])
    w[r] is charged to the origins o in proportion to max(0, lateness[a][o] - lateness[r][o])
    lateness[r] = lateness[a] for all members: they leave together

Only durations are used; no two clocks are compared. The charges of a step sum to the waiting in it, to the nanosecond:
shares are rounded by their running sum.

A rank has two latenesses. Waiting delays the thread that starts operations only while the thread has nothing else to do
(`wait_times.match_operations`), and the stream of operations always: an operation that starts as soon as the one before
it ends was delayed by the stream, any other by the thread.

Not traced: who made a receiver of a point-to-point operation wait, or a member of one with a root, unless it has two
members: who waits there, waits for the other. It is counted (`not_traced_ns`), and is lateness without an origin
(`untraced_ns`), so that ranks behind such an operation are not charged for it. A lateness from the step before counts
as the rank's own.

Cost: about 0.15 ms an operation and 100 ns for each origin of each row; a step at both limits takes less than 0.3 s. So
of several steps that arrive together one is attributed, and others while they take little (`step_table.py`).
"""

import itertools
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rankscope.collector.steps.collectives import Step, count_rows, find_ranks
from rankscope.collector.steps.step_series import Floats, Ints
from rankscope.collector.steps.wait_times import Matched, match_operations
from rankscope.measure.units import NS_PER_MS

OPERATIONS_MAX: Final = 1024
"""Operations of a step that is attributed: three times those of a sharded model with 100 layers."""
CELLS_MAX: Final = 1_000_000
"""Rows times ranks of such a step: 64 ranks with 240 operations of all of them, or 512 ranks with 3."""
BEHIND_NS: Final = NS_PER_MS // 10
"""An operation that starts this soon after the one before it has waited for its end: kernels on a stream follow each
other within 10 us, gloo's worker thread starts the next one after 41 us."""


class WaitAttribution(NamedTuple):
    """The waiting of one step by the rank that caused it. `charged_ns` has shape (ranks, ranks): the waiting of the
    row's rank that the column's caused; the diagonal is lateness that comes back to its origin. All else has shape
    (ranks,): `untraced_ns` is the waiting of each rank in operations that are traced, for lateness without a known
    cause, `not_traced_ns` that in the others, and `passed_on_ns` the waiting that each rank passed on.
    """

    ranks: tuple[int, ...]
    charged_ns: Ints
    untraced_ns: Ints
    passed_on_ns: Ints
    not_traced_ns: Ints

    @property
    def caused_ns(self) -> Ints:
        """The waiting that each rank caused, shape (ranks,)."""
        return np.asarray(self.charged_ns.sum(axis=0))

    @property
    def waited_ns(self) -> Ints:
        """The waiting of each rank in operations that are traced, shape (ranks,)."""
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
    paths = _Paths(matched, np.searchsorted(ranks, matched.rank))
    charges = _Charges(len(ranks))
    for rows in _in_order(matched, operation):
        if matched.key[rows[0]] < 0:
            charges.add_untraced(paths, rows)
        else:
            charges.attribute(paths, rows)
    paid_ns = charges.paid_ns
    return WaitAttribution(
        tuple(ranks.tolist()), paid_ns[:, :-1], paid_ns[:, -1], charges.passed_on_ns, charges.not_traced_ns
    )


def _in_order(matched: Matched, operation: Ints) -> Iterator[Ints]:
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
    """The rows, and for each its rank's column and whether it starts directly after the previous row of its rank."""

    def __init__(self, matched: Matched, column: Ints) -> None:
        self.column = column
        self.wait_ns = matched.wait_ns
        self.hindered_ns = matched.hindered_ns
        end_ns = matched.start_ns + matched.duration_ns
        self.is_behind = np.zeros(len(column), dtype=bool)
        follows = (column[1:] == column[:-1]) & (matched.start_ns[1:] <= end_ns[:-1] + BEHIND_NS)
        self.is_behind[1:] = follows


class _Charges:
    """Latenesses and charges of `count` ranks; the last origin is the unknown one."""

    def __init__(self, count: int) -> None:
        self.paid_ns = np.zeros((count, count + 1), dtype=np.int64)
        self.passed_on_ns = np.zeros(count, dtype=np.int64)
        self.not_traced_ns = np.zeros(count, dtype=np.int64)
        self._of_thread = np.zeros((count, count + 1))
        self._of_stream = np.zeros((count, count + 1))

    def add_untraced(self, paths: _Paths, rows: Ints) -> None:
        """Add an operation whose waiting has no known origin."""
        (row,) = rows.tolist()
        column = int(paths.column[row])
        at_begin = (self._of_stream if paths.is_behind[row] else self._of_thread)[column].copy()
        at_begin[-1] += paths.wait_ns[row]
        self.not_traced_ns[column] += paths.wait_ns[row]
        self._of_thread[column, -1] += paths.hindered_ns[row]
        self._of_stream[column] = at_begin

    def attribute(self, paths: _Paths, rows: Ints) -> None:
        """Attribute an operation of these rows that is synchronising, or has two."""
        columns, wait_ns = paths.column[rows], paths.wait_ns[rows]
        by_stream = paths.is_behind[rows]
        lateness = np.where(by_stream[:, np.newaxis], self._of_stream[columns], self._of_thread[columns])
        own = -wait_ns - lateness.sum(axis=1)
        own -= own.min()
        lateness[np.arange(len(rows)), columns] += own
        own_of_thread = np.where(by_stream, 0.0, own)
        self._of_thread[columns, columns] += own_of_thread
        last = int(wait_ns.argmin())
        gap = lateness[last] - lateness
        shares_ns = _split_by_weight(wait_ns, np.maximum(gap, 0.0))
        np.add.at(self.paid_ns, columns, shares_ns)
        self.passed_on_ns[columns[last]] += wait_ns.sum() - shares_ns[:, columns[last]].sum()
        hindered = np.divide(paths.hindered_ns[rows], wait_ns, out=np.zeros(len(rows)), where=wait_ns > 0)
        self._of_thread[columns] += gap * hindered[:, np.newaxis]
        self._of_stream[columns] = lateness[last]


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
