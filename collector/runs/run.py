"""Keep the state of one run, which nothing else writes. Pure: effects are returned, not carried out.

A run goes through *attempts*: an elastic restart begins a new one, in which steps count from 0 again. The ranks of
former attempts are kept as a count only. A start that is no restart of this run begins another run of the same name
(runs.py). A run is saved and restored by saved_runs.py, and described for debugging by run_dump.py.
"""

from collections.abc import Sequence
from typing import Final

from rankscope.collector.config import CollectorConfig
from rankscope.collector.detect.finding import Finding, describe_faults
from rankscope.collector.detect.hang_state import EXIT_UNKNOWN
from rankscope.collector.detect.view import Detected, RunView
from rankscope.collector.invariants import Impossible, require
from rankscope.collector.run_ids import read_run_name
from rankscope.collector.runs.attempt import Attempt, find_end_of_steps
from rankscope.collector.runs.clock_alignment import Clocks
from rankscope.collector.runs.events import (
    AnswerSeen,
    AskClock,
    AskSamples,
    CloseFinding,
    CollectorAway,
    EarlierRunsRead,
    EndSeen,
    EventLog,
    FindingOpened,
    GoodbyeAdmitted,
    RankJoined,
    RankProcessEvent,
    RefuseProcess,
    ReportAdmitted,
    RunEffect,
    RunEvent,
    SettingChanged,
    UnresponsiveSeen,
    find_event_time,
)
from rankscope.collector.runs.findings import RunFindings
from rankscope.collector.runs.goodput import CarriedGoodput
from rankscope.collector.runs.hearing import Heard
from rankscope.collector.runs.heat_map import HeatMapSteps
from rankscope.collector.runs.lazy_snapshot import LazyRunSnapshot
from rankscope.collector.runs.line_search import LineSearch
from rankscope.collector.runs.live_settings import LiveSettings, SettingChange, WantedChange
from rankscope.collector.runs.membership import RankProcesses, begins_attempt, is_to_be_added
from rankscope.collector.runs.rank import RankState
from rankscope.collector.runs.run_end import LOST
from rankscope.collector.runs.run_ending import RunEnding, find_last_end
from rankscope.collector.runs.run_view import build_view, find_run_slowdown, keep_pass
from rankscope.collector.runs.setting_orders import SettingOrders
from rankscope.collector.runs.snapshot import RunSnapshot
from rankscope.collector.runs.speed_history import SpeedHistory
from rankscope.measure.errors import SettingError
from rankscope.measure.messages import SamplesTaken
from rankscope.measure.units import s_to_ns

RUN_IS_OVER: Final = "the run is over"
PINGS_PER_S_MAX: Final = 256
"""A ping and its answer cost 50 us, so this is 1 % of a core. Beyond 1,280 ranks at the default of `clock_ping_s` each
is pinged less often: of 16,384 every 64 s, in which a clock drifts by up to 6 ms; verdicts need tenths of seconds."""


class RunState:
    """State of one run. Others may read its parts; only events, ticks and restoring change them."""

    def __init__(self, run: str, config: CollectorConfig) -> None:
        self._config = config
        #: Id of the run (run_ids.py). Never changes.
        self.run = run
        #: The launcher's name for it: the part of `run` before `@`. Never changes.
        self.name = read_run_name(run)
        #: Whether a later run of this name has begun. Written by Runs only; never becomes False again.
        self.is_superseded = False
        #: What the collector has heard of anybody, this run included. Written by RunUpdates only.
        self.heard = Heard()
        #: The present attempt; None before any rank has joined, and never again.
        self.attempt: Attempt | None = None
        #: How long the steps of the present attempt were, and those of earlier runs.
        self.speed = SpeedHistory()
        #: Attempts before the present one; only grows.
        self.attempts = 0
        #: Boot ids of the rank processes of `attempt`, and of the attempt before; where earlier ranks ran.
        self.processes = RankProcesses()
        #: All findings of the run, over its attempts.
        self.findings = RunFindings(run, config.findings_max)
        #: Which source lines explain the open findings.
        self.line_search = LineSearch()
        #: The settings that were changed while it goes on, and which ranks have taken theirs.
        self.settings, self.setting_orders = LiveSettings(config), SettingOrders()
        #: Time of the run by its use, over its attempts.
        self.goodput = CarriedGoodput()
        #: How the run ended, while no rank is live.
        self.ending = RunEnding()
        #: When the first rank joined; None exactly while `attempt` is None.
        self.begun_collector_ns: int | None = None
        #: When anything last changed here: a message, or that this collector restored the run.
        self.last_change_collector_ns = 0
        #: When the last message of any rank arrived, also at an earlier collector; at most `last_change_collector_ns`.
        self.last_message_collector_ns = 0
        #: Wall time of the last report, in s since 1970; None before any.
        self.last_report_wall_s: float | None = None
        self.clocks: Clocks | None = None
        #: The steps of the last detection pass; None before any.
        self.heat_map_steps: HeatMapSteps | None = None
        #: Whether it had ended at an earlier collector, and nothing has come since: its verdict is kept, its steps not.
        self.is_judged_before = False
        #: The last events.
        self.log = EventLog()

    @property
    def world_size(self) -> int:
        """The ranks of the present attempt; 0 before any."""
        return 0 if self.attempt is None else self.attempt.world_size

    @property
    def has_live_ranks(self) -> bool:
        """Whether any rank still reports."""
        return self.attempt is not None and self.attempt.has_live_ranks

    @property
    def is_over(self) -> bool:
        """Whether every rank of the run has joined and ended; once a later run of its name has begun, whether no rank
        reports: silent ranks, and those that never joined, are not awaited any more.
        """
        if self.attempt is None:
            return False
        return not self.attempt.has_live_ranks if self.is_superseded else self.attempt.is_over

    def may_start_again(self, now_collector_ns: int) -> bool:
        """Return whether it has ended unseen, and its next start would still be a restart: every rank ended while no
        collector ran, or is a process of Slurm that is gone with its sidecar. So end the jobs that Slurm queues again.
        """
        attempt, end = self.attempt, self.ending.end
        if attempt is None or end is None or end.reason not in {EXIT_UNKNOWN, LOST} or self.is_judged_before:
            return False
        if now_collector_ns - self.last_message_collector_ns > s_to_ns(self._config.restart_within_s):
            return False
        ranks = attempt.ranks.values()
        return all(rank.is_awaited for rank in ranks) or all(
            rank.ended == EXIT_UNKNOWN and rank.identity.slurm_job_id for rank in ranks
        )

    @property
    def open_findings(self) -> tuple[Finding, ...]:
        """Findings that hold now; none of a run that is over."""
        return self.findings.open_findings if self.ending.end is None else ()

    # -- events --------------------------------------------------------------------------------------------------------

    def apply(self, event: RunEvent | Detected) -> list[RunEffect]:
        """Apply an event, or the results of a detection pass; return what follows. Events of unknown rank processes are
        ignored: they belong to an attempt that is over.
        """
        match event:
            case RankJoined(hello, now_collector_ns):
                self.log.record("RankJoined", hello.identity.rank, hello.identity.boot_id, now_collector_ns)
                return self._join(event)
            case Detected():
                return self._apply_detected(event)
            case CollectorAway(away_ns, now_collector_ns):
                self.log.record("CollectorAway", None, "", now_collector_ns)
                if self.attempt is not None:
                    self.attempt.excuse_absence(away_ns, now_collector_ns)
            case EarlierRunsRead():
                self.log.record("EarlierRunsRead", None, "", None)
                self.speed.keep_earlier(event)
            case _:
                number = self.processes.find_rank(event.boot_id)
                self.log.record(type(event).__name__, number, event.boot_id, find_event_time(event))
                if number is not None and self.attempt is not None:
                    self._apply_to_rank(self.attempt, number, event)
                elif isinstance(event, ReportAdmitted):
                    return self._refuse_replaced(event.boot_id, event.now_collector_ns)
        return []

    def _join(self, event: RankJoined) -> list[RunEffect]:
        """Add the process of a Hello."""
        identity, now_ns = event.hello.identity, event.now_collector_ns
        if not is_to_be_added(event.hello, self.attempt, self.processes):
            return [] if event.hello.left_behind else self._refuse_replaced(identity.boot_id, now_ns)
        attempt = self.attempt
        effects: list[RunEffect] = []
        if attempt is None or begins_attempt(identity, attempt):
            effects = self.findings.begin_attempt()
            self.log.record("AttemptBegun", None, "", now_ns)
            if attempt is not None:
                self.goodput.restart(now_ns)
                self.attempts += 1
            self.processes.begin_attempt(attempt, now_ns)
            attempt = self.attempt = Attempt.begin(identity, self._config, attempt)
            self.speed = SpeedHistory()
            self.line_search.begin_attempt()
        if identity.rank < attempt.world_size:
            attempt.add(RankState.begin(event.hello, now_ns))
            self.processes.add(identity)
            self.goodput.begin(now_ns)
            if self.begun_collector_ns is None:
                self.begun_collector_ns = now_ns
            self._record_message(now_ns)
        return effects

    def _refuse_replaced(self, boot_id: str, now_collector_ns: int) -> list[RunEffect]:
        """Return what tells a process of an earlier attempt that it is ignored, once it should have ended."""
        if self.attempt is None or not self.attempt.ranks:
            return []
        if not self.processes.note_replaced(boot_id, now_collector_ns):
            return []
        present = min(self.attempt.ranks.values(), key=lambda rank: rank.identity.rank).identity
        detail = (
            f"a later start of run {self.name!r} has begun, with rank {present.rank} as process {present.pid} on node "
            f"{present.node!r}, and this process is of an earlier one: its reports are ignored. Two runs need names of "
            "their own (RANKSCOPE_RUN). If nobody of yours has started it, use keys: docs/keys.md."
        )
        return [RefuseProcess(boot_id, detail)]

    def _apply_to_rank(self, attempt: Attempt, number: int, event: RankProcessEvent) -> None:
        if isinstance(event, ReportAdmitted):
            report, now_ns = event.report, event.now_collector_ns
            self.last_report_wall_s = event.now_wall_s
            self.clocks = Clocks(now_ns, event.now_wall_s)
            attempt.record_report(number, report, now_ns, event.now_wall_s)
            if report.step_ns > attempt.step_ns:
                reported_ns = int(report.steps.column("duration_ns").sum())
                self.goodput.add_steps(find_end_of_steps(report, now_ns), report.step_ns - attempt.step_ns, reported_ns)
                attempt.step_ns = report.step_ns
        elif isinstance(event, AnswerSeen):
            if isinstance(event.taken, SamplesTaken):
                self.line_search.take(number, event.taken)
            else:
                self.setting_orders.take(event.boot_id, event.taken)
        else:
            attempt.ranks[number] = attempt.ranks[number].apply(event)
        if isinstance(event, ReportAdmitted | GoodbyeAdmitted | EndSeen | UnresponsiveSeen):
            self._record_message(event.now_collector_ns)

    def _record_message(self, now_collector_ns: int) -> None:
        self.is_judged_before = False
        self.last_change_collector_ns = self.last_message_collector_ns = now_collector_ns

    def flush_reports(self, *, steps_max: int | None = None) -> None:
        """Add the steps and collectives of the reports since the last call to the table. To be called after a batch of
        events; readers of the table call it too. At most `steps_max` complete steps are matched, 60 ms each with 16,384
        ranks; None: all, as a tick does.
        """
        if self.attempt is not None:
            self.attempt.flush_reports(steps_max)

    # -- the tick ------------------------------------------------------------------------------------------------------

    def tick(self, now_collector_ns: int, now_wall_s: float) -> list[RunEffect]:
        """Bring everything up to date that depends on time: silence, clock pings, goodput, the end of the run."""
        self.clocks = Clocks(now_collector_ns, now_wall_s)
        self.flush_reports()
        attempt = self.attempt
        if attempt is None:
            return []
        for rank in attempt.mark_silent(now_collector_ns, s_to_ns(self._config.rank_silent_s)):
            self.log.record("RankSilent", rank.identity.rank, rank.identity.boot_id, now_collector_ns)
        # Of many ranks each is pinged less often, so that the first ones do not use up the pings.
        ping_pause_ns = s_to_ns(max(self._config.clock_ping_s, len(attempt.ranks) / PINGS_PER_S_MAX))
        pings_max = max(1, round(PINGS_PER_S_MAX * self._config.tick_s))
        pinged = attempt.choose_pings(now_collector_ns, ping_pause_ns, pings_max)
        stalled = attempt.stalled_ranks
        if any(rank.is_live for rank in stalled):
            self.goodput.mark_stalled(now_collector_ns)
        elif self.is_over:
            self.goodput.end(find_last_end(attempt.ranks.values(), self.last_message_collector_ns))
        silent_ns = s_to_ns(self._config.rank_silent_s)
        self.ending.update(attempt, self.clocks, self.heard, silent_ns)
        effects: list[RunEffect] = [*self._note_changes(self.settings.tick(now_wall_s), now_collector_ns)]
        if self.ending.end is None:
            effects += self._search_lines(attempt, now_collector_ns)
            effects += self.setting_orders.tick(self.settings.state, attempt, now_collector_ns, now_wall_s)
        return [*(AskClock(boot_id) for boot_id in pinged), *effects]

    def change_settings(self, wanted: WantedChange, clocks: Clocks) -> list[SettingChanged]:
        """Change settings while the run goes on. Raises SettingError, with the cure, where they cannot be."""
        if self.ending.end is not None:
            raise SettingError(f"run {self.run!r} is over: nothing of it can change.")
        return self._note_changes(self.settings.change(wanted, clocks.wall_s), clocks.collector_ns)

    def _note_changes(self, changes: Sequence[SettingChange], now_collector_ns: int) -> list[SettingChanged]:
        for one in changes:
            self.log.record(f"SettingChanged {one.name} {one.kind}", None, "", now_collector_ns)
        return [SettingChanged(self.run, one.text) for one in changes]

    def _search_lines(self, attempt: Attempt, now_collector_ns: int) -> list[AskSamples]:
        """Return the orders of samples that are due, and add to the findings what samples have shown."""
        asked = self.line_search.tick(self.findings.held, attempt, now_collector_ns)
        for number, lines in self.line_search.pop().items():
            self.findings.set_lines(number, lines)
        return asked

    # -- detection -----------------------------------------------------------------------------------------------------

    def view(self, now_collector_ns: int) -> RunView | None:
        """Return what a detection pass reads, as of the last tick; None before any rank has joined, after the last pass
        of a run that is over, and where that was at an earlier collector.
        """
        end = self.ending.end
        if self.attempt is None or self.ending.is_concluded or self.is_judged_before:
            return None
        self.flush_reports()
        view = build_view(
            self.attempt,
            now_collector_ns,
            held=self.findings.held,
            settings=self.settings,
            attempts=self.attempts,
            # A rank that is only silent may come back, and the findings hold then: so that is no end.
            is_last=end is not None and not end.lost_ranks,
            now_wall_s=None if self.clocks is None else self.clocks.to_wall_s(now_collector_ns),
        )
        return self.speed.add_to(view, self.attempt)

    def _apply_detected(self, found: Detected) -> list[RunEffect]:
        """Apply the results of a pass, unless another attempt has begun since its view was made."""
        attempt, end, view = self.attempt, self.ending.end, found.view
        if attempt is None or view.attempt != self.attempts or self.ending.is_concluded:
            return []
        if not view.is_last or end is None:
            return self._update_findings(attempt, found)
        self.ending.is_concluded = True
        effects = self.findings.close_hangs(RUN_IS_OVER) + self._update_findings(attempt, found)
        last_step = max((rank.last_step for rank in attempt.ranks.values() if rank.last_step is not None), default=None)
        return self.findings.conclude(end, last_step, RUN_IS_OVER, effects)

    def _update_findings(self, attempt: Attempt, found: Detected) -> list[RunEffect]:
        view = found.view
        effects = self.findings.apply(found, self.clocks)
        for effect in effects:
            if isinstance(effect, FindingOpened | CloseFinding):
                kind = f"{type(effect).__name__} {effect.finding.number} {effect.finding.kind}"
                self.log.record(kind, effect.finding.rank, "", view.now_collector_ns)
        for steps, lost_ns in self.findings.charged:
            self.goodput.add_loss(steps.tolist(), lost_ns.tolist())
        if self.findings.why_no_verdict is None:
            self.settings.is_stricter = False
        keep_pass(attempt, view, self._config.detect_steps)
        self.speed.keep(attempt, view, self.findings.held)
        self.heat_map_steps = HeatMapSteps.of(self.attempts, view, self.heat_map_steps, self.last_report_wall_s)
        return effects

    def pop_impossible(self) -> list[Impossible]:
        """Return the numbers that cannot be, and so were made unknown, since the last call."""
        of_steps = [] if self.attempt is None else self.attempt.window.impossible.pop()
        return [*of_steps, *self.findings.impossible.pop()]

    # -- snapshots -----------------------------------------------------------------------------------------------------

    def snapshot(self, now_collector_ns: int) -> RunSnapshot:
        """Return the immutable snapshot of the run, with all pending reports."""
        self.flush_reports()
        return self.lazy_snapshot(now_collector_ns).build()

    def lazy_snapshot(self, now_collector_ns: int) -> LazyRunSnapshot:
        """Return a snapshot of this time, which any thread may build at any time."""
        self.flush_reports(steps_max=0)
        attempt, findings, end = self.attempt, self.findings, self.ending.end
        if attempt is None:
            no_ranks = RunSnapshot(run=self.name, run_id=self.run, world_size=0, restart_count=0, ranks=())
            return LazyRunSnapshot(no_ranks, now_collector_ns)
        open_findings = self.open_findings
        head = RunSnapshot(
            run=self.name,
            run_id=self.run,
            world_size=attempt.world_size,
            restart_count=attempt.restart_count,
            ranks=(),
            open_findings=open_findings,
            findings=(*findings.closed_findings, *open_findings) if end is None else findings.findings_as_closed,
            lost=findings.lost,
            abstained=findings.why_no_verdict,
            run_slowdown_ratio=find_run_slowdown(attempt.slowdowns, open_findings) if end is None else None,
            goodput=self.goodput.snapshot(now_collector_ns),
            end=end,
            ranks_without_peers=attempt.peer_search.without_peers if attempt.world_size > 1 else 0,
            least_waiting=attempt.peer_search.least_waiting,
            wait_untraced_ns=attempt.medians.wait_untraced_ns,
            not_judged=dict(findings.abstained),
            injected_faults=describe_faults(attempt.faults),
            checkpoints=attempt.checkpoints.seen,
            medians_of=attempt.medians.of_steps,
            compilations=attempt.compilations,
            step_durations=self.speed.histogram.read(),
            settings=self.settings.state,
            settings_taken=self.setting_orders.taken,
            pipeline=attempt.pipeline,
            layers=attempt.layers,
            experts=attempt.experts,
        )
        ranks = tuple([attempt.ranks[number] for number in sorted(attempt.ranks)])
        collectives = attempt.collectives.snapshot(attempt.group_sizes)
        return LazyRunSnapshot(head, now_collector_ns, ranks, attempt.medians, collectives)

    def validate(self) -> None:
        """Raise InvariantError where an invariant does not hold; tests call it after events."""
        attempt, end = self.attempt, self.ending.end
        require(self.name == read_run_name(self.run), "the name is not that of the id")
        require(self.attempts >= 0, "a negative number of attempts")
        require(self.last_message_collector_ns <= self.last_change_collector_ns, "a message came after the last change")
        require(end is not None or not self.ending.is_concluded, "a run that goes on is concluded")
        require((attempt is None) == (self.begun_collector_ns is None), "a run has begun and has no attempt")
        self.findings.validate()
        self.goodput.validate()
        self.log.validate()
        self.line_search.validate()
        self.settings.validate()
        self.speed.levels.validate()
        self.speed.long_steps.validate()
        self.speed.histogram.validate()
        self.processes.validate({} if attempt is None else attempt.ranks)
        if self.heat_map_steps is not None:
            require(self.heat_map_steps.attempt <= self.attempts, "a heat map of an attempt to come")
        if attempt is not None:
            require(attempt.checkpoints.attempt == self.attempts, "checkpoints are counted for another attempt")
            attempt.validate()
