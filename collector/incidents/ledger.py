"""Which finding belongs to which incident: the one place where incidents begin, go on, are merged and end. Pure.

    a finding is opened       -> the open incident about the same, else the one that was resolved a moment ago
                                 (reopened), else a new incident
    a finding changes         -> its incident follows
    a finding is closed       -> its incident is resolved, once none of its findings is open any more; merged, when the
                                 finding has become part of another one
    a look at every run       -> costs are brought up to date and severities rise; what its run no longer holds is ended
    a run has ended badly     -> an incident of its own, which is resolved when the run is started again or forgotten

So there is one incident for one origin, however often its finding flaps. After a restart of the collector the open
incidents of the store have no finding: each waits to be found again (`Rules.restart_grace_s`).
"""

from collections.abc import Sequence
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
"""The kind of incident about a run that ended badly. It is open as long as the run is shown so, and nobody starts it
again: it is no finding of detection, and the end of the run is not its end.
"""
STARTED_AGAIN: Final = "the run went on: it was started again, or its ranks were heard of again"
STARTED_ANEW: Final = "a new run of this name has begun"
RUN_IS_OVER: Final = "the run is over"
RUN_IS_GONE: Final = "the run is no longer known"
NO_LONGER_FOUND: Final = "no longer found"
RESTARTED: Final = "collector restarted"
NOT_FOUND_AGAIN: Final = "collector restarted, and it was not found again"


class RunFindings(NamedTuple):
    """A run as the ledger compares it with its incidents; `run` is its id, here and in all of the ledger.

    `is_over`: all its ranks have ended. `is_judged`: detection gives verdicts and does not abstain. `failure`: how the
    run ended, in the form of a finding, None unless it ended badly. `is_superseded`: a later run of its name has begun.
    `findings_as_closed`: all its findings with their sentences in the past tense.
    """

    run: str
    open_findings: Sequence[Finding]
    is_over: bool
    is_judged: bool
    failure: Finding | None = None
    is_superseded: bool = False
    findings_as_closed: Sequence[Finding] = ()


class LedgerChanges(NamedTuple):
    """What has changed since it was last asked: incidents as they are now, ids that are forgotten, and those incidents
    whose last change is news, each as it was then.
    """

    changed: tuple[Incident, ...]
    forgotten: tuple[int, ...]
    news: tuple[Incident, ...]


@dataclass(slots=True)
class _Held:
    """What is known of an open incident in this life of the collector: the cost of each of its open findings, the first
    of which speaks for it, and the cost of all before those.
    """

    carried_rank_s: float | None
    keep_since: bool
    lost_rank_s: dict[int, float | None] = field(default_factory=dict)

    @property
    def total_rank_s(self) -> float | None:
        """The cost of the incident, None where nothing of it has one."""
        return _add(self.carried_rank_s, *self.lost_rank_s.values())


class Ledger:
    """Every incident of every run. It is told of each finding, and of each run at every tick."""

    def __init__(self, rules: Rules, now_wall_s: float, *, known: Sequence[Incident] = (), last_id: int = 0) -> None:
        """`known` are the incidents of the store, `last_id` the last one ever given."""
        self._rules = rules
        self._started_wall_s = now_wall_s
        self._incidents = {incident.id: incident for incident in sorted(known, key=lambda incident: incident.id)}
        self._last_id = max([last_id, *self._incidents])
        self._held: dict[int, _Held] = {}
        self._owners: dict[tuple[str, int], int] = {}
        self._telling_since_wall_s: dict[str, float] = {}
        self._changed: set[int] = set()
        self._forgotten: set[int] = set()
        self._news: list[Incident] = []
        self._refused: set[tuple[str, int]] = set()
        self.incidents_refused = 0
        """Findings that got no incident because as many as may be kept are open."""
        self._make_room(0)

    def adopt(self, known: Sequence[Incident], last_id: int) -> None:
        """The store could be opened only now. Its incidents come first, and wait to be found again as after a restart;
        those begun meanwhile get the ids after them, and have all to be written.
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
        self._held = {number + shift: held for number, held in self._held.items()}
        self._owners = {finding: number + shift for finding, number in self._owners.items()}
        self._last_id += shift
        self._changed, self._forgotten = set(begun), set()
        self._make_room(0)

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """All of them, oldest first."""
        return tuple(self._incidents.values())

    def drain_changes(self) -> LedgerChanges:
        """What has changed since this was last called."""
        changed = tuple(self._incidents[number] for number in sorted(self._changed))
        found = LedgerChanges(changed, tuple(sorted(self._forgotten)), tuple(self._news))
        self._changed, self._forgotten, self._news = set(), set(), []
        return found

    # -- findings -----------------------------------------------------------------------------------------------------

    def open(self, run: str, finding: Finding, now_wall_s: float) -> None:
        """A finding is new. One that is known already only goes on."""
        if (run, finding.number) in self._owners:
            self.update(run, finding, now_wall_s)
            return
        incident = self._find_open(run, finding) or self._find_resolved(run, finding, now_wall_s)
        if incident is None:
            self._begin(run, finding, now_wall_s)
            return
        was_waiting = incident.is_open and incident.id not in self._held
        if not incident.is_open:
            incident = reopen(incident, finding, now_wall_s)
        else:
            incident = add_finding(incident, finding.number)
        if was_waiting:
            incident = note(incident, CONTINUED, f"{RESTARTED}, and it was found again", now_wall_s)
        self._put(incident)
        self._held.setdefault(incident.id, _Held(incident.lost_rank_seconds, keep_since=was_waiting))
        self._attach(incident, finding)
        self._follow(incident.id, finding, now_wall_s)

    def update(self, run: str, finding: Finding, now_wall_s: float) -> None:
        """A finding has changed. One that is not known is new."""
        number = self._owners.get((run, finding.number))
        if number is None:
            self.open(run, finding, now_wall_s)
            return
        self._held[number].lost_rank_s[finding.number] = finding.lost_rank_seconds
        self._follow(number, finding, now_wall_s)

    def close(
        self, run: str, finding: Finding, reason: str, now_wall_s: float, *, merged_into: int | None = None
    ) -> None:
        """A finding no longer holds, or is part of the finding `merged_into`, which has its cost from now on."""
        number = self._owners.pop((run, finding.number), None)
        self._refused.discard((run, finding.number))
        if number is None:
            return
        held, into = self._held[number], self._owners.get((run, -1 if merged_into is None else merged_into))
        if into is None:
            self._follow(number, finding, now_wall_s)  # its last words are in the past tense
        del held.lost_rank_s[finding.number]
        if into is None:
            held.carried_rank_s = _add(held.carried_rank_s, finding.lost_rank_seconds)
        if held.lost_rank_s:
            return
        if into is None:
            self._resolve(number, reason, now_wall_s)
        else:
            self._merge(number, into, finding, now_wall_s)

    # -- the tick -----------------------------------------------------------------------------------------------------

    def reconcile(self, runs: Sequence[RunFindings], now_wall_s: float) -> None:
        """Bring every incident up to date with the runs as they are now. `runs` are all that are known."""
        by_id = {look.run: look for look in runs}
        telling = {look.run for look in runs if look.is_judged}
        self._telling_since_wall_s = {run: self._telling_since_wall_s.get(run, now_wall_s) for run in telling}
        self._refused &= {(look.run, finding.number) for look in runs for finding in _holding(look)}
        for look in runs:
            for finding in () if look.is_over else look.open_findings:
                self.update(look.run, finding, now_wall_s)
            if look.failure is not None and not look.is_superseded:
                self.update(look.run, look.failure, now_wall_s)
        for incident in [incident for incident in self._incidents.values() if incident.is_open]:
            reason = self._find_end(incident, by_id.get(incident.run_id), now_wall_s)
            if reason is not None:
                self._tell_as_past(incident, by_id.get(incident.run_id), now_wall_s)
                self._resolve(incident.id, reason, now_wall_s)
            elif incident.kind != RUN_FAILURE:  # what has failed costs no more the longer it is shown
                self._put(escalate(incident, self._rules, now_wall_s))

    def _find_end(self, incident: Incident, look: RunFindings | None, now_wall_s: float) -> str | None:
        """Why an open incident is over, None while it goes on."""
        held = self._held.get(incident.id)
        if held is None:
            return self._find_end_of_waiting(incident, look, now_wall_s)
        if look is None:
            return RUN_IS_GONE
        if incident.kind == RUN_FAILURE:
            return STARTED_AGAIN if look.failure is None else STARTED_ANEW if look.is_superseded else None
        if look.is_over:
            return RUN_IS_OVER
        if held.lost_rank_s.keys().isdisjoint(finding.number for finding in look.open_findings):
            return NO_LONGER_FOUND
        return None

    def _find_end_of_waiting(self, incident: Incident, look: RunFindings | None, now_wall_s: float) -> str | None:
        """The same of one that has not been found again since the collector started."""
        if look is not None and (look.is_over or look.failure is not None):
            return RESTARTED
        since_wall_s = self._started_wall_s if look is None else self._telling_since_wall_s.get(incident.run_id)
        if since_wall_s is None or now_wall_s - since_wall_s < self._rules.restart_grace_s:
            return None
        return RESTARTED if look is None else NOT_FOUND_AGAIN

    def _tell_as_past(self, incident: Incident, look: RunFindings | None, now_wall_s: float) -> None:
        """Give an incident whose finding nobody has closed the words of one that is over: its run is lost, or has ended
        while no collector was there.
        """
        held = self._held.get(incident.id)
        numbers = incident.findings[-1:] if held is None else tuple(held.lost_rank_s)[:1]
        for finding in () if look is None else look.findings_as_closed:
            if finding.number in numbers and incident.is_about(finding):
                lost_rank_s = incident.lost_rank_seconds if held is None else held.total_rank_s
                self._put(follow(incident, finding, lost_rank_s, now_wall_s, keep_since=True))

    # -- incidents ----------------------------------------------------------------------------------------------------

    def _find_open(self, run: str, finding: Finding) -> Incident | None:
        """The open incident about the same."""
        same = (one for one in self._incidents.values() if one.is_open and one.run_id == run and one.is_about(finding))
        return next(same, None)

    def _find_resolved(self, run: str, finding: Finding, now_wall_s: float) -> Incident | None:
        """The incident about the same that was resolved last, if that is not too long ago. For one that was merged it
        is what it was merged into, which may be open.
        """
        resolved = [
            (one.resolved_wall_s, one.id)
            for one in self._incidents.values()
            if one.resolved_wall_s is not None and one.run_id == run and one.is_about(finding)
        ]
        for resolved_wall_s, number in sorted(resolved, reverse=True):
            if now_wall_s - resolved_wall_s > self._rules.reopen_s:
                return None
            origin = self._find_origin(self._incidents[number])
            if origin is not None and now_wall_s - (origin.resolved_wall_s or now_wall_s) <= self._rules.reopen_s:
                return origin
        return None

    def _find_origin(self, incident: Incident) -> Incident | None:
        """What an incident has been merged into at last, itself if into nothing; None when that is forgotten."""
        seen = {incident.id}
        found: Incident | None = incident
        while found is not None and found.merged_into is not None and found.merged_into not in seen:
            seen.add(found.merged_into)
            found = self._incidents.get(found.merged_into)
        return found

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
        self._held[incident.id] = _Held(None, keep_since=False)
        self._attach(incident, finding)

    def _attach(self, incident: Incident, finding: Finding) -> None:
        self._owners[incident.run_id, finding.number] = incident.id
        self._held[incident.id].lost_rank_s[finding.number] = finding.lost_rank_seconds

    def _follow(self, number: int, finding: Finding, now_wall_s: float) -> None:
        held = self._held[number]
        if finding.number == next(iter(held.lost_rank_s)):
            incident = self._incidents[number]
            self._put(follow(incident, finding, held.total_rank_s, now_wall_s, keep_since=held.keep_since))

    def _resolve(self, number: int, reason: str, now_wall_s: float) -> None:
        incident, held = self._incidents[number], self._held.pop(number, None)
        lost_rank_s = incident.lost_rank_seconds
        if held is not None:
            lost_rank_s = held.total_rank_s
            for finding in held.lost_rank_s:
                del self._owners[incident.run_id, finding]
        self._put(resolve(incident, reason, now_wall_s, lost_rank_seconds=lost_rank_s))

    def _merge(self, number: int, into: int, finding: Finding, now_wall_s: float) -> None:
        """The origin of an incident has turned out to be another one's, which is open."""
        carried_rank_s = self._held.pop(number).carried_rank_s
        self._held[into].carried_rank_s = _add(self._held[into].carried_rank_s, carried_rank_s)
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
            self._news.append(incident)

    def _make_room(self, places: int) -> bool:
        """Forget what was resolved first until so many more may be kept; whether that is so."""
        resolved = sorted(
            (one.resolved_wall_s, one.id) for one in self._incidents.values() if one.resolved_wall_s is not None
        )
        too_many = len(self._incidents) + places - self._rules.incidents_max
        for _, number in resolved[: max(0, too_many)]:
            del self._incidents[number]
            self._changed.discard(number)
            self._forgotten.add(number)
        return too_many <= len(resolved)


def _holding(look: RunFindings) -> tuple[Finding, ...]:
    return (*look.open_findings, look.failure) if look.failure is not None else tuple(look.open_findings)


def _add(*amounts: float | None) -> float | None:
    """The sum of what is known."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None
