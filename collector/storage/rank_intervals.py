"""What each rank did in each stretch of a run, a minute or so: one packed row for all ranks together. Pure.

Steps and their time are differences of the totals that every report carries: they are exact whatever was lost on the
way. Own time, slowdown and waiting caused are what the last look of detection said at the end of the interval.
"""

import zlib
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot

COLUMNS: Final = ("rank", "steps", "step_ns", "data_ns", "self_ns", "slowdown_ratio", "wait_caused_ns")
"""Of an interval: `steps` in it and their mean duration `step_ns`, of which `data_ns` in the phase `data`; the medians
over the last steps at its end of the rank's own time, its slowdown and the waiting of all that it caused in a step.
NaN: not known. 32-bit floats: seven digits are more than any of these is good for, and ranks stay whole up to 2**24.
"""
ZLIB_LEVEL: Final = 1
"""Of 393 KB of 16,384 ranks about 60 % are left; level 6 saves a twentieth more in four times the time."""

Column = npt.NDArray[np.float32]


class RankInterval(NamedTuple):
    """One stretch of a run. Every column has shape (ranks,)."""

    attempt: int
    begin_wall_s: float
    end_wall_s: float
    columns: Mapping[str, Column]


class _Mark(NamedTuple):
    """How far one life had come."""

    boot_id: str
    steps: int
    step_ns: int
    data_ns: int


class RankIntervals:
    """Cuts the life of every run into intervals. Asked once a tick, it works once an interval."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._begun: dict[str, tuple[int, float, dict[int, _Mark]]] = {}

    def is_due(self, run: str, attempt: int, wall_s: float, *, is_last: bool = False) -> bool:
        """Whether `look` has something to do: an interval ends now, or the first one of an attempt begins."""
        begun = self._begun.get(run)
        if begun is None or begun[0] != attempt or is_last:
            return True
        return not 0.0 <= wall_s - begun[1] < self._interval_s

    def look(self, run: RunSnapshot, attempt: int, wall_s: float, *, is_last: bool = False) -> RankInterval | None:
        """The interval that ends now; None when none does, or nobody made a step in it. `is_last`: end it early."""
        begun = self._begun.get(run.run_id)
        if begun is None or begun[0] != attempt or wall_s < begun[1]:
            self._begun[run.run_id] = (attempt, wall_s, _mark(run))
            return None
        if not is_last and wall_s - begun[1] < self._interval_s:
            return None
        _, begin_wall_s, marks = begun
        self._begun[run.run_id] = (attempt, wall_s, _mark(run))
        found = RankInterval(attempt, begin_wall_s, wall_s, _build_columns(run, marks))
        return found if found.columns["steps"].any() else None

    def forget(self, run: str) -> None:
        """The run is no longer known."""
        self._begun.pop(run, None)


def pack(interval: RankInterval) -> bytes:
    """The columns as they are kept."""
    columns = {name: column.astype("<f4").tobytes() for name, column in interval.columns.items()}
    return zlib.compress(msgspec.msgpack.encode(columns), ZLIB_LEVEL)


def unpack(body: bytes) -> dict[str, Column]:
    """The columns, by name; those of another release are left out, those it did not know are NaN. Raises ValueError."""
    try:
        packed = msgspec.msgpack.decode(zlib.decompress(body), type=dict[str, bytes])
    except (zlib.error, msgspec.MsgspecError) as error:
        raise ValueError(f"no packed columns: {error}") from error
    found = {name: np.frombuffer(packed[name], dtype="<f4").astype(np.float32) for name in COLUMNS if name in packed}
    count = len(next(iter(found.values()))) if found else 0
    return {name: found.get(name, np.full(count, np.nan, dtype=np.float32)) for name in COLUMNS}


def _mark(run: RunSnapshot) -> dict[int, _Mark]:
    return {
        rank.identity.rank: _Mark(
            rank.identity.boot_id, rank.totals.steps, rank.totals.step_ns, rank.totals.phases_ns.get("data", 0)
        )
        for rank in run.ranks
    }


def _build_columns(run: RunSnapshot, marks: Mapping[int, _Mark]) -> dict[str, Column]:
    rows = [_build_row(rank, marks.get(rank.identity.rank)) for rank in run.ranks]
    table = np.array(rows, dtype=np.float32).reshape(-1, len(COLUMNS))
    return {name: table[:, place].copy() for place, name in enumerate(COLUMNS)}


def _build_row(rank: RankSnapshot, mark: _Mark | None) -> tuple[float, ...]:
    if mark is None or mark.boot_id != rank.identity.boot_id:
        mark = _Mark(rank.identity.boot_id, 0, 0, 0)
    totals = rank.totals
    steps = max(0, totals.steps - mark.steps)
    data_ns = totals.phases_ns.get("data")
    return (
        rank.identity.rank,
        steps,
        (totals.step_ns - mark.step_ns) / steps if steps else np.nan,
        (data_ns - mark.data_ns) / steps if steps and data_ns is not None else np.nan,
        *(np.nan if value is None else value for value in (
            rank.self_ns_median, rank.slowdown_ratio, rank.wait_caused_ns_median,
        )),
    )  # fmt: skip
