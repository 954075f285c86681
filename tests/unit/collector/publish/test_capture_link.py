"""Captures between the service and its publisher, over a real connection."""

import os
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection

import msgspec
import pytest

from rankscope.collector.captures.capture import NO_CAPTURES, Capture, CaptureRefusal, CaptureRequest
from rankscope.collector.fault_log import FaultLog
from rankscope.collector.publish.publisher_link import PublisherLink, Sources
from rankscope.collector.publish.snapshot_messages import CaptureAnswer, CaptureWanted, Health, Update
from rankscope.collector.runs.snapshot import Snapshot
from rankscope.collector.wakeup import Wakeup
from rankscope.measure.clock import SystemClock

CAPTURE = Capture(id="1", run="bert", run_id="bert@1", state="ordered", asked_wall_s=5.0, changed_wall_s=5.0)


class Reader:
    """The publisher's end of the connection, which the test reads itself."""

    def __init__(self, connection: Connection) -> None:
        self.connection = Connection(os.dup(connection.fileno()))

    def wait(self, _seconds: float) -> bool:
        return True

    def kill(self) -> None:
        pass

    def describe_end(self) -> str:
        return "ended"


class Service:
    """What a service would hand to its link."""

    def __init__(self) -> None:
        self.captures: tuple[Capture, ...] = ()
        self.readers: list[Reader] = []
        self.is_started = threading.Event()
        self.published = Wakeup()
        self.link = PublisherLink(
            self._start,
            Sources(
                lambda: Snapshot(wall_s=0.0, version="0"), tuple, lambda: Health(0), lambda _run: None,
                order_capture=self._order, read_captures=lambda: self.captures,
            ),
            FaultLog(SystemClock()),
            self.published,
        )  # fmt: skip
        self.link.start()

    def _start(self, connection: Connection) -> Reader:
        self.readers.append(Reader(connection))
        self.is_started.set()
        return self.readers[-1]

    def _order(self, request: CaptureRequest) -> Capture | CaptureRefusal:
        if request.run != "bert":
            return CaptureRefusal(404, f"no run {request.run!r}")
        self.captures = (CAPTURE,)
        return CAPTURE

    def read(self) -> object:
        """Return the next message to the publisher."""
        assert self.is_started.wait(20.0)
        assert self.readers[0].connection.poll(20.0)
        return self.readers[0].connection.recv()

    def ask(self, run: str) -> object:
        """Order a capture as the publisher does, and return the answer."""
        return self.read_all_for(run)[-1]

    def read_all_for(self, run: str) -> list[object]:
        """Order a capture, and return all messages until the answer."""
        wanted = CaptureWanted(7, CaptureRequest(run=run))
        self.readers[0].connection.send_bytes(msgspec.msgpack.encode(wanted))
        found = [self.read()]
        while not isinstance(found[-1], CaptureAnswer):
            found.append(self.read())
        return found


@pytest.fixture
def service() -> Iterator[Service]:
    found = Service()
    found.read()
    yield found
    found.link.close()


def test_order_is_answered_with_the_capture(service: Service) -> None:
    assert service.ask("bert") == CaptureAnswer(7, CAPTURE)


def test_ordered_capture_is_listed_before_the_order_is_answered(service: Service) -> None:
    told = [one.captures for one in service.read_all_for("bert") if isinstance(one, Update)]
    assert (CAPTURE,) in told


def test_refused_order_is_answered_with_the_reason(service: Service) -> None:
    assert service.ask("gpt") == CaptureAnswer(7, CaptureRefusal(404, "no run 'gpt'"))


def test_captures_are_sent_when_they_have_changed_only(service: Service) -> None:
    service.published.set()
    unchanged = service.read()
    service.captures = (CAPTURE,)
    service.published.set()
    changed = service.read()
    assert isinstance(unchanged, Update)
    assert isinstance(changed, Update)
    assert (unchanged.captures, changed.captures) == (None, (CAPTURE,))


def test_source_without_captures_refuses() -> None:
    sources = Sources(lambda: Snapshot(wall_s=0.0, version="0"), tuple, lambda: Health(0), lambda _run: None)
    assert sources.order_capture(CaptureRequest(run="bert")) == NO_CAPTURES
    assert sources.read_captures() == ()
