"""Fetch the snapshot of one run that `rankscope top` draws."""

from collections.abc import Mapping
from urllib.parse import quote

import msgspec

from rankscope.collector.client import Credentials, fetch, fetch_runs
from rankscope.collector.run_ids import choose_run_id
from rankscope.collector.runs.ratio_basis import NO_WINDOW, RatioBasis
from rankscope.collector.runs.snapshot import RunSnapshot

RANKS_MAX = 16_384
"""Ranks that the API returns in one page."""


class RankLine(msgspec.Struct, frozen=True, kw_only=True):
    """One rank as the API lists it. Times in ns, ratios from 0 to 1; None or absent: unknown."""

    rank: int
    node: str
    up: bool = True
    ended: str | None = None
    stalled: bool | None = None
    last_step: int | None = None
    step_ns_median: float | None = None
    self_ns_median: float | None = None
    slowdown_ratio: float | None = None
    wait_caused_ns_median: float | None = None
    phases_ns_median: Mapping[str, float] = {}
    ratios: Mapping[str, float] = {}
    ratio_basis: RatioBasis = NO_WINDOW
    mfu_ratio: float | None = None

    @property
    def state(self) -> str:
        """How it ended, else `stalled`, `up` or `silent`."""
        if self.ended is not None:
            return self.ended
        if self.stalled:
            return "stalled"
        return "up" if self.up else "silent"


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """One run, and the ids of all `runs`. `run` has no ranks of its own, and is None while there is no run. `problem`
    is the error of the last request; the other fields are then those of the request before it.
    """

    wall_s: float
    runs: tuple[str, ...] = ()
    run: RunSnapshot | None = None
    ranks: tuple[RankLine, ...] = ()
    problem: str = ""


class _Ranks(msgspec.Struct, frozen=True):
    ranks: tuple[RankLine, ...]


def fetch_run_view(url: str, credentials: Credentials, wanted: str, wall_s: float) -> RunView:
    """Return the run `wanted` (an id or a name; empty: the first) of the collector at `url`. Raises
    UnavailableError.
    """
    names = fetch_runs(url, credentials)
    if not names:
        return RunView(wall_s=wall_s)
    name = quote(choose_run_id(wanted, names) or names[0], safe="")
    run = fetch(f"{url}/api/v1/runs/{name}?ranks=none", RunSnapshot, credentials)
    page = fetch(f"{url}/api/v1/runs/{name}/ranks?order=rank&limit={RANKS_MAX}", _Ranks, credentials)
    return RunView(wall_s=wall_s, runs=names, run=run, ranks=page.ranks)
