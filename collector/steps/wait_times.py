"""Separate waiting from transfer in the collectives of one step on all ranks (docs/definitions.md section 3). Pure.

All members leave a synchronizing collective together, so the member with the shortest duration came last: its duration
is the transfer, and what the others took longer they waited. This needs no common clock.

Exposed waiting
---------------
Waiting costs a rank time only while its training thread has nothing else to do. A bucket of gradients that waits for a
slow peer while backward still computes costs nothing; adding up all waiting would make the waiting ranks look faster
than they are (two overlapping buckets would count twice). The training thread is certainly at work whenever it enqueues
a collective, so it was not blocked on this one before the last enqueue that precedes this one's end:

    exposed waiting of c = [max(start of c, latest start of any collective before the end of c), end of c - transfer)

and a rank's exposed waiting in a step is the length of the union of these. A collective's start on its worker thread
stands for its enqueue: about 41 us later, or much later when both workers of the group are busy. Then the training
thread is taken to have waited while it still computed. So a rank on the host reports the exposed part of an operation,
for which it also knows when the own work of each backward had ended (`agent/profiler/window_reduction.py`); where it
reports none, as from an earlier agent, the starts of all its collectives are what is known.

Example: two ranks leave an all_reduce at 40 ms; rank 0 was in it from 10 ms on, rank 1 from 35. The transfer is 5 ms,
and rank 0 waited for 25. It enqueued another collective at 30 ms, so it was at work until then: 5 ms of its waiting,
from 30 to 35, are exposed.

On a device a communication stream runs one operation after the other, so the start of one says little about its
enqueue. There the rank reports the exposed part, too, and since the work that hides it began before it, that part is
the end of the operation:

    exposed part of c = [max(start of c, end of c - exposed), end of c)

On a device the transfer in it is subtracted too: a rank that has to move its data over a slow link does not work
slowly. On a host the transfer stays in: what is known of the exposed part is an upper bound, and the part of the
transfer hidden behind compute would be subtracted with it.

Point to point
--------------
The receiver waits for the sender. The transfer is at most the shortest duration of an operation of the same kind and
size in the step, on any rank; the rest is waiting. Without this a stage of a pipeline would be blamed for the stages
before it. It counts as exposed waiting; waiting and transfer are not reported.

A send may last until its receiver comes to it, while the sender computes, waits in other operations and computes again
(1F1B). So the exposed part of a send is not its end: what of it is exposed in other operations meanwhile is taken off
first. Otherwise compute behind that waiting would count as waiting, and the sender look faster than it is. A send of a
group on the host (gloo) is reported up to the end of the wait for it, with that wait alone as its exposed part.

Operations with a root
----------------------
In a broadcast, reduce, gather or scatter waiting cannot be separated from transfer: which rank waits for which depends
on the backend. Their waiting and transfer are not reported; for whom a member waited can be found where arrivals can be
compared (`rooted_waits.py`). Yet the time beyond the shortest member's is certainly not
the rank's own work, so it counts as exposed waiting here: otherwise the root of a broadcast that waits for a late
receiver would be taken for slow itself.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rankscope.collector.steps.collectives import (
    Kinds,
    Rows,
    Step,
    differs_from_previous,
    find_ranks,
    number_rows,
    stack,
)
from rankscope.collector.steps.rooted_waits import NOBODY, find_releasers
from rankscope.collector.steps.step_series import Floats, Ints
from rankscope.collector.steps.swapped_starts import pair_by_ends
from rankscope.measure import intervals
from rankscope.measure.communication import POINT_TO_POINT_OPS
from rankscope.measure.records import ROOTED_OPS, SYNCHRONIZING_OPS
from rankscope.measure.table import MISSING

SEND: Final = "send"
PAIR: Final = 2
"""Members of a group in which who waits, waits for the other, whichever is the root."""


class KindColumns(NamedTuple):
    """Collectives of all ranks in one step by kind: a row for each rank and kind, by rank and kind.

    `kind` indexes `kinds`; `size_bytes` is MISSING where it is not known. The last five columns are about the matched
    collectives; `exposed_transfer_ns` is the part of the transfer in which the rank had nothing else to do.
    """

    kinds: Kinds
    rank: Ints
    kind: Ints
    calls: Ints
    duration_ns: Ints
    size_bytes: Ints
    matched: Ints
    wait_ns: Ints
    transfer_ns: Ints
    matched_bytes: Ints
    exposed_transfer_ns: Ints


class StepWaits(NamedTuple):
    """Waiting of one step. `exposed_ns`: exposed waiting (and transfer, on a device) of each of `ranks`, which ascend,
    shape (ranks,) in ns; NaN where a collective was not found on every member of its group. `handover_ns`: that in
    point-to-point operations alone, shape (ranks,); None where no rank had one. `is_transfer_kept`: whether the
    transfer of any operation is no part of `exposed_ns`: of one on a host, or whose exposed part is not reported.
    """

    ranks: Ints
    exposed_ns: Floats
    handover_ns: Floats | None
    kinds: KindColumns
    rows: Rows
    is_transfer_kept: bool


class _Exposure(NamedTuple):
    """End of each row's operation, and the time since when its rank had nothing else to do. Each rank has a section of
    the axis, `stretch_ns` long.
    """

    begin_ns: Ints
    end_ns: Ints
    stretch_ns: int


class MatchedOperations(NamedTuple):
    """Operations of one step on all ranks: a row for each rank's part in one, each rank's in the order of start.

    `rank`, `start_ns` (the rank's own clock) and `duration_ns` as reported. `key` is the same for the members of one
    operation that was found on all of them, and -1 otherwise. `wait_ns` is the waiting, `hindered_ns` the part of it in
    which the rank had nothing else to do; overlapping parts count once. `is_rooted`: not all members leave together;
    `releaser` is then the row of the member for which the rank waited, NOBODY where it did not or that is not known.
    """

    rank: Ints
    key: Ints
    start_ns: Ints
    duration_ns: Ints
    wait_ns: Ints
    hindered_ns: Ints
    is_rooted: npt.NDArray[np.bool_]
    releaser: Ints


class _Split(NamedTuple):
    """A step with the waiting and transfer of each row. `is_matched`: found on all members, and synchronizing;
    `is_together`: found on all members, which leave it together; `is_rooted`: found on all members, which do not;
    `is_unknown`: not found on all, which makes its rank's waiting unknown; `is_handover`: point to point;
    `has_transfer`: the exposed part is reported, and holds the transfer.
    """

    rows: Rows
    kinds: Kinds
    is_unknown: npt.NDArray[np.bool_]
    is_handover: npt.NDArray[np.bool_]
    has_transfer: npt.NDArray[np.bool_]
    exposure: _Exposure
    is_matched: npt.NDArray[np.bool_]
    is_together: npt.NDArray[np.bool_]
    is_rooted: npt.NDArray[np.bool_]
    wait_ns: Ints
    transfer_ns: Ints


def split_waits(step: Step, group_sizes: Mapping[str, int], host_groups: Collection[str] = ()) -> StepWaits:
    """Match the collectives of all ranks in one step and split each into waiting and transfer.

    Matched by (group, op, sequence); without a sequence by (group, op, position among those). Point-to-point operations
    have no waiting; one that a member did not report, or whose group's size is unknown, makes the exposed waiting of
    its members unknown. `host_groups` are the groups whose data is moved by the host.
    """
    ranks = find_ranks(step)
    rank_count = int(ranks.max(initial=0)) + 1
    split = _split(step, group_sizes, host_groups, rank_count)
    exposed_ns = _exposed(split, rank_count).astype(np.float64)
    exposed_ns[split.rows.rank[split.is_unknown]] = np.nan
    handover_ns = None
    if split.is_handover.any():
        handover_ns = _exposed(split, rank_count, split.is_handover).astype(np.float64)[ranks]
    is_transfer_kept = not bool(split.has_transfer.all())
    return StepWaits(ranks, exposed_ns[ranks], handover_ns, _sum_kinds(split), split.rows, is_transfer_kept)


def match_operations(
    step: Step, group_sizes: Mapping[str, int], host_groups: Collection[str] = ()
) -> MatchedOperations:
    """Return the same matching and waiting, operation by operation."""
    split = _split(step, group_sizes, host_groups, int(find_ranks(step).max(initial=0)) + 1)
    rows, exposure = split.rows, split.exposure
    order = np.lexsort((rows.start_ns, rows.rank))
    wait_ns = split.wait_ns[order]
    begin, finish = exposure.begin_ns[order], (exposure.end_ns - split.transfer_ns)[order]
    before = np.maximum.accumulate(np.concatenate([[0], finish]))[:-1]
    hindered_ns = np.clip(finish - np.maximum(begin, before), 0, wait_ns)
    key = np.where(split.is_together | split.is_rooted, rows.key, -1)[order]
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    releaser = _find_releasers(split)[order]
    return MatchedOperations(
        rank=rows.rank[order],
        key=key,
        start_ns=rows.start_ns[order],
        duration_ns=rows.duration_ns[order],
        wait_ns=wait_ns,
        hindered_ns=hindered_ns,
        is_rooted=split.is_rooted[order],
        releaser=np.where(releaser == NOBODY, NOBODY, place[releaser]),
    )


def _find_releasers(split: _Split) -> Ints:
    groups = sorted({group for group, _ in split.kinds})
    group = _of_kind(split.rows, [groups.index(group) for group, _ in split.kinds])
    return find_releasers(split.rows, group, split.transfer_ns, split.is_rooted, split.is_matched)


def _split(step: Step, group_sizes: Mapping[str, int], host_groups: Collection[str], rank_count: int) -> _Split:
    rows, kinds = stack(step)
    on_host = _of_kind(rows, [group in host_groups for group, _ in kinds]) > 0
    is_send = _of_kind(rows, [op == SEND for _, op in kinds]) > 0
    synchronizes = _of_kind(rows, [op in SYNCHRONIZING_OPS for _, op in kinds]) > 0
    if on_host.any():
        rows = rows._replace(key=pair_by_ends(rows, on_host & synchronizes))
    shortest_ns, found = _shortest(rows.key, rows.duration_ns)
    expected = _of_kind(rows, [group_sizes.get(group, 0) for group, _ in kinds])
    may_wait = (_of_kind(rows, [op in ROOTED_OPS for _, op in kinds]) > 0) | synchronizes
    complete = may_wait & (found == expected)
    handed_over, handover_ns = _shortest_handover(rows, kinds)
    wait_ns = np.where(complete, rows.duration_ns - shortest_ns, 0)
    return _Split(
        rows=rows,
        kinds=kinds,
        is_unknown=may_wait & (found != expected),
        is_handover=handed_over,
        has_transfer=(rows.exposed_ns != MISSING) & (handed_over | ~on_host),
        exposure=_find_exposure(rows, rank_count, is_send & ~on_host),
        is_matched=complete & synchronizes,
        is_together=complete & (synchronizes | (expected == PAIR)),
        is_rooted=complete & ~synchronizes & (expected != PAIR),
        wait_ns=np.where(handed_over, rows.duration_ns - handover_ns, wait_ns),
        transfer_ns=np.where(handed_over, handover_ns, shortest_ns),
    )


def _of_kind(rows: Rows, values: Sequence[int]) -> Ints:
    """Return a value of each kind, for each row."""
    return np.array(values, dtype=np.int64)[rows.kind] if len(rows.kind) else rows.kind


def _shortest(key: Ints, duration_ns: Ints) -> tuple[Ints, Ints]:
    """Return for each row the shortest duration among the rows of its key, and the number of those rows."""
    if len(key) == 0:
        return key, key
    shortest = np.full(int(key.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(shortest, key, duration_ns)
    return shortest[key], np.bincount(key)[key]


def _shortest_handover(rows: Rows, kinds: Kinds) -> tuple[npt.NDArray[np.bool_], Ints]:
    """Return which rows are point to point, and for each row the shortest duration of its operation and size on any
    rank.
    """
    handed_over = _of_kind(rows, [op in POINT_TO_POINT_OPS for _, op in kinds]) > 0
    if not handed_over.any():  # as in most jobs: then nothing has to be sorted
        return handed_over, rows.duration_ns
    ops = sorted({op for _, op in kinds})
    op = _of_kind(rows, [ops.index(op) for _, op in kinds])
    shortest_ns, _ = _shortest(number_rows(op, rows.size_bytes), rows.duration_ns)
    return handed_over, shortest_ns


def _find_exposure(rows: Rows, rank_count: int, is_send: npt.NDArray[np.bool_]) -> _Exposure:
    """Return the exposure of all ranks at once: each rank's times are moved to a section of the axis of its own."""
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
    is_reported = rows.exposed_ns != MISSING
    idle = np.where(is_reported, origin + end - rows.exposed_ns, latest)
    begin = np.maximum(origin + start, idle)
    if (sends := is_send & is_reported).any():
        others = intervals.union(np.stack([begin, origin + end], axis=1)[is_reported & ~is_send])
        sent, received = ((origin + times)[sends] for times in (start, end))
        meanwhile_ns = intervals.covered_before(others, received) - intervals.covered_before(others, sent)
        begin[sends] = np.maximum(sent, received - np.maximum(rows.exposed_ns[sends] - meanwhile_ns, 0))
    return _Exposure(begin, origin + end, stretch)


def _exposed(split: _Split, rank_count: int, of: npt.NDArray[np.bool_] | None = None) -> Ints:
    """Return the length of the union of each rank's exposed waiting in all rows, or those marked; shape
    (rank_count,).
    """
    exposure, has_transfer = split.exposure, split.has_transfer
    finish = exposure.end_ns - np.where(has_transfer, 0, split.transfer_ns)
    counts = (split.wait_ns > 0) | has_transfer
    waiting = np.stack([exposure.begin_ns, finish], axis=1)[counts if of is None else counts & of]
    covered = intervals.union(waiting)
    ranks, lengths = covered[:, 0] // exposure.stretch_ns, covered[:, 1] - covered[:, 0]
    return np.bincount(ranks, weights=lengths, minlength=rank_count).astype(np.int64)


def _sum_kinds(split: _Split) -> KindColumns:
    """Return the sums of each rank and kind, by which the rows are sorted."""
    rows, exposure = split.rows, split.exposure
    if len(rows.rank) == 0:
        return KindColumns([], *[rows.rank] * (len(KindColumns._fields) - 1))
    firsts = np.flatnonzero(differs_from_previous(rows.rank, rows.kind))
    has_size = rows.size_bytes != MISSING
    is_sized = np.logical_and.reduceat(has_size, firsts)
    matched = split.is_matched
    calls, duration_ns, size_bytes, count, wait_ns, transfer_ns, matched_bytes, bare_ns = (
        np.add.reduceat(column, firsts)
        for column in (
            np.ones(len(rows.rank), dtype=np.int64),
            rows.duration_ns,
            np.where(has_size, rows.size_bytes, 0),
            matched.astype(np.int64),
            np.where(matched, split.wait_ns, 0),
            np.where(matched, split.transfer_ns, 0),
            np.where(matched & has_size, rows.size_bytes, 0),
            np.where(matched, np.minimum(split.transfer_ns, exposure.end_ns - exposure.begin_ns), 0),
        )
    )
    return KindColumns(
        kinds=split.kinds,
        rank=rows.rank[firsts],
        kind=rows.kind[firsts],
        calls=calls,
        duration_ns=duration_ns,
        size_bytes=np.where(is_sized, size_bytes, MISSING),
        matched=count,
        wait_ns=wait_ns,
        transfer_ns=transfer_ns,
        matched_bytes=np.where(is_sized, matched_bytes, 0),
        exposed_transfer_ns=bare_ns,
    )
