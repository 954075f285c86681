"""Check which of several collectors a run belongs to."""

from collections import Counter

import pytest

from rankscope.measure.shards import choose_collector, parse_collectors

ENDPOINTS = [f"tcp://collector-{number}:18490" for number in range(8)]
RUNS = [f"run-{number}" for number in range(8000)]


def test_same_list_in_any_order_chooses_the_same_collector() -> None:
    assert [choose_collector(run, ENDPOINTS) for run in RUNS[:100]] == [
        choose_collector(run, ENDPOINTS[::-1]) for run in RUNS[:100]
    ]


def test_the_choice_is_the_same_in_every_release() -> None:
    # Written down once: agents, relays and operators of different releases must agree.
    runs = ("bert", "gpt", "llama", "größer", "")
    assert [ENDPOINTS.index(choose_collector(run, ENDPOINTS)) for run in runs] == [1, 7, 2, 3, 7]


def test_runs_are_spread_evenly() -> None:
    # Binomial with n = 8,000 and p = 1/8: 1,000 on average, standard deviation 29.6; five of them either way.
    counts = Counter(choose_collector(run, ENDPOINTS) for run in RUNS)
    assert set(counts) == set(ENDPOINTS)
    assert all(852 <= count <= 1148 for count in counts.values()), counts


def test_runs_move_only_to_a_collector_that_joins() -> None:
    new = "tcp://collector-8:18490"
    moved = [
        (before, after)
        for run in RUNS
        if (before := choose_collector(run, ENDPOINTS)) != (after := choose_collector(run, [*ENDPOINTS, new]))
    ]
    assert {after for _, after in moved} == {new}
    # A ninth of 8,000 is 889, standard deviation 28.1; five of them either way.
    assert 748 <= len(moved) <= 1030


def test_when_one_leaves_only_its_runs_move() -> None:
    left = ENDPOINTS[1:]
    moved = [run for run in RUNS if choose_collector(run, ENDPOINTS) != choose_collector(run, left)]
    assert {choose_collector(run, ENDPOINTS) for run in moved} == {ENDPOINTS[0]}


def test_one_collector_has_every_run() -> None:
    assert {choose_collector(run, ENDPOINTS[:1]) for run in RUNS[:100]} == set(ENDPOINTS[:1])


def test_there_is_no_choice_among_none() -> None:
    with pytest.raises(ValueError, match="empty"):
        choose_collector("bert", [])


def test_a_list_is_read_without_its_spaces_and_empty_places() -> None:
    assert parse_collectors(" tcp://a:1 ,, tcp://b:1,") == ("tcp://a:1", "tcp://b:1")
    assert parse_collectors("") == ()
