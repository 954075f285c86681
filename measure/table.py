"""Hold a small table of integers that is sent as one block of bytes.

Decoding rows of structs costs a collector 31 us a report, the same numbers as a block 2 us. The columns carry their
names, so that a column can be added without a new protocol number and a reader asks for those it knows.

numpy is imported only where a table is read: a program that only sends messages stays 15 MB smaller.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from rankscope.measure.bounds import ColumnNames
from rankscope.measure.errors import DecodeError, DecodeReason

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Column = npt.NDArray[np.int64]

MISSING = -(2**63)
"""Value for None in a table: not measured. No measured value comes near it."""

COLUMNS_MAX = 64


class Table(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Integers in columns: `names[i]` names the i-th column, `data` holds column after column, little-endian int64."""

    names: ColumnNames = ()
    row_count: int = 0
    data: bytes = b""

    @classmethod
    def from_rows(cls, names: Sequence[str], rows: Sequence[Sequence[int | None]]) -> "Table":
        """Pack rows of equal length; None becomes MISSING.

        >>> Table.from_rows(("step", "bytes"), [(7, None), (8, 64)]).column("bytes").tolist()[1]
        64
        """
        return cls.from_columns(names, list(zip(*rows, strict=True)) if rows else [()] * len(names))

    @classmethod
    def from_columns(cls, names: Sequence[str], columns: Sequence[Sequence[int | None]]) -> "Table":
        """Pack columns of equal length, one for each name; None becomes MISSING.

        >>> Table.from_columns(("step", "bytes"), [(7, 8), (None, 64)]).column("step").tolist()
        [7, 8]
        """
        row_count = len(columns[0]) if columns else 0
        packed = struct.Struct(f"<{row_count}q")
        data = b"".join(
            packed.pack(*([MISSING if value is None else value for value in column] if None in column else column))
            for column in columns
        )
        return cls(tuple(names), row_count, data)

    def check(self) -> None:
        """Raise DecodeError unless the sizes agree."""
        if len(self.names) > COLUMNS_MAX or len(set(self.names)) != len(self.names):
            raise DecodeError(
                DecodeReason.BAD_TABLE, f"{len(self.names)} columns, the limit is {COLUMNS_MAX}, each once"
            )
        if self.row_count and not self.names:
            # Nothing else bounds the rows of no columns, and `column` makes an array of that many.
            raise DecodeError(DecodeReason.BAD_TABLE, f"{self.row_count} rows were announced, and no column")
        expected = 8 * self.row_count * len(self.names)
        if self.row_count < 0 or len(self.data) != expected:
            raise DecodeError(DecodeReason.BAD_TABLE, f"{len(self.data)} bytes of data where {expected} were announced")

    def column(self, name: str) -> "Column":
        """Return the column of that name, shape (row_count,); all MISSING when the sender has no such column."""
        import numpy as np  # noqa: PLC0415

        if name not in self.names:
            return np.full(self.row_count, MISSING, dtype=np.int64)
        start = self.names.index(name) * self.row_count
        return np.frombuffer(self.data, dtype="<i8", count=self.row_count, offset=8 * start).astype(np.int64)

    def columns(self) -> "Mapping[str, Column]":
        """Return every column by its name."""
        return {name: self.column(name) for name in self.names}
