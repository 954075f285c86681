"""Ranks without a training: a written story (`tests/unit/collector/runs/run_stories.py`) told to a real collector."""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import zmq

from rankscope.collector.runs.events import GoodbyeAdmitted, RankJoined, ReportAdmitted, RunEvent
from rankscope.measure.codec import decode, encode
from rankscope.measure.messages import Ack, Message, Welcome
from tests.unit.collector.runs.run_stories import Story

ANSWER_MS_MAX = 30_000
"""Far beyond what an answer takes: only a test that fails waits for it."""


class WireRanks:
    """Stands for a run: sends the events of a story to a collector, and waits until they are acknowledged."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str) -> None:
        self._context = context
        self._endpoint = endpoint
        self._sockets: dict[str, zmq.Socket[bytes]] = {}

    def apply(self, event: RunEvent) -> list[object]:
        """Send the message of an event."""
        match event:
            case RankJoined(hello):
                # Without an interval between reports each is acknowledged at once.
                hello = msgspec.structs.replace(hello, report_interval_ns=0)
                self._send(hello.identity.boot_id, hello, Welcome)
            case ReportAdmitted(boot_id, report):
                self._send(boot_id, decode(report.frame), Ack)
            case GoodbyeAdmitted(boot_id, goodbye):
                self._send(boot_id, goodbye, Ack)
        return []

    def tick(self, _now_ns: int, _wall_s: float) -> list[object]:
        """Do nothing: the collector ticks by itself."""
        return []

    def view(self, _now_ns: int) -> None:
        """Return no view: the collector runs the detectors."""

    def _send(self, boot_id: str, message: Message, answer: type[Welcome | Ack]) -> None:
        if boot_id not in self._sockets:
            self._sockets[boot_id] = self._context.socket(zmq.DEALER)
            self._sockets[boot_id].setsockopt(zmq.IDENTITY, boot_id.encode())
            self._sockets[boot_id].connect(self._endpoint)
        dealer = self._sockets[boot_id]
        dealer.send(encode(message))
        while True:  # the collector also asks for the clock, which no test of this needs
            assert dealer.poll(ANSWER_MS_MAX), f"no {answer.__name__} for a {type(message).__name__}"
            if isinstance(decode(dealer.recv()), answer):
                return


@contextmanager
def telling(story: Story, endpoint: str, *, again: bool = False) -> Iterator[Story]:
    """Play a story to a collector. Its ranks continue with their present step; `again`: as the same rank processes,
    which continue their numbers and totals.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    story.run = WireRanks(context, endpoint)  # type: ignore[assignment]  # it handles the events of a story
    try:
        yield story.come_back() if again else story.join()
    finally:
        context.destroy(linger=0)
