"""The events of a trace file as the profiler hands over live activities."""

import gzip
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from rankscope.measure.kineto import NONE

TRACES = Path(__file__).parents[2] / "traces"
PARAM_COMMS = "record_param_comms"


@dataclass
class TracedActivity:
    """What torch binds of Kineto's ITraceActivity. `linked` is the operator that launched it."""

    label: str
    kind: str
    start_ns: int
    length_ns: int
    lane: int
    correlation: int = NONE
    metadata: str = ""
    linked: "TracedActivity | None" = None

    def name(self) -> str:
        return self.label

    def type(self) -> str:
        return self.kind

    def timestamp(self) -> int:
        return self.start_ns

    def duration(self) -> int:
        return self.length_ns

    def resource_id(self) -> int:
        return self.lane

    def correlation_id(self) -> int:
        return self.correlation

    def linked_activity(self) -> "TracedActivity | None":
        return self.linked

    def metadata_json(self) -> str:
        return self.metadata


def read_events(path: Path) -> list[dict[str, Any]]:
    """The whole events of a trace, their numbers exact."""
    trace = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
    return [event for event in trace["traceEvents"] if event.get("ph") == "X" and event.get("cat") != "Trace"]


def to_activities(events: Iterable[Mapping[str, Any]]) -> list[TracedActivity]:
    """As Kineto had them before it wrote the file: what a collective is stands with the operator, not the kernel, a
    copy has its own bytes, and a call knows the operator around it.
    """
    lanes: dict[object, int] = {}
    found = []
    operators: dict[object, TracedActivity] = {}
    for event in events:
        activity = _to_activity(event, lanes.setdefault((event["pid"], event["tid"]), len(lanes)))
        found.append((event, activity))
        if event["cat"] in OPERATOR_KINDS:
            operators[_read_external_id(event)] = activity
    for event, activity in found:
        if event["cat"] in CALL_KINDS:
            activity.linked = operators.get(_read_external_id(event))
    return [activity for _, activity in found]


OPERATOR_KINDS = frozenset({"cpu_op", "Operator", "operator"})
CALL_KINDS = frozenset({"cuda_runtime", "Runtime", "runtime"})


def _read_external_id(event: Mapping[str, Any]) -> object:
    arguments = event.get("args", {})
    return arguments.get("External id", arguments.get("external id"))


def _to_activity(event: Mapping[str, Any], lane: int) -> TracedActivity:
    arguments = event.get("args", {})
    told = {key: value for key, value in arguments.items() if type(value) in {int, str}}
    operator = TracedActivity(PARAM_COMMS, "cpu_op", 0, 0, 0, metadata=json.dumps(told)[1:-1])
    return TracedActivity(
        label=event["name"],
        kind=event["cat"],
        start_ns=int(event["ts"] * 1000),
        length_ns=int(event["dur"] * 1000),
        lane=lane,
        correlation=arguments.get("correlation", NONE),
        metadata=f'"stream": 7, "bytes": {arguments["bytes"]}' if "bytes" in arguments else "",
        linked=operator if "Collective name" in arguments and event["cat"] == "kernel" else None,
    )
