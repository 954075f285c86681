"""Match the collectives of traces across ranks, and separate waiting from transfer.

All members leave a synchronizing collective together, so the shortest duration is the transfer and the remainder of
each rank's own is waiting (docs/definitions.md section 3). Traces that began in different steps, or were sampled, would
be matched wrongly, so the matching is checked:

- the k-th collective of a group is the same operation, of the same size, on every rank;
- ranks leave together: after subtracting one clock offset for each pair of ranks, the ends of matched collectives
  agree. On one host the offset must vanish too;
- both records begin at the same collective (same_steps.py).

Where a check fails, the matching is refused with the reason.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from rankscope.collector.traces import same_steps
from rankscope.collector.traces.report import MatchedCollective
from rankscope.collector.traces.tables import CollectiveKind, kind_of
from rankscope.measure.communication import POINT_TO_POINT_OPS
from rankscope.measure.kineto import Ints
from rankscope.measure.records import ROOTED_OPS, SYNCHRONIZING_OPS
from rankscope.measure.traced_collectives import Collective
from rankscope.measure.units import NS_PER_MS, NS_PER_S, NS_PER_US

END_DISAGREEMENT_NS_MAX = 2 * NS_PER_MS
"""On devices of one host the ends of one collective differ by some us."""
HOST_END_DISAGREEMENT_NS_MAX = 30 * NS_PER_MS
"""On a CPU with more threads than cores a thread may be scheduled late: nine of ten ends lie within 23 ms."""
END_DISAGREEMENT_SHARE_MAX = 0.25
"""The limit is this share of the shortest duration of the collective where that is more."""
DISAGREEING_SHARE_MAX = 0.2
"""Share of collectives that may exceed the limit (late threads); above it the matching is refused."""
LATENESS_NS_MIN = 5 * NS_PER_US
"""Smaller differences are launch jitter: no rank is named as the last to enter."""


class RankCollectives(NamedTuple):
    """The collectives of one rank, in times of its host's clock; `on_host`: by a backend on the CPU. `steps` has the
    number of the step that launched each collective, None outside of steps; empty when not known.
    """

    rank: int
    host: str | None
    collectives: Sequence[Collective]
    on_host: bool = False
    steps: Sequence[int | None] = ()


class _Key(NamedTuple):
    group: str
    ranks: str | None
    place: int
    numbered: bool


class CollectiveOfRanks(NamedTuple):
    """One collective, as seen by each rank."""

    group: str
    place: int
    op: str
    bytes: int | None
    by_rank: Mapping[int, Collective]
    expected: int | None


class Matching(NamedTuple):
    """The matched collectives, and in `refused` the reason why waiting cannot be separated from transfer.
    `end_disagreement_ns` is the median spread of the ranks' ends, without clock offsets. `related` has one mapping for
    each set of ranks that share collectives, directly or along a chain: by rank, in order, the ns by which its clock is
    ahead of the first one's.
    """

    matched: Sequence[CollectiveOfRanks]
    refused: str | None
    missing_ranks: bool
    end_disagreement_ns: int | None
    related: Sequence[Mapping[int, int]]

    @property
    def offsets_ns(self) -> dict[int, int]:
        """The offsets of all ranks; only offsets of one set can be compared."""
        return {rank: offset_ns for one in self.related for rank, offset_ns in one.items()}


def match(ranks: Sequence[RankCollectives], world_size: int | None) -> Matching:
    """Return the matched collectives of all ranks, checked."""
    if len(ranks) < 2:  # noqa: PLR2004 - one rank waits for no other
        return Matching(
            (),
            "only one rank's trace: nothing to compare with",
            missing_ranks=True,
            end_disagreement_ns=None,
            related=(),
        )
    matched, refused = _pair_up(ranks)
    missing = world_size is None or len(ranks) < world_size
    shared = [one for one in matched if len(one.by_rank) > 1]
    synchronizing = [one for one in shared if one.op in SYNCHRONIZING_OPS]
    if refused is None and not synchronizing:
        refused = "the traces have no synchronizing collective in common"
    if refused is not None:
        return Matching(shared, refused, missing, None, ())
    related = _find_offsets(ranks, synchronizing)
    found = Matching(shared, None, missing, None, related)
    disagreement, refused = _check_ends(ranks, synchronizing, found.offsets_ns)
    if refused is None:
        refused = next(filter(None, (_check_hosts(ranks, one) for one in related)), None)
    if refused is None:
        refused = next(filter(None, (_check_steps(ranks, one) for one in related)), None)
    return found._replace(refused=refused, end_disagreement_ns=disagreement)


def _pair_up(ranks: Sequence[RankCollectives]) -> tuple[list[CollectiveOfRanks], str | None]:
    """Match by group and sequence number, else by position within the group; return the reason of a mismatch too."""
    found: dict[_Key, dict[int, Collective]] = defaultdict(dict)
    for one in ranks:
        seen: dict[tuple[str, str | None], int] = defaultdict(int)
        for collective in sorted(one.collectives, key=lambda c: c.start_ns):
            if collective.op in POINT_TO_POINT_OPS:
                continue
            group = (collective.group, collective.ranks)
            numbered = collective.sequence is not None
            place = collective.sequence if collective.sequence is not None else seen[group]
            seen[group] += 1
            found[_Key(*group, place, numbered)].setdefault(one.rank, collective)
    matched = []
    refused = None
    for key, by_rank in found.items():
        ops = {collective.op for collective in by_rank.values()}
        sizes = {collective.bytes for collective in by_rank.values()} - {None}  # None: unknown
        first = next(iter(by_rank.values()))
        if refused is None and (len(ops) > 1 or (first.op == "all_reduce" and len(sizes) > 1)):
            refused = _describe_mismatch(key, by_rank)
        size = sizes.pop() if len(sizes) == 1 else None
        matched.append(CollectiveOfRanks(key.group, key.place, first.op, size, by_rank, first.group_size))
    return matched, refused


def _describe_mismatch(key: _Key, by_rank: Mapping[int, Collective]) -> str:
    shown = ", ".join(f"{c.op} of {c.bytes} bytes on rank {rank}" for rank, c in sorted(by_rank.items())[:4])
    how = "sequence" if key.numbered else "place"
    return (
        f"the ranks' collectives do not line up: in group {key.group} {how} {key.place} is {shown}. "
        "The traces are of different steps, or collectives are missing in some"
    )


def _find_offsets(ranks: Sequence[RankCollectives], matched: Sequence[CollectiveOfRanks]) -> list[dict[int, int]]:
    """Return the clock offsets of each set of ranks that share collectives, directly or along a chain."""
    related: list[dict[int, int]] = []
    remaining = [one.rank for one in ranks]
    while remaining:
        related.append(_find_related(remaining[0], matched))
        remaining = [rank for rank in remaining if rank not in related[-1]]
    return related


def _find_related(first: int, matched: Sequence[CollectiveOfRanks]) -> dict[int, int]:
    """Return the ns by which each rank's clock is ahead of the first one's, from the ends of shared collectives, along
    chains of ranks.
    """
    offsets = {first: 0}
    while True:
        differences: dict[int, list[int]] = defaultdict(list)
        for one in matched:
            ends = {rank: c.start_ns + c.duration_ns for rank, c in one.by_rank.items()}
            known = [ends[rank] - offsets[rank] for rank in ends if rank in offsets]
            if known:
                for rank in ends.keys() - offsets.keys():
                    differences[rank].append(ends[rank] - round(median(known)))
        if not differences:
            return offsets
        offsets.update({rank: round(median(found)) for rank, found in differences.items()})


def _check_ends(
    ranks: Sequence[RankCollectives], matched: Sequence[CollectiveOfRanks], offsets: Mapping[int, int]
) -> tuple[int, str | None]:
    limit_ns = _limit_ns(ranks)
    spreads: list[int] = []
    wrong = 0
    for one in matched:
        shortest = min(c.duration_ns for c in one.by_rank.values())
        spreads.append(find_end_spread(one, offsets))
        wrong += spreads[-1] > max(limit_ns, END_DISAGREEMENT_SHARE_MAX * shortest)
    typical = round(median(spreads))
    if wrong > DISAGREEING_SHARE_MAX * len(spreads):
        return typical, (
            f"{wrong} of {len(spreads)} matched collectives end at different times on different ranks (by "
            f"{typical / NS_PER_MS:.1f} ms in the median): the traces are of different steps, collectives are "
            "missing in some, or times are wrong"
        )
    return typical, None


def find_end_spread(one: CollectiveOfRanks, offsets_ns: Mapping[int, int] | Mapping[int | None, int]) -> int:
    """Return the ns between the first and the last rank to leave a collective, without clock offsets."""
    ends = [c.start_ns + c.duration_ns - offsets_ns[rank] for rank, c in one.by_rank.items()]
    return max(ends) - min(ends)


def _limit_ns(ranks: Sequence[RankCollectives]) -> int:
    return HOST_END_DISAGREEMENT_NS_MAX if any(one.on_host for one in ranks) else END_DISAGREEMENT_NS_MAX


def _check_hosts(ranks: Sequence[RankCollectives], offsets: Mapping[int, int]) -> str | None:
    """Return the reason if ranks of one host, which share its clock, have different offsets, else None."""
    by_host: dict[str, list[int]] = defaultdict(list)
    for one in ranks:
        if one.host and one.rank in offsets:
            by_host[one.host].append(offsets[one.rank])
    for host, found in by_host.items():
        apart = max(found) - min(found)
        if apart > _limit_ns(ranks):
            return (
                f"ranks on host {host} seem to leave the same collectives {apart / NS_PER_MS:.0f} ms apart by one "
                "clock: the traces are of different steps"
            )
    return None


def _check_steps(ranks: Sequence[RankCollectives], offsets: Mapping[int, int]) -> str | None:
    """Return the reason if nothing shows that the records of related ranks are of the same steps, else None."""
    mine = [one for one in ranks if one.rank in offsets]
    wall = all(one.collectives and one.collectives[0].start_ns >= same_steps.WALL_CLOCK_NS_MIN for one in mine)
    apart_ns = max(offsets.values()) - min(offsets.values())
    if wall and apart_ns > same_steps.SAME_RUN_APART_NS_MAX:
        return (
            f"the ranks leave the same collectives {apart_ns / NS_PER_S:,.0f} s apart by their hosts' clocks: "
            "the traces are of different steps or runs"
        )
    return same_steps.find_unproved(list(offsets), _find_groups(mine), _limit_ns(mine)) if len(offsets) > 1 else None


def _find_groups(ranks: Sequence[RankCollectives]) -> list[list[same_steps.GroupRecord]]:
    """Return the records of each group of which two ranks are here."""
    found: dict[tuple[str, str | None], list[same_steps.GroupRecord]] = defaultdict(list)
    for one in ranks:
        steps = one.steps or [None] * len(one.collectives)
        mine: dict[tuple[str, str | None], list[tuple[Collective, int | None]]] = defaultdict(list)
        for collective, step in sorted(zip(one.collectives, steps, strict=True), key=lambda pair: pair[0].start_ns):
            if collective.op in SYNCHRONIZING_OPS:
                mine[collective.group, collective.ranks].append((collective, step))
        for group, pairs in mine.items():
            found[group].append(
                same_steps.GroupRecord(
                    rank=one.rank,
                    clock=one.host if one.host is not None else one.rank,
                    on_host=one.on_host,
                    ends_ns=np.array([c.start_ns + c.duration_ns for c, _ in pairs], dtype=np.int64),
                    kinds=[(c.op, c.bytes) for c, _ in pairs],
                    steps=[step for _, step in pairs],
                    numbered=all(c.sequence is not None for c, _ in pairs),
                )
            )
    return [records for records in found.values() if len(records) > 1]


# -- waiting and transfer ---------------------------------------------------------------------------------------------


def split(matching: Matching) -> list[MatchedCollective]:
    """Return each matched collective as reported, in time order of its first rank."""
    ordered = sorted(matching.matched, key=lambda one: min((r, c.start_ns) for r, c in one.by_rank.items())[1])
    return [split_one(one, believed=matching.refused is None) for one in ordered]


def split_one(one: CollectiveOfRanks, *, believed: bool) -> MatchedCollective:
    """Return a collective as reported, with waiting and the late rank only when the matching is `believed`."""
    ranks = sorted(one.by_rank)
    transfer = wait = late = lateness = None
    if believed and one.op in SYNCHRONIZING_OPS:
        durations = {rank: one.by_rank[rank].duration_ns for rank in ranks}
        transfer = min(durations.values())
        wait = {str(rank): durations[rank] - transfer for rank in ranks}
        last = min(ranks, key=lambda rank: durations[rank])
        lateness_ns = round(median(durations.values())) - transfer
        if lateness_ns >= LATENESS_NS_MIN:
            late, lateness = last, lateness_ns
    return MatchedCollective(
        group=one.group, sequence=one.place, op=one.op, bytes=one.bytes, ranks=ranks, transfer_ns=transfer,
        wait_ns=wait, late_rank=late, lateness_ns=lateness,
    )  # fmt: skip


def sum_transfers(matching: Matching, rank: int) -> dict[CollectiveKind, tuple[int, int]]:
    """Return for each kind of collective of one rank the number that was matched on all members of the group, and the
    sum of their transfer in ns. Empty when the matching was refused.
    """
    found: dict[CollectiveKind, tuple[int, int]] = {}
    for one in matching.matched if matching.refused is None else ():
        mine = one.by_rank.get(rank)
        if mine is not None and one.op in SYNCHRONIZING_OPS and len(one.by_rank) == one.expected:
            kind = kind_of(mine)
            count, transfer_ns = found.get(kind, (0, 0))
            found[kind] = (count + 1, transfer_ns + min(c.duration_ns for c in one.by_rank.values()))
    return found


def sum_by_rank(found: Sequence[MatchedCollective]) -> tuple[dict[str, int], dict[str, int]]:
    """Return the waiting and the transfer of each rank in ns, over all collectives that could be split."""
    wait: dict[str, int] = defaultdict(int)
    transfer: dict[str, int] = defaultdict(int)
    for one in found:
        if one.wait_ns is not None and one.transfer_ns is not None:
            for rank, waited in one.wait_ns.items():
                wait[rank] += waited
                transfer[rank] += one.transfer_ns
    return _by_number(wait), _by_number(transfer)


def _by_number(found: Mapping[str, int]) -> dict[str, int]:
    return {rank: found[rank] for rank in sorted(found, key=int)}


def find_waiting(matching: Matching, rank: int) -> Ints:
    """Return raw intervals in which a rank waited for others, shape (n, 2) in ns; for operations with a root the time
    beyond the shortest member.
    """
    found = []
    for one in matching.matched:
        mine = one.by_rank.get(rank)
        if mine is not None and (one.op in SYNCHRONIZING_OPS or one.op in ROOTED_OPS):
            transfer = min(c.duration_ns for c in one.by_rank.values())
            found.append((mine.start_ns, mine.start_ns + mine.duration_ns - transfer))
    return np.array(found, dtype=np.int64).reshape(-1, 2)
