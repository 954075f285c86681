"""Find the runs of the store that did the same work as a run that has just started, on a thread of its own.

A run is linked with the runs of its name, unless something of their work is known to differ, and with those of other
names whose script and model FLOPs are the same (`steps/equal_work.py`). The collector's loop never waits for the disk:
it asks with `request`, and gets the answer from `pop_found` in a later tick.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from rankscope.collector.fault_log import FaultLog
from rankscope.collector.run_ids import read_run_name
from rankscope.collector.runs.events import EarlierRunsRead
from rankscope.collector.runs.run import RunState
from rankscope.collector.steps.equal_work import Work, find_unequal, has_same_fingerprint
from rankscope.collector.steps.run_start import EarlierRun, RunStart
from rankscope.collector.storage.database import reading
from rankscope.collector.store_address import StoreAddress

RUNS_READ_MAX: Final = 1_000
"""Runs of the store that are looked through, those that changed last."""
EARLIER_RUNS_MAX: Final = 40
"""Earlier runs that a run is given: twice as many as say what is usual, since some had a finding."""
EARLIER_RUNS: Final = "earlier_runs"
"""Label of failures in the counts of errors."""

Found = tuple[str, EarlierRunsRead]
"""The id of a run, and the earlier runs of the same work, with which attempt of it they were read for."""
Find = Callable[[StoreAddress, str, RunStart], tuple[EarlierRun, ...]]


class _Start(msgspec.Struct, frozen=True):
    """The part of a SavedStory that says how the run started."""

    start: RunStart | None = None


_DECODER: Final = msgspec.json.Decoder(_Start)


class EarlierRunReader:
    """Reads the earlier runs of a run once, one run at a time. A failure is counted and logged, and not tried again:
    that run is not compared with others.
    """

    def __init__(self, faults: FaultLog, find: Find | None = None) -> None:
        self._faults = faults
        self._find = find or find_earlier_runs
        #: The thread of the last request; None before any.
        self.thread: threading.Thread | None = None
        self._asked: dict[str, float] = {}
        #: The thread adds to its end while the caller removes from its begin.
        self._found: deque[Found] = deque()

    def request(self, address: StoreAddress, runs: Iterable[RunState]) -> None:
        """Begin to read the earlier runs of the first attempt whose first steps are known and that was not read yet;
        while another one's are being read nothing happens. To be called again later.
        """
        if self.thread is not None and self.thread.is_alive():
            return
        for run in runs:
            start, earlier = run.speed.start, run.speed.earlier_runs
            if start is not None and earlier is None and self._asked.get(run.run) != start.begun_wall_s:
                self._asked[run.run] = start.begun_wall_s
                self.thread = threading.Thread(
                    target=self._read, args=(address, run.run, start), name="rankscope-earlier-runs", daemon=True
                )
                self.thread.start()
                return

    def pop_found(self) -> list[Found]:
        """Return what was read since the last call."""
        return [self._found.popleft() for _ in range(len(self._found))]

    def forget(self, run_id: str) -> None:
        """Forget a run."""
        self._asked.pop(run_id, None)

    def _read(self, address: StoreAddress, run_id: str, start: RunStart) -> None:
        try:
            read = EarlierRunsRead(start.begun_wall_s, self._find(address, run_id, start))
            self._found.append((run_id, read))
        except Exception:  # noqa: BLE001 - no error may end more than this
            self._faults.note(
                EARLIER_RUNS, "its earlier runs could not be read; it is not compared with them", run=run_id
            )


def find_earlier_runs(address: StoreAddress, run_id: str, start: RunStart) -> tuple[EarlierRun, ...]:
    """Return the runs of the same work that began before this one, the latest first, at most EARLIER_RUNS_MAX. Runs
    that ended early, or were stored by an earlier version, have no start and are left out. Raises UnavailableError when
    the file cannot be used.
    """
    found = []
    with reading(address) as connection:
        rows = connection.execute(
            "SELECT run, story FROM runs WHERE run != ? ORDER BY changed_wall_s DESC LIMIT ?", (run_id, RUNS_READ_MAX)
        )
        for run, story in rows:
            earlier = _try_decode(story)
            if earlier is None or earlier.begun_wall_s >= start.begun_wall_s:
                continue
            has_same_name = read_run_name(run) == read_run_name(run_id)
            if _is_same_work(earlier.work, start.work, has_same_name=has_same_name):
                found.append(EarlierRun(run, earlier))
    return tuple(sorted(found, key=lambda one: -one.start.begun_wall_s)[:EARLIER_RUNS_MAX])


def _is_same_work(earlier: Work, work: Work, *, has_same_name: bool) -> bool:
    return not find_unequal(earlier, work) if has_same_name else has_same_fingerprint(earlier, work)


def _try_decode(story: str) -> RunStart | None:
    try:
        return _DECODER.decode(story).start
    except (msgspec.DecodeError, TypeError):
        return None
