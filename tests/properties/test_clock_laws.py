"""The law of clock alignment: whatever the network and a poor quartz do, the true offset is within the error bound.

The rank's clock is simulated exactly, as a fraction; its readings are whole nanoseconds, which costs one.
"""

from fractions import Fraction
from math import floor
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from rankscope.collector.runs.clock_alignment import DRIFT_PER_S_NS, ClockAlignment
from rankscope.measure.units import NS_PER_S, CollectorNs

READING_NS = 1


class Ping(NamedTuple):
    """Time of sending after the last answer, and the round trip."""

    pause_ns: int
    there_ns: int
    back_ns: int


class Quartz(NamedTuple):
    """A rank's clock against ours."""

    offset_ns: int
    drift_per_s_ns: int

    def tell(self, collector_ns: int) -> Fraction:
        return collector_ns + self.offset_ns + Fraction(collector_ns * self.drift_per_s_ns, NS_PER_S)


delays = st.one_of(st.integers(0, 1_000), st.integers(0, 5 * NS_PER_S))
pings = st.lists(st.builds(Ping, st.integers(0, 3_600 * NS_PER_S), delays, delays), min_size=1, max_size=20)
quartzes = st.builds(Quartz, st.integers(-(10**18), 10**18), st.integers(-DRIFT_PER_S_NS, DRIFT_PER_S_NS))
moments = st.integers(-100 * NS_PER_S, 10_000 * NS_PER_S)
"""Times of a question, from the last answer on; a time before it is allowed too."""


def ping_all(quartz: Quartz, exchange: list[Ping]) -> tuple[ClockAlignment, int]:
    """Return the alignment after these pings, and the time of the last answer."""
    alignment, now_ns = ClockAlignment(), 0
    for ping in exchange:
        sent_ns = now_ns + ping.pause_ns
        read_ns = sent_ns + ping.there_ns
        now_ns = read_ns + ping.back_ns
        alignment = alignment.add(sent_ns, floor(quartz.tell(read_ns)), now_ns)
    return alignment, now_ns


@given(quartzes, pings, moments)
def test_true_offset_is_within_the_error_bound(quartz: Quartz, exchange: list[Ping], after_ns: int) -> None:
    alignment, last_ns = ping_all(quartz, exchange)
    now_ns = last_ns + after_ns
    found = alignment.at(CollectorNs(now_ns))
    assert found is not None
    true_offset_ns = quartz.tell(now_ns) - now_ns
    assert abs(found.offset_ns - true_offset_ns) <= found.error_ns + READING_NS


@given(quartzes, pings, moments)
def test_moment_on_the_ranks_clock_is_found_on_ours(quartz: Quartz, exchange: list[Ping], after_ns: int) -> None:
    alignment, last_ns = ping_all(quartz, exchange)
    now_ns = last_ns + after_ns
    found, collector_ns = (
        alignment.at(CollectorNs(now_ns)),
        alignment.to_collector_time(floor(quartz.tell(now_ns)), CollectorNs(now_ns)),
    )
    assert found is not None
    assert collector_ns is not None
    assert abs(collector_ns - now_ns) <= found.error_ns + 2 * READING_NS


@given(quartzes, pings, st.integers(0, 10_000 * NS_PER_S))
def test_another_ping_never_makes_the_bound_worse(quartz: Quartz, exchange: list[Ping], after_ns: int) -> None:
    alignment, last_ns = ping_all(quartz, exchange[:15])
    now_ns = last_ns + after_ns
    before = alignment.at(CollectorNs(now_ns))
    alignment = alignment.add(last_ns, floor(quartz.tell(last_ns)), last_ns)
    after = alignment.at(CollectorNs(now_ns))
    assert before is not None
    assert after is not None
    assert after.error_ns <= before.error_ns


@given(quartzes, pings, pings, st.integers(-(10**12), 10**12))
def test_answer_after_a_jump_is_within_its_bound(
    quartz: Quartz, before: list[Ping], after: list[Ping], jump_ns: int
) -> None:
    alignment, now_ns = ping_all(quartz, before)
    moved = quartz._replace(offset_ns=quartz.offset_ns + jump_ns)
    for ping in after:
        sent_ns = now_ns + ping.pause_ns
        read_ns = sent_ns + ping.there_ns
        now_ns = read_ns + ping.back_ns
        alignment = alignment.add(sent_ns, floor(moved.tell(read_ns)), now_ns)
        own = ClockAlignment()
        own = own.add(sent_ns, 0, now_ns)
        fresh = own.at(CollectorNs(now_ns))
        assert fresh is not None
        worst_ns = 2 * fresh.error_ns + 4 * READING_NS
        found = alignment.at(CollectorNs(now_ns))
        assert found is not None
        true_offset_ns = moved.tell(now_ns) - now_ns
        # The sample that is believed agrees with the newest, which is right: so it is off by no more than both bounds.
        assert abs(found.offset_ns - true_offset_ns) <= found.error_ns + worst_ns
