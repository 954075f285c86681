"""Define the event that webhooks and receivers of OTLP get when an incident opens, changes or is resolved. Pure.

docs/incident-event.schema.json is its JSON form. Within a schema number fields are only added.
"""

import hashlib
from collections.abc import Sequence
from typing import Final

import msgspec

from rankscope.collector.detect.finding import SEVERITIES
from rankscope.collector.incidents.incident import Incident

SCHEMA: Final = 1
OPENED: Final = "opened"
CHANGED: Final = "changed"
RESOLVED: Final = "resolved"
TEST: Final = "test"
"""Kind of the event that `rankscope notify` sends; a collector sends none."""
KINDS: Final = (OPENED, CHANGED, RESOLVED, TEST)

ID_DIGITS: Final = 32
"""Hexadecimal digits of an id, 128 bits."""


class NodeStanding(msgspec.Struct, frozen=True, kw_only=True):
    """A node that an incident is about, by the runs in the store: it was part of `runs`, and held up `runs_held_up` of
    them. `ratio_low` is the lower end of the 95 % interval of their ratio, 0 to 1 (docs/incidents.md, Nodes). None: not
    known, and `why_nodes_unknown` of the event says why.
    """

    node: str
    runs: int | None = None
    runs_held_up: int | None = None
    ratio_low: float | None = None


class IncidentEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An incident was opened, changed or resolved; or a test, about an incident that there is not.

    `schema` is SCHEMA, `kind` one of KINDS, `id` the same at each try to deliver this event and different for every
    other one. `number` counts the events of this incident for one receiver, from 1. `wall_s` is when the event was
    made, in seconds since 1970 by the collector's clock. `text` is one sentence for people, `action` what to do
    (empty: there is no advice). `incident` is the incident as the API gives it: the run is `run` and `run_id`, since
    when `since_step` and `opened_wall_s`, its cost `lost_rank_seconds`, who causes it `subject`, `ranks`, `nodes` and
    `group`, the cause `cause` and `evidence`. `nodes` are the nodes that it is about; `why_nodes_unknown` is why they,
    or their runs, are not known, empty where nothing is missing.
    """

    schema: int = SCHEMA
    id: str
    kind: str
    number: int
    wall_s: float
    text: str
    action: str
    incident: Incident
    nodes: tuple[NodeStanding, ...] = ()
    why_nodes_unknown: str = ""


class IncidentNodes(msgspec.Struct, frozen=True):
    """The nodes of an incident, and why they or their runs are not known."""

    standings: tuple[NodeStanding, ...] = ()
    why_unknown: str = ""


def build_event(incident: Incident, kind: str, number: int, wall_s: float, nodes: IncidentNodes) -> IncidentEvent:
    """Return the event about the present state of an incident."""
    return IncidentEvent(
        id=find_id(incident, number),
        kind=kind,
        number=number,
        wall_s=wall_s,
        text=describe(incident, kind),
        action=_advise(incident, nodes.standings),
        incident=incident,
        nodes=nodes.standings,
        why_nodes_unknown=nodes.why_unknown,
    )


def find_id(incident: Incident, number: int) -> str:
    """Return the id of an event: a digest of the incident, the number of the event, and what it is about."""
    about = (incident.run_id, incident.id, incident.opened_wall_s, number, *find_signature(incident))
    return hashlib.sha256(msgspec.json.encode(about)).hexdigest()[:ID_DIGITS]


def find_signature(incident: Incident) -> tuple[str, ...]:
    """Return the fields of which a difference is an event. Numbers, which change at every tick, are not among them."""
    return (incident.state, incident.severity, incident.subject, incident.cause, incident.pattern)


def describe(incident: Incident, kind: str) -> str:
    """Return one sentence about an incident, for people.

    >>> incident = Incident(id=7, run="bert", severity="warning", severity_found="warning", kind="straggler",
    ...     subject="rank 3", cause="host_cpu", sentence="Rank 3 is slow.", opened_wall_s=0.0, updated_wall_s=0.0)
    >>> describe(incident, OPENED)
    'incident 7 of run bert is opened (warning): Rank 3 is slow.'
    """
    if kind == TEST:
        return incident.sentence
    why = f": {incident.resolved_reason}" if kind == RESOLVED else ""
    return f"incident {incident.id} of run {incident.run} is {kind} ({incident.severity}{why}): {incident.sentence}"


def describe_standing(standing: NodeStanding) -> str:
    """Return how often a node has held up its runs, in words; empty where that is not known.

    >>> describe_standing(NodeStanding(node="node-12", runs=12, runs_held_up=9, ratio_low=0.468))
    'node-12 has held up 9 of its last 12 runs.'
    """
    if standing.runs is None:
        return ""
    plural = "s" * (standing.runs != 1)
    return f"{standing.node} has held up {standing.runs_held_up} of its last {standing.runs} run{plural}."


def is_severe(incident: Incident, severity_min: str) -> bool:
    """Return whether its severity is at least this one; an unknown severity counts as the lowest.

    >>> SEVERITIES
    ('info', 'warning', 'critical')
    """
    known = SEVERITIES.index(incident.severity) if incident.severity in SEVERITIES else 0
    return known >= SEVERITIES.index(severity_min)


def _advise(incident: Incident, standings: Sequence[NodeStanding]) -> str:
    return " ".join(filter(None, (incident.suggestion, *map(describe_standing, standings))))
