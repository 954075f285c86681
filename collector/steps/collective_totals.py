"""Sum the collectives of all ranks of an attempt by kind: one row for each rank and kind, in columns. Pure.

A step of 16,384 ranks with two kinds of collective has 32,768 rows; columns take 0.15 KB and objects 1 KB a rank.
Arrays that a snapshot refers to are never changed: adding a step makes new sums.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from rankscope.collector.invariants import require
from rankscope.collector.steps.collectives import count_within
from rankscope.collector.steps.step_series import Ints
from rankscope.collector.steps.wait_times import KindColumns
from rankscope.measure.communication import bus_factor
from rankscope.measure.records import SYNCHRONIZING_OPS
from rankscope.measure.table import MISSING
from rankscope.measure.units import ns_to_s

KINDS_MAX: Final = 64
"""Kinds of collective (group, op) kept for a rank; a rank of a 5-dimensional mesh has about 20."""
KINDS_OF_RUN_MAX: Final = 2**16
"""Kinds that get a number: 16,384 ranks with 20 kinds in groups of eight have 41,000. Names come from the ranks, so
they are bounded."""

RANK_BITS: Final = 32
"""A row's key is its rank, shifted left by this many bits, and the number of its kind."""

SUMMED: Final = ("calls", "duration_ns", "matched", "wait_ns", "transfer_ns")
"""Columns that are summed over steps."""
SIZE, IS_SIZED, LAST_BYTES, LAST_TRANSFER_NS = range(len(SUMMED), len(SUMMED) + 4)
"""The other columns: bytes of the steps that reported them, whether any did, and the bytes and transfer time of the
last step in which transfer could be separated from waiting."""
COLUMN_COUNT: Final = LAST_TRANSFER_NS + 1

_ROW: Final = struct.Struct(f"<{1 + COLUMN_COUNT}q")

KEPT_BETWEEN_COLLECTORS: Final = LAST_BYTES
"""The first columns, which the next collector restores; the last step is measured anew."""

Kind = tuple[str, str]


class CollectiveTotals(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Totals of one kind of collective of one rank. None: never measured. `matched` of the `count` calls were found on
    all members of the group, and only those have waiting and transfer.
    """

    group: str
    op: str
    count: int
    duration_ns: int
    bytes: int | None = None
    matched: int = 0
    wait_ns: int | None = None
    transfer_ns: int | None = None
    bus_bandwidth_bytes_per_s: float | None = None


class SavedCounts(msgspec.Struct, frozen=True, array_like=True):
    """Stored form of the sums of an attempt: the kinds by number, and the key and columns of each row as little-endian
    64-bit integers.
    """

    kinds: tuple[Kind, ...]
    keys: bytes
    sums: bytes

    def read(self) -> tuple[Ints, Ints]:
        """Return keys, shape (rows), and sums, shape (rows, columns). Raises ValueError where they are inconsistent."""
        keys: Ints = np.frombuffer(self.keys, dtype="<i8")
        sums: Ints = np.frombuffer(self.sums, dtype="<i8").reshape(len(keys), COLUMN_COUNT)
        numbers = keys & ((1 << RANK_BITS) - 1)
        is_in_order = bool((keys >= 0).all() and (keys[1:] > keys[:-1]).all())
        if len(keys) and not (is_in_order and int(numbers.max()) < len(self.kinds)):
            raise ValueError("the rows are not in the order of ranks and kinds, or of kinds that have no name")
        return keys, sums


class CollectiveSums(NamedTuple):
    """The sums at one time, after `steps` steps with collectives. Never changed."""

    steps: int
    kinds: tuple[Kind, ...]
    keys: Ints
    sums: Ints

    def pack(self) -> bytes:
        """Return them as the store keeps them."""
        keys, sums = (column.astype("<i8", copy=False).tobytes() for column in (self.keys, self.sums))
        return msgspec.msgpack.encode(SavedCounts(self.kinds, keys, sums))


class KindMeans(NamedTuple):
    """Means over the matched calls of one kind, of all ranks: how long the data moved, and how long a rank waited for
    others, in ns a call.
    """

    matched: int
    transfer_ns: float
    wait_ns: float


class KindTime(NamedTuple):
    """All measured calls of one kind, of all ranks, matched or not: how many, and how long they lasted together, in ns
    with waiting.
    """

    calls: int
    duration_ns: int


def sum_by_kind(saved: SavedCounts) -> dict[Kind, KindTime]:
    """Return the sums of each kind of which calls were measured."""
    keys, sums = saved.read()
    numbers = keys & ((1 << RANK_BITS) - 1)
    calls, durations_ns = (sums[:, SUMMED.index(name)] for name in ("calls", "duration_ns"))
    found = {}
    for number, kind in enumerate(saved.kinds):
        rows = numbers == number
        if int(calls[rows].sum()):
            found[kind] = KindTime(int(calls[rows].sum()), int(durations_ns[rows].sum()))
    return found


def average_by_kind(saved: SavedCounts) -> dict[Kind, KindMeans]:
    """Return the means of each kind of which calls were matched, in the order of their names."""
    keys, sums = saved.read()
    numbers = keys & ((1 << RANK_BITS) - 1)
    matched, waits, transfers = (sums[:, SUMMED.index(name)] for name in ("matched", "wait_ns", "transfer_ns"))
    found = {}
    for number, kind in sorted(enumerate(saved.kinds), key=lambda one: one[1]):
        rows = numbers == number
        count = int(matched[rows].sum())
        if count:
            found[kind] = KindMeans(count, float(transfers[rows].sum()) / count, float(waits[rows].sum()) / count)
    return found


def unpack_counts(body: bytes) -> SavedCounts:
    """Return what `pack` made. Raises ValueError for anything else."""
    try:
        saved = msgspec.msgpack.decode(body, type=SavedCounts)
    except msgspec.DecodeError as error:
        raise ValueError(f"no packed counts of collectives: {error}") from error
    saved.read()
    return saved


class CollectiveSnapshot(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The totals of all ranks at one time. Never changed."""

    #: The kinds by number.
    kinds: tuple[Kind, ...] = ()
    #: The rows of rank r are `firsts[r]` to `firsts[r + 1]`; shape (ranks + 1), empty without any.
    firsts: tuple[int, ...] = ()
    #: Rows of the number of a kind and its sums, shape (rows, 1 + COLUMN_COUNT), little-endian 64-bit integers.
    rows: bytes = b""
    #: Members of each group.
    group_sizes: Mapping[str, int] = {}

    @classmethod
    def of_sums(
        cls, kinds: Sequence[Kind], keys: Ints, sums: Ints, group_sizes: Mapping[str, int]
    ) -> "CollectiveSnapshot":
        """Return the totals of these rows, whose keys ascend."""
        ranks_end = int(keys[-1] >> RANK_BITS) + 1 if len(keys) else 0
        firsts = np.searchsorted(keys, np.arange(ranks_end + 1) << RANK_BITS).tolist()
        rows = np.column_stack([keys & ((1 << RANK_BITS) - 1), sums]).astype("<i8", copy=False)
        return cls(tuple(kinds), tuple(firsts), rows.tobytes(), dict(group_sizes))

    def of(self, rank: int) -> tuple[CollectiveTotals, ...]:
        """Return one rank's collectives by kind, in the order of their names."""
        if rank + 1 >= len(self.firsts):
            return ()
        first, end = self.firsts[rank : rank + 2]
        rows = _ROW.iter_unpack(self.rows[first * _ROW.size : end * _ROW.size])
        kinds = sorted([(self.kinds[number], sums) for number, *sums in rows])
        return tuple([_build(kind, sums, self.group_sizes) for kind, sums in kinds])


class CollectiveCounts:
    """Sums of the collectives of each rank. Written by Attempt only."""

    def __init__(self) -> None:
        self._number: dict[Kind, int] = {}
        self._kinds: list[Kind] = []
        self._keys: Ints = np.empty(0, dtype=np.int64)
        self._sums: Ints = np.empty((0, COLUMN_COUNT), dtype=np.int64)
        self._steps = 0
        self._snapshot: tuple[Ints, int, CollectiveSnapshot] | None = None

    def add(self, step: KindColumns) -> None:
        """Add the collectives of one step."""
        number = np.array([self._number_of(kind) for kind in step.kinds], dtype=np.int64)[step.kind]
        rows = np.flatnonzero(number >= 0)
        if not len(rows):
            return
        self._steps += 1
        keys = (step.rank[rows] << RANK_BITS) | number[rows]
        order = np.argsort(keys, kind="stable")
        keys, rows = keys[order], rows[order]
        if not np.array_equal(keys, self._keys):
            self._add_keys(keys)
        places = np.searchsorted(self._keys, keys)
        places = np.minimum(places, len(self._keys) - 1)
        has_place = self._keys[places] == keys
        self._add_rows(step, rows[has_place], places[has_place])

    def validate(self) -> None:
        """Raise InvariantError where an invariant does not hold; tests call it after events."""
        require(len(self._keys) == len(self._sums), "keys and sums differ in length")
        require(bool((self._keys[1:] > self._keys[:-1]).all()), "keys do not ascend")
        require(self._number == {kind: number for number, kind in enumerate(self._kinds)}, "kinds and numbers differ")
        require(bool((self._sums >= 0).all()), "a negative sum")
        numbers = self._keys & ((1 << RANK_BITS) - 1)
        require(int(numbers.max(initial=-1)) < len(self._kinds), "a row of an unknown kind")

    def read(self) -> CollectiveSums:
        """Return the sums of this time, to be saved."""
        return CollectiveSums(self._steps, tuple(self._kinds), self._keys, self._sums)

    def restore(self, saved: SavedCounts, ranks: int) -> None:
        """Restore the sums that an earlier collector saved for the first `ranks` ranks."""
        keys, sums = saved.read()
        rows = int(np.searchsorted(keys, ranks << RANK_BITS))
        keys, sums = keys[:rows], sums[:rows]
        self._kinds, self._number = list(saved.kinds), {kind: number for number, kind in enumerate(saved.kinds)}
        self._keys, self._sums = keys.astype(np.int64), sums.astype(np.int64)
        self._sums[:, KEPT_BETWEEN_COLLECTORS:] = 0

    def snapshot(self, group_sizes: Mapping[str, int]) -> CollectiveSnapshot:
        """Return the totals of this time; the same object until a step or a group is added."""
        if self._snapshot is None or self._snapshot[0] is not self._sums or self._snapshot[1] != len(group_sizes):
            made = CollectiveSnapshot.of_sums(self._kinds, self._keys, self._sums, group_sizes)
            self._snapshot = self._sums, len(group_sizes), made
        return self._snapshot[2]

    def _number_of(self, kind: Kind) -> int:
        number = self._number.get(kind)
        if number is None:
            if len(self._kinds) >= KINDS_OF_RUN_MAX:
                return -1
            number = self._number[kind] = len(self._kinds)
            self._kinds.append(kind)
        return number

    def _add_keys(self, keys: Ints) -> None:
        """Insert rows for these ascending keys, for ranks that have fewer than KINDS_MAX kinds."""
        new = np.setdiff1d(keys, self._keys, assume_unique=True)
        ranks = new >> RANK_BITS
        had = np.searchsorted(self._keys, (ranks + 1) << RANK_BITS) - np.searchsorted(self._keys, ranks << RANK_BITS)
        new = new[had + count_within(ranks) < KINDS_MAX]
        if len(new):
            places = np.searchsorted(self._keys, new)
            self._keys = np.insert(self._keys, places, new)
            self._sums = np.insert(self._sums, places, 0, axis=0)

    def _add_rows(self, step: KindColumns, rows: Ints, places: Ints) -> None:
        """Add these rows of a step to the rows at `places`, each of which occurs once."""
        sums = self._sums.copy()
        for column, name in enumerate(SUMMED):
            sums[places, column] += getattr(step, name)[rows]
        size_bytes = step.size_bytes[rows]
        is_sized = size_bytes != MISSING
        sums[places, SIZE] += np.where(is_sized, size_bytes, 0)
        sums[places, IS_SIZED] |= is_sized
        has_rate = (step.matched_bytes[rows] > 0) & (step.transfer_ns[rows] > 0)
        sums[places[has_rate], LAST_BYTES] = step.matched_bytes[rows][has_rate]
        sums[places[has_rate], LAST_TRANSFER_NS] = step.transfer_ns[rows][has_rate]
        self._sums = sums


def _build(kind: Kind, row: Sequence[int], group_sizes: Mapping[str, int]) -> CollectiveTotals:
    group, op = kind
    calls, duration_ns, matched, wait_ns, transfer_ns, size_bytes, is_sized, last_bytes, last_transfer_ns = row
    size = group_sizes.get(group, 0)
    # Of the others transfer cannot be has_rate from waiting.
    factor = bus_factor(op, size) if op in SYNCHRONIZING_OPS else None
    bandwidth = None
    if last_transfer_ns and factor is not None and size > 1:
        bandwidth = last_bytes / ns_to_s(last_transfer_ns) * factor
    return CollectiveTotals(
        group=group,
        op=op,
        count=calls,
        duration_ns=duration_ns,
        bytes=size_bytes if is_sized else None,
        matched=matched,
        wait_ns=wait_ns if matched else None,
        transfer_ns=transfer_ns if matched else None,
        bus_bandwidth_bytes_per_s=bandwidth,
    )
