"""Apply events, ticks and findings to the runs, and carry out what follows from them.

    batch -> events -> run.apply -> effects: incidents, log lines, messages to ranks
    tick  -> run.tick, run.view -> detect -> run.apply -> effects

A bug in the state of one run is contained to that run: it is counted and logged, and the other runs continue.
"""

import logging
import queue
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError  # before Python 3.11 another than the built-in one
from typing import Final

from rankscope.collector.config import CollectorConfig
from rankscope.collector.cpu_share import CpuShareLimiter
from rankscope.collector.detect.detectors import build_detectors, detect
from rankscope.collector.detect.view import Detected, Detector
from rankscope.collector.fault_log import FaultLog
from rankscope.collector.incidents.journal import Journal
from rankscope.collector.ingest.admission import ProcessCounts
from rankscope.collector.ingest.exchange import AskForClock, EventBatch, Exchange, SendToRank
from rankscope.collector.ingest.message_admission import MessageAdmission
from rankscope.collector.run_ids import describe_unknown_run, read_run_name
from rankscope.collector.runs.clock_alignment import Clocks
from rankscope.collector.runs.events import (
    AskClock,
    AskSamples,
    AskSettings,
    CloseFinding,
    CollectorAway,
    EarlierRunsRead,
    EndSeen,
    FindingOpened,
    GoodbyeAdmitted,
    PeerEvent,
    ProcessGone,
    RankJoined,
    RefuseProcess,
    ReportAdmitted,
    RunEffect,
    RunEvent,
    SettingChanged,
    UpdateFinding,
    find_boot_id,
)
from rankscope.collector.runs.hearing import Heard
from rankscope.collector.runs.live_settings import RunSettings, SettingsRefusal, WantedChange
from rankscope.collector.runs.rank import SavedRank
from rankscope.collector.runs.run import RunState
from rankscope.collector.runs.runs import Runs
from rankscope.collector.runs.saved_runs import restore_run
from rankscope.collector.storage.run_store import KeptRun
from rankscope.measure.clock import Clock
from rankscope.measure.errors import SettingError
from rankscope.measure.identity import RankIdentity
from rankscope.measure.machine import read_machine_id
from rankscope.measure.proc_stat import is_gone
from rankscope.measure.units import NS_PER_S, ns_to_s, s_to_ns

LOG = logging.getLogger("rankscope.collector")

ABSENCE_NS_MIN: Final = NS_PER_S
"""A tick that is late by this much counts as an absence of the collector: a busy one is late by far less, and the
shortest silence that can be set for a rank is twice as long."""
ABSENCE_LOGGED_NS_MIN: Final = 5 * NS_PER_S
"""Shorter ones are only counted: a busy machine has many."""
DETECTION_CPU_SHARE: Final = 0.05
"""Of a core: 16,384 ranks have a detection pass every other second, smaller runs one at every tick."""
SETTINGS_S_MAX: Final = 5.0
"""Longest wait until settings are changed: a detection pass of a large run comes before."""
STEPS_IN_BATCH_MAX: Final = 1
"""Steps matched after a batch of reports. Those of a profiler window are complete at once, and a step of 16,384 ranks
takes 60 ms."""


class RunUpdates:
    """All runs, and the only writer of their state. `on_forget` is called with the id of a run that is forgotten."""

    def __init__(
        self,
        config: CollectorConfig,
        clock: Clock,
        *,
        exchange: Exchange,
        admission: MessageAdmission,
        journal: Journal,
        faults: FaultLog,
        on_forget: Callable[[str], object],
    ) -> None:
        self._config = config
        self._clock = clock
        self._exchange = exchange
        self._admission = admission
        self._journal = journal
        self._faults = faults
        self._on_forget = on_forget
        self._detectors = build_detectors(config)
        self._detection_limiter = CpuShareLimiter(DETECTION_CPU_SHARE, s_to_ns(config.tick_s))
        self._machine_id = read_machine_id()
        self._over: frozenset[str] = frozenset()
        self._without_run: OrderedDict[str, None] = OrderedDict()
        """Boot ids of rank processes whose Hello could not be handled, until one is."""
        self._wanted_settings: queue.SimpleQueue[tuple[WantedChange, Future[RunSettings | SettingsRefusal]]] = (
            queue.SimpleQueue()
        )
        self.runs = Runs(config)
        self.severities: Mapping[str, str] = {}
        """Of which incidents receivers are notified at least, by the id of runs for which that was changed. Any thread
        may read it; it is replaced when it changes.
        """
        self.impossible: dict[str, int] = {}
        """Numbers that could not be, by kind: they were made unknown."""
        self._impossible_logged: set[tuple[str, str]] = set()
        """Run and kind of those that have been logged; of runs that are kept."""
        self.heard = Heard()
        """What was heard of any rank, up to the last tick."""
        self.absent_ns = 0
        """For how long this collector did not run, or its clock has jumped."""
        self.evicted = 0
        """Runs that were forgotten."""

    # -- events -----------------------------------------------------------------------------------------------------

    def process_batch(self, batch: EventBatch) -> None:
        """Handle the events of a batch, and return it to the receive thread with the rank processes that have no run.

        A rank process has to be known before anything of it counts: where its Hello could not be handled, or its run
        does not exist, nothing of it is acknowledged, and it is asked for its Hello. An event of a known rank process
        that cannot be handled is lost, counted, and acknowledged: sent again it would fail each time.
        """
        for name in batch.forgotten:
            self._remove_forgotten(name)
        try:
            self._handle_events(batch)
        except Exception:  # noqa: BLE001 - the fault log has it
            self._faults.note("batch", "a batch could not be processed; asking its ranks to send their reports again")
            boot_ids = {find_boot_id(event) for _, event in batch.events}
            batch.without_run |= boot_ids
            batch.hello_wanted |= boot_ids
        self._exchange.answer(batch)

    def _handle_events(self, batch: EventBatch) -> None:
        touched: dict[str, RunState] = {}
        for name, event in batch.events:
            boot_id = find_boot_id(event)
            run = self._handle_event(name, boot_id, event)
            if run is None:
                batch.without_run.add(boot_id)
                if isinstance(event, RankJoined) or boot_id not in self._without_run:
                    batch.hello_wanted.add(boot_id)
            else:
                touched[run.run] = run
        for run in touched.values():
            self.flush(run, STEPS_IN_BATCH_MAX)

    def _handle_event(self, name: str, boot_id: str, event: PeerEvent) -> RunState | None:
        """Return the run that has the event now; None where no run knows the rank process."""
        run = self.runs.find(name, event)
        if isinstance(event, RankJoined):
            self._without_run.pop(boot_id, None)
            run = run or self._begin_run(event.hello.identity)
            if run is None or not self._apply(run, event):
                self._without_run[boot_id] = None
                if len(self._without_run) > self._config.ranks_max:
                    self._without_run.popitem(last=False)
                return None
        elif run is not None and boot_id not in self._without_run:
            self._apply(run, event)
        _log_event(name if run is None else run.run, event)
        return None if boot_id in self._without_run else run

    def _begin_run(self, identity: RankIdentity) -> RunState | None:
        """Begin a run, the latest of its name; return None where that failed."""
        try:
            run = self.runs.begin(identity.run, ns_to_s(self._clock.wall_ns()))
        except Exception:  # noqa: BLE001 - the fault log has it
            self._faults.note("run_state", "could not be started; asking its ranks for a Hello again", run=identity.run)
            return None
        self._admission.begin_run(identity)
        return run

    # -- the tick ---------------------------------------------------------------------------------------------------

    def note_absence(self, late_ns: int) -> None:
        """Report a tick that is far too late to every run: the collector was stopped, or its clock has jumped."""
        if late_ns >= ABSENCE_NS_MIN:
            self.absent_ns += late_ns
            if late_ns >= ABSENCE_LOGGED_NS_MIN:
                text = (
                    "this collector did not run for %.1f s: it was stopped, or its machine was suspended or too busy. "
                    "The time is none that a run has lost; ranks send what they have kept"
                )
                LOG.warning(text, ns_to_s(late_ns))
            for run in self.runs:
                self._apply(run, CollectorAway(late_ns, self._clock.monotonic_ns()))

    def tick(self, now_ns: int, wall_s: float) -> None:
        """Bring every run up to date, run detection where it is due, and forget runs that ended long ago."""
        for former in self.runs.find_excess_runs():
            self._forget(former)
        silent_ns = s_to_ns(self._config.rank_silent_s)
        last_ns = max((run.last_message_collector_ns for run in self.runs), default=0)
        self.heard = self.heard.hear(last_ns, silent_ns)
        detects, began_ns = self._detection_limiter.is_due(now_ns), time.thread_time_ns()
        for run in list(self.runs):
            self._check_local_processes(run)
            self._tick_run(run, now_ns, wall_s)
            if detects:
                self._detect(run, now_ns)
            if not run.has_live_ranks and now_ns - run.last_change_collector_ns > s_to_ns(self._config.run_kept_s):
                self._forget(run)
        self._note_severities()
        over = self.runs.over_ids
        for run_id in over - self._over:
            self._admission.end_run(read_run_name(run_id))
        self._over = over
        self.note_forgettable()
        if detects:
            self._detection_limiter.record(now_ns, time.thread_time_ns() - began_ns)

    def note_forgettable(self) -> None:
        """Tell admission which runs it may forget for others: those that are over, the first to end first, then those
        that are silent, the longest first.
        """
        spare = [runs for runs in self.runs.by_name if not any(run.has_live_ranks for run in runs)]
        spare.sort(key=lambda runs: (not runs[-1].is_over, runs[-1].last_message_collector_ns))
        self._admission.may_forget([runs[-1].name for runs in spare])

    def record_earlier_runs(self, run_id: str, read: EarlierRunsRead) -> None:
        """Apply what the store has of earlier runs of the same work to a run; nothing where the run is forgotten."""
        run = self.runs.get(run_id)
        if run is not None:
            self._apply(run, read)

    def _tick_run(self, run: RunState, now_ns: int, wall_s: float) -> None:
        try:
            run.heard = self.heard
            effects = run.tick(now_ns, wall_s)
        except Exception:  # noqa: BLE001 - the fault log has it
            self._faults.note("run_state", "its tick failed; continuing", run=run.run)
            return
        self._carry_out_all(run, effects)

    def _detect(self, run: RunState, now_ns: int) -> None:
        """Run detection over a view of the run, and apply what was found."""
        try:
            view = run.view(now_ns)
            found = None if view is None else detect(view, self._find_detectors(run))
        except Exception:  # noqa: BLE001 - the fault log has it
            self._faults.note("run_state", "detection failed; continuing", run=run.run)
            return
        if found is not None:
            self._apply(run, found)
        self._note_impossible(run)

    def _find_detectors(self, run: RunState) -> Sequence[Detector]:
        """Return the detectors by the settings of the run, which are mostly those of the collector."""
        return build_detectors(run.settings.config) if run.settings.thresholds else self._detectors

    def _note_impossible(self, run: RunState) -> None:
        """Count the numbers of a run that could not be, and log the first of each kind with its inputs."""
        for kind, times, inputs in run.pop_impossible():
            self.impossible[kind] = self.impossible.get(kind, 0) + times
            if (run.run, kind) not in self._impossible_logged:
                self._impossible_logged.add((run.run, kind))
                text = "run %r: a number that cannot be is left out (%s; further ones are only counted): %s"
                LOG.warning(text, run.run, kind, inputs)

    # -- settings of a run ------------------------------------------------------------------------------------------

    def order_settings(self, wanted: WantedChange) -> RunSettings | SettingsRefusal:
        """Change settings of a run while it goes on, in the thread of the runs; return them as they are then. Any other
        thread; it waits until that is done.
        """
        answer: Future[RunSettings | SettingsRefusal] = Future()
        self._wanted_settings.put((wanted, answer))
        self._exchange.interrupt()
        try:
            return answer.result(SETTINGS_S_MAX)
        except LateError:
            return SettingsRefusal(503, f"the collector has not answered within {SETTINGS_S_MAX:g} s; it may do so yet")

    def change_settings(self) -> None:
        """Change the settings that other threads have asked for."""
        while not self._wanted_settings.empty():
            wanted, answer = self._wanted_settings.get_nowait()
            found: RunSettings | SettingsRefusal = SettingsRefusal(503, "internal error of the collector; see its log")
            with self._faults.contain("settings", "settings could not be changed; continuing"):
                found = self._change_settings(wanted)
            answer.set_result(found)

    def _note_severities(self) -> None:
        own = self._config.notify_severity_min
        found = {run.run: run.settings.config.notify_severity_min for run in self.runs}
        changed = {run_id: severity for run_id, severity in found.items() if severity != own}
        if changed != self.severities:
            self.severities = changed

    def _change_settings(self, wanted: WantedChange) -> RunSettings | SettingsRefusal:
        run = self.runs.get(wanted.run)
        if run is None:
            return SettingsRefusal(
                404, describe_unknown_run(wanted.run, (one.run for one in self.runs), "this collector")
            )
        now_ns, wall_s = self._clock.monotonic_ns(), ns_to_s(self._clock.wall_ns())
        try:
            effects = run.change_settings(wanted, Clocks(now_ns, wall_s))
        except SettingError as error:
            return SettingsRefusal(422, str(error))
        self._carry_out_all(run, effects)
        self._tick_run(run, now_ns, wall_s)
        return run.settings.state

    # -- effects ----------------------------------------------------------------------------------------------------

    def _apply(self, run: RunState, change: RunEvent | Detected) -> bool:
        """Apply an event or findings to a run and carry out the effects; return whether the run has applied it."""
        try:
            effects = run.apply(change)
        except Exception:  # noqa: BLE001 - the fault log has it
            self._faults.note("run_state", f"{type(change).__name__} could not be handled; continuing", run=run.run)
            return False
        self._carry_out_all(run, effects)
        return True

    def _carry_out_all(self, run: RunState, effects: Iterable[RunEffect]) -> None:
        for effect in effects:
            try:
                self._carry_out(effect)
            except Exception:  # noqa: BLE001 - the fault log has it
                self._faults.note("effect", f"{type(effect).__name__} could not be carried out", run=run.run)

    def _carry_out(self, effect: RunEffect) -> None:
        match effect:
            case AskClock(boot_id):
                self._exchange.answer(AskForClock(boot_id))
            case AskSamples(boot_id, order) | AskSettings(boot_id, order):
                self._exchange.answer(SendToRank(boot_id, order))
            case SettingChanged(run, text):
                LOG.warning("run %r: %s", run, text)
            case RefuseProcess(boot_id, detail):
                answer = self._admission.refuse_replaced(boot_id, detail)
                self._exchange.answer(SendToRank(boot_id, answer))
            case FindingOpened(run, finding):
                LOG.warning("run %r: finding %d: %s", run, finding.number, finding.sentence)
                self._journal.open(run, finding, ns_to_s(self._clock.wall_ns()))
            case UpdateFinding(run, finding):
                LOG.warning("run %r: finding %d is now: %s", run, finding.number, finding.sentence)
                self._journal.update(run, finding, ns_to_s(self._clock.wall_ns()))
            case CloseFinding(run, finding, reason, merged_into):
                LOG.warning(
                    "run %r: finding %d, %s of %s, is closed: %s",
                    run, finding.number, finding.kind, finding.subject, reason,
                )  # fmt: skip
                self._journal.close(run, finding, reason, ns_to_s(self._clock.wall_ns()), merged_into)

    def flush(self, run: RunState, steps_max: int | None = None) -> None:
        """Process the reports of a run that wait, and match at most `steps_max` steps; None: all."""
        try:
            run.flush_reports(steps_max=steps_max)
        except Exception:  # noqa: BLE001 - the fault log has it
            self._faults.note("run_state", "steps could not be processed; the run continues", run=run.run)

    def _check_local_processes(self, run: RunState) -> None:
        """Report to a run which of its rank processes on this machine no longer run."""
        attempt = run.attempt
        for identity in attempt.find_live(self._machine_id) if attempt is not None and self._machine_id else ():
            if is_gone(identity.pid):
                self._apply(run, ProcessGone(identity.boot_id, self._clock.monotonic_ns()))

    # -- runs that come and go --------------------------------------------------------------------------------------

    def restore(self, kept: KeptRun, clocks: Clocks) -> None:
        """Restore a run from the store. One that cannot be restored starts afresh with its ranks' next messages: no
        file may keep a collector from starting.
        """
        try:
            ranks = [rank for rank in kept.ranks if self._restore_process(rank)]
            run = restore_run(self._config, kept.run, kept.story, ranks, clocks, collectives=kept.collectives)
            self.runs.put(run)
            if ranks:
                self._admission.begin_run(ranks[0].hello.identity)
        except Exception:  # noqa: BLE001 - the fault log has it
            self._forget_processes(read_run_name(kept.run.run), [rank.hello.identity.boot_id for rank in kept.ranks])
            self._faults.note("history_run", "cannot be restored from the store; starting it afresh", run=kept.run.run)

    def _restore_process(self, rank: SavedRank) -> bool:
        counts = ProcessCounts(
            first_sequence=rank.first_sequence,
            last_sequence=rank.last_sequence,
            admitted=rank.admitted,
            missing=rank.missing,
            duplicates=rank.duplicates,
            gaps=0,
        )
        return self._admission.restore(rank.hello.identity, counts)

    def _remove_forgotten(self, name: str) -> None:
        """Remove the runs of a name that admission has forgotten for another, unless a rank has come back meanwhile:
        then it is asked for its Hello.
        """
        for run in [run for run in self.runs if run.name == name and not run.has_live_ranks]:
            self._remove(run)
            LOG.info("run %r was forgotten for a new one: runs_max or ranks_max is reached", run.run)

    def _remove(self, run: RunState) -> None:
        self.runs.remove(run)
        self._on_forget(run.run)
        self._impossible_logged = {one for one in self._impossible_logged if one[0] != run.run}
        self.evicted += 1

    def _forget(self, run: RunState) -> None:
        self._remove(run)
        self._forget_processes(run.name, frozenset(run.processes))
        text = "run %r was removed: no rank has reported for %.0f s, or enough later runs of its name are kept"
        LOG.debug(text, run.run, self._config.run_kept_s)

    def _forget_processes(self, name: str, boot_ids: Iterable[str]) -> None:
        """Admit nothing more from the rank processes of a run that was removed."""
        if name in self.runs.names:
            self._admission.forget_processes(boot_ids)
        else:
            self._admission.forget(name)


def _log_event(run: str, event: RunEvent) -> None:
    """Log joins and ends, for `serve -v`."""
    if isinstance(event, ReportAdmitted) or not LOG.isEnabledFor(logging.DEBUG):
        return
    match event:
        case RankJoined(hello):
            who = hello.identity
            LOG.debug(
                "run %r: Hello of rank %d of %d on node %s, restart %d, process %d",
                run, who.rank, who.world_size, who.node, who.restart_count, who.pid,
            )  # fmt: skip
        case GoodbyeAdmitted(boot_id, goodbye):
            LOG.debug(
                "run %r: the rank process with boot id %s ended: %s %s", run, boot_id, goodbye.reason, goodbye.detail
            )
        case EndSeen(_, seen):
            LOG.debug("run %r: the sidecar saw rank %d end: %s %s", run, seen.identity.rank, seen.reason, seen.detail)
