"""Encode a run as ranks x time in bytes, for the live page and `GET /api/v1/runs/RUN/heatmap`. Pure.

Little-endian, in this order:

    u32     length of the head in bytes
    head    JSON in UTF-8, a HeatMapHead
    cells   one byte a rank and column, column after column, each in the order of the head's ranks

A cell is 0 for unknown, else 1 to 255 for the own time of the rank over that of its peer ranks:
ratio = 2 ** ((cell - 128) / 32). So 128 is equal, 160 twice as slow, and 255 stands for everything beyond 15.6 times.
"""

import math
import struct
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from rankscope.collector.runs.heat_map import HeatMapSteps, Numbers
from rankscope.collector.steps.step_series import Floats
from rankscope.collector.storage.rank_intervals import RankInterval

EQUAL: Final = 128
"""Cell of a rank as fast as its peers."""
CELLS_PER_OCTAVE: Final = 32
"""A cell is 2.2 % wide, less than any finding; a factor of two is 32 cells."""
CELL_MAX: Final = 255
OF_STEPS: Final = "steps"
OF_INTERVALS: Final = "intervals"

Cells = npt.NDArray[np.uint8]


class HeatMapColumn(msgspec.Struct, frozen=True, kw_only=True):
    """One step, or, of `source` intervals, a time interval: `step` or both times (s since 1970) are given. Of a step
    `end_wall_s` is when the collector had it, to a report's interval; None: this collector process does not know.
    """

    attempt: int
    step: int | None = None
    begin_wall_s: float | None = None
    end_wall_s: float | None = None


class HeatMapHead(msgspec.Struct, frozen=True, kw_only=True):
    """What the cells are of. `ranks` are ranges of ranks, the first and the last of each, in ascending order;
    `source` is `steps`, the last ones of the run, or `intervals`, its past from the store.
    """

    run: str
    source: str
    world_size: int
    ranks: tuple[tuple[int, int], ...]
    columns: tuple[HeatMapColumn, ...]


def of_steps(run: str, world_size: int, recent: HeatMapSteps) -> bytes:
    """Return the heat map of the last steps."""
    head = HeatMapHead(
        run=run,
        source=OF_STEPS,
        world_size=world_size,
        ranks=_find_ranges(recent.ranks.tolist()),
        columns=tuple(
            HeatMapColumn(attempt=recent.attempt, step=step, end_wall_s=None if math.isnan(wall_s) else wall_s)
            for step, wall_s in zip(recent.steps.tolist(), recent.find_wall_s().round(3).tolist(), strict=True)
        ),
    )
    return _pack(head, to_cells(recent.excess))


def of_intervals(run: str, world_size: int, intervals: Sequence[RankInterval]) -> bytes:
    """Return the heat map of the history of a run, with all ranks of its intervals."""
    ranks = sorted({int(rank) for interval in intervals for rank in interval.columns["rank"].tolist()})
    excess = np.full((len(intervals), len(ranks)), np.nan)
    for row, interval in enumerate(intervals):
        places = np.searchsorted(np.array(ranks), interval.columns["rank"])
        excess[row, places] = np.log(np.maximum(interval.columns["slowdown_ratio"], np.finfo(np.float32).tiny))
    columns = tuple(
        HeatMapColumn(attempt=one.attempt, begin_wall_s=one.begin_wall_s, end_wall_s=one.end_wall_s)
        for one in intervals
    )
    head = HeatMapHead(run=run, source=OF_INTERVALS, world_size=world_size, ranks=_find_ranges(ranks), columns=columns)
    return _pack(head, to_cells(excess))


def to_cells(excess: Floats | Numbers) -> Cells:
    """Return the cells of log(ratio), of the same shape; 0 where it is NaN.

    >>> to_cells(np.log(np.array([1.0, 2.0, 0.5, 1000.0, np.nan]))).tolist()
    [128, 160, 96, 255, 0]
    """
    cells = np.clip(np.rint(EQUAL + CELLS_PER_OCTAVE * excess / np.log(2.0)), 1, CELL_MAX)
    return np.asarray(np.nan_to_num(cells, nan=0.0), dtype=np.uint8)


def unpack(body: bytes) -> tuple[HeatMapHead, Cells]:
    """Return the head, and the cells with shape (columns, ranks)."""
    (length,) = struct.unpack_from("<I", body)
    begin = struct.calcsize("<I")
    head = msgspec.json.decode(body[begin : begin + length], type=HeatMapHead)
    ranks = sum(last - first + 1 for first, last in head.ranks)
    return head, np.frombuffer(body, dtype=np.uint8, offset=begin + length).reshape(len(head.columns), ranks)


def _pack(head: HeatMapHead, cells: Cells) -> bytes:
    encoded = msgspec.json.encode(head)
    return struct.pack("<I", len(encoded)) + encoded + cells.tobytes()


def _find_ranges(ranks: Sequence[int]) -> tuple[tuple[int, int], ...]:
    ranges: list[tuple[int, int]] = []
    for rank in ranks:
        if ranges and rank == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], rank)
        else:
            ranges.append((rank, rank))
    return tuple(ranges)
