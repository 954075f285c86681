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

Operations with a root
----------------------
In a broadcast, reduce, gather or scatter waiting cannot be told from transfer: who waits for whom depends on the
backend. Their waiting and transfer are not reported. Yet the time a member spends in one beyond the shortest member is
certainly not its own work, so it counts as exposed waiting here: otherwise the root of a broadcast that waits for a
late receiver would be taken for slow itself.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rankscope.measure import intervals
from rankscope.measure.records import ROOTED_OPS, SYNCHRONISING_OPS
from rankscope.measure.table import MISSING

Ints = npt.NDArray[np.int64]


class RankCollectives(NamedTuple):
    """The collectives of one rank in one step, as columns of equal length. `sequence` and `bytes` may be MISSING."""

    groups: Sequence[str]
    ops: Sequence[str]
    sequence: Ints
    start_ns: Ints
    duration_ns: Ints
    size_bytes: Ints


class KindWaits(NamedTuple):
    """One kind of collective (group, op) of one rank in one step; the last four are about the matched ones."""

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


class StepWaits(NamedTuple):
    """One step: per rank its exposed waiting, None where a collective was not found on every member of its group."""

    exposed_wait_ns: dict[int, int | None]
    kinds: list[KindWaits]


class _Rows(NamedTuple):
    rank: Ints
    kind: Ints
    key: Ints
    start_ns: Ints
    duration_ns: Ints
    size_bytes: Ints


def split_waits(by_rank: Mapping[int, RankCollectives], group_sizes: Mapping[str, int]) -> StepWaits:
    """Match the collectives of all ranks in one step and split each into waiting and transfer.

    Matched by (group, op, sequence); without a sequence by (group, op, how manieth). Point-to-point operations
    have no waiting; one that some member did not report, or whose group's size is not known yet, makes the exposed
    waiting of its members None.
    """
    names: dict[tuple[str, str], int] = {}
    rows = _stack(by_rank, names)
    shortest_ns, found = _shortest(rows.key, rows.duration_ns)
    expected = _of_kind(rows, [group_sizes.get(group, 0) for group, _ in names])
    synchronises = _of_kind(rows, [op in SYNCHRONISING_OPS for _, op in names]) > 0
    holds_up = (_of_kind(rows, [op in ROOTED_OPS for _, op in names]) > 0) | synchronises
    complete = holds_up & (found == expected)
    unknown = {int(rank) for rank in rows.rank[holds_up & (found != expected)]}
    wait_ns = np.where(complete, rows.duration_ns - shortest_ns, 0)
    exposed_ns = _exposed(rows, wait_ns, shortest_ns, max(by_rank, default=0) + 1)
    exposed = {rank: None if rank in unknown else int(exposed_ns[rank]) for rank in by_rank}
    return StepWaits(exposed, _sum_kinds(rows, list(names), complete & synchronises, wait_ns, shortest_ns))


def _of_kind(rows: _Rows, values: Sequence[int]) -> Ints:
    """A value of each kind, for each row."""
    return np.array(values, dtype=np.int64)[rows.kind] if len(rows.kind) else rows.kind


def _stack(by_rank: Mapping[int, RankCollectives], names: dict[tuple[str, str], int]) -> _Rows:
    """The columns of all ranks under each other; `kind` numbers (group, op), `key` the matched operations."""
    columns: list[list[int]] = [[] for _ in _Rows._fields]
    keys: dict[tuple[int, int, bool], int] = {}
    for rank, found in by_rank.items():
        order = np.argsort(found.start_ns, kind="stable")
        seen: dict[int, int] = {}
        for row in order:
            kind = names.setdefault((found.groups[row], found.ops[row]), len(names))
            seen[kind] = seen.get(kind, -1) + 1
            sequence = int(found.sequence[row])
            numbered = sequence != MISSING
            key = keys.setdefault((kind, sequence if numbered else seen[kind], numbered), len(keys))
            values = (rank, kind, key, found.start_ns[row], found.duration_ns[row], found.size_bytes[row])
            for column, value in zip(columns, values, strict=True):
                column.append(int(value))
    return _Rows(*(np.array(column, dtype=np.int64) for column in columns))


def _shortest(key: Ints, duration_ns: Ints) -> tuple[Ints, Ints]:
    """For each row the shortest duration among the rows of its key, and how many rows that key has."""
    if len(key) == 0:
        return key, key
    shortest = np.full(int(key.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(shortest, key, duration_ns)
    return shortest[key], np.bincount(key)[key]


def _exposed(rows: _Rows, wait_ns: Ints, transfer_ns: Ints, rank_count: int) -> Ints:
    """Per rank number the length of the union of its exposed waiting, shape (rank_count,).

    All ranks at once: each rank's times are moved to a stretch of the axis of its own.
    """
    if len(rows.rank) == 0:
        return np.zeros(rank_count, dtype=np.int64)
    # Ranks' clocks may be far apart: each rank's times are counted from its own first start.
    first_ns = np.full(rank_count, np.iinfo(np.int64).max)
    np.minimum.at(first_ns, rows.rank, rows.start_ns)
    start = rows.start_ns - first_ns[rows.rank]
    end = start + rows.duration_ns
    stretch = int(end.max()) + 1
    origin = rows.rank * stretch
    starts = np.sort(origin + start)
    latest = starts[np.maximum(np.searchsorted(starts, origin + end, side="left") - 1, 0)]
    begin = np.maximum(origin + start, latest)
    waiting = np.stack([begin, origin + end - transfer_ns], axis=1)[wait_ns > 0]
    covered = intervals.union(waiting)
    lengths = np.bincount(covered[:, 0] // stretch, weights=covered[:, 1] - covered[:, 0], minlength=rank_count)
    return lengths.astype(np.int64)


def _sum_kinds(
    rows: _Rows, names: list[tuple[str, str]], matched: npt.NDArray[np.bool_], wait_ns: Ints, transfer_ns: Ints
) -> list[KindWaits]:
    kinds = []
    for rank, kind in sorted(set(zip(rows.rank.tolist(), rows.kind.tolist(), strict=True))):
        mine = (rows.rank == rank) & (rows.kind == kind)
        both = mine & matched
        sized = bool(np.all(rows.size_bytes[mine] != MISSING))
        kinds.append(
            KindWaits(
                rank=rank,
                group=names[kind][0],
                op=names[kind][1],
                calls=int(mine.sum()),
                duration_ns=int(rows.duration_ns[mine].sum()),
                size_bytes=int(rows.size_bytes[mine].sum()) if sized else None,
                matched=int(both.sum()),
                wait_ns=int(wait_ns[both].sum()),
                transfer_ns=int(transfer_ns[both].sum()),
                matched_bytes=int(rows.size_bytes[both].sum()) if sized else 0,
            )
        )
    return kinds
