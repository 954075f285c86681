"""Collectives of one step of many ranks, as blocks of columns, and stacked for detection. Pure.

Ranks mostly report the same number of collectives in a step, and many at once: so they are kept in blocks of one row a
rank until the step is matched, which costs a tenth of rank by rank.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rankscope.collector.steps.step_series import Ints
from rankscope.measure.table import MISSING

Names = tuple[str, ...]


class NameLists(NamedTuple):
    """The different lists of names of several ranks, many of which are equal, and the index of each rank's own."""

    lists: Sequence[Names]
    row: Ints

    @classmethod
    def of(cls, names_by_rank: Sequence[Names]) -> "NameLists":
        """Build it from the list of each rank."""
        numbers: dict[Names, int] = {}
        row = np.array([numbers.setdefault(names, len(numbers)) for names in names_by_rank], dtype=np.int64)
        return cls(list(numbers), row)

    @classmethod
    def join(cls, parts: "Sequence[NameLists]") -> "NameLists":
        """Return all parts, one after the other."""
        offsets = np.cumsum([0, *(len(part.lists) for part in parts)]).tolist()
        rows = [part.row + offset for part, offset in zip(parts, offsets, strict=False)]
        return cls([names for part in parts for names in part.lists], np.concatenate(rows))

    def select(self, rows: Ints) -> "NameLists":
        """Return the lists of these ranks."""
        return NameLists(self.lists, self.row[rows])


COLUMNS = ("group", "op", "sequence", "start_ns", "duration_ns", "size_bytes", "exposed_ns")

DENSE_CODES_MIN = 4096
DENSE_CODES_PER_ROW = 8
"""Up to this many codes in all, or per row, whichever is more, a lookup table is faster than a sort."""


class CollectiveBlock(NamedTuple):
    """Several ranks with the same number of collectives each: columns of shape (ranks, collectives). `group` and `op`
    index the names in the rank's own list of `groups` and `ops`; `sequence`, `size_bytes` and `exposed_ns` may be
    MISSING.
    """

    ranks: Ints
    groups: NameLists
    ops: NameLists
    group: Ints
    op: Ints
    sequence: Ints
    start_ns: Ints
    duration_ns: Ints
    size_bytes: Ints
    exposed_ns: Ints

    def select(self, rows: Ints) -> "CollectiveBlock":
        """Return these ranks of the block."""
        columns = (getattr(self, name)[rows] for name in COLUMNS)
        return CollectiveBlock(self.ranks[rows], self.groups.select(rows), self.ops.select(rows), *columns)


Step = Sequence[CollectiveBlock]
"""The blocks of one step. Of a rank that is in several blocks the last one counts."""

Kinds = list[tuple[str, str]]
"""The (group, op) of each kind of collective."""


class Rows(NamedTuple):
    """The collectives of all ranks, one a row, by rank, kind and start. `kind` numbers (group, op), `key` the matched
    operations; `place` is the index of the group among the rank's own names of groups.
    """

    rank: Ints
    kind: Ints
    key: Ints
    start_ns: Ints
    duration_ns: Ints
    size_bytes: Ints
    exposed_ns: Ints
    place: Ints


def count_rows(step: Step) -> int:
    """Return the number of collectives of all ranks."""
    return sum(block.op.size for block in step)


def find_ranks(step: Step) -> Ints:
    """Return the ranks that reported the step, ascending, also those without a collective in it."""
    return np.unique(_concatenate([block.ranks for block in step]))


def stack(step: Step) -> tuple[Rows, Kinds]:
    """Return the rows of a step, and its kinds."""
    groups, ops = _Numbers(), _Numbers()
    pieces = [_flatten(block, groups, ops) for block in _join(step)] or [(_concatenate(()),) * 9]
    rank, group, op, place, sequence, start_ns, *others = (_concatenate(each) for each in zip(*pieces, strict=True))
    codes, kind = number_codes(group * max(1, len(ops.names)) + op, len(groups.names) * len(ops.names))
    kinds = [(groups.names[code // len(ops.names)], ops.names[code % len(ops.names)]) for code in codes.tolist()]
    order = _find_order(rank, kind, start_ns, len(kinds))
    rank, kind, place, sequence, start_ns, duration_ns, size_bytes, exposed_ns = (
        column[order] for column in (rank, kind, place, sequence, start_ns, *others)
    )
    numbered = sequence != MISSING
    number = np.where(numbered, sequence, count_within(rank, kind))
    key = _number_operations(kind, number, numbered, len(kinds))
    return Rows(rank, kind, key, start_ns, duration_ns, size_bytes, exposed_ns, place), kinds


def order_by(first: Ints, then: Ints, bound: int) -> Ints:
    """Return the stable order of the rows by the first column and then the second, whose values are from 0 to below
    `bound`. One sort of a combined column is faster than a sort by two.
    """
    return np.argsort(first * max(1, bound) + then, kind="stable")


def number_codes(codes: Ints, bound: int) -> tuple[Ints, Ints]:
    """Return the codes that occur, ascending, and for each row the index of its code among them. Codes are from 0 to
    below `bound`.
    """
    if bound > max(DENSE_CODES_MIN, DENSE_CODES_PER_ROW * len(codes)):
        return np.unique(codes, return_inverse=True)
    is_there = np.zeros(max(1, bound), dtype=bool)
    is_there[codes] = True
    numbers = np.cumsum(is_there) - 1
    return np.flatnonzero(is_there), numbers[codes]


def count_within(*sorted_keys: Ints) -> Ints:
    """Return for each row how many rows with the same keys precede it; rows with the same keys are adjacent."""
    row = np.arange(len(sorted_keys[0]))
    begins = differs_from_previous(*sorted_keys)
    return row - np.maximum.accumulate(np.where(begins, row, 0))


def number_rows(*columns: npt.NDArray[Any]) -> Ints:
    """Return a number for each row, the same for rows that are equal in every column."""
    order = np.lexsort(columns)
    numbers = np.empty(len(order), dtype=np.int64)
    numbers[order] = np.cumsum(differs_from_previous(*(column[order] for column in columns))) - 1
    return numbers


def differs_from_previous(*columns: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return for each row whether it differs from the previous one in any column; the first row does."""
    differs = np.ones(len(columns[0]), dtype=bool)
    differs[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return differs


class _Numbers:
    """Numbers for names, shared by all ranks, in the order of their first use."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._number: dict[str, int] = {}

    def read(self, names: NameLists, index: Ints) -> Ints:
        """Return the indices of each row as those numbers, by the names of the row; both have shape (rows, n)."""
        if not index.size:
            return index
        width = max(map(len, names.lists))
        numbers = [[self._number_of(name) for name in one] + [0] * (width - len(one)) for one in names.lists]
        return np.asarray(np.array(numbers, dtype=np.int64)[names.row[:, np.newaxis], index])

    def _number_of(self, name: str) -> int:
        number = self._number.get(name)
        if number is None:
            number = self._number[name] = len(self.names)
            self.names.append(name)
        return number


def _join(step: Step) -> list[CollectiveBlock]:
    """Return as few blocks as possible, one for each number of collectives. Only the last report of a rank is kept."""
    ranks = _concatenate([block.ranks for block in step])
    if len(ranks) and len(np.unique(ranks)) < len(ranks):
        step = _drop_replaced(step, ranks)
    alike: dict[int, list[CollectiveBlock]] = {}
    for block in step:
        alike.setdefault(block.op.shape[1], []).append(block)
    return [_join_alike(blocks) for blocks in alike.values()]


def _drop_replaced(step: Step, ranks: Ints) -> Step:
    last = np.zeros(int(ranks.max()) + 1, dtype=np.int64)
    last[ranks] = np.arange(len(ranks))
    is_last = np.split(last[ranks] == np.arange(len(ranks)), np.cumsum([len(block.ranks) for block in step])[:-1])
    return [block.select(np.flatnonzero(rows)) for block, rows in zip(step, is_last, strict=True)]


def _join_alike(blocks: Sequence[CollectiveBlock]) -> CollectiveBlock:
    if len(blocks) == 1:
        return blocks[0]
    return CollectiveBlock(
        np.concatenate([block.ranks for block in blocks]),
        NameLists.join([block.groups for block in blocks]),
        NameLists.join([block.ops for block in blocks]),
        *(np.concatenate([getattr(block, name) for block in blocks]) for name in COLUMNS),
    )


def _flatten(block: CollectiveBlock, groups: _Numbers, ops: _Numbers) -> tuple[Ints, ...]:
    """Return the columns rank, group, op, place and the others of a block, row by row."""
    count = block.op.shape[1]
    group, op = groups.read(block.groups, block.group), ops.read(block.ops, block.op)
    columns = (group, op, block.group, block.sequence, block.start_ns)
    others = (block.duration_ns, block.size_bytes, block.exposed_ns)
    return np.repeat(block.ranks, count), *(column.reshape(-1) for column in (*columns, *others))


def _find_order(rank: Ints, kind: Ints, start_ns: Ints, kinds: int) -> Ints:
    """Return the rows by rank, kind and start. Mostly each rank's are in the order of their start."""
    if not np.all((start_ns[1:] >= start_ns[:-1]) | (rank[1:] != rank[:-1])):
        return np.lexsort((start_ns, kind, rank))
    return order_by(rank, kind, kinds)


def _number_operations(kind: Ints, number: Ints, numbered: npt.NDArray[np.bool_], kinds: int) -> Ints:
    """Return a number for each row, the same for rows of one operation: of one kind, with one sequence or, without, one
    place.
    """
    if not len(kind):
        return kind
    first, last = int(number.min()), int(number.max())
    span = last - first + 1
    bound = kinds * span * 2
    if bound > max(DENSE_CODES_MIN, DENSE_CODES_PER_ROW * len(kind)):
        return number_rows(kind, number, numbered)
    return number_codes((kind * span + number - first) * 2 + numbered, bound)[1]


def _concatenate(columns: Sequence[Ints]) -> Ints:
    return np.concatenate([np.empty(0, dtype=np.int64), *columns])
