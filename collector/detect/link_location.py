"""Where a slow link is: what several slow groups have in common.

One slow group says that some link between its members is slow. Where slow groups share one rank and nothing else, the
link is that rank's: its network card, its port. Where they share one machine of several, it is that machine's; where
they all reach from one machine to the same other one, it is what lies between the two.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

Place = TypeVar("Place", int, str)


class Location(NamedTuple):
    """Slow groups that go back to one link. `ranks` ascend: those that the groups have in common, of one group all.
    `nodes`: the machines of these ranks. `suspect` says in words what the groups prove: `rank`, `node`, `node pair`, or
    nothing.
    """

    groups: tuple[str, ...]
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    suspect: str = ""


def find_locations(
    groups: Iterable[str], members: Mapping[str, Sequence[int]], nodes: Mapping[int, str]
) -> tuple[Location, ...]:
    """Every slow group in exactly one location. `members` are a group's ranks, `nodes` each rank's machine.

    >>> members = {"tp": (4, 5, 6, 7), "dp": (1, 5, 9, 13)}
    >>> find_locations(["tp", "dp"], members, dict.fromkeys(range(16), "a"))
    (Location(groups=('dp', 'tp'), ranks=(5,), nodes=('a',), suspect='rank'),)
    """
    by_rank, apart = _bundle({group: frozenset(members[group]) for group in groups})
    found = []
    for names, ranks in by_rank:
        machines = _machines(ranks, nodes)
        found.append(Location(names, tuple(sorted(ranks)), machines, "rank" if len(ranks) == 1 else ""))
    by_node, alone = _bundle({group: frozenset(_machines(members[group], nodes)) for group in apart})
    machines_known = len(set(nodes.values()))
    for names, shared in by_node:
        suspect = {1: "node", 2: "node pair"}.get(len(shared), "")
        if suspect and len(shared) < machines_known:
            there = {rank for group in names for rank in members[group] if nodes.get(rank) in shared}
            found.append(Location(names, tuple(sorted(there)), tuple(sorted(shared)), suspect))
        else:
            alone += names
    found += [Location((group,), tuple(members[group]), _machines(members[group], nodes)) for group in sorted(alone)]
    return tuple(found)


def _bundle(places: Mapping[str, frozenset[Place]]) -> tuple[list[tuple[tuple[str, ...], frozenset[Place]]], list[str]]:
    """Groups that share a place, with all the places they share, those of the most shared place first; and the groups
    that share none with any other.
    """
    left = dict(sorted(places.items()))
    bundles = []
    while left:
        counts = Counter(place for there in left.values() for place in there)
        place = max(sorted(counts), key=counts.__getitem__, default=None)
        if place is None or counts[place] < 2:  # noqa: PLR2004 - one group shares nothing
            break
        names = tuple(group for group, there in left.items() if place in there)
        bundles.append((names, frozenset.intersection(*(left.pop(group) for group in names))))
    return bundles, list(left)


def _machines(ranks: Iterable[int], nodes: Mapping[int, str]) -> tuple[str, ...]:
    """The machines of these ranks, those not known left out."""
    return tuple(sorted({nodes[rank] for rank in ranks if rank in nodes}))
