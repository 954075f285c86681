"""Keep the findings of one run: opened, updated, merged, charged, closed. Pure.

A detector keeps nothing: in each pass it says what it finds now. To show that as it is would be simple. But a rank that
is slow for half a minute at a time would be new each time, with another begin and cost, and an alert that waits a
minute would never fire. So a candidate goes on with the open finding about the same (`match_open`); one that is not
found again is closed only once its detector says that it has passed; and each step is charged once.

Example: rank 3 is slow for 30 s every two minutes. Its first finding passes, and is closed. Found again within
RECURS_NS it has the begin of the first; when that passes it is paused, and closed after RECURS_NS without slowness.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from rankscope.collector.detect.finding import (
    ENDED,
    FINISHED,
    HANG,
    STRAGGLER,
    WENT_ON,
    Finding,
    close_finding,
    match_open,
    order_findings,
    reopen_finding,
)
from rankscope.collector.detect.finding_memory import NO_MEMORY, FindingMemory, forget, recall, remember
from rankscope.collector.detect.run_rules.batch_imbalance import UNEVEN_WORK
from rankscope.collector.detect.sampled_lines import SampledLines
from rankscope.collector.detect.suggestions import UNATTRIBUTED, fill_commands
from rankscope.collector.detect.view import Candidate, Detected, RunView, SingleLosses
from rankscope.collector.invariants import ImpossibleNumbers, require
from rankscope.collector.run_ids import read_run_name
from rankscope.collector.runs.clock_alignment import Clocks
from rankscope.collector.runs.events import CloseFinding, FindingOpened, RunEffect, UpdateFinding
from rankscope.collector.runs.run_end import RunEnd
from rankscope.collector.runs.saved_memories import KeptMemory
from rankscope.collector.runs.snapshot import LostSeconds
from rankscope.collector.runs.step_clock import StepClock
from rankscope.collector.steps.step_series import Floats, Ints, StepSeries
from rankscope.measure.units import NS_PER_S, ns_to_s

PASSED: Final = "passed"
STRICTER: Final = "less than the threshold that was set"
"""It may hold, and is no finding by the settings of now."""
ADJUSTED_S_MAX: Final = 1.0
"""By how much a wall clock that is adjusted moves a time that was said."""
LOSS_RATIO_MAX: Final = 1.01
"""A loss may exceed the step it is of by this ratio, for times that are kept in 32 bits, and is that step then."""
SPREAD_MAX: Final = 2**17
"""Steps, last ones first, that are charged one by one: more lie between no two profiler windows."""
KNOWN_LAST: Final = 8
"""Steps whose loss is known that tell that of those after them, once the run is over."""
NO_REPORTS_YET: Final = "no rank has reported yet"
RECURS_NS: Final = 300 * NS_PER_S
"""A straggler that is found again within this time after it had passed comes and goes. It is kept open until it has not
held for as long: an alert that waits a minute (`for: 1m`) would never fire on one that is slow for 30 s at a time."""


@dataclass(slots=True)
class _Open:
    """A finding that holds. `charged_through` is the last step whose cost has been added, `charged_ns` what it was
    charged since the begin that it states. It began at `began_collector_ns`, and was seen last at `seen_collector_ns`,
    after `seen_step`. `recurs`: it had passed and was found again soon; since `passed_collector_ns` it does not hold,
    None while it does. `lines` is what samples have shown about it; `memory` what its detector keeps of it.
    """

    finding: Finding
    charged_through: int
    memory: FindingMemory = NO_MEMORY
    lost_rank_seconds: float = 0.0
    charged_ns: float = 0.0
    began_collector_ns: int = 0
    seen_collector_ns: int = 0
    seen_step: int | None = None
    recurs: bool = False
    passed_collector_ns: int | None = None
    lines: SampledLines | None = None

    def may_pass(self, now_collector_ns: int) -> bool:
        """Return whether it may be closed, since it has passed. If not, it is paused: detection gets it no more, and
        finds it anew.
        """
        if not self.recurs:
            return True
        self.passed_collector_ns = now_collector_ns
        self.finding = msgspec.structs.replace(self.finding, is_paused=True)
        return False

    def has_expired(self, now_collector_ns: int) -> bool:
        """Return whether it has been paused for so long that it is closed."""
        return self.passed_collector_ns is not None and now_collector_ns - self.passed_collector_ns >= RECURS_NS

    def describe(self, finding: Finding) -> Finding:
        """Return the present form of it: of one that comes and goes with the begin of the first time."""
        if not self.recurs:
            return finding
        known = [one for one in (finding, self.finding) if one.since_step is not None]
        first = min(known, key=lambda one: one.since_step or 0, default=finding)
        return _begin_with(finding, first)

    def see(self, view: RunView) -> None:
        """Record that it still holds: a hang now, anything else in the steps that are known by now."""
        step = _last_step(view.series) if len(view.series.steps) else None
        if self.finding.kind == HANG or not self.seen_collector_ns or step != self.seen_step:
            self.seen_collector_ns = view.now_collector_ns
        self.seen_step = step
        self.passed_collector_ns = None

    def close(self, others: "Sequence[_Open]") -> Finding:
        """Return the finding in its closed form. That no single rank was slow held until one of the `others` began."""
        began_wall_s, since_step = self.finding.since_wall_s, self.finding.since_step
        until_step, until_ns = self.seen_step, self.seen_collector_ns
        if self.finding.kind == UNEVEN_WORK and since_step is not None and until_step is not None:
            for other in others:
                step = other.finding.since_step
                if other.finding.kind == STRAGGLER and step is not None and since_step < step <= until_step:
                    until_step, until_ns = step - 1, other.began_collector_ns
        lasted_s = ns_to_s(max(0, until_ns - self.began_collector_ns))
        return close_finding(
            self.finding,
            until_step=until_step,
            until_wall_s=None if began_wall_s is None else began_wall_s + lasted_s,
            lasted_s=lasted_s,
        )


class RunFindings:
    """The findings of one run. Written by RunState only."""

    def __init__(self, run: str, findings_max: int) -> None:
        self._run = run
        self._findings_max = findings_max
        self._opened = 0
        self._attempt_from = 1
        self._open: list[_Open] = []
        self._closed: list[Finding] = []
        self._lost: dict[tuple[int | None, str], float] = {}
        self._passed: list[tuple[Finding, int, float]] = []
        """Stragglers that have passed, when by the collector's clock, and what they were charged in ns; at most
        `findings_max`."""
        self._remembered: list[tuple[Finding, KeptMemory]] = []
        """Findings that were open at an earlier collector, as it has closed them, and are neither found anew nor have
        passed."""
        self._remembered_until_ns: int | None = None
        self._step_clock = StepClock()
        self._charged_through: dict[tuple[int, ...], int] = {}
        """The last step of this attempt that was charged to a finding about these ranks."""
        self.charged: list[tuple[Ints, Floats]] = []
        """The steps that the last detection pass charged to each finding, and what each lost in ns."""
        self.impossible = ImpossibleNumbers()
        """Losses longer than the step that lost them, and numbers of findings that cannot be."""
        self.abstained: dict[str, str] = {}
        """Why a detector gives no verdict, by each of its kinds."""
        self._clocks: Clocks | None = None
        self._has_had_pass = False
        """Whether a detection pass has run in this attempt."""

    @property
    def open_findings(self) -> tuple[Finding, ...]:
        """Findings that hold now, in the order of all views."""
        return tuple(order_findings(one.finding for one in self._open))

    @property
    def held(self) -> tuple[Finding, ...]:
        """Findings that hold now, in the order of their numbers: the input of the next detection pass. Without those
        that are paused, and with what detectors remember of them; also those that were open at an earlier collector.
        """
        return (
            *(remember(reopen_finding(one), kept.memory) for one, kept in self._remembered),
            *(remember(one.finding, one.memory) for one in self._open if one.passed_collector_ns is None),
        )

    @property
    def kept_memories(self) -> Mapping[int, KeptMemory]:
        """What is saved for the next collector of findings of which their detectors remember something."""
        remembered = {finding.number: kept for finding, kept in self._remembered}
        known = [one for one in self._open if one.memory != NO_MEMORY]
        return {**remembered, **{one.finding.number: KeptMemory(one.memory, one.charged_ns) for one in known}}

    @property
    def closed_findings(self) -> tuple[Finding, ...]:
        """Findings that no longer hold, in their last form."""
        return tuple(self._closed)

    @property
    def lost(self) -> tuple[LostSeconds, ...]:
        """The cost so far, by rank and cause."""
        by_name = sorted(self._lost.items(), key=lambda item: (item[0][0] is None, item[0][0] or 0, item[0][1]))
        return tuple(LostSeconds(rank, cause, lost_s) for (rank, cause), lost_s in by_name)

    @property
    def why_no_verdict(self) -> str | None:
        """Why detection gives no verdict on the ranks; None when it does."""
        return self.abstained.get(STRAGGLER, None if self._has_had_pass else NO_REPORTS_YET)

    @property
    def opened(self) -> int:
        """How many there have been."""
        return self._opened

    @property
    def findings_as_closed(self) -> tuple[Finding, ...]:
        """All of them as if closed now: what is saved for the next collector, which finds anew what still holds."""
        return (*self._closed, *order_findings(one.close(self._open) for one in self._open))

    def restore(
        self,
        opened: int,
        findings: Sequence[Finding],
        lost: Sequence[LostSeconds],
        *,
        attempts: int = 0,
        memories: Mapping[int, KeptMemory] = {},
    ) -> None:
        """Restore what an earlier collector saved. Findings that were open then are closed: those that still hold are
        found anew, under another number, by what detectors remember of them (`memories`, by number) with the begin that
        they had. Which ones are of the present attempt is known only of the first attempt.
        """
        self._opened = opened
        self._attempt_from = opened + 1 if attempts else 1
        self._closed = list(findings)[-self._findings_max :]
        self._lost = {(one.rank, one.cause): one.lost_rank_seconds for one in lost}
        self._remembered = [(one, memories[one.number]) for one in self._closed if one.number in memories]

    def restore_verdict(self, abstained: Mapping[str, str]) -> None:
        """Restore why there was no verdict on a run that had ended at an earlier collector."""
        self.abstained, self._has_had_pass = dict(abstained), True

    def apply(self, found: Detected, clocks: Clocks | None = None) -> list[RunEffect]:
        """Apply the results of a detection pass; return what has changed. Without `clocks` it is not known when a
        finding began, in seconds since 1970.
        """
        self._clocks = clocks
        effects: list[RunEffect] = []
        self.charged.clear()
        self._has_had_pass = True
        now_ns = found.view.now_collector_ns
        self._step_clock.see(found.view)
        if self._remembered_until_ns is None:
            self._remembered_until_ns = now_ns + RECURS_NS
        for result in found.results:
            for kind in sorted(result.kinds):
                self.abstained.pop(kind, None)
            if result.abstained is not None:
                self.abstained.update(dict.fromkeys(sorted(result.kinds), result.abstained))
                continue
            for candidate in result.candidates:
                if not self._is_impossible(candidate.finding):
                    self._open_or_update(candidate, found.view, effects)
            reasons = dict.fromkeys(result.passed, PASSED)
            reasons |= {number: f"can no longer be judged: {why}" for number, why in result.unjudged}
            reasons |= dict.fromkeys(result.dropped, STRICTER)
            self._remembered = [one for one in self._remembered if one[0].number not in reasons]
            over = [(one, reasons[one.finding.number]) for one in self._open if one.finding.number in reasons]
            closing = [(one, reason) for one, reason in over if reason != PASSED or one.may_pass(now_ns)]
            effects += [self._close(one, reason, now_ns) for one, reason in closing]
        effects += [self._close(one, PASSED) for one in list(self._open) if one.has_expired(now_ns)]
        if now_ns >= self._remembered_until_ns:
            self._remembered.clear()
        return effects

    def set_lines(self, number: int, lines: SampledLines) -> None:
        """Add to a finding, also to one that has just been closed, what samples have shown about it."""
        for one in self._open:
            if one.finding.number == number:
                one.lines = lines
                one.finding = msgspec.structs.replace(one.finding, lines=lines)
        self._closed = [
            msgspec.structs.replace(one, lines=lines) if one.number == number else one for one in self._closed
        ]

    def validate(self) -> None:
        """Raise InvariantError where an invariant does not hold; tests call it after events."""
        held = [one.finding for one in self._open]
        numbers = [finding.number for finding in held]
        require(numbers == sorted(set(numbers)), "open findings are not in the order of their numbers")
        require(all(0 < number <= self._opened for number in numbers), "an open finding has no number that was given")
        require(len(self._closed) <= self._findings_max, "too many closed findings are kept")
        closed = {finding.number for finding in self._closed}
        require(not closed.intersection(numbers), "a finding is open and closed")
        require(max(closed, default=0) <= self._opened, "a closed finding has no number that was given")
        pairs = itertools.combinations(held, 2)
        require(not any(one.is_about_the_same(other) for one, other in pairs), "two open findings are about the same")
        anew = itertools.product((one for one, _ in self._remembered), held)
        require(not any(one.is_about_the_same(other) for one, other in anew), "one remembered that was found anew")
        require(all(lost_s >= 0 for lost_s in self._lost.values()), "a negative cost")
        require(all(one.lost_rank_seconds >= 0 for one in self._open), "a finding with a negative cost")
        require(self._attempt_from <= self._opened + 1, "the attempt begins after the next finding")

    def close_all(self, reason: str) -> list[RunEffect]:
        """Close all open findings."""
        return [self._close(one, reason) for one in list(self._open)]

    def begin_attempt(self) -> list[RunEffect]:
        """Close what is open: another attempt begins, in which steps count anew."""
        self._attempt_from = self._opened + 1
        self._has_had_pass = False
        self._passed.clear()
        self._remembered.clear()
        self._step_clock = StepClock()
        self._charged_through.clear()
        return self.close_all("restarted")

    def close_hangs(self, reason: str) -> list[RunEffect]:
        """Close hangs when the run has ended. A detection pass would say that they have passed, since no rank waits any
        more.
        """
        return [self._close(one, reason) for one in list(self._open) if one.finding.kind == HANG]

    def conclude(
        self, end: RunEnd, last_step: int | None, reason: str, effects: Sequence[RunEffect] = ()
    ) -> list[RunEffect]:
        """Close what is open when the run is over, and add to each hang of this attempt how it ended. `last_step` is
        the last of the attempt; `effects` are those of the last detection pass, which get the outcome too.
        """
        effects = [*effects, *self.close_all(reason)]
        closed_now = {one.finding.number for one in effects if isinstance(one, CloseFinding) and one.reason == reason}
        self._closed = [
            _add_outcome(finding, end, last_step, has_lasted=finding.number in closed_now)
            if finding.number >= self._attempt_from else finding
            for finding in self._closed
        ]  # fmt: skip
        by_number = {finding.number: finding for finding in self._closed}
        return [
            effect._replace(finding=by_number.get(effect.finding.number, effect.finding))
            if isinstance(effect, CloseFinding) else effect
            for effect in effects
        ]  # fmt: skip

    def _open_or_update(self, candidate: Candidate, view: RunView, effects: list[RunEffect]) -> None:
        """Open a finding, or update the open one; others that it merges are closed."""
        finding, memory = forget(candidate.finding), recall(candidate.finding)
        suggestion = fill_commands(finding.suggestion, read_run_name(self._run), finding.ranks)
        if suggestion != finding.suggestion:
            finding = msgspec.structs.replace(finding, suggestion=suggestion)
        kept, merged = match_open(self._open, finding)
        if kept is None:
            kept = self._open_new(finding, view)
            effects.append(FindingOpened(self._run, kept.finding))
        self._remembered = [one for one in self._remembered if not one[0].is_about_the_same(finding)]
        effects += [self._merge(one, kept.finding.number) for one in merged]
        kept.lost_rank_seconds += sum(one.lost_rank_seconds for one in merged)
        kept.charged_ns += sum(one.charged_ns for one in merged)
        kept.began_collector_ns = min(one.began_collector_ns for one in (kept, *merged))
        kept.memory = memory
        kept.see(view)
        before = kept.finding
        self._charge(kept, finding, candidate.lost_ns, view)
        lost_s = kept.lost_rank_seconds if candidate.lost_ns is not None else None
        present = kept.describe(finding)
        kept.finding = msgspec.structs.replace(
            present,
            number=before.number,
            run_slowdown_ratio=self._find_cost(kept, present, candidate.lost_ns),
            lost_rank_seconds=lost_s,
            lines=kept.lines,
            since_wall_s=self._find_wall_s(kept),
        )
        if _notified_fields(kept.finding) != _notified_fields(before):
            effects.append(UpdateFinding(self._run, kept.finding))

    def _find_cost(self, one: _Open, finding: Finding, lost_ns: Floats | SingleLosses | None) -> float | None:
        """Return the steps since the begin of a finding over the same without what it was charged, where that is of
        some steps only, or comes and goes: the steps that are kept are no more than a part of these. What single steps
        have lost is of the whole attempt as it is found.
        """
        comes_and_goes = finding.pattern == "intermittent" or one.recurs
        if finding.run_slowdown_ratio is None or not comes_and_goes or not isinstance(lost_ns, np.ndarray):
            return finding.run_slowdown_ratio
        took_ns = self._step_clock.took_ns(finding.since_step or 0)
        return took_ns / max(took_ns - one.charged_ns, 1.0) if took_ns >= 1.0 else None

    def _find_wall_s(self, one: _Open) -> float | None:
        """Return when a finding began, in seconds since 1970: as it was first said, unless one that began earlier has
        become part of it.
        """
        known = one.finding.since_wall_s
        if self._clocks is None:
            return known
        began_wall_s = self._clocks.to_wall_s(one.began_collector_ns)
        return began_wall_s if known is None or began_wall_s < known - ADJUSTED_S_MAX else known

    def _open_new(self, finding: Finding, view: RunView) -> _Open:
        self._opened += 1
        since = finding.since_step if finding.since_step is not None else _last_step(view.series) + 1
        began_collector_ns = view.now_collector_ns - _find_length_ns(finding, view, since)
        clocks, charged_through, charged_before_ns, recurs = self._clocks, since - 1, 0.0, False
        remembered = [(one, kept) for one, kept in self._remembered if one.is_about_the_same(finding)]
        for before, kept in remembered:
            charged_through = max(charged_through, before.until_step or 0)
            charged_before_ns, recurs = charged_before_ns + kept.charged_ns, recurs or before.recurs
        began_wall_s = [one.since_wall_s for one, _ in remembered if one.since_wall_s is not None]
        if began_wall_s and clocks is not None:
            began_collector_ns = clocks.to_collector_ns(min(began_wall_s))
        since_wall_s = None if clocks is None else clocks.to_wall_s(began_collector_ns)
        numbered = msgspec.structs.replace(finding, number=self._opened, since_wall_s=since_wall_s)
        earlier = [
            (before, charged_ns)
            for before, passed_ns, charged_ns in self._passed
            if view.now_collector_ns - passed_ns < RECURS_NS and finding.is_about_the_same(before)
        ]
        if earlier:
            before, charged_ns = earlier[-1]
            numbered = _continue(numbered, before)
            charged_before_ns = charged_ns if before.until_step is not None and before.until_step < since else 0.0
        self._open.append(
            _Open(
                numbered,
                charged_through,
                charged_ns=charged_before_ns,
                began_collector_ns=began_collector_ns,
                recurs=recurs or bool(earlier),
            )
        )
        return self._open[-1]

    def _charge(self, one: _Open, finding: Finding, lost_ns: Floats | SingleLosses | None, view: RunView) -> None:
        """Add the cost of new steps: of single ones as it is, else as `_spread` says."""
        if lost_ns is None:
            return
        series = view.series
        if isinstance(lost_ns, SingleLosses):
            # They are remembered for the whole attempt: an earlier finding about the rank may have been charged.
            fresh = lost_ns.steps > max(one.charged_through, self._charged_through.get(finding.ranks, -1))
            steps, charged_ns = lost_ns.steps[fresh], lost_ns.lost_ns[fresh]
        else:
            known_ns = self._without_impossible(finding, lost_ns, view)
            steps, charged_ns = _spread(
                known_ns, view, one.charged_through, is_of_some=finding.pattern == "intermittent"
            )
            if view.is_last and finding.pattern != "intermittent":
                through = int(steps[-1]) if len(steps) else one.charged_through
                later, later_ns = _spread_to_end(known_ns, view, through, finding.since_step or 0)
                steps, charged_ns = np.append(steps, later), np.append(charged_ns, later_ns)
        self.charged.append((steps, charged_ns))
        one.charged_ns += float(charged_ns.sum())
        lost_s = ns_to_s(float(charged_ns.sum())) * len(series.ranks)
        if len(steps):
            one.charged_through = int(steps[-1])
        if finding.group is None:
            through = max(one.charged_through, self._charged_through.get(finding.ranks, -1))
            self._charged_through[finding.ranks] = through
        one.lost_rank_seconds += lost_s
        # Of a group's links it is not known that it is those of one of its ranks, unless only one is named.
        rank = None if finding.group is not None and len(finding.ranks) > 1 else finding.rank
        key = (rank, finding.cause)
        self._lost[key] = self._lost.get(key, 0.0) + lost_s

    def _is_impossible(self, finding: Finding) -> bool:
        """Return whether a number of a finding cannot be, and note it: then nothing is said of it in this pass."""
        name = finding.find_impossible()
        if name:
            inputs = f"{finding.kind} of {finding.subject}: {finding.sentence} {dict(finding.evidence)}"
            self.impossible.note(name, inputs)
        return bool(name)

    def _without_impossible(self, finding: Finding, lost_ns: Floats, view: RunView) -> Floats:
        """Return what each step has lost, NaN where that is negative or more than the step, which is noted."""
        is_impossible = (lost_ns < 0) | (lost_ns > LOSS_RATIO_MAX * view.longest_ns)
        if not is_impossible.any():
            return lost_ns
        row = int(np.argmax(is_impossible))
        step, lost, longest = int(view.series.steps[row]), float(lost_ns[row]), float(view.longest_ns[row])
        inputs = f"{finding.kind} of {finding.subject}: {lost:.0f} ns lost of the {longest:.0f} ns of step {step}"
        self.impossible.note("loss", inputs, int(np.count_nonzero(is_impossible)))
        return np.where(is_impossible, np.nan, lost_ns)

    def _merge(self, one: _Open, into: int) -> CloseFinding:
        return self._close(one, f"part of finding {into}")._replace(merged_into=into)

    def _close(self, one: _Open, reason: str, passed_collector_ns: int | None = None) -> CloseFinding:
        self._open.remove(one)
        closed = one.close(self._open)
        if reason == PASSED and passed_collector_ns is not None and closed.kind == STRAGGLER:
            self._passed = [*self._passed, (closed, passed_collector_ns, one.charged_ns)][-self._findings_max :]
        self._closed = [*self._closed, closed][-self._findings_max :]
        return CloseFinding(self._run, closed, reason)


def _begin_with(finding: Finding, first: Finding) -> Finding:
    """Return a finding that comes and goes with the begin of the first time."""
    return msgspec.structs.replace(
        finding,
        since_step=first.since_step,
        since_step_min=first.since_step_min,
        since_step_max=first.since_step_max,
        since_wall_s=first.since_wall_s,
        recurs=True,
    )


def _continue(finding: Finding, before: Finding) -> Finding:
    """Return a finding that comes again with the begin of the first time, and its cause where none is known now."""
    found = _begin_with(finding, before)
    if found.cause != UNATTRIBUTED:
        return found
    return msgspec.structs.replace(found, cause=before.cause, why=before.why, suggestion=before.suggestion)


def _notified_fields(finding: Finding) -> tuple[object, ...]:
    """Return the fields whose change is announced."""
    return finding.ranks, finding.nodes, finding.cause, finding.severity, finding.pattern


def _find_length_ns(finding: Finding, view: RunView, since_step: int) -> int:
    """Return how long a new finding has lasted: a hang as it says itself, anything else over its steps, of which
    unknown ones are as long as the next known one.
    """
    if finding.kind == HANG:
        return round(finding.evidence.get("stalled_ns", 0.0))
    rows = (view.series.steps >= since_step) & ~np.isnan(view.longest_ns)
    steps = np.diff(view.series.steps[rows], prepend=since_step - 1)
    return round(float((view.longest_ns[rows] * steps).sum()))


def _spread(lost_ns: Floats, view: RunView, after_step: int, *, is_of_some: bool) -> tuple[Ints, Floats]:
    """Return the steps after that one up to the last whose loss is known, shape (m,) each, and what each is charged, in
    ns. A step whose loss is not known is taken to have lost as much as the next one that is; of a slowness of some
    steps (`is_of_some`) at most what it lasted beyond what that one has not lost, and nothing where nothing is known of
    it. Together they lost at most what they lasted. Of more than SPREAD_MAX steps the first has the charge of those
    before it.
    """
    series, longest_ns = view.series, view.longest_ns
    rows = np.flatnonzero((series.steps > after_step) & ~np.isnan(lost_ns))
    if not len(rows):
        return np.empty(0, dtype=np.int64), np.empty(0)
    known, own_ns, each_ns = series.steps[rows], longest_ns[rows], lost_ns[rows]
    steps = np.arange(max(after_step + 1, known[-1] + 1 - SPREAD_MAX), known[-1] + 1)
    place = np.searchsorted(known, steps)
    charged_ns, lasted_ns = each_ns[place], own_ns[place]
    others = np.flatnonzero((series.steps >= steps[0]) & (series.steps < known[-1]) & ~np.isnan(longest_ns))
    at = series.steps[others] - steps[0]
    lasted_ns[at] = longest_ns[others]
    if is_of_some:
        is_seen = np.isin(steps, series.steps[others])
        most_ns = np.clip(lasted_ns - (own_ns - each_ns)[place], 0.0, charged_ns)
        charged_ns = np.where(np.isin(steps, known), charged_ns, np.where(is_seen, most_ns, 0.0))
    else:
        before = steps[0] - (after_step + 1)
        charged_ns[0], lasted_ns[0] = (1 + before) * charged_ns[0], (1 + before) * lasted_ns[0]
    charged_sum, lasted_sum = np.bincount(place, charged_ns), np.bincount(place, lasted_ns)
    share = np.minimum(1.0, lasted_sum / np.maximum(charged_sum, 1.0))
    return steps, charged_ns * np.where(np.isnan(share), 1.0, share)[place]


def _spread_to_end(lost_ns: Floats, view: RunView, after_step: int, since_step: int) -> tuple[Ints, Floats]:
    """Return the steps after that one to the end of the run of which only the length is known, shape (m,), and what
    each is charged, in ns: what it lasted beyond the last known ones without their loss, at most that loss.
    """
    steps, longest_ns, is_known = view.series.steps, view.longest_ns, ~np.isnan(lost_ns)
    known = np.flatnonzero(is_known & (steps >= since_step))[-KNOWN_LAST:]
    if not len(known):
        return np.empty(0, dtype=np.int64), np.empty(0)
    rows = np.flatnonzero(~is_known & (steps > after_step) & ~np.isnan(longest_ns))
    usual_ns = np.median(longest_ns[known] - lost_ns[known])
    return steps[rows], np.clip(longest_ns[rows] - usual_ns, 0.0, np.median(lost_ns[known]))


def _add_outcome(finding: Finding, end: RunEnd, last_step: int | None, *, has_lasted: bool) -> Finding:
    """Return a hang with its outcome. `has_lasted`: the run was still stalled when it ended."""
    if finding.kind != HANG:
        return finding
    return close_finding(
        finding,
        until_step=finding.until_step,
        until_wall_s=finding.until_wall_s,
        lasted_s=finding.lasted_s,
        outcome=_find_outcome(finding.since_step, end, last_step, has_lasted=has_lasted),
    )


def _find_outcome(since_step: int | None, end: RunEnd, last_step: int | None, *, has_lasted: bool) -> str:
    """Return the outcome of a hang. The last step of a run contains the work after the training, so only another step
    after the hung one shows that the run went on. Where no step had ended yet, it hung in the first one.
    """
    hung_step = 0 if since_step is None else since_step
    if last_step is not None and last_step > hung_step:
        return WENT_ON
    if end.is_good:
        return FINISHED
    return ENDED if has_lasted and last_step != hung_step else ""


def _last_step(series: StepSeries) -> int:
    return int(series.steps[-1]) if len(series.steps) else -1
