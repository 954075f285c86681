"""When detection looks, and that it comes after a picture that is about to be ordered. Arithmetic on moments."""

from rankscope.collector.state.look_times import LATE_NS_MAX, ROOM, LookTimes
from rankscope.measure.units import NS_PER_MS, NS_PER_S

SHARE = 0.05
TICK_NS = NS_PER_S
LASTED_NS = 600 * NS_PER_MS


def after_a_look(lasted_ns: int = LASTED_NS, cpu_ns: int = NS_PER_MS) -> LookTimes:
    """One that ended at 0 and cost so little that the next is due at any time."""
    looks = LookTimes(SHARE, TICK_NS)
    looks.take(-lasted_ns, 0, cpu_ns)
    return looks


def test_the_first_look_is_due_at_once() -> None:
    assert LookTimes(SHARE, TICK_NS).is_due(0, None)
    assert LookTimes(SHARE, TICK_NS).is_due(0, 1)


def test_a_look_that_took_much_is_followed_by_as_much_rest_as_its_share_asks_for() -> None:
    looks = LookTimes(SHARE, TICK_NS)
    looks.take(0, NS_PER_S, 500 * NS_PER_MS)
    assert not looks.is_due(10 * NS_PER_S - 1, None)
    assert looks.is_due(10 * NS_PER_S, None)


def test_a_look_is_put_off_when_a_picture_would_be_ordered_amid_it() -> None:
    looks = after_a_look()
    assert not looks.is_due(NS_PER_S, NS_PER_S + LASTED_NS // 2)


def test_a_look_that_is_over_before_the_order_is_not_put_off() -> None:
    looks = after_a_look()
    assert looks.is_due(NS_PER_S, NS_PER_S + round(ROOM * LASTED_NS))


def test_an_order_that_has_come_already_puts_nothing_off() -> None:
    looks = after_a_look()
    assert looks.is_due(NS_PER_S, NS_PER_S - 1)


def test_a_look_that_was_put_off_is_due_once_the_picture_is_made() -> None:
    looks = after_a_look()
    order_ns = NS_PER_S + LASTED_NS // 2
    assert not looks.is_due(NS_PER_S, order_ns)
    assert looks.note_picture(order_ns + NS_PER_MS)
    # Even where the next order comes soon: else a look might be put off for ever.
    assert looks.is_due(order_ns + NS_PER_MS, order_ns + 2 * NS_PER_MS)


def test_a_look_waits_for_an_order_that_does_not_come_only_a_little_longer() -> None:
    looks = after_a_look()
    order_ns = NS_PER_S + LASTED_NS // 2
    assert not looks.is_due(NS_PER_S, order_ns)
    assert not looks.is_due(order_ns + LATE_NS_MAX - 1, None)
    assert looks.is_due(order_ns + LATE_NS_MAX, order_ns + LATE_NS_MAX + 1)


def test_a_picture_that_no_look_has_waited_for_is_none_of_its_business() -> None:
    looks = after_a_look()
    assert not looks.note_picture(NS_PER_S)
    assert not looks.is_due(NS_PER_S, NS_PER_S + 1)


def test_each_look_may_be_put_off_anew() -> None:
    looks = after_a_look()
    assert not looks.is_due(NS_PER_S, NS_PER_S + 1)
    assert looks.note_picture(NS_PER_S + 1)
    looks.take(NS_PER_S + 1, NS_PER_S + 1 + LASTED_NS, NS_PER_MS)
    assert not looks.note_picture(2 * NS_PER_S)
    assert not looks.is_due(3 * NS_PER_S, 3 * NS_PER_S + 1)


def test_short_looks_of_small_runs_are_put_off_for_nobody_but_an_order_of_that_very_moment() -> None:
    looks = after_a_look(lasted_ns=20 * NS_PER_MS)
    assert looks.is_due(NS_PER_S, NS_PER_S + 30 * NS_PER_MS)
