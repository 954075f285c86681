"""Find the offsets between the clocks of hosts from matched collectives, and by how much they may be wrong. Pure.

All ranks leave a synchronizing collective together, which gives an offset; none leaves before the last has entered,
which bounds its error.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median

from rankscope.collector.traces import cross_rank
from rankscope.measure.records import SYNCHRONIZING_OPS

BY_COLLECTIVES = "ends of matched collectives"
BY_ONE_HOST = "one host: one clock"
BY_HOST_CLOCKS = "the hosts' own clocks"
BOUND_SHARE = 0.9
"""Share of the collectives that end within the error bound; the others end late because of their threads, not of clocks
(cross_rank.HOST_END_DISAGREEMENT_NS_MAX)."""
_BOUNDING_OPS = SYNCHRONIZING_OPS - {"all_to_all"}


def place_clocks(
    clocks: Mapping[int, str | int | None], related: Sequence[Mapping[int, int]]
) -> tuple[dict[str | int | None, int], list[str]]:
    """Return one offset for each clock, relative to the first rank's, and the ranks that nothing relates to the first,
    whose offset is 0. Sets of `related` (see Matching) without a collective in common are related by a common host.

    >>> place_clocks({0: "a", 1: "b", 2: "b", 3: "c"}, [{0: 0, 1: 70}, {2: 0, 3: 5}])
    ({'a': 0, 'b': 70, 'c': 75}, [])
    """
    placed: dict[str | int | None, int] = {}
    trusted = []
    waiting = list(related)
    while waiting:
        offsets_ns = next((some for some in waiting if any(clocks[rank] in placed for rank in some)), waiting[0])
        waiting.remove(offsets_ns)
        ahead = [placed[clocks[rank]] - offset_ns for rank, offset_ns in offsets_ns.items() if clocks[rank] in placed]
        if placed and not ahead:
            trusted.append("rank " + ", ".join(map(str, sorted(offsets_ns))))
        shift_ns = round(median(ahead)) if ahead else 0
        found: dict[str | int | None, list[int]] = defaultdict(list)
        for rank, offset_ns in offsets_ns.items():
            if clocks[rank] not in placed:
                found[clocks[rank]].append(offset_ns + shift_ns)
        placed.update({clock: round(median(offsets)) for clock, offsets in found.items()})
    zero_ns = placed[clocks[next(iter(related[0]))]]
    return {clock: offset_ns - zero_ns for clock, offset_ns in placed.items()}, trusted


def find_error_bound(matching: cross_rank.Matching, offsets_ns: Mapping[int | None, int]) -> int | None:
    """Return the spread of the ends of a synchronizing collective, without clock offsets, that BOUND_SHARE of the
    collectives stay within, in ns; None without collectives.
    """
    spreads = [cross_rank.find_end_spread(one, offsets_ns) for one in matching.matched if one.op in SYNCHRONIZING_OPS]
    return sorted(spreads)[-int(len(spreads) * (1 - BOUND_SHARE)) - 1] if spreads else None


def find_offset_bound(
    matched: Sequence[cross_rank.CollectiveOfRanks],
    offsets_ns: Mapping[int | None, int],
    clocks: Mapping[int, str | int | None],
) -> int | None:
    """Return the ns by which the offset between two clocks may be wrong at most, 0 with one clock; None when the
    collectives do not bound every clock.
    """
    bounds_ns = find_offset_bounds(matched, offsets_ns, clocks)
    return None if len(bounds_ns) < len(set(clocks.values())) else sum(sorted(bounds_ns.values())[-2:])


def find_offset_bounds(
    matched: Sequence[cross_rank.CollectiveOfRanks],
    offsets_ns: Mapping[int | None, int],
    clocks: Mapping[int, str | int | None],
) -> dict[str | int | None, int]:
    """Return the ns by which each clock's offset from the first one's may be wrong, along chains of collectives; clocks
    that no collective relates are missing.

    Of an all-to-all a rank may need nothing from another: it bounds nothing.
    """
    spans = [_span_by_clock(one, offsets_ns, clocks) for one in matched if one.op in _BOUNDING_OPS]
    bounds_ns: dict[str | int | None, int] = {next(iter(clocks.values())): 0}
    while True:
        found: dict[str | int | None, list[tuple[int, int, int]]] = defaultdict(list)
        for span in spans:
            known = [clock for clock in span if clock in bounds_ns]
            if known:
                near = min(known, key=lambda clock: bounds_ns[clock])
                for clock in span.keys() - bounds_ns.keys():
                    # It entered before the other left, and the other before it left.
                    least_ns, most_ns = span[clock][0] - span[near][1], span[clock][1] - span[near][0]
                    found[clock].append((least_ns, most_ns, bounds_ns[near]))
        if not found:
            return bounds_ns
        bounds_ns.update({clock: _bound_of(limits) for clock, limits in found.items()})


def _bound_of(limits: Sequence[tuple[int, int, int]]) -> int:
    """Return the larger of two limits of an error that hold for every collective. Where they contradict each other the
    clocks drift apart: then the largest of any collective.
    """
    least_ns, most_ns = max(one[0] for one in limits), min(one[1] for one in limits)
    if least_ns > most_ns:
        least_ns, most_ns = min(one[0] for one in limits), max(one[1] for one in limits)
    return max(abs(least_ns), abs(most_ns)) + max(one[2] for one in limits)


def _span_by_clock(
    one: cross_rank.CollectiveOfRanks, offsets_ns: Mapping[int | None, int], clocks: Mapping[int, str | int | None]
) -> dict[str | int | None, tuple[int, int]]:
    """Return for each clock when its last rank entered and its first one left, without offsets."""
    spans: dict[str | int | None, tuple[int, int]] = {}
    for rank, mine in one.by_rank.items():
        start_ns = mine.start_ns - offsets_ns[rank]
        end_ns = start_ns + mine.duration_ns
        last_ns, first_ns = spans.get(clocks[rank], (start_ns, end_ns))
        spans[clocks[rank]] = max(last_ns, start_ns), min(first_ns, end_ns)
    return spans
