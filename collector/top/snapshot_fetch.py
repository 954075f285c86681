"""Fetch the snapshot of one run that `rankscope top` draws."""

import contextlib
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final
from urllib.parse import quote

import msgspec

from rankscope.collector.client import Credentials, fetch, fetch_runs
from rankscope.collector.run_ids import find_run_id
from rankscope.collector.runs.ratio_basis import NO_WINDOW, RatioBasis
from rankscope.collector.runs.snapshot import RunSnapshot
from rankscope.measure.errors import UnavailableError

RANKS_MAX = 16_384
"""Ranks that the API returns in one page."""
TREND_POINTS_MAX: Final = 240
"""Points of a curve of the step time: more columns than a terminal has for it."""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """The last sample of a rank's first GPU; None: unknown."""

    utilization_ratio: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None
    sm_clock_hertz: int | None = None


class FetchedRank(msgspec.Struct, frozen=True, kw_only=True):
    """One rank as the API lists it. Times in ns, ratios from 0 to 1; None or absent: unknown."""

    rank: int
    node: str
    up: bool = True
    ended: str | None = None
    stalled: bool | None = None
    last_step: int | None = None
    step_ns_median: float | None = None
    own_ns_median: float | None = None
    slowdown_ratio: float | None = None
    wait_caused_ns_median: float | None = None
    phases_ns_median: Mapping[str, float] = {}
    ratios: Mapping[str, float] = {}
    ratio_basis: RatioBasis = NO_WINDOW
    mfu_ratio: float | None = None
    gpu: Gpu | None = None

    @property
    def state(self) -> str:
        """How it ended, else `stalled`, `up` or `silent`."""
        if self.ended is not None:
            return self.ended
        if self.stalled:
            return "stalled"
        return "up" if self.up else "silent"


class FetchedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run, and the ids of all `runs`. `run` has no ranks of its own, and is None while there is no run. `problem`
    is the error of the last request; the other fields are then those of the request before it.
    """

    wall_s: float
    runs: tuple[str, ...] = ()
    run: RunSnapshot | None = None
    ranks: tuple[FetchedRank, ...] = ()
    problem: str = ""
    trend: tuple[float, ...] = ()
    """The median step of the run's ranks in ns, a point for each poll with further steps, the latest last."""


class _Ranks(msgspec.Struct, frozen=True):
    ranks: tuple[FetchedRank, ...]


class _CurvePoint(msgspec.Struct, frozen=True):
    median_ns: float


class _History(msgspec.Struct, frozen=True):
    steps: tuple[_CurvePoint, ...] | None = None


class StepTrend:
    """The step time of one run at a time, as it is polled."""

    def __init__(self) -> None:
        self._run_id = ""
        self._last_step = -1
        self._points: list[float] = []

    def begin(self, run_id: str, points: Sequence[float] = ()) -> None:
        """Begin the curve of another run, after the points that are known of before."""
        self._run_id, self._last_step, self._points = run_id, -1, list(points)

    def is_of(self, run_id: str) -> bool:
        """Return whether this is the run's curve."""
        return self._run_id == run_id

    def add(self, ranks: Sequence[FetchedRank]) -> tuple[float, ...]:
        """Return the points in ns, with another one where the ranks have made further steps."""
        steps = [rank.last_step for rank in ranks if rank.last_step is not None]
        times_ns = [rank.step_ns_median for rank in ranks if rank.step_ns_median is not None and rank.ended is None]
        if steps and times_ns and max(steps) != self._last_step:
            self._last_step = max(steps)
            self._points = [*self._points, median(times_ns)][-TREND_POINTS_MAX:]
        return tuple(self._points)


def fetch_run_view(url: str, credentials: Credentials, wanted: str, wall_s: float) -> FetchedRun:
    """Return the run `wanted` (an id or a name; empty: the first) of the collector at `url`, none while
    it has no run at all. Raises UnavailableError, also where it has only others.
    """
    names = fetch_runs(url, credentials)
    if not names:
        return FetchedRun(wall_s=wall_s)
    name = quote(find_run_id(wanted, names, f"the collector at {url}") if wanted else names[0], safe="")
    run = fetch(f"{url}/api/v1/runs/{name}?ranks=none", RunSnapshot, credentials)
    page = fetch(f"{url}/api/v1/runs/{name}/ranks?order=rank&limit={RANKS_MAX}", _Ranks, credentials)
    return FetchedRun(wall_s=wall_s, runs=names, run=run, ranks=page.ranks)


def fetch_past_steps(url: str, credentials: Credentials, run_id: str, points_max: int) -> list[float]:
    """Return the step time of a run so far in ns, in at most `points_max` points, from the collector's store; empty
    without one.
    """
    with contextlib.suppress(UnavailableError):
        path = f"{url}/api/v1/runs/{quote(run_id, safe='')}/history?points={points_max}"
        return [point.median_ns for point in fetch(path, _History, credentials).steps or ()]
    return []
