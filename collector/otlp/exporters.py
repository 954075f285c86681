"""Send metrics and log records by the exporters of the OpenTelemetry SDK.

Importing this file imports the SDK, which only the extra `otlp` installs.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcLogExporter
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetricExporter
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetricExporter
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExportResult
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData
from opentelemetry.sdk.resources import OTELResourceDetector, Resource

from rankscope.collector.otlp.endpoint import OTLP_GRPC, SEMANTIC_CONVENTIONS, Endpoint
from rankscope.collector.otlp.partial_success import Partial, read_partial
from rankscope.collector.otlp.reasons import ExportSession, Problem, export_with_reason, quieten_sdk, shorten
from rankscope.measure.errors import SettingError

TIMEOUT_S: Final = 10.0
"""Longest time for a request and its repetitions, as the SDK has it; the variables OTEL_EXPORTER_OTLP_..._TIMEOUT
change it."""


class _KeepsAnswer:
    """An exporter of gRPC that keeps how much of the last request the receiver has left out. It puts a stub around that
    of the SDK, which makes a new one after a lost connection, and does not read answers.
    """

    partial = Partial()
    _watched: Any = None

    @property
    def _client(self) -> Any:
        return self._watched

    @_client.setter
    def _client(self, stub: Any) -> None:
        self._watched = None if stub is None else _WatchedStub(stub, self)


class _WatchedStub:
    def __init__(self, stub: Any, exporter: _KeepsAnswer) -> None:
        self._stub = stub
        self._exporter = exporter

    def Export(self, *arguments: Any, **named: Any) -> Any:  # noqa: N802 - the protocol's name
        """Send a request, and keep what the answer says."""
        answer = self._stub.Export(*arguments, **named)
        self._exporter.partial = read_partial(answer)
        return answer


class _GrpcMetrics(_KeepsAnswer, GrpcMetricExporter):
    pass


class _GrpcLogs(_KeepsAnswer, GrpcLogExporter):
    pass


class MetricsSender:
    """Sender of metrics. One thread."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Make the exporter. Raises SettingError for variables OTEL_EXPORTER_OTLP_... that cannot be used."""
        self._session = ExportSession()
        self._exporter: _GrpcMetrics | HttpMetricExporter
        if endpoint.protocol == OTLP_GRPC:
            self._exporter = _make(_GrpcMetrics, endpoint)
        else:
            self._exporter = _make(HttpMetricExporter, endpoint, session=self._session)

    def send(self, data: MetricsData) -> str:
        """Send one request; return why it was not accepted, empty where it was. Takes TIMEOUT_S at most, as a rule."""
        _forget(self._exporter)
        return export_with_reason(self._session, lambda: self._exporter.export(data) is MetricExportResult.SUCCESS).text

    @property
    def partial(self) -> Partial:
        """What the receiver has left out of the last request that it accepted."""
        return self._exporter.partial if isinstance(self._exporter, _KeepsAnswer) else self._session.partial

    def close(self) -> None:
        """End what is being sent, and close the connection. Any thread."""
        self._exporter.shutdown()


class LogsSender:
    """Sender of log records. One thread."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Make the exporter. Raises SettingError as MetricsSender does."""
        self._session = ExportSession()
        self._exporter: _GrpcLogs | HttpLogExporter
        if endpoint.protocol == OTLP_GRPC:
            self._exporter = _make(_GrpcLogs, endpoint)
        else:
            self._exporter = _make(HttpLogExporter, endpoint, session=self._session)

    def send(self, records: Sequence[ReadableLogRecord]) -> Problem:
        """Send log records; return why they were not accepted. Those that the receiver has left out are not."""
        _forget(self._exporter)
        problem = export_with_reason(
            self._session, lambda: self._exporter.export(records) is LogRecordExportResult.SUCCESS
        )
        partial = self._exporter.partial if isinstance(self._exporter, _KeepsAnswer) else self._session.partial
        if problem.text or not partial.rejected:
            return problem
        said = f": {partial.remark}" if partial.remark else ""
        return Problem(f"it left out {partial.rejected} of {len(records)} log records{said}", is_final=True)


def _forget(exporter: object) -> None:
    if isinstance(exporter, _KeepsAnswer):
        exporter.partial = Partial()


def make_resource(attributes: Mapping[str, str]) -> Resource:
    """Return the resource with these attributes; those of OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME go before
    them.
    """
    return Resource.create(dict(attributes), SEMANTIC_CONVENTIONS).merge(OTELResourceDetector().detect())


def _make(kind: Any, endpoint: Endpoint, **more: Any) -> Any:
    quieten_sdk()
    try:
        return kind(endpoint=endpoint.url or None, **more)
    except Exception as error:
        given = sorted(name for name in os.environ if name.startswith("OTEL_"))
        raise SettingError(
            f"the exporter of OpenTelemetry cannot be made: {shorten(str(error))}. Correct the variables "
            f"{', '.join(given) or 'OTEL_EXPORTER_OTLP_...'}."
        ) from error
