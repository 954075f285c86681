"""Sum the collectives of all ranks by the size of what they move: duration, skew of the arrivals, bandwidth.

A class holds the sizes from a power of two up to, not including, the next. A collective that was matched across ranks
is one of its class; communication of one rank alone is filed by its own size.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from rankscope.collector.traces.cross_rank import CollectiveOfRanks, Matching
from rankscope.collector.traces.rank_analysis import RankAnalysis
from rankscope.collector.traces.report import CollectiveSizeRow
from rankscope.measure.communication import bus_factor
from rankscope.measure.records import SYNCHRONIZING_OPS
from rankscope.measure.traced_collectives import Collective
from rankscope.measure.traced_messages import read_members
from rankscope.measure.units import NS_PER_S

TRANSFERS = "transfers"
DURATIONS = "durations"
"""Where a row's bandwidth is from: the transfers of matched collectives, or the durations of calls, which may include
waiting: then it is a lower bound.
"""


class _Class(NamedTuple):
    """The fields that all collectives of one row share."""

    op: str
    group: str
    group_size: int | None
    dtype: str | None
    size_from_bytes: int | None
    size_to_bytes: int | None
    is_inside_node: bool | None


class _Sums:
    """What one row is made of: durations of calls, skews and (bytes, ns) of transfers."""

    def __init__(self) -> None:
        self.durations_ns: list[int] = []
        self.skews_ns: list[int] = []
        self.calls: list[tuple[int, int]] = []
        self.transfers: list[tuple[int, int]] = []

    def add_call(self, one: Collective) -> None:
        """Add what one rank did."""
        self.durations_ns.append(one.duration_ns)
        if one.bytes is not None and one.op != "barrier":
            self.calls.append((one.bytes, one.duration_ns))

    def add_matched(self, one: CollectiveOfRanks, size: int | None) -> None:
        """Add a synchronizing collective: all ranks leave it together, so that durations differ as arrivals do."""
        lengths_ns = [call.duration_ns for call in one.by_rank.values()]
        self.skews_ns.append(max(lengths_ns) - min(lengths_ns))
        if size is not None and one.op != "barrier" and len(one.by_rank) == one.expected:
            self.transfers.append((size, min(lengths_ns)))

    def build(self, kind: _Class) -> CollectiveSizeRow:
        """Return the row."""
        source, moved = (TRANSFERS, self.transfers) if self.transfers else (DURATIONS, self.calls)
        rates = sorted(size * NS_PER_S / length_ns for size, length_ns in moved if length_ns > 0)
        factor = bus_factor(kind.op, kind.group_size or 0)
        rate_min, rate_median, rate_max = (rates[0], median(rates), rates[-1]) if rates else (None, None, None)
        return CollectiveSizeRow(
            **kind._asdict(),
            count=len(self.durations_ns),
            total_ns=sum(self.durations_ns),
            duration_min_ns=min(self.durations_ns),
            duration_median_ns=round(median(self.durations_ns)),
            duration_max_ns=max(self.durations_ns),
            matched_count=len(self.skews_ns),
            skew_min_ns=min(self.skews_ns, default=None),
            skew_median_ns=round(median(self.skews_ns)) if self.skews_ns else None,
            skew_max_ns=max(self.skews_ns, default=None),
            bandwidth_from=source if rates else None,
            algorithm_bandwidth_min_bytes_per_s=rate_min,
            algorithm_bandwidth_median_bytes_per_s=rate_median,
            algorithm_bandwidth_max_bytes_per_s=rate_max,
            bus_bandwidth_min_bytes_per_s=_times(rate_min, factor),
            bus_bandwidth_median_bytes_per_s=_times(rate_median, factor),
            bus_bandwidth_max_bytes_per_s=_times(rate_max, factor),
        )


def _times(rate: float | None, factor: float | None) -> float | None:
    return rate * factor if rate is not None and factor is not None else None


def sum_by_size(found: Sequence[RankAnalysis], matching: Matching | None) -> list[CollectiveSizeRow]:
    """Return the collectives of all ranks by operation, group, type, size class and place, the longest in total first.
    Without a matching, or when it was refused, there is no skew, and bandwidths are lower bounds.
    """
    nodes = _Nodes(found)
    sums: dict[_Class, _Sums] = defaultdict(_Sums)
    seen: set[int] = set()
    for one in _find_believed(matching):
        calls = list(one.by_rank.values())
        size = max((call.bytes for call in calls if call.bytes is not None), default=None)
        row = sums[_class_of(calls[0], size, nodes.holds(calls[0], one.by_rank))]
        row.add_matched(one, size)
        for call in calls:
            seen.add(id(call))
            row.add_call(call)
    for analysis in found:
        ranks = {} if analysis.report.rank is None else {analysis.report.rank: None}
        for call in analysis.collectives:
            if id(call) not in seen:
                sums[_class_of(call, call.bytes, nodes.holds(call, ranks))].add_call(call)
    rows = [row.build(kind) for kind, row in sums.items()]
    return sorted(rows, key=lambda row: (-row.total_ns, row.op, row.group, row.size_from_bytes or 0))


def _find_believed(matching: Matching | None) -> Iterator[CollectiveOfRanks]:
    if matching is not None and matching.refused is None:
        yield from (one for one in matching.matched if one.op in SYNCHRONIZING_OPS)


def _class_of(call: Collective, size: int | None, is_inside_node: bool | None) -> _Class:  # noqa: FBT001 - a field
    size_from, size_to = size_class(size) if size is not None else (None, None)
    return _Class(call.op, call.group, call.group_size, call.dtype, size_from, size_to, is_inside_node)


def size_class(size: int) -> tuple[int, int]:
    """Return the class of a size in bytes: the first size in it, and the first one beyond it.

    >>> size_class(0), size_class(1), size_class(1023), size_class(1024)
    ((0, 1), (1, 2), (512, 1024), (1024, 2048))
    """
    return (1 << size.bit_length() >> 1, 1 << size.bit_length())


class _Nodes:
    """The hosts of the ranks that are here: whether a group lies inside one node."""

    def __init__(self, found: Sequence[RankAnalysis]) -> None:
        self._hosts = {one.report.rank: one.report.host for one in found if one.report.rank is not None}
        self._world_size = max((one.report.world_size or 0 for one in found), default=0)
        self._known: dict[tuple[str | None, int | None, tuple[int, ...]], bool | None] = {}

    def holds(self, call: Collective, ranks: Mapping[int, object]) -> bool | None:
        """Return whether all members of a call's group, of which `ranks` were seen in it, are on one host; None while
        the host of one is not known, and all known ones are the same.
        """
        key = (call.ranks, call.group_size, tuple(ranks))
        if key not in self._known:
            self._known[key] = self._judge(self._find_members(call, ranks), call.group_size)
        return self._known[key]

    def _find_members(self, call: Collective, ranks: Mapping[int, object]) -> Sequence[int]:
        if call.group_size is not None and call.group_size == self._world_size:
            return range(self._world_size)
        return read_members(call.ranks) or tuple(ranks)

    def _judge(self, members: Sequence[int], group_size: int | None) -> bool | None:
        hosts = {self._hosts.get(member) for member in members}
        if len(hosts - {None}) > 1:
            return False
        return True if len(members) == group_size and None not in hosts else None
