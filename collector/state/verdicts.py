"""The findings of one run over time: opened when a detector gives them, kept up to date, merged, charged, closed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from rankscope.collector.detect.finding import Abstain, Finding
from rankscope.collector.detect.series import Floats, Ints, StepSeries
from rankscope.collector.detect.view import Candidate, Detector, JobView
from rankscope.collector.state.effects import CloseFinding, JobEffect, OpenFinding, UpdateFinding
from rankscope.collector.state.snapshot import LostSeconds
from rankscope.collector.turns import go_on
from rankscope.measure.units import ns_to_s


@dataclass(slots=True)
class _Open:
    """A finding that holds at the moment. `charged_through` is the last step whose cost has been added up."""

    finding: Finding
    charged_through: int
    lost_rank_seconds: float = 0.0


class Verdicts:
    """Written by JobState only."""

    def __init__(self, run: str, detectors: Sequence[Detector], findings_max: int) -> None:
        self._run = run
        self._detectors = detectors
        self._findings_max = findings_max
        self._opened = 0
        self._open: list[_Open] = []
        self._closed: list[Finding] = []
        self._lost: dict[tuple[int | None, str], float] = {}
        self.charged: list[tuple[Ints, Floats]] = []
        """The steps that the last look has charged to each finding, and what each lost in ns."""
        self.abstained: dict[str, str] = {}
        """Why a detector gives no verdict, by the first of its kinds."""

    @property
    def open_findings(self) -> tuple[Finding, ...]:
        """Those that hold now, in the order of their ranks."""
        return tuple(sorted((one.finding for one in self._open), key=lambda finding: (finding.ranks, finding.number)))

    @property
    def closed_findings(self) -> tuple[Finding, ...]:
        """Those that no longer hold, as they were last."""
        return tuple(self._closed)

    @property
    def lost(self) -> tuple[LostSeconds, ...]:
        """What has been lost so far, by rank and cause."""
        by_name = sorted(self._lost.items(), key=lambda item: (item[0][0] is None, item[0][0] or 0, item[0][1]))
        return tuple(LostSeconds(rank, cause, lost_s) for (rank, cause), lost_s in by_name)

    @property
    def opened(self) -> int:
        """How many there have been."""
        return self._opened

    def restore(self, opened: int, findings: Sequence[Finding], lost: Sequence[LostSeconds]) -> None:
        """Go on where a collector stood that is no more. Findings that were open then are over: those that still hold
        are found anew, under another number.
        """
        self._opened = opened
        self._closed = list(findings)[-self._findings_max :]
        self._lost = {(one.rank, one.cause): one.lost_rank_seconds for one in lost}

    def look(self, view: JobView, rest: Callable[[], None] = go_on) -> list[JobEffect]:
        """Ask every detector, and say what has changed. `rest` is called between any two of them."""
        effects: list[JobEffect] = []
        self.charged.clear()
        for detector in self._detectors:
            found = detector.find(view, [one.finding for one in self._open])
            rest()
            kind = min(detector.kinds)
            self.abstained.pop(kind, None)
            if isinstance(found, Abstain):
                self.abstained[kind] = found.reason
                continue
            given = {id(one) for candidate in found for one in self._take(candidate, view.series, effects)}
            left = [one for one in self._open if one.finding.kind in detector.kinds and id(one) not in given]
            known = [one.finding for one in self._open]
            effects += [self._close(one, "passed") for one in left if detector.has_passed(view, one.finding, known)]
        return effects

    def close_all(self, reason: str) -> list[JobEffect]:
        """The run, or an attempt of it, is over."""
        return [self._close(one, reason) for one in list(self._open)]

    def _take(self, candidate: Candidate, series: StepSeries, effects: list[JobEffect]) -> list[_Open]:
        """Open a finding, or bring the open one up to date; others that it takes in are closed."""
        finding = candidate.finding
        same = [one for one in self._open if one.finding.is_about_the_same(finding)]
        if not same:
            self._opened += 1
            since = finding.since_step if finding.since_step is not None else _last_step(series) + 1
            same = [_Open(msgspec.structs.replace(finding, number=self._opened), since - 1)]
            self._open += same
            effects.append(OpenFinding(self._run, same[0].finding))
        kept, *merged = same
        effects += [self._merge(one, kept.finding.number) for one in merged]
        kept.lost_rank_seconds += sum(one.lost_rank_seconds for one in merged)
        before = kept.finding
        self._charge(kept, finding, candidate.lost_ns, series)
        lost_s = kept.lost_rank_seconds if candidate.lost_ns is not None else None
        kept.finding = msgspec.structs.replace(finding, number=before.number, lost_rank_seconds=lost_s)
        if _essence(kept.finding) != _essence(before):
            effects.append(UpdateFinding(self._run, kept.finding))
        return [kept]

    def _charge(self, one: _Open, finding: Finding, lost_ns: Floats | None, series: StepSeries) -> None:
        """What is lost is known of the steps whose waiting was measured: each stands for those before it that were not,
        back to the last one charged.
        """
        if lost_ns is None:
            return
        rows = (series.steps > one.charged_through) & ~np.isnan(lost_ns)
        steps = series.steps[rows]
        charged_ns = lost_ns[rows] * np.diff(steps, prepend=one.charged_through)
        self.charged.append((steps, charged_ns))
        lost_s = ns_to_s(float(charged_ns.sum())) * len(series.ranks)
        one.charged_through = int(steps[-1]) if len(steps) else one.charged_through
        one.lost_rank_seconds += lost_s
        # Of a group's links it is not known that it is those of one of its ranks, unless only one is named.
        rank = None if finding.group is not None and len(finding.ranks) > 1 else finding.rank
        key = (rank, finding.cause)
        self._lost[key] = self._lost.get(key, 0.0) + lost_s

    def _merge(self, one: _Open, into: int) -> CloseFinding:
        return self._close(one, f"part of finding {into}")._replace(merged_into=into)

    def _close(self, one: _Open, reason: str) -> CloseFinding:
        self._open.remove(one)
        self._closed = [*self._closed, one.finding][-self._findings_max :]
        return CloseFinding(self._run, one.finding, reason)


def _essence(finding: Finding) -> tuple[object, ...]:
    """What people are told again when it changes."""
    return finding.ranks, finding.nodes, finding.cause, finding.severity, finding.pattern


def _last_step(series: StepSeries) -> int:
    return int(series.steps[-1]) if len(series.steps) else -1
