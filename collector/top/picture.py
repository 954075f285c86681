"""What a collector says at one moment, as far as `rankscope top` shows it."""

from collections.abc import Mapping
from urllib.parse import quote

import msgspec

from rankscope.collector.client import Credentials, fetch, fetch_runs
from rankscope.collector.run_ids import choose_run_id
from rankscope.collector.runs.snapshot import RunSnapshot

RANKS_MAX = 16_384
"""The most the API gives at once: the largest job there is."""


class RankLine(msgspec.Struct, frozen=True, kw_only=True):
    """One rank, as the API lists it. Times in ns, ratios from 0 to 1; None or absent: not known."""

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

    @property
    def state(self) -> str:
        """In one word."""
        if self.ended is not None:
            return self.ended
        if self.stalled:
            return "stalled"
        return "up" if self.up else "silent"


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """One run among the `runs` that the collector knows. `run` is without its ranks, None while there is no run.
    `problem` says why the collector could not be asked; the rest is then what it said last.
    """

    wall_s: float
    runs: tuple[str, ...] = ()
    run: RunSnapshot | None = None
    ranks: tuple[RankLine, ...] = ()
    problem: str = ""


class _Ranks(msgspec.Struct, frozen=True):
    ranks: tuple[RankLine, ...]


def ask_for_picture(url: str, credentials: Credentials, wanted: str, wall_s: float) -> Picture:
    """What the collector at `url` says of the run `wanted` (an id or a name), or of the first it knows without one.

    Raises UnavailableError where it does not answer, or is no collector.
    """
    names = fetch_runs(url, credentials)
    if not names:
        return Picture(wall_s=wall_s)
    name = quote(choose_run_id(wanted, names) or names[0], safe="")
    run = fetch(f"{url}/api/v1/runs/{name}?ranks=none", RunSnapshot, credentials)
    told = fetch(f"{url}/api/v1/runs/{name}/ranks?order=rank&limit={RANKS_MAX}", _Ranks, credentials)
    return Picture(wall_s=wall_s, runs=names, run=run, ranks=told.ranks)
