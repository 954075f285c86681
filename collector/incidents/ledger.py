"""Assign findings to incidents: the one place where incidents begin, continue, merge and end. Pure.

    a finding is opened       -> the open incident about the same, else one resolved recently (reopened), else a new one
    a finding changes         -> its incident is updated
    a finding is closed       -> its incident is resolved, once none of its findings is open any more; merged, when the
                                 finding has become part of another one
    each tick, with all runs  -> costs are updated and severities rise; incidents that no longer hold are resolved
    a run has ended badly     -> an incident of its own, which is resolved when the run is restarted or forgotten

So there is one incident for each root cause, however often its finding flaps. After a restart of the collector the open
incidents of the store have no finding: each waits to be found again (`Rules.restart_grace_s`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from rankscope.collector.detect.finding import Finding
from rankscope.collector.incidents.incident import (
    CONTINUED,
    MERGED,
    Incident,
    Rules,
    add_finding,
    begin,
    escalate,
    follow,
    note,
    reopen,
    resolve,
)

RUN_FAILURE: Final = "run_failure"
"""Kind of incident for a run that ended badly. It is open until the run is restarted or forgotten: it is not a finding
of detection, and the end of the run does not resolve it."""
NOTHING_HEARD: Final = "nothing_heard"
"""Kind of incident for all runs that are not heard of any more, kept with one of them: it is open until that one is
heard again. When others are heard and that run is not, it becomes its failure."""
OF_ENDS: Final = frozenset({RUN_FAILURE, NOTHING_HEARD})
STARTED_AGAIN: Final = "the run went on: it was started again, or its ranks were heard of again"
STARTED_ANEW: Final = "a new run of this name has begun"
RUN_IS_OVER: Final = "the run is over"
RUN_IS_GONE: Final = "the run is no longer known"
NO_LONGER_FOUND: Final = "no longer found"
RESTARTED: Final = "collector restarted"
NOT_FOUND_AGAIN: Final = "collector restarted, and it was not found again"


class ComparedRun(NamedTuple):
    """A run as the ledger compares it with its incidents; `run` is its id, here and in all of the ledger.

    `is_over`: all its ranks have ended. `is_judged`: detection gives verdicts and does not abstain. `failure`: how the
    run ended, in the form of a finding, None unless it ended badly. `is_superseded`: a later run of its name has begun.
    `findings_as_closed`: all its findings in their closed form.
    """

    run: str
    open_findings: Sequence[Finding]
    is_over: bool
    is_judged: bool
    failure: Finding | None = None
    is_superseded: bool = False
    findings_as_closed: Sequence[Finding] = ()


class LedgerChanges(NamedTuple):
    """Changes since the last call: changed incidents, forgotten ids, and incidents whose last change is notable, each
    as it was then.
    """

    changed: tuple[Incident, ...]
    forgotten: tuple[int, ...]
    notable: tuple[Incident, ...]


@dataclass(slots=True)
class _OpenState:
    """State of an open incident since this collector started: the cost of each of its open findings, the first of which
    the incident shows, and the cost of all earlier ones.
    """

    carried_rank_s: float | None
    keep_since: bool
    lost_rank_s: dict[int, float | None] = field(default_factory=dict)

    @property
    def total_rank_s(self) -> float | None:
        """Cost of the incident, None where none of its findings has one."""
        return _add(self.carried_rank_s, *self.lost_rank_s.values())


class Ledger:
    """The incidents of all runs. Receives each change of a finding, and all runs at every tick."""

    def __init__(self, rules: Rules, now_wall_s: float, *, known: Sequence[Incident] = (), last_id: int = 0) -> None:
        """`known` are the incidents of the store, `last_id` the last one ever given."""
        self._rules = rules
        self._started_wall_s = now_wall_s
        self._incidents = {incident.id: incident for incident in sorted(known, key=lambda incident: incident.id)}
        self._last_id = max([last_id, *self._incidents])
        self._open_states: dict[int, _OpenState] = {}
        self._owners: dict[tuple[str, int], int] = {}
        self._judged_since_wall_s: dict[str, float] = {}
        self._changed: set[int] = set()
        self._forgotten: set[int] = set()
        self._notable: list[Incident] = []
        self._refused: set[tuple[str, int]] = set()
        self.incidents_refused = 0
        """Findings without an incident, because `incidents_max` are open."""
        self._make_room(0)

    def adopt(self, known: Sequence[Incident], last_id: int) -> None:
        """Add the incidents of a store that could be opened only now. They come first, and wait to be found again as
        after a restart; those begun meanwhile get the ids after them, and must all be written.
        """
        shift = max([last_id, *(incident.id for incident in known)])
        begun = {
            number + shift: msgspec.structs.replace(
                incident,
                id=number + shift,
                merged_into=None if incident.merged_into is None else incident.merged_into + shift,
            )
            for number, incident in self._incidents.items()
        }
        self._incidents = {incident.id: incident for incident in sorted(known, key=lambda one: one.id)} | begun
        self._open_states = {number + shift: state for number, state in self._open_states.items()}
        self._owners = {finding: number + shift for finding, number in self._owners.items()}
        self._last_id += shift
        self._changed, self._forgotten = set(begun), set()
        self._make_room(0)

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """All incidents, oldest first."""
        return tuple(self._incidents.values())

    def drain_changes(self) -> LedgerChanges:
        """Return the changes since the last call."""
        changed = tuple(self._incidents[number] for number in sorted(self._changed))
        found = LedgerChanges(changed, tuple(sorted(self._forgotten)), tuple(self._notable))
        self._changed, self._forgotten, self._notable = set(), set(), []
        return found

    # -- findings -----------------------------------------------------------------------------------------------------

    def open(self, run: str, finding: Finding, now_wall_s: float) -> None:
        """Add a new finding to the incident about the same, or begin one. A known finding is updated."""
        if (run, finding.number) in self._owners:
            self.update(run, finding, now_wall_s)
            return
        incident = self._find_open(run, finding) or self._find_resolved(run, finding, now_wall_s)
        if incident is None:
            self._begin(run, finding, now_wall_s)
            return
        was_unconfirmed = incident.is_open and incident.id not in self._open_states
        if not incident.is_open:
            incident = reopen(incident, finding, now_wall_s)
        else:
            incident = add_finding(incident, finding.number)
        if was_unconfirmed:
            incident = note(incident, CONTINUED, f"{RESTARTED}, and it was found again", now_wall_s)
        self._put(incident)
        self._open_states.setdefault(incident.id, _OpenState(incident.lost_rank_seconds, keep_since=was_unconfirmed))
        self._attach(incident, finding)
        self._follow(incident.id, finding, now_wall_s)

    def update(self, run: str, finding: Finding, now_wall_s: float) -> None:
        """Update the incident of a finding. An unknown finding is opened."""
        number = self._owners.get((run, finding.number))
        if number is None:
            self.open(run, finding, now_wall_s)
            return
        self._open_states[number].lost_rank_s[finding.number] = finding.lost_rank_seconds
        self._follow(number, finding, now_wall_s)

    def close(
        self, run: str, finding: Finding, reason: str, now_wall_s: float, *, merged_into: int | None = None
    ) -> None:
        """Remove a finding that no longer holds, or that is part of the finding `merged_into`, which takes over its
        cost.
        """
        number = self._owners.pop((run, finding.number), None)
        self._refused.discard((run, finding.number))
        if number is None:
            return
        state, into = self._open_states[number], self._owners.get((run, -1 if merged_into is None else merged_into))
        if into is None:
            self._follow(number, finding, now_wall_s)  # in its closed form
        del state.lost_rank_s[finding.number]
        if into is None:
            state.carried_rank_s = _add(state.carried_rank_s, finding.lost_rank_seconds)
        if state.lost_rank_s:
            return
        if into is None:
            self._resolve(number, reason, now_wall_s)
        else:
            self._merge(number, into, finding, now_wall_s)

    # -- the tick -----------------------------------------------------------------------------------------------------

    def reconcile(self, runs: Sequence[ComparedRun], now_wall_s: float) -> None:
        """Update every incident by the present state of its run. `runs` are all known runs."""
        by_id = {run.run: run for run in runs}
        judged = {run.run for run in runs if run.is_judged}
        self._judged_since_wall_s = {run: self._judged_since_wall_s.get(run, now_wall_s) for run in judged}
        self._refused &= {(run.run, finding.number) for run in runs for finding in _current_findings(run)}
        for run in runs:
            for finding in () if run.is_over else run.open_findings:
                self.update(run.run, finding, now_wall_s)
            if run.failure is not None and not run.is_superseded:
                self.update(run.run, run.failure, now_wall_s)
        for incident in [incident for incident in self._incidents.values() if incident.is_open]:
            reason = self._find_end(incident, by_id.get(incident.run_id), now_wall_s)
            if reason is not None:
                self._use_closed_form(incident, by_id.get(incident.run_id), now_wall_s)
                self._resolve(incident.id, reason, now_wall_s)
            elif incident.kind not in OF_ENDS:  # a failed run costs no more over time
                self._put(escalate(incident, self._rules, now_wall_s))

    def _find_end(self, incident: Incident, run: ComparedRun | None, now_wall_s: float) -> str | None:
        """Return why an open incident is over; None while it is not."""
        state = self._open_states.get(incident.id)
        if state is None:
            return self._find_end_of_unconfirmed(incident, run, now_wall_s)
        if run is None:
            return RUN_IS_GONE
        if incident.kind in OF_ENDS:
            return STARTED_AGAIN if run.failure is None else STARTED_ANEW if run.is_superseded else None
        if run.is_over:
            return RUN_IS_OVER
        if state.lost_rank_s.keys().isdisjoint(finding.number for finding in run.open_findings):
            return NO_LONGER_FOUND
        return None

    def _find_end_of_unconfirmed(self, incident: Incident, run: ComparedRun | None, now_wall_s: float) -> str | None:
        """Return the same for one whose finding was not opened again since the collector started."""
        if run is not None and (run.is_over or run.failure is not None):
            return RESTARTED
        since_wall_s = self._started_wall_s if run is None else self._judged_since_wall_s.get(incident.run_id)
        if since_wall_s is None or now_wall_s - since_wall_s < self._rules.restart_grace_s:
            return None
        return RESTARTED if run is None else NOT_FOUND_AGAIN

    def _use_closed_form(self, incident: Incident, run: ComparedRun | None, now_wall_s: float) -> None:
        """Give an incident whose finding was never closed the words of a closed one: its run is
        lost, or has ended while no collector was running.
        """
        state = self._open_states.get(incident.id)
        numbers = incident.findings[-1:] if state is None else tuple(state.lost_rank_s)[:1]
        for finding in () if run is None else run.findings_as_closed:
            if finding.number in numbers and incident.is_about(finding):
                lost_rank_s = incident.lost_rank_seconds if state is None else state.total_rank_s
                self._put(follow(incident, finding, lost_rank_s, now_wall_s, keep_since=True))

    # -- incidents ----------------------------------------------------------------------------------------------------

    def _find_open(self, run: str, finding: Finding) -> Incident | None:
        """Return the open incident about the same as a finding."""
        same = (one for one in self._incidents.values() if one.is_open and one.run_id == run and one.is_about(finding))
        return next(same, None)

    def _find_resolved(self, run: str, finding: Finding, now_wall_s: float) -> Incident | None:
        """Return the incident about the same that was resolved last, within `reopen_s`. For a merged one that is the
        incident it was merged into, which may be open.
        """
        resolved = [
            (one.resolved_wall_s, one.id)
            for one in self._incidents.values()
            if one.resolved_wall_s is not None and one.run_id == run and one.is_about(finding)
        ]
        for resolved_wall_s, number in sorted(resolved, reverse=True):
            if now_wall_s - resolved_wall_s > self._rules.reopen_s:
                return None
            origin = _find_origin(self._incidents, self._incidents[number])
            if origin is not None and now_wall_s - (origin.resolved_wall_s or now_wall_s) <= self._rules.reopen_s:
                return origin
        return None

    def _begin(self, run: str, finding: Finding, now_wall_s: float) -> None:
        if not self._make_room(1):
            if (run, finding.number) not in self._refused:
                self._refused.add((run, finding.number))
                self.incidents_refused += 1
            return
        self._refused.discard((run, finding.number))
        self._last_id += 1
        incident = begin(self._last_id, run, finding, now_wall_s)
        self._put(incident)
        self._open_states[incident.id] = _OpenState(None, keep_since=False)
        self._attach(incident, finding)

    def _attach(self, incident: Incident, finding: Finding) -> None:
        self._owners[incident.run_id, finding.number] = incident.id
        self._open_states[incident.id].lost_rank_s[finding.number] = finding.lost_rank_seconds

    def _follow(self, number: int, finding: Finding, now_wall_s: float) -> None:
        state = self._open_states[number]
        if finding.number == next(iter(state.lost_rank_s)):
            incident = self._incidents[number]
            self._put(follow(incident, finding, state.total_rank_s, now_wall_s, keep_since=state.keep_since))

    def _resolve(self, number: int, reason: str, now_wall_s: float) -> None:
        incident, state = self._incidents[number], self._open_states.pop(number, None)
        lost_rank_s = incident.lost_rank_seconds
        if state is not None:
            lost_rank_s = state.total_rank_s
            for finding in state.lost_rank_s:
                del self._owners[incident.run_id, finding]
        self._put(resolve(incident, reason, now_wall_s, lost_rank_seconds=lost_rank_s))

    def _merge(self, number: int, into: int, finding: Finding, now_wall_s: float) -> None:
        """Merge an incident into another open one, which has the same root cause."""
        carried_rank_s = self._open_states.pop(number).carried_rank_s
        self._open_states[into].carried_rank_s = _add(self._open_states[into].carried_rank_s, carried_rank_s)
        origin = add_finding(self._incidents[into], finding.number)
        self._put(note(origin, MERGED, f"incident {number}, {finding.subject}, is part of it", now_wall_s))
        reason = f"part of incident {into}"
        self._put(resolve(self._incidents[number], reason, now_wall_s, lost_rank_seconds=None, merged_into=into))

    def _put(self, incident: Incident) -> None:
        before = self._incidents.get(incident.id)
        if incident is before:
            return
        self._incidents[incident.id] = incident
        self._changed.add(incident.id)
        if before is None or incident.changes != before.changes:
            self._notable.append(incident)

    def _make_room(self, places: int) -> bool:
        """Forget the incidents resolved first until there is room for `places` more; return whether there is."""
        resolved = sorted(
            (one.resolved_wall_s, one.id) for one in self._incidents.values() if one.resolved_wall_s is not None
        )
        too_many = len(self._incidents) + places - self._rules.incidents_max
        for _, number in resolved[: max(0, too_many)]:
            del self._incidents[number]
            self._changed.discard(number)
            self._forgotten.add(number)
        return too_many <= len(resolved)


def _current_findings(run: ComparedRun) -> tuple[Finding, ...]:
    return (*run.open_findings, run.failure) if run.failure is not None else tuple(run.open_findings)


def _find_origin(incidents: Mapping[int, Incident], incident: Incident) -> Incident | None:
    """Return the incident that this one was finally merged into, itself if none; None when that is forgotten."""
    seen = {incident.id}
    found: Incident | None = incident
    while found is not None and found.merged_into is not None and found.merged_into not in seen:
        seen.add(found.merged_into)
        found = incidents.get(found.merged_into)
    return found


def _add(*amounts: float | None) -> float | None:
    """Return the sum of the known amounts, None if there are none."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None
