"""Group the ranks that do the same work, so that each is compared with its peers."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

PEERS_MIN = 3
"""A rank with fewer peers is compared with all ranks, and the sentence of a finding says so."""

PEERS_SAMPLED_MAX = 128
"""At most this many peers of a rank, evenly spread, are read for more than their step times (samples, windows)."""


class Peers(NamedTuple):
    """The ranks that one rank is compared with, without itself: `size` of them, PEERS_SAMPLED_MAX at most in `ranks`.
    `do_same_work` is False when all ranks stand in for too few that do the same work.
    """

    ranks: tuple[int, ...]
    size: int
    do_same_work: bool


class Comparison(NamedTuple):
    """Each of `members` is compared with the others of `against`. Both are ranks in ascending order."""

    members: tuple[int, ...]
    against: tuple[int, ...]
    do_same_work: bool

    def peers_of(self, rank: int) -> Peers:
        """Return the peers of one of the members."""
        sampled = self.against[:: -(-len(self.against) // PEERS_SAMPLED_MAX) or 1]
        others = tuple(other for other in sampled if other != rank)
        return Peers(others, len(self.against) - 1, self.do_same_work)


class PeerGroups(NamedTuple):
    """All comparisons of a run. Every rank is a member of exactly one of them, `place[rank]`."""

    comparisons: tuple[Comparison, ...]
    place: Mapping[int, int]

    def of(self, rank: int) -> Comparison:
        """Return the comparison that a rank is a member of."""
        return self.comparisons[self.place[rank]]


def find_peer_groups(ranks: Sequence[int], signatures: Mapping[int, object]) -> PeerGroups:
    """Group ranks whose steps have the same signature (which collectives, of what sizes).

    Ranks of too small a group, and those without a known signature, are compared with all ranks. When no signature is
    known at all, every rank is a peer of every other.

    >>> find_peer_groups((0, 1, 2, 3, 4), {0: "first", 1: "first", 2: "last", 3: "first", 4: "first"}).comparisons[0]
    Comparison(members=(0, 1, 3, 4), against=(0, 1, 3, 4), do_same_work=True)
    """
    all_ranks = tuple(sorted(ranks))
    enough = min(PEERS_MIN, len(all_ranks) - 1)
    alike: dict[object, list[int]] = {}
    for rank in all_ranks:
        if not signatures or rank in signatures:
            alike.setdefault(signatures.get(rank), []).append(rank)
    groups = [tuple(group) for group in alike.values() if len(group) > max(1, enough)]
    comparisons = [Comparison(group, group, do_same_work=True) for group in groups]
    grouped = {rank for group in groups for rank in group}
    remaining = tuple(rank for rank in all_ranks if rank not in grouped)
    if remaining:
        comparisons.append(Comparison(remaining, all_ranks, do_same_work=not signatures))
    place = {rank: number for number, one in enumerate(comparisons) for rank in one.members}
    return PeerGroups(tuple(comparisons), place)
