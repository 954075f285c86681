"""Serve one trace file to the browser of this machine, on a page that hands it to a Perfetto on the user's click.

    GET /TOKEN/         the page
    GET /TOKEN/trace    the bytes of the file

Only these two, only at 127.0.0.1, and only under a random path that other pages in the browser and other users of the
machine do not know. A request that names another host is refused, so that no foreign name can be pointed at this
address. The file goes from the disk to the socket in pieces; the browser holds it in memory, as Perfetto does.
"""

import hmac
import html
import os
import secrets
import socketserver
import stat
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from importlib.resources import files
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from rankscope.collector.reports.trace_cells import printable
from rankscope.collector.reports.trace_page import hash_of, read_asset
from rankscope.measure.errors import SettingError, UnavailableError

ADDRESS: Final = "127.0.0.1"
NAMES: Final = frozenset({ADDRESS, "localhost"})
"""Hosts that a request may name, with any port: that of a tunnel is another one."""
PORT_MAX: Final = 65_535
TOKEN_BYTES: Final = 16
CONNECTIONS_MAX: Final = 8
"""Connections at a time; one more is closed."""
IDLE_S_MAX: Final = 60.0
"""How long a connection may neither send nor take anything."""
MB: Final = 1_000_000


def check_perfetto(url: str) -> str:
    """Return the address of a Perfetto. Raises SettingError for what is no address of a page."""
    try:
        parts = urlsplit(url)
        is_page = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_page = False
    if not is_page:
        raise SettingError(
            f"--perfetto is {url!r}; it is the http or https address of a Perfetto, as https://ui.perfetto.dev"
        )
    return url


def read_size(file: Path) -> int:
    """Return the size of a trace file in bytes. Raises UnavailableError if it is no file, or empty."""
    try:
        found = file.stat()
    except OSError as error:
        raise UnavailableError(f"{file} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "no regular file"
        raise UnavailableError(f"{file} is {kind}; give a trace file")
    if not found.st_size:
        raise UnavailableError(f"{file} is empty")
    return found.st_size


def describe_size(size_bytes: int) -> str:
    """Return a size for people.

    >>> describe_size(12_345_678), describe_size(900)
    ('12.3 MB', '900 bytes')
    """
    return f"{size_bytes / MB:,.1f} MB" if size_bytes >= MB else f"{size_bytes:,} bytes"


class ViewServer(socketserver.ThreadingTCPServer):
    """The page and the file at `url`, from the constructor on; `serve_forever` answers, `server_close` frees the port.

    `perfetto` is the address that the page opens on a click, `port` 0 a free one. Raises SettingError and
    UnavailableError.
    """

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, file: Path, *, perfetto: str, port: int = 0) -> None:
        if not 0 <= port <= PORT_MAX:
            raise SettingError(f"--port is {port}; it must be from 0, which is a free one, to {PORT_MAX}")
        self.page, self.policy = render_view_page(file.name, read_size(file), check_perfetto(perfetto))
        self.file = file.absolute()
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        self._places = threading.BoundedSemaphore(CONNECTIONS_MAX)
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            raise UnavailableError(
                f"{ADDRESS}:{port} (from --port) cannot be listened at: {error.strerror}. "
                "Without --port a free one is used."
            ) from error

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://{ADDRESS}:{self.server_address[1]}/{self.token}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own, or close a connection that is one too many."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, then give the place to another connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a connection that broke: the browser says so to its user."""


class _Handler(BaseHTTPRequestHandler):
    server: ViewServer
    timeout = IDLE_S_MAX
    server_version, sys_version = "rankscope", ""

    def do_GET(self) -> None:
        """Answer with the page, the file or a refusal."""
        host = self.headers.get("Host", "").partition(":")[0].lower()
        if host not in NAMES:
            self._refuse(HTTPStatus.FORBIDDEN, f"only requests to {ADDRESS} and localhost are answered")
            return
        token, slash, name = self.path.removeprefix("/").partition("/")
        known = hmac.compare_digest(token.encode(errors="replace"), self.server.token.encode())
        if known and slash and not name:
            self._begin(HTTPStatus.OK, "text/html; charset=utf-8", len(self.server.page))
            self._write(self.server.page)
        elif known and name == "trace":
            self._send_file()
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "nothing is here; use the whole address that rankscope view printed")

    def do_HEAD(self) -> None:
        """Answer without the body."""
        self.do_GET()

    def _send_file(self) -> None:
        try:
            file = self.server.file.open("rb")
        except OSError as error:
            self._refuse(HTTPStatus.NOT_FOUND, f"the file cannot be read any more: {error.strerror}")
            return
        with file:
            size = os.fstat(file.fileno()).st_size
            self._begin(HTTPStatus.OK, "application/octet-stream", size)
            if self.command == "GET" and size:
                self.connection.sendfile(file, count=size)

    def _begin(self, status: HTTPStatus, kind: str, size: int) -> None:
        self.send_response(status)
        fields = {
            "Content-Type": kind,
            "Content-Length": str(size),
            "Cache-Control": "no-store",
            "Content-Security-Policy": self.server.policy,
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        for key, value in fields.items():
            self.send_header(key, value)
        self.end_headers()

    def _write(self, body: bytes) -> None:
        if self.command == "GET":
            self.wfile.write(body)

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        body = f"{reason}\n".encode()
        self._begin(status, "text/plain; charset=utf-8", len(body))
        self._write(body)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - the library's signature
        """Say nothing: the address in a line of each request would show the token."""


# -- the page ---------------------------------------------------------------------------------------------------------


def read_handing_over() -> str:
    """Return the script of the live page that hands a trace to Perfetto. An `export` may stand in any module."""
    return (files("rankscope.collector.publish") / "live_page" / "perfetto.js").read_text(encoding="utf-8")


def render_view_page(name: str, size_bytes: int, perfetto: str) -> tuple[bytes, str]:
    """Return the page for the file of this name, and its content security policy."""
    style, script = read_asset("trace_page.css"), read_handing_over() + read_asset("view_page.js")
    policy = (
        f"default-src 'none'; style-src '{hash_of(style)}'; script-src '{hash_of(script)}'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    shown, address = html.escape(printable(name)), html.escape(perfetto)
    page = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>rankscope: {shown}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f"<header><h1>rankscope</h1><p>{shown}, {describe_size(size_bytes)}</p></header>\n<main>\n"
        f'<p><button id="open" type="button" data-perfetto="{address}" data-title="{shown}">'
        "Open in Perfetto</button></p>\n"
        f"<p>A click opens {address} in a new window and hands the file to it, within this browser. "
        "The file must fit into the browser's memory.</p>\n"
        '<p id="state" role="status"></p>\n'
        f'</main>\n<script type="module">{script}</script>\n</body>\n</html>\n'
    )
    return page.encode(), policy
