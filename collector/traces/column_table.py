"""Tables of a trace that may have millions of rows: columns of numpy, of which a row is an object while it is used."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, overload

import msgspec
import numpy as np
import numpy.typing as npt

from rankscope.measure.kineto import NONE, Codes, Ints
from rankscope.measure.rank_view import Bools

Row = TypeVar("Row")
CHUNK_ROWS = 10_000
"""Rows that are objects at a time, about 10 MB of them."""


class Numbers(NamedTuple):
    """Whole numbers, and of which rows they are known."""

    numbers: Ints
    known: Bools


class Texts(NamedTuple):
    """Texts that repeat: the place of each in `names`, which differ; NONE where there is none."""

    codes: Codes
    names: Sequence[str]


Column: TypeAlias = Ints | Numbers | Texts


def number_column(values: Ints) -> Numbers:
    """Return the column of numbers that are NONE where they are not known."""
    return Numbers(values, values != NONE)


def text_column(codes: npt.NDArray[Any], names: Sequence[str]) -> Texts:
    """Return the column of these names, NONE for none, with only those that occur, each once.

    >>> text_column(np.array([2, -1, 2, 0]), ["b", "a", "b"])
    Texts(codes=array([ 0, -1,  0,  0], dtype=int32), names=['b'])
    """
    used, which = np.unique(codes, return_inverse=True)
    kept: dict[str, int] = {}
    new = [NONE if code == NONE else kept.setdefault(names[code], len(kept)) for code in used.tolist()]
    return Texts(np.array(new, dtype=np.int32)[which.reshape(-1)] if len(used) else codes.astype(np.int32), list(kept))


class ColumnTable(Sequence[Row], Generic[Row]):
    """Rows of `row_type`, which takes its fields by name. `links` are the columns whose numbers are places of rows."""

    def __init__(self, row_type: type[Row], columns: Mapping[str, Column], links: Sequence[str] = ()) -> None:
        """Hold these columns, which have equal lengths."""
        self.columns = columns
        self.links = links
        self._row_type = row_type
        first = next(iter(columns.values()))
        self._length = len(first) if isinstance(first, np.ndarray) else len(first[0])

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._length

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> list[Row]: ...
    def __getitem__(self, place: int | slice) -> Row | list[Row]:
        """Return a row, or the list of some."""
        if isinstance(place, slice):
            rows = range(self._length)[place]
            lists = (_to_list(column, np.array(rows, dtype=np.int64)) for column in self.columns.values())
            return [self._row_type(**dict(zip(self.columns, row, strict=True))) for row in zip(*lists, strict=True)]
        place = range(self._length)[place]
        return self[place : place + 1][0]

    def __iter__(self) -> Iterator[Row]:
        """Yield the rows, of which CHUNK_ROWS are made at a time."""
        return chain.from_iterable(self._chunks())

    def _chunks(self) -> Iterator[list[Row]]:
        return (self[first : first + CHUNK_ROWS] for first in range(0, self._length, CHUNK_ROWS))

    def read(self, name: str) -> list[Any]:
        """Return one column as values of Python, None where they are not known."""
        return _to_list(self.columns[name], slice(None))

    def to_json(self) -> msgspec.Raw:
        """Return the rows as JSON."""
        return msgspec.Raw(b"[" + b",".join(msgspec.json.encode(rows)[1:-1] for rows in self._chunks()) + b"]")

    def to_pandas(self) -> Any:
        """Return the rows as a DataFrame: numbers that may be missing are Int64, texts categories. Needs pandas."""
        import pandas as pd  # noqa: PLC0415 - an optional dependency

        def convert(column: Column) -> Any:
            if isinstance(column, Numbers):
                return pd.arrays.IntegerArray(column.numbers, ~column.known)
            return pd.Categorical.from_codes(*column) if isinstance(column, Texts) else column

        return pd.DataFrame({name: convert(column) for name, column in self.columns.items()})


def encode_table(value: Any) -> msgspec.Raw:
    """Return a table inside of a report as JSON: a hook for `msgspec.json.encode`. Raises NotImplementedError for what
    is none.
    """
    if isinstance(value, ColumnTable):
        return value.to_json()
    raise NotImplementedError(type(value))


def join_tables(tables: Sequence[tuple[int | None, ColumnTable[Any]]]) -> ColumnTable[dict[str, Any]]:
    """Return the rows of several ranks, one table behind the other, as mappings with the rank in front. Links are to
    the rows of the whole.
    """
    ranks = [np.full(len(table), NONE if rank is None else rank, dtype=np.int64) for rank, table in tables]
    columns: dict[str, Column] = {"rank": number_column(np.concatenate(ranks))}
    first = np.cumsum([0, *(len(table) for _, table in tables)])
    for name in tables[0][1].columns:
        parts = [table.columns[name] for _, table in tables]
        if name in tables[0][1].links:
            parts = [_shift(part, int(by)) for part, by in zip(parts, first, strict=False)]
        columns[name] = _join(parts)
    return ColumnTable(dict, columns)


def _to_list(column: Column, rows: Any) -> list[Any]:
    if isinstance(column, Texts):
        names = (*column.names, None)  # NONE, -1, is the last place
        return [names[code] for code in column.codes[rows].tolist()]
    if isinstance(column, Numbers):
        values = column.numbers[rows].tolist()
        return [value if known else None for value, known in zip(values, column.known[rows].tolist(), strict=True)]
    found: list[Any] = column[rows].tolist()
    return found


def _shift(column: Column, by: int) -> Column:
    return column._replace(numbers=column.numbers + by) if isinstance(column, Numbers) else column + by  # type: ignore[operator]


def _join(parts: Sequence[Any]) -> Column:
    if isinstance(parts[0], Texts):
        first = np.cumsum([0, *(len(part.names) for part in parts)]).tolist()
        codes = [np.where(part.codes == NONE, NONE, part.codes + by) for part, by in zip(parts, first, strict=False)]
        return text_column(np.concatenate(codes), [name for part in parts for name in part.names])
    if isinstance(parts[0], Numbers):
        return Numbers(*(np.concatenate(of) for of in zip(*parts, strict=True)))
    joined: Ints = np.concatenate(parts)
    return joined
