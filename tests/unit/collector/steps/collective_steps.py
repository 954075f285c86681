"""Steps of collectives written down rank by rank, and what became of them read back so."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rankscope.collector.steps.collectives import COLUMNS, CollectiveBlock, NameLists
from rankscope.collector.steps.step_series import Ints
from rankscope.collector.steps.wait_times import KindColumns, split_waits
from rankscope.measure.table import MISSING


class RankCollectives(NamedTuple):
    """The collectives of one rank in one step: columns of equal length. `group` and `op` index the lists of names."""

    groups: Sequence[str]
    ops: Sequence[str]
    group: Ints
    op: Ints
    sequence: Ints
    start_ns: Ints
    duration_ns: Ints
    size_bytes: Ints
    exposed_ns: Ints


class KindWaits(NamedTuple):
    """A row of KindColumns: one kind of collective of one rank. `size_bytes` is None where it is not known."""

    rank: int
    group: str
    op: str
    calls: int
    duration_ns: int
    size_bytes: int | None
    matched: int
    wait_ns: int
    transfer_ns: int
    matched_bytes: int
    exposed_transfer_ns: int


class ReadWaits(NamedTuple):
    """The exposed waiting by rank, None where it is not known, and what its kinds came to."""

    exposed_ns: dict[int, int | None]
    kinds: list[KindWaits]


def step_of(by_rank: Mapping[int, RankCollectives]) -> list[CollectiveBlock]:
    """A block for each rank."""
    return [
        CollectiveBlock(
            np.array([rank]),
            NameLists.of([tuple(found.groups)]),
            NameLists.of([tuple(found.ops)]),
            *(getattr(found, name)[np.newaxis] for name in COLUMNS),
        )
        for rank, found in by_rank.items()
    ]


def split_ranks(
    by_rank: Mapping[int, RankCollectives], group_sizes: Mapping[str, int], host_groups: Collection[str] = ()
) -> ReadWaits:
    """`split_waits`, rank by rank."""
    waits = split_waits(step_of(by_rank), group_sizes, host_groups)
    known = zip(waits.ranks.tolist(), waits.exposed_ns.tolist(), strict=True)
    exposed_ns = {rank: None if np.isnan(wait_ns) else int(wait_ns) for rank, wait_ns in known}
    return ReadWaits(exposed_ns, rows_of(waits.kinds))


def rows_of(columns: KindColumns) -> list[KindWaits]:
    """Kinds row by row."""
    found = []
    for rank, kind, *numbers in zip(*(one.tolist() for one in columns[1:]), strict=True):
        row = KindWaits(rank, *columns.kinds[kind], *numbers)
        found.append(row._replace(size_bytes=None) if row.size_bytes == MISSING else row)
    return found


def columns_of(rows: Iterable[KindWaits]) -> KindColumns:
    """Kinds written down row by row, as columns."""
    told = list(rows)
    kinds = list(dict.fromkeys((row.group, row.op) for row in told))
    numbers = [
        (row.rank, kinds.index((row.group, row.op)), *(MISSING if value is None else value for value in row[3:]))
        for row in told
    ]
    table = np.array(numbers, dtype=np.int64).reshape(-1, len(KindColumns._fields) - 1)
    return KindColumns(kinds, *table.T)
