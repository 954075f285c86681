"""Aggregate the steps of each rank over intervals of about a minute, one packed row for all ranks. Pure.

Steps and their time are differences of the totals that every report carries: they are exact whatever reports were lost.
Self time, slowdown and caused wait are those of the last detection pass at the end of the interval.
"""

import zlib
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot

COLUMNS: Final = ("rank", "steps", "step_ns", "data_ns", "self_ns", "slowdown_ratio", "wait_caused_ns")
"""Of an interval: `steps` in it and their mean duration `step_ns`, with `data_ns` in the phase `data`; the medians over
the last steps at its end of the rank's self time, its slowdown and its caused wait in a step. NaN: unknown. 32-bit
floats have seven digits, more than the accuracy of the values, and hold whole rank numbers up to 2**24."""
ZLIB_LEVEL: Final = 1
"""Reduces a row of 16,384 ranks to about 60 %; level 6 saves a twentieth more in four times the time."""

Column = npt.NDArray[np.float32]


class RankInterval(NamedTuple):
    """One interval of a run. Every column has shape (ranks,)."""

    attempt: int
    begin_wall_s: float
    end_wall_s: float
    columns: Mapping[str, Column]


class _Progress(NamedTuple):
    """Totals of one rank process at the start of an interval."""

    boot_id: str
    steps: int
    step_ns: int
    data_ns: int


class RankIntervals:
    """Divides every run into intervals. Called once a tick, it works once an interval."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._begun: dict[str, tuple[int, float, dict[int, _Progress]]] = {}

    def is_due(self, run: str, attempt: int, wall_s: float, *, is_last: bool = False) -> bool:
        """Return whether `update` has work to do: an interval ends now, or the first one of an attempt begins."""
        begun = self._begun.get(run)
        if begun is None or begun[0] != attempt or is_last:
            return True
        return not 0.0 <= wall_s - begun[1] < self._interval_s

    def update(self, run: RunSnapshot, attempt: int, wall_s: float, *, is_last: bool = False) -> RankInterval | None:
        """Return the interval that ends now; None when none does, or it has no steps. `is_last`: end it early."""
        begun = self._begun.get(run.run_id)
        if begun is None or begun[0] != attempt or wall_s < begun[1]:
            self._begun[run.run_id] = (attempt, wall_s, _read_progress(run))
            return None
        if not is_last and wall_s - begun[1] < self._interval_s:
            return None
        _, begin_wall_s, progress = begun
        self._begun[run.run_id] = (attempt, wall_s, _read_progress(run))
        found = RankInterval(attempt, begin_wall_s, wall_s, _build_columns(run, progress))
        return found if found.columns["steps"].any() else None

    def forget(self, run: str) -> None:
        """Forget a run."""
        self._begun.pop(run, None)


def pack(interval: RankInterval) -> bytes:
    """Return the columns in their stored form."""
    columns = {name: column.astype("<f4").tobytes() for name, column in interval.columns.items()}
    return zlib.compress(msgspec.msgpack.encode(columns), ZLIB_LEVEL)


def unpack(body: bytes) -> dict[str, Column]:
    """Return the columns by name; unknown ones are dropped, missing ones are NaN. Raises ValueError."""
    try:
        packed = msgspec.msgpack.decode(zlib.decompress(body), type=dict[str, bytes])
    except (zlib.error, msgspec.MsgspecError) as error:
        raise ValueError(f"no packed columns: {error}") from error
    found = {name: np.frombuffer(packed[name], dtype="<f4").astype(np.float32) for name in COLUMNS if name in packed}
    count = len(next(iter(found.values()))) if found else 0
    return {name: found.get(name, np.full(count, np.nan, dtype=np.float32)) for name in COLUMNS}


def _read_progress(run: RunSnapshot) -> dict[int, _Progress]:
    return {
        rank.identity.rank: _Progress(
            rank.identity.boot_id, rank.totals.steps, rank.totals.step_ns, rank.totals.phases_ns.get("data", 0)
        )
        for rank in run.ranks
    }


def _build_columns(run: RunSnapshot, progress: Mapping[int, _Progress]) -> dict[str, Column]:
    rows = [_build_row(rank, progress.get(rank.identity.rank)) for rank in run.ranks]
    table = np.array(rows, dtype=np.float32).reshape(-1, len(COLUMNS))
    return {name: table[:, place].copy() for place, name in enumerate(COLUMNS)}


def _build_row(rank: RankSnapshot, before: _Progress | None) -> tuple[float, ...]:
    if before is None or before.boot_id != rank.identity.boot_id:
        before = _Progress(rank.identity.boot_id, 0, 0, 0)
    totals = rank.totals
    steps = max(0, totals.steps - before.steps)
    data_ns = totals.phases_ns.get("data")
    return (
        rank.identity.rank,
        steps,
        (totals.step_ns - before.step_ns) / steps if steps else np.nan,
        (data_ns - before.data_ns) / steps if steps and data_ns is not None else np.nan,
        *(np.nan if value is None else value for value in (
            rank.self_ns_median, rank.slowdown_ratio, rank.wait_caused_ns_median,
        )),
    )  # fmt: skip
