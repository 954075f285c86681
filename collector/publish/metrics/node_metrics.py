"""Metrics of a run's ranks together, of its nodes and of its worst ranks, and of the nodes in the store.

The number of series grows with the nodes of a run, not with its ranks; docs/metrics.md has the bounds.
"""

import heapq
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from rankscope.collector.publish.metrics.measures import (
    NODE,
    NOT_NEGATIVE,
    OWNER,
    RATIO,
    RUN,
    WORST,
    WORST_RANKS,
    Measure,
    OfOverview,
    OfSnapshot,
    Value,
)
from rankscope.collector.publish.metrics.overview import NodeOverview, Overview, RunOverview
from rankscope.collector.publish.metrics.rank_columns import Number, to_seconds
from rankscope.collector.runs import ratios
from rankscope.collector.runs.held_gpus import HeldGpus, IdleOwner
from rankscope.collector.runs.snapshot import HeldUpNode, RankSnapshot
from rankscope.measure.records import DeviceSample, NodeSample, WindowBreakdown
from rankscope.measure.units import ns_to_s

_RANKS: Final = "collector: the run's ranks (RunSnapshot)"
_WINDOWS: Final = "agent: last full profiler windows (WindowBreakdown) of all live ranks"
_GPUS: Final = "agent: NVML, on AMD amdsmi (DeviceSample); each GPU once"
_MACHINE: Final = "agent: /proc (NodeSample), in one rank a node"
_STORE: Final = "collector: incidents and runs in its store (incidents/nodes.py)"
_RELAYS: Final = "relay: NVML, /proc (NodeGpus), in one relay a node"
_DETECTION: Final = "collector: detection (docs/definitions.md section 4)"


def _run_ratio(part: str, what: str, formula: str, read: OfOverview) -> Measure:
    return Measure(
        f"rankscope_run_{part}_ratio", "gauge", "ratio", RUN,
        f"{what}, in the last profiler windows of all live ranks whose windows are of the present.",
        formula, _WINDOWS, RATIO, read,
    )  # fmt: skip


# -- readers -----------------------------------------------------------------------------------------------------------


def _per_run(read: Callable[[RunOverview], Number]) -> OfOverview:
    """Return the reader of a metric of runs with live ranks."""
    return OfOverview(lambda overview: (((one.run.run,), read(one)) for one in overview if one.live))


def _per_node(read: Callable[[NodeOverview], Number]) -> OfOverview:
    return OfOverview(
        lambda overview: (((one.run.run, name), read(node)) for one in overview for name, node in one.nodes.items())
    )


def _of_machine(read: Callable[[NodeSample], Number]) -> OfOverview:
    return _per_node(lambda node: None if node.machine is None else read(node.machine))


def _of_window(read: Callable[[WindowBreakdown], Number]) -> OfOverview:
    return _per_run(lambda one: None if one.window is None else read(one.window))


def _of_gpus(combine: Callable[[list[float]], float], value: Callable[[DeviceSample], Number]) -> OfOverview:
    """Return the reader of one value combined from the GPUs of a node; None where no GPU has it."""

    def read(node: NodeOverview) -> Number:
        known = node.read(value)
        return combine(known) if known else None

    return _per_node(read)


def _held_up(read: Callable[[HeldUpNode], float]) -> OfSnapshot:
    """Return the reader of a metric of the first nodes that have held up a run of the store."""
    return OfSnapshot(lambda snapshot: (((node.node,), read(node)) for node in snapshot.counts.nodes_held_up))


def _of_held(read: Callable[[HeldGpus], Iterable[Value]]) -> OfSnapshot:
    """Return the reader of a metric of the GPUs that relays tell of."""
    return OfSnapshot(lambda snapshot: () if snapshot.counts.gpus is None else read(snapshot.counts.gpus))


def _of_idle_owners(read: Callable[[IdleOwner], float]) -> OfSnapshot:
    return _of_held(lambda held: (((one.user, one.job), read(one)) for one in held.owners))


def _worst(read: Callable[[RankSnapshot], Number]) -> OfOverview:
    def find(overview: Overview) -> Iterator[Value]:
        for one in overview:
            known = [(value, rank) for rank in one.live if (value := read(rank)) is not None]
            for value, rank in heapq.nlargest(WORST_RANKS, known, key=lambda pair: pair[0]):
                yield (one.run.run, rank.identity.node, str(rank.identity.rank)), value

    return OfOverview(find)


# -- what the value is ------------------------------------------------------------------------------------------------


def _stalled(one: RunOverview) -> int:
    return sum(rank.stalled is True for rank in one.live)


def _steps(one: RunOverview) -> Number:
    """Return the maximum over all ranks, ended ones included: a counter must not decrease when a rank ends."""
    return max((rank.totals.steps for rank in one.run.ranks if rank.reports_admitted), default=None)


def _step_median_s(one: RunOverview) -> Number:
    known_ns = [rank.step_ns_median for rank in one.live if rank.step_ns_median is not None]
    return ns_to_s(statistics.median(known_ns)) if known_ns else None


def _mean(numbers: Sequence[float]) -> float:
    """Return the mean, which may be infinite: a rank can report any number."""
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


# -- the table ---------------------------------------------------------------------------------------------------------

OVERVIEW: Final[tuple[Measure, ...]] = (
    Measure(
        "rankscope_run_stalled_ranks", "gauge", "", RUN,
        "Live ranks of the run that are stalled.", "count of rankscope_rank_stalled = 1", _RANKS, NOT_NEGATIVE,
        _per_run(_stalled),
    ),
    Measure(
        "rankscope_run_steps_total", "counter", "", RUN,
        "Training steps finished by the current process of the rank that has finished most.",
        "max over the ranks of rankscope_steps_total", _RANKS, NOT_NEGATIVE,
        _per_run(_steps),
    ),
    Measure(
        "rankscope_run_step_median_seconds", "gauge", "seconds", RUN,
        "Median duration of the run's last steps.", "median over the ranks of rankscope_step_median_seconds", _RANKS,
        NOT_NEGATIVE,
        _per_run(_step_median_s),
    ),
    _run_ratio(
        "compute", "Share of the time in which compute kernels ran", "sum |K| / sum |W|",
        _of_window(ratios.compute_ratio),
    ),
    _run_ratio(
        "communication", "Share of the time in which communication kernels ran", "sum |M| / sum |W|",
        _of_window(ratios.communication_ratio),
    ),
    _run_ratio(
        "overlap", "Share of the communication that was hidden behind compute", "sum |K and M| / sum |M|",
        _of_window(ratios.overlap_ratio),
    ),
    _run_ratio(
        "exposed_communication", "Share of the time in which only communication ran", "sum |M minus K| / sum |W|",
        _of_window(ratios.exposed_communication_ratio),
    ),
    _run_ratio(
        "idle", "Share of the time in which the device was idle", "1 - sum |K or M or X| / sum |W|",
        _of_window(ratios.idle_ratio),
    ),
    Measure(
        "rankscope_run_gpu_utilization_ratio", "gauge", "ratio", RUN,
        "Share of the last sample period in which a kernel ran, mean over the run's GPUs.",
        "mean of rankscope_gpu_utilization_ratio", _GPUS, RATIO,
        _per_run(_gpu_utilization),
    ),
    Measure(
        "rankscope_node_ranks", "gauge", "", NODE,
        "Live ranks of the run on the node, without silent ones.", "count", _RANKS, NOT_NEGATIVE,
        _per_node(lambda node: node.ranks),
    ),
    Measure(
        "rankscope_node_slowdown_ratio", "gauge", "ratio", NODE,
        "Slowdown of the slowest rank on the node.", "max of rankscope_rank_slowdown_ratio", _DETECTION, NOT_NEGATIVE,
        _per_node(lambda node: node.slowdown_ratio),
    ),
    Measure(
        "rankscope_node_gpus", "gauge", "", NODE,
        "GPUs of the node that the run's live ranks use.", "count", _GPUS, NOT_NEGATIVE,
        _per_node(lambda node: len(node.gpus) or None),
    ),
    Measure(
        "rankscope_node_gpu_utilization_ratio", "gauge", "ratio", NODE,
        "Share of the last sample period in which a kernel ran, mean over the node's GPUs.",
        "mean of rankscope_gpu_utilization_ratio", _GPUS, RATIO,
        _of_gpus(_mean, lambda gpu: gpu.utilization_ratio),
    ),
    Measure(
        "rankscope_node_gpu_memory_used_ratio", "gauge", "ratio", NODE,
        "Memory in use over total memory, of the node's fullest GPU.", "max of memory.used / memory.total",
        _GPUS, RATIO,
        _of_gpus(max, _memory_used_ratio),
    ),
    Measure(
        "rankscope_node_gpu_power_watts", "gauge", "watts", NODE,
        "Power draw of the node's GPUs together.", "sum of rankscope_gpu_power_watts", _GPUS, NOT_NEGATIVE,
        _of_gpus(sum, lambda gpu: gpu.power_watts),
    ),
    Measure(
        "rankscope_node_gpu_temperature_celsius", "gauge", "celsius", NODE,
        "Temperature of the node's hottest GPU.", "max of rankscope_gpu_temperature_celsius", _GPUS, (-50, 150),
        _of_gpus(max, lambda gpu: gpu.temperature_celsius),
    ),
    Measure(
        "rankscope_node_gpu_sm_clock_hertz", "gauge", "hertz", NODE,
        "SM clock of the node's slowest GPU.", "min of rankscope_gpu_sm_clock_hertz", _GPUS, NOT_NEGATIVE,
        _of_gpus(min, lambda gpu: gpu.sm_clock_hertz),
    ),
    Measure(
        "rankscope_node_gpus_throttled", "gauge", "", NODE,
        "GPUs of the node whose clocks are limited by heat, power or a fault.",
        "count of rankscope_gpu_throttled = 1", _GPUS, NOT_NEGATIVE,
        _of_gpus(sum, _throttled),
    ),
    Measure(
        "rankscope_node_gpu_xid_errors", "gauge", "", NODE,
        "Xid errors of the node's GPUs since the agents started to watch them.",
        "sum of rankscope_gpu_xid_errors_total", _GPUS, NOT_NEGATIVE,
        _of_gpus(sum, lambda gpu: gpu.xid_count),
    ),
    Measure(
        "rankscope_node_gpu_uncorrected_ecc_errors", "gauge", "", NODE,
        "Uncorrected ECC errors of the node's GPUs since their driver was loaded.",
        'sum of rankscope_gpu_ecc_errors_total{kind="uncorrected"}', _GPUS, NOT_NEGATIVE,
        _of_gpus(sum, lambda gpu: gpu.ecc_uncorrected),
    ),
    Measure(
        "rankscope_node_tcp_segments_sent_total", "counter", "", NODE,
        "TCP segments sent by the node, or by the container that its ranks are in.", "OutSegs", _MACHINE, NOT_NEGATIVE,
        _of_machine(lambda machine: machine.tcp_segments_sent),
    ),
    Measure(
        "rankscope_node_tcp_segments_retransmitted_total", "counter", "", NODE,
        "TCP segments that the node sent again.", "RetransSegs", _MACHINE, NOT_NEGATIVE,
        _of_machine(lambda machine: machine.tcp_segments_retransmitted),
    ),
    Measure(
        "rankscope_node_cpu_pressure_seconds_total", "counter", "seconds", NODE,
        "Time in which some task of the node waited for a CPU.", "PSI some", _MACHINE, NOT_NEGATIVE,
        _of_machine(lambda machine: to_seconds(machine.cpu_pressure_ns)),
    ),
    Measure(
        "rankscope_node_group_cpu_pressure_seconds_total", "counter", "seconds", NODE,
        "Time in which some task in the control group of the node's first rank waited for a CPU.", "PSI some",
        _MACHINE, NOT_NEGATIVE,
        _of_machine(lambda machine: to_seconds(machine.group_cpu_pressure_ns)),
    ),
    Measure(
        "rankscope_node_cpu_steal_seconds_total", "counter", "seconds", NODE,
        "Time that a hypervisor took from each CPU of the node, on average.", "steal / CPUs", _MACHINE, NOT_NEGATIVE,
        _of_machine(lambda machine: to_seconds(machine.cpu_steal_ns)),
    ),
    Measure(
        "rankscope_node_memory_total_bytes", "gauge", "bytes", NODE,
        "Memory of the node, or the limit of the training's control group if that is less.",
        "MemTotal, memory.max", _MACHINE, NOT_NEGATIVE,
        _of_machine(lambda machine: machine.memory_total_bytes),
    ),
    Measure(
        "rankscope_node_memory_available_bytes", "gauge", "bytes", NODE,
        "Memory that new allocations can get on the node, within the limit of the training's control group.",
        "MemAvailable; memory.max - memory.current + inactive_file; the lesser", _MACHINE, NOT_NEGATIVE,
        _of_machine(lambda machine: machine.memory_available_bytes),
    ),
    Measure(
        "rankscope_worst_rank_slowdown_ratio", "gauge", "ratio", WORST,
        f"Slowdown of the {WORST_RANKS} slowest live ranks of the run.",
        f"the {WORST_RANKS} largest of rankscope_rank_slowdown_ratio", _DETECTION, NOT_NEGATIVE,
        _worst(lambda rank: rank.slowdown_ratio),
    ),
    Measure(
        "rankscope_worst_rank_caused_wait_seconds", "gauge", "seconds", WORST,
        f"Waiting of all ranks in a step caused by each of the {WORST_RANKS} live ranks that caused the most.",
        f"the {WORST_RANKS} largest of rankscope_rank_caused_wait_seconds", _DETECTION, NOT_NEGATIVE,
        _worst(_wait_caused_s),
    ),
)  # fmt: skip

STORED_NODES: Final[tuple[Measure, ...]] = (
    Measure(
        "rankscope_node_runs_held_up", "gauge", "", ("node",),
        "Runs in the store that the node has held up, as `rankscope nodes` has it; of the first 64 nodes of that list, "
        "read once a minute while /metrics is scraped. Also nodes of runs that have ended.",
        "runs with an incident that blames the node", _STORE, NOT_NEGATIVE,
        _held_up(lambda node: node.runs_held_up),
    ),
    Measure(
        "rankscope_node_runs", "gauge", "", ("node",),
        "Runs in the store that the node was part of, of the nodes with rankscope_node_runs_held_up.",
        "runs with a rank on the node", _STORE, NOT_NEGATIVE,
        _held_up(lambda node: node.runs),
    ),
    Measure(
        "rankscope_node_held_up_low_ratio", "gauge", "ratio", ("node",),
        "Share of its runs in the store that the node has held up, the lower end of the 95 % interval: 9 of 12 (0.47) "
        "is above 1 of 1 (0.21). Of the same nodes.",
        "Wilson interval of runs_held_up / runs", _STORE, RATIO,
        _held_up(lambda node: node.ratio_low),
    ),
    Measure(
        "rankscope_nodes_held_up", "gauge", "", (),
        "Nodes that have held up any run in the store, also those beyond the 64 with metrics of their own.",
        "count", _STORE, NOT_NEGATIVE,
        OfSnapshot(lambda snapshot: [((), snapshot.counts.nodes_held_up_count)]),
    ),
)  # fmt: skip

HELD_GPUS: Final[tuple[Measure, ...]] = (
    Measure(
        "rankscope_gpus", "gauge", "", ("state",),
        "GPUs of the nodes with a relay, by state: free; watched: used by a rank that reports through the relay; "
        "watched_idle: watched, but no step or kernel for gpu_idle_after_s; in_use: held by somebody else; idle: held "
        "by somebody else, no kernel for gpu_idle_after_s; unknown: held by somebody else, utilization not readable.",
        "count by state (docs/idle-gpus.md)", _RELAYS, NOT_NEGATIVE,
        _of_held(lambda held: (((state,), count) for state, count in held.states.items())),
    ),
    Measure(
        "rankscope_idle_gpus", "gauge", "", OWNER,
        "GPUs in the state idle, by user and batch job or pod (empty where not known). The 64 pairs with most GPUs; "
        "`(others)` has the rest.",
        "count by user and job", _RELAYS, NOT_NEGATIVE,
        _of_idle_owners(lambda one: one.gpus),
    ),
    Measure(
        "rankscope_idle_gpu_longest_seconds", "gauge", "seconds", OWNER,
        "Longest time that one of the GPUs in rankscope_idle_gpus has been held without a kernel at any reading.",
        "largest, by user and job", _RELAYS, NOT_NEGATIVE,
        _of_idle_owners(lambda one: one.longest_s),
    ),
    Measure(
        "rankscope_nodes_gpus_unread", "gauge", "", ("reason",),
        "Nodes with a relay whose GPUs cannot be read, by reason.",
        "count by reason", _RELAYS, NOT_NEGATIVE,
        _of_held(lambda held: (((reason,), count) for reason, count in held.unread.items())),
    ),
)  # fmt: skip
