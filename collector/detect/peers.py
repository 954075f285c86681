"""Who does the same work: the ranks that one is compared with."""

from collections.abc import Mapping
from typing import NamedTuple

TWINS_MIN = 3
"""With fewer twins a median over them says little: all ranks are compared instead, and the verdict says so."""


class Peers(NamedTuple):
    """The twins of one rank, without itself. `are_twins` is False when all ranks had to stand in for too few twins."""

    ranks: tuple[int, ...]
    are_twins: bool


def find_peers(rank: int, signatures: Mapping[int, object], ranks: tuple[int, ...]) -> Peers:
    """The ranks whose step has the same signature (which collectives, what sizes), else all other ranks.

    A rank whose signature is not known is nobody's twin; when no signature is known, all are taken for twins: nothing
    speaks against it in a job that has shown no collectives.

    >>> find_peers(0, {0: "first", 1: "first", 2: "last", 3: "first", 4: "first"}, (0, 1, 2, 3, 4))
    Peers(ranks=(1, 3, 4), are_twins=True)
    """
    others = tuple(other for other in ranks if other != rank)
    if not signatures:
        return Peers(others, are_twins=True)
    twins = tuple(other for other in others if other in signatures and signatures[other] == signatures.get(rank))
    if len(twins) >= min(TWINS_MIN, len(others)) and twins:
        return Peers(twins, are_twins=True)
    return Peers(others, are_twins=False)
