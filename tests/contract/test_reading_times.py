"""The minutes in the tables of documents are what their pages take."""

from pathlib import Path

import pytest

from tests.contract.reading_times import TABLES, find_stated

SHARE_OFF_MAX = 0.3
"""A paragraph more needs no new table."""


@pytest.mark.parametrize("page", TABLES, ids=lambda page: page.name)
def test_minutes_are_those_of_the_pages(page: Path) -> None:
    rows = list(find_stated(page))
    assert len(rows) > 10
    wrong = [row for row in rows if abs(row.minutes - row.computed) > max(1.0, SHARE_OFF_MAX * row.computed)]
    assert wrong == [], "python -m tests.contract.reading_times writes them"
