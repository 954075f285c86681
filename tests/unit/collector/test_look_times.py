"""When detection looks, and what it lets go first. Arithmetic on moments."""

import pytest

from rankscope.collector.pacing import PUT_OFF_NS_MAX, WRITING_NS_MAX, DetectionSchedule
from rankscope.measure.units import NS_PER_MS, NS_PER_S

SHARE = 0.05
TICK_NS = NS_PER_S
LASTED_NS = 600 * NS_PER_MS


def after_a_look(lasted_ns: int = LASTED_NS, cpu_ns: int = NS_PER_MS) -> DetectionSchedule:
    """One that ended at 0 and cost so little that the next is due at any time."""
    looks = DetectionSchedule(SHARE, TICK_NS)
    looks.take(-lasted_ns, 0, cpu_ns)
    return looks


def looks_now(looks: DetectionSchedule, now_ns: int, order_ns: int | None = None, *, is_writing: bool = False) -> bool:
    return looks.decide(now_ns, is_writing=is_writing, order_ns=order_ns)


def test_the_first_look_is_due_at_once() -> None:
    assert looks_now(DetectionSchedule(SHARE, TICK_NS), 0)
    assert looks_now(DetectionSchedule(SHARE, TICK_NS), 0, order_ns=1)


def test_a_look_that_took_much_is_followed_by_as_much_rest_as_its_share_asks_for() -> None:
    looks = DetectionSchedule(SHARE, TICK_NS)
    looks.take(0, NS_PER_S, 500 * NS_PER_MS)
    assert not looks_now(looks, 10 * NS_PER_S - 1)
    assert not looks.is_put_off, "it was not due"
    assert looks_now(looks, 10 * NS_PER_S)


def test_a_look_is_put_off_when_a_picture_would_be_ordered_amid_it() -> None:
    looks = after_a_look()
    assert not looks_now(looks, NS_PER_S, NS_PER_S + LASTED_NS // 2)
    assert looks.is_put_off


def test_a_look_that_is_over_before_the_order_is_not_put_off() -> None:
    looks = after_a_look()
    assert looks_now(looks, NS_PER_S, NS_PER_S + LASTED_NS)
    assert not looks.is_put_off


def test_an_order_that_has_come_already_puts_nothing_off() -> None:
    assert looks_now(after_a_look(), NS_PER_S, NS_PER_S - 1)


def test_while_a_page_is_written_no_look_begins_and_one_does_when_it_is() -> None:
    looks = after_a_look()
    order_ns = 5 * NS_PER_S
    assert not looks_now(looks, NS_PER_S, order_ns, is_writing=True)
    assert looks_now(looks, NS_PER_S + 400 * NS_PER_MS, order_ns)


@pytest.mark.parametrize("is_writing", [True, False])
def test_a_look_for_which_there_is_no_gap_comes_all_the_same(is_writing: bool) -> None:
    looks = after_a_look()
    for now_ns in range(NS_PER_S, NS_PER_S + PUT_OFF_NS_MAX, 100 * NS_PER_MS):
        assert not looks_now(looks, now_ns, now_ns + NS_PER_MS, is_writing=is_writing)
    now_ns = NS_PER_S + PUT_OFF_NS_MAX
    assert looks_now(looks, now_ns, now_ns + NS_PER_MS, is_writing=is_writing)


def test_where_one_page_follows_the_other_a_look_comes_after_a_picture_while_its_page_is_written() -> None:
    looks = after_a_look()
    assert not looks_now(looks, NS_PER_S, is_writing=True)
    picture_ns = NS_PER_S + WRITING_NS_MAX
    assert not looks_now(looks, picture_ns - 1, picture_ns + LASTED_NS, is_writing=True)
    assert not looks_now(looks, picture_ns, picture_ns + LASTED_NS - 1, is_writing=True)
    assert looks_now(looks, picture_ns, picture_ns + LASTED_NS, is_writing=True)


def test_each_look_may_be_put_off_anew() -> None:
    looks = after_a_look()
    assert not looks_now(looks, NS_PER_S, NS_PER_S + 1)
    looks.take(2 * NS_PER_S, 2 * NS_PER_S + LASTED_NS, NS_PER_MS)
    assert not looks.is_put_off
    assert not looks_now(looks, 20 * NS_PER_S, 20 * NS_PER_S + 1)


def test_short_looks_of_small_runs_are_put_off_only_by_an_order_of_that_very_moment() -> None:
    assert looks_now(after_a_look(lasted_ns=20 * NS_PER_MS), NS_PER_S, NS_PER_S + 30 * NS_PER_MS)
