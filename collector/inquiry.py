"""Asking a running collector over HTTP, for the commands that show what it knows."""

import argparse
import contextlib
import http.client
import json
import ssl
import urllib.error
import urllib.request
from http import HTTPStatus
from typing import Final, NamedTuple, TypeVar

import msgspec

from rankscope.measure.errors import SettingError, UnavailableError
from rankscope.measure.key_files import read_private_text

DEFAULT_URL: Final = "http://127.0.0.1:18491"
HTTP_TIMEOUT_S: Final = 10.0
ERROR_BYTES_MAX: Final = 4096

T = TypeVar("T")


class Credentials(NamedTuple):
    """What a collector may ask for: its token, and whose certificates are trusted (None: those the system trusts)."""

    token: str = ""
    tls: ssl.SSLContext | None = None


ANONYMOUS: Final = Credentials()


def add_url(parser: argparse.ArgumentParser) -> None:
    """The option that says where the collector is."""
    parser.add_argument("--url", default=DEFAULT_URL, help=f"the collector's HTTP address [{DEFAULT_URL}]")
    add_credentials(parser)


def add_credentials(parser: argparse.ArgumentParser) -> None:
    """The options that say what it may ask for."""
    parser.add_argument("--token-file", default="", metavar="FILE", help="file with the collector's token")
    parser.add_argument(
        "--ca-file", default="", metavar="FILE", help="certificate to trust, for a collector with HTTPS"
    )


def read_credentials(options: argparse.Namespace) -> Credentials:
    """What those options give. Raises SettingError for a file that cannot be used."""
    token = read_private_text(options.token_file, "--token-file").strip() if options.token_file else ""
    if not options.ca_file:
        return Credentials(token)
    try:
        return Credentials(token, ssl.create_default_context(cafile=options.ca_file))
    except OSError as error:  # ssl.SSLError is one
        raise SettingError(f"--ca-file is {options.ca_file!r}, which cannot be used: {error}") from error


def check_url(url: str) -> str:
    """The address, to which a path may be added. Raises SettingError when it is none."""
    if not url.startswith(("http://", "https://")):
        raise SettingError(f"--url is {url!r}; an HTTP address begins with http:// or https://")
    return url.rstrip("/")


class _Known(msgspec.Struct, frozen=True):
    run: str


class _Runs(msgspec.Struct, frozen=True):
    runs: tuple[_Known, ...]


def ask_for_runs(url: str, credentials: Credentials = ANONYMOUS) -> tuple[str, ...]:
    """The names of the runs that the collector at `url` knows. Raises UnavailableError where there is none."""
    return tuple(known.run for known in ask_for(f"{url}/api/v1/runs", _Runs, credentials).runs)


def ask_for(url: str, kind: type[T], credentials: Credentials = ANONYMOUS) -> T:
    """What a page of a collector says, as that type. Raises UnavailableError where it cannot be had, or is none."""
    page = ask(url, credentials)
    try:
        return msgspec.json.decode(page, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = f"is no rankscope collector, or one of another version: {error}"
        raise UnavailableError(f"what answers at {url} {reason}. --url says where the collector is.") from error


def ask(url: str, credentials: Credentials = ANONYMOUS) -> bytes:
    """The body of a page of a collector, whose address `check_url` has seen. Raises UnavailableError without one."""
    request = urllib.request.Request(url)  # noqa: S310 - `check_url` has seen it
    if credentials.token:
        # Not with a redirect: another server has no business with the token.
        request.add_unredirected_header("Authorization", f"Bearer {credentials.token}")
    try:
        with urllib.request.urlopen(request, timeout=HTTP_TIMEOUT_S, context=credentials.tls) as answer:  # noqa: S310
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        raise UnavailableError(f"the collector at {url} answers {error.code}: {_find_reason(error)}") from error
    except (urllib.error.URLError, OSError, ValueError, http.client.HTTPException) as error:
        reason = str(error) or type(error).__name__
        raise UnavailableError(
            f"no collector answers at {url}: {reason}. `rankscope serve` starts one; --url says where it is."
        ) from error


def _find_reason(error: urllib.error.HTTPError) -> str:
    """What the answer says; a collector says it as JSON, whatever stands between it and us in any other way."""
    text = ""
    with error, contextlib.suppress(OSError, http.client.HTTPException):  # it may end amid its words
        text = error.read(ERROR_BYTES_MAX).decode(errors="replace")
    if error.code == HTTPStatus.UNAUTHORIZED:
        return "it asks for its token. --token-file names the file that has it."
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return error.reason
