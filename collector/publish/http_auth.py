"""Authentication and encryption of HTTP: tokens, and TLS. All are optional; without a control token nothing can be
changed over HTTP.

The token comes as `Authorization: Bearer TOKEN` (RFC 6750), which Prometheus sends with `authorization`, or as the
password of basic authentication (RFC 7617) with any user, which browsers ask for. A request
without the token is answered with 401.

A collector that rank 0 starts makes its own token, which is part of the address that rank 0 prints: `?token=TOKEN`. So
this address works as it is in a browser, by curl and in a scrape. The live page takes the token out of its address
at once and keeps it in the tab. No cookie holds it: browsers send cookies to every port of a host, so other users'
servers on this machine would get it.

What orders something (a capture) needs the control token, another one, as a bearer token only: a browser repeats a
password by itself, also for a page of somebody else. Without `http_control_token_file` it is refused with 403 for
everybody, on loopback too. The control token also reads; the token for reading controls nothing.

A server on loopback without a token relies on the fact that only programs on this machine can connect. A browser is
such a program, and the name of a foreign web page can be made to resolve to 127.0.0.1, so that the page can read the
answers (DNS rebinding). The browser sends that name in the header Host, so such a server answers only if Host is a name
of loopback. An IP address as Host is allowed: it is not resolved.
"""

import base64
import binascii
import hmac
import ipaddress
import ssl
from http import HTTPStatus
from typing import Final, NamedTuple

from rankscope.collector.address_token import split_token
from rankscope.measure.errors import SettingError
from rankscope.measure.key_files import read_private_text

OPEN_PATHS: Final = frozenset({"/healthz", "/readyz"})
"""Paths that need no token, for orchestrators: whether the collector works, and nothing about any run."""

TOKEN_LENGTH_MIN: Final = 16
"""Failed attempts are not limited: 16 hexadecimal digits are 64 bits, too many to guess."""

CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="rankscope", Basic realm="rankscope"'}


class ControlProblem(NamedTuple):
    """Why a request may not control anything."""

    status: HTTPStatus
    error: str


NO_CONTROL: Final = ControlProblem(
    HTTPStatus.FORBIDDEN,
    "this collector takes no orders over HTTP; to allow them start it with `http_control_token_file`, a file with a "
    "token, and send `Authorization: Bearer TOKEN`",
)
NO_CONTROL_TOKEN: Final = ControlProblem(
    HTTPStatus.UNAUTHORIZED, "this needs the token of http_control_token_file: send `Authorization: Bearer TOKEN`"
)
WRONG_CONTROL_TOKEN: Final = ControlProblem(
    HTTPStatus.FORBIDDEN,
    "this is not the token of http_control_token_file, and only that one allows orders; the one for reading does not",
)


class HttpAuth(NamedTuple):
    """Requirements on HTTP clients. An empty token: none; an empty control token: nobody controls; no TLS context:
    plain HTTP. `is_in_address`: the token may also come in the address.
    """

    token: str = ""
    tls: ssl.SSLContext | None = None
    control_token: str = ""
    is_in_address: bool = False

    def admits(self, path: str, authorization: str, address_token: str = "") -> bool:
        """Return whether a request for this path may be answered, given its header Authorization and the token in its
        address, each empty without one.

        The comparison takes as long for any token of a length, so that its time does not reveal the right one.
        """
        if not self.token or path in OPEN_PATHS:
            return True
        given = (_find_token(authorization), address_token.encode(errors="replace"))
        is_reader = any(hmac.compare_digest(one, self.token.encode()) for one in given)
        return is_reader or self.find_control_problem(authorization) is None

    def take_token(self, target: str) -> tuple[str, str]:
        """Return a request's path and query without the token, and that token; empty where the address has none."""
        return split_token(target) if self.is_in_address else (target, "")

    def find_control_problem(self, authorization: str) -> ControlProblem | None:
        """Return why a request with this header Authorization may control nothing, or None where it may."""
        if not self.control_token:
            return NO_CONTROL
        scheme, _, credentials = authorization.strip().partition(" ")
        if scheme.lower() != "bearer":
            return NO_CONTROL_TOKEN
        is_right = hmac.compare_digest(credentials.strip().encode(errors="replace"), self.control_token.encode())
        return None if is_right else WRONG_CONTROL_TOKEN


OPEN: Final = HttpAuth()
"""Every client that reaches the server may read."""


def checks_host(access: HttpAuth, bound_to: str) -> bool:
    """Return whether a server at this IP address answers to names of loopback only."""
    return not access.token and ipaddress.ip_address(bound_to).is_loopback


def find_host_problem(host_header: str, own_name: str) -> str | None:
    """Return why a request to a loopback server with this header Host is not answered, or None.

    `own_name` is the host in the server's address. A request without the header comes from no browser.

    >>> find_host_problem("localhost:18491", "127.0.0.1")
    >>> find_host_problem("evil.example", "127.0.0.1")[:52]
    "this collector does not answer to 'evil.example': it"
    """
    named = _strip_port(host_header.strip()).lower()
    if named in {"", "localhost", own_name.lower()} or _is_address(named):
        return None
    return (
        f"this collector does not answer to {named[:80]!r}: it listens at {own_name} without a token, so it answers "
        "only to localhost and to IP addresses. Use one of these in the URL, or set http_token_file."
    )


def _strip_port(authority: str) -> str:
    """Return the host of HOST, HOST:PORT, [IPV6] or [IPV6]:PORT."""
    return authority.partition("]")[0] + "]" if authority.startswith("[") else authority.partition(":")[0]


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def read_http_auth(*, token_file: str, certificate_file: str, key_file: str, control_token_file: str = "") -> HttpAuth:
    """Read the tokens and the certificate of a collector's settings. Raises SettingError for files that cannot be
    used, and for a control token that is the token for reading.
    """
    token = _read_token(token_file, "http_token_file") if token_file else ""
    control = _read_token(control_token_file, "http_control_token_file") if control_token_file else ""
    if control and control == token:
        raise SettingError(
            "http_control_token_file and http_token_file hold the same token: everybody who may read could give "
            "orders. Make another one, for example with `openssl rand -hex 32`."
        )
    if bool(certificate_file) != bool(key_file):
        raise SettingError(
            f"http_certificate_file is {certificate_file!r} and http_key_file is {key_file!r}: HTTPS needs both."
        )
    return HttpAuth(token, _read_tls(certificate_file, key_file) if certificate_file else None, control)


def _read_token(path: str, name: str) -> str:
    token = read_private_text(path, name).strip()
    if len(token) < TOKEN_LENGTH_MIN or not token.isascii() or not token.isprintable() or " " in token:
        raise SettingError(
            f"{name} is {path!r}, whose text is no token: it must be one word of at least {TOKEN_LENGTH_MIN} "
            "characters of ASCII, for example from `openssl rand -hex 32`."
        )
    return token


def _read_tls(certificate_file: str, key_file: str) -> ssl.SSLContext:
    read_private_text(key_file, "http_key_file")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # With an empty password: without one OpenSSL would ask for it at the terminal.
        context.load_cert_chain(certificate_file, key_file, password="")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise SettingError(
            f"http_certificate_file is {certificate_file!r} and http_key_file is {key_file!r}, which cannot be used: "
            f"{error}. Give a certificate and its key as PEM, the key without a password."
        ) from error
    return context


def _find_token(authorization: str) -> bytes:
    """Return the token in a header Authorization; empty when there is none in it."""
    scheme, _, credentials = authorization.strip().partition(" ")
    credentials = credentials.strip()
    if scheme.lower() == "bearer":
        return credentials.encode(errors="replace")
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(credentials, validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return b""
    return b""
