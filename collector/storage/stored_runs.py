"""List the runs of a store: those of all collectors that share it."""

from typing import Final, NamedTuple

import msgspec

from rankscope.collector.run_ids import describe_unknown_run, read_run_name
from rankscope.collector.runs.saved_runs import SavedRun
from rankscope.collector.storage.database import reading
from rankscope.collector.store_address import StoreAddress
from rankscope.measure.errors import UnavailableError

RUNS_MAX: Final = 100
"""Runs that are listed, those that changed last."""


class StoredRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it was last written. `collector` is whose it is, "" in a file; `end` how it ended, None while that is
    not known; `goodput_ratio` the share of its time in which it made steps at its usual speed, None before any.
    """

    run: str
    run_id: str
    collector: str
    world_size: int
    attempts: int
    begun_wall_s: float
    changed_wall_s: float
    findings_opened: int
    goodput_ratio: float | None
    end: str | None


class StoredRuns(NamedTuple):
    """Runs, those that changed last first; how many others there are, and how many could not be read."""

    runs: tuple[StoredRun, ...]
    others: int
    rows_unreadable: int


def read_runs(address: StoreAddress, run: str | None = None, runs_max: int = RUNS_MAX) -> StoredRuns:
    """Return the runs of a store, or those with this id or name. Raises UnavailableError when it cannot be used, or
    has none of these.
    """
    found: list[StoredRun] = []
    known: list[str] = []
    others = unreadable = 0
    with reading(address) as connection:
        if connection.has_table("runs"):
            collector = connection.find_collector("runs")
            rows = connection.execute(
                f"SELECT run, {collector}, body FROM runs ORDER BY changed_wall_s DESC, run"  # noqa: S608 - a constant
            )
        else:
            rows = ()
        for run_id, name, body in rows:
            known.append(run_id)
            if run is not None and run not in {run_id, read_run_name(run_id)}:
                continue
            if len(found) == runs_max:
                others += 1
                continue
            try:
                found.append(_build(msgspec.json.decode(body, type=SavedRun), name))
            except (msgspec.DecodeError, TypeError):
                unreadable += 1
    if run is not None and not found and not unreadable:
        raise UnavailableError(describe_unknown_run(run, known, str(address)))
    return StoredRuns(tuple(found), others, unreadable)


def _build(saved: SavedRun, collector: str) -> StoredRun:
    return StoredRun(
        run=read_run_name(saved.run),
        run_id=saved.run,
        collector=collector,
        world_size=saved.world_size,
        attempts=saved.attempt + 1,
        begun_wall_s=saved.begun_wall_s,
        changed_wall_s=saved.changed_wall_s,
        findings_opened=saved.findings_opened,
        goodput_ratio=saved.goodput.goodput_ratio,
        end=None if saved.end is None else saved.end.reason,
    )
