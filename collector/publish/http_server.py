"""Serve the latest snapshot over HTTP, and take orders of captures: a thread a request.

    GET /metrics                 for Prometheus, in the text format that the client prefers
    GET /metrics/ranks           the same, the families of ranks of large runs; ?shard=I/N gives a part of them
    GET /healthz, /readyz        200, or 503 with the reason; /readyz also names what does not work
    GET /api/v1/runs             the runs, a line each
    GET /api/v1/runs/RUN         everything about one run; RUN is percent-encoded
    GET /api/v1/runs/RUN/report  the report of a running or finished run, from the store
    GET /api/v1/incidents        the incidents, newest first; ?run=RUN and ?state=open|resolved filter them
    GET /api/v1/debug/runs/RUN   the internal state of a run and its last events
    GET /api/v1/...              see routes_api.py, capture_routes.py and event_stream.py
    POST /api/v1/runs/RUN/captures   order a capture, with the control token (capture_routes.py); no other POST
    GET /                        this list; for a browser the live page (page_files.py)

Everything is bounded: one request a connection (HTTP/1.0: an idle connection holds no thread), the bytes of a request's
head, and by http_connections.py the connections, their time and the memory for answers. /healthz and /readyz, the files
of the live page and refusals need no place among the answers: they come as long as a connection can be made.
The token and TLS are in http_auth.py; only /healthz, /readyz and the files of the live page, which contain nothing
about any run, need no token.
Errors are JSON: {"error": "what, and what to do"}.
"""

import contextlib
import http.client
import io
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from rankscope.collector.captures.capture import NO_CAPTURES, Capture, CaptureRefusal, CaptureRequest
from rankscope.collector.captures.incident_views import CaptureLinks
from rankscope.collector.fault_log import FaultLog
from rankscope.collector.incidents.incident import Incident
from rankscope.collector.incidents.kept_nodes import KeptNodes
from rankscope.collector.incidents.nodes import NodeList
from rankscope.collector.publish.api.capture_routes import (
    BODY_BYTES_MAX,
    ORDER_ALLOWED,
    CaptureRoutes,
    FileAnswer,
    find_ordered_run,
)
from rankscope.collector.publish.api.compare_route import CompareRoute
from rankscope.collector.publish.api.event_stream import EVENT_STREAM, EVENTS_PATH, RETRY_AFTER, EventStream, LiveFeed
from rankscope.collector.publish.api.refused_orders import RefusedOrders
from rankscope.collector.publish.api.routes_api import Api
from rankscope.collector.publish.api.setting_routes import NO_SETTINGS_HERE, SETTINGS_SUFFIX, SettingRoutes
from rankscope.collector.publish.api.step_breakdown import TimeSlice
from rankscope.collector.publish.http_auth import (
    CHALLENGE,
    OPEN,
    OPEN_PATHS,
    HttpAuth,
    checks_host,
    find_host_problem,
)
from rankscope.collector.publish.http_connections import BUSY, HttpConnection, HttpConnections, HttpLimits
from rankscope.collector.publish.http_listener import HttpListener
from rankscope.collector.publish.metrics.pages import MetricPages
from rankscope.collector.publish.page_files import find_page_file
from rankscope.collector.publish.routes import JSON, NO_SETTINGS, PageSettings, Response, Routes, refuse
from rankscope.collector.runs.live_settings import RunSettings, SettingsRefusal, WantedChange
from rankscope.collector.runs.snapshot import Snapshot
from rankscope.collector.store_address import ServerAddress, StoreAddress
from rankscope.measure.clock import SystemClock

HEADERS_BYTES_MAX: Final = 65_536
"""Of all headers of a request together. The standard library alone allows a hundred of 64 KiB each."""
STREAM_BUFFER_BYTES: Final = 65_536
"""Send buffer of a reader of events: one that is behind gets the newest snapshot, and no backlog."""
FILE_CHUNK_BYTES: Final = 65_536
STOP_POLL_S: Final = 0.1
"""Longest wait of `close` for the accepting thread."""

UNAUTHORIZED: Final = "unauthorized"
FOREIGN_HOST: Final = "foreign_host"
TLS_FAILED: Final = "tls_failed"

LENGTH_DIGITS_MAX: Final = 18

ALLOWED: Final = {"Allow": "GET, HEAD"}


class HttpServer:
    """Answers at a listening socket, from threads of its own. See Routes for the other arguments. `read_time_slices`
    returns where the time of a run went. See CaptureRoutes for those of captures, SettingRoutes for `order_settings`.
    `page_settings` are those that the live page shows.
    """

    def __init__(
        self,
        listener: HttpListener,
        read_snapshot: Callable[[], Snapshot],
        read_incidents: Callable[[], Sequence[Incident]],
        *,
        is_healthy: Callable[[], str | None],
        is_ready: Callable[[], str | None],
        access: HttpAuth = OPEN,
        limits: HttpLimits | None = None,
        find_degradation: Callable[[], str | None] = lambda: None,
        read_report: Callable[[str], bytes] | None = None,
        store: StoreAddress | None = None,
        metric_pages: MetricPages | None = None,
        read_dump: Callable[[str], bytes | None] = lambda _asked: None,
        read_time_slices: Callable[[str], tuple[TimeSlice, ...]] = lambda _run: (),
        order_capture: Callable[[CaptureRequest], Capture | CaptureRefusal] = lambda _request: NO_CAPTURES,
        read_captures: Callable[[], tuple[Capture, ...]] = tuple,
        captures_folder: Path | None = None,
        order_settings: Callable[[WantedChange], RunSettings | SettingsRefusal] = lambda _wanted: NO_SETTINGS_HERE,
        page_settings: PageSettings = NO_SETTINGS,
    ) -> None:
        server = self._server = _Server(listener, access, limits or HttpLimits())
        server.captures = CaptureRoutes(order_capture, read_captures, captures_folder)
        server.settings = SettingRoutes(order_settings)
        nodes = own = None if store is None else KeptNodes(store, contain=server.contain)
        if isinstance(store, ServerAddress):  # Prometheus adds up what each collector says of a node
            own = KeptNodes(store.only_own(), contain=server.contain)
        self._nodes, read_nodes = own, None if nodes is None else nodes.show
        refresh_nodes = (lambda: None) if own is None else own.refresh
        links = CaptureLinks(read_incidents, read_captures, dict if nodes is None else nodes.read_histories)
        server.feed = LiveFeed(
            read_snapshot, streams_max=server.limits.answers_max // 2,
            count=server.count_refused, contain=server.contain, links=links,
            read_captures=read_captures, takes_orders=bool(access.control_token),
            settings=page_settings,
        )  # fmt: skip
        api = Api(read_snapshot, read_time_slices, store, read_nodes, links)
        server.routes = Routes(
            read_snapshot, read_incidents, is_healthy=is_healthy, is_ready=is_ready, find_degradation=find_degradation,
            read_report=read_report, metric_pages=metric_pages, read_dump=read_dump,
            answer_first=CompareRoute(store, api.answer).answer, links=links,
            on_scrape=refresh_nodes,
        )  # fmt: skip
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(STOP_POLL_S,), name="rankscope-http", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """Address of the server, as HttpListener.url."""
        return self._server.url

    @property
    def refused(self) -> dict[str, int]:
        """Requests that were not answered, by reason: too many at a time (`busy`, `response_memory_full`), no token or
        a wrong one (`unauthorized`), a name that is not this collector's (`foreign_host`), a TLS handshake that failed
        (`tls_failed`), too many event streams (`streams_busy`). Connections that were closed: the request was not
        complete in time (`slow_request`), the connection was closed in favor of a newer one (`request_displaced`), the
        answer was not read (`unread_response`). Event streams that ended because an event was not read (`slow_reader`),
        and snapshots that were skipped because the one before was not sent yet (`snapshot_skipped`).
        """
        return dict(self._server.refused)

    @property
    def nodes(self) -> NodeList | None:
        """The nodes of this collector's runs in the store, as they were read last for a scrape or a reader of
        incidents; None before that.
        """
        return None if self._nodes is None else self._nodes.latest

    def note_snapshot(self) -> None:
        """Note that there is a new snapshot, for the pages that are rendered before they are requested."""
        self._server.routes.metrics.note_snapshot()

    @property
    def streams(self) -> int:
        """Number of open event streams."""
        return self._server.feed.streams

    @property
    def errors_contained(self) -> int:
        """Requests answered with 500 and pages that could not be rendered: errors in the collector."""
        return self._server.errors_contained + self._server.routes.metrics.errors_contained

    def close(self) -> None:
        """Free the port and end the accepting thread, without waiting for answers in progress. Idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._server.feed.close()
        self._server.routes.metrics.close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    routes: Routes
    feed: LiveFeed
    captures: CaptureRoutes
    settings: SettingRoutes

    def __init__(self, listener: HttpListener, access: HttpAuth, limits: HttpLimits) -> None:
        self.access = access
        self.limits = limits
        self.refused: dict[str, int] = {}
        self._faults = FaultLog(SystemClock())
        self.errors_contained = 0
        self.refused_orders = RefusedOrders(SystemClock())
        self.connections = HttpConnections(limits, self.count_refused)
        self._counting = threading.Lock()
        self._thread_places = threading.BoundedSemaphore(limits.connections_max)
        self.host = listener.host
        self._listener = listener
        own_address = listener.socket.getsockname()
        super().__init__(own_address, BaseHTTPRequestHandler, bind_and_activate=False)  # finish_request replaces it
        self.socket.close()
        self.socket = listener.socket
        self.server_name, self.server_port = listener.host, own_address[1]
        self.checks_host = checks_host(access, str(own_address[0]))

    @property
    def url(self) -> str:
        """See HttpServer.url."""
        return self._listener.url(is_secure=self.access.tls is not None)

    def service_actions(self) -> None:
        """Close late connections: called by the accepting thread after each connection, and every STOP_POLL_S."""
        self.connections.close_late()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for the connection, unless there are too many."""
        if not self._thread_places.acquire(blocking=False):
            self.count_refused(BUSY)
            self._turn_away(request)
            return
        self.connections.accept(request, str(client_address[0]))
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be started
            self.connections.leave(request)
            self._thread_places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, in the connection's own thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._thread_places.release()

    def shutdown_request(self, request: Any) -> None:
        """Close the connection, after no limit can close it any more."""
        self.connections.leave(request)
        super().shutdown_request(request)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Do the TLS handshake first, where TLS is set: in the connection's own thread, within the time for the
        request.
        """
        connection = self.connections.find(request)
        if self.access.tls is None:
            _Handler(connection, request, client_address, self)
            return
        with contextlib.ExitStack() as ends:
            try:
                secured = ends.enter_context(
                    self.access.tls.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
                )
                ends.callback(self.connections.leave, request)  # before it is closed
                self.connections.secure(connection, secured)
                secured.do_handshake()
            except OSError:  # ssl.SSLError is one
                if not connection.is_closed:
                    self.count_refused(TLS_FAILED)
                return
            _Handler(connection, secured, client_address, self)

    def count_refused(self, reason: str) -> None:
        """Count a request that is not answered."""
        with self._counting:
            self.refused[reason] = self.refused.get(reason, 0) + 1

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the library's signature
        """Ignore broken connections, which the client knows of; the library would print a traceback."""
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, OSError):
            self.contain("a request")

    def contain(self, what: str) -> None:
        """Count and log the exception that is being handled, an error in the collector: one of a kind a minute."""
        with self._counting:
            self.errors_contained += 1
        self._faults.note("http", f"{what} could not be answered")

    def _turn_away(self, connection: socket.socket) -> None:
        response = refuse(
            HTTPStatus.SERVICE_UNAVAILABLE, f"{self.limits.connections_max} connections are open; try again later"
        )
        fields = f"Content-Type: {response.content_type}\r\nContent-Length: {len(response.body)}"
        head = f"HTTP/1.0 503 Service Unavailable\r\n{fields}\r\n\r\n"
        # This is the accepting thread: it must not wait.
        connection.settimeout(0)
        with contextlib.suppress(OSError):
            connection.sendall(head.encode() + response.body)
            connection.recv(65536)  # closing with unread bytes would reset the connection under the answer
        self.shutdown_request(connection)


class _HeadReader(io.BufferedReader):
    """Reader of a request's head, a line at a time; raises HTTPException when the headers are longer than allowed."""

    def __init__(self, raw: io.RawIOBase) -> None:
        super().__init__(raw)
        self._headers_bytes: int | None = None

    def readline(self, size: int | None = -1) -> bytes:
        """Return the next line; the first is the request's, which the library limits."""
        line = super().readline(size)
        self._headers_bytes = 0 if self._headers_bytes is None else self._headers_bytes + len(line)
        if self._headers_bytes > HEADERS_BYTES_MAX:
            text = f"the headers are longer than the {HEADERS_BYTES_MAX} bytes allowed for all of them together"
            raise http.client.HTTPException(text)
        return line


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    default_request_version = "HTTP/1.0"  # with the library's "HTTP/0.9" garbage would get an answer without a status

    def __init__(self, limited: HttpConnection, request: socket.socket, client_address: Any, server: _Server) -> None:
        self._limited = limited
        self._address_token = ""
        super().__init__(request, client_address, server)

    def setup(self) -> None:
        """Read with a limit for the headers together."""
        super().setup()
        self.rfile = _HeadReader(cast("io.BufferedReader", self.rfile).detach())

    def do_GET(self) -> None:
        """Answer a GET, or a HEAD, which leaves the body out."""
        if self._limited.is_closed:  # the end of the connection looks like the end of the head
            return
        # Taken out before anything reads the path, so that it is in no log and no answer.
        self.path, self._address_token = self.server.access.take_token(self.path)
        answer = self._find_open_answer() or self._find_answer()
        if isinstance(answer, EventStream):
            self._send_events(answer)
        elif isinstance(answer, FileAnswer):
            self._send_file(answer)
        else:
            self._send(answer)

    def do_HEAD(self) -> None:
        """See do_GET."""
        self.do_GET()

    def do_POST(self) -> None:
        """Answer an order. Its body is read first, up to the limit and within the time for a request, so that a
        refusal arrives.
        """
        self.path, self._address_token = self.server.access.take_token(self.path)
        length = _read_length(self.headers)
        body = self.rfile.read(min(length or 0, BODY_BYTES_MAX))
        if self._limited.is_closed or len(body) < min(length or 0, BODY_BYTES_MAX):
            return
        problem = self._find_host_refusal() or self._find_order_refusal(length)
        if problem is None and not self.server.connections.begin_answer(self._limited):
            error = f"{self.server.limits.answers_max} requests are being answered; try again later"
            problem = refuse(HTTPStatus.SERVICE_UNAVAILABLE, error, RETRY_AFTER)
        answer = problem or self._order(body)
        if answer.status >= HTTPStatus.BAD_REQUEST:
            reason = msgspec.json.decode(answer.body, type=dict[str, str])["error"]
            self.server.refused_orders.note(self.path, self._limited.address, answer.status, reason)
        self._send(answer)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send an error that the library has found, as JSON; a method without a `do_` is answered as not allowed."""
        if code == HTTPStatus.NOT_IMPLEMENTED:
            allowed = _find_allowed(self.path)
            *others, last = allowed["Allow"].split(", ")
            said = f"{', '.join(others)} and {last} are" if others else f"{last} is"
            error = f"{(self.command or '')[:80]} is not allowed; {said}"
            self._send(refuse(HTTPStatus.METHOD_NOT_ALLOWED, error, allowed))
        else:
            text = explain if code == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE else message
            self._send(refuse(HTTPStatus(code), (text or HTTPStatus(code).phrase)[:200]))

    def version_string(self) -> str:
        """The header Server, without the library's and the interpreter's version."""
        return "rankscope"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Log nothing: a scrape every few seconds is no news."""

    def _find_host_refusal(self) -> Response | None:
        host = self.headers.get("Host", "")
        problem = find_host_problem(host, self.server.host) if self.server.checks_host else None
        if problem is None:
            return None
        self.server.count_refused(FOREIGN_HOST)
        return refuse(HTTPStatus.MISDIRECTED_REQUEST, problem)

    def _find_order_refusal(self, length: int | None) -> Response | None:
        """Return why a POST is not considered at all, or None."""
        problem = self.server.access.find_control_problem(self.headers.get("Authorization", ""))
        if problem is not None:
            self.server.count_refused(UNAUTHORIZED)
            return refuse(problem.status, problem.error, CHALLENGE if problem.status == HTTPStatus.UNAUTHORIZED else {})
        if "POST" not in _find_allowed(self.path)["Allow"]:
            error = "POST is not allowed here; it is for /api/v1/runs/RUN/captures and /api/v1/runs/RUN/settings only"
            return refuse(HTTPStatus.METHOD_NOT_ALLOWED, error, ALLOWED)
        if self.headers.get_content_type() != JSON or "Content-Type" not in self.headers:
            return refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"send the order with `Content-Type: {JSON}`")
        if length is None:
            return refuse(HTTPStatus.LENGTH_REQUIRED, "send the order with its Content-Length, in one piece")
        if length > BODY_BYTES_MAX:
            error = f"the body has {length} bytes; an order has at most {BODY_BYTES_MAX}"
            return refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, error)
        return None

    def _order(self, body: bytes) -> Response:
        is_of_settings = find_ordered_run(self.path, SETTINGS_SUFFIX) is not None
        routes = self.server.settings if is_of_settings else self.server.captures
        try:
            return routes.order(self.path, body, self._limited.address)
        except Exception:  # noqa: BLE001 - whatever it is, it may cost this request only
            self.server.contain(self.path[:80])
            return refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error of the collector; see its log")

    def _find_open_answer(self) -> Response | EventStream | FileAnswer | None:
        """Return an answer that needs no place among the answers: a refusal, a page file or health; None for others."""
        path = self.path.partition("?")[0]
        foreign = self._find_host_refusal()
        if foreign is not None:
            return foreign
        page_file = find_page_file(path, self.headers.get("Accept", ""))
        if page_file is not None:
            return page_file
        if not self.server.access.admits(path, self.headers.get("Authorization", ""), self._address_token):
            self.server.count_refused(UNAUTHORIZED)
            error = "this collector requires its token: send `Authorization: Bearer TOKEN`"
            if self.server.access.is_in_address:
                error += ", or use the whole address that rank 0 has printed, with ?token=..."
            return refuse(HTTPStatus.UNAUTHORIZED, error, CHALLENGE)
        return self._ask(path) if path in OPEN_PATHS else None

    def _find_answer(self) -> Response | EventStream | FileAnswer:
        if not self.server.connections.begin_answer(self._limited):
            error = f"{self.server.limits.answers_max} requests are being answered; try again later"
            return refuse(HTTPStatus.SERVICE_UNAVAILABLE, error, RETRY_AFTER)
        answer = self._ask(self.path.partition("?")[0])
        if isinstance(answer, EventStream | FileAnswer) or self._may_write(len(answer.body)):
            return answer
        error = "responses that clients have not read yet use up the memory for responses; try again later"
        return refuse(HTTPStatus.SERVICE_UNAVAILABLE, error, RETRY_AFTER)

    def _ask(self, path: str) -> Response | EventStream | FileAnswer:
        headers = self.headers
        try:
            if path == EVENTS_PATH:
                return self.server.feed.open(self.path.partition("?")[2])
            about_captures = self.server.captures.answer(self.path)
            if about_captures is not None:
                return about_captures
            return self.server.routes.answer(
                self.path, accept=headers.get("Accept", ""), accept_encoding=headers.get("Accept-Encoding", "")
            )
        except Exception:  # noqa: BLE001 - whatever it is, it may cost this request only
            self.server.contain(self.path[:80])
            return refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error of the collector; see its log")

    def _may_write(self, size_bytes: int) -> bool:
        return self.server.connections.begin_writing(self._limited, size_bytes)

    def _send(self, response: Response) -> None:
        length = {"Content-Length": str(len(response.body))}
        self._send_head(response.status, response.content_type, {**length, **response.headers})
        if self.command != "HEAD":
            self.wfile.write(response.body)

    def _send_events(self, stream: EventStream) -> None:
        """Send each event within the time limit for a write; the end of the connection is the end of the answer
        (HTTP/1.0).
        """
        with stream as events:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, STREAM_BUFFER_BYTES)
            self._send_head(HTTPStatus.OK, EVENT_STREAM, {})
            if self.command == "HEAD":
                return
            for event in events:
                if not self._may_write(len(event)):
                    return
                self._write_event(event)
                self.server.connections.end_writing(self._limited)

    def _send_file(self, answer: FileAnswer) -> None:
        """Send a file, each part of it within the time limit for a write."""
        with os.fdopen(answer.fd, "rb") as file:
            length = {"Content-Length": str(answer.size_bytes)}
            self._send_head(HTTPStatus.OK, answer.content_type, {**length, **answer.headers})
            if self.command == "HEAD":
                return
            left = answer.size_bytes
            while left and (part := file.read(min(left, FILE_CHUNK_BYTES))) and self._may_write(len(part)):
                self.wfile.write(part)
                self.server.connections.end_writing(self._limited)
                left -= len(part)

    def _write_event(self, event: bytes) -> None:
        try:
            self.wfile.write(event)
        except OSError as error:
            if self._limited.is_closed:
                raise TimeoutError from error  # which the stream counts as a slow reader
            raise

    def _send_head(self, status: int, content_type: str, headers: Mapping[str, str]) -> None:
        always = {"Content-Type": content_type, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
        self.send_response(status)
        for name, value in {**always, **headers}.items():
            self.send_header(name, value)
        self.end_headers()


def _find_allowed(target: str) -> dict[str, str]:
    """Return the header with the methods that are allowed at a path."""
    if find_ordered_run(target) is not None:
        return ORDER_ALLOWED
    return ALLOWED if find_ordered_run(target, SETTINGS_SUFFIX) is None else {"Allow": f"{ALLOWED['Allow']}, POST"}


def _read_length(headers: Message) -> int | None:
    """Return the length of a body in bytes; None where it is not told, or comes in pieces."""
    text = headers.get("Content-Length", "")
    is_told = text.isascii() and text.isdigit() and len(text) <= LENGTH_DIGITS_MAX
    return int(text) if is_told and "Transfer-Encoding" not in headers else None
