"""The exporters against real receivers: what arrives, and what is said where nothing does."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry._logs import LogRecord
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.metrics.export import MetricsData
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from rankscope.collector.config import CollectorConfig
from rankscope.collector.otlp.endpoint import LOGS, METRICS, read_endpoint
from rankscope.collector.otlp.exporters import LogsSender, MetricsSender, make_resource
from rankscope.collector.publish.metrics.points import read_points
from rankscope.collector.publish.otlp_metrics import Requests
from rankscope.measure.errors import SettingError
from tests.certificates import make_certificate
from tests.full_snapshot import full_snapshot
from tests.otlp_receivers import Receiver, read_attributes, receiving_grpc, receiving_http

PROTOCOLS = ("grpc", "http/protobuf")


@pytest.fixture(autouse=True)
def _few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails fails soon: the SDK repeats a request within this time."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a receiver answers comes in time on a busy machine, too."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "30")


@pytest.fixture(params=PROTOCOLS)
def receiver(request: pytest.FixtureRequest) -> Iterator[Receiver]:
    """A receiver of each protocol."""
    with receiving_grpc() if request.param == "grpc" else receiving_http() as found:
        yield found


def sender_to(url: str, protocol: str) -> MetricsSender:
    environment = {"OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
    return MetricsSender(read_endpoint(CollectorConfig(otlp_endpoint=url), environment, METRICS))


def some_metrics() -> MetricsData:
    blocks = read_points(full_snapshot(), metrics_ranks_max=64, all_ranks=False)
    found: MetricsData = next(Requests(make_resource({"service.name": "of-a-test"})).build(blocks, 1))
    return found


def send_to(receiver: Receiver) -> str:
    """Send once, and return the problem."""
    sender = sender_to(receiver.url, receiver.protocol)
    try:
        return sender.send(some_metrics())
    finally:
        sender.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def test_request_arrives(receiver: Receiver) -> None:
    assert send_to(receiver) == ""
    (request,) = receiver.received.metrics
    attributes = read_attributes(request.resource_metrics[0].resource.attributes)
    assert attributes["service.name"] == "of-a-test"
    assert request.resource_metrics[0].schema_url == "https://opentelemetry.io/schemas/1.40.0"


@pytest.mark.usefixtures("_patient")
def test_points_that_the_receiver_left_out_are_known(receiver: Receiver) -> None:
    sender = sender_to(receiver.url, receiver.protocol)
    receiver.left_out = (12, "too many\nlabels")
    assert (sender.send(some_metrics()), sender.partial) == ("", (12, "too many labels"))
    receiver.left_out = (0, "")
    assert (sender.send(some_metrics()), sender.partial) == ("", (0, ""))
    sender.close()


@pytest.mark.usefixtures("_patient")
def test_answer_that_is_compressed_is_read_too() -> None:
    with receiving_http() as receiver:
        receiver.left_out, receiver.packs_answers = (12, "too many labels"), True
        sender = sender_to(receiver.url, receiver.protocol)
        assert (sender.send(some_metrics()), sender.partial) == ("", (12, "too many labels"))
        sender.close()


@pytest.mark.usefixtures("_patient")
def test_what_a_refused_request_left_out_is_not_known(receiver: Receiver) -> None:
    sender = sender_to(receiver.url, receiver.protocol)
    receiver.left_out = (12, "")
    assert sender.send(some_metrics()) == ""
    receiver.answer = grpc.StatusCode.UNAUTHENTICATED if receiver.protocol == "grpc" else 401
    assert sender.send(some_metrics()) != ""
    assert sender.partial == (0, "")
    sender.close()


@pytest.mark.usefixtures("_patient")
def test_log_record_that_the_receiver_left_out_is_lost(receiver: Receiver) -> None:
    environment = {"OTEL_EXPORTER_OTLP_PROTOCOL": receiver.protocol}
    sender = LogsSender(read_endpoint(CollectorConfig(otlp_endpoint=receiver.url), environment, LOGS))
    record = ReadableLogRecord(LogRecord(body="text"), make_resource({}), InstrumentationScope("test"))
    assert sender.send([record]) == ("", False)
    receiver.left_out = (1, "no body")
    assert sender.send([record]) == ("it left out 1 of 1 log records: no body", True)


def test_headers_of_the_variable_arrive(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20word")
    sender = sender_to(receiver.url, receiver.protocol)
    assert sender.send(some_metrics()) == ""
    sender.close()
    assert {name.lower(): value for name, value in receiver.received.headers[0].items()}[
        "authorization"
    ] == "Bearer word"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_receiver_that_is_not_there_is_said_to_be_unreachable(protocol: str) -> None:
    sender = sender_to(f"http://127.0.0.1:{free_port()}", protocol)
    problem = sender.send(some_metrics())
    sender.close()
    assert problem.startswith(
        "the call ended with UNAVAILABLE" if protocol == "grpc" else "it cannot be reached: Connection refused"
    )


@pytest.mark.usefixtures("_patient")
def test_refusal_is_said_with_its_status(receiver: Receiver) -> None:
    is_grpc = receiver.protocol == "grpc"
    receiver.answer = grpc.StatusCode.UNAUTHENTICATED if is_grpc else 401
    problem = send_to(receiver)
    # The SDK 1.39 does not log the details of gRPC.
    assert problem.removesuffix(": as the test wants") == (
        "the call ended with UNAUTHENTICATED" if is_grpc else "it answers HTTP status 401"
    )


def test_answer_that_does_not_come_is_said(receiver: Receiver) -> None:
    receiver.gate.clear()
    problem = send_to(receiver)
    receiver.gate.set()
    is_grpc = receiver.protocol == "grpc"
    assert problem.startswith("the call ended with DEADLINE_EXCEEDED" if is_grpc else "it does not answer in time")


def test_redirect_is_no_success() -> None:
    with receiving_http() as receiver:
        receiver.answer = 307
        assert send_to(receiver) == "it answers HTTP status 307: redirects are not followed, name the final address"
        assert receiver.received.metrics == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("garbage", [b"\x00\xff" * 500, b"HTTP/1.1 two hundred\r\n\r\n", b"SSH-2.0-OpenSSH\r\n"])
def test_garbage_for_an_answer_is_no_success(protocol: str, garbage: bytes) -> None:
    with receiving_http() as receiver:
        receiver.garbage = garbage
        sender = sender_to(receiver.url, protocol)
        problem = sender.send(some_metrics())
        sender.close()
    assert problem.startswith(("it ", "the call ended with "))
    assert problem.isprintable()


def test_answer_that_breaks_off_after_its_status_is_a_success() -> None:
    with receiving_http() as receiver:
        receiver.garbage = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nthree"
        assert send_to(receiver) == ""


def test_flood_for_an_answer_is_not_read() -> None:
    """It would be gigabytes; what is sent ends with the connection, which the sender closes."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def flood() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9000000000\r\n\r\n")
                try:
                    while True:
                        connection.sendall(b"x" * 65536)
                except OSError:
                    ended.set()

        thread = threading.Thread(target=flood, daemon=True)
        thread.start()
        sender = sender_to(f"http://127.0.0.1:{server.getsockname()[1]}", "http/protobuf")
        assert sender.send(some_metrics()) == ""
        assert ended.wait(30)
        thread.join()
        sender.close()


@pytest.mark.parametrize("is_trusted", [True, False])
def test_certificate_is_verified(tmp_path: Path, is_trusted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make_certificate(certificate, key)
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
    with receiving_grpc(credentials=credentials) as receiver:
        if is_trusted:
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(certificate))
        sender = sender_to(receiver.url, "grpc")
        problem = sender.send(some_metrics())
        sender.close()
    assert problem.startswith("" if is_trusted else "the call ended with UNAVAILABLE")
    assert len(receiver.received.metrics) == is_trusted


def test_variables_go_before_the_attributes_of_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,host.name=other")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "ours")
    attributes: Any = make_resource({"service.name": "rankscope-collector", "host.name": "node-1"}).attributes
    found = {name: attributes[name] for name in ("service.name", "host.name", "deployment.environment.name")}
    assert found == {"service.name": "ours", "host.name": "other", "deployment.environment.name": "test"}


def test_variable_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "brotli")
    with pytest.raises(SettingError) as raised:
        sender_to("http://127.0.0.1:4317", "grpc")
    assert 'Invalid value "brotli"' in str(raised.value)
    assert "Correct the variables OTEL_EXPORTER_OTLP_COMPRESSION, OTEL_EXPORTER_OTLP_TIMEOUT." in str(raised.value)
