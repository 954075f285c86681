"""Ranks that have left out a collective, on small cases written down by hand."""

import numpy as np

from rankscope.collector.steps.collectives import CollectiveBlock
from rankscope.collector.steps.skipped_collectives import Lags, find_lags
from rankscope.collector.steps.step_series import Lag
from rankscope.measure.table import MISSING
from tests.unit.collector.steps.collective_steps import RankCollectives, step_of


def calls(**sequences: list[int]) -> RankCollectives:
    """Sequences by group."""
    groups = sorted(sequences)
    rows = [(groups.index(group), sequence) for group in groups for sequence in sequences[group]]
    zeros = np.zeros(len(rows), dtype=np.int64)
    group, sequence = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)) if rows else (zeros,) * 2
    return RankCollectives(groups, ["all_reduce"], group, zeros, sequence, zeros, zeros, zeros, zeros)


def lags_of(*ranks: RankCollectives) -> dict[tuple[str, int], int]:
    blocks: list[CollectiveBlock] = step_of(dict(enumerate(ranks)))
    return find_lags(blocks)


def test_rank_whose_count_is_one_lower_is_one_behind() -> None:
    assert lags_of(calls(tp=[7, 8]), calls(tp=[6, 7]), calls(tp=[7, 8])) == {("tp", 1): 1}


def test_rank_that_has_called_more_is_ahead() -> None:
    assert lags_of(calls(tp=[8]), calls(tp=[10]), calls(tp=[8])) == {("tp", 1): -2}


def test_only_the_group_in_which_it_is_behind_is_told() -> None:
    assert lags_of(calls(dp=[3], tp=[8]), calls(dp=[3], tp=[7]), calls(dp=[3], tp=[8])) == {("tp", 1): 1}


def test_of_two_ranks_that_differ_nothing_is_told() -> None:
    assert lags_of(calls(tp=[8]), calls(tp=[7])) == {}


def test_equal_counts_and_collectives_without_one_are_no_lag() -> None:
    assert lags_of(calls(tp=[8]), calls(tp=[8]), calls()) == {}
    assert lags_of(calls(tp=[MISSING]), calls(tp=[8]), calls(tp=[8])) == {}
    assert find_lags(()) == {}


def test_lag_lasts_from_its_first_step_while_it_is_the_same() -> None:
    lags = Lags()
    lags.add(10, {("tp", 1): 1})
    lags.add(11, {("tp", 1): 1, ("dp", 2): 1})
    assert lags.read() == (Lag("dp", 2, 1, 11), Lag("tp", 1, 1, 10))
    lags.add(12, {("tp", 1): 2})
    assert lags.read() == (Lag("tp", 1, 2, 12),)
    lags.add(13, {})
    assert lags.read() == ()
