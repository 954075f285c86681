"""Keep the state of one run, which nothing else writes. Pure: effects are returned, not carried out.

A run goes through *attempts*: an elastic restart begins a new one, in which steps count from 0 again. The ranks of
former attempts are kept as a count only. A start that is no restart of this run begins another run of the same name
(`accepts_hello`, runs.py).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from rankscope.collector.config import CollectorConfig
from rankscope.collector.detect.finding import HANG, STRAGGLER, Finding
from rankscope.collector.detect.statistics.excess import slowdown_ratios
from rankscope.collector.detect.stragglers.detector import read_usual
from rankscope.collector.detect.view import Detected, RunView
from rankscope.collector.invariants import require
from rankscope.collector.run_ids import read_run_name
from rankscope.collector.runs.attempt import Attempt, build_hang_states, find_end_of_steps, read_samples
from rankscope.collector.runs.checkpoint import SavedRank, SavedRun, SavedStory
from rankscope.collector.runs.clock_alignment import Clocks
from rankscope.collector.runs.events import (
    AskClock,
    CollectorAway,
    EndSeen,
    GoodbyeAdmitted,
    RankJoined,
    RankProcessEvent,
    ReportAdmitted,
    RunEffect,
    RunEvent,
    UpdateFinding,
    find_event_time,
)
from rankscope.collector.runs.findings import RunFindings
from rankscope.collector.runs.goodput import CarriedGoodput
from rankscope.collector.runs.heat_map import HeatMapSteps
from rankscope.collector.runs.lazy_snapshot import LazyRunSnapshot
from rankscope.collector.runs.rank import RankState
from rankscope.collector.runs.run_dump import EventLog, RunDump
from rankscope.collector.runs.run_end import RunEnd
from rankscope.collector.runs.run_ending import RunEnding
from rankscope.collector.runs.snapshot import RunSnapshot
from rankscope.collector.steps.collective_totals import (
    CollectiveCounts,
    CollectiveSnapshot,
    CollectiveSums,
    SavedCounts,
)
from rankscope.collector.steps.rank_medians import NO_MEDIANS, RankMedians
from rankscope.collector.steps.step_aggregates import PATIENCE_STEPS, StepAggregate, aggregate_steps
from rankscope.collector.steps.step_table import StepTable
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import Hello
from rankscope.measure.units import s_to_ns

NO_REPORTS_YET = "no rank has reported yet"
RUN_IS_OVER = "the run is over"
SKIP_STEPS = 3
"""The first steps compile, allocate and fill caches; detection skips them."""

ENDED_ON_PURPOSE: Final = frozenset({"finished", "stopped", "interrupted"})
"""A run all of whose ranks ended so is complete, or its user stopped it: the next start is no restart of it."""

PINGS_PER_S_MAX = 256
"""A ping and its answer cost 50 us, so this is 1 % of a core. Beyond 1,280 ranks at the default of `clock_ping_s` each
is pinged less often: of 16,384 every 64 s, in which a clock drifts by up to 6 ms; verdicts need tenths of seconds."""


class RunState:
    """State of one run. `run` is its id (run_ids.py), `name` the launcher's name for it."""

    def __init__(self, run: str, config: CollectorConfig) -> None:
        #: Id of the run. Never changes.
        self.run = run
        #: The launcher's name for it: the part of `run` before `@`. Never changes.
        self.name = read_run_name(run)
        #: Whether a later run of this name has begun. Written by Runs only; never becomes False again.
        self.is_superseded = False
        self._config = config
        #: The present attempt; None before any rank has joined, and never again.
        self._attempt: Attempt | None = None
        #: `{boot id: rank}` of the rank processes of the present attempt, also of those replaced within it.
        self._rank_of_boot: dict[str, int] = {}
        #: Boot ids of the attempt before; no other attempt is remembered. Disjoint from `_rank_of_boot`.
        self._former_boots: frozenset[str] = frozenset()
        #: All findings of the run, over its attempts.
        self._findings = RunFindings(run, config.findings_max)
        #: Time of the run by its use, over its attempts.
        self._goodput = CarriedGoodput()
        #: Attempts before the present one; only grows.
        self._attempts = 0
        #: When the first rank joined; None exactly while `_attempt` is None.
        self._begun_collector_ns: int | None = None
        #: How the run ended, while no rank is live.
        self._ending = RunEnding()
        #: When anything last changed here: a message, or that this collector restored the run.
        self.last_change_collector_ns = 0
        #: When the last message of any rank arrived, also at an earlier collector; at most `last_change_collector_ns`.
        self._last_message_collector_ns = 0
        #: Wall time of the last report, in s since 1970; None before any.
        self.last_report_wall_s: float | None = None
        #: The steps of the last detection pass; None before any.
        self.heat_map_steps: HeatMapSteps | None = None
        #: The last events, for `dump`.
        self._log = EventLog()

    # -- events --------------------------------------------------------------------------------------------------------

    def apply(self, event: RunEvent | Detected) -> list[RunEffect]:
        """Apply an event, or the results of a detection pass; return what follows. Events of unknown rank processes are
        ignored: they belong to an attempt that is over.
        """
        match event:
            case RankJoined(hello, now_collector_ns):
                self._log.record("RankJoined", hello.identity.rank, hello.identity.boot_id, now_collector_ns)
                return self._join(event)
            case Detected():
                return self._apply_detected(event)
            case CollectorAway(away_ns, now_collector_ns):
                self._log.record("CollectorAway", None, "", now_collector_ns)
                if self._attempt is not None:
                    self._attempt.excuse_absence(away_ns, now_collector_ns)
            case _:
                rank, attempt = self._find_rank(event.boot_id), self._attempt
                number = None if rank is None else rank.identity.rank
                self._log.record(type(event).__name__, number, event.boot_id, find_event_time(event))
                if rank is not None and attempt is not None:
                    self._apply_to_rank(attempt, rank, event)
        return []

    def live_identities(self, machine_id: str) -> list[RankIdentity]:
        """Return the processes on that machine that have not ended, to be checked there."""
        attempt = self._attempt
        if attempt is None:
            return []
        here = [attempt.ranks[number] for number in attempt.by_machine.get(machine_id, ())]
        return [rank.identity for rank in here if rank.ended in {None, "silent"}]

    @property
    def is_over(self) -> bool:
        """Whether every rank of the run has joined and ended; once a later run of its name has begun, whether no rank
        reports: silent ranks, and those that never joined, are not awaited any more.
        """
        attempt = self._attempt
        if attempt is None:
            return False
        if self.is_superseded:
            return not self.has_live_ranks
        if len(attempt.ranks) < attempt.world_size:
            return False
        return not any(rank.is_live or rank.ended == "silent" for rank in attempt.ranks.values())

    def has_process(self, boot_id: str) -> bool:
        """Return whether this boot id is of the present attempt or of the one before."""
        return boot_id in self._rank_of_boot or boot_id in self._former_boots

    @property
    def boot_ids(self) -> frozenset[str]:
        """The boot ids that `has_process` is true of."""
        return self._former_boots.union(self._rank_of_boot)

    @property
    def world_size(self) -> int:
        """The ranks of the present attempt; 0 before any."""
        return 0 if self._attempt is None else self._attempt.world_size

    def accepts_hello(self, hello: Hello, now_collector_ns: int) -> bool:
        """Return whether an unknown process belongs to this run, or begins another run of the same name.

        It belongs to this run while any rank reports, or where a process has only restarted its agent. After a run that
        ended on purpose it begins another one. Otherwise it is the next attempt where the launcher counts a restart, or
        where the last message of this run is at most `restart_within_s` old.
        """
        attempt = self._attempt
        if attempt is None or any(rank.is_live and not rank.is_awaited for rank in attempt.ranks.values()):
            return True
        identity, present = hello.identity, attempt.ranks.get(hello.identity.rank)
        if present is not None and present.is_continued_by(identity):
            return True
        if self._has_ended_on_purpose(attempt):
            return False
        if identity.restart_count > attempt.restart_count:
            return True
        return now_collector_ns - self._last_message_collector_ns <= s_to_ns(self._config.restart_within_s)

    def _has_ended_on_purpose(self, attempt: Attempt) -> bool:
        return self.is_over and all(rank.ended in ENDED_ON_PURPOSE for rank in attempt.ranks.values())

    @property
    def has_live_ranks(self) -> bool:
        """Whether any rank still reports."""
        return any(rank.is_live for rank in self._ranks().values())

    def _ranks(self) -> Mapping[int, RankState]:
        return self._attempt.ranks if self._attempt is not None else {}

    def _find_rank(self, boot_id: str) -> RankState | None:
        rank = self._ranks().get(self._rank_of_boot.get(boot_id, -1))
        return rank if rank is not None and rank.identity.boot_id == boot_id else None

    def _join(self, event: RankJoined) -> list[RunEffect]:
        """Add the process of a Hello. One of an attempt that is over is not added again: it may be slow to die."""
        identity = event.hello.identity
        attempt = self._attempt
        present = attempt.ranks.get(identity.rank) if attempt is not None else None
        if not self._is_new(event.hello, present):
            return []
        effects: list[RunEffect] = []
        # torchrun counts a restart only where a rank failed: on other nodes all ranks restart uncounted. A
        # launcher that was itself started anew counts from 0 again.
        if attempt is None or present is not None or attempt.is_followed_by(identity):
            effects = self._findings.begin_attempt()
            self._log.record("AttemptBegun", None, "", event.now_collector_ns)
            if attempt is not None:
                self._goodput.restart(event.now_collector_ns)
            attempt = self._begin_attempt(identity)
        if identity.rank < attempt.world_size:
            attempt.add(RankState.begin(event.hello, event.now_collector_ns))
            self._rank_of_boot[identity.boot_id] = identity.rank
            self._goodput.begin(event.now_collector_ns)
            if self._begun_collector_ns is None:
                self._begun_collector_ns = event.now_collector_ns
            self._note_message(event.now_collector_ns)
        return effects

    def _note_message(self, now_collector_ns: int) -> None:
        self.last_change_collector_ns = self._last_message_collector_ns = now_collector_ns

    def _is_new(self, hello: Hello, present: RankState | None) -> bool:
        """Return whether a process is to be added. An ended one whose reports come afterwards only where it replaces no
        rank and begins no attempt.
        """
        identity, attempt = hello.identity, self._attempt
        if identity.boot_id in self._former_boots:
            return False
        if attempt is not None:
            # A node without a process in this attempt has no count to compare with.
            known = attempt.counts_by_node.get(identity.node)
            is_older = known is not None and identity.restart_count < known and self.has_live_ranks
            count = attempt.restart_count if known is None else known
            is_other_attempt = (identity.restart_count, identity.world_size) != (count, attempt.world_size)
            if is_older or (hello.left_behind and is_other_attempt):
                return False
        return present is None or (not hello.left_behind and present.identity.boot_id != identity.boot_id)

    def _begin_attempt(self, identity: RankIdentity) -> Attempt:
        self._former_boots = frozenset(self._rank_of_boot)
        self._rank_of_boot.clear()
        self._attempts += self._attempt is not None
        window = StepTable(self._config.steps_kept, identity.world_size, self._config.detect_steps)
        former_nodes = frozenset(() if self._attempt is None else self._attempt.counts_by_node)
        self._attempt = Attempt(identity.restart_count, identity.world_size, window, former_nodes=former_nodes)
        return self._attempt

    def _apply_to_rank(self, attempt: Attempt, rank: RankState, event: RankProcessEvent) -> None:
        number = rank.identity.rank
        if isinstance(event, ReportAdmitted):
            report, now_ns = event.report, event.now_collector_ns
            self.last_report_wall_s = event.now_wall_s
            attempt.record_report(number, report, now_ns, event.now_wall_s)
            if report.step_ns > attempt.step_ns:
                self._goodput.add_steps(find_end_of_steps(report, now_ns), report.step_ns - attempt.step_ns)
                attempt.step_ns = report.step_ns
        else:
            attempt.ranks[number] = rank.apply(event)
        if isinstance(event, ReportAdmitted | GoodbyeAdmitted | EndSeen):
            self._note_message(event.now_collector_ns)

    def flush_reports(self, *, steps_max: int | None = None) -> None:
        """Add the steps and collectives of the reports since the last call to the table. To be called after a batch of
        events; readers of the table call it too. At most `steps_max` complete steps are matched, 60 ms each with 16,384
        ranks; None: all, as a tick does.
        """
        if self._attempt is not None:
            self._attempt.flush_reports(steps_max)

    # -- the tick ------------------------------------------------------------------------------------------------------

    def tick(self, now_collector_ns: int, now_wall_s: float) -> list[RunEffect]:
        """Bring everything up to date that depends on time: silence, clock pings, goodput, the end of the run."""
        self.flush_reports()
        attempt = self._attempt
        if attempt is None:
            return []
        for rank in attempt.mark_silent(now_collector_ns, s_to_ns(self._config.rank_silent_s)):
            self._log.record("RankSilent", rank.identity.rank, rank.identity.boot_id, now_collector_ns)
        # Of many ranks each is pinged less often, so that the first ones do not use up the pings.
        ping_pause_ns = s_to_ns(max(self._config.clock_ping_s, len(attempt.ranks) / PINGS_PER_S_MAX))
        pings_max = max(1, round(PINGS_PER_S_MAX * self._config.tick_s))
        pinged = attempt.choose_pings(now_collector_ns, ping_pause_ns, pings_max)
        stalled = [
            rank for rank in attempt.ranks.values() if rank.liveness.is_stalled and rank.ended in {None, "silent"}
        ]
        attempt.has_stalled_ranks = bool(stalled)
        if any(rank.is_live for rank in stalled):
            self._goodput.mark_stalled(now_collector_ns)
        elif self.is_over:
            self._goodput.end(self._find_end_collector_ns(attempt))
        self._ending.update(attempt.ranks, attempt.world_size, Clocks(now_collector_ns, now_wall_s))
        return [AskClock(boot_id) for boot_id in pinged]

    def _find_end_collector_ns(self, attempt: Attempt) -> int:
        """Return when the last rank ended; where that is not known of all of them, when the last message came."""
        known = [rank.liveness.ended_collector_ns for rank in attempt.ranks.values()]
        ended = [ended_ns for ended_ns in known if ended_ns is not None]
        return max(ended) if ended and len(ended) == len(known) else max([self._last_message_collector_ns, *ended])

    # -- detection -----------------------------------------------------------------------------------------------------

    def view(self, now_collector_ns: int) -> RunView | None:
        """Return what a detection pass reads, as of the last tick; None before any rank has joined, and after the last
        pass of a run that is over.
        """
        attempt, end = self._attempt, self._ending.end
        if attempt is None or self._ending.is_concluded:
            return None
        self.flush_reports()
        # A rank that is only silent may come back, and the findings hold then: so that is no end.
        is_last = end is not None and not end.lost_ranks
        ranks = tuple(sorted(attempt.ranks))
        has_hang_states = attempt.has_stalled_ranks and not is_last
        return RunView(
            now_collector_ns=now_collector_ns,
            world_size=attempt.world_size,
            series=attempt.window.series(ranks, skip_steps=SKIP_STEPS),
            peer_groups=attempt.find_peer_groups(ranks),
            nodes={number: rank.identity.node for number, rank in attempt.ranks.items()},
            samples=read_samples(attempt),
            groups=attempt.groups.by_label,
            transfers=attempt.window.transfers(skip_steps=SKIP_STEPS),
            hang_states=build_hang_states(attempt.ranks, now_collector_ns) if has_hang_states else {},
            known_usual=read_usual(self._findings.open_findings),
            steps_min=self._config.detect_steps_min,
            open_findings=[one for one in self._findings.held if not is_last or one.kind != HANG],
            attempt=self._attempts,
            is_last=is_last,
        )

    def _apply_detected(self, found: Detected) -> list[RunEffect]:
        """Apply the results of a pass, unless another attempt has begun since its view was made."""
        attempt, end, view = self._attempt, self._ending.end, found.view
        if attempt is None or view.attempt != self._attempts or self._ending.is_concluded:
            return []
        if not view.is_last or end is None:
            return self._update_findings(attempt, found)
        self._ending.is_concluded = True
        effects = self._findings.close_hangs(RUN_IS_OVER) + self._update_findings(attempt, found)
        last_step = max((rank.last_step for rank in attempt.ranks.values() if rank.last_step is not None), default=None)
        return self._findings.conclude(end, last_step, RUN_IS_OVER, effects)

    def _update_findings(self, attempt: Attempt, found: Detected) -> list[RunEffect]:
        attempt.has_had_pass = True
        effects = self._findings.apply(found)
        for effect in effects:
            if not isinstance(effect, AskClock | UpdateFinding):
                kind = f"{type(effect).__name__} {effect.finding.number} {effect.finding.kind}"
                self._log.record(kind, effect.finding.rank, "", found.view.now_collector_ns)
        for steps, lost_ns in self._findings.charged:
            self._goodput.add_loss(steps.tolist(), lost_ns.tolist())
        view, steps_max = found.view, self._config.detect_steps
        attempt.slowdowns = slowdown_ratios(view.excess, steps_max)
        attempt.medians = RankMedians.compute(view.series, attempt.slowdowns, steps_max)
        self.heat_map_steps = HeatMapSteps.of(self._attempts, view)
        return effects

    # -- debugging -----------------------------------------------------------------------------------------------------

    def dump(self, now_collector_ns: int) -> RunDump:
        """Describe the inside of the run. Any thread may call it: it reads attributes and copies, and changes nothing,
        so values may be of different events where the run changes meanwhile.
        """
        attempt = self._attempt
        ranks = () if attempt is None else tuple(attempt.ranks.values())
        end = self._ending.end
        return RunDump(
            run_id=self.run,
            now_collector_ns=now_collector_ns,
            is_superseded=self.is_superseded,
            is_over=self.is_over,
            attempt=self._attempts,
            world_size=self.world_size,
            restart_count=0 if attempt is None else attempt.restart_count,
            ranks=dict(Counter(rank.ended or "up" for rank in ranks)),
            ranks_stalled=sum(bool(rank.liveness.is_stalled) and rank.is_live for rank in ranks),
            ranks_awaited=sum(rank.is_awaited for rank in ranks),
            nodes=0 if attempt is None else len(attempt.counts_by_node),
            groups=0 if attempt is None else len(attempt.groups.by_label),
            groups_dropped=0 if attempt is None else attempt.groups.dropped,
            reports_pending=0 if attempt is None else attempt.batcher.pending,
            steps_unmatched=0 if attempt is None else attempt.window.unmatched,
            latest_step=-1 if attempt is None else attempt.window.latest_step,
            recorded_step=-1 if attempt is None else attempt.recorded_step,
            step_ns=0 if attempt is None else attempt.step_ns,
            findings_opened=self._findings.opened,
            findings_open=tuple(finding.number for finding in self._findings.held),
            abstained=dict(self._findings.abstained),
            end=None if end is None else end.reason,
            is_concluded=self._ending.is_concluded,
            last_message_collector_ns=self._last_message_collector_ns,
            last_change_collector_ns=self.last_change_collector_ns,
            event_counts=self._log.counts,
            events=self._log.read(),
        )

    def validate(self) -> None:
        """Raise InvariantError where an invariant does not hold; tests call it after events."""
        attempt, end = self._attempt, self._ending.end
        require(self.name == read_run_name(self.run), "the name is not that of the id")
        require(self._attempts >= 0, "a negative number of attempts")
        require(
            self._last_message_collector_ns <= self.last_change_collector_ns, "a message came after the last change"
        )
        require(not self._former_boots & self._rank_of_boot.keys(), "a rank process is of two attempts")
        require(end is not None or not self._ending.is_concluded, "a run that goes on is concluded")
        self._findings.validate()
        self._goodput.validate()
        self._log.validate()
        if attempt is None:
            require(self._begun_collector_ns is None, "a run without an attempt has begun")
            require(not self._rank_of_boot, "a run without an attempt has ranks")
            return
        boots = {rank.identity.boot_id: number for number, rank in attempt.ranks.items()}
        require(boots == self._rank_of_boot, "boot ids and ranks differ")
        if self.heat_map_steps is not None:
            require(self.heat_map_steps.attempt <= self._attempts, "a heat map of an attempt to come")
        attempt.validate()

    # -- saving and restoring ------------------------------------------------------------------------------------------

    @classmethod
    def restore(
        cls,
        config: CollectorConfig,
        run: SavedRun,
        story: SavedStory,
        ranks: Sequence[SavedRank],
        clocks: Clocks,
        *,
        collectives: SavedCounts | None = None,
    ) -> "RunState":
        """Return the run as an earlier collector saved it; its ranks are awaited."""
        state = cls(run.run, config)
        window = StepTable(config.steps_kept, run.world_size, config.detect_steps)
        attempt = state._attempt = Attempt(run.restart_count, run.world_size, window)
        attempt.step_ns, attempt.recorded_step = run.step_ns, run.recorded_step
        for saved in ranks:
            rank = RankState.restore(saved, clocks)
            attempt.add(rank)
            state._rank_of_boot[rank.identity.boot_id] = rank.identity.rank
        if collectives is not None:
            ranks_end = max([run.world_size, *(number + 1 for number in attempt.ranks)])
            attempt.collectives.restore(collectives, ranks_end)
        state._attempts, state._former_boots = run.attempt, frozenset(story.former_boots)
        state._findings.restore(run.findings_opened, story.findings, run.lost, attempts=run.attempt)
        state._goodput.resume(run.goodput, clocks.to_collector_ns(run.settled_wall_s), is_over=run.is_over)
        state._begun_collector_ns = clocks.to_collector_ns(run.begun_wall_s)
        state._last_message_collector_ns = clocks.to_collector_ns(run.changed_wall_s)
        state.last_change_collector_ns = state._last_message_collector_ns if run.is_over else clocks.collector_ns
        reported_wall_s = (saved.last_report_wall_s for saved in ranks)
        state.last_report_wall_s = max((one for one in reported_wall_s if one is not None), default=None)
        return state

    def save(self, clocks: Clocks) -> SavedRun | None:
        """Return what is saved of the run itself; None before any rank has joined."""
        attempt = self._attempt
        if attempt is None:
            return None
        goodput = self._goodput.snapshot(clocks.collector_ns)
        begun_collector_ns = clocks.collector_ns if self._begun_collector_ns is None else self._begun_collector_ns
        # All time up to the end of a run that is over is settled, and there is no more.
        settled_collector_ns = (
            self.last_change_collector_ns if self.is_over else clocks.collector_ns - goodput.unreported_ns
        )
        return SavedRun(
            run=self.run,
            world_size=attempt.world_size,
            restart_count=attempt.restart_count,
            attempt=self._attempts,
            begun_wall_s=clocks.to_wall_s(begun_collector_ns),
            changed_wall_s=clocks.to_wall_s(self._last_message_collector_ns),
            settled_wall_s=clocks.to_wall_s(settled_collector_ns),
            is_over=self.is_over,
            step_ns=attempt.step_ns,
            recorded_step=attempt.recorded_step,
            goodput=goodput,
            lost=self._findings.lost,
            findings_opened=self._findings.opened,
            end=self._ending.end,
        )

    def save_story(self) -> SavedStory:
        """Return the saved parts that seldom change."""
        return SavedStory(findings=self.findings_as_closed, former_boots=tuple(sorted(self._former_boots)))

    @property
    def ranks(self) -> Mapping[int, RankState]:
        """The ranks of the present attempt, to be saved."""
        self.flush_reports(steps_max=0)
        return self._ranks()

    def save_rank(self, rank: RankState, clocks: Clocks) -> SavedRank:
        """Return what is saved of one of them."""
        medians = NO_MEDIANS if self._attempt is None else self._attempt.medians
        return rank.save(clocks, medians.step_ns_median(rank.identity.rank))

    def save_collectives(self) -> CollectiveSums:
        """Return what is saved of the collectives of all ranks of the present attempt."""
        self.flush_reports(steps_max=0)
        counts = CollectiveCounts() if self._attempt is None else self._attempt.collectives
        return counts.read()

    def collect_finished_steps(self, wall_s: float) -> list[StepAggregate]:
        """Return the steps that were finished since the last call, for the history."""
        self.flush_reports(steps_max=0)
        attempt = self._attempt
        if attempt is None:
            return []
        patience = 0 if self.is_over else PATIENCE_STEPS
        steps, durations_ns, phases_ns = attempt.window.read_finished(attempt.recorded_step, patience=patience)
        if not len(steps):
            return []
        attempt.recorded_step = int(steps[-1])
        return aggregate_steps(self._attempts, wall_s, steps, durations_ns, phases_ns)

    # -- the snapshot --------------------------------------------------------------------------------------------------

    def snapshot(self, now_collector_ns: int) -> RunSnapshot:
        """Return the immutable snapshot of the run, with all pending reports."""
        self.flush_reports()
        return self.lazy_snapshot(now_collector_ns).build()

    def lazy_snapshot(self, now_collector_ns: int) -> LazyRunSnapshot:
        """Return a snapshot of this time, which any thread may build at any time."""
        self.flush_reports(steps_max=0)
        attempt = self._attempt
        if attempt is None:
            no_ranks = RunSnapshot(run=self.name, run_id=self.run, world_size=0, restart_count=0, ranks=())
            return LazyRunSnapshot(no_ranks, (), NO_MEDIANS, CollectiveSnapshot(), now_collector_ns)
        open_findings, end = self.open_findings, self._ending.end
        head = RunSnapshot(
            run=self.name,
            run_id=self.run,
            world_size=attempt.world_size,
            restart_count=attempt.restart_count,
            ranks=(),
            open_findings=open_findings,
            findings=(*self._findings.closed_findings, *open_findings) if end is None else self.findings_as_closed,
            lost=self._findings.lost,
            abstained=self.abstained,
            run_slowdown_ratio=_run_slowdown_ratio(attempt, open_findings) if end is None else None,
            goodput=self._goodput.snapshot(now_collector_ns),
            end=end,
        )
        ranks = tuple([attempt.ranks[number] for number in sorted(attempt.ranks)])
        return LazyRunSnapshot(
            head, ranks, attempt.medians, attempt.collectives.snapshot(attempt.group_sizes), now_collector_ns
        )

    @property
    def open_findings(self) -> tuple[Finding, ...]:
        """Findings that hold now; none of a run that is over."""
        return self._findings.open_findings if self._ending.end is None else ()

    @property
    def findings_as_closed(self) -> tuple[Finding, ...]:
        """All its findings as if closed now."""
        return self._findings.findings_as_closed

    @property
    def end(self) -> RunEnd | None:
        """How the run ended; None while it goes on."""
        return self._ending.end

    @property
    def abstained(self) -> str | None:
        """Why detection gives no verdict; None when it does."""
        attempt = self._attempt
        return self._findings.abstained.get(STRAGGLER, None if attempt and attempt.has_had_pass else NO_REPORTS_YET)


def _run_slowdown_ratio(attempt: Attempt, open_findings: Sequence[Finding]) -> float | None:
    """Return the largest of any finding; 1 when none has a cost, None before the ranks could be compared."""
    if attempt.slowdowns is None or bool(np.isnan(attempt.slowdowns).all()):
        return None
    return max((finding.run_slowdown_ratio or 1.0 for finding in open_findings), default=1.0)
