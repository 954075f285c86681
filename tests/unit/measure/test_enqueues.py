"""Which collectives every rank chooses to report, and their wire form."""

import itertools

import pytest

from rankscope.measure.enqueues import CHOSEN_MAX, Enqueue, choose, find_chosen_max, find_order, pack_enqueues
from rankscope.measure.table import Table

ALL = range(20_000)


def enqueues(first_step: int, last_step: int, a_step: int = 10) -> list[Enqueue]:
    return [
        Enqueue(step, "g", step * a_step + place, 1_000 * step + place)
        for step in range(first_step, last_step + 1)
        for place in range(a_step)
    ]


def steps_of(found: list[Enqueue]) -> set[int]:
    return {one.step for one in found}


@pytest.mark.parametrize("a_pattern", [2, 3, 8, 16, 24, 64, 100])
def test_first_numbers_are_at_all_places_of_a_pattern(a_pattern: int) -> None:
    first = sorted(ALL, key=find_order)[: len(ALL) // 20]
    assert {number % a_pattern for number in first} == set(range(a_pattern))


def test_few_are_all_chosen() -> None:
    few = enqueues(3, 27)
    assert len(few) <= CHOSEN_MAX
    assert choose(few) == few
    assert choose([]) == []


@pytest.mark.parametrize("a_step", [1, 10, 100, CHOSEN_MAX])
def test_of_many_whole_steps_are_chosen(a_step: int) -> None:
    many = enqueues(40, 400, a_step)
    chosen = choose(many)
    assert len(chosen) == CHOSEN_MAX // a_step * a_step
    assert chosen == [one for one in many if one.step in steps_of(chosen)], "in their order"


def test_ranks_that_choose_from_other_steps_have_most_in_common() -> None:
    one, other = steps_of(choose(enqueues(100, 199))), steps_of(choose(enqueues(103, 205)))
    assert len(one) == len(other) == CHOSEN_MAX // 10
    assert len(one & other) >= 0.8 * len(one)


def test_of_a_step_that_is_too_large_the_same_numbers_are_chosen() -> None:
    chosen = choose(enqueues(7, 9, 1_000))
    (step,) = steps_of(chosen)
    assert len(chosen) == CHOSEN_MAX
    assert chosen == choose(enqueues(step, step, 1_000)), "whatever other steps there are"
    places = sorted(one.sequence % 1_000 for one in chosen)
    assert max(after - before for before, after in itertools.pairwise(places)) <= 8, "all over the step"


def test_each_of_many_ranks_reports_fewer() -> None:
    assert [find_chosen_max(ranks) for ranks in (1, 1_024, 1_025, 8_192, 2**24)] == [256, 256, 255, 32, 16]


def test_table_has_names_once() -> None:
    found = pack_enqueues([Enqueue(4, "b", 7, 900), Enqueue(4, "a", 3, 950), Enqueue(5, "b", 8, 990)], [(4, 5)])
    assert (found.groups, found.steps, found.wall_error_ns) == (("a", "b"), ((4, 5),), 0)
    rows = [(4, 1, 7, 900), (4, 0, 3, 950), (5, 1, 8, 990)]
    assert found.table == Table.from_rows(("step", "group", "sequence", "enqueued_host_ns"), rows)
