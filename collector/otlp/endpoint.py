"""Read where to push by OTLP: the setting `otlp_endpoint`, and the variables OTEL_EXPORTER_OTLP_... for all else.

The exporters of the OpenTelemetry SDK read the variables themselves, as
https://opentelemetry.io/docs/specs/otel/protocol/exporter/ defines them; what they would say late or not at all is
checked here. Only `import_exporters` imports the SDK.
"""

import importlib
import importlib.util
import os
import socket
import stat
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from rankscope.collector.config import CollectorConfig, find_url_problem
from rankscope.measure import __version__
from rankscope.measure.errors import SettingError
from rankscope.measure.units import NS_PER_MS, ns_to_s

METRICS: Final = "metrics"
LOGS: Final = "logs"
OTLP_GRPC: Final = "grpc"
OTLP_HTTP: Final = "http/protobuf"
OTLP_PROTOCOLS: Final = (OTLP_GRPC, OTLP_HTTP)
"""By the names that the variable OTEL_EXPORTER_OTLP_PROTOCOL has for them."""
INTERVAL: Final = "OTEL_METRIC_EXPORT_INTERVAL"
INTERVAL_MS: Final = 15_000
"""Time between two pushes of metrics where the variable INTERVAL does not set it: as often as Prometheus scrapes."""
INTERVAL_MS_MIN: Final = 1_000
INTERVAL_MS_MAX: Final = 3_600_000
SERVICE_NAME: Final = "rankscope-collector"
SEMANTIC_CONVENTIONS: Final = "https://opentelemetry.io/schemas/1.40.0"
"""Version of the semantic conventions in which the attributes of `describe_resource` have these names."""
NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
"""Kubernetes puts the namespace of a pod there, unless its service account is not mounted."""

_MODULES: Final = ("opentelemetry.exporter.otlp.proto.http", "opentelemetry.exporter.otlp.proto.grpc")
_DEFAULTS: Final = {OTLP_GRPC: "http://localhost:4317", OTLP_HTTP: "http://localhost:4318"}


class Endpoint(NamedTuple):
    """Where one signal is pushed, and how. `url` is empty where the SDK is to read its variables. `shown` is the
    address as the log names it, `interval_s` the time between two pushes of metrics.
    """

    protocol: str
    url: str
    shown: str
    interval_s: float


def read_endpoint(config: CollectorConfig, environment: Mapping[str, str], signal: str) -> Endpoint:
    """Return where to push a signal, METRICS or LOGS. Raises SettingError for what cannot be used."""
    _check_installed(config)
    protocol = _find_protocol(environment, signal)
    _check_certificate(environment, signal)
    url = _find_url(config, protocol, signal)
    given = config.otlp_endpoint or _find_address(environment, signal) or _DEFAULTS[protocol]
    return Endpoint(protocol, url, show_address(given), _read_interval_s(environment))


def import_exporters(environment: MutableMapping[str, str] = os.environ) -> Any:
    """Return the module with the exporters, which imports the SDK. Raises SettingError where that is not possible."""
    # The core of gRPC would write each lost connection to stderr, past every logger. What is wrong is said by our own.
    environment.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        return importlib.import_module("rankscope.collector.otlp.exporters")
    except Exception as error:  # protobuf raises errors of its own for releases that do not fit together
        raise SettingError(
            f"otlp is true, and the packages for it cannot be imported: {type(error).__name__}: {str(error)[:200]}. "
            "Install them anew: pip install --force-reinstall opentelemetry-exporter-otlp-proto-http "
            "opentelemetry-exporter-otlp-proto-grpc."
        ) from error


def describe_resource(port: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the resource attributes of a collector whose HTTP server has this port, 0 where that is not known.
    OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME, which the SDK reads, go before them.

    The semantic conventions have no name for a Slurm job: `slurm.job.id` is ours. A run is no resource: a collector has
    many, and it is an attribute of each point and log record.
    """
    host = socket.gethostname()
    known = {
        "service.name": SERVICE_NAME,
        "service.version": __version__,
        "service.instance.id": f"{host}:{port}" if port else "",
        "host.name": host,
        "slurm.job.id": environment.get("SLURM_JOB_ID", ""),
    }
    if "KUBERNETES_SERVICE_HOST" in environment:
        known["k8s.pod.name"] = environment.get("POD_NAME", "")
        known["k8s.namespace.name"] = environment.get("POD_NAMESPACE", "") or _read_namespace()
    return {name: value for name, value in known.items() if value}


def show_address(url: str) -> str:
    """Return host and port of an address: its path and user may hold a secret.

    >>> show_address("https://user:word@otel.example:4318/path?key=word"), show_address("otel.example:4317")
    ('otel.example:4318', 'otel.example:4317')
    """
    return (urlsplit(url).netloc or url.split("/", 1)[0]).rpartition("@")[2]


def _check_installed(config: CollectorConfig) -> None:
    try:
        missing = [name for name in _MODULES if importlib.util.find_spec(name) is None]
    except ModuleNotFoundError as error:
        missing = [error.name or _MODULES[0]]
    if missing:
        raise SettingError(
            f"otlp is true ({config.source('otlp')}), and {missing[0]} is not installed: pip install 'rankscope[otlp]'."
        )


def _find_variable(environment: Mapping[str, str], signal: str, what: str) -> tuple[str, str]:
    """Return the variable that sets something of a signal, and its value: that of the signal first, else that of all.
    Two empty texts where neither is set.
    """
    for name in (f"OTEL_EXPORTER_OTLP_{signal.upper()}_{what}", f"OTEL_EXPORTER_OTLP_{what}"):
        given = environment.get(name, "").strip()
        if given:
            return name, given
    return "", ""


def _find_protocol(environment: Mapping[str, str], signal: str) -> str:
    name, given = _find_variable(environment, signal, "PROTOCOL")
    if given and given not in OTLP_PROTOCOLS:
        raise SettingError(
            f"{name} is {given[:80]!r}, which rankscope does not speak; it must be {OTLP_GRPC} or {OTLP_HTTP}."
        )
    return given or OTLP_HTTP


def _read_interval_s(environment: Mapping[str, str]) -> float:
    given = environment.get(INTERVAL, "").strip() or str(INTERVAL_MS)
    is_number = given.isascii() and given.isdigit() and len(given) <= len(str(INTERVAL_MS_MAX))
    if not is_number or not INTERVAL_MS_MIN <= int(given) <= INTERVAL_MS_MAX:
        raise SettingError(
            f"{INTERVAL} is {given[:80]!r}; it must be a whole number of milliseconds from {INTERVAL_MS_MIN:_} to "
            f"{INTERVAL_MS_MAX:_}."
        )
    return ns_to_s(int(given) * NS_PER_MS)


def _find_url(config: CollectorConfig, protocol: str, signal: str) -> str:
    url = config.otlp_endpoint
    if not url:
        return ""
    problem = find_url_problem(url)
    path = urlsplit(url).path.rstrip("/") if problem is None else ""
    if path and protocol == OTLP_GRPC:
        problem = f"with the protocol {OTLP_GRPC} it has no path"
    elif path.endswith(("/v1/metrics", "/v1/logs")):
        problem = "it must end before /v1/..., which is added for metrics and logs"
    if problem is not None:
        raise SettingError(f"otlp_endpoint is {url[:80]!r} ({config.source('otlp_endpoint')}); {problem}.")
    return url if protocol == OTLP_GRPC else f"{url.rstrip('/')}/v1/{signal}"


def _find_address(environment: Mapping[str, str], signal: str) -> str:
    """Return the address of the variables, which the SDK reads itself; empty where none is set. For gRPC it may have
    other forms than a URL. Raises SettingError, without the address: it may hold a secret.
    """
    name, given = _find_variable(environment, signal, "ENDPOINT")
    try:
        urlsplit(given).port  # noqa: B018 - a port that is none raises, as an IPv6 address without its last bracket
    except ValueError as error:
        raise SettingError(
            f"{name} is no address; it must be http://HOST:PORT or https://HOST:PORT, with a port up to 65535, and "
            "an IPv6 address in brackets. Correct it, or set otlp_endpoint, which overrides it."
        ) from error
    return given


def _check_certificate(environment: Mapping[str, str], signal: str) -> None:
    """Raise SettingError for a certificate that the SDK would not find or could not read."""
    name, given = _find_variable(environment, signal, "CERTIFICATE")
    if not given:
        return
    path = Path(given)
    try:
        text = path.read_bytes() if stat.S_ISREG(path.stat().st_mode) else b""
    except (OSError, ValueError) as error:
        raise SettingError(f"{name} is {given!r}, which cannot be read: {error}. Name a readable file.") from error
    if b"-----BEGIN CERTIFICATE-----" not in text:
        raise SettingError(
            f"{name} is {given!r}, which holds no certificate. Name a file with the certificate to trust, PEM."
        )


def _read_namespace() -> str:
    try:
        return NAMESPACE_FILE.read_text().strip()
    except (OSError, ValueError):
        return ""
