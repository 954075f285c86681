"""Tell how many of a trace's tables are made, while they are: of a large trace some take seconds."""

from collections.abc import Callable
from typing import Final, TypeVar

TABLES: Final = 26
"""Tables of one trace, with those that are only made when asked for: these are told at once."""
Table = TypeVar("Table")


class MadeTables:
    """Counts the tables that are made, and tells `on_part` which part of all they are, up to 1."""

    def __init__(self, on_part: Callable[[float], None] | None) -> None:
        """Begin without any; None tells nobody."""
        self._on_part = on_part
        self._count = 0

    def __call__(self, table: Table) -> Table:
        """Return the table, counted."""
        self._count += 1
        if self._on_part is not None:
            self._on_part(min(1.0, self._count / TABLES))
        return table
