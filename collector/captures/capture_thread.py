"""Take the captures that are ordered, in a thread of their own.

    order        any thread: checked, chosen and answered; it waits for no disk
    take         the receive thread hands over what ranks say
    the thread   sends orders, fetches and writes files, and has them analyzed (capture_work.py)

A fault in one capture fails that capture; the collector goes on.
"""

import contextlib
import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from rankscope.collector.captures.capture import (
    ENDED,
    ORDERED,
    REFUSED,
    STATE_WORDS,
    Capture,
    CaptureRefusal,
    CaptureRequest,
    CaptureTotals,
)
from rankscope.collector.captures.capture_work import CaptureSurroundings, CaptureWork
from rankscope.collector.captures.choice import choose_ranks
from rankscope.collector.captures.orders import Orders, Terms
from rankscope.collector.captures.store import CaptureStore, describe_disk_error, make_store
from rankscope.collector.config import CollectorConfig, find_beside_store
from rankscope.collector.fault_log import FaultLog
from rankscope.collector.process_tuning import name_this_thread
from rankscope.collector.run_ids import describe_unknown_run
from rankscope.collector.runs.run import RunState
from rankscope.collector.runs.runs import Runs
from rankscope.measure.clock import Clock
from rankscope.measure.messages import CapturePart, CaptureState, Message
from rankscope.measure.units import ns_to_s, s_to_ns

LOG = logging.getLogger("rankscope.collector")

FAULT: Final = "captures"
"""Label of contained faults of captures, in the counts of errors."""
OVERFLOW: Final = "captures_overflow"
"""Label of messages of ranks that found the queue full; what they said is asked for again."""
MESSAGES_MAX: Final = 1024
"""Messages of ranks that wait for the thread, of which far fewer are asked for at a time."""
TICK_S: Final = 0.5
CAPTURES_MAX: Final = 1000
"""Most captures kept, whatever their size."""
NO_STORE: Final = CaptureRefusal(
    503,
    "captures need a folder: name a file in `store` (RANKSCOPE_SERVE_STORE), or `store_folder` where it is a server",
)

FromRank = tuple[str, CaptureState | CapturePart]


class CaptureThread:
    """All captures of a collector. `runs` are all runs; `send` sends a message to a rank
    process, `on_changed` is called when `captures` is another object. Without a store every order is refused.
    """

    def __init__(
        self,
        config: CollectorConfig,
        clock: Clock,
        faults: FaultLog,
        *,
        runs: Runs,
        send: Callable[[str, Message], object],
        on_changed: Callable[[], object],
    ) -> None:
        self._config = config
        self._clock = clock
        self._faults = faults
        self._runs = runs
        self._on_changed = on_changed
        self._lock = threading.Lock()
        self._known: dict[str, Capture] = {}
        self._new: list[CaptureWork] = []
        self._captures: tuple[Capture, ...] = ()
        self.totals = CaptureTotals()
        self._around: CaptureSurroundings | None = None
        beside = find_beside_store(config)
        if beside is not None:
            self._around = CaptureSurroundings(make_store(config, beside), send, self._wall_s, self._note)
        self._on: dict[str, CaptureWork] = {}
        self._inbox: queue.Queue[FromRank | None] = queue.Queue(MESSAGES_MAX)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="rankscope-captures", daemon=True)

    @property
    def captures(self) -> tuple[Capture, ...]:
        """All captures that are kept, newest first; the same object while nothing has changed. Any thread."""
        return self._captures

    def start(self) -> None:
        """Go on with what an earlier collector has left, and take orders. Without a store it does nothing."""
        if self._around is not None:
            self._restore(self._around)
            self._thread.start()

    def stop(self) -> None:
        """End the thread; the next collector of this store goes on with captures that are on."""
        self._stopping.set()
        self._wake()
        if self._thread.is_alive():
            self._thread.join()

    # -- any thread ---------------------------------------------------------------------------------------------------

    def order(self, request: CaptureRequest) -> Capture | CaptureRefusal:
        """Begin a capture, or say why there is none. Never raises."""
        try:
            answer = self._order(request)
        except Exception:  # noqa: BLE001 - the fault log has it
            self._faults.note(FAULT, "a capture could not be ordered", run=request.run)
            answer = CaptureRefusal(503, "internal error of the collector; see its log")
        if isinstance(answer, Capture):
            LOG.warning("run %r: %s", answer.run_id, _describe_order(answer))
            self._wake()
        else:
            with self._lock:
                self.totals.by_state[REFUSED] += 1
        return answer

    def take(self, boot_id: str, message: CaptureState | CapturePart) -> None:
        """Take what a rank process says. Never waits."""
        try:
            self._inbox.put_nowait((boot_id, message))
        except queue.Full:
            self._faults.count(OVERFLOW)

    def _order(self, request: CaptureRequest) -> Capture | CaptureRefusal:
        if self._around is None:
            return NO_STORE
        runs = self._runs
        run = runs.get(request.run)
        if run is None:
            return CaptureRefusal(404, describe_unknown_run(request.run, (one.run for one in runs), "this collector"))
        chosen = choose_ranks(request, run, self._config.capture_ranks_max)
        if isinstance(chosen, CaptureRefusal):
            return chosen
        asked, pace = chosen
        config, wall_s = self._config, self._wall_s()
        terms = Terms(
            id=f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(wall_s))}-{secrets.token_hex(3)}",
            steps=request.steps,
            options=request.options,
            bytes_max=config.capture_bytes_max // len(asked),
            pause_ns_max=None if request.is_forced else s_to_ns(config.capture_pause_s_max),
        )
        orders = Orders.begin(terms, asked, pace, self._now_s())
        capture = Capture(
            id=terms.id, run=run.name, run_id=run.run, state=ORDERED, asked_wall_s=wall_s, changed_wall_s=wall_s,
            asked_by=request.asked_by, incident=request.incident, options=request.options,
            first_step=orders.steps[0], last_step=orders.steps[1], ranks=orders.ranks,
        )  # fmt: skip
        with self._lock:
            on = next((one for one in self._known.values() if one.run_id == run.run and one.state not in ENDED), None)
            if on is not None:
                words = STATE_WORDS[on.state]
                return CaptureRefusal(
                    409, f"capture {on.id} of this run has not ended: {on.state}, {words}. Order again when it has"
                )
            self._new.append(CaptureWork(capture, orders, self._around))
            self._known[capture.id] = capture
            self._publish()
        return capture

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        name_this_thread("captures")
        next_tick_s = 0.0
        while not self._stopping.is_set():
            with self._faults.contain(FAULT, "captures could not be continued; trying again"):
                self._take_all(next_tick_s - self._now_s())
                if self._now_s() >= next_tick_s:
                    next_tick_s = self._now_s() + TICK_S
                    self.tick()
        for work in self._on.values():
            work.close()

    def _take_all(self, wait_s: float) -> None:
        """Handle what ranks have said, and new orders; wait for at most so long where there is nothing."""
        with contextlib.suppress(queue.Empty):
            found = self._inbox.get(timeout=max(0.01, wait_s))
            while not self._stopping.is_set():
                if found is None:
                    self._begin_new()
                else:
                    self._take_one(*found)
                found = self._inbox.get_nowait()

    def _take_one(self, boot_id: str, message: CaptureState | CapturePart) -> None:
        for work in self._on.values():
            with self._contain(work):
                work.take(boot_id, message, self._now_s())

    def tick(self) -> None:
        """Begin what was ordered, go on with each capture, and delete what is too much. For the thread."""
        self._begin_new()
        for work in list(self._on.values()):
            with self._contain(work):
                is_busy = any(one.is_analyzing for one in self._on.values())  # one analysis at a time
                work.go_on(
                    self._now_s(),
                    _find_ended(work, self._runs.get(work.capture.run_id)),
                    may_analyze=not is_busy,
                )
            if work.is_over:
                del self._on[work.capture.id]
        if self._around is not None:
            self._remove_expired(self._around.store)

    def _begin_new(self) -> None:
        with self._lock:
            new, self._new = self._new, []
        for work in new:
            self._on[work.capture.id] = work
            with self._contain(work):
                work.go_on(self._now_s(), {}, may_analyze=False)

    @contextlib.contextmanager
    def _contain(self, work: CaptureWork) -> Iterator[None]:
        """Fail a capture by an error that is raised in this context, and continue after it."""
        try:
            yield
        except OSError as error:
            work.fail(f"the folder of captures cannot be used: {describe_disk_error(error, work.folder)}")
        except Exception as error:  # noqa: BLE001 - the fault log has it
            self._faults.note(FAULT, f"capture {work.capture.id} cannot be continued", run=work.capture.run_id)
            work.fail(f"internal error of the collector ({type(error).__name__}); see its log")

    def _note(self, capture: Capture) -> None:
        with self._lock:
            if capture.state in ENDED and self._known[capture.id].state not in ENDED:
                self.totals.add(capture)
            self._known[capture.id] = capture
            self._publish()

    def _publish(self) -> None:
        """Publish what is known; under the lock."""
        self._captures = tuple(sorted(self._known.values(), key=lambda one: (one.asked_wall_s, one.id), reverse=True))
        self._on_changed()

    def _restore(self, around: CaptureSurroundings) -> None:
        def skip(folder: object) -> None:
            self._faults.count(FAULT)
            LOG.error("the capture in %s cannot be read, and is left as it is", folder)

        for kept in around.store.load(skip):
            self._known[kept.capture.id] = kept.capture
            if kept.capture.state not in ENDED:
                orders = None if kept.progress is None else Orders(kept.progress, self._now_s())
                self._on[kept.capture.id] = CaptureWork(kept.capture, orders, around)
        self._publish()

    def _remove_expired(self, store: CaptureStore) -> None:
        for capture in store.find_expired(list(self._captures), self._wall_s(), CAPTURES_MAX):
            store.remove(capture.id)
            LOG.info(
                "capture %s of run %r is deleted, by capture_kept_s or capture_store_bytes_max", capture.id, capture.run
            )
            with self._lock:
                del self._known[capture.id]
                self._publish()

    def _wake(self) -> None:
        with contextlib.suppress(queue.Full):  # it is awake
            self._inbox.put_nowait(None)

    def _now_s(self) -> float:
        return ns_to_s(self._clock.monotonic_ns())

    def _wall_s(self) -> float:
        return ns_to_s(self._clock.wall_ns())


def _find_ended(work: CaptureWork, run: RunState | None) -> Mapping[str, str]:
    """Return how the rank processes that are asked have ended. A silent one has not."""
    attempt = None if run is None else run.attempt
    present = {} if attempt is None else {one.identity.boot_id: one for one in list(attempt.ranks.values())}
    ended: dict[str, str] = {}
    for boot_id in () if work.orders is None else work.orders.boot_ids:
        how = present[boot_id].ended if boot_id in present else "another one has taken its place"
        if how is not None and how != "silent":
            ended[boot_id] = how
    return ended


def _describe_order(capture: Capture) -> str:
    """Return the line of the log about an order."""
    ranks = ", ".join(str(one.rank) for one in capture.ranks)
    by = f" by {capture.asked_by}" if capture.asked_by else ""
    return f"capture {capture.id} of steps {capture.first_step} to {capture.last_step} is ordered{by}, of ranks {ranks}"
