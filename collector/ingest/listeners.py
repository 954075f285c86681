"""Listening so that thousands of ranks get in while thousands of others report.

ZeroMQ's thread goes round: it asks the kernel which sockets have something, up to 256 at a time, and serves each. A
listener that has connections waiting takes one of them each time, however many there are. With thousands of ranks that
report, a round is 256 messages and some milliseconds long, so that a few hundred connections a second get in, while the
kernel's queue of them runs over.

So there are several listeners at the one socket: each takes one in a round.
"""

import os
from typing import Final

import zmq
from zmq.utils.monitor import recv_monitor_message

LISTENERS: Final = 16
"""At 256 messages of 10 us in a round some 6,000 connections a second: more than the encryption's handshake, of some
0.3 ms each, lets in."""

_TOLD_MS_MAX: Final = 1_000
"""ZeroMQ tells of a listener before `bind` returns."""


def listen(router: "zmq.Socket[bytes]", endpoint: str) -> None:
    """Listen there; the real address is the router's LAST_ENDPOINT then. Raises zmq.ZMQError where that is not
    possible. The router must have no monitor yet.
    """
    events = router.get_monitor_socket(zmq.EVENT_LISTENING)
    try:
        router.bind(endpoint)
        file = int(recv_monitor_message(events)["value"]) if events.poll(_TOLD_MS_MAX) else None
    finally:
        router.disable_monitor()
        events.close(linger=0)
    if file is None or not endpoint.startswith("tcp://"):
        return  # an ipc socket has the ranks of one machine
    # What one listener finds waiting another one may just have taken, and then it must not wait for the next.
    os.set_blocking(file, False)
    real = router.getsockopt_string(zmq.LAST_ENDPOINT)
    for _ in range(LISTENERS - 1):
        router.setsockopt(zmq.USE_FD, os.dup(file))  # ZeroMQ closes it
        router.bind(real)
    router.setsockopt(zmq.USE_FD, -1)
