"""Assemble the collector and run its loop: receive -> admit -> update runs -> carry out effects -> publish.

    receive thread   sockets and admission (ingest/receive_thread.py), so that every rank is read at any time
    this thread      the only writer of run state: events, detection passes, snapshots
    store thread     writes what this thread hands over
    notifications    a thread for each receiver of events about incidents (notifications/channel.py)
    captures thread  orders captures, fetches and keeps their files (captures/capture_thread.py)
    preflights       answers pre-flights from the store (preflights.py)
    publish thread   sends finished snapshots to the publisher, a process of its own (publish/publisher_link.py)

A bug in the state of one run is contained to that run: it is counted and logged, and the other runs continue.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection

from rankscope.collector.captures.capture_thread import CaptureThread
from rankscope.collector.captures.incident_captures import IncidentCaptures
from rankscope.collector.config import CollectorConfig
from rankscope.collector.detect.finding import Finding
from rankscope.collector.fault_log import FaultLog
from rankscope.collector.incidents.journal import Journal
from rankscope.collector.incidents.ledger import ComparedRun
from rankscope.collector.ingest.admission import Admission
from rankscope.collector.ingest.curve import CurveServer
from rankscope.collector.ingest.exchange import Exchange, SendToRank
from rankscope.collector.ingest.receive_thread import ReceiveThread
from rankscope.collector.ingest.receiver import Receiver
from rankscope.collector.ingest.relays import Relays
from rankscope.collector.notifications.notifier import make_notifier, read_receivers
from rankscope.collector.notifications.otlp_logs import read_otlp_logs
from rankscope.collector.preflights import Preflights
from rankscope.collector.publish.http_listener import PORT_WAIT_S, HttpListener, listen_http
from rankscope.collector.publish.publisher_link import PublisherLink, RunningPublisher, Sources
from rankscope.collector.publish.snapshot_messages import Health
from rankscope.collector.publisher import PublisherThread
from rankscope.collector.recording import Recording
from rankscope.collector.run_summaries import RunSummaries
from rankscope.collector.run_updates import RunUpdates
from rankscope.collector.runs.clock_alignment import Clocks
from rankscope.collector.runs.hearing import SilentRun, find_nothing_heard
from rankscope.collector.runs.held_gpus import GpuSummary
from rankscope.collector.runs.live_settings import RunSettings, SettingsRefusal, WantedChange
from rankscope.collector.runs.run_dump import RunDump, dump_run
from rankscope.collector.runs.run_end_words import find_failure
from rankscope.collector.runs.snapshot import CollectorCounts, Snapshot
from rankscope.collector.wakeup import Wakeup
from rankscope.collector.wire_auth import read_curve, read_http
from rankscope.measure import __version__
from rankscope.measure.clock import Clock
from rankscope.measure.units import NS_PER_MS, ns_to_s, s_to_ns

LOG = logging.getLogger("rankscope.collector")

WAIT_S_MAX = 1.0
"""Longest wait for events: a request to stop may come just before a wait begins."""
DIRECT_CONNECTIONS_MAX = 2048
"""Connections other than relays' above which a relay on each node is the documented way (docs/scale-out.md): each
direct connection costs memory here and a wake-up for each report."""

StartPublisher = Callable[[Connection, CollectorConfig, HttpListener], RunningPublisher]


class Service:
    """The collector. `run` works until `stop` is called, from a signal handler or another thread."""

    def __init__(
        self,
        config: CollectorConfig,
        clock: Clock,
        curve: CurveServer | None = None,
        start_publisher: StartPublisher = PublisherThread,
        http_token: str = "",
    ) -> None:
        """Bind both ports. `curve` are keys that are in no file, `http_token` a token for HTTP that the address
        carries. Raises UnavailableError naming the port that cannot be
        bound, SettingError for keys that are missing or cannot be used.
        """
        self._config = config
        self._clock = clock
        http = read_http(config)
        curve = curve or read_curve(config, clock)
        receivers = read_receivers(config, clock)
        self._relays = Relays() if curve is None else curve.make_relays()
        self._receiver = Receiver(
            config.listen,
            message_bytes_max=config.message_bytes_max,
            curve=curve,
            relays=self._relays,
            clock=clock,
        )
        self._gpus = GpuSummary(config.gpu_idle_after_s)
        self._admission = Admission(runs_max=config.runs_max, ranks_max=config.ranks_max)
        self._exchange = Exchange()
        self._faults = FaultLog(clock)
        self._receive_thread = ReceiveThread(self._receiver, self._admission, self._exchange, clock, self._faults)
        self._has_named_relays = False
        self._stopping = threading.Event()
        self._last_tick_ns = clock.monotonic_ns()
        self._snapshot = Snapshot(wall_s=self._wall_s(), version=__version__)
        self._journal = Journal(config, self._wall_s(), self._faults.count)
        # A publisher that is a process has the port for a moment longer than the collector before this one.
        wait_s = 0.0 if start_publisher is PublisherThread else PORT_WAIT_S
        self._listener = self._listen(config.http_listen, wait_s)._replace(token=http_token)
        self._metrics_url = f"{self._listener.url(is_secure=http.tls is not None)}/metrics"
        self._receive_thread.messages.metrics_url = self._metrics_url
        self._published = Wakeup()
        self._preflights = Preflights(config, self._journal, self._exchange, clock, self._faults)
        self._recording = Recording(config, self._journal, self._faults, on_written=self._published.set)
        self._updates = RunUpdates(
            config, clock,
            exchange=self._exchange, admission=self._receive_thread.messages, journal=self._journal,
            faults=self._faults, on_forget=self._recording.forget,
        )  # fmt: skip
        self._captures, self._incident_captures = self._make_captures()
        self._link = PublisherLink(
            lambda connection: start_publisher(connection, config, self._listener),
            Sources(
                lambda: self._recording.choose_exported(self._snapshot),
                lambda: self._journal.incidents,
                self.read_health,
                self._dump_run,
                order_capture=self._captures.order,
                read_captures=lambda: self._captures.captures,
                order_settings=self._order_settings,
            ),
            self._faults,
            self._published,
        )
        self._summaries = RunSummaries(self._exchange.answer, self._faults)
        self._notifier = make_notifier(
            config, {**receivers, **read_otlp_logs(config, self._listener.socket.getsockname()[1])}, self._journal,
            find_run=self._updates.runs.get, read_severities=lambda: self._updates.severities,
            clock=clock, faults=self._faults,
        )  # fmt: skip
        self._open_store()
        self._updates.note_forgettable()
        self._snapshot = self._build_snapshot()
        self._captures.start()
        self._notifier.start()
        self._link.start()

    def _make_captures(self) -> tuple[CaptureThread, IncidentCaptures | None]:
        captures = CaptureThread(
            self._config, self._clock, self._faults,
            runs=self._updates.runs,
            send=lambda boot_id, message: self._exchange.answer(SendToRank(boot_id, message)),
            on_changed=self._published.set,
        )  # fmt: skip
        self._receive_thread.messages.on_capture = captures.take
        if not self._config.captures_on_incident:
            return captures, None
        return captures, IncidentCaptures(
            self._updates.runs.get, captures.order, lambda: captures.captures, self._journal.incidents,
        )  # fmt: skip

    def _listen(self, address: str, wait_s: float) -> HttpListener:
        try:
            return listen_http(address, wait_s)
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

    @property
    def captures(self) -> CaptureThread:
        """The captures, and the way to order one."""
        return self._captures

    def stop(self) -> None:
        """Make `run` return soon."""
        self._stopping.set()
        self._exchange.interrupt()

    def run(self, on_tick: Callable[[Snapshot], None] = lambda _snapshot: None) -> None:
        """Receive and tick until stopped. `on_tick` is called with each new snapshot."""
        tick_ns = s_to_ns(self._config.tick_s)
        next_tick_ns: int = self._clock.monotonic_ns()
        self._receive_thread.messages.on_preflight = self._preflights.handle
        self._preflights.start()
        self._receive_thread.start()
        try:
            while not self._stopping.is_set():
                wait_ns = next_tick_ns - self._clock.monotonic_ns()
                for batch in self._exchange.get(min(ns_to_s(wait_ns), WAIT_S_MAX)):
                    self._updates.process_batch(batch)
                self._updates.change_settings()
                if self._clock.monotonic_ns() >= next_tick_ns:
                    self._updates.note_absence(self._clock.monotonic_ns() - next_tick_ns)
                    next_tick_ns = self._clock.monotonic_ns() + tick_ns
                    with self._faults.contain("tick", "a tick failed; continuing with the next one"):
                        self._tick()
                    on_tick(self._snapshot)
        finally:
            self._link.close()
            self._captures.stop()
            self._preflights.stop()
            self._listener.socket.close()
            self._receive_thread.stop()
            self._receiver.close()
            self._exchange.close()
            self._recording.shut_down(self._updates.runs, self._build_last_snapshot, self._clocks())
            self._notifier.stop()
            self._journal.shut_down(self._wall_s())

    # -- the tick -----------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now_ns, wall_s = self._clock.monotonic_ns(), self._wall_s()
        for run_id, read in self._recording.pop_earlier_runs():
            self._updates.record_earlier_runs(run_id, read)
        self._updates.tick(now_ns, wall_s)
        self._update_incidents(wall_s)
        self._warn_of_direct_connections()
        self._recording.replace_lost(wall_s)
        self._open_store()
        self._publish(now_ns)
        self._summaries.tick(now_ns, self._updates.runs, self._snapshot)
        self._last_tick_ns = now_ns  # only now: a collector whose ticks fail is not healthy
        self._published.set()

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

    def _find_nothing_heard(self) -> Mapping[str, Finding]:
        """Return the finding about all runs that are not heard of any more, by the id of the run it is kept with."""
        present = [run for run in self._updates.runs if run.attempt is not None and not run.is_superseded]
        silent = [
            SilentRun(run.run, run.ending.end, len(run.attempt.ranks), run.attempt.counts_by_node.keys())
            for run in present
            if run.attempt is not None and run.ending.end is not None
        ]
        return find_nothing_heard(silent, is_anybody_heard=any(run.has_live_ranks for run in present))

    def _update_incidents(self, wall_s: float) -> None:
        nothing_heard, now_ns = self._find_nothing_heard(), self._clock.monotonic_ns()
        runs = [
            ComparedRun(
                run.run,
                run.open_findings,
                is_over=run.is_over,
                is_judged=run.findings.why_no_verdict is None,
                failure=None
                if run.may_start_again(now_ns)
                else find_failure(run.ending.end) or nothing_heard.get(run.run),
                is_superseded=run.is_superseded,
                findings_as_closed=run.findings.findings_as_closed,
            )
            for run in self._updates.runs
        ]
        try:
            self._journal.tick(runs, wall_s)
        except Exception:  # noqa: BLE001 - the fault log has it
            self._faults.note("incidents", "incidents could not be updated; continuing")
        if self._incident_captures is not None:
            with self._faults.contain("captures", "no capture of an incident could be ordered; continuing"):
                self._incident_captures.consider(self._journal.incidents, wall_s)

    def _open_store(self) -> None:
        """Open the store where it has become usable, and restore its runs."""
        for kept in self._recording.open(self._updates.runs):
            self._updates.restore(kept, self._clocks())

    def _build_last_snapshot(self) -> Snapshot:
        """Return the snapshot of everything that was received."""
        for run in self._updates.runs:
            self._updates.flush(run)
        self._snapshot = self._build_snapshot()
        return self._snapshot

    def _wall_s(self) -> float:
        return ns_to_s(self._clock.wall_ns())

    def _clocks(self) -> Clocks:
        return Clocks(self._clock.monotonic_ns(), self._wall_s())

    # -- publishing ---------------------------------------------------------------------------------------------------

    def _publish(self, now_ns: int) -> None:
        """Build a snapshot for readers and the store."""
        began_ns = time.thread_time_ns()
        self._snapshot = self._build_snapshot()
        self._recording.record(self._updates.runs, self._snapshot, Clocks(now_ns, self._wall_s()))
        took_ns = time.thread_time_ns() - began_ns
        LOG.debug("a snapshot of %d runs took %.1f ms of CPU", len(self._updates.runs.names), took_ns / NS_PER_MS)

    def _build_snapshot(self) -> Snapshot:
        now_ns = self._clock.monotonic_ns()
        runs, store = self._updates.runs, self._recording.counts
        relays = self._relays.totals
        return Snapshot(
            wall_s=ns_to_s(self._clock.wall_ns()),
            version=__version__,
            runs=[run.lazy_snapshot(now_ns) for run in runs],
            steps={run.run: run.heat_map_steps for run in runs if run.heat_map_steps is not None},
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
                runs_evicted=self._updates.evicted,
                contained_errors=self._faults.counts,
                impossible=dict(self._updates.impossible),
                absent_s=ns_to_s(self._updates.absent_ns),
                store_writable=self._recording.find_problem() is None if self._config.store else None,
                stores_lost=dict(self._journal.stores_lost),
                captures=dict(self._captures.totals.by_state),
                capture_pause_s=self._captures.totals.pause_s,
                capture_bytes=self._captures.totals.fetched_bytes,
                store_bytes=None if store is None else store.bytes_used,
                history_dropped=None if store is None else store.rows_dropped,
                notifications=self._notifier.counts,
                gpus=self._gpus.update(self._relays.gpus, now_ns),
            ),
        )

    def _order_settings(self, wanted: WantedChange) -> RunSettings | SettingsRefusal:
        """Change settings of a run, on the publish thread, which must not wait for a service that has ended."""
        if self._stopping.is_set():
            return SettingsRefusal(503, "the collector is stopping")
        return self._updates.order_settings(wanted)

    def _dump_run(self, asked: str) -> RunDump | None:
        """Return the internal state of a run by its id or name, on the publish thread; None when there is none."""
        run = self._updates.runs.get(asked)
        return None if run is None else dump_run(run, self._clock.monotonic_ns())

    def read_health(self) -> Health:
        """Return the health at this moment; any thread may call it."""
        return Health(
            tick_age_ns=self._clock.monotonic_ns() - self._last_tick_ns,
            is_stopping=self._stopping.is_set(),
            degradation=self._recording.find_degradation(),
        )
