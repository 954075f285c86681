"""The JSON of an event about an incident has a schema in the repository, and keeps to it.

    python -m tests.contract.test_event_schema

writes the schema anew after a change of its classes. Within a schema number fields are only added.
"""

import json
from pathlib import Path

import jsonschema
import msgspec
import pytest

from rankscope.collector.notifications.event import (
    KINDS,
    SCHEMA,
    IncidentEvent,
    IncidentNodes,
    NodeStanding,
    build_event,
)
from tests.contract.schema_text import settle
from tests.unit.collector.notifications.worlds import opened

SCHEMA_FILE = Path(__file__).parents[2] / "docs" / "incident-event.schema.json"
NODES = IncidentNodes(
    (NodeStanding(node="node-12", runs=12, runs_held_up=9, ratio_low=0.468), NodeStanding(node="node-13"))
)


def make_schema() -> str:
    schema = {"title": "rankscope: event about an incident", **msgspec.json.schema(IncidentEvent)}
    settle(schema["$defs"])
    return json.dumps(schema, indent=1) + "\n"


def test_schema_in_the_repository_is_that_of_the_code() -> None:
    assert SCHEMA_FILE.read_text() == make_schema(), "python -m tests.contract.test_event_schema"


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_sent_keeps_to_the_schema(kind: str) -> None:
    event = build_event(opened(suggestion="Look at its data loader."), kind, 1, 1_800_000_000.0, NODES)
    jsonschema.validate(json.loads(msgspec.json.encode(event)), json.loads(SCHEMA_FILE.read_text()))


def test_keys_that_receivers_rely_on_are_there() -> None:
    event = json.loads(msgspec.json.encode(build_event(opened(), "opened", 1, 5.0, NODES)))
    assert (event["schema"], SCHEMA) == (1, 1)
    assert event.keys() >= {"id", "kind", "number", "wall_s", "text", "action", "incident", "nodes"}
    assert event["incident"].keys() >= {
        "id", "run", "run_id", "state", "severity", "kind", "subject", "ranks", "nodes", "cause", "sentence",
        "suggestion", "since_step", "lost_rank_seconds", "opened_wall_s", "resolved_wall_s", "resolved_reason",
    }  # fmt: skip
    assert event["nodes"][0] == {"node": "node-12", "runs": 12, "runs_held_up": 9, "ratio_low": 0.468}


if __name__ == "__main__":
    SCHEMA_FILE.write_text(make_schema())
