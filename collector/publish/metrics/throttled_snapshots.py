"""The latest picture for those who look again and again, made no more often than a share of a core allows.

The picture of 16,384 ranks is made when it is asked for and takes 0.2 s (`state/draft.py`). The API and those who
follow live share the one that is here: of a large job it may be some seconds old, of a small one it is the latest.
"""

import threading
import time
from collections.abc import Callable
from typing import Final

from rankscope.collector.pacing import CpuShareLimiter
from rankscope.collector.runs.snapshot import Snapshot
from rankscope.measure.units import NS_PER_S

SHARE: Final = 0.05
"""Of one core, however many look: of 16,384 ranks there is a picture every 4 s."""
PERIOD_NS: Final = NS_PER_S
"""A picture that takes less than that share of the usual tick is never put off."""


class ThrottledSnapshots:
    """Any thread may read; `read_snapshot` gives the latest one. `read_ns` is the time, and `read_cpu_ns` what the
    thread that asks has worked so far.
    """

    def __init__(
        self,
        read_snapshot: Callable[[], Snapshot],
        *,
        read_ns: Callable[[], int] = time.monotonic_ns,
        read_cpu_ns: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        self._read_snapshot = read_snapshot
        self._read_ns = read_ns
        self._read_cpu_ns = read_cpu_ns
        self._making = threading.Lock()
        self._pace = CpuShareLimiter(SHARE, PERIOD_NS)
        self._shown: Snapshot | None = None

    def read(self) -> Snapshot:
        """The latest one, or, where that would be too soon, the one before. Its runs are made."""
        with self._making:
            now_ns = self._read_ns()
            if self._shown is None or self._pace.is_due(now_ns):
                latest = self._read_snapshot()
                if latest is not self._shown:
                    began_ns = self._read_cpu_ns()
                    _ = latest.runs
                    self._pace.record(now_ns, self._read_cpu_ns() - began_ns)
                    self._shown = latest
            return self._shown
