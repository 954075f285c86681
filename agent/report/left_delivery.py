"""The way of a life's left reports to the collector: in its name, under its numbers, by the rules of a life.

The collector takes each report once, whatever it had before: its Welcome says where it stands (delivery.py). Reports
that the disk has lost divide the others into parts. Each part begins with a Hello of its own, whose `first_sequence`
tells the collector not to wait for what lies before it, and so to count that as lost.
"""

import random
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from rankscope.agent.report.left_behind import BYTES_READ_MAX, Address, LeftLife, LeftRefusedError
from rankscope.agent.report.sender import Sender
from rankscope.measure.clock import Clock
from rankscope.measure.messages import Hello
from rankscope.measure.units import NS_PER_MS
from rankscope.uplink.delivery import Delivery, DeliveryState
from rankscope.uplink.resend_buffer import HeldFrame, ResendBuffer

TURN_NS: Final = 200 * NS_PER_MS
"""How often a delivery looks whether it is to stop."""

SEQUENCE_MAX: Final = 2**63 - 1


def deliver(
    life: LeftLife, address: Address, clock: Clock, *, deadline_ns: int, is_stopping: Callable[[], bool]
) -> bool:
    """Deliver the reports of a life to a collector; whether all were acknowledged by the deadline.

    Raises SettingError for an endpoint that cannot be read, LeftRefusedError when the collector will never take them.
    """
    return all(
        _deliver_run(run, life.hello, address, clock, deadline_ns=deadline_ns, is_stopping=is_stopping)
        for run in life.runs
    )


def _deliver_run(
    run: Sequence[HeldFrame],
    hello: Hello,
    address: Address,
    clock: Clock,
    *,
    deadline_ns: int,
    is_stopping: Callable[[], bool],
) -> bool:
    boot_id = hello.identity.boot_id
    buffer = ResendBuffer(len(run), BYTES_READ_MAX, after=run[0].sequence - 1)
    for held in run:
        buffer.push(held.sequence, held.frame, held.step_count)
    # The life may have sent any of them before it ended, and later ones that the disk has lost since.
    delivery = Delivery(buffer, random.Random(boot_id), sent_through=SEQUENCE_MAX)  # noqa: S311 - spreads connects, no secret

    def introduce(first_sequence: int) -> Hello:
        return msgspec.structs.replace(hello, first_sequence=first_sequence, left_behind=True)

    sender = Sender(delivery, clock, boot_id, introduce)
    try:
        sender.open(address.endpoint, address.keys)
        while not delivery.everything_acknowledged:
            now_ns = clock.monotonic_ns()
            if delivery.state is DeliveryState.REFUSED:
                raise LeftRefusedError(
                    f"the collector at {address.endpoint} refuses the reports left on the disk: {delivery.refusal}"
                )
            if now_ns >= deadline_ns or is_stopping():
                return False
            sender.exchange(min(deadline_ns, now_ns + TURN_NS))
        return True
    finally:
        sender.close()
