"""docs/frameworks.md is what `make test-frameworks` has seen last."""

from tests.frameworks.__main__ import PAGE, read_results
from tests.frameworks.page import write_page
from tests.frameworks.rows import ROWS


def test_page_is_written_from_the_kept_results() -> None:
    results = read_results()
    assert PAGE.read_text(encoding="utf-8") == write_page(ROWS, results.outcomes, results.machine)


def test_kept_results_are_of_jobs_that_exist() -> None:
    assert read_results().outcomes.keys() <= {row.name for row in ROWS}
