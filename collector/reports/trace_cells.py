"""Sections, columns and cells of the tables in reports.

A cell holds text and, for a number, the number to sort by. Unknown values are MISSING, never 0; a small number is never
shown as 0.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Literal, NamedTuple

from rankscope.measure.units import NS_PER_MS, NS_PER_US

MISSING = "-"
MIB, GB = 1 << 20, 10**9
UNITS = frozenset({"%", "GB/s", "MiB", "bytes", "ms", "times", "us", "x"})


class TableColumn(NamedTuple):
    """Head of a column. `unit` may be empty; text is aligned left, numbers right."""

    head: str
    unit: str
    align: Literal["left", "right"]


class Cell(NamedTuple):
    """Text of a cell and, for a number, the number to sort by; for a place in the code its file and line."""

    text: str
    order: float | None = None
    source: tuple[str, int] | None = None


Cells = tuple[Cell, ...]


class Section(NamedTuple):
    """One table. `reason` explains an empty one; `left_out` counts the rows that `top` cut off. `is_prose` marks the
    table of sentences, which a terminal shows as a list. `folded_as` is the line that a page shows in place of the
    table until it is opened; empty for a table that is always open.
    """

    key: str
    title: str
    explanation: str
    columns: tuple[TableColumn, ...]
    reason: str
    rows: tuple[Cells, ...] = ()
    left_out: int = 0
    is_prose: bool = False
    folded_as: str = ""

    def of(self, rows: Sequence[Cells], top: int, row_count: int | None = None) -> "Section":
        """Return this section with the first `top` rows. `row_count` is the number of all, where `rows` has fewer."""
        count = len(rows) if row_count is None else row_count
        return self._replace(rows=tuple(rows[:top]), left_out=max(count - top, 0))


def columns_of(heads: str) -> tuple[TableColumn, ...]:
    """Return columns from their heads: a unit is the last word, `<` marks a column of text.

    >>> columns_of("<kernel, total ms")
    (TableColumn(head='kernel', unit='', align='left'), TableColumn(head='total', unit='ms', align='right'))
    """
    columns = []
    for head in heads.split(", "):
        name, _, unit = head.lstrip("<").rpartition(" ")
        name, unit = (name, unit) if unit in UNITS else (head.lstrip("<"), "")
        columns.append(TableColumn(name, unit, "left" if head.startswith("<") else "right"))
    return tuple(columns)


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows of a plain table, heads first, each as a line: all columns aligned left.

    >>> align([("node", "gpu"), ("a", "0")])
    ['node  gpu', 'a     0']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


# -- cells ------------------------------------------------------------------------------------------------------------


def printable(text: str) -> str:
    r"""Return the text with control characters spelled out: names come from files and peers that are not trusted.

    >>> printable("gemm\x1b[2J <float>\n")
    'gemm\\x1b[2J <float>\\n'
    """
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def text_cell(value: str | int | None) -> Cell:
    """Return a cell of text, or of a number that is a name, such as a rank."""
    if value is None or value == "":
        return Cell(MISSING)
    return Cell(printable(str(value)), value if isinstance(value, int) else None)


def amount(value: float | None, divisor: float = 1, decimals: int = 0) -> Cell:
    """Return a cell of a number in a larger unit. A value that rounds to 0 is shown as `<` the smallest decimal.

    >>> amount(1_234_567, 1_000, 1).text, amount(0, 1_000, 1).text, amount(1, 1_000, 1).text, amount(None).text
    ('1,234.6', '0.0', '<0.1', '-')
    """
    if value is None:
        return Cell(MISSING)
    shown = value / divisor if divisor != 1 else value
    if value and round(shown, decimals) == 0:
        return Cell(f"{'<' if value > 0 else '>-'}{10.0**-decimals:.{decimals}f}", value)
    return Cell(f"{shown:,.{decimals}f}", value)


ms = partial(amount, divisor=NS_PER_MS, decimals=3)
us = partial(amount, divisor=NS_PER_US, decimals=1)
percent = partial(amount, divisor=0.01, decimals=1)
mib = partial(amount, divisor=MIB, decimals=2)
rate = partial(amount, divisor=GB, decimals=2)


def at_least(known: float | None, unknown: float | None) -> Cell:
    """Return a cell of a share in per cent that is a lower bound where some of the whole is not known.

    >>> at_least(0.25, 0.0).text, at_least(0.25, 0.1).text, at_least(0.0, 0.1).text
    ('25.0', '>=25.0', 'not known')
    """
    cell = percent(known)
    if not unknown or known is None:
        return cell
    return Cell(f">={cell.text}", cell.order) if known else Cell("not known")


def size_range(from_bytes: int | None, to_bytes: int | None) -> Cell:
    """Return a cell of a class of sizes from a power of two to, not including, the next.

    >>> [size_range(*of).text for of in ((0, 1), (512, 1024), (4 << 20, 8 << 20), (None, None))]
    ['0 B', '512 B-1 KiB', '4-8 MiB', '-']
    """
    if from_bytes is None or to_bytes is None:
        return Cell(MISSING)
    if not from_bytes:
        return Cell("0 B", 0)
    (low, low_unit), (high, high_unit) = map(_in_unit, (from_bytes, to_bytes))
    low_text = f"{low}" if low_unit == high_unit else f"{low} {low_unit}"
    return Cell(f"{low_text}-{high} {high_unit}", from_bytes)


def _in_unit(size: int) -> tuple[int, str]:
    place = min((size.bit_length() - 1) // 10, len(_BINARY_UNITS) - 1)
    return size >> 10 * place, _BINARY_UNITS[place]


_BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


RANGES_SHOWN_MAX = 12
"""Ranges of ranks in a cell: every second of 256 ranks would take six lines. The JSON has all."""


def rank_list(ranks: Iterable[int | None]) -> Cell:
    """Return a cell of ranks, with consecutive ones as a range, at most RANGES_SHOWN_MAX of them.

    >>> rank_list([3, 0, 1, 2, 9]).text
    '0-3, 9'
    >>> rank_list(range(0, 100, 2)).text
    '0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22 and 38 more ranks'
    """
    runs: list[list[int]] = []
    for rank in sorted({rank for rank in ranks if rank is not None}):
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    shown = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs[:RANGES_SHOWN_MAX])
    left = sum(last - first + 1 for first, last in runs[RANGES_SHOWN_MAX:])
    return text_cell(f"{shown} and {left:,} more rank{'s' * (left != 1)}" if left else shown)


def share_of(part: float | None, whole: float | None) -> float | None:
    """Return `part / whole`; None if one is unknown or the whole is 0."""
    return part / whole if part is not None and whole else None
