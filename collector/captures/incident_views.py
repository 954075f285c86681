"""Show incidents and findings with the captures about them, by comparing what is kept of both, and with the history of
the nodes that they blame. Pure.

Nothing about it is stored: an incident has its captures again after a restart of the collector, as both are kept, and
names none that was deleted.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from rankscope.collector.captures.capture import Capture
from rankscope.collector.detect.finding import Finding
from rankscope.collector.incidents.incident import Incident


class IncidentView(Incident, frozen=True, kw_only=True):
    """An incident, and the ids of the captures about it that are kept, newest first: those that it has ordered, and
    those with one of its ranks that were ordered while it was open. `node_history`: of at most four of the nodes that
    it blames how often each has held up a run, as a sentence; none without other runs of the node in the store.
    """

    captures: tuple[str, ...] = ()
    node_history: tuple[str, ...] = ()


class FindingView(Finding, frozen=True, kw_only=True):
    """A finding, and the ids of the captures about its incident that are kept, newest first."""

    captures: tuple[str, ...] = ()


class CaptureLinks:
    """Finds the captures about incidents and findings among those of now. `read_captures` returns those that are kept,
    newest first, `read_histories` the history of the nodes that an incident blames, by its id. Any thread.
    """

    def __init__(
        self,
        read_incidents: Callable[[], Sequence[Incident]],
        read_captures: Callable[[], Sequence[Capture]],
        read_histories: Callable[[], Mapping[int, tuple[str, ...]]] = dict,
    ) -> None:
        self._read_incidents = read_incidents
        self._read_captures = read_captures
        self._read_histories = read_histories

    def of_incidents(self, incidents: Iterable[Incident]) -> tuple[IncidentView, ...]:
        """Return incidents with their captures, and the history of their nodes."""
        return link_incidents(incidents, self._read_captures(), self._read_histories())

    def of_findings(self, run_id: str, findings: Iterable[Finding]) -> tuple[FindingView, ...]:
        """Return findings of a run with their captures; one without an incident has none."""
        captures = [one for one in self._read_captures() if one.run_id == run_id]
        incidents = [one for one in self._read_incidents() if one.run_id == run_id] if captures else []
        # Incidents are oldest first: of two that have a number, the later one is that of the finding.
        by_number = {number: one for one in incidents for number in one.findings}
        return tuple(_view_finding(one, by_number, captures) for one in findings)


NO_LINKS: Final = CaptureLinks(tuple, tuple)
"""Of a collector that takes no captures."""


def link_incidents(
    incidents: Iterable[Incident], captures: Iterable[Capture], histories: Mapping[int, tuple[str, ...]] = {}
) -> tuple[IncidentView, ...]:
    """Return incidents with the ids of the captures about them, in the order of `captures`, and the history of their
    nodes, given by the id of the incident.
    """
    by_run: dict[str, list[Capture]] = {}
    for capture in captures:
        by_run.setdefault(capture.run_id, []).append(capture)
    return tuple(
        IncidentView(
            **_read_fields(one),
            captures=_find_captures(one, by_run.get(one.run_id, ())),
            node_history=histories.get(one.id, ()),
        )
        for one in incidents
    )


def is_about(capture: Capture, incident: Incident) -> bool:
    """Return whether a capture was ordered by an incident, or while it was open, with one of its ranks."""
    if capture.run_id != incident.run_id:
        return False
    until_wall_s = math.inf if incident.resolved_wall_s is None else incident.resolved_wall_s
    was_open = incident.opened_wall_s <= capture.asked_wall_s <= until_wall_s
    return capture.incident == str(incident.id) or (
        was_open and any(one.rank in incident.ranks for one in capture.ranks)
    )


def _view_finding(finding: Finding, by_number: Mapping[int, Incident], captures: Iterable[Capture]) -> FindingView:
    incident = by_number.get(finding.number)
    found = () if incident is None else _find_captures(incident, captures)
    return FindingView(**_read_fields(finding), captures=found)


def _find_captures(incident: Incident, captures: Iterable[Capture]) -> tuple[str, ...]:
    return tuple(one.id for one in captures if is_about(one, incident))


def _read_fields(found: Incident | Finding) -> dict[str, Any]:
    """Return the fields of the struct itself, and not of a view of it."""
    kind = Incident if isinstance(found, Incident) else Finding
    return {name: getattr(found, name) for name in kind.__struct_fields__}
