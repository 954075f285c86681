"""Push incidents by OTLP: a log record for each event, by the exporters of the OpenTelemetry SDK."""

import importlib
import logging
import os
import threading
from collections.abc import Mapping
from typing import Any, Final

from rankscope.collector.config import CollectorConfig
from rankscope.collector.detect.suggestions import find_runbook
from rankscope.collector.incidents.incident import Incident
from rankscope.collector.notifications.channel import DELIVERED, FAILED, RETRIED, TryResult
from rankscope.collector.notifications.event import RESOLVED, TEST, IncidentEvent
from rankscope.collector.otlp.endpoint import LOGS, Endpoint, describe_resource, import_exporters, read_endpoint
from rankscope.measure import __version__
from rankscope.measure.errors import SettingError
from rankscope.measure.units import s_to_ns

LOG = logging.getLogger("rankscope.collector")

OTLP: Final = "otlp"
"""Name of the channel, and its label in the metrics of notifications."""
SEVERITIES: Final[Mapping[str, tuple[str, int]]] = {
    "info": ("INFO", 9),
    "warning": ("WARN", 13),
    "critical": ("ERROR2", 18),
}
"""Text and number of the severities in https://opentelemetry.io/docs/specs/otel/logs/data-model/, where its examples
have syslog's severities of these names."""
LISTED_MAX: Final = 64
"""Most ranks and nodes that are listed in a record."""


class OtlpLogs:
    """A receiver of log records. `port` is that of the collector's HTTP server: the resource names it."""

    def __init__(self, endpoint: Endpoint, port: int) -> None:
        """Make the exporter. Raises SettingError for variables OTEL_EXPORTER_OTLP_... that cannot be used."""
        exporters = import_exporters()
        self._sdk_logs: Any = importlib.import_module("opentelemetry.sdk._logs")
        self._api_logs: Any = importlib.import_module("opentelemetry._logs")
        scopes: Any = importlib.import_module("opentelemetry.sdk.util.instrumentation")
        self._sender = exporters.LogsSender(endpoint)
        self._resource = exporters.make_resource(describe_resource(port, os.environ))
        self._scope = scopes.InstrumentationScope("rankscope", __version__)
        self._shown = endpoint.shown

    def prepare(self) -> None:
        """Do nothing: the exporter connects when it sends."""

    def __call__(self, event: IncidentEvent, cancelled: threading.Event) -> TryResult:  # noqa: ARG002 - time is limited
        """Send the record of an event once."""
        problem = self._sender.send([self._build(event)])
        if not problem.text:
            return TryResult(DELIVERED)
        return TryResult(FAILED if problem.is_final else RETRIED, f"the receiver at {self._shown}: {problem.text}")

    def _build(self, event: IncidentEvent) -> Any:
        text, number = find_severity(event)
        record = self._api_logs.LogRecord(
            timestamp=s_to_ns(event.wall_s),
            severity_text=text,
            severity_number=self._api_logs.SeverityNumber(number),
            body=event.text,
            attributes=describe_attributes(event),
            event_name=f"rankscope.incident.{event.kind}",
        )
        return self._sdk_logs.ReadableLogRecord(record, self._resource, self._scope)


def find_severity(event: IncidentEvent) -> tuple[str, int]:
    """Return the severity of an event's record: that of its incident, INFO where this is over. An unknown one counts as
    the lowest.
    """
    return (
        SEVERITIES["info"]
        if event.kind in {RESOLVED, TEST}
        else SEVERITIES.get(event.incident.severity, SEVERITIES["info"])
    )


def describe_attributes(event: IncidentEvent) -> dict[str, Any]:
    """Return the attributes of an event's record; those that are not known are absent."""
    incident = event.incident
    known = {
        "rankscope.run": incident.run,
        "rankscope.run.id": incident.run_id,
        "rankscope.incident.id": incident.id,
        "rankscope.incident.event": event.kind,
        "rankscope.incident.event.id": event.id,
        "rankscope.incident.severity": incident.severity,
        "rankscope.incident.kind": incident.kind,
        "rankscope.incident.cause": incident.cause,
        "rankscope.incident.subject": incident.subject,
        "rankscope.incident.sentence": incident.sentence,
        "rankscope.incident.action": event.action or None,
        "rankscope.incident.runbook": _find_page(incident),
        "rankscope.incident.resolved_reason": incident.resolved_reason or None,
        "rankscope.incident.since_step": incident.since_step,
        "rankscope.incident.slowdown_ratio": incident.slowdown_ratio,
        "rankscope.incident.lost_rank_seconds": incident.lost_rank_seconds,
        "rankscope.ranks": list(incident.ranks[:LISTED_MAX]) or None,
        "rankscope.ranks.count": len(incident.ranks) or None,
        "rankscope.nodes": list(incident.nodes[:LISTED_MAX]) or None,
        "rankscope.group": incident.group,
    }
    return {name: value for name, value in known.items() if value is not None}


def _find_page(incident: Incident) -> str | None:
    """Return the page about incidents of this kind, a path in what `rankscope files` writes; None: there is none."""
    page = find_runbook(incident.kind, incident.nodes)
    return f"docs/runbooks/{page}.md" if page else None


def make_otlp_logs(config: CollectorConfig, port: int) -> OtlpLogs:
    """Return the receiver of the settings. Raises SettingError for those that cannot be used."""
    return OtlpLogs(read_endpoint(config, os.environ, LOGS), port)


def read_otlp_logs(config: CollectorConfig, port: int) -> dict[str, OtlpLogs]:
    """Return the receiver by the name of its channel, or nothing where there is to be none. Settings that cannot be
    used are logged once, and the collector goes on: neither metrics nor incidents are pushed then.
    """
    if not config.otlp:
        return {}
    try:
        receiver = make_otlp_logs(config, port)  # also without incidents: so a wrong setting is named
    except SettingError as error:
        LOG.error("%s Until the collector is started again, nothing is pushed by OTLP.", error)  # noqa: TRY400 - expected
        return {}
    except Exception as error:  # noqa: BLE001 - whatever the packages raise: the collector starts
        text = "OTLP cannot be prepared: %s: %s. Until the collector is started again, nothing is pushed by OTLP."
        LOG.error(text, type(error).__name__, error)  # noqa: TRY400 - no traceback
        return {}
    return {OTLP: receiver} if config.otlp_incidents else {}
