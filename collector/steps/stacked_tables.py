"""Make one block of the tables of many reports. Pure."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rankscope.measure.table import MISSING, Table


class TableBlock(NamedTuple):
    """Tables with the same columns and as many rows, as one array of shape (tables, columns, rows)."""

    names: tuple[str, ...]
    values: npt.NDArray[np.int64]

    def column(self, name: str) -> npt.NDArray[np.int64]:
        """Return the column of that name of every table, shape (tables, rows); all MISSING when there is none."""
        if name not in self.names:
            return np.full((self.values.shape[0], self.values.shape[2]), MISSING, dtype=np.int64)
        return self.values[:, self.names.index(name), :]


def stack_tables(tables: Sequence[Table]) -> Iterator[tuple[list[int], TableBlock]]:
    """Yield one block for all tables with the same columns and row count, with the places of these tables.

    >>> one, other = Table.from_rows(("step",), [(7,)]), Table.from_rows(("step",), [(8,)])
    >>> [(places, block.column("step").tolist()) for places, block in stack_tables([one, other])]
    [([0, 1], [[7], [8]])]
    """
    places: dict[tuple[tuple[str, ...], int], list[int]] = {}
    for place, table in enumerate(tables):
        places.setdefault((table.names, table.row_count), []).append(place)
    for (names, row_count), found in places.items():
        shape = len(found), len(names), row_count
        data = b"".join([tables[place].data for place in found])
        values = np.frombuffer(data, dtype="<i8").reshape(shape) if data else np.empty(shape, dtype=np.int64)
        yield found, TableBlock(names, values)
