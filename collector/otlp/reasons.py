"""Learn why the exporters of the OpenTelemetry SDK could not send something, and keep them quiet.

An exporter returns success or failure only, and writes the reason to a logger. Here the reason is what the HTTP session
met, or for gRPC the status in the record of that logger; the SDK's own lines are logged on the level DEBUG.

Importing this file imports the SDK's transports, which only the extra `otlp` installs.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import grpc
import requests
import urllib3

from rankscope.collector.http_retries import may_pass
from rankscope.collector.otlp import partial_success
from rankscope.collector.otlp.partial_success import Partial, parse_partial

LOG = logging.getLogger("rankscope.collector")

ANSWER_BYTES_MAX: Final = 16 * 1024
DETAIL_CHARS_MAX: Final = 200
REFUSALS: Final = frozenset({
    grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNIMPLEMENTED,
})  # fmt: skip
"""Statuses of gRPC that another try would meet again, as 400, 401, 403 and 404 of HTTP."""
_SDK_LOG: Final = logging.getLogger("opentelemetry")
_GRPC_LOG: Final = logging.getLogger("opentelemetry.exporter.otlp.proto.grpc.exporter")


class Problem(NamedTuple):
    """Why something was not accepted, empty where it was, and whether another try would meet the same."""

    text: str = ""
    is_final: bool = False


def export_with_reason(session: "ExportSession", export: Callable[[], bool]) -> Problem:
    """Export, and return why that failed."""
    session.problem, session.partial = Problem(), Partial()
    _REASONS.clear()
    try:
        has_succeeded = export()
    except requests.RequestException:  # those of 1.39 do not catch it
        has_succeeded = False
    if has_succeeded:
        return Problem()
    return session.problem if session.problem.text else _REASONS.read()


class ExportSession(requests.Session):
    """An HTTP session that keeps what the last request met, and reads little of an answer."""

    problem = Problem()
    partial = Partial()

    def request(self, *arguments: Any, **options: Any) -> requests.Response:
        """Send a request. Raises what requests raises."""
        options.update(stream=True, allow_redirects=False)
        try:
            response = super().request(*arguments, **options)
        except (requests.RequestException, OSError) as error:
            self.problem = Problem(_describe_error(error))
            raise
        self.problem = _judge(response)
        if response.is_redirect:
            response.status_code = HTTPStatus.BAD_REQUEST  # the SDK takes a redirect for a success
        response._content = b""  # noqa: SLF001 - else requests reads the answer whole
        with contextlib.suppress(urllib3.exceptions.HTTPError, OSError):  # the status is known
            body = response.raw.read(ANSWER_BYTES_MAX, decode_content=True)  # requests offers to take gzip
            self.partial = parse_partial(body) if response.ok and not self.problem.text else Partial()
        response.close()
        return response


class _Reasons(logging.Filter):
    """Keeps the last reason that the exporters of gRPC have logged in each thread."""

    def __init__(self) -> None:
        super().__init__()
        self._of_threads: dict[int, Problem] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep the reason in a record, which goes on."""
        self._of_threads[threading.get_ident()] = _describe_record(record)
        return True

    def clear(self) -> None:
        """Forget the reason of this thread."""
        self._of_threads.pop(threading.get_ident(), None)

    def read(self) -> Problem:
        """Return the last reason in this thread."""
        return self._of_threads.get(threading.get_ident(), Problem("it was not accepted"))


class _Quiet(logging.Handler):
    """Passes what the SDK logs on at the level DEBUG."""

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a record on."""
        LOG.debug("OpenTelemetry SDK: %s", shorten(record.getMessage()))


def _judge(response: requests.Response) -> Problem:
    status = response.status_code
    if response.ok and not response.is_redirect:
        return Problem()
    text = f"it answers HTTP status {status}"
    if response.is_redirect:
        text += ": redirects are not followed, name the final address"
    return Problem(text, is_final=not may_pass(status))


def _describe_record(record: logging.LogRecord) -> Problem:
    """Return the status of gRPC and its details, where the record has one, else the text."""
    arguments = record.args if isinstance(record.args, tuple) else ()
    for place, argument in enumerate(arguments):
        if isinstance(argument, grpc.StatusCode):
            details = next((text for text in arguments[place + 1 :] if isinstance(text, str)), "")
            text = f"the call ended with {argument.name}" + (f": {shorten(details)}" if details else "")
            return Problem(text, is_final=argument in REFUSALS)
    return Problem(shorten(record.getMessage()))


def _describe_error(error: BaseException) -> str:
    if isinstance(error, requests.exceptions.SSLError):
        cure = "let OTEL_EXPORTER_OTLP_CERTIFICATE name the certificate of its CA"
        return f"its certificate is not trusted, or it does not use TLS; {cure}"
    if isinstance(error, requests.exceptions.Timeout):
        return "it does not answer in time"
    causes = [one.strerror for one in _list_causes(error) if isinstance(one, OSError) and one.strerror]
    return f"it cannot be reached: {shorten(causes[-1] if causes else type(error).__name__)}"


def _list_causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def shorten(text: str) -> str:
    """Return a text from outside as one printable line."""
    return partial_success.shorten(text, DETAIL_CHARS_MAX)


def quieten_sdk() -> None:
    """Keep the SDK's lines from the log, and their reasons for `export_with_reason`. May be called again."""
    _SDK_LOG.propagate = False
    if _QUIET not in _SDK_LOG.handlers:
        _SDK_LOG.addHandler(_QUIET)
        _GRPC_LOG.filters.insert(0, _REASONS)  # before the SDK's own filter, which drops what is said again


_REASONS: Final = _Reasons()
_QUIET: Final = _Quiet()
