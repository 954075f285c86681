"""Assemble the collector and run its loop: receive -> admit -> update runs -> carry out effects -> publish.

    receive thread   sockets and admission (ingest/receive_thread.py), so that every rank is read at any time
    this thread      the only writer of run state: events, detection passes, snapshots
    store thread     writes what this thread hands over
    publish thread   sends finished snapshots to the publisher, a process of its own (publish/publisher_link.py)

A bug in the state of one run is contained to that run: it is counted and logged, and the other runs continue.
"""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection

from rankscope.collector.config import CollectorConfig
from rankscope.collector.cpu_share import CpuShareLimiter
from rankscope.collector.detect.detectors import build_detectors, detect
from rankscope.collector.detect.view import Detected
from rankscope.collector.fault_log import FaultLog
from rankscope.collector.incidents.journal import Journal
from rankscope.collector.incidents.ledger import RunFindings
from rankscope.collector.ingest.admission import Admission, ProcessCounts
from rankscope.collector.ingest.curve import CurveServer
from rankscope.collector.ingest.exchange import AskForClock, EventBatch, Exchange
from rankscope.collector.ingest.processes import is_gone
from rankscope.collector.ingest.receive_thread import ReceiveThread
from rankscope.collector.ingest.receiver import Receiver
from rankscope.collector.ingest.relays import Relays
from rankscope.collector.publish.http_listener import HttpListener, listen_http
from rankscope.collector.publish.publisher_link import Publisher, PublisherLink, Sources
from rankscope.collector.publish.snapshot_messages import Health
from rankscope.collector.publisher import PublisherThread
from rankscope.collector.run_ids import read_run_name
from rankscope.collector.runs.clock_alignment import Clocks
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
    UpdateFinding,
    find_boot_id,
)
from rankscope.collector.runs.rank import SavedRank
from rankscope.collector.runs.run import RunState
from rankscope.collector.runs.run_dump import RunDump, dump_run
from rankscope.collector.runs.run_end_words import find_failure
from rankscope.collector.runs.runs import Runs
from rankscope.collector.runs.saved_runs import restore_run
from rankscope.collector.runs.snapshot import CollectorCounts, Snapshot
from rankscope.collector.storage.run_recorder import Recorder, UnwrittenState
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
"""Longest wait for events: a request to stop may come just before a wait begins."""
DIRECT_CONNECTIONS_MAX = 2048
"""Connections other than relays' above which a relay on each node is the documented way (docs/scale-out.md): each
direct connection costs memory here and a wake-up for each report."""
ABSENCE_NS_MIN = NS_PER_S
"""A tick that is late by this much counts as an absence of the collector: a busy one is late by far less, and the
shortest silence that can be set for a rank is twice as long."""
DETECTION_CPU_SHARE = 0.05
"""Of a core: 16,384 ranks have a detection pass every other second, smaller runs one at every tick."""
STEPS_IN_BATCH_MAX = 1
"""Steps matched after a batch of reports. Those of a profiler window are complete at once, and a step of 16,384 ranks
takes 60 ms."""

StartPublisher = Callable[[Connection, CollectorConfig, HttpListener], Publisher]


class Service:
    """The collector. `run` works until `stop` is called, from a signal handler or another thread."""

    def __init__(
        self,
        config: CollectorConfig,
        clock: Clock,
        curve: CurveServer | None = None,
        start_publisher: StartPublisher = PublisherThread,
    ) -> None:
        """Bind both ports. `curve` are keys that are in no file. Raises UnavailableError naming the port that cannot be
        bound, SettingError for keys that are missing or cannot be used.
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
        self._logged_store_error = ""
        self._receive_thread = ReceiveThread(self._receiver, self._admission, self._exchange, clock, self._faults)
        self._detection_limiter = CpuShareLimiter(DETECTION_CPU_SHARE, s_to_ns(config.tick_s))
        self._runs = Runs(config)
        self._detectors = build_detectors(config)
        self._over: frozenset[str] = frozenset()
        self._without_run: OrderedDict[str, None] = OrderedDict()
        """Boot ids of rank processes whose Hello could not be handled, until one is."""
        self._runs_evicted = 0
        self._has_named_relays = False
        self._machine_id = read_machine_id()
        self._stopping = threading.Event()
        self._last_tick_ns = clock.monotonic_ns()
        self._snapshot = Snapshot(wall_s=self._wall_s(), version=__version__)
        self._journal = Journal(config, self._wall_s(), self._faults.count)
        self._unwritten: UnwrittenState | None = None
        self._listener = self._listen(config.http_listen)
        self._metrics_url = f"{self._listener.url(is_secure=http.tls is not None)}/metrics"
        self._receive_thread.metrics_url = self._metrics_url
        self._link = PublisherLink(
            lambda connection: start_publisher(connection, config, self._listener),
            Sources(
                self._find_exported,
                lambda: self._journal.incidents,
                self._read_health,
                self._dump_run,
            ),
            self._faults,
        )
        self._recorder = self._open_recorder()
        self._snapshot = self._build_snapshot()
        self._link.start()

    def _listen(self, address: str) -> HttpListener:
        try:
            return listen_http(address)
        except Exception:
            self._receiver.close()
            self._exchange.close()
            self._journal.shut_down(self._wall_s())
            raise

    @property
    def endpoint(self) -> str:
        """Where agents connect, `tcp://HOST:PORT` with the real port."""
        return self._receiver.endpoint

    @property
    def metrics_url(self) -> str:
        """Where /metrics is."""
        return self._metrics_url

    @property
    def snapshot(self) -> Snapshot:
        """The latest snapshot."""
        return self._snapshot

    def stop(self) -> None:
        """Make `run` return soon."""
        self._stopping.set()
        self._exchange.interrupt()

    def run(self, on_tick: Callable[[Snapshot], None] = lambda _snapshot: None) -> None:
        """Receive and tick until stopped. `on_tick` is called with each new snapshot."""
        tick_ns = s_to_ns(self._config.tick_s)
        next_tick_ns: int = self._clock.monotonic_ns()
        self._receive_thread.start()
        try:
            while not self._stopping.is_set():
                wait_ns = next_tick_ns - self._clock.monotonic_ns()
                for batch in self._exchange.get(min(ns_to_s(wait_ns), WAIT_S_MAX)):
                    self._process_batch(batch)
                if self._clock.monotonic_ns() >= next_tick_ns:
                    self._note_absence(self._clock.monotonic_ns() - next_tick_ns)
                    next_tick_ns = self._clock.monotonic_ns() + tick_ns
                    with self._faults.contain("tick", "a tick failed; continuing with the next one"):
                        self._tick()
                    on_tick(self._snapshot)
        finally:
            self._link.close()
            self._listener.socket.close()
            self._receive_thread.stop()
            self._receiver.close()
            self._exchange.close()
            self._shut_down_stores()

    # -- the store ----------------------------------------------------------------------------------------------------

    def _open_recorder(self) -> Recorder | None:
        """Restore the runs of the previous collector and start writing; return None while no file can be used."""
        database = self._journal.database
        if database is None:
            return None
        try:
            recorder = Recorder(database, self._config, self._faults.count, self._link.wake)
        except UnavailableError as error:
            self._faults.count("history_store")
            if str(error) != self._logged_store_error:
                self._logged_store_error = str(error)
                LOG.error("%s Until then runs and their history are kept in memory.", error)  # noqa: TRY400 - expected
            return None
        if self._unwritten is not None:  # the runs in memory are the present ones
            recorder.resume(self._unwritten)
            recorder.start()
            return recorder
        clocks = Clocks(self._clock.monotonic_ns(), self._wall_s())
        # While the store could not be opened, runs that continue were started afresh in memory.
        known = self._runs.names
        for kept in (kept for kept in recorder.load() if read_run_name(kept.run.run) not in known):
            self._restore_run(kept, clocks)
        recorder.start()
        return recorder

    def _replace_lost_store(self, wall_s: float) -> None:
        """Replace a store whose file is gone or damaged; the next recorder writes everything in memory."""
        lost = None if self._recorder is None else self._recorder.lost
        if self._recorder is None or lost is None:
            return
        self._unwritten, self._recorder = self._recorder.abandon(), None
        self._journal.replace_store(lost, wall_s)

    def _restore_run(self, kept: KeptRun, clocks: Clocks) -> None:
        """Restore a run from the store. One that cannot be restored starts afresh with its ranks' next messages: no
        file may keep a collector from starting.
        """
        try:
            ranks = [rank for rank in kept.ranks if self._restore_process(rank)]
            run = restore_run(self._config, kept.run, kept.story, ranks, clocks, collectives=kept.collectives)
            self._runs.put(run)
            if ranks:
                self._receive_thread.begin_run(ranks[0].hello.identity)
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
        return self._receive_thread.restore(rank.hello.identity, counts)

    def _record(self, clocks: Clocks, *, is_last: bool = False) -> None:
        if self._recorder is None:
            return
        try:
            self._recorder.tick(self._runs, self._snapshot, clocks, is_last=is_last)
        except Exception:  # noqa: BLE001 - the fault log has it
            self._faults.note("history", "runs could not be handed to the store; continuing")

    def _shut_down_stores(self) -> None:
        self._replace_lost_store(self._wall_s())
        if self._recorder is None and self._unwritten is not None:
            self._recorder = self._open_recorder()
        if self._recorder is not None:
            for run in self._runs:
                self._process_steps(run)
            self._snapshot = self._build_snapshot()
            self._record(Clocks(self._clock.monotonic_ns(), self._wall_s()), is_last=True)
            self._recorder.shut_down()
        self._journal.shut_down(self._wall_s())

    # -- events -------------------------------------------------------------------------------------------------------

    def _process_batch(self, batch: EventBatch) -> None:
        """Handle the events of a batch, and return it to the receive thread with the rank processes that have no run.

        A rank process has to be known before anything of it counts: where its Hello could not be handled, or its run
        does not exist, nothing of it is acknowledged, and it is asked for its Hello. An event of a known rank process
        that cannot be handled is lost, counted, and acknowledged: sent again it would fail each time.
        """
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
            self._process_steps(run, STEPS_IN_BATCH_MAX)

    def _handle_event(self, name: str, boot_id: str, event: PeerEvent) -> RunState | None:
        """Return the run that has the event now; None where no run knows the rank process."""
        run = self._runs.find(name, event)
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
            run = self._runs.begin(identity.run, self._wall_s())
        except Exception:  # noqa: BLE001 - the fault log has it
            self._faults.note("run_state", "could not be started; asking its ranks for a Hello again", run=identity.run)
            return None
        self._receive_thread.begin_run(identity)
        return run

    def _apply(self, run: RunState, change: RunEvent | Detected) -> bool:
        """Apply an event or findings to a run and carry out the effects; return whether the run has applied it."""
        try:
            effects = run.apply(change)
        except Exception:  # noqa: BLE001 - the fault log has it
            self._faults.note("run_state", f"{type(change).__name__} could not be handled; continuing", run=run.run)
            return False
        self._carry_out_all(run, effects)
        return True

    def _tick_run(self, run: RunState, now_ns: int, wall_s: float) -> None:
        try:
            effects = run.tick(now_ns, wall_s)
        except Exception:  # noqa: BLE001 - the fault log has it
            self._faults.note("run_state", "its tick failed; continuing", run=run.run)
            return
        self._carry_out_all(run, effects)

    def _detect(self, run: RunState, now_ns: int) -> None:
        """Run detection over a view of the run, and apply what was found."""
        try:
            view = run.view(now_ns)
            found = None if view is None else detect(view, self._detectors)
        except Exception:  # noqa: BLE001 - the fault log has it
            self._faults.note("run_state", "detection failed; continuing", run=run.run)
            return
        if found is not None:
            self._apply(run, found)

    def _carry_out_all(self, run: RunState, effects: Iterable[RunEffect]) -> None:
        for effect in effects:
            try:
                self._carry_out(effect)
            except Exception:  # noqa: BLE001 - the fault log has it
                self._faults.note("effect", f"{type(effect).__name__} could not be carried out", run=run.run)

    def _process_steps(self, run: RunState, steps_max: int | None = None) -> None:
        try:
            run.flush_reports(steps_max=steps_max)
        except Exception:  # noqa: BLE001 - the fault log has it
            self._faults.note("run_state", "steps could not be processed; the run continues", run=run.run)

    # -- the tick -----------------------------------------------------------------------------------------------------

    def _note_absence(self, late_ns: int) -> None:
        """Report a tick that is far too late to every run: the collector was stopped, or its clock has jumped."""
        if late_ns >= ABSENCE_NS_MIN:
            for run in self._runs:
                self._apply(run, CollectorAway(late_ns, self._clock.monotonic_ns()))

    def _tick(self) -> None:
        now_ns, wall_s = self._clock.monotonic_ns(), self._wall_s()
        self._tick_runs(now_ns, wall_s)
        self._update_incidents(wall_s)
        self._warn_of_direct_connections()
        self._replace_lost_store(wall_s)
        if self._recorder is None:  # the store may have become usable
            self._recorder = self._open_recorder()
            if self._recorder is not None:
                self._unwritten = None
        self._publish(now_ns)
        self._last_tick_ns = now_ns  # only now: a collector whose ticks fail is not healthy
        self._link.wake()

    def _warn_of_direct_connections(self) -> None:
        """Name the relays, once, when so many ranks are connected directly that a relay on each node is the way."""
        direct = self._receiver.connections - self._relays.totals.relays
        if direct <= DIRECT_CONNECTIONS_MAX or self._has_named_relays:
            return
        self._has_named_relays = True
        LOG.warning(
            "%d connections are not those of relays; above %d run a relay on each node (rankscope relay, "
            "docs/scale-out.md): the collector then has one connection and one batch a second from each node",
            direct,
            DIRECT_CONNECTIONS_MAX,
        )

    def _tick_runs(self, now_ns: int, wall_s: float) -> None:
        for former in self._runs.find_excess_runs():
            self._forget(former)
        detects, began_ns = self._detection_limiter.is_due(now_ns), time.thread_time_ns()
        for run in list(self._runs):
            self._check_local_processes(run)
            self._tick_run(run, now_ns, wall_s)
            if detects:
                self._detect(run, now_ns)
            if not run.has_live_ranks and now_ns - run.last_change_collector_ns > s_to_ns(self._config.run_kept_s):
                self._forget(run)
        over = self._runs.over_ids
        for run_id in over - self._over:
            self._receive_thread.end_run(read_run_name(run_id))
        self._over = over
        if detects:
            self._detection_limiter.record(now_ns, time.thread_time_ns() - began_ns)

    def _check_local_processes(self, run: RunState) -> None:
        """Report to a run which of its rank processes on this machine no longer run."""
        attempt = run.attempt
        for identity in attempt.find_live(self._machine_id) if attempt is not None and self._machine_id else ():
            if is_gone(identity.pid):
                self._apply(run, ProcessGone(identity.boot_id, self._clock.monotonic_ns()))

    def _forget(self, run: RunState) -> None:
        self._runs.remove(run)
        self._forget_processes(run.name, frozenset(run.processes))
        if self._recorder is not None:
            self._recorder.forget(run.run)
        elif self._unwritten is not None:
            self._unwritten.batch.forget(run.run)
        self._runs_evicted += 1
        LOG.debug("run %r was removed: none of its ranks reported for %.0f s", run.run, self._config.run_kept_s)

    def _forget_processes(self, name: str, boot_ids: Iterable[str]) -> None:
        """Admit nothing more from the rank processes of a run that was removed."""
        if name in self._runs.names:
            self._receive_thread.forget_processes(boot_ids)
        else:
            self._receive_thread.forget(name)

    def _update_incidents(self, wall_s: float) -> None:
        runs = [
            RunFindings(
                run.run,
                run.open_findings,
                is_over=run.is_over,
                is_judged=run.findings.why_no_verdict is None,
                failure=find_failure(run.ending.end),
                is_superseded=run.is_superseded,
                findings_as_closed=run.findings.findings_as_closed,
            )
            for run in self._runs
        ]
        try:
            self._journal.tick(runs, wall_s)
        except Exception:  # noqa: BLE001 - the fault log has it
            self._faults.note("incidents", "incidents could not be updated; continuing")

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

    def _publish(self, now_ns: int) -> None:
        """Build a snapshot for readers and the store."""
        began_ns = time.thread_time_ns()
        self._snapshot = self._build_snapshot()
        self._record(Clocks(now_ns, self._wall_s()))
        took_ns = time.thread_time_ns() - began_ns
        LOG.debug("a snapshot of %d runs took %.1f ms of CPU", len(self._runs.names), took_ns / NS_PER_MS)

    def _build_snapshot(self) -> Snapshot:
        now_ns = self._clock.monotonic_ns()
        store = None if self._recorder is None else self._recorder.counts
        relays = self._relays.totals
        return Snapshot(
            wall_s=ns_to_s(self._clock.wall_ns()),
            version=__version__,
            runs=[run.lazy_snapshot(now_ns) for run in self._runs],
            steps={run.run: run.heat_map_steps for run in self._runs if run.heat_map_steps is not None},
            counts=CollectorCounts(
                frames_received=self._receiver.frames_received,
                connections=self._receiver.connections,
                read_pause_s=ns_to_s(self._receive_thread.stalls.longest_ns),
                frames_refused=dict(self._receiver.refused),
                peers_refused={
                    **self._receiver.connections_refused,
                    **self._admission.refused,
                    **self._relays.refused,
                },
                answers_unsent=dict(self._receiver.send_failures),
                relays=relays.relays,
                relay_batches=relays.batches,
                relay_dropped=relays.dropped,
                relay_refused=relays.refused,
                runs_evicted=self._runs_evicted,
                contained_errors=self._faults.counts,
                store_writable=self._find_store_problem() is None if self._config.store else None,
                stores_lost=dict(self._journal.stores_lost),
                store_bytes=None if store is None else store.bytes_used,
                history_dropped=None if store is None else store.rows_dropped,
            ),
        )

    def _dump_run(self, asked: str) -> RunDump | None:
        """Return the inside of a run by its id or name, on the publish thread; None when there is none."""
        run = self._runs.get(asked)
        return None if run is None else dump_run(run, self._clock.monotonic_ns())

    def _read_health(self) -> Health:
        return Health(
            tick_age_ns=self._clock.monotonic_ns() - self._last_tick_ns,
            is_stopping=self._stopping.is_set(),
            degradation=self._find_degradation(),
        )

    def _find_degradation(self) -> str | None:
        """Return what is wrong with the store while reports are still received, or what it has lost."""
        return self._find_store_problem() or self._journal.store_note

    def _find_store_problem(self) -> str | None:
        recorder = self._recorder  # the loop may replace it while the publish thread is here
        problem = self._journal.problem or (None if recorder is None else recorder.problem)
        return None if problem is None else f"nothing is written to the store, and all is kept in memory: {problem}"

    def _find_exported(self) -> Snapshot:
        # On the publish thread: the loop may open a recorder after the first of these is read.
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
            LOG.debug(
                "run %r: the rank process with boot id %s ended: %s %s", run, boot_id, goodbye.reason, goodbye.detail
            )
        case EndSeen(_, seen):
            LOG.debug("run %r: the sidecar saw rank %d end: %s %s", run, seen.identity.rank, seen.reason, seen.detail)
