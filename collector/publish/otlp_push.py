"""Push metrics by OTLP from a thread of its own: what /metrics has, at an interval.

Nothing waits for this thread but the end of the publisher, and that for a limited time. It holds one request at a time,
and uses a bounded share of a core. A receiver that does not answer costs a failed push at each interval.
"""

import importlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final, Protocol

from rankscope.collector.config import CollectorConfig
from rankscope.collector.cpu_share import CpuShareLimiter
from rankscope.collector.fault_log import FaultLog
from rankscope.collector.otlp.endpoint import METRICS, describe_resource, import_exporters, read_endpoint
from rankscope.collector.process_tuning import name_this_thread
from rankscope.collector.publish.metrics.points import read_points
from rankscope.collector.runs.snapshot import ChannelCounts, Snapshot
from rankscope.measure.clock import SystemClock
from rankscope.measure.errors import SettingError
from rankscope.measure.units import NS_PER_S, ns_to_s, s_to_ns

LOG = logging.getLogger("rankscope.collector")

DELIVERED: Final = "delivered"
FAILED: Final = "failed"
SKIPPED: Final = "skipped"
OUTCOMES: Final = (DELIVERED, FAILED, SKIPPED)
"""All requests of a push were accepted; one was not, and the others were not tried; the push before took too long."""
CPU_SHARE: Final = 0.5
"""Of one core at most, while points are converted."""
CLOSE_S_MAX: Final = 3.0
"""Longest time at the end of the collector for a last push."""
FAULT: Final = "otlp"
"""Label of contained faults of pushes, in the counts of errors."""


class RequestSender(Protocol):
    """Sender of requests (`otlp/exporters.py`)."""

    def send(self, data: Any, /) -> str:
        """Send one; return why it was not accepted, empty where it was."""
        ...

    @property
    def partial(self) -> tuple[int, str]:
        """How many points the receiver has left out of the last one that it accepted, and what it says."""
        ...

    def close(self) -> None:
        """End what is being sent. Any thread."""
        ...


class Build(Protocol):
    """Maker of the requests of a snapshot."""

    def __call__(self, snapshot: Snapshot, /) -> Iterator[Any]:
        """Yield requests, one at a time."""
        ...


class MetricsPush:
    """Pushes of metrics, from `start` to `close`. `shown` is the receiver's address as the log names it, `read_ns` a
    monotonic time.
    """

    def __init__(
        self,
        sender: RequestSender,
        build: Build,
        read_snapshot: Callable[[], Snapshot],
        *,
        interval_s: float,
        shown: str,
        read_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._sender = sender
        self._build = build
        self._read_snapshot = read_snapshot
        self._interval_ns = s_to_ns(interval_s)
        self._shown = shown
        self._read_ns = read_ns
        self._counts = dict.fromkeys(OUTCOMES, 0)
        self._success_wall_s: float | None = None
        self._problem = ""
        self._left_out = (0, "")
        self._is_partial = False
        self._pushed: Snapshot | None = None
        self._limiter = CpuShareLimiter(CPU_SHARE, 0)
        self._faults = FaultLog(SystemClock())
        self._closing = threading.Event()
        self._cancelled = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rankscope-otlp", daemon=True)

    @property
    def counts(self) -> ChannelCounts:
        """Pushes by outcome, and when the last one was delivered. Any thread."""
        return ChannelCounts(dict(self._counts), 0, self._success_wall_s)

    def start(self) -> None:
        """Begin to push, at once and then at the interval."""
        self._thread.start()

    def close(self, seconds: float = CLOSE_S_MAX) -> None:
        """Push what is not pushed yet, for at most so long, and end."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(seconds)
        self._cancelled.set()
        with suppress(Exception):  # what it may raise is of no use at the end
            self._sender.close()

    def push(self) -> str:
        """Push the latest snapshot; return its outcome. For the thread."""
        snapshot = self._read_snapshot()
        problem = "an error in the collector, which is logged"
        with self._faults.contain(FAULT, "metrics could not be pushed by OTLP; continuing"):
            problem = self._send(snapshot)
        outcome = FAILED if problem else DELIVERED
        if not (problem and self._cancelled.is_set()):  # a push that the end cuts off is no failure
            self._note(outcome, problem)
        self._pushed = snapshot
        return outcome

    def _send(self, snapshot: Snapshot) -> str:
        """Send all requests; return why one was not accepted, empty where all were."""
        began_ns, began_cpu_ns = self._read_ns(), time.thread_time_ns()
        self._left_out = (0, "")
        for request in self._build(snapshot):
            problem = self._sender.send(request)
            if problem:
                return problem
            rejected, remark = self._sender.partial
            self._left_out = (self._left_out[0] + rejected, self._left_out[1] or remark)
            self._limiter.record(began_ns, time.thread_time_ns() - began_cpu_ns)
            if self._cancelled.wait(ns_to_s(self._limiter.find_wait_ns(self._read_ns()))):
                return "the collector ends"
            began_ns, began_cpu_ns = self._read_ns(), time.thread_time_ns()
        return ""

    def _note(self, outcome: str, problem: str) -> None:
        """Count a push, and log a problem once while it lasts, and that pushes succeed again."""
        self._counts[outcome] += 1
        if problem and not self._problem:
            LOG.error("OTLP: metrics are not pushed to %s: %s; trying again every %g s", self._shown, problem,
                      ns_to_s(self._interval_ns))  # fmt: skip
        elif problem:
            LOG.debug("OTLP: metrics are not pushed to %s: %s", self._shown, problem)
        elif self._problem:
            LOG.warning("OTLP: metrics are pushed to %s again", self._shown)
        self._problem = problem
        if not problem:
            self._success_wall_s = time.time()
            self._note_left_out(*self._left_out)

    def _note_left_out(self, rejected: int, remark: str) -> None:
        """Log once, while it lasts, that the receiver leaves out points of what it accepts, or warns."""
        is_partial = bool(rejected or remark)
        what = f"but left out {rejected:,} points of this push" if rejected else "but warns"
        said = f"{what}: {remark}" if remark else what
        if is_partial:
            level = logging.DEBUG if self._is_partial else logging.WARNING
            LOG.log(level, "OTLP: %s accepts metrics, %s", self._shown, said)
        elif self._is_partial:
            LOG.warning("OTLP: %s accepts all points now, without a warning", self._shown)
        self._is_partial = is_partial

    def _run(self) -> None:
        name_this_thread("otlp")
        due_ns = self._read_ns()
        while True:
            self.push()
            late = max(0, (self._read_ns() - due_ns) // self._interval_ns)
            self._counts[SKIPPED] += late
            due_ns += (late + 1) * self._interval_ns
            if self._closing.wait(ns_to_s(max(0, due_ns - self._read_ns()))):
                break
        if not self._problem and self._read_snapshot() is not self._pushed:
            self.push()


def make_push(config: CollectorConfig, port: int, read_snapshot: Callable[[], Snapshot]) -> MetricsPush | None:
    """Return the push of the settings, for a collector whose HTTP server has this port; None where there is to be none.
    What is wrong with the settings is logged by `notifications/otlp_logs.py`, which reads the same ones.
    """
    if not config.otlp:
        return None
    try:
        endpoint = read_endpoint(config, os.environ, METRICS)
        exporters = import_exporters()
        otlp_metrics: Any = importlib.import_module("rankscope.collector.publish.otlp_metrics")
        sender = exporters.MetricsSender(endpoint)
        requests = otlp_metrics.Requests(exporters.make_resource(describe_resource(port, os.environ)))
    except SettingError as error:
        LOG.debug("no metrics are pushed: %s", error)
        return None
    except Exception as error:  # noqa: BLE001 - whatever the packages raise: the publisher starts
        text = "OTLP cannot be prepared: %s: %s. Until the collector is started again, no metrics are pushed."
        LOG.error(text, type(error).__name__, error)  # noqa: TRY400 - no traceback
        return None

    def build(snapshot: Snapshot) -> Iterator[Any]:
        blocks = read_points(snapshot, metrics_ranks_max=config.metrics_ranks_max, all_ranks=config.otlp_all_ranks)
        found: Iterator[Any] = requests.build(blocks, round(snapshot.wall_s * NS_PER_S))
        return found

    return MetricsPush(sender, build, read_snapshot, interval_s=endpoint.interval_s, shown=endpoint.shown)
