"""Build what the event stream says of the captures of a run. Pure."""

from collections.abc import Iterable
from typing import Final

import msgspec

from rankscope.collector.captures.capture import Capture, CaptureFile

LIVE_CAPTURES_MAX: Final = 10
"""Most captures of a run in an event, the newest; /api/v1/captures has all. Ten of 64 ranks each take 65 kB."""


class LiveCapture(msgspec.Struct, frozen=True, kw_only=True):
    """One capture of the run. `ranks` are the numbers of those that are asked. `expected_pause_s` and `pause_s` are for
    how long training is expected to stop, and has stopped: the longest of any rank, since ranks wait for each other;
    None: no rank has said it yet. `fetched_bytes` of `size_bytes` (of the files that are known so far) have arrived.
    The other fields are as in Capture.
    """

    id: str
    state: str
    asked_wall_s: float
    changed_wall_s: float
    asked_by: str
    incident: str
    options: tuple[str, ...]
    first_step: int | None
    last_step: int | None
    ranks: tuple[int, ...]
    expected_pause_s: float | None
    pause_s: float | None
    fetched_bytes: int
    size_bytes: int
    verdict: str
    files: tuple[CaptureFile, ...]
    problem: str


def build_live_captures(captures: Iterable[Capture], run_id: str) -> tuple[tuple[LiveCapture, ...], int]:
    """Return the newest captures of a run, at most LIVE_CAPTURES_MAX, and how many it has. `captures` are those of all
    runs, newest first.
    """
    of_run = [one for one in captures if one.run_id == run_id]
    return tuple(_build(one) for one in of_run[:LIVE_CAPTURES_MAX]), len(of_run)


def _build(one: Capture) -> LiveCapture:
    return LiveCapture(
        id=one.id,
        state=one.state,
        asked_wall_s=one.asked_wall_s,
        changed_wall_s=one.changed_wall_s,
        asked_by=one.asked_by,
        incident=one.incident,
        options=one.options,
        first_step=one.first_step,
        last_step=one.last_step,
        ranks=tuple(rank.rank for rank in one.ranks),
        expected_pause_s=_find_longest(rank.expected_pause_s for rank in one.ranks),
        pause_s=_find_longest(rank.pause_s for rank in one.ranks),
        fetched_bytes=sum(rank.fetched_bytes for rank in one.ranks),
        size_bytes=sum(rank.size_bytes or 0 for rank in one.ranks),
        verdict=one.verdict,
        files=one.files,
        problem=one.problem,
    )


def _find_longest(pauses_s: Iterable[float | None]) -> float | None:
    return max((one for one in pauses_s if one is not None), default=None)
