"""Acknowledgements of a peer: at once, for eight messages, or when the oldest has waited long enough."""

from rankscope.collector.ingest.acknowledgements import AGE_INTERVALS, AGE_NS_MAX, REPORTS_MAX, Acknowledgements
from rankscope.measure.units import NS_PER_MS, NS_PER_S
from rankscope.uplink.delivery import DeliverySettings

PEER, OTHER = b"boot-of-1", b"boot-of-2"


def test_urgent_messages_are_acknowledged_at_once() -> None:
    found = Acknowledgements()
    found.note(PEER, 1, 0, interval_ns=0)
    assert (found.pop_due(0), found.pop_due(0), found.wake_ns) == ({PEER: 1}, {}, None)


def test_one_acknowledgement_covers_eight_messages() -> None:
    found = Acknowledgements()
    taken = []
    for number in range(1, 2 * REPORTS_MAX + 1):
        found.note(PEER, number, number, interval_ns=NS_PER_S)
        taken.append(found.pop_due(number))
    assert [due for due in taken if due] == [{PEER: REPORTS_MAX}, {PEER: 2 * REPORTS_MAX}]


def test_messages_that_came_together_count_each() -> None:
    found = Acknowledgements()
    for number in range(1, 8):
        found.note(PEER, number, 0, interval_ns=NS_PER_S)
    assert found.pop_due(0) == {}
    for number in (8, 9):
        found.note(PEER, number, 0, interval_ns=NS_PER_S)
    assert found.pop_due(0) == {PEER: 9}


def test_age_of_acknowledged_messages_does_not_count() -> None:
    # The ninth comes when the first would have waited long enough: by then that is acknowledged.
    found = Acknowledgements()
    for number in range(1, REPORTS_MAX + 1):
        found.note(PEER, number, number, interval_ns=NS_PER_S)
    assert found.pop_due(REPORTS_MAX) == {PEER: REPORTS_MAX}
    found.note(PEER, REPORTS_MAX + 1, AGE_NS_MAX, interval_ns=NS_PER_S)
    assert found.pop_due(1 + AGE_NS_MAX) == {}
    assert found.wake_ns == 2 * AGE_NS_MAX
    assert found.pop_due(2 * AGE_NS_MAX) == {PEER: REPORTS_MAX + 1}


def test_oldest_message_of_a_peer_determines_the_wait() -> None:
    found = Acknowledgements()
    found.note(PEER, 1, 100, interval_ns=NS_PER_S)
    found.note(OTHER, 5, 200, interval_ns=NS_PER_S)
    found.note(PEER, 2, 300, interval_ns=NS_PER_S)
    assert found.wake_ns == 100 + AGE_NS_MAX
    assert found.pop_due(99 + AGE_NS_MAX) == {}
    assert found.pop_due(100 + AGE_NS_MAX) == {PEER: 2}
    assert (found.wake_ns, found.pop_due(200 + AGE_NS_MAX)) == (200 + AGE_NS_MAX, {OTHER: 5})


def test_wait_follows_the_report_interval_up_to_a_maximum() -> None:
    found = Acknowledgements()
    found.note(OTHER, 1, 0, interval_ns=60 * NS_PER_S)
    found.note(PEER, 1, 0, interval_ns=25 * NS_PER_MS)
    assert found.wake_ns == AGE_INTERVALS * 25 * NS_PER_MS
    assert found.pop_due(AGE_INTERVALS * 25 * NS_PER_MS) == {PEER: 1}
    assert (found.wake_ns, found.pop_due(AGE_NS_MAX)) == (AGE_NS_MAX, {OTHER: 1})


def test_nothing_is_acknowledged_twice() -> None:
    found = Acknowledgements()
    found.note(PEER, 1, 0, interval_ns=NS_PER_S)
    found.note(PEER, 2, 0, interval_ns=0)
    assert (found.pop_due(0), found.pop_due(AGE_NS_MAX)) == ({PEER: 2}, {})


def test_agent_is_acknowledged_before_it_sends_another_hello() -> None:
    assert DeliverySettings().resend_after_ns > AGE_NS_MAX
    assert DeliverySettings().in_flight_max > REPORTS_MAX
