"""The smallest load test: what `python -m tests.benchmarks.load` measures was made, sent and taken in."""

import pytest

from tests.benchmarks.load import measure_load, measure_storm
from tests.benchmarks.load_results import find_quantile, render

RANKS = 64
SECONDS = 3.0


@pytest.fixture(scope="module")
def head() -> str:
    return "| | |\n|---|---|\n| command | the smallest |"


def test_of_a_load_every_report_is_acknowledged_and_none_is_lost_or_counted_twice(head: str) -> None:
    load = measure_load(RANKS, SECONDS)
    assert load.made >= RANKS
    assert (load.acknowledged, load.admitted, load.lost, load.gaps) == (load.made, load.made, 0, 0)
    assert load.visible_s
    assert min(load.visible_s) > 0
    assert load.answered_s
    assert load.whole_cores > 0
    assert {"receive", "store", "ZMQbg/IO/0"} <= load.cores.keys()
    assert f"| {RANKS} |" in render(head, [load], [])


def test_a_storm_of_connects_and_a_killed_collector_lose_nothing(head: str) -> None:
    storm = measure_storm(RANKS)
    assert storm.made >= RANKS
    assert (storm.dropped, storm.gaps) == (0, 0)
    assert f"| {RANKS} |" in render(head, [], [storm])


def test_a_quantile_is_a_value_that_was_seen() -> None:
    """Of ten values the 99th percentile is the largest, the median the fifth."""
    values = [float(value) for value in range(10, 0, -1)]
    assert (find_quantile(values, 0.99), find_quantile(values, 0.5), find_quantile(values, 0.0)) == (10.0, 5.0, 1.0)
