"""Run the receive thread: decode, admit and acknowledge messages, and queue their events for the state thread.

    agents --> Receiver --> Admission --> EventBatch ------> Exchange.inbox  --> the state thread
    agents <-- Receiver <-- Acknowledgements <-------------- Exchange.outbox <--

A detection pass over 16,384 ranks takes hundreds of milliseconds, for which no rank should have to wait: hence two
threads. They share two queues and, under its lock, the admission (message_admission.py). Otherwise this thread owns the
sockets and the acknowledgements, the other one the run state. A message is acknowledged when its batch
has been processed by the state thread, and not before.

When the state falls behind, this thread stops reading: EVENTS_WAITING_MAX events wait here, and the others where they
are bounded too, in the sockets and in the agents.
"""

import threading
import time
from collections.abc import Iterable
from typing import Final

from rankscope.collector.fault_log import FaultLog
from rankscope.collector.ingest.acknowledgements import AGE_NS_MAX, Acknowledgements
from rankscope.collector.ingest.admission import Admission
from rankscope.collector.ingest.exchange import Answer, AskForClock, EventBatch, Exchange, SendToPeer, SendToRank
from rankscope.collector.ingest.message_admission import FAULT, MessageAdmission
from rankscope.collector.ingest.receive_timing import IngestStalls, ReceiveCoalescing
from rankscope.collector.ingest.receiver import Received, Receiver
from rankscope.collector.ingest.router import Ready
from rankscope.collector.process_tuning import name_this_thread
from rankscope.measure.clock import Clock
from rankscope.measure.messages import Ack, ClockPing, HelloWanted
from rankscope.measure.units import NS_PER_MS, NS_PER_S, ns_to_s

MESSAGES_PER_PASS_MAX: Final = 2048
"""Messages received before answers are sent: at 10 us each 20 ms."""

FULL_SLEEP_S: Final = 0.01
"""Sleep while EVENTS_WAITING_MAX events wait for the state thread."""

WAIT_NS_MAX: Final = NS_PER_S
"""Longest wait for a message. An answer that is to be sent ends the wait."""


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
        self._acknowledgements = Acknowledgements()
        self._coalescing = ReceiveCoalescing(clock.monotonic_ns())
        self.stalls = IngestStalls(clock.monotonic_ns())
        self.messages = MessageAdmission(admission, receiver.send, self.stalls.note_read, clock, faults)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="rankscope-receive", daemon=True)
        receiver.watch(exchange.wakeup.fd)

    def start(self) -> None:
        """Begin to receive."""
        self._thread.start()

    def stop(self) -> None:
        """Stop receiving, send the remaining answers, and wait until the thread has ended."""
        self._stopping.set()
        self._exchange.wakeup.set()
        if self._thread.is_alive():
            self._thread.join()

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
        batch = self.messages.admit(received)
        self._answer(self._clock.monotonic_ns())
        if batch.messages:
            self._exchange.put(batch)  # always: its messages are numbered, and count as received from now on
        self._log_refusals()
        if sleep_ns := self._coalescing.find_sleep_ns(batch.messages, self._clock.monotonic_ns()):
            time.sleep(ns_to_s(sleep_ns))

    def _log_refusals(self) -> None:
        for refusal in self._receiver.drain_refusals():
            self.messages.refusals.note(refusal._replace(run=self._admission.run_of(refusal.peer, refusal.key)))

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
            case SendToRank(boot_id, message):
                peer = self._admission.peer_of(boot_id)
                if peer is not None:
                    self._receiver.send(peer, message)
            case SendToPeer(receiver, message):
                self._receiver.send(receiver, message)

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
        peer = self.messages.forget_process(boot_id)
        if peer is not None:
            self._acknowledgements.forget(peer)
            self._receiver.send(peer, HelloWanted())
