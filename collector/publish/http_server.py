"""What the collector knows, over HTTP: read-only, a thread a request, from the latest snapshot.

    GET /metrics                 for Prometheus, in the text format that the client prefers
    GET /metrics/ranks           the same, the families of ranks of large runs; ?shard=I/N gives a part of them
    GET /healthz, /readyz        200, or 503 with the reason; /readyz also says what the collector does without
    GET /api/v1/runs             the runs, a line each
    GET /api/v1/runs/RUN         everything about one run; RUN is percent-encoded
    GET /api/v1/runs/RUN/report  how it went, from the store, also of a run that is over
    GET /api/v1/incidents        the incidents, newest first; ?run=RUN and ?state=open|resolved leave others out
    GET /api/v1/...              what api.py and live.py say
    GET /                        this list; for a browser the live page (page_files.py)

Everything is bounded: one request a connection (HTTP/1.0: an idle connection holds no thread), a time limit for each
read and write, the standard library's limits for the request line and the headers, and `requests_max` at a time.
Who may read, and whether it is encrypted, is in http_access.py; only /healthz and /readyz are open to all,
and the files of the live page, which hold nothing about any run.
Errors are JSON: {"error": "what, and what to do"}.
"""

import contextlib
import logging
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any, Final

from rankscope.collector.incidents.incident import Incident
from rankscope.collector.publish.api import Api
from rankscope.collector.publish.http_access import CHALLENGE, OPEN, HttpAccess
from rankscope.collector.publish.live import EVENT_STREAM, EVENTS_PATH, EventStream, LiveFeed
from rankscope.collector.publish.metric_pages import MetricPages
from rankscope.collector.publish.paced_snapshots import PacedSnapshots
from rankscope.collector.publish.page_files import find_page_file
from rankscope.collector.publish.picture_orders import PictureOrders
from rankscope.collector.publish.routes import Response, Routes, refuse
from rankscope.collector.state.snapshot import Snapshot
from rankscope.collector.turns import TakeTurn
from rankscope.measure.errors import SettingError, UnavailableError
from rankscope.measure.settings import find_address_problem

LOG = logging.getLogger("rankscope.collector")

REQUEST_TIMEOUT_S: Final = 10.0
REQUESTS_MAX: Final = 32
CONNECTIONS_WAITING_MAX: Final = 64
STREAM_BUFFER_BYTES: Final = 65_536
"""What the system holds back for a reader of events: one that is behind shall get the newest picture, no backlog."""
STOP_POLL_S: Final = 0.1
"""How long `close` may have to wait for the accepting thread."""

BUSY: Final = "busy"
UNAUTHORISED: Final = "unauthorised"
TLS_FAILED: Final = "tls_failed"

ALLOWED: Final = {"Allow": "GET, HEAD"}


class HttpServer:
    """Listens at `address`, `HOST:PORT`, and answers from threads of its own; port 0 takes a free one.

    Raises SettingError for what is no address, UnavailableError when it cannot be listened at. For the rest see Routes.
    """

    def __init__(
        self,
        address: str,
        read_snapshot: Callable[[], Snapshot],
        read_incidents: Callable[[], Sequence[Incident]],
        *,
        is_healthy: Callable[[], str | None],
        is_ready: Callable[[], str | None],
        access: HttpAccess = OPEN,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        requests_max: int = REQUESTS_MAX,
        find_weakness: Callable[[], str | None] = lambda: None,
        read_exported: Callable[[], Snapshot] | None = None,
        read_report: Callable[[str], bytes] | None = None,
        store: Path | None = None,
        metric_pages: MetricPages | None = None,
        take_turn: TakeTurn = contextlib.nullcontext,
        orders: PictureOrders | None = None,
    ) -> None:
        problem = find_address_problem(address, listening=True)
        if problem is not None:
            raise SettingError(f"the collector's HTTP address is {address!r}; {problem}.")
        host, _, port = address.rpartition(":")
        try:
            server = self._server = _Server(
                host, int(port.replace("*", "0")), access, request_timeout_s, requests_max=requests_max
            )
        except OSError as error:
            raise UnavailableError(
                f"the collector's HTTP server cannot listen at {address}: {error.strerror}. Stop what listens there, "
                "or give another address of this machine."
            ) from error
        read_paced = PacedSnapshots(read_snapshot).read
        server.feed = LiveFeed(
            read_snapshot, read_paced, streams_max=requests_max // 2, count=server.count_refused, contain=server.contain
        )
        server.routes = Routes(
            read_snapshot, read_incidents, is_healthy=is_healthy, is_ready=is_ready, find_weakness=find_weakness,
            read_exported=read_exported, read_report=read_report, metric_pages=metric_pages,
            take_turn=take_turn, orders=orders,
            answer_first=Api(read_paced, server.feed.read_shares, store).answer,
        )  # fmt: skip
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(STOP_POLL_S,), name="rankscope-http", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it answers, `http://HOST:PORT` with the real port; the machine's name when it listens everywhere."""
        return self._server.url

    @property
    def requests_turned_away(self) -> int:
        """Requests answered with 503 because as many as there may be were being answered."""
        return self._server.refused.get(BUSY, 0)

    @property
    def refused(self) -> dict[str, int]:
        """Requests that were not answered, by reason: too many at a time (`busy`), no or a wrong token
        (`unauthorised`), no TLS connection came about (`tls_failed`), too many follow (`streams_busy`). And what those
        who follow did not get: streams that were ended because nobody took an event (`slow_reader`), and pictures left
        out because the one before was not out yet (`picture_skipped`).
        """
        return dict(self._server.refused)

    @property
    def streams(self) -> int:
        """How many follow the runs at this moment."""
        return self._server.feed.streams

    @property
    def errors_contained(self) -> int:
        """Requests answered with 500 and pages that could not be prepared: mistakes of ours."""
        return self._server.errors_contained + self._server.routes.metrics.errors_contained

    def close(self) -> None:
        """Free the port and end the accepting thread; what is being answered is not waited for. Twice does no harm."""
        self._server.shutdown()
        self._server.server_close()
        self._server.feed.close()
        self._server.routes.metrics.close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = CONNECTIONS_WAITING_MAX
    allow_reuse_port = False  # two collectors on one port would each get half of the scrapes
    routes: Routes
    feed: LiveFeed

    def __init__(
        self, host: str, port: int, access: HttpAccess, request_timeout_s: float, *, requests_max: int
    ) -> None:
        self.access = access
        self.request_timeout_s = request_timeout_s
        self.refused: dict[str, int] = {}
        self.errors_contained = 0
        self._requests_max = requests_max
        self._counting = threading.Lock()
        self._slots = threading.BoundedSemaphore(requests_max)
        self._host = host
        self.address_family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
        super().__init__(("" if host == "*" else host.strip("[]"), port), _Handler)

    @property
    def url(self) -> str:
        """See HttpServer.url."""
        host = socket.gethostname() if self._host in {"*", "0.0.0.0", "[::]"} else self._host  # noqa: S104 - compared
        return f"http{'s' if self.access.tls else ''}://{host}:{self.server_address[1]}"

    def server_bind(self) -> None:
        """Bind, without the library's look-up of this machine's full name, which can take as long as DNS does."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self._host, self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give the connection to a thread, if there may be one more."""
        if not self._slots.acquire(blocking=False):
            self.count_refused(BUSY)
            self._turn_away(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be started
            self._slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, in the connection's own thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Speak TLS first, where it is asked for: in the connection's own thread, with its time limit."""
        if self.access.tls is None:
            super().finish_request(request, client_address)
            return
        request.settimeout(self.request_timeout_s)
        try:
            secured = self.access.tls.wrap_socket(request, server_side=True)
        except OSError:  # ssl.SSLError is one
            self.count_refused(TLS_FAILED)
            return
        with secured:
            super().finish_request(secured, client_address)

    def count_refused(self, reason: str) -> None:
        """Count a request that is not answered."""
        with self._counting:
            self.refused[reason] = self.refused.get(reason, 0) + 1

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the library's signature
        """A broken connection is the client's to know. (The library would print a traceback.)"""
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, OSError):
            self.contain("a request", error)

    def contain(self, what: str, error: BaseException) -> None:
        """Count and log a mistake of ours."""
        with self._counting:
            self.errors_contained += 1
        LOG.error("%s could not be answered", what, exc_info=error)

    def _turn_away(self, connection: socket.socket) -> None:
        response = refuse(
            HTTPStatus.SERVICE_UNAVAILABLE, f"{self._requests_max} requests are being answered; try later"
        )
        fields = f"Content-Type: {response.content_type}\r\nContent-Length: {len(response.body)}"
        head = f"HTTP/1.0 503 Service Unavailable\r\n{fields}\r\n\r\n"
        # This is the thread that accepts: it waits for nobody.
        connection.settimeout(0)
        with contextlib.suppress(OSError):
            connection.sendall(head.encode() + response.body)
            connection.recv(65536)  # closing with unread bytes would reset the connection under the answer
        self.shutdown_request(connection)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    default_request_version = "HTTP/1.0"  # with the library's "HTTP/0.9" garbage would get an answer without a status

    def setup(self) -> None:
        """Give every read and write its time limit."""
        super().setup()
        self.connection.settimeout(self.server.request_timeout_s)

    def do_GET(self) -> None:
        """Answer a GET, or a HEAD, which leaves the body out."""
        answer = self._find_answer()
        if isinstance(answer, EventStream):
            self._send_events(answer)
        else:
            self._send(answer)

    def do_HEAD(self) -> None:
        """See do_GET."""
        self.do_GET()

    def send_error(
        self,
        code: int,
        message: str | None = None,
        explain: str | None = None,  # noqa: ARG002 - the library's signature
    ) -> None:
        """What the library finds wrong with a request, as JSON; a method that it finds no `do_` for is not allowed."""
        if code == HTTPStatus.NOT_IMPLEMENTED:
            error = f"{(self.command or '')[:80]} is not allowed; GET and HEAD are"
            self._send(refuse(HTTPStatus.METHOD_NOT_ALLOWED, error, ALLOWED))
        else:
            self._send(refuse(HTTPStatus(code), (message or HTTPStatus(code).phrase)[:200]))

    def version_string(self) -> str:
        """The header Server, without the library's and the interpreter's version."""
        return "rankscope"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Say nothing: a scrape every few seconds is not news."""

    def _find_answer(self) -> Response | EventStream:
        headers = self.headers
        path, _, query = self.path.partition("?")
        page_file = find_page_file(path, headers.get("Accept", ""))
        if page_file is not None:
            return page_file
        if not self.server.access.admits(path, headers.get("Authorization", "")):
            self.server.count_refused(UNAUTHORISED)
            error = "this collector asks for its token: send `Authorization: Bearer TOKEN`"
            return refuse(HTTPStatus.UNAUTHORIZED, error, CHALLENGE)
        try:
            if path == EVENTS_PATH:
                return self.server.feed.open(query)
            return self.server.routes.answer(
                self.path, accept=headers.get("Accept", ""), accept_encoding=headers.get("Accept-Encoding", "")
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, it may cost this request only
            self.server.contain(self.path[:80], error)
            return refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "this is a mistake of the collector; its log tells more")

    def _send(self, response: Response) -> None:
        length = {"Content-Length": str(len(response.body))}
        self._send_head(response.status, response.content_type, {**length, **response.headers})
        if self.command != "HEAD":
            self.wfile.write(response.body)

    def _send_events(self, stream: EventStream) -> None:
        """Each within the time limit for a write; the end of the connection is the end of the answer (HTTP/1.0)."""
        with stream as events:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, STREAM_BUFFER_BYTES)
            self._send_head(HTTPStatus.OK, EVENT_STREAM, {})
            if self.command != "HEAD":
                for event in events:
                    self.wfile.write(event)

    def _send_head(self, status: int, content_type: str, headers: Mapping[str, str]) -> None:
        always = {"Content-Type": content_type, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
        self.send_response(status)
        for name, value in {**always, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
