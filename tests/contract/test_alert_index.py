"""Check that the index of the runbooks matches the rules."""

from tests.contract.alert_index import INDEX, fill_summary, render_index


def test_the_index_of_the_runbooks_is_that_of_the_rules() -> None:
    assert INDEX.read_text() == render_index()


def test_a_summary_is_said_without_values() -> None:
    summary = "Rank {{ $labels.rank }} of {{ $labels.run }} is {{ humanizePercentage $value }} slow"
    assert fill_summary(summary) == "Rank RANK of RUN is N slow"
