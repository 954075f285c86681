"""Define incidents and their transitions, from opening to resolution, across flapping findings and restarts. Pure.

    open --(update, escalate)*--> resolved --(reopen, within a time)--> open ...

A finding is a result of detection and is lost when the collector ends; an incident has a permanent id and a history.
Every function here returns a new incident; the ledger decides which finding belongs to which incident (`ledger.py`).
Times are seconds since 1970 by the collector's wall clock, `_wall_s`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from rankscope.collector.config import CollectorConfig
from rankscope.collector.detect.finding import PAUSES, SEVERITIES, Finding
from rankscope.collector.detect.finding_words import write_reason
from rankscope.collector.detect.sampled_lines import SampledLines
from rankscope.collector.run_ids import read_run_name

OPEN: Final = "open"
RESOLVED: Final = "resolved"
STATES: Final = (OPEN, RESOLVED)

OPENED: Final = "opened"
UPDATED: Final = "updated"
ESCALATED: Final = "escalated"
CONTINUED: Final = "continued"
REOPENED: Final = "reopened"
MERGED: Final = "merged"
CLOSED: Final = "resolved"
"""Kinds of changes. Each incident has as many OPENED and REOPENED together as CLOSED, or one more."""

CRITICAL_KINDS: Final = frozenset({"hang"})
"""Kinds that are critical unless their cause is one of PAUSES: a run that hangs costs all of its ranks."""
SECOND_RISE: Final = 10.0
"""Multiple of a limit at which the severity rises once more: from ten rank-hours to a hundred."""
CHANGES_MAX: Final = 32
"""Changes kept for one incident: the first, with its cause, and the latest ones."""
FINDINGS_MAX: Final = 16
"""Finding numbers kept for one incident, the latest ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Limits for incidents. The collector's configuration documents each."""

    incidents_max: int = 1000
    reopen_s: float = 1800.0
    escalate_s: float = 86_400.0
    escalate_rank_s: float = 36_000.0
    restart_grace_s: float = 600.0


def read_rules(config: CollectorConfig) -> Rules:
    """Return the configured limits."""
    return Rules(
        incidents_max=config.incidents_max,
        reopen_s=config.incident_reopen_s,
        escalate_s=config.incident_escalate_s,
        escalate_rank_s=config.incident_escalate_rank_s,
        restart_grace_s=config.incident_restart_grace_s,
    )


class Change(msgspec.Struct, frozen=True):
    """A change of an incident with its time: `what` is OPENED, UPDATED, ..., `text` a description for users."""

    wall_s: float
    what: str
    text: str


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """One incident. Fields with the name of a finding's field have the value of its finding (documented by `Finding`).

    `severity` never decreases; `severity_found` is the highest of its findings. `lost_rank_seconds` is the cost of all
    its findings together; None where none has a cost, and after a merge, since the incident `merged_into` takes over
    the cost. `run` is the name of its run, `run_id` its id (the name in a store of an early version). `findings` are
    the numbers of its findings in the run, the latest FINDINGS_MAX; a restarted collector goes on counting where it
    restores the run. `opened_wall_s` is the first time it was opened, `reopened_wall_s` the last time, if it was
    resolved in between.
    """

    id: int
    run: str
    run_id: str = ""
    state: str = OPEN
    severity: str
    severity_found: str
    kind: str
    subject: str
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    group: str | None = None
    cause: str
    pattern: str = "steady"
    headline: str = ""
    figures: str = ""
    why: str = ""
    also: tuple[str, ...] = ()
    cost: str = ""
    sentence: str
    suggestion: str = ""
    since_step: int | None = None
    slowdown_ratio: float | None = None
    run_slowdown_ratio: float | None = None
    lost_rank_seconds: float | None = None
    evidence: Mapping[str, float] = {}
    details: Mapping[str, str] = {}
    lines: SampledLines | None = None
    opened_wall_s: float
    updated_wall_s: float
    reopened_wall_s: float | None = None
    resolved_wall_s: float | None = None
    resolved_reason: str = ""
    merged_into: int | None = None
    findings: tuple[int, ...] = ()
    changes: tuple[Change, ...] = ()

    def __post_init__(self) -> None:
        if not self.run_id:
            msgspec.structs.force_setattr(self, "run_id", self.run)
        if not self.headline:
            msgspec.structs.force_setattr(self, "headline", self.sentence)

    def is_of_run(self, asked: str | None) -> bool:
        """Return whether it belongs to the run with this id, or to any run of this name; None: of any name."""
        return asked is None or asked in {self.run, self.run_id}

    @property
    def reason(self) -> str:
        """Return the cause with its name, where that says more than the kind."""
        return write_reason(self)

    @property
    def is_closed(self) -> bool:
        """Return whether it is resolved."""
        return not self.is_open

    @property
    def is_open(self) -> bool:
        """Whether it is not resolved."""
        return self.state == OPEN

    def is_about(self, finding: Finding) -> bool:
        """Return whether the finding is about the same as this incident (`Finding.is_about_the_same`)."""
        own = Finding(kind=self.kind, ranks=self.ranks, group=self.group, cause=self.cause, sentence=self.sentence)
        return own.is_about_the_same(finding)

    def open_for_s(self, now_wall_s: float) -> float:
        """Return the time since it was last opened; once resolved, how long it was open."""
        begin = self.opened_wall_s if self.reopened_wall_s is None else self.reopened_wall_s
        return max(0.0, (now_wall_s if self.resolved_wall_s is None else self.resolved_wall_s) - begin)


def begin(number: int, run_id: str, finding: Finding, now_wall_s: float) -> Incident:
    """Return a new incident of a run, with `number` as its id."""
    severity = _severity_of(finding)
    return Incident(
        id=number,
        run=read_run_name(run_id),
        run_id=run_id,
        severity=severity,
        severity_found=severity,
        **_copy_fields(finding),
        lost_rank_seconds=_finite(finding.lost_rank_seconds),
        opened_wall_s=now_wall_s,
        updated_wall_s=now_wall_s,
        findings=(finding.number,),
        changes=(Change(now_wall_s, OPENED, finding.sentence),),
    )


def follow(
    incident: Incident, finding: Finding, lost_rank_seconds: float | None, now_wall_s: float, *, keep_since: bool
) -> Incident:
    """Return the incident with the present fields of its finding; the same object when nothing has changed.

    `lost_rank_seconds` is the cost of the whole incident. With `keep_since` its first step never increases: a restarted
    collector no longer has the steps where it began.
    """
    fields = _copy_fields(finding)
    if keep_since:
        known = [step for step in (incident.since_step, finding.since_step) if step is not None]
        fields["since_step"] = min(known, default=None)
    new = msgspec.structs.replace(
        incident,
        **fields,
        severity_found=severest(incident.severity_found, _severity_of(finding)),
        lost_rank_seconds=_finite(lost_rank_seconds),
    )
    if new == incident:
        return incident
    new = msgspec.structs.replace(new, updated_wall_s=now_wall_s)
    text = _describe_difference(incident, new)
    if text:
        new = note(new, UPDATED, text, now_wall_s)
    return _raise_to(new, new.severity_found, "by its finding", now_wall_s)


def escalate(incident: Incident, rules: Rules, now_wall_s: float) -> Incident:
    """Return the incident with the severity for its duration and cost; the same object when that is no higher.

    It is one level above `severity_found` once it has been open for `escalate_s` or has cost `escalate_rank_s`, and two
    levels at SECOND_RISE times either.
    """
    open_for_s, lost_s = incident.open_for_s(now_wall_s), incident.lost_rank_seconds or 0.0
    passed = max(open_for_s / rules.escalate_s, lost_s / rules.escalate_rank_s)
    rises = int(passed >= 1.0) + int(passed >= SECOND_RISE)
    level = min(SEVERITIES.index(incident.severity_found) + rises, len(SEVERITIES) - 1)
    why = f"open for {open_for_s:.0f} s, {lost_s:.0f} rank-seconds lost"
    return _raise_to(incident, SEVERITIES[level], why, now_wall_s)


def reopen(incident: Incident, finding: Finding, now_wall_s: float) -> Incident:
    """Return a resolved incident as open again. It keeps its severity and its cost so far."""
    resolved_wall_s = now_wall_s if incident.resolved_wall_s is None else incident.resolved_wall_s
    back = msgspec.structs.replace(
        incident,
        state=OPEN,
        reopened_wall_s=now_wall_s,
        resolved_wall_s=None,
        resolved_reason="",
        merged_into=None,
    )
    text = f"it recurred after {max(0.0, now_wall_s - resolved_wall_s):.0f} s"
    return note(add_finding(back, finding.number), REOPENED, text, now_wall_s)


def resolve(
    incident: Incident,
    reason: str,
    now_wall_s: float,
    *,
    lost_rank_seconds: float | None,
    merged_into: int | None = None,
) -> Incident:
    """Return the incident as resolved; it may be reopened later."""
    done = msgspec.structs.replace(
        incident,
        state=RESOLVED,
        resolved_wall_s=now_wall_s,
        resolved_reason=reason,
        merged_into=merged_into,
        lost_rank_seconds=_finite(lost_rank_seconds),
    )
    return note(done, CLOSED, reason, now_wall_s)


def add_finding(incident: Incident, number: int) -> Incident:
    """Return the incident with one more finding."""
    return msgspec.structs.replace(incident, findings=(*incident.findings, number)[-FINDINGS_MAX:])


def note(incident: Incident, what: str, text: str, now_wall_s: float) -> Incident:
    """Return the incident with one more change; beyond CHANGES_MAX the second oldest is dropped."""
    first, rest = incident.changes[:1], (*incident.changes[1:], Change(now_wall_s, what, text))
    return msgspec.structs.replace(incident, changes=(*first, *rest[-(CHANGES_MAX - 1) :]), updated_wall_s=now_wall_s)


def severest(*severities: str) -> str:
    """Return the highest of the severities; an unknown one counts as the lowest.

    >>> severest("warning", "critical", "info")
    'critical'
    """
    known = [severity for severity in SEVERITIES if severity in severities]
    return known[-1] if known else SEVERITIES[0]


def _severity_of(finding: Finding) -> str:
    is_critical = finding.kind in CRITICAL_KINDS and finding.cause not in PAUSES
    return SEVERITIES[-1] if is_critical else severest(finding.severity)


def _raise_to(incident: Incident, severity: str, why: str, now_wall_s: float) -> Incident:
    if SEVERITIES.index(severity) <= SEVERITIES.index(incident.severity):
        return incident
    raised = msgspec.structs.replace(incident, severity=severity)
    return note(raised, ESCALATED, f"{incident.severity} -> {severity}: {why}", now_wall_s)


def _copy_fields(finding: Finding) -> dict[str, Any]:
    """Return the fields that an incident copies from its finding. Numbers that are not finite count as unknown."""
    return {
        "kind": finding.kind,
        "subject": finding.subject,
        "ranks": finding.ranks,
        "nodes": finding.nodes,
        "group": finding.group,
        "cause": finding.cause,
        "pattern": finding.pattern,
        "headline": finding.headline,
        "figures": finding.figures,
        "why": finding.why,
        "also": finding.also,
        "cost": finding.cost,
        "sentence": finding.sentence,
        "suggestion": finding.suggestion,
        "since_step": finding.since_step,
        "slowdown_ratio": _finite(finding.slowdown_ratio),
        "run_slowdown_ratio": _finite(finding.run_slowdown_ratio),
        "evidence": {name: float(value) for name, value in finding.evidence.items() if math.isfinite(value)},
        "details": dict(finding.details),
        "lines": finding.lines,
    }


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _describe_difference(before: Incident, after: Incident) -> str:
    """Describe what changed, for users; empty when only numbers have."""
    pairs = (
        ("", before.subject, after.subject),
        ("cause ", before.cause, after.cause),
        ("pattern ", before.pattern, after.pattern),
    )
    return ", ".join(f"{name}{old} -> {new}" for name, old, new in pairs if old != new)
