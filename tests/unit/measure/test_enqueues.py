"""Which collectives every rank chooses to report, and their wire form."""

import itertools

import pytest

from rankscope.measure.enqueues import CHOSEN_MAX, Enqueue, choose, is_chosen, pack_enqueues
from rankscope.measure.table import Table

ALL = range(1, 20_001)


def enqueues(first: int, last: int, group: str = "g") -> list[Enqueue]:
    return [Enqueue(number // 10, group, number, 1_000 * number) for number in range(first, last + 1)]


def numbers(found: list[Enqueue]) -> set[int]:
    return {one.sequence for one in found}


@pytest.mark.parametrize("level", [0, 1, 3, 6, 9])
def test_about_one_of_so_many_is_chosen(level: int) -> None:
    assert sum(is_chosen(number, level) for number in ALL) == pytest.approx(len(ALL) / 2**level, rel=0.03)


def test_a_higher_level_chooses_among_the_lower_ones() -> None:
    chosen = [{number for number in ALL if is_chosen(number, level)} for level in range(12)]
    assert all(higher < lower for lower, higher in itertools.pairwise(chosen))


@pytest.mark.parametrize("a_step", [2, 3, 8, 16, 24, 64, 100])
def test_chosen_numbers_are_at_all_places_of_a_step(a_step: int) -> None:
    places = {number % a_step for number in ALL if is_chosen(number, 5)}
    assert places == set(range(a_step))


def test_few_are_all_chosen() -> None:
    few = enqueues(1, CHOSEN_MAX)
    assert choose(few) == few


def test_of_many_at_most_as_many_as_allowed_are_chosen() -> None:
    for count in (CHOSEN_MAX + 1, 500, 20_000):
        chosen = choose(enqueues(1, count))
        assert CHOSEN_MAX // 3 <= len(chosen) <= CHOSEN_MAX
        assert chosen == sorted(chosen)


def test_ranks_that_report_more_or_less_have_many_in_common() -> None:
    # The longer one is at a higher level; all that it has of the shorter one's steps are there, too.
    shorter, longer = choose(enqueues(1, 400)), choose(enqueues(1, 1_000))
    common = numbers(shorter) & numbers(longer)
    assert common == {number for number in numbers(longer) if number <= 400}
    assert len(common) >= 15


def test_one_number_in_more_groups_than_allowed_is_cut_off() -> None:
    same = [Enqueue(1, f"g{number}", 5, 1) for number in range(10)]
    assert choose(same, chosen_max=4) in ([], same[:4])
    zeros = [Enqueue(1, f"g{number}", 0, 1) for number in range(10)]
    assert choose(zeros, chosen_max=4) == zeros[:4]


def test_table_has_names_once() -> None:
    found = pack_enqueues([Enqueue(4, "b", 7, 900), Enqueue(4, "a", 3, 950), Enqueue(5, "b", 8, 990)], [(4, 5)])
    assert (found.groups, found.steps, found.wall_error_ns) == (("a", "b"), ((4, 5),), 0)
    rows = [(4, 1, 7, 900), (4, 0, 3, 950), (5, 1, 8, 990)]
    assert found.table == Table.from_rows(("step", "group", "sequence", "enqueued_host_ns"), rows)
