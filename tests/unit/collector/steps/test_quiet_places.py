"""Whom ranks wait for, by where they were seen in a long step."""

from collections.abc import Mapping

import pytest

from rankscope.collector.steps.quiet_places import PLACES_MAX, QuietPlaces
from rankscope.measure.stalls import WAITS_FOR_RANKS, WORKS, QuietPlace

STEP = 160
SLEEPS = QuietPlace(STEP, WORKS, "train.py:52 (main)", "time.sleep")
WAITS = QuietPlace(STEP, WAITS_FOR_RANKS, "train.py:53 (main)", "work.wait")
UNCLEAR = QuietPlace(STEP)


def seen(places: Mapping[int, QuietPlace]) -> QuietPlaces:
    found = QuietPlaces()
    for rank, place in places.items():
        found.add(rank, (place,))
    found.validate()
    return found


@pytest.mark.parametrize(
    ("places", "owner"),
    [
        ({0: SLEEPS, 1: WAITS}, (0, SLEEPS)),
        ({1: WAITS, 2: WAITS, 3: SLEEPS}, (3, SLEEPS)),
        ({1: WAITS, 2: WAITS, 3: WAITS}, (0, None)),
        ({0: UNCLEAR, 1: WAITS, 2: WAITS, 3: WAITS}, (0, UNCLEAR)),
        ({1: WAITS, 2: WAITS}, (None, None)),
        ({0: SLEEPS, 1: UNCLEAR}, (None, None)),
        ({0: SLEEPS, 1: SLEEPS, 2: WAITS}, (None, None)),
        ({0: WAITS, 1: WAITS, 2: WAITS, 3: WAITS}, (None, None)),
        ({}, (None, None)),
    ],
    ids=[
        "one works", "one of four works", "all others wait", "all others wait for one in backward", "two may be it",
        "nobody waits", "two work", "all wait", "nobody was looked at",
    ],
)  # fmt: skip
def test_the_others_wait_for_the_one_that_works(
    places: Mapping[int, QuietPlace], owner: tuple[int | None, QuietPlace | None]
) -> None:
    assert seen(places).find(STEP, range(4)) == owner


def test_places_are_of_their_step() -> None:
    assert seen({0: SLEEPS, 1: WAITS}).find(STEP + 1, range(2)) == (None, None)


def test_first_look_of_a_step_counts() -> None:
    places = seen({0: SLEEPS, 1: WAITS})
    places.add(0, (QuietPlace(STEP, WAITS_FOR_RANKS),))
    assert places.find(STEP, range(2)) == (0, SLEEPS)
    assert places.waits(STEP, 1)
    assert not places.waits(STEP, 0)


def test_steps_that_were_looked_at_are_dropped_and_come_no_more() -> None:
    places = seen({0: SLEEPS, 1: WAITS})
    places.drop_through(STEP)
    places.add(0, (SLEEPS,))
    places.validate()
    assert places.find(STEP, range(2)) == (None, None)
    assert not places.waits(STEP, 1)


def test_a_flood_of_places_drops_the_oldest_steps() -> None:
    places = QuietPlaces()
    for first in range(0, 2 * PLACES_MAX, 16):
        places.add(7, tuple(QuietPlace(step, WORKS) for step in range(first, first + 16)))
    places.validate()
    places.add(8, (QuietPlace(0, WAITS_FOR_RANKS), QuietPlace(2 * PLACES_MAX - 1, WAITS_FOR_RANKS)))
    assert places.find(0, range(9)) == (None, None)
    assert places.find(2 * PLACES_MAX - 1, range(9)) == (7, QuietPlace(2 * PLACES_MAX - 1, WORKS))
