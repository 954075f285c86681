"""Receivers of OTLP for tests, over HTTP and gRPC: they keep what they get, and answer as a test wants."""

import contextlib
import gzip
import http.server
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from prometheus_client.parser import text_string_to_metric_families

DEADLINE_S = 60.0

Labels = tuple[tuple[str, str], ...]
Series = dict[tuple[str, Labels], float]


@dataclass
class Received:
    """What a receiver got: requests in their order, with the headers of each, and their sizes in bytes."""

    metrics: list[Any] = field(default_factory=list)
    logs: list[Any] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def add(self, request: Any, headers: Mapping[str, str]) -> None:
        """Keep a request."""
        with self.changed:
            is_metrics = isinstance(request, metrics_service_pb2.ExportMetricsServiceRequest)
            (self.metrics if is_metrics else self.logs).append(request)
            self.headers.append(headers)
            self.sizes.append(request.ByteSize())
            self.changed.notify_all()

    def wait_for_metrics(self, requests: int) -> list[Any]:
        """The requests with metrics, once there are so many."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.metrics) >= requests, DEADLINE_S), len(self.metrics)
            return list(self.metrics)

    def wait_for_logs(self, records: int) -> list[LogRecord]:
        """All log records, once there are so many."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.log_records) >= records, DEADLINE_S), self.log_records
            return self.log_records

    @property
    def log_records(self) -> list[LogRecord]:
        """All log records."""
        return [
            record
            for request in self.logs
            for resource in request.resource_logs
            for scope in resource.scope_logs
            for record in scope.log_records
        ]


@dataclass
class Receiver:
    """A receiver at `url`. `answer` is an HTTP status or a status of gRPC with which the next requests are answered;
    None: they are accepted, but for the points or records that `left_out` counts, with a text. One of HTTP that
    `packs_answers` compresses them. While `gate` is not set no request is answered.
    """

    url: str
    received: Received
    protocol: str
    answer: Any = None
    left_out: tuple[int, str] = (0, "")
    garbage: bytes = b""
    packs_answers: bool = False
    gate: threading.Event = field(default_factory=threading.Event)


@contextlib.contextmanager
def receiving_http(port: int = 0) -> Iterator[Receiver]:
    """A receiver over HTTP, until the end of the context."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_arguments: object) -> None:
            pass

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            receiver.gate.wait(DEADLINE_S)
            if receiver.garbage:
                self.wfile.write(receiver.garbage)
                return
            if receiver.answer is None:
                is_metrics = self.path.endswith("/v1/metrics")
                service = (
                    metrics_service_pb2.ExportMetricsServiceRequest
                    if is_metrics
                    else logs_service_pb2.ExportLogsServiceRequest
                )
                receiver.received.add(service.FromString(body), {**self.headers, "path": self.path})
            said = make_answer(self.path.endswith("/v1/metrics"), receiver).SerializeToString()
            said = gzip.compress(said) if receiver.packs_answers else said
            self.send_response(receiver.answer or 200)
            if receiver.packs_answers:
                self.send_header("Content-Encoding", "gzip")
            self.send_header("Content-Length", str(len(said)))
            self.send_header("Location", "/elsewhere")
            self.end_headers()
            self.wfile.write(said)

    with http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        receiver = Receiver(f"http://127.0.0.1:{server.server_address[1]}", Received(), "http/protobuf")
        receiver.gate.set()
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield receiver
        finally:
            receiver.gate.set()
            server.shutdown()
            thread.join()


def make_answer(is_metrics: bool, receiver: Receiver) -> Any:
    """The answer to an accepted request, with what is left out."""
    answer: Any = (
        metrics_service_pb2.ExportMetricsServiceResponse()
        if is_metrics
        else logs_service_pb2.ExportLogsServiceResponse()
    )
    count, text = receiver.left_out
    if count:
        setattr(answer.partial_success, "rejected_data_points" if is_metrics else "rejected_log_records", count)
    if text:
        answer.partial_success.error_message = text
    return answer


class _Service(metrics_service_pb2_grpc.MetricsServiceServicer, logs_service_pb2_grpc.LogsServiceServicer):
    """Both services of a receiver over gRPC."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the protocol's name
        self._receiver.gate.wait(DEADLINE_S)
        if self._receiver.answer is not None:
            context.abort(self._receiver.answer, "as the test\nwants")
        self._receiver.received.add(request, dict(context.invocation_metadata()))
        return make_answer(isinstance(request, metrics_service_pb2.ExportMetricsServiceRequest), self._receiver)


@contextlib.contextmanager
def receiving_grpc(port: int = 0, credentials: Any = None) -> Iterator[Receiver]:
    """A receiver over gRPC that accepts 4 MiB a message, as is usual, until the end of the context."""
    server = grpc.server(ThreadPoolExecutor(4))
    address = f"127.0.0.1:{port}"
    found = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    receiver = Receiver(f"{'https' if credentials else 'http'}://127.0.0.1:{found}", Received(), "grpc")
    receiver.gate.set()
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(_Service(receiver), server)
    logs_service_pb2_grpc.add_LogsServiceServicer_to_server(_Service(receiver), server)
    server.start()
    try:
        yield receiver
    finally:
        receiver.gate.set()
        server.stop(None).wait()


# -- back to Prometheus -----------------------------------------------------------------------------------------------

WORDS = {
    "s": "seconds", "By": "bytes", "1": "ratio", "W": "watts", "J": "joules", "Hz": "hertz", "Cel": "celsius", "": "",
}  # fmt: skip
"""Words of Prometheus for units of UCUM."""
SINGULAR = {"s": "second"}


def find_prometheus_name(metric: Metric) -> str:
    """The name that the OpenTelemetry Collector gives a metric for Prometheus, by the rules of
    pkg/translator/prometheus: unit, then `total` or `ratio` at the end, each where the name does not have it.
    """
    words = metric.name.split("_")
    is_counter = metric.WhichOneof("data") == "sum" and metric.sum.is_monotonic
    is_gauge = metric.WhichOneof("data") == "gauge"
    unit, _, per = metric.unit.partition("/")
    word = "" if unit == "1" else WORDS[unit]
    if word and word not in words:
        words.append(word)
    if per and SINGULAR[per] not in words:
        words += ["per", SINGULAR[per]]
    if is_counter:
        words = [one for one in words if one != "total"] + ["total"]
    if metric.unit == "1" and is_gauge:
        words = [one for one in words if one != "ratio"] + ["ratio"]
    return "_".join(words)


def find_series(requests: list[Any]) -> Series:
    """The series of Prometheus that requests with metrics become, without those of the resource. Each is there once."""
    series: Series = {}
    for metric in list_metrics(requests):
        data = metric.sum if metric.WhichOneof("data") == "sum" else metric.gauge
        for point in data.data_points:
            labels = tuple(sorted((one.key, one.value.string_value) for one in point.attributes))
            key = (find_prometheus_name(metric), labels)
            assert key not in series, key
            series[key] = point.as_double
    return series


def list_metrics(requests: list[Any]) -> list[Metric]:
    """All metrics of requests."""
    return [
        metric
        for request in requests
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    ]


def read_attributes(attributes: Any) -> dict[str, Any]:
    """Attributes as plain values."""
    return {one.key: _read_value(one.value) for one in attributes}


def _read_value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_read_value(one) for one in value.array_value.values]
    return getattr(value, kind)


def read_page(text: str) -> Series:
    """The series of a page of metrics, as its client library reads them. To Prometheus an empty label is none."""
    return {
        (sample.name, tuple(sorted((name, value) for name, value in sample.labels.items() if value))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
