"""A rank's clock on ours, ping by ping. Times in ns; drift is 100 us a second: 1 ns for each 10,000 begun."""

import pytest

from rankscope.collector.runs.clock_alignment import (
    SAMPLES_MAX,
    Alignment,
    ClockAlignment,
    latest_arrival_ns,
    unpack_samples,
)
from rankscope.measure.units import NS_PER_S, CollectorNs


def alignment_of(*samples: tuple[int, int, int]) -> ClockAlignment:
    """From (sent, host, received)."""
    alignment = ClockAlignment()
    for sample in samples:
        alignment = alignment.add(*sample)
    return alignment


def test_before_the_first_answer_nothing_is_known() -> None:
    assert ClockAlignment().at(CollectorNs(5)) is None
    assert ClockAlignment().to_collector_time(7, CollectorNs(5)) is None


def test_offset_is_known_to_half_the_round_trip() -> None:
    assert alignment_of((1_000, 9_000, 1_400)).at(CollectorNs(1_400)) == Alignment(9_000 - 1_200, 200 + 1)


def test_held_answer_is_dated_back_within_the_drift() -> None:
    assert latest_arrival_ns(now_collector_ns=5_000, age_ns=0) == 5_000
    # 1,000,000 ns by the relay's clock are at least 999,900 by ours, and a whole nanosecond more for what is cut off.
    assert latest_arrival_ns(now_collector_ns=5_000_000, age_ns=1_000_000) == 4_000_000 + 100 + 1


def test_half_of_an_odd_round_trip_is_rounded_up() -> None:
    assert alignment_of((0, 100, 5)).at(CollectorNs(5)) == Alignment(98, 3 + 1)


def test_error_grows_with_the_time_since_the_ping_was_sent() -> None:
    alignment = alignment_of((0, 0, 100))
    # 50 for half the round trip; in 1,000,000 ns the clocks drift apart by 100.
    assert [found.error_ns for now in (100, 1_000_000) if (found := alignment.at(CollectorNs(now)))] == [
        50 + 1,
        50 + 100,
    ]


def test_error_grows_backwards_too() -> None:
    found = alignment_of((1_000_000, 0, 1_000_100)).at(CollectorNs(100))
    assert found is not None
    assert found.error_ns == 50 + 100


def test_drift_during_a_long_round_trip_counts() -> None:
    # The rank may have read its clock when the ping left, and drifted for the whole second that the answer took.
    found = alignment_of((0, 0, 1_000_000_000)).at(CollectorNs(1_000_000_000))
    assert found == Alignment(-500_000_000, 500_000_000 + 100_000)


def test_shortest_round_trip_wins_until_drift_outgrows_it() -> None:
    # At 1,000: 50 + 1 against 200 + 1. At 2,000,000: 50 + 200 against 200 + 1 of a ping sent just before.
    alignment = alignment_of((0, 7_050, 100))
    alignment = alignment.add(600, 7_800, 1_000)
    assert alignment.at(CollectorNs(1_000)) == Alignment(7_000, 50 + 1)
    alignment = alignment.add(1_999_600, 2_006_900, 2_000_000)
    assert alignment.at(CollectorNs(2_000_000)) == Alignment(7_100, 200 + 1)


def test_of_two_equally_good_samples_the_later_one_counts() -> None:
    alignment = alignment_of((0, 500, 100), (0, 600, 100))
    assert alignment.at(CollectorNs(100)) == Alignment(550, 50 + 1)


def test_answer_from_before_the_question_is_none() -> None:
    assert alignment_of((1_000, 5, 999)).at(CollectorNs(1_000)) is None
    assert alignment_of((1_000, 5_000, 1_000)).at(CollectorNs(1_000)) == Alignment(4_000, 0)


def test_only_the_last_samples_are_kept() -> None:
    alignment = alignment_of((0, 500, 0), *[(0, 600, 1_000)] * (SAMPLES_MAX - 1))
    assert alignment.at(CollectorNs(1_000)) == Alignment(500, 0 + 1)
    alignment = alignment.add(0, 600, 1_000)
    assert alignment.at(CollectorNs(1_000)) == Alignment(100, 500 + 1)


def test_jump_drops_the_samples_before_it() -> None:
    """The better sample from before would win for 4 more seconds, and be wrong by a second."""
    alignment = alignment_of((0, 7_050, 100))  # offset 7,000, within 50
    alignment = alignment.add(10_000, 10_500 + 7_000 + 10**9, 11_000)
    assert alignment.at(CollectorNs(11_000)) == Alignment(7_000 + 10**9, 500 + 1)


def test_clock_that_jumped_back_is_known_anew_too() -> None:
    alignment = alignment_of((0, 7_050, 100), (10_000, 10_050 + 7_000 - 5_000, 10_100))
    assert alignment.at(CollectorNs(10_100)) == Alignment(2_000, 50 + 1)


@pytest.mark.parametrize(("jump_ns", "is_seen"), [(0, False), (105, False), (106, True)])
def test_jump_is_seen_when_the_bounds_have_nothing_in_common(jump_ns: int, is_seen: bool) -> None:
    """50 of each round trip, 1 and 2 of drift at 10,100, 2 for the readings: 105 may be chance."""
    alignment = alignment_of((0, 50, 100), (10_000, 10_050 + jump_ns, 10_100))
    later = alignment.at(CollectorNs(50))  # the first sample is the better one about this moment, where it is kept
    assert later is not None
    assert (later.offset_ns == jump_ns) is (is_seen or jump_ns == 0)


def test_answer_from_before_a_jump_is_ignored() -> None:
    alignment = alignment_of((0, 7_050, 100), (10_000, 10_050 + 10**9, 10_100))
    alignment = alignment.add(5_000, 5_050 + 7_000, 10_200)
    assert alignment.at(CollectorNs(10_200)) == Alignment(10**9, 50 + 1)


def test_clock_that_drifts_within_the_bound_is_no_jump() -> None:
    """100 us a second: after 1,000 s a clock is 0.1 s off, and every sample still agrees with every other."""
    second = 10**9
    samples = [(at * second, at * second + at * 100_000, at * second) for at in range(0, 1_000, 100)]
    assert alignment_of(*samples).at(CollectorNs(900 * second)) == Alignment(90_000_000, 0)
    assert len(unpack_samples(alignment_of(*samples).samples)) == 10


@pytest.mark.parametrize("offset_ns", [0, 10**18, -(10**18)])
def test_time_of_the_ranks_clock_is_moved_by_the_offset(offset_ns: int) -> None:
    alignment = alignment_of((1_000, 1_200 + offset_ns, 1_400))
    assert alignment.to_collector_time(9_000 + offset_ns, CollectorNs(1_400)) == 9_000


def test_time_of_the_past_has_the_best_alignment_of_that_time() -> None:
    alignment = ClockAlignment().add(0, 700, 200).add(NS_PER_S, NS_PER_S + 610, NS_PER_S + 20)
    # The offset is 600 both times, within 100 and 10; and the drift in between is 100 us.
    assert alignment.at_host_time(700) == Alignment(600, 101)
    assert alignment.at_host_time(NS_PER_S + 700) == Alignment(600, 10 + 1)
    half = alignment.at_host_time(NS_PER_S // 2 + 600)
    assert half is not None
    assert half.error_ns == 10 + 50_001, "of the ping half a second later, not 100 + 50,000 of the one before"


def test_time_before_every_sample_that_is_left_is_not_aligned() -> None:
    assert ClockAlignment().at_host_time(5) is None
    alignment = ClockAlignment().add(1_000, 1_600, 1_200)
    assert alignment.at_host_time(1_500) == Alignment(500, 101)
    assert alignment.at_host_time(1_499) is None
    jumped = alignment.add(2 * NS_PER_S, 3 * NS_PER_S, 2 * NS_PER_S + 100)
    assert jumped.at_host_time(2 * NS_PER_S) is None, "which the clock showed before its jump, or never"


def test_offset_that_no_clock_has_is_ignored() -> None:
    alignment = alignment_of((0, 50, 100), (1_000, 2**63 + 1_050, 1_100), (2_000, -(2**64), 2_100))
    assert alignment.at(CollectorNs(1_100)) == alignment_of((0, 50, 100)).at(CollectorNs(1_100))
