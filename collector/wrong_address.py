"""Explain why no collector answered at an address, and the cure, for each kind of failure.

Where something else than a collector seems to listen, the port is probed at most twice more: ZeroMQ is recognized by
its first ten bytes, TLS by a handshake, HTTP by its answer to a request.
"""

import contextlib
import http.client
import socket
import ssl
from typing import Final
from urllib.error import HTTPError, URLError
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

PROBE_TIMEOUT_S: Final = 1.0
"""Timeout of each of at most two probes after the first connection has failed. A TLS server waits for the client, so it
is recognized only after this time."""
ZMQ_GREETING_BYTES: Final = 10
"""The signature that a ZeroMQ socket sends at once: FF, 8 bytes of any value, 7F (ZMTP 3.1, section 3.2)."""
PORTS: Final = {"http": 80, "https": 443}
WHERE: Final = "--url (RANKSCOPE_URL) must name the collector's HTTP address"

CERTIFICATE_CURES: Final = {
    10: "It has expired: the collector needs a new one (http_certificate_file).",
    62: "Ask under a name that is in the certificate, or give the collector one that has this name.",
    64: "Ask under an address that is in the certificate, or give the collector one that has this address.",
}
"""By OpenSSL's number (X509_V_ERR_...). In all other cases no trusted authority has signed the certificate."""
TRUST_CURE: Final = "If it is the collector's own, name a copy of it with --ca-file (RANKSCOPE_CA_FILE)."


def describe_failure(url: str, error: Exception) -> str:
    """Return a sentence with problem and cure for an error of `urllib` in a request for `url`."""
    parts = urlsplit(url)
    cause = error.reason if isinstance(error, URLError) and not isinstance(error, HTTPError) else error
    proxy = "" if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme, "")
    if proxy:
        shown = proxy.rpartition("@")[2]  # without a user and password
        return (
            f"no collector answers at {url}, asked through the proxy {shown} ({parts.scheme}_proxy): {cause}. Put the "
            f"host into no_proxy if no proxy is needed; {WHERE}."
        )
    return _describe(url, parts, cause)


def _describe(url: str, parts: SplitResult, cause: object) -> str:
    if isinstance(cause, ssl.SSLCertVerificationError):
        cure = CERTIFICATE_CURES.get(cause.verify_code, TRUST_CURE)
        return f"the certificate at {url} is not trusted: {cause.verify_message}. {cure}"
    if isinstance(cause, socket.gaierror):
        return f"no collector answers at {url}: the name {parts.hostname} does not resolve. Check it; {WHERE}."
    if isinstance(cause, ConnectionRefusedError):
        return (
            f"no collector answers at {url}: nothing listens at {parts.hostname}:{_port_of(parts)} (connection "
            f"refused). `rankscope serve` starts one; {WHERE}."
        )
    if isinstance(cause, TimeoutError):
        with contextlib.suppress(
            OSError, ValueError
        ):  # libzmq waits for more bytes, since a request is no greeting to it
            if _greets_as_zmq(parts):
                return _describe_zmq(url)
        return f"no collector answers at {url}: no answer in time. Check the host, and firewalls on the way; {WHERE}."
    return _describe_stranger(url, parts, cause)


def _describe_stranger(url: str, parts: SplitResult, cause: object) -> str:
    """Return the sentence for an answer that is not a collector's."""
    with contextlib.suppress(OSError, ValueError):
        if _greets_as_zmq(parts):
            return _describe_zmq(url)
    with contextlib.suppress(OSError, ValueError):
        if parts.scheme == "http" and _speaks_tls(parts):
            return f"what answers at {url} speaks TLS: ask at https://{parts.netloc}."
    with contextlib.suppress(OSError, ValueError):
        if parts.scheme == "https" and _speaks_http(parts):
            return f"what answers at {url} speaks no TLS: ask at http://{parts.netloc}."
    if isinstance(cause, HTTPError):
        return f"what answers at {url} is no rankscope collector: HTTP {cause.code}, {cause.reason}. {WHERE}."
    # The bytes of an answer that is not HTTP would not help a reader.
    reason = "its answer is not HTTP" if isinstance(cause, http.client.BadStatusLine) else str(cause)
    reason = reason or type(cause).__name__
    return f"no collector answers at {url}: {reason}. `rankscope serve` starts one; {WHERE}."


def _describe_zmq(url: str) -> str:
    return (
        f"what answers at {url} is a ZeroMQ socket, perhaps the port for agents. The HTTP port is another one: 18491 "
        f"unless http_listen says otherwise; {WHERE}."
    )


def _port_of(parts: SplitResult) -> int:
    return parts.port or PORTS[parts.scheme]


def _connect(parts: SplitResult) -> socket.socket:
    return socket.create_connection((parts.hostname or "", _port_of(parts)), PROBE_TIMEOUT_S)


def _greets_as_zmq(parts: SplitResult) -> bool:
    """Return whether the server there sends a ZeroMQ greeting first."""
    greeting = b""
    with _connect(parts) as connection:
        while len(greeting) < ZMQ_GREETING_BYTES:
            received = connection.recv(ZMQ_GREETING_BYTES - len(greeting))
            if not received:
                return False
            greeting += received
    return greeting[0] == 0xFF and greeting[-1] == 0x7F  # noqa: PLR2004 - of the protocol


def _speaks_tls(parts: SplitResult) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # only a probe for TLS: no data is sent
    with _connect(parts) as connection, context.wrap_socket(connection):
        return True


def _speaks_http(parts: SplitResult) -> bool:
    with _connect(parts) as connection:
        connection.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        return connection.recv(5) == b"HTTP/"
