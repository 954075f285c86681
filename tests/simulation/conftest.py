"""Say which simulated runs are in `make test`: every third case of each test, beginning with its first."""

from collections import Counter
from pathlib import Path
from typing import Final

import pytest

HERE: Final = Path(__file__).parent
CASES_PER_CHOSEN: Final = 3
"""A simulated run takes a second or so of a core. Cases differ by kind of job, noise, seed and cause in turn, and each
third one meets all of them."""
NO_RUNS: Final = frozenset({"test_command", "test_exchange", "test_rivals", "test_scoring", "test_wrongs"})
"""Their cases are made by hand, and take milliseconds."""


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cases that `make test` leaves out."""
    places: Counter[str] = Counter()
    for item in items:
        if item.path.parent == HERE and item.path.stem not in NO_RUNS:
            test, _, case = item.nodeid.partition("[")
            if case and places[test] % CASES_PER_CHOSEN:
                item.add_marker(pytest.mark.rest("a further case of a simulated run"))
            places[test] += 1
