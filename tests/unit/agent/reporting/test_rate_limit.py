"""Tests of the limit on events per second."""

from rankscope.agent.reporting.sender import RateLimit
from rankscope.measure.units import NS_PER_S


def test_events_above_the_limit_are_ignored_and_counted() -> None:
    limit = RateLimit(2)
    assert [limit.allows(10 * NS_PER_S + offset_ns) for offset_ns in range(4)] == [True, True, False, False]
    assert limit.ignored == 2


def test_next_second_begins_anew() -> None:
    limit = RateLimit(1)
    assert [limit.allows(ns) for ns in (NS_PER_S, 2 * NS_PER_S - 1, 2 * NS_PER_S)] == [True, False, True]


def test_time_of_the_next_allowed_event() -> None:
    limit = RateLimit(1)
    assert limit.find_next_ns(5 * NS_PER_S) is None
    limit.allows(5 * NS_PER_S)
    assert limit.find_next_ns(5 * NS_PER_S + 7) == 6 * NS_PER_S
