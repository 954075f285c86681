"""Send metrics and log records by the exporters of the OpenTelemetry SDK, and learn why one could not be sent.

An exporter returns success or failure only, and writes the reason to a logger. Here the reason is what the HTTP session
met, or the status in that logger's record; the SDK's own lines are logged on the level DEBUG.

Importing this file imports the SDK, which only the extra `otlp` installs.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import grpc
import requests
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcLogExporter
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetricExporter
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetricExporter
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExportResult
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData
from opentelemetry.sdk.resources import OTELResourceDetector, Resource

from rankscope.collector.config import OTLP_GRPC
from rankscope.collector.otlp.endpoint import SEMANTIC_CONVENTIONS, Endpoint
from rankscope.measure.errors import SettingError

LOG = logging.getLogger("rankscope.collector")

ANSWER_BYTES_MAX: Final = 16 * 1024
DETAIL_CHARS_MAX: Final = 200
TIMEOUT_S: Final = 10.0
"""Longest time for a request and its repetitions, as the SDK has it; the variables OTEL_EXPORTER_OTLP_..._TIMEOUT
change it."""
_SDK_LOG: Final = logging.getLogger("opentelemetry")
_GRPC_LOG: Final = logging.getLogger("opentelemetry.exporter.otlp.proto.grpc.exporter")


class MetricsSender:
    """Sender of metrics. One thread."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Make the exporter. Raises SettingError for variables OTEL_EXPORTER_OTLP_... that cannot be used."""
        self._session = _Session()
        self._exporter: GrpcMetricExporter | HttpMetricExporter
        if endpoint.protocol == OTLP_GRPC:
            self._exporter = _make(GrpcMetricExporter, _grpc_arguments(endpoint))
        else:
            self._exporter = _make(HttpMetricExporter, _http_arguments(endpoint, self._session))

    def send(self, data: MetricsData) -> str:
        """Send one request; return why it was not accepted, empty where it was. Takes TIMEOUT_S at most, as a rule."""
        return _send(self._session, lambda: self._exporter.export(data) is MetricExportResult.SUCCESS)

    def close(self) -> None:
        """End what is being sent, and close the connection. Any thread."""
        self._exporter.shutdown()


class LogsSender:
    """Sender of log records. One thread."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Make the exporter. Raises SettingError as MetricsSender does."""
        self._session = _Session()
        self._exporter: GrpcLogExporter | HttpLogExporter
        if endpoint.protocol == OTLP_GRPC:
            self._exporter = _make(GrpcLogExporter, _grpc_arguments(endpoint))
        else:
            self._exporter = _make(HttpLogExporter, _http_arguments(endpoint, self._session))

    def send(self, records: Sequence[ReadableLogRecord]) -> str:
        """Send log records; return why they were not accepted, empty where they were."""
        return _send(self._session, lambda: self._exporter.export(records) is LogRecordExportResult.SUCCESS)


def make_resource(attributes: Mapping[str, str]) -> Resource:
    """Return the resource with these attributes; those of OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME go before
    them.
    """
    return Resource.create(dict(attributes), SEMANTIC_CONVENTIONS).merge(OTELResourceDetector().detect())


def _send(session: "_Session", export: Callable[[], bool]) -> str:
    """Export, and return why that failed; empty where it did not."""
    session.problem = ""
    _REASONS.clear()
    try:
        has_succeeded = export()
    except requests.RequestException:  # those of 1.39 do not catch it
        has_succeeded = False
    return "" if has_succeeded else session.problem or _REASONS.read()


class _Session(requests.Session):
    """An HTTP session that keeps what the last request met, and reads little of an answer."""

    problem = ""

    def request(self, *arguments: Any, **options: Any) -> requests.Response:
        """Send a request. Raises what requests raises."""
        options.update(stream=True, allow_redirects=False)
        try:
            response = super().request(*arguments, **options)
        except (requests.RequestException, OSError) as error:
            self.problem = _describe_error(error)
            raise
        self.problem = "" if response.ok else f"it answers {response.status_code}"
        if response.is_redirect:
            self.problem = f"it answers {response.status_code}: redirects are not followed, name the final address"
            response.status_code = HTTPStatus.BAD_REQUEST  # the SDK takes a redirect for a success
        response._content = response.raw.read(ANSWER_BYTES_MAX)  # noqa: SLF001 - else requests reads the answer whole
        response.close()
        return response


class _Reasons(logging.Filter):
    """Keeps the last reason that the exporters of gRPC have logged in each thread."""

    def __init__(self) -> None:
        super().__init__()
        self._of_threads: dict[int, str] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep the reason in a record, which goes on."""
        self._of_threads[threading.get_ident()] = _describe_record(record)
        return True

    def clear(self) -> None:
        """Forget the reason of this thread."""
        self._of_threads.pop(threading.get_ident(), None)

    def read(self) -> str:
        """Return the last reason in this thread."""
        return self._of_threads.get(threading.get_ident(), "it was not accepted")


class _Quiet(logging.Handler):
    """Passes what the SDK logs on at the level DEBUG."""

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a record on."""
        LOG.debug("OpenTelemetry SDK: %s", _shorten(record.getMessage()))


def _describe_record(record: logging.LogRecord) -> str:
    """Return the status of gRPC and its details, where the record has one, else the text."""
    arguments = record.args if isinstance(record.args, tuple) else ()
    for place, argument in enumerate(arguments):
        if isinstance(argument, grpc.StatusCode):
            details = next((text for text in arguments[place + 1 :] if isinstance(text, str)), "")
            return f"it answers {argument.name}" + (f": {_shorten(details)}" if details else "")
    return _shorten(record.getMessage())


def _describe_error(error: BaseException) -> str:
    if isinstance(error, requests.exceptions.SSLError):
        return "its certificate is not trusted, or it does not speak TLS; otlp_certificate_file names another CA"
    if isinstance(error, requests.exceptions.Timeout):
        return "it does not answer in time"
    causes = [one.strerror for one in _list_causes(error) if isinstance(one, OSError) and one.strerror]
    return f"it cannot be reached: {_shorten(causes[-1] if causes else type(error).__name__)}"


def _list_causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _shorten(text: str) -> str:
    """Return a text from outside as one printable line."""
    return "".join(char if char.isprintable() else " " for char in text)[:DETAIL_CHARS_MAX]


def _http_arguments(endpoint: Endpoint, session: requests.Session) -> dict[str, Any]:
    return {
        "session": session,
        "endpoint": endpoint.url or None,
        "headers": dict(endpoint.headers) or None,
        "certificate_file": endpoint.certificate_file or None,
    }


def _grpc_arguments(endpoint: Endpoint) -> dict[str, Any]:
    arguments: dict[str, Any] = {"endpoint": endpoint.url or None, "headers": dict(endpoint.headers) or None}
    if endpoint.certificate_file:
        arguments["credentials"] = grpc.ssl_channel_credentials(Path(endpoint.certificate_file).read_bytes())
    return arguments


def _make(kind: Any, arguments: Mapping[str, Any]) -> Any:
    _SDK_LOG.propagate = False
    if _QUIET not in _SDK_LOG.handlers:
        _SDK_LOG.addHandler(_QUIET)
        _GRPC_LOG.filters.insert(0, _REASONS)  # before the SDK's own filter, which drops what is said again
    try:
        return kind(**arguments)
    except Exception as error:
        given = sorted(name for name in os.environ if name.startswith("OTEL_"))
        raise SettingError(
            f"the exporter of OpenTelemetry cannot be made: {_shorten(str(error))}. Correct the variables "
            f"{', '.join(given) or 'OTEL_EXPORTER_OTLP_...'}."
        ) from error


_REASONS: Final = _Reasons()
_QUIET: Final = _Quiet()
