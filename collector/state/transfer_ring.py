"""What the data movement of each process group took, step by step: a ring of steps, one column per group."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from rankscope.collector.detect.series import Floats, Ints
from rankscope.collector.detect.transfers import GroupTransfers
from rankscope.collector.detect.waits import KindWaits
from rankscope.measure.communication import bus_factor
from rankscope.measure.records import SYNCHRONISING_OPS

GROUPS_MAX: Final = 4096
"""Process groups kept of a run, 8 KiB each: 16,384 ranks in tensor parallel groups of eight have 2,048 of them, and a
few dozen of every other dimension."""
GROUPS_AT_FIRST: Final = 16
"""Room for the groups of a small run; it is doubled when it is full."""
QUANTITIES: Final = len(GroupTransfers._fields)


class TransferRing:
    """The transfers of the last `steps_kept` steps of at most `groups_max` groups, by slot; NaN where not known."""

    def __init__(self, steps_kept: int, groups_max: int = GROUPS_MAX) -> None:
        self._groups_max = groups_max
        self._column: dict[str, int] = {}
        self._values: Floats = np.full((QUANTITIES, steps_kept, min(GROUPS_AT_FIRST, groups_max)), np.nan)
        self.left_out = 0
        """How often a group had no place: once a step for each group beyond the bound."""

    def put(self, slot: int, kinds: Iterable[KindWaits], group_sizes: Mapping[str, int]) -> None:
        """The collectives of a resolved step. A group of which some were not matched is not known in this step."""
        for group, quantities in sum_groups(kinds, group_sizes).items():
            column = self._place(group)
            if column is None:
                self.left_out += 1
            else:
                self._values[:, slot, column] = quantities

    def _place(self, group: str) -> int | None:
        column = self._column.get(group)
        if column is None and len(self._column) < self._groups_max:
            column = self._column[group] = len(self._column)
            if column == self._values.shape[2]:
                more = np.full_like(self._values, np.nan)[:, :, : self._groups_max - column]
                self._values = np.concatenate([self._values, more], axis=2)
        return column

    def clear(self, slots: Ints) -> None:
        """Other steps take these slots."""
        self._values[:, slots] = np.nan

    def read(self, slots: Ints) -> GroupTransfers:
        """What is known of these slots, in their order; groups of which nothing is known there are left out."""
        there = self._values[:, slots, : len(self._column)]
        known = ~np.isnan(there[0]).all(axis=0)
        columns = {group: column for group, column in self._column.items() if known[column]}
        return GroupTransfers(*({group: values[:, column] for group, column in columns.items()} for values in there))


def sum_groups(kinds: Iterable[KindWaits], group_sizes: Mapping[str, int]) -> dict[str, Sequence[float]]:
    """By group what the collectives of one step came to, in the order of GroupTransfers.

    Transfer and bytes are the same on all members, so those of the first one count. What was exposed is not: the least
    of any member counts, since that one would have held up the others had the transfer been shorter.
    """
    first: dict[tuple[str, str], KindWaits] = {}
    exposed_ns: dict[str, dict[int, int]] = {}
    unmatched: set[str] = set()
    for kind in kinds:
        if kind.op not in SYNCHRONISING_OPS:
            continue
        if kind.matched < kind.calls:
            unmatched.add(kind.group)
        first.setdefault((kind.group, kind.op), kind)
        members = exposed_ns.setdefault(kind.group, {})
        members[kind.rank] = members.get(kind.rank, 0) + kind.exposed_transfer_ns
    found: dict[str, list[float]] = {}
    for (group, op), kind in first.items():
        if group in unmatched:
            continue
        size_bytes = float("nan") if kind.size_bytes is None else float(kind.size_bytes)
        sums = found.setdefault(group, [0.0, 0.0, 0.0, float(min(exposed_ns[group].values()))])
        sums[0] += kind.transfer_ns
        sums[1] += size_bytes
        sums[2] += size_bytes * (bus_factor(op, group_sizes[group]) or 0.0)
    return dict(found)
