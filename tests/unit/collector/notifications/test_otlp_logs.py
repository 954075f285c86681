"""Incidents as log records: severity, body and attributes, and what becomes of a receiver that does not accept them."""

import logging
import threading
from pathlib import Path

import pytest
import yaml

from rankscope.collector.config import CollectorConfig
from rankscope.collector.incidents.incident import Incident
from rankscope.collector.notifications.channel import DELIVERED, RETRIED
from rankscope.collector.notifications.event import (
    CHANGED,
    OPENED,
    RESOLVED,
    IncidentEvent,
    Nodes,
    NodeStanding,
    build_event,
)
from rankscope.collector.notifications.otlp_logs import (
    LISTED_MAX,
    RUNBOOKS,
    describe_attributes,
    find_severity,
    make_otlp_logs,
    read_otlp_logs,
)
from tests.otlp_receivers import read_attributes, receiving_grpc, receiving_http

ROOT = Path(__file__).parents[4]


def event_of(event: str = OPENED, **known: object) -> IncidentEvent:
    fields: dict[str, object] = {
        "id": 7, "run": "bert", "run_id": "bert@2", "severity": "warning", "severity_found": "warning",
        "kind": "straggler", "subject": "rank 3", "ranks": (3,), "cause": "host_cpu", "sentence": "Rank 3 is slow.",
        "suggestion": "Look at node-1.", "opened_wall_s": 100.0, "updated_wall_s": 100.0, "since_step": 40,
        "slowdown_ratio": 1.5,
    }  # fmt: skip
    incident = Incident(**{**fields, **known})  # type: ignore[arg-type]
    standing = NodeStanding(node="node-1", runs=12, runs_held_up=9, ratio_low=0.5)
    return build_event(incident, event, 1, 123.5, Nodes((standing,)))


@pytest.mark.parametrize("receiving", [receiving_grpc, receiving_http])
def test_record_of_an_incident_arrives(receiving: type) -> None:
    with receiving() as receiver:
        config = CollectorConfig(otlp=True, otlp_endpoint=receiver.url, otlp_protocol=receiver.protocol)
        deliver = make_otlp_logs(config, 18491)
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


def test_runbooks_are_those_of_the_alerts_of_the_kind() -> None:
    groups = yaml.safe_load((ROOT / "deploy/prometheus/rules/alerts.yml").read_text())["groups"]
    rules = {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}
    for kind, page in {**RUNBOOKS, "straggler ": "RankscopeStragglerNode"}.items():
        assert (ROOT / "docs" / "runbooks" / f"{page}.md").exists()
        assert kind.strip() in rules[page]["expr"] + rules[page]["annotations"]["description"]


def test_kind_without_a_page_has_none() -> None:
    assert "rankscope.incident.runbook" not in describe_attributes(event_of(kind="periodic_work"))


def test_record_that_is_not_accepted_is_tried_again() -> None:
    with receiving_http() as receiver:
        receiver.answer = 401
        deliver = make_otlp_logs(CollectorConfig(otlp=True, otlp_endpoint=receiver.url), 1)
        delivery = deliver(event_of(), threading.Event())
    address = receiver.url.removeprefix("http://")
    assert delivery[:2] == (RETRIED, f"the receiver at {address}: it answers HTTP status 401")


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
