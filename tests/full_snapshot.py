"""Build a snapshot with every field known, for the golden page of metrics."""

from rankscope.collector.detect.finding import Finding
from rankscope.collector.runs.checkpoints import Checkpoint, Checkpoints
from rankscope.collector.runs.goodput import GoodputSnapshot
from rankscope.collector.runs.held_gpus import HeldGpus, IdleOwner, ListedGpu
from rankscope.collector.runs.nccl_bandwidths import NcclBandwidth, NcclBandwidths
from rankscope.collector.runs.ratio_basis import RatioBasis
from rankscope.collector.runs.snapshot import (
    ChannelCounts,
    CollectorCounts,
    HeldUpNode,
    LostSeconds,
    RankSnapshot,
    RunSnapshot,
    Snapshot,
)
from rankscope.collector.runs.step_accounting import StepCounts
from rankscope.collector.steps.collective_totals import CollectiveTotals
from rankscope.collector.steps.expert_loads import ExpertGroup, ExpertLoads, RankLoad
from rankscope.collector.steps.layer_times import Layer, LayerGroup, RunLayers, SlowLayer
from rankscope.collector.steps.least_waiting import LeastWaiting
from rankscope.collector.steps.pipeline_stages import PipelineStage, PipelineTimes
from rankscope.collector.steps.rank_medians import MedianSteps
from rankscope.collector.steps.step_histogram import BOUNDS_S, StepDurations
from rankscope.measure.identity import RankIdentity
from rankscope.measure.model_flops import FlopSum, StepFlops
from rankscope.measure.node_messages import RankEnded
from rankscope.measure.records import (
    AgentCost,
    AllocatorSample,
    Compilations,
    DeviceSample,
    HostCopies,
    HostSample,
    InterfaceSample,
    Losses,
    NodeSample,
    PortSample,
    SavedLine,
    Totals,
    WindowBreakdown,
)

MS = 1_000_000
"""ns per ms"""


def full_rank(rank: int) -> RankSnapshot:
    """Return a rank with every field known. Rank 0 is slow; rank 1 has double the times where the two may differ."""
    times = rank + 1
    return RankSnapshot(
        identity=RankIdentity(
            run="bert", rank=rank, local_rank=rank, world_size=5, node="node-a", restart_count=1,
            boot_id=f"boot-of-{rank}", pid=4000 + rank, slurm_job_id="4711", user="ada", k8s_namespace="ml",
            k8s_pod=f"bert-{rank}",
        ),
        up=True,
        torch_version="2.8.0",
        agent_version="0.1.0",
        last_report_wall_s=1_800_000_000.5,
        last_step=99,
        reports_admitted=40,
        report_gaps=2 * rank,
        steps=StepCounts(
            made=108 + 9 * rank, buffered=3, published=90, published_elsewhere=10, overwritten=5,
            dropped_in_reports=6 * rank, late=3 * rank,
        ),
        step_ns_median=250.0 * MS,
        slowdown_ratio=1.5 - rank / 2,
        wait_caused_ns_median=80.0 * MS if rank == 0 else 0.0,
        breakdown=window_of(times),
        ratio_basis=RatioBasis(steps=4, of_steps=10, share=0.4, age_steps=6, age_s=1.5, absent=None),
        totals=totals_of(times),
        losses=Losses(
            steps_overwritten=5, steps_dropped_in_reports=6 * rank, reports_dropped=rank,
            errors={"nvml": 1, "steps": 0}, device_timings_skipped={"capture": 2 * rank},
            device_tails_skipped={"compiled_autograd": rank},
        ),
        collectives=collectives_of(times),
        nccl=nccl_of(rank),
        compilations=Compilations(compiled=9, recompiled=2, duration_ns=38_000 * MS, cached=4, uncached=3),
        saves=(
            SavedLine(
                call="torch.save", line="train.py:24 (main)", count=3, duration_ns=6_000 * MS, longest_ns=2_500 * MS,
                bytes=3 * 2**30, last_ns=2_000 * MS, last_bytes=2**30,
            ),
        ),
        host=HostSample(
            host_ns=1, cpu_ns=times * 12_000 * MS, resident_bytes=2**30, gc_pause_ns=75 * MS, run_queue_wait_ns=40 * MS,
            throttled_ratio=0.25, block_io_wait_ns=70 * MS, major_faults=12,
        ),
        devices=(device_of(rank),),
        allocator=AllocatorSample(
            host_ns=1, allocated_bytes=40 * 2**30, reserved_bytes=60 * 2**30, active_bytes=41 * 2**30,
            inactive_split_bytes=3 * 2**30, allocated_peak_bytes=55 * 2**30, allocated_peak_after_step=4,
            allocated_peak_by_step=9,
            retries=rank, ooms=0, device_allocs=310, device_frees=12 * rank,
        ),
        node=machine_of() if rank == 0 else None,
        overhead_ratio=0.0025,
        cost=AgentCost(
            part_ns={"step_hooks": 30 * MS, "full_windows": times * 20 * MS}, dropped={"full_windows": rank == 1},
            full_stretch_ratio=4.0, light_stretch_ratio=1.0, changes=rank, attached_ratio=0.34, detached_ratio=-0.01,
            timing_ratio=0.02,
        ),
        stalled=rank == 1,
        flops=StepFlops(
            model=FlopSum(times * 12e15, 100, 25_000 * MS), executed=FlopSum(times * 15e15, 100, 25_000 * MS),
            source="measured", peak_flops_per_s=1e15, peak_type="bf16",
        ),
    )  # fmt: skip


def window_of(times: int) -> WindowBreakdown:
    """Return a window of 100 ms: 60 compute, 20 communication of which half is hidden, 5 copies, 25 idle. Of the copies
    3 ms are from the host, 2 of these from pageable memory, where 6 and 4 ran.
    """
    return WindowBreakdown(
        first_step=90, step_count=4, window_ns=times * 100 * MS, compute_ns=times * 60 * MS,
        communication_ns=times * 20 * MS, overlap_ns=times * 10 * MS, exposed_communication_ns=times * 10 * MS,
        copy_ns=times * 5 * MS, idle_ns=times * 25 * MS, host_copies=copies_of(times),
    )  # fmt: skip


def copies_of(times: int) -> HostCopies:
    return HostCopies(
        count=8, duration_ns=times * 6 * MS, exposed_ns=times * 3 * MS, bytes=times * 60_000_000,
        pageable_ns=times * 4 * MS, pageable_exposed_ns=times * 2 * MS, pageable_bytes=times * 20_000_000,
    )  # fmt: skip


def totals_of(times: int) -> Totals:
    """100 steps of 250 ms, three windows of the kind above, ten steps timed on the device, eight with a tail."""
    return Totals(
        steps=100,
        step_ns=25_000 * MS,
        phases_ns={
            "data": 1_000 * MS, "forward": 9_000 * MS, "backward": 12_000 * MS,
            "optimizer": 2_500 * MS, "other": 500 * MS,
        },
        batches=100,
        samples=3_200,
        tokens=409_600,
        windows=3,
        window_ns=times * 300 * MS,
        compute_ns=times * 180 * MS,
        communication_ns=times * 60 * MS,
        overlap_ns=times * 30 * MS,
        exposed_communication_ns=times * 30 * MS,
        copy_ns=times * 15 * MS,
        idle_ns=times * 75 * MS,
        device_steps=10,
        device_step_ns=times * 2_000 * MS,
        device_phases_ns={
            "data": 0, "forward": times * 700 * MS, "backward": times * 1_000 * MS,
            "optimizer": times * 250 * MS, "other": times * 50 * MS,
        },
        call_ns={"cudaMemcpyAsync": times * 2 * MS, "cudaStreamSynchronize": times * 24 * MS},
        device_tail_steps=8,
        device_tail_ns=times * 160 * MS,
        model_flops=times * 12e15,
        executed_flops=times * 15e15,
        host_copies=copies_of(3 * times),
    )  # fmt: skip


def collectives_of(times: int) -> tuple[CollectiveTotals, ...]:
    """Return two kinds of collectives: one fully known, and one with only its calls and their time."""
    return (
        CollectiveTotals(
            group="default_pg", op="all_reduce", count=200, duration_ns=times * 2_000 * MS, bytes=200 * 2**20,
            matched=200, wait_ns=(times - 1) * 2_000 * MS, transfer_ns=2_000 * MS, bus_bandwidth_bytes_per_s=1.5e11,
        ),
        CollectiveTotals(group="mesh_tp/0-1", op="broadcast", count=3, duration_ns=6 * MS),
    )  # fmt: skip


def nccl_of(rank: int) -> NcclBandwidths:
    """Return bandwidths of NCCL; rank 0 came later, and waited less."""
    return NcclBandwidths((NcclBandwidth("TP 0", "AllReduce", 400, 4.5e11 / (rank + 1)),), "")


def device_of(rank: int) -> DeviceSample:
    """Return a GPU; that of rank 0 is held down by heat."""
    return DeviceSample(
        host_ns=1, uuid=f"GPU-{rank}", model="NVIDIA H200", utilization_ratio=0.93 if rank == 0 else 0.0,
        memory_used_bytes=64 * 2**30, memory_total_bytes=140 * 2**30, power_watts=655.5, temperature_celsius=71.0,
        sm_clock_hertz=1_755_000_000, throttle_reasons=("hw_thermal_slowdown",) if rank == 0 else (),
        memory_clock_hertz=3_201_000_000, power_limit_watts=700.0, nvlink_tx_bytes=2**40, nvlink_rx_bytes=2**41,
        pcie_tx_bytes=2**33, pcie_rx_bytes=2**34, ecc_corrected=3, ecc_uncorrected=0, remapped_rows_correctable=1,
        remapped_rows_uncorrectable=0, remapping_pending=rank == 0, remapping_failed=False,
        xid_count=2 if rank == 0 else 0, xid_last=79 if rank == 0 else None, sm_active_ratio=0.75,
        sm_occupancy_ratio=0.25, tensor_active_ratio=0.5, dram_bandwidth_ratio=0.125,
        xgmi_tx_bytes=2**35, xgmi_rx_bytes=2**36, nvlink_tx_bytes_per_s=2.0**30, nvlink_rx_bytes_per_s=2.0**31,
        pcie_link_width=8, pcie_link_width_max=16, pcie_link_generation=5, pcie_link_generation_max=5,
        energy_joules=1_250_000.5,
    )  # fmt: skip


def machine_of() -> NodeSample:
    """Return the sample of the machine node-a: one port, and one interface."""
    port = PortSample(
        name="mlx5_0/1", is_active=True, rate_bits_per_s=400_000_000_000, tx_bytes=2**42, rx_bytes=2**43,
        xmit_wait=10**9, symbol_errors=1, receive_errors=2, link_recoveries=3, link_downs=4, receiver_not_ready=5,
        out_of_sequence=6, adaptive_retransmissions=7, ack_timeouts=8, cnps_sent=9, cnps_handled=10,
    )  # fmt: skip
    return NodeSample(
        host_ns=1, ports=(port,), interfaces=(InterfaceSample(name="eth0", bytes=2**40, errors=11, drops=12),),
        tcp_segments_sent=10**6, tcp_segments_retransmitted=13, cpu_pressure_ns=14_000 * MS,
        group_cpu_pressure_ns=5_000 * MS, cpu_steal_ns=250 * MS, memory_total_bytes=2**40,
        memory_available_bytes=2**38,
    )  # fmt: skip


def unmeasured_rank() -> RankSnapshot:
    """Return a rank that has sent nothing but its Hello."""
    identity = RankIdentity(
        run="bert", rank=2, local_rank=0, world_size=5, node="node-b", restart_count=1, boot_id="boot-of-2", pid=4002
    )  # fmt: skip
    return RankSnapshot(identity=identity, up=True, torch_version="2.8.0", agent_version="0.1.0")


def crashed_rank() -> RankSnapshot:
    """Return a rank whose sidecar saw it die of SIGSEGV."""
    identity = RankIdentity(
        run="bert", rank=3, local_rank=0, world_size=5, node="node-c", restart_count=1, boot_id="boot-of-3", pid=4003
    )  # fmt: skip
    seen = RankEnded(sequence=1, identity=identity, host_ns=1, wall_ns=1, reason="crashed", signal=11)
    return RankSnapshot(
        identity=identity, up=False, ended="crashed", end=seen, torch_version="2.8.0", agent_version="0.1.0"
    )


def silent_rank() -> RankSnapshot:
    """Return the other rank of that node, which is silent."""
    identity = RankIdentity(
        run="bert", rank=4, local_rank=1, world_size=5, node="node-c", restart_count=1, boot_id="boot-of-4", pid=4004
    )  # fmt: skip
    return RankSnapshot(identity=identity, up=False, ended="silent", torch_version="2.8.0", agent_version="0.1.0")


def full_snapshot() -> Snapshot:
    """Return the snapshot behind the golden page."""
    finding = Finding(
        kind="straggler",
        ranks=(0,),
        since_step=60,
        slowdown_ratio=1.5,
        run_slowdown_ratio=1.25,
        cause="gpu_thermal_throttle",
        sentence="Rank 0 ...",
    )
    growth = Finding(
        kind="memory_growth", ranks=(1,), cause="host_memory", sentence="Rank 1 grows.", evidence={"left_s": 1_800.0}
    )
    run = RunSnapshot(
        run="bert",
        world_size=5,
        restart_count=1,
        ranks=(full_rank(0), full_rank(1), unmeasured_rank(), crashed_rank(), silent_rank()),
        open_findings=(finding, growth),
        findings=(finding, growth),
        lost=(LostSeconds(0, "gpu_thermal_throttle", 12.5), LostSeconds(0, "unattributed", 0.5)),
        run_slowdown_ratio=1.2,
        ranks_without_peers=1,
        least_waiting=LeastWaiting(rank=3, steps=40, share=0.95, margin_ns=8e6),
        wait_untraced_ns=4e6,
        medians_of=MedianSteps(32, 159, 12, 40, 150),
        checkpoints=Checkpoints(
            count=4, duration_ns=9_200 * MS,
            latest=(Checkpoint(attempt=1, step=90, wall_s=1_799_999_940.5, duration_ns=2_300 * MS, rank=0),),
        ),
        step_durations=StepDurations(tuple(40 * (bound >= 0.2) for bound in BOUNDS_S), 42, 12.5),
        pipeline=PipelineTimes(
            schedule="Schedule1F1B", stage_count=2, ranks=2, microbatches=4, steps=40, last_step=159,
            step_ns=100.0 * MS, pipeline_ns=96.0 * MS, ideal_ratio=0.2, pace=(1,), margin_ns=24.0 * MS,
            even_step_ns=91.5 * MS,
            stages=(
                PipelineStage(stages=(0,), ranks=(0, 2), own_ns=62.0 * MS, bubble_ns=36.0 * MS, bubble_ratio=0.375),
                PipelineStage(stages=(1,), ranks=(1, 3), own_ns=86.0 * MS, bubble_ns=12.0 * MS, bubble_ratio=0.125),
            ),
        ),
        layers=RunLayers(
            groups=(
                LayerGroup(
                    kind="TransformerBlock", ranks=(0, 1, 2, 3), calls=4, samples=16, last_step=158,
                    layers=(
                        Layer(number=0, forward_ns=2.0 * MS, backward_ns=4.0 * MS, slowest_rank=2, slowest_ns=6.5 * MS,
                              held_bytes=3.0 * 2**20),
                        Layer(number=1, forward_ns=2.5 * MS, backward_ns=5.0 * MS, slowest_rank=1, slowest_ns=15.0 * MS,
                              held_bytes=4.0 * 2**20),
                    ),
                ),
            ),
            slow=(
                SlowLayer(rank=1, kind="TransformerBlock", number=1, first=0, count=2, peers=3, ns=60.0 * MS,
                          peers_ns=30.0 * MS, forward_ns=38.0 * MS, peers_forward_ns=10.0 * MS),
            ),
        ),
        experts=ExpertLoads(
            steps=64, last_step=159,
            groups=(
                ExpertGroup(
                    group="mesh_ep/0,1", ranks=2, step_bytes=2.0**30, ratio=1.5, step_ratio=1.625,
                    loads=(RankLoad(rank=1, share=0.75), RankLoad(rank=0, share=0.25)), own_excess_ns=4.0 * MS,
                ),
            ),
        ),
        not_judged={"imbalance": "no two groups of two ranks or more that do different work are known"},
        goodput=GoodputSnapshot(
            wall_ns=100_000 * MS, productive_ns=72_000 * MS, slow_ns=8_000 * MS, startup_ns=10_000 * MS,
            between_steps_ns=4_000 * MS, stalled_ns=3_000 * MS, restart_ns=2_500 * MS, unreported_ns=500 * MS,
        ),
    )  # fmt: skip
    counts = CollectorCounts(
        frames_received=83, connections=17, read_pause_s=0.031,
        frames_refused={"bad_magic": 2, "protocol_too_new": 1}, contained_errors={"run_state": 0},
        impossible={"loss": 1, "own_time": 2}, absent_s=25.5,
        peers_refused={"key_not_allowed": 3}, answers_unsent={"full": 4}, relays=2, relay_batches=40,
        relay_dropped={"no_collector": 6}, relay_refused={"bad_magic": 7}, http_refused={"unauthorized": 5},
        stores_lost={"removed": 1}, store_writable=True, store_bytes=61_440, history_dropped=0,
        nodes_held_up=(HeldUpNode(node="node-12", runs=12, runs_held_up=9, ratio_low=0.468),), nodes_held_up_count=1,
        captures={"complete": 8, "failed": 2, "refused": 9}, capture_pause_s=1.25, capture_bytes=5_000_000,
        notifications={"webhook": ChannelCounts({"delivered": 3, "failed": 1}, 2, 1_800_000_000.5)},
        metric_pushes=ChannelCounts({"delivered": 4, "failed": 2, "skipped": 1}, 0, 1_800_000_000.25),
        gpus=HeldGpus(
            nodes=3, idle_after_s=600.0,
            states={"free": 2, "watched": 8, "watched_idle": 0, "in_use": 3, "idle": 3, "unknown": 0},
            owners=(IdleOwner(user="ana", job="812", gpus=3, longest_s=4_500.0),), unread={"driver_not_loaded": 1},
            listed=(
                ListedGpu(
                    node="node-7", index=2, uuid="GPU-7-2", model="H", state="idle", held_s=5_400.0, idle_s=4_500.0,
                    memory_used_bytes=2**35, memory_total_bytes=2**36, user="ana", job="812", program="python",
                    pid=4_711, processes=1, run="", rank=None, step_age_s=None,
                ),
            ),
        ),
    )  # fmt: skip
    return Snapshot(wall_s=1_800_000_001.0, version="0.1.0", runs=(run,), counts=counts)


def with_runs(snapshot: Snapshot, runs: tuple[RunSnapshot, ...]) -> Snapshot:
    """Return another snapshot of the same time."""
    return Snapshot(
        wall_s=snapshot.wall_s, version=snapshot.version, runs=runs, counts=snapshot.counts, steps=snapshot.steps
    )
