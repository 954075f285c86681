"""Answer pre-flights, in a thread: with the past of their nodes, and that their outcomes are in the store.

Pre-flights send no Hello: whoever may connect may ask and say, as it may report for a run of its own. A pre-flight
sends again what is not answered, so that a message without room is only counted.
"""

import contextlib
import queue
import threading
from typing import Final, Protocol

from rankscope.collector.config import CollectorConfig
from rankscope.collector.fault_log import FaultLog
from rankscope.collector.ingest.exchange import Exchange, SendToPeer
from rankscope.collector.process_tuning import name_this_thread
from rankscope.collector.storage.database import StoreDatabase
from rankscope.collector.storage.preflights import read_past, write_outcomes
from rankscope.measure.clock import Clock
from rankscope.measure.errors import UnavailableError
from rankscope.measure.node_messages import PreflightAnswer, PreflightEnded, PreflightPastWanted
from rankscope.measure.units import ns_to_s

FAULT: Final = "preflights"
"""Label of contained faults, in the counts of errors."""
OVERFLOW: Final = "preflights_overflow"
"""Label of messages that found the queue full."""
MESSAGES_MAX: Final = 256
"""Messages that wait: each takes some milliseconds, and one of 32 nodes has at most 64 KiB."""
PROBLEM_LENGTH_MAX: Final = 1024
NO_STORE: Final = "the collector has no store: name its file in `store` (RANKSCOPE_SERVE_STORE)"
NOT_OPEN: Final = "the collector's store cannot be used at present; its log says why"

FromPreflight = PreflightPastWanted | PreflightEnded


class _Journal(Protocol):
    """Who has opened the store."""

    @property
    def database(self) -> StoreDatabase | None:
        """The store; None while it cannot be used."""
        ...


class Preflights:
    """The pre-flights of a collector. `journal` has the open store; answers go to `exchange`."""

    def __init__(
        self, config: CollectorConfig, journal: _Journal, exchange: Exchange, clock: Clock, faults: FaultLog
    ) -> None:
        self._journal = journal
        self._exchange = exchange
        self._clock = clock
        self._faults = faults
        self._has_store = bool(config.store)
        self._inbox: queue.Queue[tuple[bytes, FromPreflight] | None] = queue.Queue(MESSAGES_MAX)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="rankscope-preflights", daemon=True)

    def start(self) -> None:
        """Begin to answer; without a store there is nothing to wait for."""
        if self._has_store:
            self._thread.start()

    def stop(self) -> None:
        """End the thread, after the message that it is at."""
        self._stopping.set()
        with contextlib.suppress(queue.Full):  # then it reads one of them, and ends
            self._inbox.put_nowait(None)
        if self._thread.is_alive():
            self._thread.join()

    def handle(self, peer: bytes, message: FromPreflight) -> None:
        """Queue a message of a pre-flight. Never waits; the receive thread calls it."""
        if not self._has_store:
            self._exchange.answer(SendToPeer(peer, PreflightAnswer(number=message.number, problem=NO_STORE)))
            return
        try:
            self._inbox.put_nowait((peer, message))
        except queue.Full:
            self._faults.count(OVERFLOW)

    def _work(self) -> None:
        name_this_thread("preflights")
        while (item := self._inbox.get()) is not None and not self._stopping.is_set():
            peer, message = item
            with self._faults.contain(FAULT, f"a {type(message).__name__} could not be processed"):
                self._exchange.answer(SendToPeer(peer, self.answer(message)))

    def answer(self, message: FromPreflight) -> PreflightAnswer:
        """Read or write the store, and return the answer; a store that cannot be used is its `problem`."""
        database = self._journal.database
        if database is None:
            return PreflightAnswer(number=message.number, problem=NOT_OPEN)
        try:
            if isinstance(message, PreflightPastWanted):
                return PreflightAnswer(number=message.number, past=read_past(database.path, message.nodes))
            write_outcomes(
                database, message.preflight, message.outcomes, ns_to_s(self._clock.wall_ns()),
                forgets_past=message.forgets_past,
            )  # fmt: skip
        except UnavailableError as error:
            return PreflightAnswer(number=message.number, problem=str(error)[:PROBLEM_LENGTH_MAX])
        return PreflightAnswer(number=message.number)
