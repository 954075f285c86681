"""Make one block of the tables of many reports. Pure."""

from collections.abc import Iterator, Sequence

import numpy as np

from rankscope.measure.table import Table, TableBlock


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
