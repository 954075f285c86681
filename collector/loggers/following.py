"""Follow a run of a collector, and write what it says of nodes and ranks until the run has ended."""

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from rankscope.collector.loggers.rows import build_row, find_step
from rankscope.collector.top.snapshot_fetch import FetchedRun
from rankscope.measure.errors import UnavailableError

AWAY_S_MAX: Final = 300.0
"""A collector that is gone for longer than that, as that of rank 0 is after its run, ends it."""


class Sink(Protocol):
    """A run of a logger. Both methods raise whatever its library raises."""

    def write(self, row: Mapping[str, float], step: int, wall_s: float) -> None:
        """Write a row at a step."""
        ...

    def close(self) -> None:
        """Write what is not written yet, and end the run."""
        ...


class Follower:
    """Writes a row each `interval_s` to `sink`. `fetch` returns the present state of the run, and raises
    UnavailableError; `wait` waits so long, and returns whether to stop; `say` is called with a problem, once while it
    lasts.
    """

    def __init__(
        self,
        fetch: Callable[[], FetchedRun],
        sink: Sink,
        *,
        ranks_max: int,
        interval_s: float,
        wait: Callable[[float], bool],
        say: Callable[[str], object],
    ) -> None:
        self._fetch = fetch
        self._sink = sink
        self._ranks_max = ranks_max
        self._interval_s = interval_s
        self._wait = wait
        self._tell = say
        self._away_s = 0.0
        self._said = ""
        self.rows = 0
        """Rows that were written."""
        self.problem = ""
        """Why the last row was not written; empty where it was."""

    def follow(self) -> None:
        """Write until the run has ended, or `wait` says so. Raises UnavailableError where the collector is gone."""
        while True:
            try:
                view = self._fetch()
            except UnavailableError as error:
                self._away_s += self._interval_s
                if self._away_s > AWAY_S_MAX:
                    raise
                self._say(f"{error} It is asked again every {self._interval_s:g} s")
            else:
                self._away_s = 0.0
                self._write(view)
                if view.run is not None and view.run.end is not None:
                    return
            if self._wait(self._interval_s):
                return

    def _write(self, view: FetchedRun) -> None:
        row = build_row(view.ranks, self._ranks_max)
        if not row:
            return
        try:
            self._sink.write(row, find_step(view.ranks), view.wall_s)
        except Exception as error:  # noqa: BLE001 - of whatever library
            self.problem = f"{type(error).__name__}: {error}"
            self._say(f"the logger has not taken a row ({self.problem}); the next one is tried")
            return
        self.problem = self._said = ""
        self.rows += 1

    def _say(self, text: str) -> None:
        if not self._said:
            self._tell(text)
        self._said = text
