"""A collector that only listens: it takes in what ranks send, acknowledges it, and keeps it for a test to look at.

It speaks the protocol as the real one does (a number is admitted when it follows the last one, and acknowledged
together with those after it) and compares nothing.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import zmq

from rankscope.collector.ingest.acknowledgements import Acknowledgements
from rankscope.measure.codec import decode, encode
from rankscope.measure.messages import (
    Ack,
    Goodbye,
    Hello,
    HelloWanted,
    Message,
    Report,
    RunSummary,
    SampleOrder,
    SamplesTaken,
    Welcome,
)
from rankscope.measure.records import (
    CAPTURED,
    DEVICE_PREFIX,
    DEVICE_TAIL,
    PHASE_PREFIX,
    CollectiveRecord,
    Losses,
    StepRecord,
    WindowBreakdown,
)
from rankscope.measure.table import MISSING, Table

POLL_MS = 20


@dataclass
class Life:
    """Everything one life of one rank has said, in order."""

    hello: Hello
    admitted_through: int
    reports: list[Report] = field(default_factory=list)
    samples: dict[str, SamplesTaken] = field(default_factory=dict)
    goodbye: Goodbye | None = None

    @property
    def rank(self) -> int:
        """Which rank it is."""
        return self.hello.identity.rank

    @property
    def steps(self) -> list[StepRecord]:
        """Every step reported, in the order of the reports."""
        return [record for report in self.reports for record in _to_steps(report.steps)]

    @property
    def collectives(self) -> list[CollectiveRecord]:
        """Every collective reported."""
        return [record for report in self.reports for record in _to_collectives(report)]

    @property
    def covered_steps(self) -> set[int]:
        """The steps whose collectives have all been reported."""
        spans = [span for report in self.reports for span in report.covered_steps]
        return {step for first, last in spans for step in range(first, last + 1)}

    @property
    def timed_steps(self) -> set[int]:
        """The steps between windows whose collectives are those that the flight recorder has timed."""
        spans = [span for report in self.reports for span in report.timed_steps]
        return {step for first, last in spans for step in range(first, last + 1)}

    @property
    def breakdowns(self) -> list[WindowBreakdown]:
        """Every breakdown of a full window reported."""
        return [window for report in self.reports for window in report.breakdowns]

    @property
    def losses(self) -> Losses:
        """What the rank has lost, as its last report says."""
        return self.reports[-1].losses

    @property
    def ending(self) -> tuple[str, str, int | None] | None:
        """Reason, detail and exit code of its goodbye; None when it said none."""
        if self.goodbye is None:
            return None
        return self.goodbye.reason, self.goodbye.detail, self.goodbye.exit_code


class ListeningCollector:
    """A ROUTER on a free port of loopback, on a thread of its own. Made by `listening`."""

    def __init__(self, summary: RunSummary | None = None) -> None:
        self._summary = summary
        self._lives: dict[bytes, Life] = {}
        self._changed = threading.Condition()
        self._ending = threading.Event()
        self._orders: queue.SimpleQueue[SampleOrder] = queue.SimpleQueue()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.LINGER, 0)
        port = self._router.bind_to_random_port("tcp://127.0.0.1")
        self.endpoint = f"tcp://127.0.0.1:{port}"
        self._thread = threading.Thread(target=self._run, name="listening-collector")
        self._thread.start()

    @property
    def lives(self) -> list[Life]:
        """Every life that has introduced itself, by restart and rank."""
        with self._changed:
            found = list(self._lives.values())
        return sorted(found, key=lambda life: (life.hello.identity.restart_count, life.rank))

    def wait_until(self, predicate: Callable[[list[Life]], bool], deadline_s: float) -> None:
        """Wait until `predicate(lives)` holds; it is asked again after each message. Fails after `deadline_s`."""
        end_s = time.monotonic() + deadline_s
        with self._changed:
            while not predicate(list(self._lives.values())):
                left_s = end_s - time.monotonic()
                assert left_s > 0, f"not within {deadline_s} s; heard of {[life.hello.identity for life in self.lives]}"
                self._changed.wait(left_s)

    def order(self, order: SampleOrder) -> None:
        """Order samples of every rank that has introduced itself; the answers are in `Life.samples`, by id."""
        self._orders.put(order)

    def kill(self) -> None:
        """Go without a word. When it returns nobody listens on its port any more. The second call does nothing."""
        self._ending.set()
        self._thread.join()
        self._context.destroy(linger=0)

    def _run(self) -> None:
        acknowledgements = Acknowledgements()
        while not self._ending.is_set():
            if self._router.poll(POLL_MS):
                peer, frame = self._router.recv_multipart()
                answer = self._take(peer, message := decode(frame))
                if isinstance(message, SamplesTaken):
                    continue
                if isinstance(answer, Ack):
                    interval_ns = self._lives[peer].hello.report_interval_ns if isinstance(message, Report) else 0
                    acknowledgements.note(peer, answer.through, time.monotonic_ns(), interval_ns=interval_ns)
                else:
                    self._router.send_multipart([peer, encode(answer)])
                if self._summary is not None and isinstance(message, Report) and self._lives[peer].hello.wants_summary:
                    self._router.send_multipart([peer, encode(self._summary)])
            while not self._orders.empty():
                order = encode(self._orders.get())
                for peer in list(self._lives):
                    self._router.send_multipart([peer, order])
            for peer, through in acknowledgements.pop_due(time.monotonic_ns()).items():
                self._router.send_multipart([peer, encode(Ack(through=through))])

    def _take(self, peer: bytes, message: Message) -> Message:
        with self._changed:
            self._changed.notify_all()
            life = self._lives.get(peer)
            if isinstance(message, Hello):
                life = self._lives.setdefault(peer, Life(message, 0))
                life.admitted_through = max(life.admitted_through, message.first_sequence - 1)
                return Welcome(admitted_through=life.admitted_through, hello_number=message.hello_number)
            if life is None:
                return HelloWanted()
            if isinstance(message, SamplesTaken):
                life.samples[message.id] = message
            if isinstance(message, Report | Goodbye) and message.sequence == life.admitted_through + 1:
                life.admitted_through += 1
                _keep(life, message)
            return Ack(through=life.admitted_through)


@contextlib.contextmanager
def listening(summary: RunSummary | None = None) -> Iterator[ListeningCollector]:
    """Start one, and kill it at the end. It answers each report of a rank that wants summaries with this one too."""
    collector = ListeningCollector(summary)
    try:
        yield collector
    finally:
        collector.kill()


def _keep(life: Life, message: Report | Goodbye) -> None:
    if isinstance(message, Report):
        life.reports.append(message)
    else:
        life.goodbye = message


def _to_steps(table: Table) -> Iterator[StepRecord]:
    for row in _rows(table):
        phases_ns = _find_phases(row, PHASE_PREFIX)
        on_device = _find_phases(row, DEVICE_PREFIX)
        was_timed = any(row[name] is not None for name in row if name.startswith(DEVICE_PREFIX))
        yield StepRecord(
            step=row["step"] or 0,
            start_host_ns=row["start_host_ns"] or 0,
            duration_ns=row["duration_ns"] or 0,
            phases_ns=phases_ns,
            cpu_ns=row["cpu_ns"],
            batches=row["batches"] or 0,
            backwards=row["backwards"] or 0,
            device_phases_ns=on_device if was_timed else None,
            samples=row["samples"],
            tokens=row["tokens"],
            device_tail_ns=row.get(DEVICE_TAIL),
            captured=bool(row.get(CAPTURED)),
        )


def _find_phases(row: dict[str, int | None], prefix: str) -> dict[str, int]:
    return {name.removeprefix(prefix): row[name] or 0 for name in row if name.startswith(prefix)}


def _to_collectives(report: Report) -> Iterator[CollectiveRecord]:
    sent = report.collectives
    for row in _rows(sent.table):
        yield CollectiveRecord(
            step=row["step"] or 0,
            group=sent.groups[row["group"] or 0],
            op=sent.ops[row["op"] or 0],
            start_host_ns=row["start_host_ns"] or 0,
            duration_ns=row["duration_ns"] or 0,
            sequence=row["sequence"],
            bytes=row["bytes"],
        )


def _rows(table: Table) -> Iterator[dict[str, int | None]]:
    columns = {name: column.tolist() for name, column in table.columns().items()}
    for index in range(table.row_count):
        row = {name: column[index] for name, column in columns.items()}
        yield {name: None if value == MISSING else value for name, value in row.items()}
