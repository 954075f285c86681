"""Send events to a webhook: a signed POST of JSON over HTTP or HTTPS, one try at a time.

The headers are those of Standard Webhooks (signature.py). No redirect is followed and no proxy is used. Of an answer
the status counts, and at most ANSWER_BYTES_MAX of it are read.
"""

import contextlib
import email.utils
import http.client
import ipaddress
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from rankscope.collector.config import CollectorConfig
from rankscope.collector.http_retries import may_pass
from rankscope.collector.notifications.channel import DELIVERED, FAILED, RETRIED, TryResult
from rankscope.collector.notifications.event import IncidentEvent
from rankscope.collector.notifications.signature import read_secret, sign
from rankscope.measure import __version__
from rankscope.measure.errors import SettingError

LOG = logging.getLogger("rankscope.collector")

CONNECT_S_MAX: Final = 5.0
"""Longest wait for a connection to one address of the receiver."""
TRY_S_MAX: Final = 15.0
"""Longest time from the connection to the end of the answer."""
ANSWER_BYTES_MAX: Final = 16 * 1024


class _Answer(NamedTuple):
    status: int
    retry_after: str


class Webhook:
    """A receiver at a URL. `try_s_max` limits one try."""

    def __init__(
        self,
        url: str,
        secret: bytes,
        tls: ssl.SSLContext | None,
        *,
        read_wall_s: Callable[[], float] = time.time,
        try_s_max: float = TRY_S_MAX,
    ) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._tls = tls if parts.scheme == "https" else None
        self._port = parts.port or (http.client.HTTP_PORT if self._tls is None else http.client.HTTPS_PORT)
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._secret = secret
        self._read_wall_s = read_wall_s
        self._try_s_max = try_s_max

    def prepare(self) -> None:
        """Do nothing: the files were read at the start."""

    def __call__(self, event: IncidentEvent, cancelled: threading.Event) -> TryResult:  # noqa: ARG002 - time is limited
        """Send an event once."""
        body = msgspec.json.encode(event)
        timestamp = int(self._read_wall_s())
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"rankscope/{__version__}",
            "Connection": "close",
            "webhook-id": event.id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": sign(self._secret, event.id, timestamp, body),
        }
        began_s = time.monotonic()
        try:
            answer = self._post(body, headers)
        except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: TLS that was shut down
            is_late = time.monotonic() - began_s >= self._try_s_max
            why = f"took longer than {self._try_s_max:g} s" if is_late else describe_error(error)
            return TryResult(RETRIED, f"the receiver at {self._host}:{self._port} {why}")
        return self._judge(answer)

    def _post(self, body: bytes, headers: Mapping[str, str]) -> _Answer:
        """Return the status of an answer. Raises OSError, HTTPException or ValueError."""
        address = (self._host, self._port)
        with contextlib.ExitStack() as ends:
            stream = ends.enter_context(socket.create_connection(address, CONNECT_S_MAX))
            ends.callback(_limit(ends.enter_context(stream.dup()), self._try_s_max))
            connection = http.client.HTTPConnection(*address)
            if self._tls is not None:
                connection = http.client.HTTPSConnection(*address, context=self._tls)
                stream = ends.enter_context(self._tls.wrap_socket(stream, server_hostname=self._host))
            stream.settimeout(self._try_s_max)
            connection.sock = stream
            ends.callback(connection.close)
            connection.request("POST", self._target, body, headers)
            with connection.getresponse() as response:
                with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                    response.read(ANSWER_BYTES_MAX)  # so that a receiver that still writes is not reset
                return _Answer(response.status, response.getheader("Retry-After", ""))

    def _judge(self, answer: _Answer) -> TryResult:
        status = answer.status
        if http.client.OK <= status < http.client.MULTIPLE_CHOICES:
            return TryResult(DELIVERED)
        text = f"the receiver at {self._host}:{self._port} answers {status}"
        if may_pass(status):
            return TryResult(RETRIED, text, parse_retry_after(answer.retry_after, self._read_wall_s()))
        if status < http.client.BAD_REQUEST:
            text += ": redirects are not followed, set notify_webhook_url to the final address"
        return TryResult(FAILED, text)


def parse_retry_after(text: str, wall_s: float) -> float:
    """Return the seconds that a header Retry-After asks for, a number or a date; 0 where it has neither.

    >>> parse_retry_after("120", 0.0), parse_retry_after("", 0.0), parse_retry_after("soon", 0.0)
    (120.0, 0.0, 0.0)
    >>> parse_retry_after("Thu, 01 Jan 1970 00:02:00 GMT", 100.0)
    20.0
    """
    text = text.strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - wall_s)
    except (ValueError, TypeError, OverflowError):
        return 0.0


def describe_error(error: Exception) -> str:
    """Return what went wrong, without what the receiver has sent."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"has a certificate that is not trusted: {error.verify_message}; notify_webhook_ca_file names another CA"
    if isinstance(error, OSError):
        return f"cannot be reached: {error.strerror or error}"
    return f"gave no answer in HTTP ({type(error).__name__})"


def make_webhook(config: CollectorConfig, read_wall_s: Callable[[], float]) -> Webhook:
    """Return the webhook of the settings. Raises SettingError for files that cannot be used."""
    secret = read_secret(config)
    tls = _make_tls(config.notify_webhook_ca_file)
    parts = urlsplit(config.notify_webhook_url)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        LOG.warning("notify_webhook_url begins with http://: everybody on the way to %s can read the notifications; "
                    "https:// encrypts them", parts.hostname)  # fmt: skip
    return Webhook(config.notify_webhook_url, secret, tls, read_wall_s=read_wall_s)


def is_loopback(host: str) -> bool:
    """Return whether a host, a name or an address, is this machine.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("hooks.example")
    (True, True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _make_tls(ca_file: str) -> ssl.SSLContext:
    """Return what verifies a receiver: its name, and a certificate by this CA, or by those that the system trusts."""
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise SettingError(
            f"notify_webhook_ca_file is {ca_file!r}, which cannot be used: {error}. Name a file with the certificate "
            "to trust, PEM."
        ) from error


def _limit(watched: socket.socket, seconds: float) -> Callable[[], None]:
    """Shut a connection down after so long, however slowly its other end sends; return what stops this."""

    def shut() -> None:
        with contextlib.suppress(OSError):  # it is closed
            watched.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, shut)
    timer.daemon = True
    timer.start()
    return timer.cancel
