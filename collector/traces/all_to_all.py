"""Sum what ranks send and receive in all-to-alls, as of experts: who has more than the others, and what it takes."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from rankscope.collector.traces.cross_rank import CollectiveOfRanks, Matching
from rankscope.collector.traces.rank_analysis import RankAnalysis
from rankscope.collector.traces.report import AllToAllCall, AllToAllRank, AllToAlls
from rankscope.measure.communication import ALL_TO_ALL
from rankscope.measure.traced_collectives import Collective
from rankscope.measure.traced_messages import read_members

CALLS_MAX = 1_000
"""Calls that are listed: about 300 kB of JSON."""


class _Sized(NamedTuple):
    """An all-to-all of one rank whose sizes are known."""

    sent: int
    received: int


def sum_all_to_alls(found: Sequence[RankAnalysis], matching: Matching | None) -> AllToAlls:
    """Return the all-to-alls whose sizes are in the traces, by rank and, where they are matched, by call."""
    by_group: dict[str, dict[int | None, list[Collective]]] = defaultdict(dict)
    for one in found:
        for call in one.collectives:
            if _size_of(call) is not None:
                by_group[call.group].setdefault(one.report.rank, []).append(call)
    believed = matching is not None and matching.refused is None
    calls = (
        [row for one in matching.matched if (row := _compare_call(one))] if matching is not None and believed else []
    )
    calls.sort(key=lambda row: (row.received_median_bytes - row.received_most_bytes, row.group, row.sequence))
    return AllToAlls(
        ranks=[row for group, ranks in sorted(by_group.items()) for row in _sum_ranks(group, ranks)],
        calls=calls[:CALLS_MAX],
        left_out_count=max(len(calls) - CALLS_MAX, 0),
        refused=matching.refused if matching is not None else "there is only one rank's trace",
    )


def _size_of(call: Collective) -> _Sized | None:
    if call.op != ALL_TO_ALL or call.sent_bytes is None or call.received_bytes is None:
        return None
    return _Sized(call.sent_bytes, call.received_bytes)


def _ratio(most: float, middle: float) -> float | None:
    return most / middle if middle else None


# -- by rank ----------------------------------------------------------------------------------------------------------


def _sum_ranks(group: str, ranks: Mapping[int | None, Sequence[Collective]]) -> Iterator[AllToAllRank]:
    sizes = {rank: [size for call in calls if (size := _size_of(call))] for rank, calls in ranks.items()}
    sent = {rank: sum(size.sent for size in mine) for rank, mine in sizes.items()}
    received = {rank: sum(size.received for size in mine) for rank, mine in sizes.items()}
    several = len(ranks) > 1
    for rank, calls in ranks.items():
        yield AllToAllRank(
            group=group,
            rank=rank,
            count=len(calls),
            sent_bytes=sent[rank],
            received_bytes=received[rank],
            sent_ratio=_ratio(sent[rank], median(sent.values())) if several else None,
            received_ratio=_ratio(received[rank], median(received.values())) if several else None,
            total_ns=sum(call.duration_ns for call in calls),
            **_find_peer(calls)._asdict(),
        )


class _Peer(NamedTuple):
    """Fields of a row: the member to which the most was sent."""

    split_count: int
    peer_rank: int | None = None
    peer_bytes: int | None = None
    peer_ratio: float | None = None


def _find_peer(calls: Sequence[Collective]) -> _Peer:
    known = [call.sent_to_bytes for call in calls if call.sent_to_bytes is not None]
    if not known or len({len(split) for split in known}) > 1:
        return _Peer(0)
    sums = [sum(column) for column in zip(*known, strict=True)]
    place = max(range(len(sums)), key=lambda member: sums[member])
    members = read_members(calls[0].ranks)
    rank = members[place] if len(members) == len(sums) else None
    return _Peer(len(known), rank, sums[place], _ratio(sums[place], median(sums)))


# -- by call ----------------------------------------------------------------------------------------------------------


def _compare_call(one: CollectiveOfRanks) -> AllToAllCall | None:
    """Return the row of one matched collective; None where it is no all-to-all of known sizes on several ranks."""
    sizes = {rank: size for rank, call in sorted(one.by_rank.items()) if (size := _size_of(call))}
    if len(sizes) < 2:  # noqa: PLR2004 - one rank is not compared
        return None
    sent, received = _find_most(sizes, lambda size: size.sent), _find_most(sizes, lambda size: size.received)
    lengths_ns = [one.by_rank[rank].duration_ns for rank in sizes]
    return AllToAllCall(
        group=one.group,
        sequence=one.place,
        rank_count=len(sizes),
        sent_most_bytes=sent.bytes,
        sent_median_bytes=sent.median_bytes,
        sent_most_rank=sent.rank,
        sent_ratio=_ratio(sent.bytes, sent.median_bytes),
        received_most_bytes=received.bytes,
        received_median_bytes=received.median_bytes,
        received_most_rank=received.rank,
        received_ratio=_ratio(received.bytes, received.median_bytes),
        shortest_ns=min(lengths_ns),
        longest_ns=max(lengths_ns),
    )


class _Most(NamedTuple):
    rank: int
    bytes: int
    median_bytes: int


def _find_most(sizes: Mapping[int, _Sized], pick: Callable[[_Sized], int]) -> _Most:
    rank = max(sizes, key=lambda one: pick(sizes[one]))
    return _Most(rank, pick(sizes[rank]), round(median(map(pick, sizes.values()))))
