"""Tests of delivery to a slow collector: fewer Hellos, and no duplicates."""

from collections import deque

import pytest

from rankscope.uplink.delivery import HELLOS_KEPT, DeliveryState, Send, SendHello
from tests.unit.uplink.deliveries import at, delivery_with, numbers, push


@pytest.mark.parametrize("delay_s", [1, 5, 10, 20, 40])
def test_slow_collector_gets_no_duplicates(delay_s: int) -> None:
    """Everything waits for so long before it is read, and is answered at once, but for reports: some seconds later."""
    delivery = delivery_with(0, resend_after_ns=at(6000))
    unread: deque[tuple[int, Send]] = deque()
    admitted, seen = 0, 0
    for second in range(300):
        now_ns = at(1000 * second)
        push(delivery, 1)
        sends = delivery.on_tick(now_ns)
        while unread and unread[0][0] <= second:
            _, send = unread.popleft()
            if isinstance(send, SendHello):
                sends += delivery.on_welcome(admitted, now_ns, send.number)
            else:
                seen += 1
                admitted += send.sequence == admitted + 1
        if second % 4 == 0 and admitted:
            sends += delivery.on_ack(admitted, now_ns)
        unread.extend((second + delay_s, send) for send in sends)
    assert (seen, delivery.resends) == (admitted, 0)
    assert admitted >= 100


def test_welcome_of_an_early_hello_does_not_resume() -> None:
    delivery = delivery_with(2)
    assert delivery.on_tick(at(0)) + delivery.on_tick(at(1000)) == [SendHello(1, 1), SendHello(1, 2)]
    assert numbers(delivery.on_welcome(0, at(1500), hello_number=1)) == [1, 2]
    assert delivery.on_tick(at(5000)) == [SendHello(1, 3)]
    assert delivery.on_welcome(0, at(5100), hello_number=2) == []
    assert delivery.state is DeliveryState.UNCONNECTED
    assert numbers(delivery.on_welcome(1, at(5200), hello_number=3)) == [2]


def test_slow_answers_extend_the_allowed_silence() -> None:
    delivery = delivery_with(2)
    delivery.on_tick(at(0))
    assert numbers(delivery.on_welcome(0, at(900), hello_number=1)) == [1, 2]
    assert delivery.next_wake_ns == at(900 + 2000 + 900)
    assert delivery.on_tick(at(3799)) == []
    delivery.on_ack(2, at(3799))
    push(delivery, 1)
    assert numbers(delivery.on_tick(at(4000))) == [3]
    assert delivery.next_wake_ns == at(4000 + 2000)


def test_very_slow_collector_is_asked_at_longest_pauses() -> None:
    delivery = delivery_with(1)
    delivery.on_tick(at(0))
    assert numbers(delivery.on_welcome(0, at(300_000), hello_number=1)) == [1]
    assert delivery.next_wake_ns == at(300_000 + 2000 + 30_000)


def test_unanswered_hellos_are_bounded() -> None:
    delivery = delivery_with(1)
    for minute in range(HELLOS_KEPT + 1):
        assert delivery.on_tick(at(60_000 * minute)) == [SendHello(1, minute + 1)]
    assert delivery.on_welcome(0, at(3_850_000), hello_number=1) == []
    assert numbers(delivery.on_welcome(0, at(3_850_000), hello_number=2)) == [1]
