"""What the step of each rank communicates: ranks with the same signature do the same work."""

from collections.abc import Callable, Mapping
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
from rankscope.measure.communication import POINT_TO_POINT_OPS
from rankscope.measure.table import MISSING

FindPlace = Callable[[int, str], int]
"""Where a rank stands in a group, from 0; -1 where nobody has told."""

FIRST_SENDS = -2
FIRST_RECEIVES = -1
"""The place of a rank in a group of all ranks."""


KINDS_OF_STEPS_MAX = 64
"""Different steps, of as many calls each, of which ranks are looked for that share them: a pipeline has as many stages
at most. Beyond that, as where experts get another share in each step, every rank's signature is made by itself."""


class Signature(NamedTuple):
    """What a step communicates: sorted (op, group size, bytes). `places` tells pipeline stages apart that send and
    receive the same: where the rank stands in each group in which it hands over from rank to rank.
    """

    calls: tuple[tuple[str, int, int], ...]
    places: tuple[int, ...] = ()

    def __hash__(self) -> int:
        """Of a few of the calls: every look puts each rank's in a dictionary, and there may be hundreds of calls."""
        return hash((len(self.calls), self.calls[:1], self.calls[-1:]))


class GroupFacts(NamedTuple):
    """What is known of the process groups of a run: the size of each, that of the whole run, and who stands where."""

    sizes: Mapping[str, int]
    world_size: int
    find_place: FindPlace


def find_signatures(
    rows: Rows, kinds: Kinds, groups: GroupFacts, former: Mapping[int, Signature]
) -> Mapping[int, Signature]:
    """The signature of every rank with a collective; ranks that do the same share one. It is the `former` ones where
    nothing has changed, or nothing is known: there is no collective, or the size of one is not told (by full windows),
    without which pipeline stages would look the same.
    """
    if not len(rows.rank) or bool(np.any(rows.size_bytes == MISSING)):
        return former
    places = _find_places(rows, kinds, groups)
    calls, code = _number_calls(rows, kinds, groups.sizes)
    code = code[order_by(rows.rank, code, len(calls))]
    firsts = np.flatnonzero(differs_from_previous(rows.rank))
    ranks, ends = rows.rank[firsts].tolist(), [*firsts[1:].tolist(), len(code)]
    leaders = _find_leaders(code, firsts)
    known: dict[tuple[int, tuple[int, ...]], Signature] = {}
    found = {}
    for leader, rank in zip(leaders.tolist(), ranks, strict=True):
        key = leader, places.get(rank, ())
        signature = known.get(key)
        if signature is None:
            signature = Signature(tuple([calls[one] for one in code[firsts[leader] : ends[leader]].tolist()]), key[1])
            before = former.get(rank)
            signature = known[key] = before if before == signature else signature  # the same one is compared quickly
        found[rank] = signature
    return former if found == former else found


def _find_leaders(code: Ints, firsts: Ints) -> Ints:
    """For each rank, whose calls in order begin at its `firsts`, the first one that has the same calls."""
    counts = np.diff(firsts, append=len(code))
    leaders = np.arange(len(firsts))
    for count in np.unique(counts).tolist():
        left = np.flatnonzero(counts == count)
        calls = code[firsts[left][:, np.newaxis] + np.arange(count)]
        for _ in range(KINDS_OF_STEPS_MAX):
            if not len(left):
                break
            is_same = (calls == calls[0]).all(axis=1)
            leaders[left[is_same]] = left[0]
            left, calls = left[~is_same], calls[~is_same]
    return leaders


def _number_calls(rows: Rows, kinds: Kinds, group_sizes: Mapping[str, int]) -> tuple[list[tuple[str, int, int]], Ints]:
    """The different calls in order, and for each row the number of its own among them."""
    sorts = [(op, group_sizes.get(group, 0)) for group, op in kinds]
    of_sort = {sort: number for number, sort in enumerate(sorted(set(sorts)))}
    sort = np.array([of_sort[one] for one in sorts], dtype=np.int64)[rows.kind]
    sizes, size = np.unique(rows.size_bytes, return_inverse=True)
    codes, code = number_codes(sort * len(sizes) + size, len(of_sort) * len(sizes))
    names = list(of_sort)
    return [(*names[one // len(sizes)], int(sizes[one % len(sizes)])) for one in codes.tolist()], code


def _find_places(rows: Rows, kinds: Kinds, groups: GroupFacts) -> dict[int, tuple[int, ...]]:
    """By rank its place in each group in which it hands over, in the order of its own names of groups.

    In a group of all ranks every place is another one: there it counts whether the rank sends first.
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
