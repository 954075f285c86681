"""The way of a life's left reports to the collector: in its name, under its numbers, by the rules of a life.

The collector takes each report once, whatever it had before: its Welcome says where it stands (delivery.py).
"""

import random
from collections.abc import Callable
from typing import Final

import msgspec

from rankscope.agent.report.left_behind import BYTES_READ_MAX, Address, LeftLife
from rankscope.agent.report.sender import Sender
from rankscope.measure.clock import Clock
from rankscope.measure.messages import Hello
from rankscope.measure.units import NS_PER_MS
from rankscope.uplink.delivery import Delivery, DeliveryState
from rankscope.uplink.resend_buffer import ResendBuffer

TURN_NS: Final = 200 * NS_PER_MS
"""How often a delivery looks whether it is to stop."""


def deliver(
    life: LeftLife, address: Address, clock: Clock, *, deadline_ns: int, is_stopping: Callable[[], bool]
) -> bool:
    """Deliver the reports of a life to a collector; whether all were acknowledged by the deadline.

    Raises SettingError for an endpoint that cannot be read.
    """
    boot_id = life.hello.identity.boot_id
    buffer = ResendBuffer(len(life.held), BYTES_READ_MAX, after=life.held[0].sequence - 1)
    for held in life.held:
        buffer.push(held.sequence, held.frame, held.step_count)
    delivery = Delivery(buffer, random.Random(boot_id))  # noqa: S311 - spreads connects, no secret

    def introduce(first_sequence: int) -> Hello:
        return msgspec.structs.replace(life.hello, first_sequence=first_sequence, left_behind=True)

    sender = Sender(delivery, clock, boot_id, introduce)
    try:
        sender.open(address.endpoint, address.keys)
        while not delivery.everything_acknowledged:
            now_ns = clock.monotonic_ns()
            if now_ns >= deadline_ns or is_stopping() or delivery.state is DeliveryState.REFUSED:
                return False
            sender.exchange(min(deadline_ns, now_ns + TURN_NS))
        return True
    finally:
        sender.close()
