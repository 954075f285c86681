"""Keep the transfer times of each process group, step by step: a ring of steps, one column per group. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from rankscope.collector.steps.collectives import differs_from_previous, order_by
from rankscope.collector.steps.step_series import Floats, Ints
from rankscope.collector.steps.wait_times import KindColumns
from rankscope.measure.communication import bus_factor
from rankscope.measure.records import SYNCHRONIZING_OPS
from rankscope.measure.table import MISSING


class GroupTransfers(NamedTuple):
    """Sums over the matched synchronizing collectives of each process group in each step of a series: shape (n,), NaN
    where a step is not known.

    `ns` is the transfer time, `size_bytes` the bytes moved, `bus_bytes` the bytes times the bus factor of the operation
    (`bus_bytes` over transfer is the bus bandwidth; a barrier moves nothing), `exposed_ns` the exposed transfer of the
    member with the least.
    """

    ns: Mapping[str, Floats] = {}
    size_bytes: Mapping[str, Floats] = {}
    bus_bytes: Mapping[str, Floats] = {}
    exposed_ns: Mapping[str, Floats] = {}


GROUPS_MAX: Final = 4096
"""Process groups kept of a run, 32 bytes each in every known step: 16,384 ranks in tensor parallel groups of eight have
2,048 of them, and a few dozen of every other dimension."""
QUANTITIES: Final = len(GroupTransfers._fields)


class TransferRing:
    """The transfers of steps in `slots` slots, of at most `groups_max` groups; NaN where not known. Memory is used only
    for slots with known transfers: two of twenty as a rule, and all where the flight recorder times collectives.
    """

    def __init__(self, slots: int, groups_max: int = GROUPS_MAX) -> None:
        self._groups_max = groups_max
        self._column: dict[str, int] = {}
        self._kept: list[Floats | None] = [None] * slots
        self.dropped = 0
        """How often a group had no column: once a step for each group beyond `groups_max`."""

    def put(self, slot: int, kinds: KindColumns, group_sizes: Mapping[str, int], *, has_exposure: bool = True) -> None:
        """Store the collectives of a matched step. A group with unmatched collectives is unknown in this step; without
        `has_exposure` the exposed transfer of all is.
        """
        found = sum_groups(kinds, group_sizes)
        columns = [self._place(group) for group in found]
        values = np.full((QUANTITIES, len(self._column)), np.nan)
        known = [(column, sums) for column, sums in zip(columns, found.values(), strict=True) if column is not None]
        self.dropped += len(columns) - len(known)
        if known:
            values[:, [column for column, _ in known]] = np.array([sums for _, sums in known]).T
        if not has_exposure:
            values[GroupTransfers._fields.index("exposed_ns")] = np.nan
        self._kept[slot] = values

    def _place(self, group: str) -> int | None:
        column = self._column.get(group)
        if column is None and len(self._column) < self._groups_max:
            column = self._column[group] = len(self._column)
        return column

    def clear(self, slots: Ints) -> None:
        """Free these slots."""
        for slot in slots.tolist():
            self._kept[slot] = None

    def move(self, slots: Ints, to: Ints) -> None:
        """Move these slots to others, in the same order."""
        for slot, other in zip(slots.tolist(), to.tolist(), strict=True):
            self._kept[other], self._kept[slot] = self._kept[slot], None

    def read(self, slots: Ints) -> GroupTransfers:
        """Return the transfers of these slots, in their order, without groups of which nothing is known."""
        there = np.full((QUANTITIES, len(self._column), len(slots)), np.nan)
        for place, slot in enumerate(slots.tolist()):
            values = self._kept[slot]
            if values is not None:
                there[:, : values.shape[1], place] = values
        known = ~np.isnan(there[0]).all(axis=1)
        columns = {group: column for group, column in self._column.items() if known[column]}
        return GroupTransfers(*({group: values[column] for group, column in columns.items()} for values in there))


def sum_groups(kinds: KindColumns, group_sizes: Mapping[str, int]) -> dict[str, Sequence[float]]:
    """Return the sums of one step by group, in the order of GroupTransfers.

    The transfer is the same on all members, so that of the first one counts. Bytes of an all-to-all are not: the most
    of any member count, which the others wait for. Exposure is not either: the smallest of any member counts, since
    that one would have delayed the others had the transfer been shorter.
    """
    synchronizes = np.array([op in SYNCHRONIZING_OPS for _, op in kinds.kinds], dtype=bool)
    rows = np.flatnonzero(synchronizes[kinds.kind]) if len(kinds.kind) else kinds.kind
    names = list(dict.fromkeys(group for group, _ in kinds.kinds))
    number = {name: place for place, name in enumerate(names)}
    group = np.array([number[name] for name, _ in kinds.kinds], dtype=np.int64)[kinds.kind[rows]]
    unmatched = set(group[kinds.matched[rows] < kinds.calls[rows]].tolist())
    least_ns = _least_exposed(group, kinds.rank[rows], kinds.exposed_transfer_ns[rows], len(names))
    found: dict[str, list[float]] = {}
    firsts = rows[np.unique(kinds.kind[rows], return_index=True)[1]]
    most_bytes = np.full(len(kinds.kinds), MISSING)
    np.maximum.at(most_bytes, kinds.kind[rows], kinds.size_bytes[rows])
    for kind, transfer_ns in zip(kinds.kind[firsts].tolist(), kinds.transfer_ns[firsts].tolist(), strict=True):
        name, op = kinds.kinds[kind]
        size = int(most_bytes[kind])
        if number[name] in unmatched:
            continue
        size_bytes = float("nan") if size == MISSING else float(size)
        sums = found.setdefault(name, [0.0, 0.0, 0.0, float(least_ns[number[name]])])
        sums[0] += transfer_ns
        sums[1] += size_bytes
        sums[2] += size_bytes * (bus_factor(op, group_sizes[name]) or 0.0)
    return dict(found)


def _least_exposed(group: Ints, rank: Ints, exposed_ns: Ints, groups: int) -> Ints:
    """Return for each group the least that its operations together were exposed on any member."""
    least_ns = np.full(groups, np.iinfo(np.int64).max)
    if len(group):
        order = order_by(group, rank, int(rank.max()) + 1)
        firsts = np.flatnonzero(differs_from_previous(group[order], rank[order]))
        np.minimum.at(least_ns, group[order[firsts]], np.add.reduceat(exposed_ns[order], firsts))
    return least_ns
