"""Read metrics of every rank by column: find the rows (a rank, a GPU, a collective), then the value of each row.

Ranks are read in blocks, so that no call takes long. Metrics with the same rows (every live rank, every GPU) share the
finder of the rows, and its result. Rows beyond the limit of a rank are dropped and counted: the names in a report come
from another machine.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol

from rankscope.collector.runs.nccl_bandwidths import NcclBandwidth
from rankscope.collector.runs.snapshot import RankSnapshot
from rankscope.collector.runs.step_accounting import StepCounts
from rankscope.collector.steps.collective_totals import CollectiveTotals
from rankscope.measure.records import (
    AllocatorSample,
    DeviceSample,
    HostSample,
    InterfaceSample,
    PortSample,
    Totals,
    WindowBreakdown,
)
from rankscope.measure.units import ns_to_s

Number = float | None
"""A value; None is unknown and has no series."""

Labels = tuple[str, ...]


class RowSet(NamedTuple):
    """Rows of some ranks.

    `owners` are the indices of their ranks, `labels` their labels beyond run and rank (empty: none), `items` what their
    values are read from. `left_out` rows were dropped.
    """

    owners: Sequence[int]
    labels: Sequence[Labels]
    items: Sequence[Any]
    left_out: int = 0


class RowFinder(Protocol):
    """Finder of rows. `is_shared`: several metrics have these rows."""

    is_shared: bool

    def find(self, ranks: Sequence[RankSnapshot], most: int) -> RowSet:
        """Return the rows of these ranks, at most `most` a rank."""
        ...


class RankColumns(NamedTuple):
    """The reader of a metric of every rank. `values` maps the labels after the row's own to the reader of the value of
    a row's item: one column each.
    """

    rows: RowFinder
    values: Mapping[Labels, Callable[[Any], Number]]


# -- rows -------------------------------------------------------------------------------------------------------------


class _Ranks:
    """Finder of a row for each rank that `is_wanted`."""

    is_shared = True

    def __init__(self, is_wanted: Callable[[RankSnapshot], bool]) -> None:
        self._is_wanted = is_wanted

    def find(self, ranks: Sequence[RankSnapshot], most: int) -> RowSet:  # noqa: ARG002 - there is one of each
        is_wanted = self._is_wanted
        owners = [place for place, rank in enumerate(ranks) if is_wanted(rank)]
        return RowSet(owners, (), ranks if len(owners) == len(ranks) else [ranks[place] for place in owners])


class _PartsOfRanks:
    """Finder of rows for the parts of each rank that `is_wanted`; `split` returns them by label."""

    def __init__(
        self,
        split: Callable[[RankSnapshot], Mapping[Any, Any]],
        is_wanted: Callable[[RankSnapshot], bool],
        *,
        is_shared: bool,
        has_one_label: bool = False,
    ) -> None:
        self.is_shared = is_shared
        self._has_one_label = has_one_label
        self._split = split
        self._is_wanted = is_wanted

    def find(self, ranks: Sequence[RankSnapshot], most: int) -> RowSet:
        owners: list[int] = []
        labels: list[Labels] = []
        items: list[Any] = []
        left_out = 0
        split, is_wanted, has_one_label = self._split, self._is_wanted, self._has_one_label
        for place, rank in enumerate(ranks):
            parts = split(rank) if is_wanted(rank) else None
            if not parts:
                continue
            if len(parts) > most:
                left_out += len(parts) - most
                parts = dict(islice(parts.items(), most))
            owners.extend([place] * len(parts))
            labels.extend(zip(parts) if has_one_label else parts)
            items.extend(parts.values())
        return RowSet(owners, labels, items, left_out)


def is_any(_rank: RankSnapshot) -> bool:
    """Return True: the reader covers ranks in every state."""
    return True


def _is_known(rank: RankSnapshot) -> bool:
    """Return whether the rank reports or has ended."""
    return rank.ended is not None or not rank.awaited


def is_live(rank: RankSnapshot) -> bool:
    """Return whether the rank reports. Counters of an awaited rank may be behind until its next report."""
    return rank.ended is None and not rank.awaited


def _has_reported(rank: RankSnapshot) -> bool:
    return rank.reports_admitted > 0 and _is_known(rank)


def _split_devices(rank: RankSnapshot) -> Mapping[Labels, DeviceSample]:
    """Return each GPU once, whatever a report contains: a series twice makes the whole page invalid."""
    node = rank.identity.node
    return {(node, device.uuid): device for device in rank.devices}


def _split_ports(rank: RankSnapshot) -> Mapping[Labels, PortSample]:
    node = rank.identity.node
    return {} if rank.node is None else {(node, port.name): port for port in rank.node.ports}


def _split_interfaces(rank: RankSnapshot) -> Mapping[Labels, InterfaceSample]:
    node = rank.identity.node
    return {} if rank.node is None else {(node, one.name): one for one in rank.node.interfaces}


def _split_collectives(rank: RankSnapshot) -> Mapping[Labels, CollectiveTotals]:
    return {(kind.group, kind.op): kind for kind in rank.collectives}


def _split_nccl(rank: RankSnapshot) -> Mapping[Labels, NcclBandwidth]:
    return {(kind.communicator, kind.op): kind for kind in rank.nccl.kinds}


ALL_RANKS: Final = _Ranks(is_any)
KNOWN_RANKS: Final = _Ranks(_is_known)
LIVE_RANKS: Final = _Ranks(is_live)
ACCOUNTED_RANKS: Final = _Ranks(_has_reported)
DEVICES: Final = _PartsOfRanks(_split_devices, is_live, is_shared=True)
PORTS: Final = _PartsOfRanks(_split_ports, is_live, is_shared=True)
INTERFACES: Final = _PartsOfRanks(_split_interfaces, is_live, is_shared=True)
COLLECTIVES: Final = _PartsOfRanks(_split_collectives, is_live, is_shared=True)
NCCL_KINDS: Final = _PartsOfRanks(_split_nccl, is_live, is_shared=False)


# -- columns ----------------------------------------------------------------------------------------------------------


def per_rank(read: Callable[[RankSnapshot], Number], rows: RowFinder = LIVE_RANKS) -> RankColumns:
    """Return the reader of a metric with one value a rank."""
    return RankColumns(rows, {(): read})


def per_rank_and(read: Callable[[RankSnapshot], Mapping[str, Number]]) -> RankColumns:
    """Return the reader of a metric with one more label: the keys of the mapping that `read` returns."""
    return RankColumns(_PartsOfRanks(read, is_live, is_shared=False, has_one_label=True), {(): _itself})


def infos(read: Callable[[RankSnapshot], Labels], is_wanted: Callable[[RankSnapshot], bool]) -> RankColumns:
    """Return the reader of an info metric; `read` returns its labels."""

    def split(rank: RankSnapshot) -> Mapping[Labels, int]:
        return {read(rank): 1}

    return RankColumns(_PartsOfRanks(split, is_wanted, is_shared=False), {(): _itself})


def of_step_records(read: Callable[[StepCounts], Number]) -> RankColumns:
    """Return the reader of a count of step records, which ranks that have ended keep: losses are seen after the end."""
    return per_rank(lambda rank: read(rank.steps), ACCOUNTED_RANKS)


def per_collective(read: Callable[[CollectiveTotals], Number]) -> RankColumns:
    """Return the reader of a metric of every collective of a rank."""
    return RankColumns(COLLECTIVES, {(): read})


def per_nccl_kind(read: Callable[[NcclBandwidth], Number]) -> RankColumns:
    """Return the reader of a metric of NCCL's operations, by communicator and operation."""
    return RankColumns(NCCL_KINDS, {(): read})


def per_device(read: Callable[[DeviceSample], Number]) -> RankColumns:
    """Return the reader of a metric of every GPU of a rank."""
    return RankColumns(DEVICES, {(): read})


def per_device_and(fields: Mapping[str, str]) -> RankColumns:
    """Return the reader of a GPU metric with one more label; `fields` maps its values to fields of DeviceSample."""
    return RankColumns(DEVICES, {(label,): attrgetter(field) for label, field in fields.items()})


def per_port_and(values: Mapping[Labels, Callable[[PortSample], Number]]) -> RankColumns:
    """Return the reader of a metric of every network port that a rank reads, by the labels after the port's."""
    return RankColumns(PORTS, values)


def per_interface_and(values: Mapping[Labels, Callable[[InterfaceSample], Number]]) -> RankColumns:
    """Return the same for network interfaces."""
    return RankColumns(INTERFACES, values)


def of_totals(read: Callable[[Totals], Number]) -> RankColumns:
    """Return the reader of a counter in Totals; unknown before the first report."""
    return per_rank(lambda rank: read(rank.totals) if rank.reports_admitted else None)


def of_windows(read: Callable[[Totals], int]) -> RankColumns:
    """Return the reader of a time in profiler windows, in ns; unknown before the first window."""
    return per_rank(lambda rank: ns_to_s(read(rank.totals)) if rank.totals.windows else None)


def of_device_steps(read: Callable[[Totals], float]) -> RankColumns:
    """Return the reader of a metric of steps timed on the device; unknown before the first."""
    return per_rank(lambda rank: read(rank.totals) if rank.totals.device_steps else None)


def of_device_tails(read: Callable[[Totals], float]) -> RankColumns:
    """Return the reader of a metric of timed steps whose tail is known; unknown before the first."""
    return per_rank(lambda rank: read(rank.totals) if rank.totals.device_tail_steps else None)


def of_breakdown(read: Callable[[WindowBreakdown], Number]) -> RankColumns:
    """Return the reader of a ratio of the last profiler windows."""
    return per_rank(lambda rank: None if rank.breakdown is None else read(rank.breakdown))


def of_allocator(read: Callable[[AllocatorSample], Number]) -> RankColumns:
    """Return the reader of a value of torch's allocator."""
    return per_rank(lambda rank: None if rank.allocator is None else read(rank.allocator))


def of_host(read: Callable[[HostSample], Number]) -> RankColumns:
    """Return the reader of a value of the training process."""
    return per_rank(lambda rank: None if rank.host is None else read(rank.host))


def _itself(value: Number) -> Number:
    return value


def to_seconds(nanoseconds: Number) -> Number:
    """Return nanoseconds as seconds; None: unknown."""
    return None if nanoseconds is None else ns_to_s(nanoseconds)
