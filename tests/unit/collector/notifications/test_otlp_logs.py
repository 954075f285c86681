"""Incidents as log records: severity, body and attributes, and what becomes of a receiver that does not accept them."""

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import grpc
import pytest

from rankscope.collector.config import CollectorConfig
from rankscope.collector.incidents.incident import Incident
from rankscope.collector.notifications import otlp_logs
from rankscope.collector.notifications.channel import DELIVERED, FAILED, RETRIED
from rankscope.collector.notifications.event import (
    CHANGED,
    OPENED,
    RESOLVED,
    IncidentEvent,
    IncidentNodes,
    NodeStanding,
    build_event,
)
from rankscope.collector.notifications.otlp_logs import (
    LISTED_MAX,
    describe_attributes,
    find_severity,
    make_otlp_logs,
    read_otlp_logs,
)
from tests.otlp_receivers import Receiver, read_attributes, receiving_grpc, receiving_http


def event_of(event: str = OPENED, **known: object) -> IncidentEvent:
    fields: dict[str, object] = {
        "id": 7, "run": "bert", "run_id": "bert@2", "severity": "warning", "severity_found": "warning",
        "kind": "straggler", "subject": "rank 3", "ranks": (3,), "cause": "host_cpu", "sentence": "Rank 3 is slow.",
        "suggestion": "Look at node-1.", "opened_wall_s": 100.0, "updated_wall_s": 100.0, "since_step": 40,
        "slowdown_ratio": 1.5,
    }  # fmt: skip
    incident = Incident(**{**fields, **known})  # type: ignore[arg-type]
    standing = NodeStanding(node="node-1", runs=12, runs_held_up=9, ratio_low=0.5)
    return build_event(incident, event, 1, 123.5, IncidentNodes((standing,)))


@pytest.mark.parametrize("receiving", [receiving_grpc, receiving_http])
def test_record_of_an_incident_arrives(receiving: type, monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", receiver.protocol)
        deliver = make_otlp_logs(CollectorConfig(otlp=True, otlp_endpoint=receiver.url), 18491)
        deliver.prepare()
        assert deliver(event_of(), threading.Event()).outcome == DELIVERED
        (record,) = receiver.received.log_records
        resource = read_attributes(receiver.received.logs[0].resource_logs[0].resource.attributes)
    assert record.body.string_value == "incident 7 of run bert is opened (warning): Rank 3 is slow."
    assert (record.severity_text, record.severity_number, record.time_unix_nano) == ("WARN", 13, 123_500_000_000)
    assert record.event_name == "rankscope.incident.opened"
    attributes = read_attributes(record.attributes)
    assert (attributes["rankscope.run"], attributes["rankscope.ranks"]) == ("bert", [3])
    assert resource["service.name"] == "rankscope-collector"


def test_attributes_say_what_the_incident_is() -> None:
    found = describe_attributes(event_of())
    assert found.pop("rankscope.incident.event.id") == event_of().id
    assert found == {
        "rankscope.run": "bert",
        "rankscope.run.id": "bert@2",
        "rankscope.incident.id": 7,
        "rankscope.incident.event": "opened",
        "rankscope.incident.severity": "warning",
        "rankscope.incident.kind": "straggler",
        "rankscope.incident.cause": "host_cpu",
        "rankscope.incident.subject": "rank 3",
        "rankscope.incident.sentence": "Rank 3 is slow.",
        "rankscope.incident.action": "Look at node-1. node-1 has held up 9 of its last 12 runs.",
        "rankscope.incident.runbook": "docs/runbooks/RankscopeStragglerRank.md",
        "rankscope.incident.since_step": 40,
        "rankscope.incident.slowdown_ratio": 1.5,
        "rankscope.ranks": [3],
        "rankscope.ranks.count": 1,
    }


def test_long_lists_are_cut_and_counted() -> None:
    found = describe_attributes(event_of(ranks=tuple(range(500)), nodes=("node-1", "node-2")))
    assert found["rankscope.ranks"] == list(range(LISTED_MAX))
    assert found["rankscope.ranks.count"] == 500
    assert found["rankscope.incident.runbook"] == "docs/runbooks/RankscopeStragglerNode.md"


def test_severity_is_that_of_the_incident_while_it_is_open() -> None:
    assert find_severity(event_of(severity="critical")) == ("ERROR2", 18)
    assert find_severity(event_of(CHANGED, severity="info")) == ("INFO", 9)
    assert find_severity(event_of(OPENED, severity="of a later version")) == ("INFO", 9)
    assert find_severity(event_of(RESOLVED, severity="critical", resolved_reason="it is as fast again")) == ("INFO", 9)


@pytest.mark.parametrize(
    ("known", "page"),
    [
        ({"kind": "slower_than_earlier_runs"}, "docs/runbooks/RankscopeRunSlower.md"),
        ({"kind": "hang", "cause": "data_wait"}, "docs/runbooks/RankscopeRunStalled.md"),
        ({"kind": "periodic_work"}, "docs/runbooks/findings.md"),
        ({"kind": "of a later release"}, None),
    ],
)
def test_page_is_that_with_the_advice_of_the_kind(known: dict[str, object], page: str | None) -> None:
    assert describe_attributes(event_of(OPENED, **known)).get("rankscope.incident.runbook") == page


def refusal(receiving: Callable[[], AbstractContextManager[Receiver]], answer: object) -> tuple[str, str]:
    """What becomes of a record that a receiver answers so, and what is said, without the address."""
    with receiving() as receiver:
        receiver.answer = answer
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", receiver.protocol)
            logs = make_otlp_logs(CollectorConfig(otlp=True, otlp_endpoint=receiver.url), 1)
        delivery = logs(event_of(), threading.Event())
    return delivery.outcome, delivery.problem.removeprefix(f"the receiver at {receiver.url.removeprefix('http://')}: ")


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (400, FAILED), (401, FAILED), (403, FAILED), (404, FAILED), (408, RETRIED), (425, RETRIED), (429, RETRIED),
        (500, RETRIED), (503, RETRIED),
    ],
)  # fmt: skip
def test_record_is_tried_again_where_that_may_help(status: int, outcome: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
    assert refusal(receiving_http, status) == (outcome, f"it answers HTTP status {status}")


def test_redirected_record_is_not_tried_again() -> None:
    outcome, said = refusal(receiving_http, 307)
    assert (outcome, said[:28]) == (FAILED, "it answers HTTP status 307: ")


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, FAILED),
        (grpc.StatusCode.UNAUTHENTICATED, FAILED),
        (grpc.StatusCode.PERMISSION_DENIED, FAILED),
        (grpc.StatusCode.UNIMPLEMENTED, FAILED),
        (grpc.StatusCode.UNAVAILABLE, RETRIED),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, RETRIED),
        (grpc.StatusCode.INTERNAL, RETRIED),
    ],
)
def test_record_over_grpc_is_tried_again_where_that_may_help(
    status: grpc.StatusCode, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
    found, said = refusal(receiving_grpc, status)
    assert (found, said.partition(":")[0]) == (outcome, f"the call ended with {status.name}")


def test_receiver_that_is_not_there_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
    with receiving_http() as receiver:
        pass
    deliver = make_otlp_logs(CollectorConfig(otlp=True, otlp_endpoint=receiver.url), 1)
    assert deliver(event_of(), threading.Event()).outcome == RETRIED


def test_wrong_variable_keeps_no_collector_from_starting(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://[::1:4318")
    assert read_otlp_logs(CollectorConfig(otlp=True), 1) == {}
    (said,) = caplog.messages
    assert said.startswith("OTEL_EXPORTER_OTLP_ENDPOINT is no address; ")


def test_error_of_the_packages_keeps_no_collector_from_starting(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(otlp_logs, "read_endpoint", fail)
    assert read_otlp_logs(CollectorConfig(otlp=True), 1) == {}
    assert "nothing is pushed by OTLP" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_wrong_setting_is_logged_once_and_nothing_is_pushed(caplog: pytest.LogCaptureFixture) -> None:
    config = CollectorConfig(otlp=True, otlp_endpoint="otel.example")
    with caplog.at_level(logging.INFO):
        assert read_otlp_logs(config, 1) == {}
    assert caplog.messages == [
        (
            "otlp_endpoint is 'otel.example' (from the code); it must be https://HOST[:PORT]/PATH or "
            "http://HOST[:PORT]/PATH, in ASCII, without a user and a fragment. Until the collector is started again, "
            "nothing is pushed by OTLP."
        )
    ]
    assert read_otlp_logs(CollectorConfig(), 1) == {}


def test_incidents_are_pushed_unless_that_is_switched_off() -> None:
    assert list(read_otlp_logs(CollectorConfig(otlp=True), 1)) == ["otlp"]
    assert read_otlp_logs(CollectorConfig(otlp=True, otlp_incidents=False), 1) == {}
