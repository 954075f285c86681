"""Query a running collector over HTTP, for the commands that show its data."""

import argparse
import contextlib
import http.client
import json
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec

from rankscope.collector.address_token import split_token
from rankscope.collector.client_config import DEFAULT_URL, ClientConfig, read_client_config
from rankscope.collector.run_ids import find_run_id
from rankscope.collector.wrong_address import WHERE, describe_failure
from rankscope.measure.errors import SettingError, UnavailableError
from rankscope.measure.key_files import read_private_text

HTTP_TIMEOUT_S: Final = 10.0
ORDER_TIMEOUT_S: Final = 30.0
"""An order is answered by the service behind the publisher, which waits up to 10 s for it."""
BLOCK_BYTES: Final = 1 << 20
"""Most bytes of a file in memory."""
ERROR_BYTES_MAX: Final = 4096
ANSWER_BYTES_MAX: Final = 256 * 1024 * 1024
"""A complete run of 16,384 ranks has 35 MB of JSON; a larger answer comes from another server."""
IN_ADDRESS: Final = "the address"
"""Where a token is from that no file holds."""
OUR_REALM: Final = 'realm="rankscope"'
"""The realm in a collector's 401 answers (`publish/http_auth.py`); other servers have another."""

T = TypeVar("T")


class Credentials(NamedTuple):
    """The token for a collector, and the certificates to trust (None: those of the system). `token_file` is for error
    texts: the file of the token, and the setting that named it.
    """

    token: str = ""
    tls: ssl.SSLContext | None = None
    token_file: str = ""


ANONYMOUS: Final = Credentials()


class Collector(NamedTuple):
    """The URL of a collector, without a trailing slash, and the credentials for it."""

    url: str
    credentials: Credentials = ANONYMOUS


def add_url(parser: argparse.ArgumentParser) -> None:
    """Add the options for the address and credentials of the collector."""
    _add_address(parser)
    add_credentials(parser)


def add_control(parser: argparse.ArgumentParser) -> None:
    """Add the options for the address of a collector that takes orders, and for the token that allows them."""
    _add_address(parser)
    parser.add_argument(
        "--control-token-file",
        default=None,
        metavar="FILE",
        help="file with the collector's control token [RANKSCOPE_CONTROL_TOKEN_FILE]",
    )
    _add_trust(parser)


def _add_address(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url", default=None, help=f"the collector's HTTP address [RANKSCOPE_URL, client.toml, or {DEFAULT_URL}]"
    )


def add_credentials(parser: argparse.ArgumentParser) -> None:
    """Add the options for the credentials."""
    parser.add_argument(
        "--token-file", default=None, metavar="FILE", help="file with the collector's token [RANKSCOPE_TOKEN_FILE]"
    )
    _add_trust(parser)


def _add_trust(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ca-file",
        default=None,
        metavar="FILE",
        help="certificate to trust, for a collector with HTTPS [RANKSCOPE_CA_FILE]",
    )


def read_config(options: argparse.Namespace) -> ClientConfig:
    """Return the configuration from these options, the environment and the file. Raises SettingError."""
    given = {key: getattr(options, key, None) for key in ("url", "token_file", "control_token_file", "ca_file")}
    return read_client_config(os.environ, {key: value for key, value in given.items() if value is not None})


def find_collector(options: argparse.Namespace) -> Collector:
    """Return the collector of a command. Raises SettingError for a value or a file that cannot be used."""
    return open_collector(read_config(options))


def open_collector(config: ClientConfig) -> Collector:
    """Return the collector of this configuration, with the token and certificate read from its files."""
    return _open(config, "token_file", config.token_file)


def find_controlled(options: argparse.Namespace) -> Collector:
    """Return the collector of a command that orders something, with the control token, which reads too. Raises
    SettingError for a value or a file that cannot be used, and where no control token is named.
    """
    config = read_config(options)
    if not config.control_token_file:
        raise SettingError(
            "control_token_file is empty; an order needs the control token. Name a copy of the file that the "
            "collector's http_control_token_file names with --control-token-file (RANKSCOPE_CONTROL_TOKEN_FILE)."
        )
    return _open(config, "control_token_file", config.control_token_file)


def _open(config: ClientConfig, key: str, file: str) -> Collector:
    """Return the collector with the token in `file`, which the setting `key` names."""
    url, token = split_token(config.url)
    shown = IN_ADDRESS if token else ""
    if file:
        token, shown = _read_token(config, key, file), f"{file} ({config.source(key)})"
    return Collector(url.rstrip("/"), Credentials(token, _read_trust(config), shown))


def _read_token(config: ClientConfig, key: str, file: str) -> str:
    token = read_private_text(_expand(file), key).strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:  # the text itself is not shown
        raise SettingError(
            f"{key} is {file!r} ({config.source(key)}), which holds no token: that is one "
            f"word of ASCII characters. Name a copy of the file that the collector's http_{key} names."
        )
    return token


def _expand(path: str) -> str:
    """Return the path with a leading `~` expanded to the user's home."""
    try:
        return str(Path(path).expanduser())
    except RuntimeError:  # there is no such user
        return path


def _read_trust(config: ClientConfig) -> ssl.SSLContext | None:
    if not config.ca_file:
        return None
    try:
        return ssl.create_default_context(cafile=_expand(config.ca_file))
    except OSError as error:  # ssl.SSLError is one
        source = config.source("ca_file")
        raise SettingError(f"ca_file is {config.ca_file!r} ({source}), which cannot be used: {error}") from error


class _Known(msgspec.Struct, frozen=True):
    run: str
    run_id: str = ""


class _Runs(msgspec.Struct, frozen=True):
    runs: tuple[_Known, ...]


def fetch_runs(url: str, credentials: Credentials = ANONYMOUS) -> tuple[str, ...]:
    """Return the ids of the runs that the collector at `url` knows, ordered by name. Raises UnavailableError where no
    collector answers.
    """
    return tuple(known.run_id or known.run for known in fetch(f"{url}/api/v1/runs", _Runs, credentials).runs)


def choose_run(asked: str, url: str, credentials: Credentials = ANONYMOUS) -> str:
    """Return the id of the run with this id, or of the latest with this name. Raises UnavailableError, with a near
    name, where the collector at `url` knows none.
    """
    return find_run_id(asked, fetch_runs(url, credentials), f"the collector at {url}")


def fetch(url: str, kind: type[T], credentials: Credentials = ANONYMOUS) -> T:
    """Fetch a page of a collector and decode it as `kind`. Raises UnavailableError where that fails."""
    return _decode(url, fetch_bytes(url, credentials), kind)


def post(url: str, order: msgspec.Struct, kind: type[T], credentials: Credentials) -> T:
    """Send an order to a collector as JSON, and decode its answer as `kind`. Raises UnavailableError where that fails,
    or the collector refuses.
    """
    return _decode(url, _ask(url, credentials, msgspec.json.encode(order)), kind)


def _decode(url: str, page: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(page, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = f"is no rankscope collector, or one of another version: {error}"
        raise UnavailableError(f"what answers at {url} {reason}. {WHERE}.") from error


def fetch_bytes(url: str, credentials: Credentials = ANONYMOUS) -> bytes:
    """Fetch the body of a page of a collector. Raises UnavailableError where that fails."""
    return _ask(url, credentials)


def fetch_blocks(url: str, credentials: Credentials = ANONYMOUS) -> Iterator[bytes]:
    """Yield a file of a collector in blocks, however long it is. Raises UnavailableError where that fails; a file that
    ends early is for the caller to notice.
    """
    with _asking(url, credentials) as answer:
        yield from iter(lambda: answer.read(BLOCK_BYTES), b"")


def _ask(url: str, credentials: Credentials, order: bytes | None = None) -> bytes:
    with _asking(url, credentials, order) as answer:
        body = bytes(answer.read(ANSWER_BYTES_MAX + 1))
        if answer.length and len(body) <= ANSWER_BYTES_MAX:  # with a limit, http.client does not report this
            raise http.client.IncompleteRead(body, answer.length)
    if len(body) > ANSWER_BYTES_MAX:
        limit = f"its answer has more than {ANSWER_BYTES_MAX} bytes"
        raise UnavailableError(f"what answers at {url} is no rankscope collector: {limit}. {WHERE}.")
    return body


@contextlib.contextmanager
def _asking(url: str, credentials: Credentials, order: bytes | None = None) -> Iterator[http.client.HTTPResponse]:
    """Yield the answer to a GET, or to a POST of an order. Its errors, while it is read too, are UnavailableError."""
    request = urllib.request.Request(url, data=order)  # noqa: S310 - ClientConfig has checked it
    if order is not None:
        request.add_header("Content-Type", "application/json")
    if credentials.token:
        # Not sent with a redirect: another server must not get the token.
        request.add_unredirected_header("Authorization", f"Bearer {credentials.token}")
    timeout_s = HTTP_TIMEOUT_S if order is None else ORDER_TIMEOUT_S
    try:
        with urllib.request.urlopen(request, timeout=timeout_s, context=credentials.tls) as answer:  # noqa: S310
            yield answer
    except urllib.error.HTTPError as error:
        raise UnavailableError(_describe_refusal(url, error, credentials)) from error
    except (urllib.error.URLError, OSError, ValueError, http.client.HTTPException) as error:
        raise UnavailableError(describe_failure(url, error)) from error


def _describe_refusal(url: str, error: urllib.error.HTTPError, credentials: Credentials) -> str:
    """Return the sentence for an HTTP error."""
    if error.code == HTTPStatus.UNAUTHORIZED:
        return _describe_unauthorized(url, error, credentials)
    text = ""
    with error, contextlib.suppress(OSError, http.client.HTTPException):  # it may end early
        text = error.read(ERROR_BYTES_MAX).decode(errors="replace")
    try:
        return f"the collector at {url} answers {error.code}: {json.loads(text)['error']}"
    except (ValueError, KeyError, TypeError):
        if error.code >= HTTPStatus.INTERNAL_SERVER_ERROR:  # from a proxy before the collector
            return f"the collector at {url} answers {error.code}: {error.reason}"
        return describe_failure(url, error)


def _describe_unauthorized(url: str, error: urllib.error.HTTPError, credentials: Credentials) -> str:
    with error:
        if OUR_REALM not in str(error.headers.get("WWW-Authenticate", "")):
            return f"what answers at {url} asks for a login and is no rankscope collector (HTTP 401). {WHERE}."
    if not credentials.token:
        cure = (
            "Name the file that holds it with --token-file (RANKSCOPE_TOKEN_FILE), or give the whole address that rank "
            "0 has printed."
        )
        return f"the collector at {url} answers 401: it requires its token. {cure}"
    if credentials.token_file == IN_ADDRESS:
        return f"the collector at {url} answers 401: the token in the address is that of another collector. {WHERE}."
    return (
        f"the collector at {url} answers 401: the token in {credentials.token_file} is not its token. It uses the "
        "one that the file named by its http_token_file held when the collector was started."
    )
