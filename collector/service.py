"""ASSEMBLY and loop of the collector: receive -> admit -> handle -> carry out effects -> publish.

    receiving thread   ingest/reception.py: sockets and admission, so that everybody is heard at any time
    this thread        the state of the runs, which nobody else writes: events, looks, pictures
    HTTP threads       read the finished snapshot
    the store's        writes what this thread hands over

A bug in the state of one run is contained to that run: it is counted and logged, and the others go on.
"""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from rankscope.collector.config import CollectorConfig
from rankscope.collector.fault_log import FaultLog
from rankscope.collector.incidents.journal import Journal
from rankscope.collector.incidents.ledger import RunLook
from rankscope.collector.ingest.admission import Admission, LifeCounts
from rankscope.collector.ingest.curve import CurveServer
from rankscope.collector.ingest.exchange import AskForClock, Batch, Exchange
from rankscope.collector.ingest.processes import is_gone
from rankscope.collector.ingest.receive_thread import ReceiveThread
from rankscope.collector.ingest.receiver import Receiver
from rankscope.collector.ingest.relays import Relays
from rankscope.collector.pacing import CpuShareLimiter, DetectionSchedule, GilYielder
from rankscope.collector.publish.http_server import HttpServer
from rankscope.collector.publish.metrics.pages import MetricPages
from rankscope.collector.publish.metrics.snapshot_requests import SnapshotRequests
from rankscope.collector.reports.run_report import report_as_json
from rankscope.collector.run_ids import read_run_name
from rankscope.collector.runs.checkpoint import Clocks, SavedRank
from rankscope.collector.runs.events import (
    AskClock,
    CloseFinding,
    CollectorAway,
    EndSeen,
    GoodbyeAdmitted,
    OpenFinding,
    PeerEvent,
    ProcessGone,
    RankJoined,
    ReportAdmitted,
    RunEffect,
    RunEvent,
    Tick,
    UpdateFinding,
    find_boot_id,
)
from rankscope.collector.runs.run import RunState
from rankscope.collector.runs.run_end_words import find_failure
from rankscope.collector.runs.runs import Runs
from rankscope.collector.runs.snapshot import CollectorCounts, Snapshot
from rankscope.collector.storage.run_recorder import Recorder, Unwritten
from rankscope.collector.storage.run_store import KeptRun
from rankscope.collector.wire_auth import read_curve, read_http
from rankscope.measure import __version__
from rankscope.measure.clock import Clock
from rankscope.measure.errors import UnavailableError
from rankscope.measure.identity import RankIdentity
from rankscope.measure.machine import read_machine_id
from rankscope.measure.units import NS_PER_MS, NS_PER_S, ns_to_s, s_to_ns

LOG = logging.getLogger("rankscope.collector")

WAIT_S_MAX = 1.0
"""Longest wait for events: a request to stop may come just before one begins."""
AWAY_NS_MIN = NS_PER_S
"""Lateness of a tick from which on it counts as an absence of the collector: what a busy one is late is far less, and
the shortest silence that can be set for a rank is twice as long."""
LOOKS_SHARE = 0.05
"""Of a core, for detection: 16,384 ranks are looked at every other second, smaller runs at every tick."""
PICTURES_SHARE = 0.03
"""Of a core, for pictures at ticks. One of 16,384 ranks takes 80 ms with what is saved of it: every third second. Up to
some 5,000 ranks there is a new one at each tick."""
STEPS_IN_BATCH_MAX = 1
"""Steps resolved after a batch of reports. Those of a profiler window are complete at once, and a picture that is
ordered waits for the batch: with both of two steps of 16,384 ranks for 0.3 to 0.5 s."""
SILENT_TICKS_S = 10.0
"""A loop whose last tick is older than this is not healthy."""


class Service:
    """The collector. `run` works until `stop` is called, from a signal handler or another thread."""

    def __init__(self, config: CollectorConfig, clock: Clock, curve: CurveServer | None = None) -> None:
        """Bind both ports. `curve` are keys that are in no file. Raises UnavailableError naming the port that cannot be
        had, SettingError for keys that cannot be used or are lacking.
        """
        self._config = config
        self._clock = clock
        http = read_http(config)
        curve = curve or read_curve(config, clock)
        self._relays = Relays() if curve is None else curve.make_relays()
        self._receiver = Receiver(
            config.listen,
            message_bytes_max=config.message_bytes_max,
            curve=curve,
            relays=self._relays,
            clock=clock,
        )
        self._admission = Admission(runs_max=config.runs_max, ranks_max=config.ranks_max)
        self._exchange = Exchange()
        self._faults = FaultLog(clock)
        self._store_error_said = ""
        self._reception = ReceiveThread(self._receiver, self._admission, self._exchange, clock, self._faults)
        self._turns = GilYielder(self._exchange.turn)
        self._looks = DetectionSchedule(LOOKS_SHARE, s_to_ns(config.tick_s))
        self._pictures = CpuShareLimiter(PICTURES_SHARE, s_to_ns(config.tick_s))
        self._orders = SnapshotRequests(clock, self._exchange.interrupt)
        self._runs = Runs(config)
        self._over: frozenset[str] = frozenset()
        self._untaken: OrderedDict[str, None] = OrderedDict()
        """Lives whose Hello could not be taken in, until it can be."""
        self._runs_evicted = 0
        self._machine_id = read_machine_id()
        self._stopping = threading.Event()
        self._last_tick_ns = clock.monotonic_ns()
        self._snapshot = Snapshot(wall_s=self._wall_s(), version=__version__)
        self._journal = Journal(config, self._wall_s(), self._faults.count)
        self._unwritten: Unwritten | None = None
        self._recorder = self._open_recorder()
        self._read_http_refused: Callable[[], Mapping[str, int]] = dict
        store = Path(config.store)
        try:
            self._http = HttpServer(
                config.http_listen,
                lambda: self._snapshot,
                lambda: self._journal.incidents,
                is_healthy=self._find_illness,
                is_ready=self._find_unready,
                access=http,
                find_weakness=self._find_weakness,
                read_exported=self._find_exported,
                read_report=(lambda run: report_as_json(store, run)) if config.store else None,
                store=store if config.store else None,
                metric_pages=MetricPages(series_max=config.series_max, metrics_ranks_max=config.metrics_ranks_max),
                take_turn=self._exchange.turn,
                orders=self._orders,
            )
        except Exception:
            self._receiver.close()
            self._exchange.close()
            self._shut_stores()
            raise
        self._reception.metrics_url = self.metrics_url
        self._read_http_refused = lambda: self._http.refused
        self._snapshot = self._take_snapshot()

    @property
    def endpoint(self) -> str:
        """Where agents connect, `tcp://HOST:PORT` with the real port."""
        return self._receiver.endpoint

    @property
    def metrics_url(self) -> str:
        """Where /metrics is."""
        return f"{self._http.url}/metrics"

    @property
    def snapshot(self) -> Snapshot:
        """The picture of the last tick."""
        return self._snapshot

    def stop(self) -> None:
        """Make `run` return soon."""
        self._stopping.set()
        self._exchange.interrupt()

    def run(self, on_tick: Callable[[Snapshot], None] = lambda _snapshot: None) -> None:
        """Receive and tick until stopped. `on_tick` is called with each new snapshot."""
        tick_ns = s_to_ns(self._config.tick_s)
        next_tick_ns: int = self._clock.monotonic_ns()
        self._reception.start()
        try:
            while not self._stopping.is_set():
                wait_ns = next_tick_ns - self._clock.monotonic_ns()
                for batch in self._exchange.take(min(ns_to_s(wait_ns), WAIT_S_MAX)):
                    with self._turns:
                        self._take(batch)
                    self._carry_out_order(is_behind=True)  # of what waits there may be half a second's work
                is_due = self._clock.monotonic_ns() >= next_tick_ns or self._has_look_put_off()
                self._carry_out_order(is_behind=self._exchange.has_batches and not is_due)  # a tick may look for long
                if is_due:
                    self._pass_over(self._clock.monotonic_ns() - next_tick_ns)
                    next_tick_ns = self._clock.monotonic_ns() + tick_ns
                    with self._turns, self._faults.contain("tick", "a tick failed; the next one is tried"):
                        self._tick()
                    on_tick(self._snapshot)
        finally:
            self._http.close()
            self._reception.end()
            self._receiver.close()
            self._exchange.close()
            self._shut_stores()

    # -- what outlives it ---------------------------------------------------------------------------------------------

    def _open_recorder(self) -> Recorder | None:
        """Go on with the runs of the collector before, and begin to write; None while there is no file to be used."""
        database = self._journal.database
        if database is None:
            return None
        try:
            recorder = Recorder(database, self._config, self._faults.count, take_turn=self._exchange.turn)
        except UnavailableError as error:
            self._faults.count("history_store")
            if str(error) != self._store_error_said:
                self._store_error_said = str(error)
                LOG.error("%s Until then runs and their history are kept in memory.", error)  # noqa: TRY400 - said
            return None
        if self._unwritten is not None:  # the runs in memory are the present ones
            recorder.go_on_with(self._unwritten)
            recorder.start()
            return recorder
        clocks = Clocks(self._clock.monotonic_ns(), self._wall_s())
        # Where the store could not be opened at first, runs that go on have been begun anew meanwhile.
        begun_anew = self._runs.names
        for kept in (kept for kept in recorder.load() if read_run_name(kept.run.run) not in begun_anew):
            self._restore_run(kept, clocks)
        recorder.start()
        return recorder

    def _leave_lost_store(self, wall_s: float) -> None:
        """Begin anew with the store once its file is gone or damaged; the next recorder writes all that is known."""
        lost = None if self._recorder is None else self._recorder.lost
        if self._recorder is None or lost is None:
            return
        self._unwritten, self._recorder = self._recorder.abandon(), None
        self._journal.begin_anew(lost, wall_s)

    def _restore_run(self, kept: KeptRun, clocks: Clocks) -> None:
        """A run that cannot be gone on with begins anew with its ranks: no file may keep a collector from starting."""
        try:
            lives = [life for life in kept.lives if self._restore_life(life)]
            job = RunState.restore(self._config, kept.run, kept.story, lives, clocks, collectives=kept.collectives)
            job.rest = self._turns.rest
            self._runs.put(job)
            if lives:
                self._reception.begin_run(lives[0].hello.identity)
        except Exception:  # noqa: BLE001 - the fault log has it
            self._forget_lives(read_run_name(kept.run.run), [life.hello.identity.boot_id for life in kept.lives])
            self._faults.note("history_run", "could not be restored from the store; it begins anew", run=kept.run.run)

    def _restore_life(self, life: SavedRank) -> bool:
        counts = LifeCounts(
            first_sequence=life.first_sequence,
            last_sequence=life.last_sequence,
            admitted=life.admitted,
            missing=life.missing,
            duplicates=life.duplicates,
            jumps=0,
        )
        return self._reception.restore(life.hello.identity, counts)

    def _record(self, clocks: Clocks, *, is_last: bool = False) -> None:
        if self._recorder is None:
            return
        try:
            self._recorder.tick(self._runs, self._snapshot, clocks, is_last=is_last)
        except Exception:  # noqa: BLE001 - the fault log has it
            self._faults.note("history", "runs could not be handed to the store; the collector goes on")

    def _shut_stores(self) -> None:
        self._leave_lost_store(self._wall_s())
        if self._recorder is None and self._unwritten is not None:
            self._recorder = self._open_recorder()
        if self._recorder is not None:
            for job in self._runs:
                self._contain_settling(job)
            self._snapshot = self._take_snapshot()
            self._record(Clocks(self._clock.monotonic_ns(), self._wall_s()), is_last=True)
            self._recorder.shut()
        self._journal.shut(self._wall_s())

    # -- what has come in ---------------------------------------------------------------------------------------------

    def _take(self, batch: Batch) -> None:
        """Everything of a batch into the state of its runs, and then the word that it is, and of which lives it is not.

        A life has to be known before anything of it counts: where its Hello could not be taken in, or its run is not
        there, nothing of it is acknowledged, and it is asked for its Hello. An event of a life that is known and that
        cannot be handled is lost, counted, and acknowledged: it would come again for ever and fail each time.
        """
        try:
            self._take_events(batch)
        except Exception:  # noqa: BLE001 - the fault log has it
            self._faults.note(
                "batch", "a batch could not be processed; its ranks are asked to send what they hold again"
            )
            boot_ids = {find_boot_id(event) for _, event in batch.events}
            batch.untaken |= boot_ids
            batch.unknown |= boot_ids
        self._exchange.answer(batch)

    def _take_events(self, batch: Batch) -> None:
        touched: dict[str, RunState] = {}
        for name, event in batch.events:
            boot_id = find_boot_id(event)
            job = self._take_event(name, boot_id, event)
            if job is None:
                batch.untaken.add(boot_id)
                if isinstance(event, RankJoined) or boot_id not in self._untaken:
                    batch.unknown.add(boot_id)
            else:
                touched[job.run] = job
        for job in touched.values():
            self._contain_settling(job, STEPS_IN_BATCH_MAX)

    def _take_event(self, name: str, boot_id: str, event: PeerEvent) -> RunState | None:
        """Return the run that has taken an event in; None where none knows its life."""
        job = self._runs.find(name, event)
        if isinstance(event, RankJoined):
            self._untaken.pop(boot_id, None)
            job = job or self._begin_run(event.hello.identity)
            if job is None or not self._contain(job, event):
                self._untaken[boot_id] = None
                if len(self._untaken) > self._config.ranks_max:
                    self._untaken.popitem(last=False)
                return None
        elif job is not None and boot_id not in self._untaken:
            self._contain(job, event)
        _log_event(name if job is None else job.run, event)
        return None if boot_id in self._untaken else job

    def _begin_run(self, identity: RankIdentity) -> RunState | None:
        """Begin a run, the latest of its name."""
        try:
            job = self._runs.begin(identity.run, self._wall_s())
        except Exception:  # noqa: BLE001 - the fault log has it
            self._faults.note(
                "run_state", "could not be begun; its ranks are asked for a Hello again", run=identity.run
            )
            return None
        job.rest = self._turns.rest
        self._reception.begin_run(identity)
        return job

    def _contain(self, job: RunState, event: RunEvent) -> bool:
        """Let a run handle an event, and return whether it has."""
        try:
            effects = job.handle(event)
        except Exception:  # noqa: BLE001 - the fault log has it
            self._faults.note("run_state", f"{type(event).__name__} could not be handled; the run goes on", run=job.run)
            return False
        for effect in effects:
            try:
                self._carry_out(effect)
            except Exception:  # noqa: BLE001 - the fault log has it
                self._faults.note("effect", f"{type(effect).__name__} could not be carried out", run=job.run)
        return True

    def _contain_settling(self, job: RunState, steps_max: int | None = None) -> None:
        try:
            job.settle(steps_max=steps_max)
        except Exception:  # noqa: BLE001 - the fault log has it
            self._faults.note("run_state", "steps could not be processed; the run continues", run=job.run)

    # -- the tick -----------------------------------------------------------------------------------------------------

    def _pass_over(self, away_ns: int) -> None:
        """A tick that comes far too late: the collector was stopped, or its clock has jumped."""
        if away_ns >= AWAY_NS_MIN:
            for job in self._runs:
                self._contain(job, CollectorAway(away_ns, self._clock.monotonic_ns()))

    def _tick(self) -> None:
        now_ns, wall_s = self._clock.monotonic_ns(), self._wall_s()
        self._look_at_runs(now_ns, wall_s)
        self._look_at_incidents(wall_s)
        self._leave_lost_store(wall_s)
        if self._recorder is None:  # perhaps the store can be opened only now
            self._recorder = self._open_recorder()
            if self._recorder is not None:
                self._unwritten = None
        if self._pictures.is_due(now_ns) or self._orders.is_open(now_ns):
            self._publish(now_ns)
        self._last_tick_ns = now_ns  # only now: a collector whose ticks go wrong is not healthy

    def _look_at_runs(self, now_ns: int, wall_s: float) -> None:
        for former in self._runs.find_excess_runs():
            self._forget(former)
        looks, began_ns = self._decide_on_look(now_ns), time.thread_time_ns()
        for job in list(self._runs):
            self._look_for_gone_processes(job)
            self._contain(job, Tick(now_ns, wall_s, looks=looks))
            if not job.has_live_ranks and now_ns - job.last_change_collector_ns > s_to_ns(self._config.run_kept_s):
                self._forget(job)
        over = self._runs.over_ids
        for run_id in over - self._over:
            self._reception.end_run(read_run_name(run_id))
        self._over = over
        if looks:
            self._looks.take(now_ns, self._clock.monotonic_ns(), time.thread_time_ns() - began_ns)

    def _decide_on_look(self, now_ns: int) -> bool:
        return self._looks.decide(now_ns, is_writing=self._orders.is_writing, order_ns=self._orders.next_ns)

    def _has_look_put_off(self) -> bool:
        """Whether a look that was put off may come now: there is a tick for it."""
        return self._looks.is_put_off and self._decide_on_look(self._clock.monotonic_ns())

    def _look_for_gone_processes(self, job: RunState) -> None:
        for identity in job.live_identities(self._machine_id) if self._machine_id else ():
            if is_gone(identity.pid):
                self._contain(job, ProcessGone(identity.boot_id, self._clock.monotonic_ns()))

    def _forget(self, job: RunState) -> None:
        self._runs.remove(job)
        self._forget_lives(job.name, job.boot_ids)
        if self._recorder is not None:
            self._recorder.forget(job.run)
        elif self._unwritten is not None:
            self._unwritten.batch.forget(job.run)
        self._runs_evicted += 1
        LOG.debug("run %r was removed: none of its ranks reported for %.0f s", job.run, self._config.run_kept_s)

    def _forget_lives(self, name: str, boot_ids: Iterable[str]) -> None:
        """Take nothing in any more from the lives of a run that has been let go of."""
        if name in self._runs.names:
            self._reception.forget_lives(boot_ids)
        else:
            self._reception.forget(name)

    def _look_at_incidents(self, wall_s: float) -> None:
        looks = [
            RunLook(
                job.run,
                job.open_findings,
                is_over=job.is_over,
                can_tell=job.abstained is None,
                failure=find_failure(job.end),
                is_superseded=job.is_superseded,
                findings_as_closed=job.findings_as_closed,
            )
            for job in self._runs
        ]
        try:
            self._journal.tick(looks, wall_s)
        except Exception:  # noqa: BLE001 - the fault log has it
            self._faults.note("incidents", "incidents could not be brought up to date; the collector goes on")

    def _carry_out(self, effect: RunEffect) -> None:
        match effect:
            case AskClock(boot_id):
                self._exchange.answer(AskForClock(boot_id))
            case OpenFinding(run, finding):
                LOG.warning("run %r: %s", run, finding.sentence)
                self._journal.open(run, finding, self._wall_s())
            case UpdateFinding(run, finding):
                LOG.warning("run %r: finding %d is now: %s", run, finding.number, finding.sentence)
                self._journal.update(run, finding, self._wall_s())
            case CloseFinding(run, finding, reason, merged_into):
                LOG.warning(
                    "run %r: finding %d, %s of %s, is closed: %s",
                    run, finding.number, finding.kind, finding.subject, reason,
                )  # fmt: skip
                self._journal.close(run, finding, reason, self._wall_s(), merged_into)

    def _wall_s(self) -> float:
        return ns_to_s(self._clock.wall_ns())

    # -- publishing ---------------------------------------------------------------------------------------------------

    def _carry_out_order(self, *, is_behind: bool) -> None:
        """Make the picture that was ordered, if any was; not at once while the state `is_behind` what has come."""
        if self._orders.is_open(self._clock.monotonic_ns(), is_behind=is_behind):
            with self._turns, self._faults.contain("snapshot", "a snapshot could not be made"):
                self._publish(self._clock.monotonic_ns())

    def _publish(self, now_ns: int) -> None:
        """A new picture, for everybody and for the store."""
        self._orders.close(self._wall_s())
        began_ns = time.thread_time_ns()
        self._turns.rest()
        self._snapshot = self._take_snapshot()
        self._turns.rest()
        self._record(Clocks(now_ns, self._wall_s()))
        took_ns = time.thread_time_ns() - began_ns
        self._pictures.take(now_ns, took_ns)
        self._orders.take(now_ns, took_ns)
        LOG.debug("a snapshot of %d runs took %.1f ms of CPU", len(self._runs.names), took_ns / NS_PER_MS)

    def _take_snapshot(self) -> Snapshot:
        now_ns = self._clock.monotonic_ns()
        store = None if self._recorder is None else self._recorder.counts
        relays = self._relays.totals
        return Snapshot(
            wall_s=ns_to_s(self._clock.wall_ns()),
            version=__version__,
            runs=[job.draft(now_ns) for job in self._runs],
            steps={job.run: job.heat_map_steps for job in self._runs if job.heat_map_steps is not None},
            counts=CollectorCounts(
                frames_received=self._receiver.frames_received,
                connections=self._receiver.connections,
                read_pause_s=ns_to_s(self._reception.pauses.longest_ns),
                frames_refused=dict(self._receiver.refused),
                peers_refused={
                    **self._receiver.connections_refused,
                    **self._admission.refused,
                    **self._relays.refused,
                },
                answers_unsent=dict(self._receiver.unsent),
                relays=relays.relays,
                relay_batches=relays.batches,
                relay_dropped=relays.dropped,
                relay_refused=relays.refused,
                http_refused=self._read_http_refused(),
                runs_evicted=self._runs_evicted,
                contained_errors=self._faults.counts,
                store_writable=self._find_store_problem() is None if self._config.store else None,
                stores_lost=dict(self._journal.stores_lost),
                store_bytes=None if store is None else store.bytes_used,
                history_dropped=None if store is None else store.lines_dropped,
            ),
        )

    def _find_illness(self) -> str | None:
        age_s = ns_to_s(self._clock.monotonic_ns() - self._last_tick_ns)
        return f"the last tick was {age_s:.1f} s ago" if age_s > SILENT_TICKS_S else None

    def _find_unready(self) -> str | None:
        return "stopping" if self._stopping.is_set() else None

    def _find_weakness(self) -> str | None:
        """What the collector does without, though it takes reports, or what its store has lost."""
        return self._find_store_problem() or self._journal.store_note

    def _find_store_problem(self) -> str | None:
        recorder = self._recorder  # another thread may ask while the loop gives it up
        problem = self._journal.problem or (None if recorder is None else recorder.problem)
        return None if problem is None else f"nothing is written to the store, and all is kept in memory: {problem}"

    def _find_exported(self) -> Snapshot:
        # Another thread's question: between the first two a new recorder may have come.
        exporter = self._recorder or self._unwritten or self._recorder
        return self._snapshot if exporter is None else exporter.choose_exported(self._snapshot)


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
            LOG.debug("run %r: the rank of boot id %s has ended: %s %s", run, boot_id, goodbye.reason, goodbye.detail)
        case EndSeen(_, seen):
            LOG.debug("run %r: the sidecar saw rank %d end: %s %s", run, seen.identity.rank, seen.reason, seen.detail)
