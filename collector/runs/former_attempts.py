"""Keep where the ranks of earlier attempts of a run ran: an incident may be about one that is replaced by now. Pure."""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from rankscope.measure.messages import Hello
from rankscope.measure.units import ns_to_s

ATTEMPTS_KEPT_MAX: Final = 16
"""Earlier attempts of a run that are kept, the latest; those of a run that crashes again and again are on few nodes."""
RANKS_KEPT_MAX: Final = 32_768
"""Ranks of them together, 0.3 MB in the store: two attempts of the largest supported run."""


class PlacedRank(NamedTuple):
    """Where one rank of an attempt ran, since when by the clock of its node, and with which GPUs; those of an earlier
    attempt are not known, and it ran since its attempt began.
    """

    node: str
    since_wall_s: float
    uuids: tuple[str, ...]


class FormerAttempt(msgspec.Struct, frozen=True):
    """An earlier attempt: its ranks by node, and when the first of them began, by the clock of its node. Attempts that
    ran on the same nodes with the same ranks are one.
    """

    begun_wall_s: float
    ranks_by_node: Mapping[str, tuple[int, ...]] = {}

    @property
    def ranks(self) -> int:
        """How many ranks it has."""
        return sum(map(len, self.ranks_by_node.values()))


class FormerAttempts(msgspec.Struct, frozen=True):
    """The earlier attempts of a run, the oldest first; `dropped` were removed, as there were too many."""

    kept: tuple[FormerAttempt, ...] = ()
    dropped: int = 0

    def add(self, hellos: Iterable[Hello]) -> "FormerAttempts":
        """Return them with the attempt of these ranks, the same object where the last one ran at the same places.

        >>> FormerAttempts().add([]).kept
        ()
        """
        ended = _place(hellos)
        if ended is None or (self.kept and _is_part_of(ended, self.kept[-1])):
            return self
        kept = [*self.kept, ended]
        while len(kept) > ATTEMPTS_KEPT_MAX or sum(one.ranks for one in kept) > RANKS_KEPT_MAX:
            kept.pop(0)
        return FormerAttempts(tuple(kept), self.dropped + len(self.kept) + 1 - len(kept))


NO_ATTEMPTS: Final = FormerAttempts()


def _place(hellos: Iterable[Hello]) -> FormerAttempt | None:
    found = sorted(hellos, key=lambda hello: hello.identity.rank)
    if not found:
        return None
    ranks: dict[str, list[int]] = {}
    for hello in found:
        ranks.setdefault(hello.identity.node, []).append(hello.identity.rank)
    begun_wall_s = min(ns_to_s(hello.wall_ns) for hello in found)
    return FormerAttempt(begun_wall_s, {node: tuple(numbers) for node, numbers in ranks.items()})


def _is_part_of(ended: FormerAttempt, before: FormerAttempt) -> bool:
    """Return whether every rank ran where it did in the attempt before."""
    known = before.ranks_by_node
    return all(set(ranks) <= set(known.get(node, ())) for node, ranks in ended.ranks_by_node.items())
