"""Draw the critical paths of the steps into a merged timeline: a line for each rank, arrows from one to the next."""

from collections.abc import Mapping, Sequence
from itertools import count, pairwise
from typing import Any

import msgspec

from rankscope.collector.traces.critical_path import PathPiece
from rankscope.collector.traces.timeline_events import format_us


def write_path(
    paths: Sequence[Sequence[PathPiece]], pid: int, offsets_ns: Mapping[int | None, int]
) -> list[dict[str, Any]]:
    """Return the events of these paths in a process of their own; `offsets_ns` of its rank is subtracted from each
    time. The pieces of a path follow each other without gaps; where the next one is on another rank, an arrow leads to
    it.
    """
    ranks = sorted({one.rank for path in paths for one in path}, key=lambda rank: (rank is None, rank or 0))
    tids = {rank: tid for tid, rank in enumerate(ranks, 1)}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": "critical path"}},
        {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": -1}},
    ]
    events += [
        {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name_rank(rank)}}
        for rank, tid in tids.items()
    ]
    numbers = count()
    for path in paths:
        events += [_draw(one, pid, tids[one.rank], offsets_ns[one.rank]) for one in path]
        for one, following in pairwise(path):
            if one.rank != following.rank:
                flow = {"cat": "critical_path", "name": "critical path", "id": f"critical-{next(numbers)}", "pid": pid}
                ends = (("s", one, one.end_ns - 1), ("f", following, following.start_ns))
                events += [
                    {
                        **flow, "ph": kind, "tid": tids[piece.rank],
                        "ts": msgspec.Raw(format_us(time_ns - offsets_ns[piece.rank])),
                        **({"bp": "e"} if kind == "f" else {}),
                    }
                    for kind, piece, time_ns in ends
                ]  # fmt: skip
    return events


def name_rank(rank: int | None) -> str:
    """Return `rank 3`, or `rank unknown`."""
    return "rank unknown" if rank is None else f"rank {rank}"


def _draw(one: PathPiece, pid: int, tid: int, offset_ns: int) -> dict[str, Any]:
    return {
        "ph": "X", "cat": "critical_path", "name": one.name, "pid": pid, "tid": tid,
        "ts": msgspec.Raw(format_us(one.start_ns - offset_ns)),
        "dur": msgspec.Raw(format_us(one.end_ns - one.start_ns)),
        "args": {"kind": one.kind, "step": one.step},
    }  # fmt: skip
