"""The collectives of one step of many ranks, as blocks of columns, and laid under each other for detection.

Ranks mostly tell of as many collectives in a step, and many come together: so they lie in blocks of one row a rank, and
stay there until the step is looked at. Rank by rank the same took ten times as long (0.5 s for a step of 16,384).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rankscope.collector.steps.step_series import Ints
from rankscope.measure.table import MISSING

Names = tuple[str, ...]


class NameLists(NamedTuple):
    """A list of names for each of some ranks, of which many have the same: the different ones, and which each has."""

    lists: Sequence[Names]
    row: Ints

    @classmethod
    def of(cls, told: Sequence[Names]) -> "NameLists":
        """What each rank tells."""
        numbers: dict[Names, int] = {}
        row = np.array([numbers.setdefault(names, len(numbers)) for names in told], dtype=np.int64)
        return cls(list(numbers), row)

    @classmethod
    def join(cls, parts: "Sequence[NameLists]") -> "NameLists":
        """Those of all parts after each other."""
        offsets = np.cumsum([0, *(len(part.lists) for part in parts)]).tolist()
        rows = [part.row + offset for part, offset in zip(parts, offsets, strict=False)]
        return cls([names for part in parts for names in part.lists], np.concatenate(rows))

    def take(self, rows: Ints) -> "NameLists":
        """Those of these ranks."""
        return NameLists(self.lists, self.row[rows])


COLUMNS = ("group", "op", "sequence", "start_ns", "duration_ns", "size_bytes", "exposed_ns")

DENSE_CODES_MIN = 4096
DENSE_CODES_PER_ROW = 8
"""Up to so many possible codes, whichever is more, a table of them is quicker to go through than rows are sorted."""


class CollectiveBlock(NamedTuple):
    """Some ranks with as many collectives each: columns of shape (ranks, collectives). `group` and `op` index the names
    in the rank's own list of `groups` and `ops`; `sequence`, `size_bytes` and `exposed_ns` may be MISSING.
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

    def take(self, rows: Ints) -> "CollectiveBlock":
        """These ranks of it."""
        columns = (getattr(self, name)[rows] for name in COLUMNS)
        return CollectiveBlock(self.ranks[rows], self.groups.take(rows), self.ops.take(rows), *columns)


Step = Sequence[CollectiveBlock]
"""One step. Of a rank that is in several blocks the last one counts."""

Kinds = list[tuple[str, str]]
"""The (group, op) of each kind of collective."""


class Rows(NamedTuple):
    """The collectives of all ranks under each other, by rank, kind and start. `kind` numbers (group, op), `key` the
    matched operations; `place` is the group's place among the rank's own names of groups.
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
    """How many collectives of all ranks."""
    return sum(block.op.size for block in step)


def find_ranks(step: Step) -> Ints:
    """Who tells of the step, ascending, also those without a collective in it."""
    return np.unique(_concatenate([block.ranks for block in step]))


def stack(step: Step) -> tuple[Rows, Kinds]:
    """The rows of a step, and what kinds there are."""
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
    """The rows by the first column and then by the other, whose values are from 0 to below `bound`; what is the same in
    both stays in its order. One sort of one column takes a tenth of the time of one of two.
    """
    return np.argsort(first * max(1, bound) + then, kind="stable")


def number_codes(codes: Ints, bound: int) -> tuple[Ints, Ints]:
    """The codes there are, ascending, and for each row the number of its own among them. Codes are from 0 to below
    `bound`.
    """
    if bound > max(DENSE_CODES_MIN, DENSE_CODES_PER_ROW * len(codes)):
        return np.unique(codes, return_inverse=True)
    is_there = np.zeros(max(1, bound), dtype=bool)
    is_there[codes] = True
    numbers = np.cumsum(is_there) - 1
    return np.flatnonzero(is_there), numbers[codes]


def count_within(*sorted_keys: Ints) -> Ints:
    """For each row how many with the same keys come before it; rows with the same keys follow each other."""
    row = np.arange(len(sorted_keys[0]))
    begins = differs_from_previous(*sorted_keys)
    return row - np.maximum.accumulate(np.where(begins, row, 0))


def number_rows(*columns: npt.NDArray[Any]) -> Ints:
    """The same number for rows that are the same in every column."""
    order = np.lexsort(columns)
    numbers = np.empty(len(order), dtype=np.int64)
    numbers[order] = np.cumsum(differs_from_previous(*(column[order] for column in columns))) - 1
    return numbers


def differs_from_previous(*columns: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """For each row whether it differs from the one before in any column; the first row does."""
    differs = np.ones(len(columns[0]), dtype=bool)
    differs[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return differs


class _Numbers:
    """Numbers that all ranks share for names, given out as they come up."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._number: dict[str, int] = {}

    def read(self, names: NameLists, index: Ints) -> Ints:
        """For each row its indices, by the names of the row, as those numbers; both have shape (rows, n)."""
        if not index.size:
            return index
        width = max(map(len, names.lists))
        numbers = [[self._give(name) for name in one] + [0] * (width - len(one)) for one in names.lists]
        return np.asarray(np.array(numbers, dtype=np.int64)[names.row[:, np.newaxis], index])

    def _give(self, name: str) -> int:
        number = self._number.get(name)
        if number is None:
            number = self._number[name] = len(self.names)
            self.names.append(name)
        return number


def _join(step: Step) -> list[CollectiveBlock]:
    """As few blocks as may be: of ranks that tell of as many collectives. What a rank has told again is left out."""
    ranks = _concatenate([block.ranks for block in step])
    if len(ranks) and len(np.unique(ranks)) < len(ranks):
        step = _leave_out_former(step, ranks)
    alike: dict[int, list[CollectiveBlock]] = {}
    for block in step:
        alike.setdefault(block.op.shape[1], []).append(block)
    return [_join_alike(blocks) for blocks in alike.values()]


def _leave_out_former(step: Step, ranks: Ints) -> Step:
    last = np.zeros(int(ranks.max()) + 1, dtype=np.int64)
    last[ranks] = np.arange(len(ranks))
    is_last = np.split(last[ranks] == np.arange(len(ranks)), np.cumsum([len(block.ranks) for block in step])[:-1])
    return [block.take(np.flatnonzero(rows)) for block, rows in zip(step, is_last, strict=True)]


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
    """The columns rank, group, op, place and the others of a block, row under row."""
    count = block.op.shape[1]
    group, op = groups.read(block.groups, block.group), ops.read(block.ops, block.op)
    columns = (group, op, block.group, block.sequence, block.start_ns)
    others = (block.duration_ns, block.size_bytes, block.exposed_ns)
    return np.repeat(block.ranks, count), *(column.reshape(-1) for column in (*columns, *others))


def _find_order(rank: Ints, kind: Ints, start_ns: Ints, kinds: int) -> Ints:
    """The rows by rank, kind and start. Mostly each rank's are in the order of their start."""
    if not np.all((start_ns[1:] >= start_ns[:-1]) | (rank[1:] != rank[:-1])):
        return np.lexsort((start_ns, kind, rank))
    return order_by(rank, kind, kinds)


def _number_operations(kind: Ints, number: Ints, numbered: npt.NDArray[np.bool_], kinds: int) -> Ints:
    """The same number for rows of one operation: of one kind, with one sequence or, without, one place."""
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
