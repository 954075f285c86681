"""Find what each rank's step communicates: ranks with the same signature do the same work. Pure."""

from collections.abc import Callable, Mapping
from itertools import islice
from typing import NamedTuple

import numpy as np

from rankscope.collector.steps.collectives import (
    Kinds,
    Rows,
    differs_from_previous,
    number_codes,
    order_by,
)
from rankscope.collector.steps.step_series import Ints
from rankscope.measure.communication import ALL_TO_ALL, POINT_TO_POINT_OPS
from rankscope.measure.table import MISSING

FindPlace = Callable[[int, str], int]
"""Returns the index of a rank in a group, from 0; -1 where it is unknown."""

FIRST_SENDS = -2
FIRST_RECEIVES = -1
"""The place of a rank in a group of all ranks."""


Sort = tuple[str, int]
"""The op and the group size of a collective."""

VARIES = -2
"""The bytes of a collective whose size differs from step to step on one rank, as that of sequences or of the tokens of
an expert does: it does not tell which work a rank does."""

SMALL_RATIO = 1000
"""A collective of which this many move no more than the largest of the step is small: a loss, a norm, a flag. Ranks
that differ by such ones only do the same work."""

RANKS_COMPARED_MAX = 64
"""Ranks whose sizes are compared from step to step: what varies does so on all that take part."""

KINDS_OF_STEPS_MAX = 64
"""Different steps with the same number of calls for which ranks are grouped; a pipeline rarely has more stages.
Beyond it, as where experts get another share in each step, every rank's signature is made by itself."""


class Signature(NamedTuple):
    """Collectives of a step: sorted (op, group size, bytes), VARIES where these differ from step to step. `places`
    separates pipeline stages that send and receive the same: the rank's index in each group with point-to-point
    operations.
    """

    calls: tuple[tuple[str, int, int], ...]
    places: tuple[int, ...] = ()

    def __hash__(self) -> int:
        """Hash only the first and last call: every detection pass hashes all ranks' signatures, of up to hundreds of
        calls.
        """
        return hash((len(self.calls), self.calls[:1], self.calls[-1:]))

    def coarsen(self) -> "Signature | None":
        """Return the signature without small collectives. Point-to-point ones stay: they tell stages apart. None where
        they do not, in a group of all ranks: of few ranks with that signature each may be another stage.
        """
        if any(place < 0 for place in self.places):
            return None
        largest = max((size for _, _, size in self.calls), default=0)
        kept = [
            call for call in self.calls
            if call[2] < 0 or SMALL_RATIO * call[2] > largest or call[0] in POINT_TO_POINT_OPS
        ]  # fmt: skip
        return Signature(tuple(kept), self.places)

    def without_exchanges(self) -> "Signature":
        """Return the signature without the bytes of all-to-alls: how many tokens an expert gets is not what it does."""
        return Signature(
            tuple((op, size, VARIES if op == ALL_TO_ALL else moved) for op, size, moved in self.calls), self.places
        )


class GroupFacts(NamedTuple):
    """Known facts of the process groups of a run: the size of each, the world size, and the index of each rank; and
    the sorts of collectives whose sizes vary.
    """

    sizes: Mapping[str, int]
    world_size: int
    find_place: FindPlace
    varying: frozenset[Sort] = frozenset()


def find_signatures(
    rows: Rows, kinds: Kinds, groups: GroupFacts, former: Mapping[int, Signature]
) -> Mapping[int, Signature]:
    """Return the signature of every rank with a collective; ranks with equal ones share the object. Returns `former`
    where nothing has changed, or where nothing is known: no collective, or one whose size is missing (only full windows
    report it), without which pipeline stages look the same.
    """
    if not len(rows.rank) or bool(np.any(rows.size_bytes == MISSING)):
        return former
    places = _find_places(rows, kinds, groups)
    calls, code = _number_calls(rows, kinds, groups)
    code = code[order_by(rows.rank, code, len(calls))]
    firsts = np.flatnonzero(differs_from_previous(rows.rank))
    ranks, ends = rows.rank[firsts].tolist(), [*firsts[1:].tolist(), len(code)]
    firsts_alike = _find_first_alike(code, firsts)
    known: dict[tuple[int, tuple[int, ...]], Signature] = {}
    found = {}
    for first_alike, rank in zip(firsts_alike.tolist(), ranks, strict=True):
        key = first_alike, places.get(rank, ())
        signature = known.get(key)
        if signature is None:
            signature = Signature(
                tuple([calls[one] for one in code[firsts[first_alike] : ends[first_alike]].tolist()]), key[1]
            )
            before = former.get(rank)
            signature = known[key] = before if before == signature else signature  # the same one is compared quickly
        found[rank] = signature
    return former if found == former else found


def _find_first_alike(code: Ints, firsts: Ints) -> Ints:
    """Return for each rank, whose calls in order begin at its `firsts`, the first rank with the same calls."""
    counts = np.diff(firsts, append=len(code))
    firsts_alike = np.arange(len(firsts))
    for count in np.unique(counts).tolist():
        remaining = np.flatnonzero(counts == count)
        calls = code[firsts[remaining][:, np.newaxis] + np.arange(count)]
        for _ in range(KINDS_OF_STEPS_MAX):
            if not len(remaining):
                break
            is_same = (calls == calls[0]).all(axis=1)
            firsts_alike[remaining[is_same]] = remaining[0]
            remaining, calls = remaining[~is_same], calls[~is_same]
    return firsts_alike


class SignatureSearch:
    """Finds signatures in step after step, and leaves out the sizes that vary: those that have changed twice. Once they
    do when DDP has built its buckets anew.
    """

    def __init__(self) -> None:
        self._former: Mapping[int, Signature] = {}
        #: The sorts of collectives whose sizes have changed, and those that have twice. They only grow.
        self._changed: frozenset[Sort] = frozenset()
        self._varying: frozenset[Sort] = frozenset()

    def find(self, rows: Rows, kinds: Kinds, groups: GroupFacts) -> Mapping[int, Signature]:
        """Return `find_signatures` of a step; the same mapping as long as nothing changes."""
        found = find_signatures(rows, kinds, groups._replace(varying=self._varying), self._former)
        changed = find_changed_sizes(self._former, found)
        varying = self._varying | (changed & self._changed)
        self._changed |= changed
        if varying != self._varying:
            self._varying = varying
            found = find_signatures(rows, kinds, groups._replace(varying=varying), self._former)
        self._former = found
        return found


def find_changed_sizes(former: Mapping[int, Signature], signatures: Mapping[int, Signature]) -> frozenset[Sort]:
    """Return the sorts of collectives whose bytes have changed on a rank between two steps with as many of each."""
    if former is signatures:
        return frozenset()
    found: set[Sort] = set()
    changed = (rank for rank, one in signatures.items() if rank in former and former[rank] is not one)
    for rank in islice(changed, RANKS_COMPARED_MAX):
        calls, before = signatures[rank].calls, former[rank].calls
        if [call[:2] for call in calls] == [call[:2] for call in before]:
            found.update(call[:2] for call, other in zip(calls, before, strict=True) if call != other)
    return frozenset(found)


def _number_calls(rows: Rows, kinds: Kinds, groups: GroupFacts) -> tuple[list[tuple[str, int, int]], Ints]:
    """Return the different calls in order, and for each row the index of its call."""
    sorts = [(op, groups.sizes.get(group, 0)) for group, op in kinds]
    of_sort = {sort: number for number, sort in enumerate(sorted(set(sorts)))}
    sort = np.array([of_sort[one] for one in sorts], dtype=np.int64)[rows.kind]
    size_bytes = rows.size_bytes
    if groups.varying:
        size_bytes = np.where(np.array([one in groups.varying for one in sorts])[rows.kind], VARIES, size_bytes)
    sizes, size = np.unique(size_bytes, return_inverse=True)
    codes, code = number_codes(sort * len(sizes) + size, len(of_sort) * len(sizes))
    names = list(of_sort)
    return [(*names[one // len(sizes)], int(sizes[one % len(sizes)])) for one in codes.tolist()], code


def _find_places(rows: Rows, kinds: Kinds, groups: GroupFacts) -> dict[int, tuple[int, ...]]:
    """Return for each rank its place in each group with point-to-point operations, in the order of its own names of
    groups.

    In a group of all ranks every place is different: there it counts whether the rank sends first.
    """
    hands_over = np.array([op in POINT_TO_POINT_OPS for _, op in kinds], dtype=bool)[rows.kind]
    if not hands_over.any():  # as in most jobs
        return {}
    rank, place, kind, start_ns = (column[hands_over] for column in (rows.rank, rows.place, rows.kind, rows.start_ns))
    order = np.lexsort((start_ns, place, rank))
    firsts = order[np.flatnonzero(differs_from_previous(rank[order], place[order]))]
    places: dict[int, list[int]] = {}
    for one, number in zip(rank[firsts].tolist(), kind[firsts].tolist(), strict=True):
        group, op = kinds[number]
        is_of_all = groups.sizes.get(group, 0) == groups.world_size
        first = FIRST_SENDS if op == "send" else FIRST_RECEIVES
        places.setdefault(one, []).append(first if is_of_all else groups.find_place(one, group))
    return {one: tuple(found) for one, found in places.items()}
