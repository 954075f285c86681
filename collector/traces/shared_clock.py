"""Place the traces of all ranks on one clock, and find the longest waits of one rank for another, for the drawing.

The clock is that of `rankscope merge` (timeline.py): ends of matched collectives, else the one clock of a host. Where
`merge` would trust the clocks of several hosts, nothing is placed: a picture hides how far they may be apart.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from rankscope.collector.traces import cross_rank
from rankscope.collector.traces.clock_offsets import (
    BY_COLLECTIVES,
    BY_ONE_HOST,
    find_error_bound,
    find_offset_bound,
    place_clocks,
)
from rankscope.collector.traces.rank_analysis import RankAnalysis
from rankscope.collector.traces.report import RankWait, SharedClock

WAITS_OF_A_STEP_MAX = 20
"""The longest are shown: more arrows hide each other."""
WAITS_MAX = 1_000
"""Waits of all steps together: about 150 kB of JSON."""


# -- the clock --------------------------------------------------------------------------------------------------------


def place_traces(ranked: Mapping[int, RankAnalysis], matching: cross_rank.Matching) -> SharedClock:
    """Return where the traces begin on one clock, or the reason why that is not known."""
    if matching.refused is not None:
        return _place_on_one_host(ranked, matching.refused)
    clocks = {rank: one.report.host if one.report.host is not None else rank for rank, one in ranked.items()}
    placed, trusted = place_clocks(clocks, matching.related)
    if trusted:
        return _refuse(f"{', '.join(trusted)} and the others have no collective in common")
    offsets_ns: dict[int | None, int] = {rank: placed[clock] for rank, clock in clocks.items()}
    return SharedClock(
        starts_ns=_find_starts({rank: one.origin_ns - offsets_ns[rank] for rank, one in ranked.items()}),
        how=BY_ONE_HOST if len(placed) == 1 else BY_COLLECTIVES,
        refused=None,
        error_bound_ns=find_error_bound(matching, offsets_ns),
        offset_bound_ns=find_offset_bound(matching.matched, offsets_ns, clocks),
    )


def _place_on_one_host(ranked: Mapping[int, RankAnalysis], refused: str) -> SharedClock:
    """Return the traces by the clock of their host, where they have one host and were recorded at the same time."""
    hosts = {one.report.host for one in ranked.values()}
    if len(hosts) != 1 or None in hosts:
        return _refuse(refused)
    starts_ns = _find_starts({rank: one.origin_ns for rank, one in ranked.items()})
    if max(starts_ns.values()) > sum(one.report.start_ns + one.report.window_ns for one in ranked.values()):
        return _refuse(f"they were recorded at different times. {refused}")
    return SharedClock(starts_ns=starts_ns, how=BY_ONE_HOST, refused=None)


def _find_starts(origins_ns: Mapping[int, int]) -> dict[str, int]:
    first_ns = min(origins_ns.values())
    return {str(rank): origins_ns[rank] - first_ns for rank in sorted(origins_ns)}


def _refuse(reason: str) -> SharedClock:
    return SharedClock(starts_ns={}, how=None, refused=reason)


# -- the waits --------------------------------------------------------------------------------------------------------


def find_collective_waits(ranked: Mapping[int, RankAnalysis], matching: cross_rank.Matching) -> Iterator[RankWait]:
    """Yield the waits for the last rank to enter each collective that has one; none where matching was refused."""
    steps = {rank: dict(zip(one.collectives, one.collective_steps, strict=True)) for rank, one in ranked.items()}
    for one in matching.matched if matching.refused is None else ():
        split = cross_rank.split_one(one, believed=True)
        late = split.late_rank
        for rank, wait_ns in (split.wait_ns or {}).items() if late is not None else ():
            mine = one.by_rank[int(rank)]
            if wait_ns and late is not None:
                yield RankWait(
                    rank=int(rank),
                    late_rank=late,
                    step=steps[int(rank)][mine],
                    op=one.op,
                    group=one.group,
                    start_ns=mine.start_ns - ranked[int(rank)].origin_ns,
                    wait_ns=wait_ns,
                    late_start_ns=one.by_rank[late].start_ns - ranked[late].origin_ns,
                )


def find_longest_waits(waits: Iterable[RankWait]) -> tuple[list[RankWait], int]:
    """Return the longest waits of each step, the longest first, and the number of all."""
    ordered = sorted(waits, key=lambda one: (-one.wait_ns, one.start_ns, one.rank))
    counts: dict[int | None, int] = defaultdict(int)
    kept: list[RankWait] = []
    for one in ordered:
        counts[one.step] += 1
        if counts[one.step] <= WAITS_OF_A_STEP_MAX and len(kept) < WAITS_MAX:
            kept.append(one)
    return kept, len(ordered)
