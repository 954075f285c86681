"""Run the receive thread: decode, admit and acknowledge messages, and queue their events for the state thread.

    agents --> Receiver --> Admission --> EventBatch ------> Exchange.inbox  --> the state thread
    agents <-- Receiver <-- Acknowledgements <-------------- Exchange.outbox <--

A detection pass over 16,384 ranks takes hundreds of milliseconds, for which no rank should have to wait: hence two
threads, which share nothing but two queues. This one owns the sockets, the admission and the acknowledgements (calls
from other threads are done between two batches), the other one the run state. A message is acknowledged when its batch
has been processed by the state thread, and not before.

When the state falls behind, this thread stops reading: EVENTS_WAITING_MAX events wait here, and the others where they
are bounded too, in the sockets and in the agents.
"""

import threading
import time
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from rankscope.collector.fault_log import FaultLog
from rankscope.collector.ingest.acknowledgements import AGE_NS_MAX, Acknowledgements
from rankscope.collector.ingest.admission import Admission, Admitted, Duplicate, ProcessCounts, SequenceGap, UnknownPeer
from rankscope.collector.ingest.exchange import Answer, AskForClock, EventBatch, Exchange, Numbered
from rankscope.collector.ingest.receive_timing import IngestStalls, ReceiveCoalescing
from rankscope.collector.ingest.receiver import Received, Receiver
from rankscope.collector.ingest.refusal_log import Refusal, RefusalLog
from rankscope.collector.ingest.router import Ready
from rankscope.collector.process_tuning import name_this_thread
from rankscope.collector.runs.clock_alignment import latest_arrival_ns
from rankscope.collector.runs.events import (
    ClockSampled,
    DuplicateSeen,
    EndSeen,
    GoodbyeAdmitted,
    PeerEvent,
    RankJoined,
    ReportAdmitted,
    UnresponsiveSeen,
)
from rankscope.collector.runs.report_fields import ReportFields
from rankscope.measure.clock import Clock
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import (
    Ack,
    ClockPing,
    ClockPong,
    Goodbye,
    Hello,
    HelloWanted,
    RankEnded,
    RankUnresponsive,
    Report,
    Welcome,
)
from rankscope.measure.units import NS_PER_MS, NS_PER_S, ns_to_s

FAULT: Final = "receive_thread"
"""What a contained fault of the receive thread is counted as."""
REPORT_FAULT: Final = "report"
"""What a fault is counted as that costs a report which was numbered already."""

MESSAGES_PER_PASS_MAX: Final = 2048
"""Messages received before answers are sent: at 10 us each 20 ms."""

FULL_SLEEP_S: Final = 0.01
"""Sleep while EVENTS_WAITING_MAX events wait for the state thread."""

WAIT_NS_MAX: Final = NS_PER_S
"""Longest wait for a message. Answers to be sent end it."""


class ReceiveThread:
    """The receive thread. Contained faults go to `faults`."""

    def __init__(
        self,
        receiver: Receiver,
        admission: Admission,
        exchange: Exchange,
        clock: Clock,
        faults: FaultLog,
    ) -> None:
        self._receiver = receiver
        self._admission = admission
        self._exchange = exchange
        self._clock = clock
        self._faults = faults
        self._refusals = RefusalLog(clock)
        self._acknowledgements = Acknowledgements()
        self._coalescing = ReceiveCoalescing(clock.monotonic_ns())
        self.stalls = IngestStalls(clock.monotonic_ns())
        self._batch = EventBatch()
        self._batch_ns, self._batch_wall_s = clock.monotonic_ns(), 0.0
        self._admitting = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="rankscope-receive", daemon=True)
        self.metrics_url = ""
        receiver.watch(exchange.wakeup_fd)

    def start(self) -> None:
        """Begin to receive."""
        self._thread.start()

    def stop(self) -> None:
        """Stop receiving, send the remaining answers, and wait until the thread has ended."""
        self._stopping.set()
        self._exchange.wake()
        if self._thread.is_alive():
            self._thread.join()

    def restore(self, identity: RankIdentity, counts: ProcessCounts) -> bool:
        """Admit a rank process that a previous collector knew; return whether there is room for it. Any thread."""
        with self._admitting:
            return self._admission.restore(identity, counts)

    def begin_run(self, identity: RankIdentity) -> None:
        """Note that a new run of its name began with this rank process. Any thread."""
        with self._admitting:
            self._admission.begin_run(identity)

    def end_run(self, name: str) -> None:
        """Note that every rank of the latest run of this name has ended. Any thread."""
        with self._admitting:
            self._admission.end_run(name)

    def forget(self, run: str) -> None:
        """Forget every run of this name, as the run state has. Any thread."""
        with self._admitting:
            self._admission.forget(run)

    def forget_processes(self, boot_ids: Iterable[str]) -> None:
        """Forget the rank processes of a run whose name another run still has. Any thread."""
        with self._admitting:
            for boot_id in boot_ids:
                self._admission.forget_peer(boot_id)

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        name_this_thread("receive")
        while not self._stopping.is_set():
            try:
                self.run_once()
            except Exception:  # noqa: BLE001 - the fault log has it
                self._faults.note(FAULT, "error in the receive loop; continuing")
                time.sleep(FULL_SLEEP_S)  # a fault of every pass must not use a whole core
        self._answer(self._clock.monotonic_ns(), is_last=True)
        self._receiver.poll(0, 0)  # sends the answers to relays

    def run_once(self) -> None:
        """Wait for messages or answers, process them, and sleep so that the next pass finds many."""
        received: Iterable[Received] = ()
        if self._exchange.is_full:
            time.sleep(FULL_SLEEP_S)
            received = self._receiver.receive(self._receiver.wait(0), 0)  # only admits and closes connections
        else:
            received = self._receiver.receive(self._wait(), MESSAGES_PER_PASS_MAX)
        batch = self.admit(received)
        self._answer(self._clock.monotonic_ns())
        if batch.messages:
            self._exchange.put(batch)  # always: its messages are numbered, and count as received from now on
        self._log_refusals()
        if sleep_ns := self._coalescing.find_sleep_ns(batch.messages, self._clock.monotonic_ns()):
            time.sleep(ns_to_s(sleep_ns))

    def _log_refusals(self) -> None:
        for refusal in self._receiver.drain_refusals():
            self._refusals.note(refusal._replace(run=self._admission.run_of(refusal.peer, refusal.key)))

    def _wait(self) -> Ready:
        """Return what is ready, at once where messages have come since the last pass: those count as a stall."""
        ready = self._receiver.wait(0)
        has_waited = self._receiver.has_messages(ready)
        if not ready:
            ready = self._receiver.wait(self._find_wait_ms())
        now_ns = self._clock.monotonic_ns()
        if not has_waited:
            self.stalls.note_idle(now_ns)
        self.stalls.roll(now_ns)
        return ready

    def _find_wait_ms(self) -> int:
        wake_ns, wait_ns = self._acknowledgements.wake_ns, WAIT_NS_MAX
        if wake_ns is not None:
            wait_ns = min(wait_ns, max(0, wake_ns - self._clock.monotonic_ns()))
        return -(-wait_ns // NS_PER_MS)

    def _answer(self, now_ns: int, *, is_last: bool = False) -> None:
        """Send the answers and acknowledgements that are due. A fault in one of them costs that one only."""
        for answer in self._exchange.get_answers():
            try:
                self._carry_out(answer, now_ns)
            except Exception:  # noqa: BLE001 - the fault log has it
                self._faults.note(FAULT, f"an answer ({type(answer).__name__}) could not be sent")
        due = self._acknowledgements.pop_due(now_ns + AGE_NS_MAX if is_last else now_ns)
        for peer, through in due.items():
            try:
                self._receiver.send(peer, Ack(through=through))
            except Exception:  # noqa: BLE001 - the fault log has it
                self._faults.note(FAULT, "an acknowledgement could not be sent")

    def _carry_out(self, answer: Answer, now_ns: int) -> None:
        match answer:
            case EventBatch():
                self._acknowledge(answer, now_ns)
            case AskForClock(boot_id):
                peer = self._admission.peer_of(boot_id)
                if peer is not None:
                    asked_ns = self._clock.monotonic_ns()
                    self._receiver.send(peer, ClockPing(collector_ns=asked_ns))
                    self._coalescing.expect_clock_answers(asked_ns)

    def _acknowledge(self, batch: EventBatch, now_ns: int) -> None:
        """Acknowledge the messages of a processed batch. A rank process that has no run is forgotten: its next message
        is answered by a HelloWanted, after which it sends again everything that is not acknowledged.
        """
        for boot_id in batch.hello_wanted:
            self._forget_process(boot_id)
        for peer, through, boot_id in batch.numbered:
            if boot_id not in batch.without_run:
                interval_ns = 0 if peer in batch.at_once else self._admission.report_interval_ns(peer)
                self._acknowledgements.note(peer, through, now_ns, interval_ns=interval_ns)
        for peer, number, boot_id in batch.notices:
            if boot_id not in batch.without_run:
                self._receiver.send(peer, Ack(through=number))

    def _forget_process(self, boot_id: str) -> None:
        with self._admitting:
            peer = self._admission.peer_of(boot_id)
            self._admission.forget_peer(boot_id)
        if peer is not None:
            self._acknowledgements.forget(peer)
            self._receiver.send(peer, HelloWanted())

    # -- messages to events -------------------------------------------------------------------------------------------

    def admit(self, received: Iterable[Received]) -> EventBatch:
        """Return the events of messages that arrive now. Each message is released before the next one is read.

        A fault in processing one message costs that one only; one in reading ends the pass with those read before.
        """
        batch = self._batch = EventBatch()
        self._batch_ns, self._batch_wall_s = self._clock.monotonic_ns(), ns_to_s(self._clock.wall_ns())
        with self._admitting:
            for one in self._read(received):
                batch.messages += 1
                self.stalls.note_read(self._clock.monotonic_ns())
                try:
                    self._admit(one)
                except Exception:  # noqa: BLE001 - the fault log has it
                    self._faults.note(FAULT, f"a {type(one.message).__name__} could not be processed")
        return batch

    def _read(self, received: Iterable[Received]) -> Iterator[Received]:
        try:
            yield from received
        except Exception:  # noqa: BLE001 - the fault log has it
            self._faults.note(FAULT, "messages could not be read; the next pass continues with those after them")

    def _admit(self, received: Received) -> None:
        peer, message, key = received.peer, received.message, received.key
        match message:
            case Report() | Goodbye():
                self._admit_numbered(received, message)
            case Hello():
                self._admit_hello(received, message)
            case ClockPong():
                self._admit_clock(received, message)
            case RankEnded() | RankUnresponsive():
                self._admit_notice(peer, message, key)
            case _:
                self._faults.count("unexpected_message")

    def _emit(self, run: str, event: PeerEvent) -> None:
        self._batch.events.append((run, event))

    def _admit_hello(self, received: Received, hello: Hello) -> None:
        peer, key = received.peer, received.key
        answer = self._admission.hello(peer, hello, key)
        if isinstance(answer, Welcome):
            self._emit(hello.identity.run, RankJoined(hello, self._clock.monotonic_ns()))
            answer = msgspec.structs.replace(answer, metrics_url=self.metrics_url)
        else:
            rank, run = hello.identity.rank, hello.identity.run
            text = f"rank {rank} of run {run!r}: {answer.detail}"
            self._refusals.note(Refusal(answer.reason, received.address, key, run=run, text=text))
        self._receiver.send(peer, answer)

    def _admit_numbered(self, received: Received, message: Report | Goodbye) -> None:
        peer, now_ns = received.peer, self._batch_ns
        verdict = self._admission.number(peer, message.sequence, received.key)
        match verdict:
            case Admitted(identity):
                if isinstance(message, Report):
                    self._emit_report(identity, message, received.frame)
                else:
                    self._emit(identity.run, GoodbyeAdmitted(identity.boot_id, message, now_ns))
                    self._batch.at_once.add(peer)
            case Duplicate(identity):
                self._emit(identity.run, DuplicateSeen(identity.boot_id))
                self._batch.at_once.add(peer)
            case SequenceGap(hello_wanted=True) | UnknownPeer():
                self._receiver.send(peer, HelloWanted())
        if not isinstance(verdict, UnknownPeer):
            self._batch.numbered.append(Numbered(peer, verdict.through, verdict.identity.boot_id))

    def _emit_report(self, identity: RankIdentity, report: Report, frame: bytes) -> None:
        """Add the event of a report. One that cannot be read is lost, and acknowledged: sent again it would fail each
        time. The next report's totals count its steps as dropped in reports.
        """
        try:
            fields = ReportFields.of(report, frame)
        except Exception:  # noqa: BLE001 - the fault log has it
            text = f"report {report.sequence} of rank {identity.rank} was lost: it could not be read"
            self._faults.note(REPORT_FAULT, text, run=identity.run)
            return
        self._emit(identity.run, ReportAdmitted(identity.boot_id, fields, self._batch_ns, self._batch_wall_s))

    def _admit_clock(self, received: Received, pong: ClockPong) -> None:
        identity = self._admission.identity(received.peer, received.key)
        if identity is not None:
            arrived_ns = latest_arrival_ns(self._clock.monotonic_ns(), received.age_ns)
            self._emit(identity.run, ClockSampled(identity.boot_id, pong.collector_ns, pong.host_ns, arrived_ns))

    def _admit_notice(self, peer: bytes, notice: RankEnded | RankUnresponsive, key: str) -> None:
        """Add the event of a sidecar's notice about a rank. Sidecars send no Hello, and notices need no order."""
        if not self._admission.knows(notice.identity, key):
            return  # the rank's Hello may still be on its way: the sidecar sends the notice again
        boot_id, now_ns = notice.identity.boot_id, self._clock.monotonic_ns()
        if isinstance(notice, RankEnded):
            self._emit(notice.identity.run, EndSeen(boot_id, notice, now_ns))
        else:
            self._emit(notice.identity.run, UnresponsiveSeen(boot_id, notice, now_ns))
        self._batch.notices.append(Numbered(peer, notice.sequence, boot_id))
