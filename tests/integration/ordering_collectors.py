"""A whole collector in this process, from which a test orders captures."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from rankscope.collector.captures.capture import ENDED, Capture, CaptureRequest
from rankscope.collector.config import CollectorConfig
from rankscope.collector.service import Service
from rankscope.measure.clock import SystemClock
from tests.integration.serving import wait_for


@contextlib.contextmanager
def running(
    folder: Path, listen: str = "tcp://127.0.0.1:0", *, captures_on_incident: bool = False
) -> Iterator[Service]:
    """A collector with a store, in a thread."""
    config = CollectorConfig(
        listen=listen,
        http_listen="127.0.0.1:0",
        store=str(folder / "store.db"),
        tick_s=0.1,
        clock_ping_s=3600.0,
        captures_on_incident=captures_on_incident,
    )
    service = Service(config, SystemClock())
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        yield service
    finally:
        service.stop()
        thread.join()


def wait_for_order(service: Service, request: CaptureRequest) -> Capture:
    """Order a capture until it is taken: before the first steps are reported it is refused."""

    def look() -> Capture | None:
        found = service.captures.order(request)
        return found if isinstance(found, Capture) else None

    return wait_for(look, lambda: str(service.captures.order(request)))


def wait_for_end(service: Service) -> Capture:
    """Return the newest capture once it has ended."""

    def look() -> Capture | None:
        newest = next(iter(service.captures.captures), None)
        return newest if newest is not None and newest.state in ENDED else None

    return wait_for(look, lambda: str(service.captures.captures))
