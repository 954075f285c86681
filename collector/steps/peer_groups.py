"""Who does the same work: the ranks that one is compared with."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

TWINS_MIN = 3
"""With fewer twins a median over them says little: all ranks are compared instead, and the verdict says so."""


ASKED_MAX = 128
"""Of so many of its peers, evenly spread, a rank's comparison asks for more than their times: more would not tell it
better, and of 16,384 it would take seconds."""


class Peers(NamedTuple):
    """Those that one rank is compared with, without itself: `size` of them, of which `ranks` are at most ASKED_MAX.
    `are_twins` is False when all ranks had to stand in for too few twins.
    """

    ranks: tuple[int, ...]
    size: int
    are_twins: bool


class Comparison(NamedTuple):
    """Each of `members` is compared with the others of `against`. Both are ranks in ascending order."""

    members: tuple[int, ...]
    against: tuple[int, ...]
    are_twins: bool

    def peers_of(self, rank: int) -> Peers:
        """Those that one of the members is compared with."""
        asked = self.against[:: -(-len(self.against) // ASKED_MAX) or 1]
        others = tuple(other for other in asked if other != rank)
        return Peers(others, len(self.against) - 1, self.are_twins)


class Twins(NamedTuple):
    """Every rank is a member of exactly one comparison, `place[rank]`."""

    comparisons: tuple[Comparison, ...]
    place: Mapping[int, int]

    def of(self, rank: int) -> Comparison:
        """The comparison that a rank is a member of."""
        return self.comparisons[self.place[rank]]


def find_twins(ranks: Sequence[int], signatures: Mapping[int, object]) -> Twins:
    """Ranks whose step has the same signature (which collectives, what sizes) are compared with each other; those with
    too few of their kind with all.

    A rank whose signature is not known is nobody's twin; when no signature is known, all are taken for twins: nothing
    speaks against it in a job that has shown no collectives.

    >>> find_twins((0, 1, 2, 3, 4), {0: "first", 1: "first", 2: "last", 3: "first", 4: "first"}).comparisons[0]
    Comparison(members=(0, 1, 3, 4), against=(0, 1, 3, 4), are_twins=True)
    """
    everybody = tuple(sorted(ranks))
    enough = min(TWINS_MIN, len(everybody) - 1)
    alike: dict[object, list[int]] = {}
    for rank in everybody:
        if not signatures or rank in signatures:
            alike.setdefault(signatures.get(rank), []).append(rank)
    groups = [tuple(group) for group in alike.values() if len(group) > max(1, enough)]
    comparisons = [Comparison(group, group, are_twins=True) for group in groups]
    among_twins = {rank for group in groups for rank in group}
    rest = tuple(rank for rank in everybody if rank not in among_twins)
    if rest:
        comparisons.append(Comparison(rest, everybody, are_twins=not signatures))
    place = {rank: number for number, one in enumerate(comparisons) for rank in one.members}
    return Twins(tuple(comparisons), place)
