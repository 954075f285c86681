"""Where to push by OTLP: what settings and variables mean, and what is said of those that cannot be used."""

import socket
import sys
from pathlib import Path

import pytest

from rankscope.collector.config import CollectorConfig
from rankscope.collector.otlp import endpoint
from rankscope.collector.otlp.endpoint import (
    LOGS,
    METRICS,
    Endpoint,
    describe_resource,
    import_exporters,
    read_endpoint,
)
from rankscope.measure import __version__
from rankscope.measure.errors import SettingError
from tests.certificates import make_certificate

URL = "https://otel.example:4318"
GRPC = {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
ENVIRONMENT_URL = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://of.variables:4318"}


def read(config: CollectorConfig, environment: dict[str, str] | None = None, signal: str = METRICS) -> Endpoint:
    return read_endpoint(config, environment or {}, signal)


def read_variable(name: str, value: str) -> Endpoint:
    return read(CollectorConfig(), {name: value})


def problem_of(config: CollectorConfig, environment: dict[str, str] | None = None) -> str:
    with pytest.raises(SettingError) as raised:
        read(config, environment)
    return str(raised.value)


def test_http_is_the_default_and_signals_have_paths() -> None:
    config = CollectorConfig(otlp_endpoint=f"{URL}/otlp/")
    assert read(config) == Endpoint("http/protobuf", f"{URL}/otlp/v1/metrics", "otel.example:4318", 15.0)
    assert read(config, signal=LOGS).url == f"{URL}/otlp/v1/logs"


def test_grpc_has_no_path() -> None:
    assert read(CollectorConfig(otlp_endpoint=URL), GRPC).url == URL
    with_path = CollectorConfig(otlp_endpoint=f"{URL}/otlp")
    assert "with the protocol grpc it has no path" in problem_of(with_path, GRPC)


@pytest.mark.parametrize(
    ("environment", "protocol"),
    [
        ({}, "http/protobuf"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "grpc"),
        (
            {"OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "http/protobuf",
        ),
        ({"OTEL_EXPORTER_OTLP_LOGS_PROTOCOL": "grpc"}, "http/protobuf"),
    ],
)
def test_protocol_is_that_of_the_variables(environment: dict[str, str], protocol: str) -> None:
    assert read(CollectorConfig(), environment).protocol == protocol


def test_unknown_protocol_of_a_variable_is_named() -> None:
    assert problem_of(CollectorConfig(), {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}) == (
        "OTEL_EXPORTER_OTLP_PROTOCOL is 'http/json', which rankscope does not speak; it must be grpc or http/protobuf."
    )


def test_address_of_the_variables_is_left_to_the_sdk() -> None:
    found = read(CollectorConfig(), ENVIRONMENT_URL)
    assert (found.url, found.shown) == ("", "of.variables:4318")
    assert read(CollectorConfig(otlp_endpoint=URL), ENVIRONMENT_URL).shown == "otel.example:4318"
    assert read(CollectorConfig()).shown == "localhost:4318"


@pytest.mark.parametrize("name", ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"])
@pytest.mark.parametrize("url", ["http://[::1:4318", "http://user:word@host:99999", "http://host:port", "http://a]b/"])
def test_variable_that_is_no_address_is_named_without_it(name: str, url: str) -> None:
    assert problem_of(CollectorConfig(), {name: url}) == (
        f"{name} is no address; it must be http://HOST:PORT or https://HOST:PORT, with a port up to 65535, and an IPv6 "
        "address in brackets. Correct it, or set otlp_endpoint, which overrides it."
    )
    assert read(CollectorConfig(otlp_endpoint=URL), {name: url}).shown == "otel.example:4318"


def test_addresses_of_grpc_that_are_no_urls_are_left_to_the_sdk() -> None:
    urls = ("otel:4317", "10.0.0.1:4317")
    shown = [read(CollectorConfig(), {**GRPC, "OTEL_EXPORTER_OTLP_ENDPOINT": url}).shown for url in urls]
    assert shown == ["otel:4317", "10.0.0.1:4317"]


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("otel.example:4318", "it must be https://HOST[:PORT]/PATH or http://HOST[:PORT]/PATH"),
        ("http://user:word@otel.example", "without a user"),
        ("http://otel.example:port", "it must be https://HOST[:PORT]/PATH"),
        ("http://otel.example:4318/v1/metrics", "it must end before /v1/..."),
    ],
)
def test_wrong_address_is_named_with_the_cure(url: str, problem: str) -> None:
    said = problem_of(CollectorConfig(otlp_endpoint=url))
    assert said.startswith(f"otlp_endpoint is {url!r} (from the code); ")
    assert problem in said


@pytest.mark.parametrize("name", ["OTEL_EXPORTER_OTLP_CERTIFICATE", "OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE"])
def test_certificate_must_be_one(name: str, tmp_path: Path) -> None:
    good, key, missing = (tmp_path / kind for kind in ("good.pem", "key.pem", "missing.pem"))
    make_certificate(good, key)
    assert read_variable(name, str(good)).shown == "localhost:4318"
    said = [problem_of(CollectorConfig(), {name: str(path)}) for path in (key, missing, tmp_path)]
    assert [f"{name} is {str(path)!r}" in one for path, one in zip((key, missing, tmp_path), said, strict=True)] == (
        [True] * 3
    )
    assert ["holds no certificate" in one for one in said] == [True, False, True]
    assert "cannot be read" in said[1]


def test_interval_is_that_of_the_variable() -> None:
    intervals_s = [read_variable("OTEL_METRIC_EXPORT_INTERVAL", value).interval_s for value in ("", "1000", "60000")]
    assert intervals_s == [15.0, 1.0, 60.0]


@pytest.mark.parametrize("value", ["15s", "-1", "0", "999", "3600001", "1.5e4", "9" * 5000, "\u0663000"])
def test_interval_not_a_number_or_beyond_limits_is_named(value: str) -> None:
    assert problem_of(CollectorConfig(), {"OTEL_METRIC_EXPORT_INTERVAL": value}) == (
        f"OTEL_METRIC_EXPORT_INTERVAL is {value[:80]!r}; it must be a whole number of milliseconds from 1_000 to "
        "3_600_000."
    )


def test_missing_package_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_MODULES", ("nothing_of_this_name.exporter",))
    assert problem_of(CollectorConfig(otlp=True)) == (
        "otlp is true (from the code), and nothing_of_this_name is not installed: pip install 'rankscope[otlp]'."
    )


def test_packages_that_do_not_fit_together_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rankscope.collector.otlp.exporters", None)
    environment: dict[str, str] = {}
    with pytest.raises(SettingError, match=r"cannot be imported: ModuleNotFoundError: .*pip install --force-reinstall"):
        import_exporters(environment)
    assert environment == {"GRPC_VERBOSITY": "NONE"}


def test_resource_of_a_collector() -> None:
    host = socket.gethostname()
    assert describe_resource(18491, {}) == {
        "service.name": "rankscope-collector",
        "service.version": __version__,
        "service.instance.id": f"{host}:18491",
        "host.name": host,
    }


def test_collector_without_a_known_port_has_no_instance() -> None:
    assert "service.instance.id" not in describe_resource(0, {})


def test_resource_in_a_slurm_job_and_in_a_pod(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert describe_resource(1, {"SLURM_JOB_ID": "4711"})["slurm.job.id"] == "4711"
    namespace = tmp_path / "namespace"
    monkeypatch.setattr(endpoint, "NAMESPACE_FILE", namespace)
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "POD_NAME": "rankscope-0"}
    assert "k8s.namespace.name" not in describe_resource(1, pod)
    namespace.write_text("training\n")
    found = describe_resource(1, pod)
    assert (found["k8s.pod.name"], found["k8s.namespace.name"]) == ("rankscope-0", "training")
    assert describe_resource(1, {**pod, "POD_NAMESPACE": "ml"})["k8s.namespace.name"] == "ml"
