"""The measures of a run's ranks together, of its nodes and of its worst ranks, read from one pass over the ranks."""

import heapq
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rankscope.collector.pacing import no_yield
from rankscope.collector.publish.metrics.collector_metrics import Value
from rankscope.collector.publish.metrics.rank_metrics import Number, is_live
from rankscope.collector.runs import ratios
from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot, Snapshot
from rankscope.measure.exported import WORST_RANKS
from rankscope.measure.records import DeviceSample, WindowBreakdown
from rankscope.measure.units import ns_to_s

RANKS_BETWEEN_RESTS: Final = 512
"""To look at a rank takes a microsecond or two."""


@dataclass(slots=True)
class NodeOverview:
    """The live ranks of a run on one node, and their GPUs by UUID: several ranks may share one."""

    ranks: int = 0
    slowdown_ratio: float | None = None
    gpus: dict[str, DeviceSample] = field(default_factory=dict)

    def add(self, rank: RankSnapshot) -> None:
        """Count a live rank in."""
        self.ranks += 1
        slowdown_ratio = rank.slowdown_ratio
        if slowdown_ratio is not None and (self.slowdown_ratio is None or slowdown_ratio > self.slowdown_ratio):
            self.slowdown_ratio = slowdown_ratio
        for device in rank.devices:
            self.gpus[device.uuid] = device

    def read(self, value: Callable[[DeviceSample], Number]) -> list[float]:
        """What is known of a value of each GPU."""
        found = (value(gpu) for gpu in self.gpus.values())
        return [number for number in found if number is not None]


class RunOverview(NamedTuple):
    """One run: its live ranks, its nodes by name, and the last profiled windows of the live ranks together, None
    without any.
    """

    run: RunSnapshot
    live: tuple[RankSnapshot, ...]
    nodes: Mapping[str, NodeOverview]
    window: WindowBreakdown | None


Overview = tuple[RunOverview, ...]
OverviewReader = Callable[[Overview], Iterable[Value]]


def build_overview(snapshot: Snapshot, rest: Callable[[], None] = no_yield) -> Overview:
    """Look at every rank once. `rest` is called now and then, for a thread that others must not wait for."""
    return tuple(_build_run(run, rest) for run in snapshot.runs)


def _build_run(run: RunSnapshot, rest: Callable[[], None]) -> RunOverview:
    live: list[RankSnapshot] = []
    nodes: dict[str, NodeOverview] = {}
    for place, rank in enumerate(run.ranks):
        if is_live(rank):
            live.append(rank)
            nodes.setdefault(rank.identity.node, NodeOverview()).add(rank)
        if place % RANKS_BETWEEN_RESTS == 0:
            rest()
    windows = tuple(rank.breakdown for rank in live if rank.breakdown is not None)
    return RunOverview(run, tuple(live), nodes, ratios.add_breakdowns(windows))


# -- who has a value --------------------------------------------------------------------------------------------------


def _per_run(read: Callable[[RunOverview], Number]) -> OverviewReader:
    """Of a run without live ranks nothing is told."""
    return lambda overview: (((one.run.run,), read(one)) for one in overview if one.live)


def _per_node(read: Callable[[NodeOverview], Number]) -> OverviewReader:
    return lambda overview: (((one.run.run, name), read(node)) for one in overview for name, node in one.nodes.items())


def _of_window(read: Callable[[WindowBreakdown], Number]) -> OverviewReader:
    return _per_run(lambda one: None if one.window is None else read(one.window))


def _of_gpus(combine: Callable[[list[float]], float], value: Callable[[DeviceSample], Number]) -> OverviewReader:
    """One number of the GPUs of a node of which the value is known; None of none."""

    def read(node: NodeOverview) -> Number:
        known = node.read(value)
        return combine(known) if known else None

    return _per_node(read)


def _worst(read: Callable[[RankSnapshot], Number]) -> OverviewReader:
    def find(overview: Overview) -> Iterator[Value]:
        for one in overview:
            known = [(value, rank) for rank in one.live if (value := read(rank)) is not None]
            for value, rank in heapq.nlargest(WORST_RANKS, known, key=lambda pair: pair[0]):
                yield (one.run.run, rank.identity.node, str(rank.identity.rank)), value

    return find


# -- what the value is ------------------------------------------------------------------------------------------------


def _stalled(one: RunOverview) -> int:
    return sum(rank.stalled is True for rank in one.live)


def _steps(one: RunOverview) -> Number:
    """Of ranks that have ended or are awaited too: what counts up must not fall when the first one leaves."""
    return max((rank.totals.steps for rank in one.run.ranks if rank.reports_admitted), default=None)


def _step_median_s(one: RunOverview) -> Number:
    known_ns = [rank.step_ns_median for rank in one.live if rank.step_ns_median is not None]
    return ns_to_s(statistics.median(known_ns)) if known_ns else None


def _mean(numbers: Sequence[float]) -> float:
    """Infinite where the sum is: a rank may say any number, and the page of all others must not fail by it."""
    return sum(numbers) / len(numbers)


def _gpu_utilization(one: RunOverview) -> Number:
    known = [ratio for node in one.nodes.values() for ratio in node.read(lambda gpu: gpu.utilization_ratio)]
    return _mean(known) if known else None


def _memory_used_ratio(gpu: DeviceSample) -> Number:
    if gpu.memory_used_bytes is None or not gpu.memory_total_bytes:
        return None
    return gpu.memory_used_bytes / gpu.memory_total_bytes


def _throttled(gpu: DeviceSample) -> Number:
    return None if gpu.throttle_reasons is None else int(len(gpu.throttle_reasons) > 0)


def _wait_caused_s(rank: RankSnapshot) -> Number:
    return None if rank.wait_caused_ns_median is None else ns_to_s(rank.wait_caused_ns_median)


OVERVIEW_READERS: Final[Mapping[str, OverviewReader]] = {
    "rankscope_run_stalled_ranks": _per_run(_stalled),
    "rankscope_run_steps_total": _per_run(_steps),
    "rankscope_run_step_median_seconds": _per_run(_step_median_s),
    "rankscope_run_compute_ratio": _of_window(ratios.compute_ratio),
    "rankscope_run_communication_ratio": _of_window(ratios.communication_ratio),
    "rankscope_run_overlap_ratio": _of_window(ratios.overlap_ratio),
    "rankscope_run_exposed_communication_ratio": _of_window(ratios.exposed_communication_ratio),
    "rankscope_run_idle_ratio": _of_window(ratios.idle_ratio),
    "rankscope_run_gpu_utilization_ratio": _per_run(_gpu_utilization),
    "rankscope_node_ranks": _per_node(lambda node: node.ranks),
    "rankscope_node_slowdown_ratio": _per_node(lambda node: node.slowdown_ratio),
    "rankscope_node_gpus": _per_node(lambda node: len(node.gpus) or None),
    "rankscope_node_gpu_utilization_ratio": _of_gpus(_mean, lambda gpu: gpu.utilization_ratio),
    "rankscope_node_gpu_memory_used_ratio": _of_gpus(max, _memory_used_ratio),
    "rankscope_node_gpu_power_watts": _of_gpus(sum, lambda gpu: gpu.power_watts),
    "rankscope_node_gpu_temperature_celsius": _of_gpus(max, lambda gpu: gpu.temperature_celsius),
    "rankscope_node_gpu_sm_clock_hertz": _of_gpus(min, lambda gpu: gpu.sm_clock_hertz),
    "rankscope_node_gpus_throttled": _of_gpus(sum, _throttled),
    "rankscope_node_gpu_xid_errors": _of_gpus(sum, lambda gpu: gpu.xid_count),
    "rankscope_node_gpu_uncorrected_ecc_errors": _of_gpus(sum, lambda gpu: gpu.ecc_uncorrected),
    "rankscope_worst_rank_slowdown_ratio": _worst(lambda rank: rank.slowdown_ratio),
    "rankscope_worst_rank_caused_wait_seconds": _worst(_wait_caused_s),
}
"""How each of these measures is read."""
