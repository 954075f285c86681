"""Stream snapshots of runs: `GET /api/v1/events`, server-sent events (WHATWG HTML, section 9.2).

    ?run=RUN    with that run in full; null until the run is known
    ?count=N    end after N events

An event is a LiveSnapshot in JSON; its `id` counts them, so that a reader sees from a gap what was skipped.

While anybody follows, one thread checks every CHECK_S whether there is a new snapshot, or a capture has changed. Each
reader has a thread and no queue: once its last event is sent it gets the newest state, and those in between are skipped
and counted. A reader that does not accept an event within the time limit for a write is disconnected, and counted. So a
reader costs a thread and one event, however slow it is, and there are at most `streams_max` of them.
"""

import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from types import TracebackType
from typing import Final, NamedTuple
from urllib.parse import parse_qsl

import msgspec

from rankscope.collector.captures.capture import Capture
from rankscope.collector.captures.incident_views import NO_LINKS, CaptureLinks
from rankscope.collector.process_tuning import name_this_thread
from rankscope.collector.publish.api.live_snapshot import build_live_snapshot
from rankscope.collector.publish.routes import NO_SETTINGS, PageSettings, Response, refuse
from rankscope.collector.runs.snapshot import Snapshot
from rankscope.collector.valid_answers import encode_valid

EVENTS_PATH: Final = "/api/v1/events"
EVENT_STREAM: Final = "text/event-stream"
CHECK_S: Final = 0.25
"""Seconds between two checks for a new snapshot: at most four events a second, however short the collector's tick."""
KEEP_ALIVE_S: Final = 15.0
"""A comment after so long without an event, as WHATWG advises: proxies close what is silent for longer."""
RETRY_MS: Final = 2_000
"""Time in ms after which a disconnected reader should reconnect; an EventSource does so by itself."""
RETRY_AFTER: Final = {"Retry-After": "5"}
COUNT_MAX: Final = 10**9

STREAMS_BUSY: Final = "streams_busy"
SLOW_READER: Final = "slow_reader"
SNAPSHOT_SKIPPED: Final = "snapshot_skipped"


class _Numbered(NamedTuple):
    """A snapshot and the captures with their revision, and the events by run, each made on demand."""

    revision: int
    snapshot: Snapshot
    captures: tuple[Capture, ...]
    events: dict[str | None, bytes]


class LiveFeed:
    """The snapshots of a collector, for those who follow them. `read_snapshot` returns the latest one, `read_captures`
    those that are kept, newest first; both return the same object while nothing has changed. `count` is called with the
    reason for what readers did not get, `contain` while an error of the collector is handled. `links` finds the
    captures about findings.
    """

    def __init__(
        self,
        read_snapshot: Callable[[], Snapshot],
        *,
        streams_max: int,
        count: Callable[[str], None],
        contain: Callable[[str], None],
        links: CaptureLinks = NO_LINKS,
        read_captures: Callable[[], tuple[Capture, ...]] = tuple,
        takes_orders: bool = False,
        settings: PageSettings = NO_SETTINGS,
    ) -> None:
        self._settings = settings
        self._read_snapshot = read_snapshot
        self._links = links
        self._streams_max = streams_max
        self._count = count
        self._contain = contain
        self._read_captures = read_captures
        self._takes_orders = takes_orders
        self._changed = threading.Condition()
        self._rendering = threading.Lock()
        self._newest = _Numbered(0, Snapshot(wall_s=0.0, version=""), (), {})
        self._streams = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="rankscope-live", daemon=True)
        self._thread.start()

    @property
    def streams(self) -> int:
        """Open event streams."""
        return self._streams

    def open(self, query: str) -> "Response | EventStream":
        """Return the stream of events from now on, or a refusal. The caller closes the stream."""
        asked = dict(parse_qsl(query, keep_blank_values=True))
        unknown = sorted(asked.keys() - {"run", "count"})
        if unknown:
            return refuse(HTTPStatus.BAD_REQUEST, f"{unknown[0][:80]!r} is no parameter here; run and count are")
        text = asked.get("count", str(COUNT_MAX))
        count = int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(COUNT_MAX)) else 0
        if not 1 <= count <= COUNT_MAX:
            error = f"count is {text[:80]!r}; it must be a whole number from 1 to {COUNT_MAX}"
            return refuse(HTTPStatus.BAD_REQUEST, error)
        self._refresh()  # without readers the snapshot was not refreshed
        with self._changed:
            is_full = self._streams >= self._streams_max
            self._streams += not is_full
        if is_full:
            self._count(STREAMS_BUSY)
            error = f"{self._streams_max} event streams are open already; poll the API, or try again later"
            return refuse(HTTPStatus.SERVICE_UNAVAILABLE, error, RETRY_AFTER)
        return EventStream(self._stream(asked.get("run"), count), self._leave, lambda: self._count(SLOW_READER))

    def close(self) -> None:
        """End every stream and the thread. Idempotent."""
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join()

    def _follow(self) -> None:
        name_this_thread("live")
        while not self._closing.wait(CHECK_S):
            try:
                if self._streams:
                    self._refresh()
            except Exception:  # noqa: BLE001 - the next pass may succeed
                self._contain("the live feed")

    def _refresh(self) -> None:
        snapshot, captures = self._read_snapshot(), self._read_captures()
        with self._changed:
            if snapshot is not self._newest.snapshot or captures is not self._newest.captures:
                self._newest = _Numbered(self._newest.revision + 1, snapshot, captures, {})
                self._changed.notify_all()

    def _leave(self) -> None:
        with self._changed:
            self._streams -= 1

    def _stream(self, run: str | None, count: int) -> Iterator[bytes]:
        yield f"retry: {RETRY_MS}\n\n".encode()
        sent = 0
        while count:
            newest = self._wait_for_newer(sent)
            if self._closing.is_set():
                return
            if newest.revision == sent:
                yield b": keep-alive\n\n"
                continue
            for _ in range(newest.revision - sent - 1 if sent else 0):
                self._count(SNAPSHOT_SKIPPED)
            sent, count = newest.revision, count - 1
            yield self._render(newest, run)

    def _wait_for_newer(self, sent: int) -> _Numbered:
        with self._changed:
            self._changed.wait_for(lambda: self._newest.revision > sent or self._closing.is_set(), KEEP_ALIVE_S)
            return self._newest

    def _render(self, newest: _Numbered, run: str | None) -> bytes:
        """Return the event, made once for all readers of a run."""
        with self._rendering:
            event = newest.events.get(run)
            if event is None:
                live = build_live_snapshot(
                    newest.snapshot, run, newest.captures, self._links, takes_orders=self._takes_orders
                )
                body = encode_valid(msgspec.structs.replace(live, settings=self._settings)).decode()
                event = newest.events[run] = f"id: {newest.revision}\nevent: snapshot\ndata: {body}\n\n".encode()
            return event


class EventStream:
    """Context manager that yields the events to be written to a socket."""

    def __init__(self, events: Iterator[bytes], on_end: Callable[[], None], on_slow_reader: Callable[[], None]) -> None:
        self._events = events
        self._on_end = on_end
        self._on_slow_reader = on_slow_reader

    def __enter__(self) -> Iterator[bytes]:
        return self._events

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, TimeoutError):
            self._on_slow_reader()
        self._on_end()
