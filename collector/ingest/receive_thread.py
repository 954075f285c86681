"""What the receiving thread does: frames in, answers out. What changes the state of a run it hands on as events.

    agents --> Receiver --> Admission --> Batch of events --> Exchange.inbox  --> the thread of the state
    agents <-- Receiver <-- Acknowledgements <--------------- Exchange.outbox <--

Two threads, because a look at 16,384 ranks takes hundreds of milliseconds in one piece, and nobody should wait for that
to be heard. Neither touches what is the other's: the sockets, the admission and the acknowledgements belong to this
thread (what others ask of the admission they ask here, between two batches), the state of the runs to the other one,
and between them there are two queues. A message is acknowledged when the batch it came in has been taken into the
state, and not before.

When the state falls behind, this thread stops reading: EVENTS_WAITING_MAX events wait here, and the rest where they are
bounded too, in the sockets and in the agents.
"""

import threading
import time
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from rankscope.collector.fault_log import FaultLog
from rankscope.collector.ingest.acknowledgements import AGE_NS_MAX, Acknowledgements
from rankscope.collector.ingest.admission import Admission, Admitted, Duplicate, LifeCounts, SequenceGap, UnknownPeer
from rankscope.collector.ingest.exchange import Answer, AskForClock, Batch, Exchange, Numbered
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
from rankscope.collector.runs.last_report import ReportFields
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

RECEPTION: Final = "reception"
REPORT: Final = "report"
"""Where a fault was contained: of the receiving thread's, or in a report that has been numbered and is lost."""

RECEIVES_PER_TURN_MAX: Final = 2048
"""Messages taken in before answers get their turn: at 10 us each 20 ms."""

FULL_NAP_S: Final = 0.01
"""Slept while the state has as much to take in as it may."""

WAIT_NS_MAX: Final = NS_PER_S
"""Longest wait for a message. Answers that are to go out end it."""


class ReceiveThread:
    """The receiving thread. `faults` takes what has gone wrong, from this thread."""

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
        self._gathering = ReceiveCoalescing(clock.monotonic_ns())
        self.pauses = IngestStalls(clock.monotonic_ns())
        self._batch = Batch()
        self._batch_ns, self._batch_wall_s = clock.monotonic_ns(), 0.0
        self._admitting = threading.Lock()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._work, name="rankscope-receive", daemon=True)
        self.metrics_url = ""
        receiver.watch(exchange.bell)

    def start(self) -> None:
        """Begin to receive."""
        self._thread.start()

    def end(self) -> None:
        """Receive no more, after a last turn for what is to be answered; it is over when this returns."""
        self._ends.set()
        self._exchange.ring()
        if self._thread.is_alive():
            self._thread.join()

    def restore(self, identity: RankIdentity, counts: LifeCounts) -> bool:
        """A life that a collector before this one knew; whether there is a place for it. From any thread."""
        with self._admitting:
            return self._admission.restore(identity, counts)

    def begin_run(self, identity: RankIdentity) -> None:
        """A new run of its name has begun with this life. From any thread."""
        with self._admitting:
            self._admission.begin_run(identity)

    def end_run(self, name: str) -> None:
        """Every rank of the latest run of this name has ended. From any thread."""
        with self._admitting:
            self._admission.end_run(name)

    def forget(self, run: str) -> None:
        """The state has let go of every run of this name. From any thread."""
        with self._admitting:
            self._admission.forget(run)

    def forget_lives(self, boot_ids: Iterable[str]) -> None:
        """The state has let go of a run, and another one of its name is left. From any thread."""
        with self._admitting:
            for boot_id in boot_ids:
                self._admission.forget_peer(boot_id)

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        name_this_thread("receive")
        while not self._ends.is_set():
            try:
                self.turn()
            except Exception:  # noqa: BLE001 - the fault log has it
                self._faults.note(RECEPTION, "receiving messages failed; the collector continues with the next pass")
                time.sleep(FULL_NAP_S)  # what goes wrong each time must not take a core
        self._answer(self._clock.monotonic_ns(), is_last=True)
        self._receiver.poll(0, 0)  # relays' answers go out with it

    def turn(self) -> None:
        """Wait until there is something to do, and do it."""
        received: Iterable[Received] = ()
        if self._exchange.is_full:
            time.sleep(FULL_NAP_S)
            received = self._receiver.take(self._receiver.wait(0), 0)  # reads nothing, but lets in and cuts off
        else:
            received = self._receiver.take(self._wait(), RECEIVES_PER_TURN_MAX)
        with self._exchange.turn():
            batch = self.admit(received)
            self._answer(self._clock.monotonic_ns())
        if batch.messages:
            self._exchange.hand_on(batch)  # always: its messages are numbered, and count as received from now on
        self._log_refusals()
        if nap_ns := self._gathering.find_sleep_ns(batch.messages, self._clock.monotonic_ns()):
            time.sleep(ns_to_s(nap_ns))

    def _log_refusals(self) -> None:
        for refusal in self._receiver.take_refusals():
            self._refusals.note(refusal._replace(run=self._admission.run_of(refusal.peer, refusal.key)))

    def _wait(self) -> Ready:
        """What there is to do, at once where messages have come since the last turn: then they have waited."""
        ready = self._receiver.wait(0)
        has_waited = self._receiver.is_among(ready)
        if not ready:
            ready = self._receiver.wait(self._find_wait_ms())
        now_ns = self._clock.monotonic_ns()
        if not has_waited:
            self.pauses.note_idle(now_ns)
        self.pauses.roll(now_ns)
        return ready

    def _find_wait_ms(self) -> int:
        wake_ns, wait_ns = self._acknowledgements.wake_ns, WAIT_NS_MAX
        if wake_ns is not None:
            wait_ns = min(wait_ns, max(0, wake_ns - self._clock.monotonic_ns()))
        return -(-wait_ns // NS_PER_MS)

    def _answer(self, now_ns: int, *, is_last: bool = False) -> None:
        """Do what the state asks for, and acknowledge. A fault about one answer is that one's alone."""
        for answer in self._exchange.take_answers():
            try:
                self._carry_out(answer, now_ns)
            except Exception:  # noqa: BLE001 - the fault log has it
                self._faults.note(RECEPTION, f"an answer ({type(answer).__name__}) could not be sent")
        due = self._acknowledgements.take_due(now_ns + AGE_NS_MAX if is_last else now_ns)
        for peer, through in due.items():
            try:
                self._receiver.send(peer, Ack(through=through))
            except Exception:  # noqa: BLE001 - the fault log has it
                self._faults.note(RECEPTION, "an acknowledgement could not be sent")

    def _carry_out(self, answer: Answer, now_ns: int) -> None:
        match answer:
            case Batch():
                self._note_taken(answer, now_ns)
            case AskForClock(boot_id):
                peer = self._admission.peer_of(boot_id)
                if peer is not None:
                    asked_ns = self._clock.monotonic_ns()
                    self._receiver.send(peer, ClockPing(collector_ns=asked_ns))
                    self._gathering.expect_answers(asked_ns)

    def _note_taken(self, batch: Batch, now_ns: int) -> None:
        """Acknowledge what the runs have taken in. A life that none has taken in is unknown from now on: whatever it
        sends next is answered by a wish for its Hello, and with that everything begins again that it still holds.
        """
        for boot_id in batch.unknown:
            self._forget_life(boot_id)
        for peer, through, boot_id in batch.numbered:
            if boot_id not in batch.untaken:
                interval_ns = 0 if peer in batch.at_once else self._admission.report_interval_ns(peer)
                self._acknowledgements.note(peer, through, now_ns, interval_ns=interval_ns)
        for peer, number, boot_id in batch.notices:
            if boot_id not in batch.untaken:
                self._receiver.send(peer, Ack(through=number))

    def _forget_life(self, boot_id: str) -> None:
        with self._admitting:
            peer = self._admission.peer_of(boot_id)
            self._admission.forget_peer(boot_id)
        if peer is not None:
            self._acknowledgements.forget(peer)
            self._receiver.send(peer, HelloWanted())

    # -- from a message to an event -----------------------------------------------------------------------------------

    def admit(self, received: Iterable[Received]) -> Batch:
        """What the messages are to the state; they have come now. A fault about one costs that one only, and one in
        reading them ends the pass with what was read before. Each is let go of before the next one is read.
        """
        batch = self._batch = Batch()
        self._batch_ns, self._batch_wall_s = self._clock.monotonic_ns(), ns_to_s(self._clock.wall_ns())
        with self._admitting:
            for one in self._read(received):
                batch.messages += 1
                self.pauses.note_read(self._clock.monotonic_ns())
                try:
                    self._admit(one)
                except Exception:  # noqa: BLE001 - the fault log has it
                    self._faults.note(RECEPTION, f"a {type(one.message).__name__} could not be processed")
        return batch

    def _read(self, received: Iterable[Received]) -> Iterator[Received]:
        try:
            yield from received
        except Exception:  # noqa: BLE001 - the fault log has it
            self._faults.note(RECEPTION, "messages could not be read; the next pass continues with those after them")

    def _admit(self, received: Received) -> None:
        peer, message, key = received.peer, received.message, received.key
        match message:
            case Report() | Goodbye():
                self._admit_numbered(received, message)
            case Hello():
                self._admit_hello(received, message)
            case ClockPong():
                self._take_clock(received, message)
            case RankEnded() | RankUnresponsive():
                self._take_notice(peer, message, key)
            case _:
                self._faults.count("unexpected_message")

    def _hand_on(self, run: str, event: PeerEvent) -> None:
        self._batch.events.append((run, event))

    def _admit_hello(self, received: Received, hello: Hello) -> None:
        peer, key = received.peer, received.key
        answer = self._admission.hello(peer, hello, key)
        if isinstance(answer, Welcome):
            self._hand_on(hello.identity.run, RankJoined(hello, self._clock.monotonic_ns()))
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
                    self._hand_on_report(identity, message, received.frame)
                else:
                    self._hand_on(identity.run, GoodbyeAdmitted(identity.boot_id, message, now_ns))
                    self._batch.at_once.add(peer)
            case Duplicate(identity):
                self._hand_on(identity.run, DuplicateSeen(identity.boot_id))
                self._batch.at_once.add(peer)
            case SequenceGap(hello_wanted=True) | UnknownPeer():
                self._receiver.send(peer, HelloWanted())
        if not isinstance(verdict, UnknownPeer):
            self._batch.numbered.append(Numbered(peer, verdict.through, verdict.identity.boot_id))

    def _hand_on_report(self, identity: RankIdentity, report: Report, frame: bytes) -> None:
        """A report that cannot be read is lost, and acknowledged: it would come again for ever and fail each time. Its
        steps count as dropped in reports, by the next report's totals.
        """
        try:
            excerpt = ReportFields.of(report, frame)
        except Exception:  # noqa: BLE001 - the fault log has it
            self._faults.note(
                REPORT, f"report {report.sequence} of rank {identity.rank} is lost: it cannot be read", run=identity.run
            )
            return
        self._hand_on(identity.run, ReportAdmitted(identity.boot_id, excerpt, self._batch_ns, self._batch_wall_s))

    def _take_clock(self, received: Received, pong: ClockPong) -> None:
        identity = self._admission.identity(received.peer, received.key)
        if identity is not None:
            arrived_ns = latest_arrival_ns(self._clock.monotonic_ns(), received.age_ns)
            self._hand_on(identity.run, ClockSampled(identity.boot_id, pong.collector_ns, pong.host_ns, arrived_ns))

    def _take_notice(self, peer: bytes, notice: RankEnded | RankUnresponsive, key: str) -> None:
        """A sidecar speaks for a rank. It is no rank itself: it has no Hello, and its notices need no order."""
        if not self._admission.knows(notice.identity, key):
            return  # perhaps the rank's Hello is still on its way: the sidecar sends it again
        boot_id, now_ns = notice.identity.boot_id, self._clock.monotonic_ns()
        if isinstance(notice, RankEnded):
            self._hand_on(notice.identity.run, EndSeen(boot_id, notice, now_ns))
        else:
            self._hand_on(notice.identity.run, UnresponsiveSeen(boot_id, notice, now_ns))
        self._batch.notices.append(Numbered(peer, notice.sequence, boot_id))
