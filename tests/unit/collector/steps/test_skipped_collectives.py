"""Ranks that have left out a collective, on small cases written down by hand."""

import numpy as np
import pytest

from rankscope.collector.steps.collectives import CollectiveBlock, Step
from rankscope.collector.steps.skipped_collectives import STEPS_MIN, Lags, correct_numbers, find_ends, find_lags
from rankscope.collector.steps.step_series import Lag
from rankscope.collector.steps.wait_times import split_waits
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
    assert lags.read() == (Lag("dp", 2, 1, 11, 10), Lag("tp", 1, 1, 10, 10))
    lags.add(12, {("tp", 1): 2})
    assert lags.read() == (Lag("tp", 1, 2, 12, 12),)
    lags.add(13, {})
    assert lags.read() == ()


# -- counts that differ while calls of one place meet -----------------------------------------------------------------


def ended(ends: list[int], first: int, size: int = 8, op: str = "all_reduce") -> RankCollectives:
    """Calls of a rank in the group tp that end at these times, numbered from `first` on."""
    numbers = np.arange(first, first + len(ends))
    same, sizes = np.zeros(len(ends), dtype=np.int64), np.full(len(ends), size)
    durations = np.full(len(ends), 3)
    return RankCollectives(
        ["dp", "tp"], [op], same + 1, same, numbers, np.array(ends) - durations, durations, sizes, same
    )


def read_ends(*ranks: RankCollectives) -> dict[tuple[str, int], tuple[list[int], list[int]]]:
    step = step_of(dict(enumerate(ranks)))
    found = find_ends(step, find_lags(step))
    return {key: (ends.by_place.tolist(), ends.by_number.tolist()) for key, ends in found.items()}


def test_ends_are_compared_by_place_and_by_number() -> None:
    usual, other = ended([10, 25, 60], 7), ended([10, 25, 60], 7)
    # Rank 1 has called one fewer: its calls 7 and 8, at 125 and 160, have the numbers of those at 10 and 25.
    assert read_ends(usual, ended([110, 125, 160], 6), other) == {("tp", 1): ([100, 100, 100], [115, 135])}
    # Rank 1 has called one more: its calls 8 and 9, at 110 and 125, have the numbers of those at 25 and 60.
    assert read_ends(usual, ended([110, 125, 160], 8), other) == {("tp", 1): ([100, 100, 100], [85, 65])}


@pytest.mark.parametrize(
    "mine",
    [
        ended([110, 125], 7),
        ended([110, 125, 160], 4),
        ended([110, 125, 160], 6, size=4),
        ended([110, 125, 160], 6, op="all_gather"),
    ],
)
def test_calls_that_are_not_as_the_others_are_not_compared(mine: RankCollectives) -> None:
    usual = ended([10, 25, 60], 7)
    assert read_ends(usual, mine, usual) == {}


def test_calls_with_a_gap_in_their_numbers_are_not_compared() -> None:
    usual, mine = ended([10, 25, 60], 7), ended([110, 125, 160], 6)
    gap = mine._replace(sequence=np.array([5, 7, 8]))
    assert read_ends(usual, gap, usual) == {}


def lag_through(*shifts_ns: tuple[int, int], behind: int = 1) -> list[dict[tuple[str, int], int]]:
    """What is corrected in each step. In each, call 0 ends at 10, and call 1 at so many ns later; rank 1's calls are so
    many ns off its clock's usual offset.
    """
    lags, corrected = Lags(), []
    for number, (apart_ns, off_ns) in enumerate(shifts_ns):
        usual = ended([10, 10 + apart_ns], 2 * number)
        mine = ended([110 + off_ns, 110 + apart_ns], 2 * number - behind)
        step = step_of({0: usual, 1: mine, 2: usual})
        corrected.append(lags.add(number, find_lags(step), find_ends(step, find_lags(step))))
    return corrected


def test_numbers_are_corrected_once_enough_steps_show_the_match() -> None:
    # The distance between two calls varies by 40 ns, and that by place by 10: a quarter.
    steps = [(100, 0), (140, 10)] * (STEPS_MIN // 2)
    corrected = lag_through(*steps, (100, 0))
    assert corrected == [{}] * (STEPS_MIN - 1) + [{("tp", 1): 1}] * 2
    ahead = [(100, 10), (140, 0)] * (STEPS_MIN // 2)
    assert lag_through(*ahead, behind=-1)[-1] == {("tp", 1): -1}


def test_waits_are_known_again_with_the_numbers_corrected() -> None:
    lags, sizes, corrected = Lags(), {"tp": 3}, list[Step | None]()
    for number in range(STEPS_MIN):
        usual, mine = ended([10, 30 + 9 * number], 7), ended([110, 130 + 9 * number], 6)
        step = step_of({0: usual, 1: mine, 2: usual})
        waits = split_waits(step, sizes)
        assert np.isnan(waits.exposed_ns).all()
        corrected.append(lags.correct(number, step, waits))
    *before, last = corrected
    assert before == [None] * (STEPS_MIN - 1)
    assert split_waits(last or (), sizes).exposed_ns.tolist() == [0.0, 0.0, 0.0]
    healthy = step_of(dict.fromkeys(range(3), ended([10, 25], 7)))
    assert lags.correct(STEPS_MIN, healthy, split_waits(healthy, sizes)) is None
    assert lags.read() == ()


@pytest.mark.parametrize("unlike", [(140, 11), (100, 0)])
def test_ends_varying_as_much_by_place_or_never_show_nothing(unlike: tuple[int, int]) -> None:
    assert lag_through(*[(100, 0), unlike] * STEPS_MIN)[-1] == {}


def test_lag_is_shown_anew_after_a_change_or_step_without_ends() -> None:
    usual, lags = ended([10, 25], 7), Lags()
    mine = {number: step_of({0: usual, 1: ended([110, 125], number), 2: usual}) for number in (5, 6)}
    ends = find_ends(mine[6], find_lags(mine[6]))
    assert find_ends(mine[5], find_lags(mine[5])) == {}
    varied = {key: one._replace(by_number=np.array([1, 99])) for key, one in ends.items()}
    behind = find_lags(mine[6])
    for step in range(STEPS_MIN):
        lags.add(step, behind, varied)
    assert lags.read() == (Lag("tp", 1, 1, 0, 0, is_matched=True),)
    assert lags.add(STEPS_MIN, behind) == {}
    assert lags.read() == (Lag("tp", 1, 1, 0, 0),)
    for step in range(STEPS_MIN - 1):
        assert lags.add(STEPS_MIN + 1 + step, behind, varied) == {}
    assert lags.add(2 * STEPS_MIN, {("tp", 1): 2}, varied) == {}
    assert lags.read() == (Lag("tp", 1, 2, 2 * STEPS_MIN, 2 * STEPS_MIN),)


def test_corrected_numbers_are_those_of_the_other_members() -> None:
    unnumbered = ended([10, 25], 7)._replace(sequence=np.array([6, MISSING]))
    step = step_of({0: ended([10, 25], 7), 1: unnumbered, 2: calls(dp=[6])})
    corrected = correct_numbers(step, {("tp", 1): 1, ("tp", 2): 1})
    assert [block.sequence.tolist() for block in corrected] == [[[7, 8]], [[7, MISSING]], [[6]]]
    assert [block.sequence.tolist() for block in step] == [[[7, 8]], [[6, MISSING]], [[6]]]
