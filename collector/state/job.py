"""One run: the only writer of its state. `handle(event)` returns what the world should do; nothing here does it.

A run goes through *attempts*: an elastic restart begins a new one, in which steps count from 0 again. The lives of the
attempts before are kept as a count only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np

from rankscope.collector.config import CollectorConfig
from rankscope.collector.detect.cost import cost_of
from rankscope.collector.detect.finding import Abstain, Finding
from rankscope.collector.detect.peers import find_peers
from rankscope.collector.detect.root_cause import Samples, find_cause
from rankscope.collector.detect.sentence import write_sentence
from rankscope.collector.detect.stragglers import (
    Slow,
    StepSeries,
    Thresholds,
    find_excess,
    find_stragglers,
    has_recovered,
    slowdown_ratio,
)
from rankscope.collector.state.effects import AskClock, CloseFinding, JobEffect, OpenFinding
from rankscope.collector.state.events import (
    ClockSampled,
    DuplicateSeen,
    EndSeen,
    GoodbyeAdmitted,
    JobEvent,
    ProcessGone,
    RankJoined,
    ReportAdmitted,
    Tick,
    UnresponsiveSeen,
)
from rankscope.collector.state.rank import RankState
from rankscope.collector.state.snapshot import LostSeconds, RankSnapshot, RunSnapshot
from rankscope.collector.state.window import StepWindow, median_of_last, medians
from rankscope.measure.identity import RankIdentity
from rankscope.measure.units import s_to_ns

SKIP_STEPS = 3
"""The first steps compile, allocate and fill caches; they are nobody's slowness."""


@dataclass(slots=True)
class _Open:
    """A finding that holds at the moment. `charged_through` is the last step whose cost has been added up."""

    finding: Finding
    charged_through: int
    lost_rank_seconds: float = 0.0


@dataclass(slots=True)
class _Attempt:
    """What is forgotten when an elastic restart begins a new attempt."""

    restart_count: int
    world_size: int
    window: StepWindow
    ranks: dict[int, RankState] = field(default_factory=dict)
    open: dict[int, _Open] = field(default_factory=dict)
    abstained: str | None = "no rank has reported yet"
    slowdowns: dict[int, float] = field(default_factory=dict)
    run_slowdown_ratio: float | None = None
    series: StepSeries | None = None


class JobState:
    """The truth about one run."""

    def __init__(self, run: str, config: CollectorConfig) -> None:
        self.run = run
        self._config = config
        self._thresholds = Thresholds(
            steps=config.detect_steps,
            steps_min=config.detect_steps_min,
            slowdown_ratio_min=config.slowdown_ratio_min,
            slowdown_close_ratio=config.slowdown_close_ratio,
            robust_z_min=config.robust_z_min,
            persistence_ratio=config.persistence_ratio,
        )
        self._attempt: _Attempt | None = None
        self._rank_of_boot: dict[str, int] = {}
        self._former_boots: frozenset[str] = frozenset()
        self._group_sizes: dict[str, int] = {}
        self._closed: list[Finding] = []
        self._lost: dict[tuple[int, str], float] = {}
        self.last_change_job_ns = 0

    # -- events -------------------------------------------------------------------------------------------------------

    def handle(self, event: JobEvent) -> list[JobEffect]:
        """Take an event in. Unknown lives are ignored: they belong to an attempt that is over."""
        match event:
            case RankJoined():
                self._join(event)
            case Tick():
                return self._tick(event)
            case _:
                rank = self._life(event.boot_id)
                if rank is not None:
                    self._handle_life(rank, event)
        return []

    def live_identities(self) -> list[RankIdentity]:
        """The lives that have not ended, to be looked for on this machine."""
        return [rank.identity for rank in self._ranks().values() if rank.is_live or rank.ended == "silent"]

    @property
    def is_over(self) -> bool:
        """Whether every rank of the run has joined and ended."""
        attempt = self._attempt
        if attempt is None or len(attempt.ranks) < attempt.world_size:
            return False
        return not any(rank.is_live or rank.ended == "silent" for rank in attempt.ranks.values())

    @property
    def has_live_ranks(self) -> bool:
        """Whether any rank still reports."""
        return any(rank.is_live for rank in self._ranks().values())

    def _ranks(self) -> Mapping[int, RankState]:
        return self._attempt.ranks if self._attempt is not None else {}

    def _life(self, boot_id: str) -> RankState | None:
        rank = self._ranks().get(self._rank_of_boot.get(boot_id, -1))
        return rank if rank is not None and rank.identity.boot_id == boot_id else None

    def _join(self, event: RankJoined) -> None:
        """A life says Hello. A life of an attempt that is over is not taken in again: it may be slow to die."""
        identity = event.hello.identity
        attempt = self._attempt
        if identity.boot_id in self._former_boots:
            return
        if attempt is not None and identity.restart_count < attempt.restart_count:
            return
        present = attempt.ranks.get(identity.rank) if attempt is not None else None
        if present is not None and present.identity.boot_id == identity.boot_id:
            return
        # torchrun counts a restart only where a rank failed: on other nodes all ranks begin a new life uncounted.
        if attempt is None or identity.restart_count > attempt.restart_count or present is not None:
            attempt = self._begin_attempt(identity)
        if identity.rank < attempt.world_size:
            attempt.ranks[identity.rank] = RankState(event.hello, event.now_job_ns)
            self._rank_of_boot[identity.boot_id] = identity.rank
            self.last_change_job_ns = event.now_job_ns

    def _begin_attempt(self, identity: RankIdentity) -> _Attempt:
        self._close_all()
        self._former_boots = frozenset(self._rank_of_boot)
        self._rank_of_boot.clear()
        window = StepWindow(self._config.steps_kept, identity.world_size)
        self._attempt = _Attempt(identity.restart_count, identity.world_size, window)
        return self._attempt

    def _handle_life(self, rank: RankState, event: JobEvent) -> None:
        match event:
            case ReportAdmitted():
                self._take(rank, event)
            case DuplicateSeen():
                rank.duplicates += 1
            case GoodbyeAdmitted():
                rank.count_admitted(event.goodbye.sequence)
                rank.vitals.take_goodbye(event.goodbye, event.now_job_ns)
                self.last_change_job_ns = event.now_job_ns
            case ClockSampled():
                rank.clock.add(event.sent_job_ns, event.host_ns, event.received_job_ns)
            case ProcessGone() if rank.is_live or rank.ended == "silent":
                rank.vitals.lose_process(event.now_job_ns)
            case EndSeen():
                rank.vitals.take_end(event.seen, rank.clock, event.now_job_ns)
                self.last_change_job_ns = event.now_job_ns
            case UnresponsiveSeen():
                # Its process lives, so it is not silent.
                rank.last_seen_job_ns = event.now_job_ns
                rank.vitals.take_unresponsive(event.seen)
            case _:
                pass

    def _take(self, rank: RankState, event: ReportAdmitted) -> None:
        attempt = self._attempt
        if attempt is None:
            return
        report, number = event.report, rank.identity.rank
        self.last_change_job_ns = event.now_job_ns
        rank.take(report, event.now_job_ns, event.now_wall_s)
        for group in report.groups or ():
            self._group_sizes[group.label] = len(group.ranks)
            attempt.window.learn_group(group.label, len(group.ranks))
        rank.records_late += attempt.window.add_steps(number, report.steps)
        if report.steps.row_count:
            rank.last_step = int(report.steps.column("step").max())
        attempt.window.add_collectives(number, report.collectives)
        for first_step, last_step in report.covered_steps:
            for kind in attempt.window.cover(number, first_step, last_step):
                attempt.ranks[kind.rank].add_kind(kind)

    # -- the tick -----------------------------------------------------------------------------------------------------

    def _tick(self, tick: Tick) -> list[JobEffect]:
        attempt = self._attempt
        if attempt is None:
            return []
        effects: list[JobEffect] = []
        silent_ns = s_to_ns(self._config.rank_silent_s)
        for rank in attempt.ranks.values():
            if rank.is_live and tick.now_job_ns - rank.last_seen_job_ns > silent_ns:
                rank.vitals.fall_silent()
            if rank.is_live and tick.now_job_ns >= rank.next_ping_job_ns:
                rank.next_ping_job_ns = tick.now_job_ns + s_to_ns(self._config.clock_ping_s)
                effects.append(AskClock(rank.identity.boot_id))
        return effects + self._detect(attempt)

    def _detect(self, attempt: _Attempt) -> list[JobEffect]:
        ranks = tuple(sorted(attempt.ranks))
        if len(ranks) < attempt.world_size:
            missing = attempt.world_size - len(ranks)
            attempt.abstained = f"{missing} of {attempt.world_size} ranks have not been heard of"
            return []
        series = attempt.window.series(ranks, skip_steps=SKIP_STEPS)
        attempt.series = series
        peers = {rank: find_peers(rank, attempt.window.signatures, ranks) for rank in ranks}
        verdict = find_stragglers(series, peers, self._thresholds)
        if isinstance(verdict, Abstain):
            attempt.abstained = verdict.reason
            return []
        attempt.abstained = None
        excess = find_excess(series, peers)
        for rank in ranks:
            ratio = slowdown_ratio(excess[rank], self._config.detect_steps)
            if ratio is not None:
                attempt.slowdowns[rank] = ratio
        effects = self._open_or_update(attempt, series, verdict)
        for rank in [rank for rank in attempt.open if has_recovered(excess[rank], self._thresholds)]:
            effects.append(CloseFinding(self.run, self._close(attempt, rank)))
        ratios = [found.finding.job_slowdown_ratio or 1.0 for found in attempt.open.values()]
        attempt.run_slowdown_ratio = max(ratios, default=1.0)
        return effects

    def _open_or_update(self, attempt: _Attempt, series: StepSeries, slow_ranks: tuple[Slow, ...]) -> list[JobEffect]:
        effects: list[JobEffect] = []
        for slow in slow_ranks:
            known = attempt.open.get(slow.rank)
            if known is None:
                known = _Open(self._describe(attempt, series, slow, 0.0), slow.since_step - 1)
                attempt.open[slow.rank] = known
                effects.append(OpenFinding(self.run, known.finding))
            # The more steps on either side, the surer the change; once it has left the window, what was found stands.
            settled = slow if slow.change_is_seen else slow._replace(since_step=known.finding.since_step)
            lost = cost_of(settled, series, known.charged_through + 1).lost_rank_seconds
            known.charged_through = _last_known_step(series, known.charged_through)
            known.lost_rank_seconds += lost
            known.finding = self._describe(attempt, series, settled, known.lost_rank_seconds)
            key = (slow.rank, known.finding.cause)
            self._lost[key] = self._lost.get(key, 0.0) + lost
        return effects

    def _describe(self, attempt: _Attempt, series: StepSeries, slow: Slow, lost_rank_seconds: float) -> Finding:
        samples = Samples(
            breakdowns={number: tuple(rank.breakdowns) for number, rank in attempt.ranks.items()},
            gc_pauses={number: tuple(rank.gc_pauses) for number, rank in attempt.ranks.items()},
            devices={number: rank.devices for number, rank in attempt.ranks.items() if rank.devices},
        )
        cause = find_cause(slow, series, samples)
        cost = cost_of(slow, series, slow.since_step)
        return Finding(
            kind="straggler",
            rank=slow.rank,
            since_step=slow.since_step,
            slowdown_ratio=slow.slowdown_ratio,
            cause=cause.name,
            sentence=write_sentence(slow, cause, cost, series, attempt.ranks[slow.rank].identity.node),
            job_slowdown_ratio=cost.job_slowdown_ratio,
            lost_rank_seconds=lost_rank_seconds,
            evidence={
                **cause.evidence,
                "self_ns": slow.self_ns,
                "peers_self_ns": slow.peers_self_ns,
                "robust_z": slow.robust_z,
                "persistence_ratio": slow.persistence,
                "steps_looked_at": float(slow.steps_looked_at),
            },
        )

    def _close(self, attempt: _Attempt, rank: int) -> Finding:
        finding = attempt.open.pop(rank).finding
        self._closed = [*self._closed, finding][-self._config.findings_max :]
        return finding

    def _close_all(self) -> None:
        if self._attempt is not None:
            for rank in list(self._attempt.open):
                self._close(self._attempt, rank)

    # -- the picture --------------------------------------------------------------------------------------------------

    def snapshot(self, now_job_ns: int) -> RunSnapshot:
        """The immutable picture of the run."""
        attempt = self._attempt
        if attempt is None:
            return RunSnapshot(run=self.run, world_size=0, restart_count=0, ranks=())
        open_findings = tuple(found.finding for _, found in sorted(attempt.open.items()))
        return RunSnapshot(
            run=self.run,
            world_size=attempt.world_size,
            restart_count=attempt.restart_count,
            ranks=tuple(self._rank_snapshot(attempt, number, now_job_ns) for number in sorted(attempt.ranks)),
            open_findings=open_findings,
            findings=(*self._closed, *open_findings),
            lost=tuple(LostSeconds(rank, cause, lost) for (rank, cause), lost in sorted(self._lost.items())),
            abstained=attempt.abstained,
            run_slowdown_ratio=attempt.run_slowdown_ratio,
        )

    def _rank_snapshot(self, attempt: _Attempt, number: int, now_job_ns: int) -> RankSnapshot:
        picture = attempt.ranks[number].snapshot(now_job_ns, self._group_sizes)
        series, steps = attempt.series, self._config.detect_steps
        if series is None or number not in series.ranks:
            return picture
        column = series.ranks.index(number)
        return msgspec.structs.replace(
            picture,
            step_ns_median=median_of_last(series.step_ns[:, column], steps),
            phases_ns_median=medians(series.phases_ns, column, steps),
            self_ns_median=median_of_last(series.self_ns[:, column], steps),
            slowdown_ratio=attempt.slowdowns.get(number),
        )


def _last_known_step(series: StepSeries, before: int) -> int:
    """The last step whose self time is known for all ranks."""
    known = series.steps[~np.isnan(series.self_ns).any(axis=1)]
    return int(known[-1]) if len(known) else before
