"""Whom ranks wait for, by where they were seen in a long step."""

from collections.abc import Mapping

import pytest

from rankscope.collector.steps.quiet_places import PLACES_MAX, QuietPlaces
from rankscope.measure.stalls import MOVES, WAITS_FOR_RANKS, WORKS, QuietPlace

STEP = 160
SLEEPS = QuietPlace(STEP, WORKS, "train.py:52 (main)", "time.sleep")
WAITS = QuietPlace(STEP, WAITS_FOR_RANKS, "train.py:53 (main)", "work.wait")
EVALUATES = QuietPlace(STEP, MOVES)
UNCLEAR = QuietPlace(STEP)
ALL_OTHERS = dict.fromkeys((1, 2, 3), WAITS)


def seen(places: Mapping[int, QuietPlace]) -> QuietPlaces:
    found = QuietPlaces()
    for rank, place in places.items():
        found.add(rank, (place,))
    found.validate()
    return found


@pytest.mark.parametrize(
    ("places", "owner"),
    [
        ({0: SLEEPS, **ALL_OTHERS}, 0),
        ({0: EVALUATES, **ALL_OTHERS}, 0),
        ({3: SLEEPS, **dict.fromkeys((0, 1, 2), WAITS)}, 3),
        (ALL_OTHERS, None),
        ({0: UNCLEAR, **ALL_OTHERS}, None),
        ({0: SLEEPS, 1: WAITS, 2: WAITS}, None),
        ({0: SLEEPS, 1: WAITS, 2: WAITS, 3: EVALUATES}, None),
        ({0: SLEEPS, 1: UNCLEAR, 2: WAITS, 3: WAITS}, None),
        ({0: SLEEPS, 1: SLEEPS, 2: WAITS, 3: WAITS}, None),
        ({0: SLEEPS}, None),
        ({0: WAITS, **ALL_OTHERS}, None),
        ({}, None),
    ],
    ids=[
        "one works", "one evaluates", "the last works", "one was not looked at", "of one it is not known",
        "of another it is not known", "another evaluates", "of a third it is not clear", "two work", "nobody waits",
        "all wait", "nobody was looked at",
    ],
)  # fmt: skip
def test_the_others_wait_for_the_one_that_works(places: Mapping[int, QuietPlace], owner: int | None) -> None:
    assert seen(places).find_owner(STEP, range(4)) == owner


def test_one_of_many_ranks_may_not_have_been_seen() -> None:
    most = {0: SLEEPS, **dict.fromkeys(range(1, 20), WAITS)}
    assert (seen(most).find_owner(STEP, range(21)), seen(most).find_owner(STEP, range(23))) == (0, None)


def test_a_rank_alone_is_waited_for_by_nobody() -> None:
    assert seen({0: SLEEPS}).find_owner(STEP, range(1)) is None


def test_a_rank_that_left_is_no_owner() -> None:
    assert seen({4: SLEEPS, 0: WAITS, **ALL_OTHERS}).find_owner(STEP, range(4)) is None


def test_places_are_of_their_step() -> None:
    assert seen({0: SLEEPS, 1: WAITS}).find_owner(STEP + 1, range(2)) is None


def test_first_place_of_a_step_counts() -> None:
    places = seen({0: SLEEPS, 1: WAITS})
    places.add(0, (QuietPlace(STEP, WAITS_FOR_RANKS),))
    assert (places.find_owner(STEP, range(2)), places.find_work(STEP, 0)) == (0, SLEEPS)
    assert places.find_work(STEP, 1) is None
    assert places.waits(STEP, 1)
    assert not places.waits(STEP, 0)


def test_steps_that_were_looked_at_are_dropped_and_come_no_more() -> None:
    places = seen({0: SLEEPS, 1: WAITS})
    places.drop_through(STEP)
    places.add(0, (SLEEPS,))
    places.validate()
    assert places.find_owner(STEP, range(2)) is None
    assert not places.waits(STEP, 1)


def test_a_flood_of_places_drops_the_oldest_steps() -> None:
    places = QuietPlaces()
    for first in range(0, 2 * PLACES_MAX, 16):
        places.add(7, tuple(QuietPlace(step, WORKS) for step in range(first, first + 16)))
    places.validate()
    places.add(8, (QuietPlace(0, WAITS_FOR_RANKS), QuietPlace(2 * PLACES_MAX - 1, WAITS_FOR_RANKS)))
    assert places.find_owner(0, (7, 8)) is None
    assert places.find_owner(2 * PLACES_MAX - 1, (7, 8)) == 7
