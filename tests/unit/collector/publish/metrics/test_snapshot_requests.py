"""Pictures that are ordered: of which moment, how often, and when the next is expected. No thread, no real clock."""

import pytest

from rankscope.collector.publish.metrics.snapshot_requests import NEW_S, PATIENCE_NS, SHARE, SnapshotRequests
from rankscope.measure.units import NS_PER_S, s_to_ns
from tests.driven_clock import START_S, WALL_S, DrivenClock


class World:
    def __init__(self) -> None:
        self.clock = DrivenClock()
        self.woken = 0
        self.orders = SnapshotRequests(self.clock, self._wake)

    def _wake(self) -> None:
        self.woken += 1

    @property
    def is_open(self) -> bool:
        return self.orders.is_open(self.clock.monotonic_ns())

    def make(self, took_s: float = 0.0) -> None:
        """A picture of now."""
        self.orders.close(WALL_S + self.clock.now_s)
        self.orders.take(self.clock.monotonic_ns(), s_to_ns(took_s))


def test_an_order_wakes_who_makes_pictures_and_is_open_until_one_is_made() -> None:
    world = World()
    assert not world.is_open
    assert world.orders.order() == pytest.approx(WALL_S + START_S - NEW_S)
    assert (world.is_open, world.woken) == (True, 1)
    world.make()
    assert not world.is_open


def test_a_new_picture_is_as_good_as_a_newer_one() -> None:
    world = World()
    world.make()
    world.clock.now_s += NEW_S / 2
    # Itself, and none before it: it may still be on its way through the store.
    assert world.orders.order() == WALL_S + START_S
    assert (world.is_open, world.woken) == (False, 0)


def test_no_more_are_made_than_their_share_of_a_core_allows() -> None:
    world = World()
    world.make(took_s=0.1)
    world.clock.now_s += 0.1 / SHARE - 0.001
    assert world.orders.order() == WALL_S + START_S, "the last one is the best there is"
    assert (world.is_open, world.woken) == (False, 0)
    world.clock.now_s += 0.002
    assert world.orders.order() > WALL_S + START_S
    assert (world.is_open, world.woken) == (True, 1)


def test_an_order_stays_open_until_its_picture_may_be_made() -> None:
    world = World()
    world.orders.order()
    world.orders.take(world.clock.monotonic_ns(), NS_PER_S)  # a tick's own, that has not heard of it
    assert not world.is_open
    world.clock.now_s += 1 / SHARE
    assert world.is_open


def test_an_order_waits_for_what_has_come_but_not_for_long() -> None:
    world = World()
    world.orders.order()
    now_ns = world.clock.monotonic_ns()
    assert not world.orders.is_open(now_ns + PATIENCE_NS - 1, is_behind=True)
    assert world.orders.is_open(now_ns + PATIENCE_NS - 1, is_behind=False)
    assert world.orders.is_open(now_ns + PATIENCE_NS, is_behind=True)


def test_when_the_next_order_is_expected_is_a_moment_of_the_clock() -> None:
    world = World()
    assert world.orders.next_ns is None
    world.orders.announce(1.5)
    assert world.orders.next_ns == s_to_ns(START_S + 1.5)
    world.orders.announce(None)
    assert world.orders.next_ns is None


def test_from_an_order_on_a_page_is_being_written_until_it_is_said_to_be() -> None:
    world = World()
    assert not world.orders.is_writing
    world.orders.order()
    world.make()
    assert world.orders.is_writing
    world.orders.note_written()
    assert not world.orders.is_writing


def test_a_page_that_gets_no_picture_of_its_own_is_being_written_too() -> None:
    world = World()
    world.make(took_s=10.0)
    world.clock.now_s += 1.0
    assert world.orders.order() == WALL_S + START_S
    assert world.orders.is_writing
