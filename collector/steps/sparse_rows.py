"""Keep rows of a ring of steps of which few are known. Pure."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rankscope.collector.steps.step_series import Flags, Floats, Ints

CELLS_MAX: Final = 65_536
"""Cells read at once: half a megabyte."""


class SparseRows:
    """Rows of a ring of steps most of which stay unknown: waiting is measured in about two steps of twenty. Of 16,384
    ranks and 26 known steps of 256, rows take 1.7 MB where a whole block would take 16.

    `width` cells by slot, kept in type `cell`; a slot without a row is NaN throughout.
    """

    def __init__(self, width: int, cell: npt.DTypeLike) -> None:
        self._width = width
        self._cell = cell
        self._rows: dict[int, npt.NDArray[Any]] = {}

    def put(self, slot: int, row: Floats) -> None:
        """Store a row, shape (width,)."""
        self._rows[slot] = row.astype(self._cell)

    def update(self, slot: int, columns: Ints, values: Floats) -> int:
        """Store some cells of a row, and return how many of its cells are known then."""
        row = self._rows.get(slot)
        if row is None:
            row = self._rows[slot] = np.full(self._width, np.nan, dtype=self._cell)
        row[columns] = values
        return int(np.count_nonzero(~np.isnan(row)))

    def has(self, slots: Ints) -> Flags:
        """Return which of these slots have a row."""
        return np.array([slot in self._rows for slot in slots.tolist()], dtype=bool)

    def find(self, slots: Ints) -> dict[int, npt.NDArray[Any]]:
        """Return the known rows of these slots by the index of their slot in `slots`, as they are kept."""
        return {place: self._rows[slot] for place, slot in enumerate(slots.tolist()) if slot in self._rows}

    def clear(self, slots: Ints) -> None:
        """Free these slots."""
        for slot in slots.tolist():
            self._rows.pop(slot, None)

    def move(self, slots: Ints, to: Ints) -> None:
        """Move these slots to others that are free, in the same order."""
        for slot, other in zip(slots.tolist(), to.tolist(), strict=True):
            if slot in self._rows:
                self._rows[other] = self._rows.pop(slot)

    def blocks(self, slots: Ints) -> Iterator[tuple[Ints, Floats]]:
        """Return the known rows of these slots as 64-bit floats, shape (rows, width), with the indices of their slots
        in `slots`. Many narrow rows are one block; of many ranks a block has few, and takes little memory.
        """
        known = [(place, slot) for place, slot in enumerate(slots.tolist()) if slot in self._rows]
        rows_max = max(1, CELLS_MAX // self._width)
        for begin in range(0, len(known), rows_max):
            places, kept = zip(*known[begin : begin + rows_max], strict=True)
            rows = np.concatenate([self._rows[slot] for slot in kept]).reshape(len(kept), self._width)
            yield np.array(places), rows.astype(np.float64)

    def read(self, slots: Ints) -> Floats:
        """Return all rows of these slots, shape (slots, width), NaN where not known."""
        found = np.full((len(slots), self._width), np.nan)
        for places, rows in self.blocks(slots):
            found[places] = rows
        return found
