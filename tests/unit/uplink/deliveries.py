"""Deliveries for tests, on a simulated clock. Times are in ms: `at(200)` is 200 ms."""

import random
from typing import Any

from rankscope.uplink.delivery import Delivery, DeliverySettings, Send, SendFrame
from rankscope.uplink.resend_buffer import ResendBuffer


class LongestPause(random.Random):
    """Chance that never shortens a pause: 50 % + 50 % of just under 1."""

    def random(self) -> float:
        """Return the largest value there is."""
        return 1 - 2**-53


def at(milliseconds: int) -> int:
    """A time of the test."""
    return milliseconds * 1_000_000


def delivery_with(count: int, frames_max: int = 1000, **settings: int) -> Delivery:
    """A delivery that holds frames 1 to `count` and asks after 2 s of silence."""
    values: dict[str, Any] = {"resend_after_ns": at(2000), **settings}
    delivery = Delivery(ResendBuffer(frames_max, 10**6), LongestPause(), DeliverySettings(**values))
    push(delivery, count)
    return delivery


def welcomed_with(count: int, frames_max: int = 1000, **settings: int) -> Delivery:
    """The same after a Hello and a Welcome at 0, with all `count` frames in flight."""
    delivery = delivery_with(count, frames_max, **settings)
    delivery.on_tick(at(0))
    delivery.on_welcome(0, at(0))
    return delivery


def push(delivery: Delivery, count: int) -> None:
    """`count` more frames."""
    for _ in range(count):
        sequence = delivery.buffer.last_sequence + 1
        delivery.buffer.push(sequence, b"frame %d" % sequence, 1)


def numbers(sends: list[Send]) -> list[int]:
    """The numbers of the frames; a Hello among them fails."""
    assert all(isinstance(send, SendFrame) for send in sends), sends
    return [send.sequence for send in sends if isinstance(send, SendFrame)]
