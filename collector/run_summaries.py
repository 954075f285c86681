"""Send the summary of each run to its rank 0 about every 10 s, where the rank wants it (docs/loggers.md).

The collector sends it; a rank never asks, so nothing in a training process waits for a collector.
"""

from collections.abc import Callable, Iterable
from typing import Final

from rankscope.collector.fault_log import FaultLog
from rankscope.collector.ingest.exchange import SendToRank
from rankscope.collector.runs.rank import RankState
from rankscope.collector.runs.run import RunState
from rankscope.collector.runs.run_summary import DataWait, build_run_summary
from rankscope.collector.runs.snapshot import Snapshot
from rankscope.measure.units import NS_PER_S

SUMMARY_NS: Final = 10 * NS_PER_S
"""Time after which a summary is due, a point of a chart. One of 16,384 ranks takes as long to build as what the history
reads of them, so that more would be felt there. Ticks that are further apart send one each: an agent forgets a summary
after a minute (STALE_NS)."""
SUMMARY_TICKS: Final = 10
"""Ticks after which one is due earlier, where `tick_s` is under the default of 1 s."""


class RunSummaries:
    """The summaries of all runs. `send` queues a message to a rank process, without waiting."""

    def __init__(self, send: Callable[[SendToRank], object], faults: FaultLog) -> None:
        self._send = send
        self._faults = faults
        self._ticks = 0
        self._sent_ns: int | None = None
        self._data_waits: dict[str, DataWait] = {}

    def tick(self, now_ns: int, runs: Iterable[RunState], snapshot: Snapshot) -> None:
        """Send what is due at this tick. `snapshot` is that of these runs, `now_ns` the monotonic clock."""
        self._ticks += 1
        if self._sent_ns is None:
            self._sent_ns = now_ns
        if self._ticks < SUMMARY_TICKS and now_ns - self._sent_ns < SUMMARY_NS:
            return
        self._ticks, self._sent_ns = 0, now_ns
        listeners = {run.run: rank for run in runs if (rank := find_listener(run)) is not None}
        self._data_waits = {run_id: self._data_waits.get(run_id, DataWait()) for run_id in listeners}
        for run_id, rank in listeners.items():
            with self._faults.contain("summary", f"run {run_id!r}: no summary could be sent to its rank 0; continuing"):
                data_wait_ratio = self._data_waits[run_id].update(snapshot.read_totals(run_id))
                summary = build_run_summary(snapshot.summarize_run(run_id), data_wait_ratio)
                self._send(SendToRank(rank.identity.boot_id, summary))


def find_listener(run: RunState) -> RankState | None:
    """Return rank 0 of the run's present attempt if it is live and wants summaries."""
    rank = None if run.attempt is None else run.attempt.ranks.get(0)
    return rank if rank is not None and rank.is_live and rank.hello.wants_summary else None
