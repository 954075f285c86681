"""Show incidents, and the findings of a run and of its status, with the captures about them, by comparing what is kept
of both, and with the history of the nodes that they blame. Pure.

Nothing about it is stored: an incident has its captures again after a restart of the collector, as both are kept, and
names none that was deleted.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from rankscope.collector.captures.capture import Capture
from rankscope.collector.detect.finding import Finding, write_whole_cost
from rankscope.collector.detect.finding_words import write_lost
from rankscope.collector.detect.suggestions import find_runbook
from rankscope.collector.incidents.incident import Incident
from rankscope.collector.runs.run_status import RunStatus
from rankscope.collector.runs.snapshot import RunSnapshot

View = TypeVar("View", bound=msgspec.Struct)


class IncidentView(Incident, frozen=True, kw_only=True):
    """An incident, and the ids of the captures about it that are kept, newest first: those that it has ordered, and
    those with one of its ranks that were ordered while it was open. `node_history`: of at most four of the nodes that
    it blames how often each has held up a run, as a sentence; none without other runs of the node in the store.
    `lost_said` is what it has cost so far, in the words of all views.
    """

    captures: tuple[str, ...] = ()
    node_history: tuple[str, ...] = ()
    lost_said: str = ""


class FindingView(Finding, frozen=True, kw_only=True):
    """A finding, and the ids of the captures about its incident that are kept, newest first. `incident` is the id of
    its incident, None where there is none yet, or it is no longer kept. `runbook` is the name of the page about it in
    docs/runbooks, empty where there is none. `whole_cost` is the cost with what has been lost so far, `reason_said` the
    cause with its name.
    """

    captures: tuple[str, ...] = ()
    incident: int | None = None
    runbook: str = ""
    whole_cost: str = ""
    reason_said: str = ""


class IncidentRunView(RunSnapshot, frozen=True, kw_only=True, gc=False):
    """A run, whose findings have the captures about them."""

    open_findings: tuple[FindingView, ...] = ()
    findings: tuple[FindingView, ...] = ()


class StatusView(RunStatus, frozen=True, kw_only=True):
    """The status of a run, whose findings have the captures about them."""

    run: IncidentRunView


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

    def of_findings(self, run: RunSnapshot, findings: Iterable[Finding]) -> tuple[FindingView, ...]:
        """Return findings of a run with their captures; one without an incident has none."""
        run_id = run.run_id
        captures = _CaptureIndex(one for one in self._read_captures() if one.run_id == run_id)
        incidents = [one for one in self._read_incidents() if one.run_id == run_id]
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
    index = _CaptureIndex(captures)
    return tuple(
        IncidentView(
            **_read_fields(one),
            captures=index.find(one),
            node_history=histories.get(one.id, ()),
            lost_said=write_lost(one.lost_rank_seconds),
        )
        for one in incidents
    )


def view_run(run: RunSnapshot, links: CaptureLinks) -> IncidentRunView:
    """Return a run with the captures about its findings."""
    return _view(
        IncidentRunView,
        run,
        open_findings=links.of_findings(run, run.open_findings),
        findings=links.of_findings(run, run.findings),
    )


def view_status(status: RunStatus, links: CaptureLinks) -> StatusView:
    """Return a status with the captures about the findings of its run."""
    return _view(StatusView, status, run=view_run(status.run, links))


def is_about(capture: Capture, incident: Incident) -> bool:
    """Return whether a capture was ordered by an incident, or while it was open, with one of its ranks."""
    if capture.run_id != incident.run_id:
        return False
    until_wall_s = math.inf if incident.resolved_wall_s is None else incident.resolved_wall_s
    was_open = incident.opened_wall_s <= capture.asked_wall_s <= until_wall_s
    return capture.incident == str(incident.id) or (
        was_open and any(one.rank in incident.ranks for one in capture.ranks)
    )


class _CaptureIndex:
    """Captures by their run and each of their ranks, and by their run and the incident that has ordered them: comparing
    1,000 incidents with 1,000 captures each takes half a second.
    """

    def __init__(self, captures: Iterable[Capture]) -> None:
        self._captures = tuple(captures)
        self._places: dict[tuple[str, object], list[int]] = {}
        for place, one in enumerate(self._captures):
            for key in {one.incident, *(rank.rank for rank in one.ranks)}:
                self._places.setdefault((one.run_id, key), []).append(place)

    def find(self, incident: Incident) -> tuple[str, ...]:
        """Return the ids of the captures about an incident, in the order of the captures."""
        keys = {str(incident.id), *incident.ranks}
        places = {place for key in keys for place in self._places.get((incident.run_id, key), ())}
        return tuple(self._captures[place].id for place in sorted(places) if is_about(self._captures[place], incident))


def _view_finding(finding: Finding, by_number: Mapping[int, Incident], captures: _CaptureIndex) -> FindingView:
    incident = by_number.get(finding.number)
    return FindingView(
        **_read_fields(finding),
        captures=() if incident is None else captures.find(incident),
        incident=None if incident is None else incident.id,
        runbook=find_runbook(finding.kind, finding.nodes),
        whole_cost=write_whole_cost(finding),
        reason_said=finding.reason,
    )


def _read_fields(found: Incident | Finding) -> dict[str, Any]:
    """Return the fields of the struct itself, and not of a view of it."""
    kind = Incident if isinstance(found, Incident) else Finding
    return {name: getattr(found, name) for name in kind.__struct_fields__}


def _view(kind: type[View], found: msgspec.Struct, **changes: Any) -> View:
    """Return a struct with other fields as one of a kind that extends its own."""
    return kind(**{**{name: getattr(found, name) for name in found.__struct_fields__}, **changes})
