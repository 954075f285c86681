"""Tests of delivery, event by event, on a simulated clock. Times are in ms: `at(200)` is 200 ms."""

import random

import pytest

from rankscope.measure.errors import SettingError
from rankscope.uplink.delivery import (
    HURRY_NS,
    Delivery,
    DeliverySettings,
    DeliveryState,
    Refusal,
    SendFrame,
    SendHello,
)
from rankscope.uplink.resend_buffer import ResendBuffer
from tests.unit.uplink.deliveries import at, delivery_with, numbers, push, welcomed_with

# -- unconnected ------------------------------------------------------------------------------------------------------


def test_the_first_tick_sends_a_hello_and_no_frame() -> None:
    assert delivery_with(3).on_tick(at(0)) == [SendHello(1, 1)]


def test_unanswered_hellos_have_growing_pauses() -> None:
    delivery = delivery_with(1, hello_interval_ns=at(1000), hello_interval_ns_max=at(4000))
    hellos = [now_ms for now_ms in range(0, 16_000, 500) if delivery.on_tick(at(now_ms))]
    assert hellos == [0, 1000, 3000, 7000, 11_000, 15_000]  # pauses of 1, 2, 4, 4 and 4 s


def test_chance_shortens_a_pause_to_half_at_most() -> None:
    wakes = set()
    for seed in range(50):
        delivery = Delivery(ResendBuffer(1, 1), random.Random(seed))
        delivery.on_tick(at(0))
        wakes.add(delivery.next_wake_ns)
    assert len(wakes) == 50
    assert all(wake is not None and at(500) <= wake <= at(1000) for wake in wakes)


def test_a_hello_says_what_was_dropped_meanwhile() -> None:
    delivery = delivery_with(5, frames_max=2)
    assert delivery.on_tick(at(0)) == [SendHello(4, 1)]


def test_acknowledgement_of_an_ended_process_is_accepted() -> None:
    """Reports 41 to 51 of an ended process are held; it had sent later ones, which the collector has."""
    buffer = ResendBuffer(100, 1 << 20, after=40)
    for sequence in range(41, 52):
        buffer.push(sequence, b"frame", 1)
    delivery = Delivery(buffer, random.Random(7), sent_through=2**63 - 1)
    assert delivery.on_tick(at(0)) == [SendHello(41, 1)]
    assert delivery.on_welcome(100, at(1)) == []
    assert delivery.everything_acknowledged
    assert delivery.impossible_acks == 0


def test_the_next_wake_is_when_the_next_hello_is_due() -> None:
    delivery = delivery_with(1)
    delivery.on_tick(at(0))
    assert delivery.next_wake_ns == at(1000)
    assert delivery.on_tick(at(1000) - 1) == []
    assert delivery.on_tick(at(1000)) == [SendHello(1, 2)]


# -- streaming --------------------------------------------------------------------------------------------------------


def test_a_welcome_lets_the_held_frames_go() -> None:
    delivery = delivery_with(2)
    delivery.on_tick(at(0))
    assert delivery.on_welcome(0, at(1)) == [SendFrame(1, b"frame 1"), SendFrame(2, b"frame 2")]
    assert (delivery.state, delivery.ever_welcomed) == (DeliveryState.WELCOMED, True)


def test_a_welcome_acknowledges_what_the_collector_has() -> None:
    delivery = welcomed_with(5)
    delivery.on_hello_wanted(at(300))
    assert numbers(delivery.on_welcome(3, at(301))) == [4, 5]
    assert delivery.buffer.first_sequence == 4


def test_pushed_frame_is_sent_once_with_the_next_tick() -> None:
    delivery = welcomed_with(2)
    push(delivery, 1)
    assert numbers(delivery.on_tick(at(5))) == [3]
    assert delivery.on_tick(at(6)) == []


def test_no_more_than_the_window_is_in_flight() -> None:
    delivery = delivery_with(10, in_flight_max=4)
    delivery.on_tick(at(0))
    assert numbers(delivery.on_welcome(0, at(1))) == [1, 2, 3, 4]
    assert delivery.on_tick(at(2)) == []
    assert numbers(delivery.on_ack(3, at(3))) == [5, 6, 7]  # 4 is still in flight


def test_complete_acknowledgement_needs_no_wake_up() -> None:
    delivery = welcomed_with(3)
    delivery.on_ack(3, at(10))
    assert delivery.everything_acknowledged
    assert delivery.next_wake_ns is None


# -- acknowledgements nobody should get -------------------------------------------------------------------------------


def test_stale_acknowledgements_are_counted() -> None:
    delivery = welcomed_with(5)
    delivery.on_ack(3, at(10))
    assert delivery.on_ack(3, at(11)) + delivery.on_ack(1, at(12)) == []
    assert (delivery.stale_acks, delivery.buffer.first_sequence) == (2, 4)


def test_acknowledgement_beyond_the_last_push_is_ignored() -> None:
    delivery = welcomed_with(3)
    assert delivery.on_ack(4, at(10)) == []
    assert (delivery.impossible_acks, len(delivery.buffer)) == (1, 3)


def test_acknowledgement_of_an_unsent_frame_is_ignored() -> None:
    delivery = welcomed_with(10, in_flight_max=4)
    delivery.on_ack(5, at(10))
    assert (delivery.impossible_acks, len(delivery.buffer)) == (1, 10)


def test_impossible_number_in_a_welcome_is_ignored() -> None:
    delivery = delivery_with(2)
    delivery.on_tick(at(0))
    assert numbers(delivery.on_welcome(7, at(1))) == [1, 2]
    assert delivery.impossible_acks == 1


def test_acknowledgement_after_going_back_counts() -> None:
    delivery = welcomed_with(4)
    delivery.on_tick(at(2000))  # silence: a Hello
    assert delivery.on_ack(4, at(2001)) == []
    assert delivery.everything_acknowledged


def test_late_acknowledgement_prevents_resends() -> None:
    delivery = welcomed_with(4)
    delivery.on_tick(at(2000))
    delivery.on_blocked(delivery.on_welcome(0, at(2001)))
    delivery.on_ack(4, at(2002))
    push(delivery, 1)
    assert numbers(delivery.on_writable(at(2003))) == [5]


def test_a_second_welcome_sends_nothing_again() -> None:
    delivery = welcomed_with(3)
    assert delivery.on_welcome(0, at(1)) == []
    assert delivery.resends == 0


# -- silence ----------------------------------------------------------------------------------------------------------


def test_silence_sends_a_hello_and_resumes_from_the_welcome() -> None:
    delivery = welcomed_with(5)
    delivery.on_ack(2, at(500))
    assert delivery.next_wake_ns == at(2500)
    assert delivery.on_tick(at(2500) - 1) == []
    assert delivery.on_tick(at(2500)) == [SendHello(3, 2)]
    assert numbers(delivery.on_welcome(3, at(2501))) == [4, 5]
    assert delivery.resends == 2


def test_silence_is_shorter_after_the_last_message() -> None:
    delivery = welcomed_with(5)
    delivery.on_ack(2, at(500))
    delivery.hurry()
    asked_ns = at(500) + HURRY_NS
    assert delivery.next_wake_ns == asked_ns
    assert delivery.on_tick(asked_ns - 1) == []
    assert delivery.on_tick(asked_ns) == [SendHello(3, 2)]


def test_who_asks_soon_anyway_asks_no_later_for_hurrying() -> None:
    delivery = welcomed_with(1, resend_after_ns=HURRY_NS // 2)
    delivery.hurry()
    assert delivery.next_wake_ns == HURRY_NS // 2


def test_stale_acknowledgements_do_not_end_the_silence() -> None:
    delivery = welcomed_with(3)
    delivery.on_ack(0, at(1999))
    assert delivery.on_tick(at(2000)) == [SendHello(1, 2)]


def test_with_nothing_in_flight_there_is_no_silence() -> None:
    delivery = welcomed_with(1)
    delivery.on_ack(1, at(1))
    assert delivery.on_tick(at(3_600_000)) == []
    push(delivery, 1)
    assert numbers(delivery.on_tick(at(3_600_001))) == [2]
    assert delivery.next_wake_ns == at(3_602_001)


def test_only_hellos_are_sent_during_silence() -> None:
    delivery = welcomed_with(5)
    sends = [send for now_ms in range(2000, 60_000, 100) for send in delivery.on_tick(at(now_ms))]
    assert sends == [SendHello(1, number) for number in range(2, 8)]  # at 2, 3, 5, 9, 17 and 33 s; the next one at 63 s


# -- frames dropped from a full buffer --------------------------------------------------------------------------------


def test_hello_after_silence_skips_dropped_frames() -> None:
    delivery = welcomed_with(3, frames_max=3)
    push(delivery, 2)  # 1 and 2 fall out, and whether they arrived is not known
    assert numbers(delivery.on_tick(at(1000))) == [4, 5]
    assert delivery.on_tick(at(2000)) == [SendHello(3, 2)]


def test_successive_drops_do_not_hide_the_silence() -> None:
    delivery = welcomed_with(1, frames_max=1)
    given = []
    for now_ms in range(500, 2001, 500):
        push(delivery, 1)  # each one drops the one before, which is in flight
        given += delivery.on_tick(at(now_ms))
    assert given == [SendFrame(2, b"frame 2"), SendFrame(3, b"frame 3"), SendFrame(4, b"frame 4"), SendHello(5, 2)]


def test_hello_skips_frames_dropped_unsent() -> None:
    delivery = welcomed_with(1, frames_max=3)
    push(delivery, 5)
    assert delivery.on_tick(at(500)) == [SendHello(4, 2)]


def test_frames_dropped_before_the_welcome_are_skipped() -> None:
    delivery = delivery_with(3, frames_max=3)
    delivery.on_tick(at(0))
    push(delivery, 2)
    assert delivery.on_welcome(0, at(1)) == [SendHello(3, 2), *(SendFrame(n, b"frame %d" % n) for n in (3, 4, 5))]


def test_welcome_may_have_numbers_dropped_unsent() -> None:
    delivery = delivery_with(5, frames_max=3)
    delivery.on_tick(at(0))
    assert numbers(delivery.on_welcome(2, at(1))) == [3, 4, 5]
    assert delivery.impossible_acks == 0


def test_dropped_frames_do_not_count_as_in_flight() -> None:
    delivery = delivery_with(9, frames_max=2, in_flight_max=4)
    delivery.on_tick(at(0))
    assert numbers(delivery.on_welcome(0, at(1))[1:]) == [8, 9]


def test_acknowledgement_of_dropped_frames_ends_the_silence() -> None:
    delivery = welcomed_with(3, frames_max=3)
    push(delivery, 2)
    delivery.on_ack(2, at(1999))
    assert (delivery.impossible_acks, delivery.stale_acks) == (0, 0)
    assert numbers(delivery.on_tick(at(2000))) == []


# -- hello wanted -----------------------------------------------------------------------------------------------------


def test_a_collector_that_asks_gets_a_hello_at_once() -> None:
    delivery = welcomed_with(3)
    assert delivery.on_hello_wanted(at(300)) == [SendHello(1, 2)]
    assert delivery.state is DeliveryState.UNCONNECTED


def test_hellos_are_at_least_200_ms_apart() -> None:
    delivery = welcomed_with(3)
    delivery.on_hello_wanted(at(300))
    hellos = [now_ms for now_ms in range(301, 1000) if delivery.on_hello_wanted(at(now_ms))]
    assert hellos == [500, 700, 900]


def test_early_hello_request_is_answered_later() -> None:
    delivery = welcomed_with(3)  # its Hello was at 0
    assert delivery.on_hello_wanted(at(50)) == []
    assert delivery.next_wake_ns == at(200)
    assert delivery.on_tick(at(200)) == [SendHello(1, 2)]


# -- refusal and end --------------------------------------------------------------------------------------------------


def test_refused_rank_sends_nothing() -> None:
    delivery = welcomed_with(3)
    assert delivery.on_refused("protocol_too_old", "upgrade rankscope") == []
    assert delivery.refusal == Refusal("protocol_too_old", "upgrade rankscope")
    assert delivery.on_welcome(0, at(5)) + delivery.on_hello_wanted(at(900)) + delivery.on_tick(at(9000)) == []
    assert (delivery.state, delivery.next_wake_ns) == (DeliveryState.REFUSED, None)


def test_the_first_refusal_is_the_one_kept() -> None:
    delivery = delivery_with(1)
    delivery.on_refused("protocol_too_old", "upgrade rankscope")
    delivery.on_refused("unknown_run", "")
    assert delivery.refusal == Refusal("protocol_too_old", "upgrade rankscope")


def test_full_collector_is_retried_after_the_longest_pause() -> None:
    delivery = delivery_with(1)
    delivery.on_tick(at(0))
    delivery.on_refused("full", "ranks_max is 8")
    assert (delivery.state, delivery.next_wake_ns) == (DeliveryState.UNCONNECTED, at(30_000))
    assert delivery.on_tick(at(30_000)) == [SendHello(1, 2)]


def test_a_welcome_ends_a_refusal_that_could_pass() -> None:
    delivery = delivery_with(1)
    delivery.on_refused("full", "ranks_max is 8")
    assert numbers(delivery.on_welcome(0, at(1))) == [1]
    assert delivery.refusal is None


def test_a_closed_delivery_sends_nothing() -> None:
    delivery = welcomed_with(3)
    delivery.close()
    assert delivery.on_tick(at(9000)) + delivery.on_hello_wanted(at(9000)) + delivery.on_writable(at(9000)) == []
    delivery.on_refused("full", "")
    assert (delivery.state, delivery.refusal, delivery.next_wake_ns) == (DeliveryState.CLOSED, None, None)


# -- a transport that cannot ------------------------------------------------------------------------------------------


def test_nothing_is_sent_while_blocked() -> None:
    delivery = delivery_with(1)
    delivery.on_blocked(delivery.on_tick(at(0)))
    assert delivery.on_tick(at(60_000)) + delivery.on_hello_wanted(at(60_000)) == []
    assert (delivery.blocked, delivery.next_wake_ns) == (True, None)


def test_blocked_hello_is_sent_once_writable() -> None:
    delivery = delivery_with(1)
    delivery.on_blocked(delivery.on_tick(at(0)))
    assert delivery.on_writable(at(3)) == [SendHello(1, 2)]


def test_blocked_frames_are_no_resends() -> None:
    delivery = delivery_with(5)
    delivery.on_tick(at(0))
    delivery.on_blocked(delivery.on_welcome(0, at(1))[3:])
    assert numbers(delivery.on_writable(at(2))) == [4, 5]
    assert delivery.resends == 0


def test_a_frame_that_was_not_taken_cannot_be_acknowledged() -> None:
    delivery = delivery_with(5)
    delivery.on_tick(at(0))
    delivery.on_blocked(delivery.on_welcome(0, at(1))[3:])
    delivery.on_ack(4, at(2))
    assert (delivery.impossible_acks, len(delivery.buffer)) == (1, 5)


def test_blocked_hello_is_sent_again_before_its_frames() -> None:
    delivery = delivery_with(3, frames_max=3)
    delivery.on_tick(at(0))
    push(delivery, 2)
    delivery.on_blocked(delivery.on_welcome(0, at(1)))
    assert delivery.on_writable(at(2)) == [SendHello(3, 3)]
    assert numbers(delivery.on_welcome(2, at(3))) == [3, 4, 5]


def test_welcome_while_blocked_sends_nothing() -> None:
    delivery = delivery_with(3, frames_max=3)
    delivery.on_tick(at(0))
    push(delivery, 2)
    delivery.on_blocked([])
    assert delivery.on_welcome(0, at(1)) == []


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"in_flight_max": 0}, "in_flight_max is 0; the smallest allowed is 1."),
        ({"resend_after_ns": 0}, "resend_after_ns is 0; the smallest allowed is 1000000."),
        ({"hello_interval_ns": 1}, "hello_interval_ns is 1; the smallest allowed is 200000000."),
        ({"hello_interval_ns_max": 5}, "hello_interval_ns_max is 5; the smallest allowed is 1000000000."),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, int], text: str) -> None:
    with pytest.raises(SettingError, match=text):
        DeliverySettings(**settings)  # type: ignore[arg-type]
