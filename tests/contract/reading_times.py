"""Write the reading times of the documents into their tables: `python -m tests.contract.reading_times`.

A row's minutes are those of all pages that it links to, at WORDS_PER_MINUTE. A row whose minutes are empty is of a page
to look things up in.
"""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

DOCS: Final = Path(__file__).parents[2] / "docs"
TABLES: Final = (DOCS / "README.md", DOCS / "definitions.md")
WORDS_PER_MINUTE: Final = 200
ROW: Final = re.compile(r"^(\|.*\]\([^|]*\).* \| )(\d+)( \|)$", re.MULTILINE)
LINK: Final = re.compile(r"\]\(([^)#]+\.md)")


class Stated(NamedTuple):
    """One row: what it links to, the minutes that it states and those that its pages take."""

    row: str
    minutes: int
    computed: float


def find_stated(page: Path) -> Iterator[Stated]:
    """Yield the rows of a page that state minutes."""
    for row in ROW.finditer(page.read_text(encoding="utf-8")):
        links = LINK.findall(row[1])
        if links:
            yield Stated(row[0], int(row[2]), sum(read_minutes(page.parent / link) for link in links))


def read_minutes(page: Path) -> float:
    """Return how long a page takes to read."""
    return len(page.read_text(encoding="utf-8").split()) / WORDS_PER_MINUTE


def write_times() -> None:
    """Write the computed minutes into each row, whole and at least 1."""
    for page in TABLES:
        text = page.read_text(encoding="utf-8")
        for stated in find_stated(page):
            minutes = max(1, math.ceil(stated.computed))
            text = text.replace(stated.row, re.sub(r"\d+ \|$", f"{minutes} |", stated.row))
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_times()
