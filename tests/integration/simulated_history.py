"""A simulated run of which everything is measured, as the pages of metrics that a Prometheus would have scraped of it.

The ranks, their reports and the collector behind them are those of tests/simulation. What the simulation has no picture
of (memory, power, bytes on links, what the agent costs) is filled in here, as simple functions of time and rank.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from msgspec.structs import replace
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.registry import CollectorRegistry

from rankscope.collector.config import CollectorConfig
from rankscope.collector.runs.checkpoints import Checkpoint, Checkpoints
from rankscope.collector.runs.nccl_bandwidths import NcclBandwidth, NcclBandwidths
from rankscope.collector.runs.snapshot import (
    ChannelCounts,
    CollectorCounts,
    HeldUpNode,
    RankSnapshot,
    RunSnapshot,
    Snapshot,
)
from rankscope.measure.model_flops import FlopSum, StepFlops
from rankscope.measure.records import (
    AgentCost,
    AllocatorSample,
    Compilations,
    DeviceSample,
    HostSample,
    InterfaceSample,
    Losses,
    NodeSample,
    SavedLine,
    Totals,
)
from rankscope.measure.units import NS_PER_MS, NS_PER_S, ns_to_s
from tests.library_exporter import SnapshotExporter
from tests.simulation.faults import Fault
from tests.simulation.topology import Topology
from tests.simulation.world import Scenario, World

GIB: Final = 1 << 30
STEP_FLOPS: Final = 8e13
"""Model FLOPs of a step of one rank: 40 % of the peak of an H100 in a step of 0.2 s."""
BEGIN_WALL_S: Final = 1_700_000_000
"""When the run began: any moment that is past."""
SLOW_RANK, STALLED_RANK, CRASHED_RANK = 5, 14, 15
LAST_S: Final = 12
"""Before the end of the story one rank stalls and another one crashes: this long."""
SCENARIO: Final = Scenario(
    topology=Topology.mesh(dp=16),
    kind="dp",
    faults=(Fault(cause="gpu_thermal_throttle", ranks=(SLOW_RANK,), ratio=1.5, begin=60),),
    steps=400,
)
"""Two nodes with eight ranks each, and nearly a minute. One of its GPUs becomes hot."""
RANKS: Final = 64
"""With the copies: more than a panel may draw lines."""
LOOKS_OF_PAGE: Final = 2
"""The collector looks about every second; Prometheus would scrape less often."""


class History(NamedTuple):
    """Samples in the text format of OpenMetrics, each with its time, and the times of the first and the last page."""

    text: str
    begin_s: float
    end_s: float


def write_history() -> History:
    """The run from its first page to its last, a page every two or three seconds."""
    pages = list(_pages())
    return History("".join(text for _, text in pages) + "# EOF\n", pages[0][0], pages[-1][0])


def _pages() -> Iterator[tuple[float, str]]:
    taken: list[tuple[int, RunSnapshot]] = []
    world = World(SCENARIO, CollectorConfig())
    while world.advance():
        taken.append((world.now_ns, world.snapshot()))
    end_ns = taken[-1][0]
    for now_ns, run in taken[::LOOKS_OF_PAGE]:
        is_last = now_ns > end_ns - LAST_S * NS_PER_S
        ranks = tuple(_measure_all(rank, now_ns, is_last=is_last) for rank in _copy_nodes(run.ranks))
        wall_s = BEGIN_WALL_S + ns_to_s(now_ns)
        snapshot = Snapshot(
            wall_s=wall_s,
            version="1",
            runs=(replace(run, ranks=ranks, world_size=RANKS, checkpoints=_count_checkpoints(now_ns)),),
            counts=_collector_counts(len(ranks)),
        )
        yield wall_s, _stamp(snapshot, wall_s)


def _count_checkpoints(now_ns: int) -> Checkpoints:
    """One of 2 s in each 20 s."""
    count = int(ns_to_s(now_ns)) // 20
    each_ns = 2 * NS_PER_S
    latest = Checkpoint(attempt=0, step=100 * count, wall_s=BEGIN_WALL_S + 20 * count, duration_ns=each_ns, rank=0)
    return Checkpoints(count=count, duration_ns=count * each_ns, latest=(latest,) if count else ())


def _copy_nodes(ranks: tuple[RankSnapshot, ...]) -> Iterator[RankSnapshot]:
    """The ranks of the first nodes, which were simulated, and those of further nodes, which do as healthy ones do."""
    healthy = [rank for rank in ranks if rank.identity.rank != SLOW_RANK]
    yield from ranks
    for number in range(len(ranks), RANKS):
        model = healthy[number % len(healthy)]
        identity = replace(
            model.identity,
            rank=number,
            local_rank=number % SCENARIO.topology.ranks_per_node,
            node=f"node{number // SCENARIO.topology.ranks_per_node:04}",
        )
        devices = tuple(replace(device, uuid=f"GPU-{number}") for device in model.devices)
        yield replace(model, identity=identity, devices=devices)


def _stamp(snapshot: Snapshot, wall_s: float) -> str:
    """The page, each of its samples with the time at its end. What is no sample is left out."""
    registry = CollectorRegistry()
    registry.register(SnapshotExporter(lambda: snapshot))
    page = generate_latest(registry).decode()  # type: ignore[no-untyped-call]
    return "".join(f"{line} {wall_s:.3f}\n" for line in page.splitlines() if not line.startswith("#"))


def _collector_counts(frames: int) -> CollectorCounts:
    return CollectorCounts(
        frames_received=frames,
        frames_refused={"bad_magic": 0},
        peers_refused={"key_not_allowed": 0},
        answers_unsent={"full": 0},
        relays=8,
        relay_batches=frames // 8,
        relay_dropped={"full": 0},
        relay_refused={"bad_magic": 0},
        http_refused={"unauthorized": 0},
        contained_errors={"run_state": 0},
        captures={"complete": 2, "failed": 1, "refused": 1},
        capture_pause_s=0.5,
        capture_bytes=4_000_000,
        store_writable=True,
        store_bytes=61_440,
        history_dropped=0,
        nodes_held_up=(HeldUpNode(node=SCENARIO.topology.node_names[0], runs=12, runs_held_up=9, ratio_low=0.468),),
        nodes_held_up_count=1,
        notifications={"webhook": ChannelCounts({"delivered": 0, "failed": 0}, 0, BEGIN_WALL_S)},
    )


def _measure_all(rank: RankSnapshot, now_ns: int, *, is_last: bool) -> RankSnapshot:
    """The rank with all that the simulation does not measure."""
    number, seconds = rank.identity.rank, int(ns_to_s(now_ns))
    if is_last and number == CRASHED_RANK:
        return replace(rank, up=False, ended="crashed", stalled=None)
    return replace(
        rank,
        agent_version="1",
        last_report_wall_s=BEGIN_WALL_S + ns_to_s(now_ns),
        stalled=is_last and number == STALLED_RANK,
        totals=_add_totals(rank.totals),
        losses=Losses(errors={"nvml": 0}, device_timings_skipped={"capture": 0}, device_tails_skipped={"traced": 0}),
        host=HostSample(
            host_ns=now_ns, cpu_ns=now_ns * 9 // 10, resident_bytes=2 * GIB, gc_pause_ns=now_ns // 1000,
            run_queue_wait_ns=now_ns // 500, throttled_ratio=0.25, block_io_wait_ns=now_ns // 300, major_faults=seconds,
        ),
        saves=(SavedLine(call="torch.save", count=seconds // 10, duration_ns=now_ns // 50, bytes=seconds * GIB),),
        devices=tuple(_add_to_device(device, number, now_ns) for device in rank.devices),
        allocator=AllocatorSample(
            host_ns=now_ns, allocated_bytes=40 * GIB, reserved_bytes=60 * GIB, active_bytes=41 * GIB,
            inactive_split_bytes=3 * GIB, allocated_peak_bytes=55 * GIB,
            retries=0, ooms=0, device_allocs=310, device_frees=0,
        ),
        node=_add_to_machine(rank.node, now_ns),
        nccl=NcclBandwidths((NcclBandwidth("dp", "AllReduce", 40, 2e11),), ""),
        compilations=Compilations(
            compiled=9 + seconds // 60, recompiled=seconds // 60, duration_ns=(38 + seconds // 30) * NS_PER_S, cached=4,
            uncached=3,
        ),
        overhead_ratio=0.002,
        flops=StepFlops(
            model=FlopSum(STEP_FLOPS * 100, 100, 100 * 200 * NS_PER_MS),
            executed=FlopSum(STEP_FLOPS * 120, 100, 100 * 200 * NS_PER_MS),
            source="measured", peak_flops_per_s=989.4e12, peak_type="bf16",
        ),
        cost=AgentCost(
            part_ns=_part_ns(now_ns), dropped={"full_windows": False}, full_stretch_ratio=1.0, light_stretch_ratio=1.0,
            attached_ratio=0.01, timing_ratio=0.0, timing_effect="kept",
        ),
    )  # fmt: skip


def _add_to_machine(machine: NodeSample | None, now_ns: int) -> NodeSample | None:
    """The machine with all that the simulation does not measure of it."""
    if machine is None:
        return None
    seconds = int(ns_to_s(now_ns))
    ports = tuple(
        replace(
            port, tx_bytes=seconds * 20 * GIB, rx_bytes=seconds * 20 * GIB, xmit_wait=seconds * 1000,
            out_of_sequence=seconds // 30, cnps_handled=seconds * 5,
        )
        for port in machine.ports
    )  # fmt: skip
    return replace(
        machine, ports=ports, interfaces=(InterfaceSample(name="eth0", bytes=seconds * GIB, errors=0, drops=1),),
        tcp_segments_sent=seconds * 10_000, tcp_segments_retransmitted=seconds, group_cpu_pressure_ns=now_ns // 100,
        memory_total_bytes=2048 * GIB, memory_available_bytes=1500 * GIB - seconds * 2**20,
    )  # fmt: skip


def _part_ns(now_ns: int) -> Mapping[str, int]:
    return {"step_hooks": now_ns // 2000, "full_windows": now_ns // 1000}


def _add_totals(totals: Totals) -> Totals:
    """Every fourth step was timed on the device, and a batch holds 32 samples of 128 tokens."""
    timed = totals.steps // 4
    return replace(
        totals,
        samples=32 * totals.steps,
        tokens=32 * 128 * totals.steps,
        device_steps=timed,
        device_step_ns=timed * 120 * NS_PER_MS,
        device_phases_ns={"forward": timed * 40 * NS_PER_MS, "backward": timed * 80 * NS_PER_MS},
        call_ns={"cudaStreamSynchronize": timed * NS_PER_MS},
        device_tail_steps=timed,
        device_tail_ns=timed * 15 * NS_PER_MS,
        model_flops=STEP_FLOPS * totals.steps,
        executed_flops=1.2 * STEP_FLOPS * totals.steps,
    )


def _add_to_device(device: DeviceSample, number: int, now_ns: int) -> DeviceSample:
    """A GPU of 140 GiB at work; that of the slow rank is the hottest."""
    seconds = int(ns_to_s(now_ns))
    is_slow = number == SLOW_RANK
    return replace(
        device,
        utilization_ratio=0.95,
        memory_used_bytes=(64 + number) * GIB,
        memory_total_bytes=140 * GIB,
        power_watts=520.0 if is_slow else 650.0,
        power_limit_watts=700.0,
        energy_joules=seconds * 650.0,
        temperature_celsius=88.0 if is_slow else 60.0 + number % 8,
        memory_clock_hertz=3_201_000_000,
        nvlink_tx_bytes=seconds * 50 * GIB,
        nvlink_rx_bytes=seconds * 50 * GIB,
        pcie_tx_bytes=seconds * GIB,
        pcie_rx_bytes=seconds * 2 * GIB,
        pcie_link_generation=5,
        xgmi_tx_bytes=seconds * GIB,
        xgmi_rx_bytes=seconds * GIB,
        ecc_corrected=seconds // 20,
        ecc_uncorrected=0,
        remapped_rows_correctable=1,
        remapped_rows_uncorrectable=0,
        remapping_pending=is_slow,
        remapping_failed=False,
        xid_count=int(is_slow),
        xid_last=63 if is_slow else None,
        sm_active_ratio=0.75,
        sm_occupancy_ratio=0.25,
        tensor_active_ratio=0.5,
        dram_bandwidth_ratio=0.125,
    )
