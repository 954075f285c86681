"""The smallest load test: what `python -m bench.load` measures was made, sent and taken in."""

import pytest

from bench.load import measure_load, measure_storm
from bench.load_results import find_quantile, render
from bench.memory import measure as measure_memory
from bench.memory import render as render_growth

RANKS = 64
SECONDS = 3.0


@pytest.fixture(scope="module")
def head() -> str:
    return "| | |\n|---|---|\n| command | the smallest |"


def test_every_report_of_a_load_is_acknowledged_and_counted_once(head: str) -> None:
    load = measure_load(RANKS, SECONDS)
    assert load.made >= RANKS
    assert (load.acknowledged, load.admitted, load.lost, load.gaps) == (load.made, load.made, 0, 0)
    assert load.visible_s
    assert min(load.visible_s) > 0
    assert load.answered_s
    assert load.whole_cores > 0
    assert {"receive", "store"} <= load.cores.keys()
    assert f"| {RANKS} |" in render(head, [load], [])


def test_a_storm_of_connects_and_a_killed_collector_lose_nothing(head: str) -> None:
    storm = measure_storm(RANKS)
    assert storm.made >= RANKS
    assert (storm.dropped, storm.gaps) == (0, 0)
    assert f"| {RANKS} |" in render(head, [], [storm])


def test_sped_up_ranks_show_the_memory_of_a_later_time(head: str) -> None:
    growth = measure_memory(RANKS, reports=60, speed=20)
    assert [point.reports for point in growth.points] == [0, 10, 60]
    assert all(growth.bare_bytes < point.resident_bytes for point in growth.points)
    assert f"| {RANKS} | 60 | 0:01 h |" in render_growth(head, [growth])


def test_a_quantile_is_a_value_that_was_seen() -> None:
    """Of ten values the 99th percentile is the largest, the median the fifth."""
    values = [float(value) for value in range(10, 0, -1)]
    assert (find_quantile(values, 0.99), find_quantile(values, 0.5), find_quantile(values, 0.0)) == (10.0, 5.0, 1.0)
