"""Count faults of the collector's own code by place, and log them with their tracebacks.

A fault may recur with every message of ten thousand ranks, so each kind is logged at most once a minute, with the
number of others since. A kind is the place, the type of the exception, the line that raised it, and the run: two
different faults in two runs are two tracebacks.
"""

import contextlib
import logging
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator
from types import TracebackType
from typing import Final, NamedTuple

from rankscope.measure.clock import Clock
from rankscope.measure.units import NS_PER_S

LOG = logging.getLogger("rankscope.collector")

LOG_AGAIN_NS: Final = 60 * NS_PER_S
KINDS_MAX: Final = 256
"""Kinds that are remembered. Beyond that the one logged longest ago is forgotten, so it is logged at once when it
recurs."""


class _Kind(NamedTuple):
    """One kind of fault: where it was contained, the exception, the line that raised it, and the run."""

    place: str
    exception: str
    raised_at: str
    run: str


class FaultLog:
    """Counts and logs faults. Any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._logged_ns: OrderedDict[_Kind, int] = OrderedDict()
        self._unlogged: dict[_Kind, int] = {}

    @property
    def counts(self) -> dict[str, int]:
        """Faults so far, by place."""
        with self._lock:
            return dict(self._counts)

    def count(self, place: str) -> int:
        """Count a fault that is logged elsewhere; return the count of its place."""
        with self._lock:
            self._counts[place] = self._counts.get(place, 0) + 1
            return self._counts[place]

    @contextlib.contextmanager
    def contain(self, place: str, sentence: str) -> Iterator[None]:
        """Note an exception raised in this context, and continue after it."""
        try:
            yield
        except Exception:  # noqa: BLE001 - it is noted
            self.note(place, sentence)

    def note(self, place: str, sentence: str, *, run: str = "") -> None:
        """Count the exception that is being handled, and log it with its traceback unless one of its kind was logged
        within the last minute.
        """
        fault = sys.exc_info()
        exception_type, _, traceback = fault
        name = "" if exception_type is None else exception_type.__qualname__
        kind = _Kind(place, name, _find_raising_line(traceback), run)
        self.count(place)
        unlogged = self._find_unlogged(kind)
        if unlogged is None:
            return
        of_run = f"run {run!r}: " if run else ""
        since = f" ({unlogged} more of this kind since it was last logged)" if unlogged else ""
        LOG.error("%s%s%s", of_run, sentence, since, exc_info=fault)

    def _find_unlogged(self, kind: _Kind) -> int | None:
        """Return how many of a kind were not logged if one is to be logged now, else None."""
        now_ns = self._clock.monotonic_ns()
        with self._lock:
            logged_ns = self._logged_ns.get(kind)
            if logged_ns is not None and now_ns - logged_ns < LOG_AGAIN_NS:
                self._unlogged[kind] = self._unlogged.get(kind, 0) + 1
                return None
            self._logged_ns[kind] = now_ns
            self._logged_ns.move_to_end(kind)
            if len(self._logged_ns) > KINDS_MAX:
                forgotten, _ = self._logged_ns.popitem(last=False)
                self._unlogged.pop(forgotten, None)
            return self._unlogged.pop(kind, 0)


def _find_raising_line(traceback: TracebackType | None) -> str:
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return "" if traceback is None else f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"
