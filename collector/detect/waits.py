"""Waiting told from transfer, for the collectives of one step on all ranks (docs/definitions.md section 3).

All members leave a synchronising collective together, so the member with the shortest duration came last: what it
took is the transfer, and what the others took longer they waited. This needs no common clock.

Exposed waiting
---------------
Waiting costs a rank time only while its training thread has nothing else to do. A bucket of gradients that waits for a
slow peer while backward still computes costs nothing; adding up all waiting would make the waiting ranks look faster
than they are (two overlapping buckets would count twice). The training thread is certainly at work whenever it enqueues
a collective, so it was not blocked on this one before the last enqueue that precedes this one's end:

    exposed waiting of c = [max(start of c, latest start of any collective before the end of c), end of c - transfer)

and a rank's exposed waiting in a step is the length of the union of these. A collective's start on its worker thread
stands for its enqueue (seen: 41 us later; more when both workers of the group are busy, which makes this an upper
bound of what was exposed).

On a device a communication stream runs one operation after the other, so that the start of one says little about its
enqueue: in simulation the waiting behind four buckets of gradients came out twice as long as it was. There the rank
tells how much of an operation was exposed, and since work that hides it was begun before it, that is its end:

    exposed part of c = [max(start of c, end of c - exposed), end of c)

The transfer in it is taken off too: a rank that has to move its data over a slow link does not work slowly. Where
exposure is not told the transfer stays in, since what of it was hidden behind compute would be taken off with it.

Point to point
--------------
The receiver waits for the sender. What the data movement took is at most the shortest duration of an operation of the
same kind and size in the step, on any rank; beyond it a rank waited. Without this a stage of a pipeline would be blamed
for the stages before it. It counts as exposed waiting; waiting and transfer are not reported.

Operations with a root
----------------------
In a broadcast, reduce, gather or scatter waiting cannot be told from transfer: who waits for whom depends on the
backend. Their waiting and transfer are not reported. Yet the time a member spends in one beyond the shortest member is
certainly not its own work, so it counts as exposed waiting here: otherwise the root of a broadcast that waits for a
late receiver would be taken for slow itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rankscope.measure import intervals
from rankscope.measure.communication import POINT_TO_POINT_OPS
from rankscope.measure.records import ROOTED_OPS, SYNCHRONISING_OPS
from rankscope.measure.table import MISSING

Ints = npt.NDArray[np.int64]


class RankCollectives(NamedTuple):
    """The collectives of one rank in one step, as columns of equal length. `group` and `op` index the two lists of
    names; `sequence`, `size_bytes` and `exposed_ns` may be MISSING.
    """

    groups: Sequence[str]
    ops: Sequence[str]
    group: Ints
    op: Ints
    sequence: Ints
    start_ns: Ints
    duration_ns: Ints
    size_bytes: Ints
    exposed_ns: Ints


class KindWaits(NamedTuple):
    """One kind of collective (group, op) of one rank in one step; the last five are about the matched ones.

    `exposed_transfer_ns` is the part of the transfer in which the rank had nothing else to do.
    """

    rank: int
    group: str
    op: str
    calls: int
    duration_ns: int
    size_bytes: int | None
    matched: int
    wait_ns: int
    transfer_ns: int
    matched_bytes: int
    exposed_transfer_ns: int


class StepWaits(NamedTuple):
    """One step: per rank its exposed waiting (and transfer, where told), None where a collective was not found on every
    member of its group.
    """

    exposed_ns: dict[int, int | None]
    kinds: list[KindWaits]


class _Rows(NamedTuple):
    """The collectives of all ranks under each other. `kind` numbers (group, op), `key` the matched operations."""

    rank: Ints
    kind: Ints
    key: Ints
    start_ns: Ints
    duration_ns: Ints
    size_bytes: Ints
    exposed_ns: Ints


class _Exposure(NamedTuple):
    """For each row when the operation ended, and since when its rank had nothing else to do until then. The axis has a
    stretch of this length for each rank.
    """

    begin_ns: Ints
    end_ns: Ints
    stretch_ns: int


Kinds = list[tuple[str, str]]
"""The (group, op) of each kind."""


class Matched(NamedTuple):
    """The operations of one step on all ranks, a row for each rank's part in one, each rank's in the order of begin.

    `rank`, `start_ns` (the rank's own clock) and `duration_ns` as reported. `key` is the same for the members of one
    synchronising operation that was found on all of them, and -1 otherwise. `wait_ns` is the waiting, `hindered_ns`
    the part of it in which the rank had nothing else to do; what is hindered twice at a time counts once.
    """

    rank: Ints
    key: Ints
    start_ns: Ints
    duration_ns: Ints
    wait_ns: Ints
    hindered_ns: Ints


class _Split(NamedTuple):
    """A step with what each row came to. `is_matched`: it was found on all members and synchronises; `unknown` are the
    ranks with a row that was not found on all. `wait_ns` and `transfer_ns` are of every row that may wait.
    """

    rows: _Rows
    kinds: Kinds
    unknown: set[int]
    exposure: _Exposure
    is_matched: npt.NDArray[np.bool_]
    wait_ns: Ints
    transfer_ns: Ints


def split_waits(by_rank: Mapping[int, RankCollectives], group_sizes: Mapping[str, int]) -> StepWaits:
    """Match the collectives of all ranks in one step and split each into waiting and transfer.

    Matched by (group, op, sequence); without a sequence by (group, op, how manieth). Point-to-point operations
    have no waiting; one that some member did not report, or whose group's size is not known yet, makes the exposed
    waiting of its members None.
    """
    split = _split(by_rank, group_sizes)
    exposed_ns = _exposed(split, max(by_rank, default=0) + 1)
    exposed = {rank: None if rank in split.unknown else int(exposed_ns[rank]) for rank in by_rank}
    return StepWaits(exposed, _sum_kinds(split))


def match_operations(by_rank: Mapping[int, RankCollectives], group_sizes: Mapping[str, int]) -> Matched:
    """The same matching and waiting, operation by operation."""
    split = _split(by_rank, group_sizes)
    rows, exposure = split.rows, split.exposure
    order = np.lexsort((rows.start_ns, rows.rank))
    wait_ns = split.wait_ns[order]
    begin, finish = exposure.begin_ns[order], (exposure.end_ns - split.transfer_ns)[order]
    before = np.maximum.accumulate(np.concatenate([[0], finish]))[:-1]
    hindered_ns = np.clip(finish - np.maximum(begin, before), 0, wait_ns)
    key = np.where(split.is_matched, rows.key, -1)[order]
    return Matched(rows.rank[order], key, rows.start_ns[order], rows.duration_ns[order], wait_ns, hindered_ns)


def _split(by_rank: Mapping[int, RankCollectives], group_sizes: Mapping[str, int]) -> _Split:
    rows, kinds = _stack(by_rank)
    shortest_ns, found = _shortest(rows.key, rows.duration_ns)
    expected = _of_kind(rows, [group_sizes.get(group, 0) for group, _ in kinds])
    synchronises = _of_kind(rows, [op in SYNCHRONISING_OPS for _, op in kinds]) > 0
    holds_up = (_of_kind(rows, [op in ROOTED_OPS for _, op in kinds]) > 0) | synchronises
    complete = holds_up & (found == expected)
    handed_over, handover_ns = _shortest_handover(rows, kinds)
    wait_ns = np.where(complete, rows.duration_ns - shortest_ns, 0)
    return _Split(
        rows=rows,
        kinds=kinds,
        unknown=set(rows.rank[holds_up & (found != expected)].tolist()),
        exposure=_find_exposure(rows, max(by_rank, default=0) + 1),
        is_matched=complete & synchronises,
        wait_ns=np.where(handed_over, rows.duration_ns - handover_ns, wait_ns),
        transfer_ns=np.where(handed_over, handover_ns, shortest_ns),
    )


def _of_kind(rows: _Rows, values: Sequence[int]) -> Ints:
    """A value of each kind, for each row."""
    return np.array(values, dtype=np.int64)[rows.kind] if len(rows.kind) else rows.kind


def _stack(by_rank: Mapping[int, RankCollectives]) -> tuple[_Rows, Kinds]:
    """The columns of all ranks under each other, each rank's by start, and what kinds there are."""
    group_numbers: dict[str, int] = {}
    op_numbers: dict[str, int] = {}
    group, op = (
        _concatenate(_renumber(names, index, numbers) for names, index in columns)
        for columns, numbers in (
            ([(found.groups, found.group) for found in by_rank.values()], group_numbers),
            ([(found.ops, found.op) for found in by_rank.values()], op_numbers),
        )
    )
    rank = np.repeat(np.array(list(by_rank), dtype=np.int64), [len(found.op) for found in by_rank.values()])
    sequence, start_ns, *others = (
        _concatenate(getattr(found, name) for found in by_rank.values())
        for name in ("sequence", "start_ns", "duration_ns", "size_bytes", "exposed_ns")
    )
    codes, kind = np.unique(group * max(1, len(op_numbers)) + op, return_inverse=True)
    groups, ops = list(group_numbers), list(op_numbers)
    kinds = [(groups[code // len(ops)], ops[code % len(ops)]) for code in codes.tolist()]
    order = np.lexsort((start_ns, kind, rank))
    rank, kind, sequence, start_ns, *others = (column[order] for column in (rank, kind, sequence, start_ns, *others))
    numbered = sequence != MISSING
    number = np.where(numbered, sequence, _count_within(rank, kind))
    return _Rows(rank, kind, _number_rows(kind, number, numbered), start_ns, *others), kinds


def _concatenate(columns: Iterable[Ints]) -> Ints:
    return np.concatenate([np.empty(0, dtype=np.int64), *columns])


def _renumber(names: Sequence[str], index: Ints, numbers: dict[str, int]) -> Ints:
    """A column of indices into one rank's names, by the numbers that all ranks share."""
    shared = [numbers.setdefault(name, len(numbers)) for name in names]
    return np.array(shared, dtype=np.int64)[index] if len(index) else index


def _count_within(*sorted_keys: Ints) -> Ints:
    """For each row how many with the same keys come before it; rows with the same keys follow each other."""
    row = np.arange(len(sorted_keys[0]))
    begins = _differs_from_previous(*sorted_keys)
    return row - np.maximum.accumulate(np.where(begins, row, 0))


def _number_rows(*columns: npt.NDArray[Any]) -> Ints:
    """The same number for rows that are the same in every column."""
    order = np.lexsort(columns)
    numbers = np.empty(len(order), dtype=np.int64)
    numbers[order] = np.cumsum(_differs_from_previous(*(column[order] for column in columns))) - 1
    return numbers


def _differs_from_previous(*columns: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """For each row whether it differs from the one before in any column; the first row does."""
    differs = np.ones(len(columns[0]), dtype=bool)
    differs[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return differs


def _shortest(key: Ints, duration_ns: Ints) -> tuple[Ints, Ints]:
    """For each row the shortest duration among the rows of its key, and how many rows that key has."""
    if len(key) == 0:
        return key, key
    shortest = np.full(int(key.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(shortest, key, duration_ns)
    return shortest[key], np.bincount(key)[key]


def _shortest_handover(rows: _Rows, kinds: Kinds) -> tuple[npt.NDArray[np.bool_], Ints]:
    """Which rows are point to point, and for each row the shortest duration of its operation and size on any rank."""
    handed_over = _of_kind(rows, [op in POINT_TO_POINT_OPS for _, op in kinds]) > 0
    if not handed_over.any():  # as in most jobs: then nothing has to be sorted
        return handed_over, rows.duration_ns
    ops = sorted({op for _, op in kinds})
    op = _of_kind(rows, [ops.index(op) for _, op in kinds])
    shortest_ns, _ = _shortest(_number_rows(op, rows.size_bytes), rows.duration_ns)
    return handed_over, shortest_ns


def _find_exposure(rows: _Rows, rank_count: int) -> _Exposure:
    """All ranks at once: each rank's times are moved to a stretch of the axis of its own."""
    if len(rows.rank) == 0:
        return _Exposure(rows.rank, rows.rank, 1)
    # Ranks' clocks may be far apart: each rank's times are counted from its own first start.
    first_ns = np.full(rank_count, np.iinfo(np.int64).max)
    np.minimum.at(first_ns, rows.rank, rows.start_ns)
    start = rows.start_ns - first_ns[rows.rank]
    end = start + rows.duration_ns
    stretch = int(end.max()) + 1
    origin = rows.rank * stretch
    starts = np.sort(origin + start)
    latest = starts[np.maximum(np.searchsorted(starts, origin + end, side="left") - 1, 0)]
    idle = np.where(rows.exposed_ns != MISSING, origin + end - rows.exposed_ns, latest)
    return _Exposure(np.maximum(origin + start, idle), origin + end, stretch)


def _exposed(split: _Split, rank_count: int) -> Ints:
    """Per rank number the length of the union of its exposed waiting, shape (rank_count,)."""
    exposure, is_told = split.exposure, split.rows.exposed_ns != MISSING
    finish = exposure.end_ns - np.where(is_told, 0, split.transfer_ns)
    waiting = np.stack([exposure.begin_ns, finish], axis=1)[(split.wait_ns > 0) | is_told]
    covered = intervals.union(waiting)
    ranks, lengths = covered[:, 0] // exposure.stretch_ns, covered[:, 1] - covered[:, 0]
    return np.bincount(ranks, weights=lengths, minlength=rank_count).astype(np.int64)


def _sum_kinds(split: _Split) -> list[KindWaits]:
    """Rows lie by rank and kind."""
    rows, kinds = split.rows, split.kinds
    if len(rows.rank) == 0:
        return []
    firsts = np.flatnonzero(_differs_from_previous(rows.rank, rows.kind))
    has_size = rows.size_bytes != MISSING
    sized = np.logical_and.reduceat(has_size, firsts)
    columns = (
        np.ones(len(rows.rank), dtype=np.int64),
        rows.duration_ns,
        np.where(has_size, rows.size_bytes, 0),
        split.is_matched.astype(np.int64),
        *(np.where(split.is_matched, column, 0) for column in (split.wait_ns, split.transfer_ns)),
        np.where(split.is_matched & has_size, rows.size_bytes, 0),
        np.where(split.is_matched, np.minimum(split.transfer_ns, split.exposure.end_ns - split.exposure.begin_ns), 0),
    )
    sums = [np.add.reduceat(column, firsts).tolist() for column in columns]
    found = zip(rows.rank[firsts].tolist(), rows.kind[firsts].tolist(), sized.tolist(), *sums, strict=True)
    return [
        KindWaits(
            rank=rank,
            group=kinds[kind][0],
            op=kinds[kind][1],
            calls=calls,
            duration_ns=duration_ns,
            size_bytes=size_bytes if is_sized else None,
            matched=both,
            wait_ns=wait_ns,
            transfer_ns=moved_ns,
            matched_bytes=both_bytes if is_sized else 0,
            exposed_transfer_ns=bare_ns,
        )
        for rank, kind, is_sized, calls, duration_ns, size_bytes, both, wait_ns, moved_ns, both_bytes, bare_ns in found
    ]
