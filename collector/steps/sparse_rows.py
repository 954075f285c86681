"""Rows of a ring of steps of which most are never known: waiting is measured in two steps of twenty.

Kept as a block for all steps, what is known of 16,384 ranks in 26 steps of 256 takes 16 MB; as rows it takes 1.7.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from rankscope.collector.steps.step_series import Floats, Ints


class SparseRows:
    """Rows of `width` cells by slot, kept as `cell` numbers; a slot that has no row is NaN throughout."""

    def __init__(self, width: int, cell: npt.DTypeLike) -> None:
        self._width = width
        self._cell = cell
        self._rows: dict[int, npt.NDArray[Any]] = {}

    def put(self, slot: int, row: Floats) -> None:
        """A row becomes known, shape (width,)."""
        self._rows[slot] = row.astype(self._cell)

    def clear(self, slots: Ints) -> None:
        """Other steps take these slots."""
        for slot in slots.tolist():
            self._rows.pop(slot, None)

    def move(self, slots: Ints, to: Ints) -> None:
        """The steps of these slots get others, in the same order, of which nothing is known."""
        for slot, other in zip(slots.tolist(), to.tolist(), strict=True):
            if slot in self._rows:
                self._rows[other] = self._rows.pop(slot)

    def items(self, slots: Ints) -> list[tuple[int, Floats]]:
        """The rows that are known of these slots, each with the place of its slot among them; whole floats."""
        there = enumerate(slots.tolist())
        return [(place, self._rows[slot].astype(np.float64)) for place, slot in there if slot in self._rows]

    def read(self, slots: Ints) -> Floats:
        """All rows of these slots, shape (slots, width), NaN where not known."""
        found = np.full((len(slots), self._width), np.nan)
        for place, row in self.items(slots):
            found[place] = row
        return found
