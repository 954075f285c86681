"""Turn received messages into the events of runs, and admit each one once and in order. One lock, no thread.

The receive thread admits messages; the state thread reports which runs have begun, ended or been forgotten. Both share
one Admission, under a lock that is held while the messages of one pass are admitted.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from rankscope.collector.fault_log import FaultLog
from rankscope.collector.ingest.admission import Admission, Admitted, Duplicate, ProcessCounts, SequenceGap, UnknownPeer
from rankscope.collector.ingest.exchange import EventBatch, Numbered
from rankscope.collector.ingest.receiver import Received
from rankscope.collector.ingest.refusal_log import LoggedRefusal, RefusalLog
from rankscope.collector.runs.clock_alignment import latest_arrival_ns
from rankscope.collector.runs.events import (
    AnswerSeen,
    ClockSampled,
    DuplicateSeen,
    EndSeen,
    GoodbyeAdmitted,
    InspectorSeen,
    PeerEvent,
    RankJoined,
    RasSeen,
    ReportAdmitted,
    UnresponsiveSeen,
)
from rankscope.collector.runs.report_fields import ReportFields
from rankscope.measure.clock import Clock
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import (
    CapturePart,
    CaptureState,
    ClockPong,
    Goodbye,
    Hello,
    HelloWanted,
    Message,
    Refused,
    Report,
    SamplesTaken,
    SettingsTaken,
    Welcome,
)
from rankscope.measure.node_messages import (
    InspectorRead,
    Notice,
    PreflightEnded,
    PreflightPastWanted,
    RankEnded,
    RankUnresponsive,
    RasAnswered,
)
from rankscope.measure.units import ns_to_s

FAULT: Final = "receive_thread"
"""Label of a contained fault of the receive thread, in the counts of errors."""
REPORT_FAULT: Final = "report"
"""Label of a fault by which a numbered report is lost, in the counts of errors."""


class MessageAdmission:
    """Admits messages. `send` sends an answer to a peer at once, `on_read` is called with the time of each message.

    Contained faults go to `faults`.
    """

    def __init__(
        self,
        admission: Admission,
        send: Callable[[bytes, Message], object],
        on_read: Callable[[int], None],
        clock: Clock,
        faults: FaultLog,
    ) -> None:
        self._admission = admission
        self._send = send
        self._on_read = on_read
        self._clock = clock
        self._faults = faults
        self._lock = threading.Lock()
        self._batch = EventBatch()
        self._batch_ns, self._batch_wall_s = clock.monotonic_ns(), 0.0
        self.refusals = RefusalLog(clock)
        #: The address that Welcomes name, where people find the run.
        self.metrics_url = ""
        #: Called with what rank processes say of captures, by boot id.
        self.on_capture: Callable[[str, CaptureState | CapturePart], object] = lambda _boot_id, _message: None
        #: Called with what pre-flights ask and say, by peer.
        self.on_preflight: Callable[[bytes, PreflightPastWanted | PreflightEnded], object] = lambda _peer, _message: (
            None
        )

    # -- any thread ---------------------------------------------------------------------------------------------------

    def restore(self, identity: RankIdentity, counts: ProcessCounts) -> bool:
        """Admit a rank process that a previous collector knew; return whether there is room for it."""
        with self._lock:
            return self._admission.restore(identity, counts)

    def begin_run(self, identity: RankIdentity) -> None:
        """Note that a new run of its name began with this rank process."""
        with self._lock:
            self._admission.begin_run(identity)

    def end_run(self, name: str) -> None:
        """Note that every rank of the latest run of this name has ended."""
        with self._lock:
            self._admission.end_run(name)

    def may_forget(self, names: Iterable[str]) -> None:
        """Set the runs that may be forgotten for others, in that order."""
        with self._lock:
            self._admission.may_forget(names)

    def forget(self, run: str) -> None:
        """Forget every run of this name, as the run state has."""
        with self._lock:
            self._admission.forget(run)

    def forget_processes(self, boot_ids: Iterable[str]) -> None:
        """Forget the rank processes of a run whose name another run still has."""
        with self._lock:
            for boot_id in boot_ids:
                self._admission.forget_peer(boot_id)

    def forget_process(self, boot_id: str) -> bytes | None:
        """Forget one rank process, and return its peer if that is known."""
        with self._lock:
            peer = self._admission.peer_of(boot_id)
            self._admission.forget_peer(boot_id)
        return peer

    def refuse_replaced(self, boot_id: str, detail: str) -> Refused:
        """Count and log that a known rank process is ignored by its run; return what to tell it."""
        with self._lock:
            refused, run = self._admission.refuse_replaced(boot_id, detail)
            self.refusals.note(LoggedRefusal(refused.reason, run=run, text=detail))
        return refused

    # -- the receive thread -------------------------------------------------------------------------------------------

    def admit(self, received: Iterable[Received]) -> EventBatch:
        """Return the events of messages that arrive now. Each message is released before the next one is read.

        A fault in processing one message costs that one only; one in reading ends the pass with those read before.
        """
        batch = self._batch = EventBatch()
        self._batch_ns, self._batch_wall_s = self._clock.monotonic_ns(), ns_to_s(self._clock.wall_ns())
        with self._lock:
            for one in self._read(received):
                batch.messages += 1
                self._on_read(self._clock.monotonic_ns())
                try:
                    self._admit(one)
                except Exception:  # noqa: BLE001 - the fault log has it
                    self._faults.note(FAULT, f"a {type(one.message).__name__} could not be processed")
            batch.forgotten = self._admission.pop_forgotten()
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
            case RankEnded() | RankUnresponsive() | RasAnswered() | InspectorRead():
                self._admit_notice(peer, message, key)
            case CaptureState() | CapturePart():
                identity = self._admission.identity(peer, key)
                if identity is not None:
                    self.on_capture(identity.boot_id, message)
            case SamplesTaken() | SettingsTaken():
                identity = self._admission.identity(peer, key)
                if identity is not None:
                    self._emit(identity.run, AnswerSeen(identity.boot_id, message, self._batch_ns))
            case PreflightPastWanted() | PreflightEnded():
                self.on_preflight(peer, message)
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
            self.refusals.note(LoggedRefusal(answer.reason, received.address, key, run=run, text=text))
        self._send(peer, answer)

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
                self._send(peer, HelloWanted())
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

    def _admit_notice(self, peer: bytes, notice: Notice, key: str) -> None:
        """Add the event of a sidecar's notice about a rank. Sidecars send no Hello, and notices need no order."""
        if not self._admission.knows(notice.identity, key):
            return  # the rank's Hello may still be on its way: the sidecar sends the notice again
        boot_id, now_ns = notice.identity.boot_id, self._clock.monotonic_ns()
        match notice:
            case RankEnded():
                self._emit(notice.identity.run, EndSeen(boot_id, notice, now_ns))
            case RankUnresponsive():
                self._emit(notice.identity.run, UnresponsiveSeen(boot_id, notice, now_ns))
            case RasAnswered():
                self._emit(notice.identity.run, RasSeen(boot_id, notice, now_ns))
            case InspectorRead():
                self._emit(notice.identity.run, InspectorSeen(boot_id, notice, now_ns))
        self._batch.notices.append(Numbered(peer, notice.sequence, boot_id))
