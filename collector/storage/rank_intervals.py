"""Aggregate the steps of each rank over intervals of about a minute, one packed row for all ranks. Pure.

Steps and their time are differences of the totals that every report carries: they are exact whatever reports were lost.
Own time, slowdown and caused wait are those of the last detection pass at the end of the interval. What profiler
windows measured and how much work was done is summed over the ranks: a comparison of runs reads these sums.
"""

import zlib
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot
from rankscope.measure.records import Totals

COLUMNS: Final = ("rank", "steps", "step_ns", "data_ns", "own_ns", "slowdown_ratio", "wait_caused_ns")
"""Of an interval: `steps` in it and their mean duration `step_ns`, with `data_ns` in the phase `data`; the medians over
the last steps at its end of the rank's own time, its slowdown and its caused wait in a step. NaN: unknown. 32-bit
floats have seven digits, more than the accuracy of the values, and hold whole rank numbers up to 2**24."""
ZLIB_LEVEL: Final = 1
"""Reduces a row of 16,384 ranks to about 60 %; level 6 saves a twentieth more in four times the time."""

SUMS: Final = (
    "steps", "step_ns", "window_ns", "compute_ns", "exposed_communication_ns", "copy_ns", "idle_ns",
    "samples", "samples_step_ns", "tokens", "tokens_step_ns",
)  # fmt: skip
"""Of an interval, summed over its ranks: what was added to these fields of `Totals`. Compute, exposed communication,
copies and idle time sum to the windows. A `..._step_ns` of 0: no samples (tokens) are known."""
SUM_MAX: Final = 2**63 - 1
"""The largest sum that is stored, about 3e5 years: totals come from the ranks."""
_SUM: Final = "sum:"
"""Begin of the stored name of a sum; readers of columns drop names that they do not know."""

Column = npt.NDArray[np.float32]


class RankInterval(NamedTuple):
    """One interval of a run. Every column has shape (ranks,); `sums` has all SUMS, or none where they were not read."""

    attempt: int
    begin_wall_s: float
    end_wall_s: float
    columns: Mapping[str, Column]
    sums: Mapping[str, int] = {}


class IntervalSums(NamedTuple):
    """The sums of one interval of a run over its ranks, by the names of SUMS; empty in rows that were written without
    them.
    """

    attempt: int
    begin_wall_s: float
    end_wall_s: float
    sums: Mapping[str, int]


class _Progress(NamedTuple):
    """Totals of one rank process at the start of an interval."""

    boot_id: str
    steps: int
    step_ns: int
    data_ns: int
    sums: tuple[int, ...]


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
        columns, sums = _build_columns(run, progress), _build_sums(run, progress)
        found = RankInterval(attempt, begin_wall_s, wall_s, columns, sums)
        return found if found.columns["steps"].any() else None

    def forget(self, run: str) -> None:
        """Forget a run."""
        self._begun.pop(run, None)


def pack(interval: RankInterval) -> bytes:
    """Return the columns in their stored form."""
    packed = {name: column.astype("<f4").tobytes() for name, column in interval.columns.items()}
    packed |= {f"{_SUM}{name}": value.to_bytes(8, "little") for name, value in interval.sums.items()}
    return zlib.compress(msgspec.msgpack.encode(packed), ZLIB_LEVEL)


def unpack(body: bytes) -> dict[str, Column]:
    """Return the columns by name; unknown ones are dropped, missing ones are NaN. Raises ValueError."""
    packed = _decode(body)
    found = {name: np.frombuffer(packed[name], dtype="<f4").astype(np.float32) for name in COLUMNS if name in packed}
    count = len(next(iter(found.values()))) if found else 0
    return {name: found.get(name, np.full(count, np.nan, dtype=np.float32)) for name in COLUMNS}


def unpack_sums(body: bytes) -> dict[str, int]:
    """Return the sums over the ranks by name; empty where the row has not all of them. Raises ValueError."""
    packed = _decode(body)
    if any(len(packed.get(f"{_SUM}{name}", b"")) != np.dtype("<i8").itemsize for name in SUMS):
        return {}
    return {name: int.from_bytes(packed[f"{_SUM}{name}"], "little") for name in SUMS}


def _decode(body: bytes) -> dict[str, bytes]:
    try:
        return msgspec.msgpack.decode(zlib.decompress(body), type=dict[str, bytes])
    except (zlib.error, msgspec.MsgspecError) as error:
        raise ValueError(f"no packed columns: {error}") from error


def _read_progress(run: RunSnapshot) -> dict[int, _Progress]:
    return {
        rank.identity.rank: _Progress(
            rank.identity.boot_id,
            rank.totals.steps,
            rank.totals.step_ns,
            rank.totals.phases_ns.get("data", 0),
            _read_sums(rank.totals),
        )
        for rank in run.ranks
    }


def _read_sums(totals: Totals) -> tuple[int, ...]:
    """Return the fields of SUMS; 0 for samples and tokens of which none are known."""
    return tuple([getattr(totals, name) or 0 for name in SUMS])


def _build_sums(run: RunSnapshot, progress: Mapping[int, _Progress]) -> dict[str, int]:
    """Return how much all ranks have added; a process that began since has added all that it has."""
    added = [0] * len(SUMS)
    for rank in run.ranks:
        before = progress.get(rank.identity.rank)
        known = None if before is None or before.boot_id != rank.identity.boot_id else before.sums
        for place, value in enumerate(_read_sums(rank.totals)):
            added[place] += max(0, value - (known[place] if known is not None else 0))
    return {name: min(value, SUM_MAX) for name, value in zip(SUMS, added, strict=True)}


def _build_columns(run: RunSnapshot, progress: Mapping[int, _Progress]) -> dict[str, Column]:
    rows = [_build_row(rank, progress.get(rank.identity.rank)) for rank in run.ranks]
    table = np.array(rows, dtype=np.float32).reshape(-1, len(COLUMNS))
    return {name: table[:, place].copy() for place, name in enumerate(COLUMNS)}


def _build_row(rank: RankSnapshot, before: _Progress | None) -> tuple[float, ...]:
    if before is None or before.boot_id != rank.identity.boot_id:
        before = _Progress(rank.identity.boot_id, 0, 0, 0, ())
    totals = rank.totals
    steps = max(0, totals.steps - before.steps)
    data_ns = totals.phases_ns.get("data")
    return (
        rank.identity.rank,
        steps,
        (totals.step_ns - before.step_ns) / steps if steps else np.nan,
        (data_ns - before.data_ns) / steps if steps and data_ns is not None else np.nan,
        *(np.nan if value is None else value for value in (
            rank.own_ns_median, rank.slowdown_ratio, rank.wait_caused_ns_median,
        )),
    )  # fmt: skip
