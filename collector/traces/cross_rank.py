"""The same collectives on all ranks: waiting told from transfer, who came last, and whether that can be told at all.

All members leave a synchronising collective together, so the shortest duration is the transfer and the rest of each
rank's own is waiting (docs/definitions.md section 3). That stands and falls with matching the right operations: traces
that began in different steps, or were sampled, give plausible nonsense. So the matching checks itself, by what cannot
be otherwise:

- the k-th operation of a group is the same operation, of the same size, on every rank;
- ranks leave together: after taking off one offset for each pair of ranks (their clocks), the ends of matched
  operations agree. On one host the offset must vanish too.

Where they do not, it refuses and says why.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from rankscope.collector.traces.report import MatchedCollective
from rankscope.collector.traces.tables import Kind, kind_of
from rankscope.measure.communication import POINT_TO_POINT_OPS
from rankscope.measure.kineto import Ints
from rankscope.measure.records import ROOTED_OPS, SYNCHRONISING_OPS
from rankscope.measure.traced_collectives import Collective
from rankscope.measure.units import NS_PER_MS, NS_PER_US

END_DISAGREEMENT_NS_MAX = 2 * NS_PER_MS
"""Ends of one collective on the devices of one host differed by 7 us (v100_dlrm_8ranks)."""
HOST_END_DISAGREEMENT_NS_MAX = 30 * NS_PER_MS
"""On a CPU with more threads than cores a thread waits for its turn before it sees the end: nine of ten within 23 ms on
four ranks and two cores (gloo-2.13)."""
END_DISAGREEMENT_SHARE_MAX = 0.25
"""... or a quarter of the operation's own shortest duration, where that is more."""
DISAGREEING_SHARE_MAX = 0.2
"""So many of the operations may exceed it (a thread that lost its turn); beyond, the matching is not believed."""
LATENESS_NS_MIN = 5 * NS_PER_US
"""Who came last is not told of differences below this: they are launch jitter."""


class RankCollectives(NamedTuple):
    """The communication of one rank, with times of its host's clock; `on_host`: by a backend on the CPU."""

    rank: int
    host: str | None
    collectives: Sequence[Collective]
    on_host: bool = False


class _Key(NamedTuple):
    group: str
    ranks: str | None
    place: int
    numbered: bool


class Matched(NamedTuple):
    """One operation with each rank's own share of it."""

    group: str
    place: int
    op: str
    bytes: int | None
    by_rank: Mapping[int, Collective]
    expected: int | None


class Matching(NamedTuple):
    """What was matched, or why waiting is not told from transfer. `end_disagreement_ns`: the median over the operations
    of how far apart the ranks' ends are, once their clocks' offsets are taken off. `related` has one mapping for each
    set of ranks that have operations in common, directly or along a chain, in the order of the ranks: how far the
    clock of each is ahead of the first one's, in ns.
    """

    matched: Sequence[Matched]
    refused: str | None
    missing_ranks: bool
    end_disagreement_ns: int | None
    related: Sequence[Mapping[int, int]]

    @property
    def offsets_ns(self) -> dict[int, int]:
        """The offsets of all ranks; only those of one set can be compared."""
        return {rank: offset_ns for one in self.related for rank, offset_ns in one.items()}


def match(ranks: Sequence[RankCollectives], world_size: int | None) -> Matching:
    """Match the collectives of all ranks and check the matching."""
    if len(ranks) < 2:  # noqa: PLR2004 - one rank has nobody to wait for
        return Matching(
            (),
            "only one rank's trace: nobody to compare with",
            missing_ranks=True,
            end_disagreement_ns=None,
            related=(),
        )
    matched, refused = _pair_up(ranks)
    missing = world_size is None or len(ranks) < world_size
    shared = [one for one in matched if len(one.by_rank) > 1]
    synchronising = [one for one in shared if one.op in SYNCHRONISING_OPS]
    if refused is None and not synchronising:
        refused = "the traces have no synchronising collective in common"
    if refused is not None:
        return Matching(shared, refused, missing, None, ())
    related = _find_offsets(ranks, synchronising)
    found = Matching(shared, None, missing, None, related)
    disagreement, refused = _check_ends(ranks, synchronising, found.offsets_ns)
    if refused is None:
        refused = next(filter(None, (_check_hosts(ranks, one) for one in related)), None)
    return found._replace(refused=refused, end_disagreement_ns=disagreement)


def _pair_up(ranks: Sequence[RankCollectives]) -> tuple[list[Matched], str | None]:
    """By (group, sequence) when the sequence is known, else by how manieth of its group."""
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
        sizes = {collective.bytes for collective in by_rank.values()} - {None}  # None: not told
        first = next(iter(by_rank.values()))
        if refused is None and (len(ops) > 1 or (first.op == "all_reduce" and len(sizes) > 1)):
            refused = _say_mismatch(key, by_rank)
        size = sizes.pop() if len(sizes) == 1 else None
        matched.append(Matched(key.group, key.place, first.op, size, by_rank, first.group_size))
    return matched, refused


def _say_mismatch(key: _Key, by_rank: Mapping[int, Collective]) -> str:
    says = ", ".join(f"{c.op} of {c.bytes} bytes on rank {rank}" for rank, c in sorted(by_rank.items())[:4])
    how = "sequence" if key.numbered else "place"
    return (
        f"the ranks' collectives do not line up: in group {key.group} {how} {key.place} is {says}. "
        "The traces are of different steps, or sampled"
    )


def _find_offsets(ranks: Sequence[RankCollectives], matched: Sequence[Matched]) -> list[dict[int, int]]:
    """How far each rank's clock is ahead of another's. One mapping for each set of ranks that have anything to do with
    each other: groups without a common member tell nothing of each other's clocks.
    """
    related: list[dict[int, int]] = []
    left = [one.rank for one in ranks]
    while left:
        related.append(_find_related(left[0], matched))
        left = [rank for rank in left if rank not in related[-1]]
    return related


def _find_related(first: int, matched: Sequence[Matched]) -> dict[int, int]:
    """How far each rank's clock is ahead of the first one's, by the ends of what both took part in. Found along chains:
    a rank may share a group only with one that is known already.
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
    ranks: Sequence[RankCollectives], matched: Sequence[Matched], offsets: Mapping[int, int]
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
            f"{typical / NS_PER_MS:.1f} ms in the median): the traces are of different steps, or sampled"
        )
    return typical, None


def find_end_spread(one: Matched, offsets_ns: Mapping[int, int] | Mapping[int | None, int]) -> int:
    """How far apart the ranks leave an operation, once their clocks' offsets are taken off, in ns."""
    ends = [c.start_ns + c.duration_ns - offsets_ns[rank] for rank, c in one.by_rank.items()]
    return max(ends) - min(ends)


def _limit_ns(ranks: Sequence[RankCollectives]) -> int:
    return HOST_END_DISAGREEMENT_NS_MAX if any(one.on_host for one in ranks) else END_DISAGREEMENT_NS_MAX


def _check_hosts(ranks: Sequence[RankCollectives], offsets: Mapping[int, int]) -> str | None:
    """On one host there is one clock. The offsets are of ranks that have to do with each other."""
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


# -- waiting and transfer ---------------------------------------------------------------------------------------------


def split(matching: Matching) -> list[MatchedCollective]:
    """Each matched operation as it is reported, in time order of its first rank."""
    ordered = sorted(matching.matched, key=lambda one: min((r, c.start_ns) for r, c in one.by_rank.items())[1])
    return [split_one(one, believed=matching.refused is None) for one in ordered]


def split_one(one: Matched, *, believed: bool) -> MatchedCollective:
    """An operation as it is reported. Waiting and who came last only when the matching is `believed`."""
    ranks = sorted(one.by_rank)
    transfer = wait = late = lateness = None
    if believed and one.op in SYNCHRONISING_OPS:
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


def sum_transfers(matching: Matching, rank: int) -> dict[Kind, tuple[int, int]]:
    """By kind of collective of one rank: how many of them all members of the group were seen in, and the transfer of
    these together in ns. Empty when the matching was refused.
    """
    found: dict[Kind, tuple[int, int]] = {}
    for one in matching.matched if matching.refused is None else ():
        mine = one.by_rank.get(rank)
        if mine is not None and one.op in SYNCHRONISING_OPS and len(one.by_rank) == one.expected:
            kind = kind_of(mine)
            count, transfer_ns = found.get(kind, (0, 0))
            found[kind] = (count + 1, transfer_ns + min(c.duration_ns for c in one.by_rank.values()))
    return found


def sum_by_rank(found: Sequence[MatchedCollective]) -> tuple[dict[str, int], dict[str, int]]:
    """The waiting and the transfer of each rank, over all operations that could be split."""
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
    """Raw intervals in which a rank waited for others, shape (n, 2); for operations with a root what it spent beyond
    the shortest member, which is nobody's own work either.
    """
    found = []
    for one in matching.matched:
        mine = one.by_rank.get(rank)
        if mine is not None and (one.op in SYNCHRONISING_OPS or one.op in ROOTED_OPS):
            transfer = min(c.duration_ns for c in one.by_rank.values())
            found.append((mine.start_ns, mine.start_ns + mine.duration_ns - transfer))
    return np.array(found, dtype=np.int64).reshape(-1, 2)
