"""Check protocol 1: frames written once, which every later release must be able to read.

The frames are in golden/wire as hex text, one file per kind of message. `python -m tests.contract.test_wire` from the
repository's root writes missing ones and changes no other. Until 0.1.0 is released a file may be deleted and rewritten;
after that never: a change that these tests detect needs a new protocol number. Frames from before a structure got more
fields are in golden/wire/earlier.
"""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from rankscope.measure.codec import decode, encode
from rankscope.measure.enqueues import Enqueue, pack_enqueues
from rankscope.measure.errors import DecodeError, DecodeReason
from rankscope.measure.held_gpus import GpuHolder, HeldGpu, NodeGpus
from rankscope.measure.identity import BootId, RankIdentity, RunId
from rankscope.measure.line_samples import (
    GrownContainer,
    HeldGrowth,
    SampledLoader,
    SampledStack,
    SampledStep,
    SampledWorker,
)
from rankscope.measure.messages import (
    Ack,
    CaptureOrder,
    CapturePart,
    CapturePartWanted,
    CaptureState,
    ClockPing,
    ClockPong,
    Goodbye,
    Hello,
    HelloWanted,
    Message,
    OpenFinding,
    Refused,
    Report,
    RunSummary,
    SampleOrder,
    SamplesTaken,
    SettingsOrder,
    SettingsTaken,
    Welcome,
)
from rankscope.measure.model_flops import FlopSum, StepFlops
from rankscope.measure.nccl_inspector import InspectorBandwidth, InspectorCommunicator
from rankscope.measure.nccl_ras import RasCommunicator, RasRank
from rankscope.measure.node_messages import (
    MESSAGE_TYPES,
    InspectorRead,
    PreflightAnswer,
    PreflightEnded,
    PreflightPastWanted,
    RankEnded,
    RankUnresponsive,
    RasAnswered,
    RelayCounts,
    Relayed,
    RelayedFrame,
    RelayHello,
)
from rankscope.measure.out_of_memory import HeldMemory, OutOfMemory
from rankscope.measure.preflights import NodeDevice, NodeOutcome, NodePast
from rankscope.measure.records import (
    AgentCost,
    AllocatorSample,
    Collectives,
    Compilations,
    CompiledFrame,
    CompiledStart,
    DeviceSample,
    GroupInfo,
    HostCopies,
    HostSample,
    InterfaceSample,
    LayerTimes,
    Losses,
    NodeSample,
    PipelineSchedule,
    PortSample,
    SavedLine,
    Synchronization,
    Totals,
    WindowBreakdown,
    WindowSynchronizations,
)
from rankscope.measure.stalls import (
    GroupStatus,
    KernelThread,
    PendingCollective,
    QuietPlace,
    StackFrame,
    Stall,
    StallSamples,
    ThreadStack,
)
from rankscope.measure.table import Table

GOLDEN = Path(__file__).parent / "golden" / "wire"
HEADER_BYTES = 7
HEX_LINE_BYTES = 32
"""Bytes of a frame on a line of its file."""

NARROW_STEPS = Table.from_rows(
    ("step", "start_host_ns", "duration_ns", "cpu_ns", "batches", "backwards", "phase:data", "phase:forward"),
    [(41, 1_000, 300, 290, 1, 1, 100, 200), (42, 1_300, 310, None, 0, 2, 0, 310)],
)
"""With the columns that there were when the first frame of a report was written."""
STEPS = Table.from_rows(
    (*NARROW_STEPS.names, "samples", "tokens"),
    [(41, 1_000, 300, 290, 1, 1, 100, 200, 8, 512), (42, 1_300, 310, None, 0, 2, 0, 310, None, 0)],
)
COLLECTIVES = Collectives(
    groups=("mesh_dp/0,2",),
    ops=("all_reduce", "barrier"),
    table=Table.from_rows(
        ("step", "group", "op", "start_host_ns", "duration_ns", "sequence", "bytes"),
        [(41, 0, 0, 1_100, 50, 7, 4096), (41, 0, 1, 1_200, 9, None, None)],
    ),
)
BREAKDOWN_WITHOUT_COPIES = WindowBreakdown(
    first_step=40, step_count=2, window_ns=600, compute_ns=400, communication_ns=150, overlap_ns=90,
    exposed_communication_ns=60, copy_ns=40, idle_ns=100, operator_count=12,
)  # fmt: skip
HOST_COPIES = HostCopies(
    count=7, duration_ns=40, exposed_ns=30, bytes=5_000, pageable_ns=20, pageable_exposed_ns=10, pageable_bytes=4_000,
    unsized=1, untold=2,
)  # fmt: skip
BREAKDOWN = msgspec.structs.replace(BREAKDOWN_WITHOUT_COPIES, host_copies=HOST_COPIES)
SYNCHRONIZATIONS = WindowSynchronizations(
    first_step=40, step_count=2, call_ns={"cudaStreamSynchronize": 150}, idle_ns=20,
    kinds=(
        Synchronization(
            call="cudaStreamSynchronize", operator="aten::item", line="train.py:24 (main)", count=2, waits_ns=150,
            longest_ns=90, idle_ns=20,
        ),
    ),
)  # fmt: skip
EARLIER_HOST = HostSample(
    host_ns=1_600, cpu_ns=5_000, resident_bytes=1 << 30, voluntary_switches=3, involuntary_switches=2,
    major_faults=0, gc_pause_ns=70, gc_collections=4,
)  # fmt: skip
HOST_WITHOUT_THROTTLED = msgspec.structs.replace(EARLIER_HOST, run_queue_wait_ns=80)
HOST_WITHOUT_BLOCK_IO = msgspec.structs.replace(HOST_WITHOUT_THROTTLED, throttled_ratio=0.5)
HOST = msgspec.structs.replace(HOST_WITHOUT_BLOCK_IO, block_io_wait_ns=90, absent={"resident_bytes": "no /proc"})
NARROW_DEVICE = DeviceSample(
    host_ns=1_601, uuid="GPU-0", model="H", utilization_ratio=0.5, memory_used_bytes=1, memory_total_bytes=2,
    power_watts=250.5, temperature_celsius=61.0, sm_clock_hertz=1_980_000_000, throttle_reasons=("power_cap",),
    absent={"xid": "no permission"},
)  # fmt: skip
"""With the fields that there were when the first frame of a report was written."""
EARLIER_DEVICE = msgspec.structs.replace(
    NARROW_DEVICE, memory_clock_hertz=3_201_000_000, power_limit_watts=700.0, nvlink_tx_bytes=11, nvlink_rx_bytes=12,
    pcie_tx_bytes=13, pcie_rx_bytes=1 << 40, ecc_corrected=14, ecc_uncorrected=0, remapped_rows_correctable=15,
    remapped_rows_uncorrectable=16, remapping_pending=True, remapping_failed=False, xid_count=17, xid_last=79,
    sm_active_ratio=0.75, sm_occupancy_ratio=0.25, tensor_active_ratio=0.5, dram_bandwidth_ratio=0.125,
    nvlink_tx_bytes_per_s=1.5, nvlink_rx_bytes_per_s=2.5, xgmi_tx_bytes=18, xgmi_rx_bytes=19,
)  # fmt: skip
DEVICE_WITHOUT_ENERGY = msgspec.structs.replace(
    EARLIER_DEVICE, pcie_link_width=8, pcie_link_width_max=16, pcie_link_generation=4, pcie_link_generation_max=5
)
DEVICE = msgspec.structs.replace(DEVICE_WITHOUT_ENERGY, energy_joules=1.5)
NODE = NodeSample(
    host_ns=1_603,
    ports=(
        PortSample(
            name="mlx5_0/1", is_active=True, rate_bits_per_s=400_000_000_000, tx_bytes=1 << 50, rx_bytes=2,
            xmit_wait=3, symbol_errors=4, receive_errors=5, link_recoveries=6, link_downs=7, receiver_not_ready=8,
            out_of_sequence=9, adaptive_retransmissions=10, ack_timeouts=11, cnps_sent=12, cnps_handled=13,
        ),
    ),
    ports_left_out=1, interfaces=(InterfaceSample(name="eth0", bytes=14, errors=15, drops=16),), interfaces_left_out=2,
    tcp_segments_sent=17, tcp_segments_retransmitted=18, cpu_pressure_ns=19, group_cpu_pressure_ns=20, cpu_steal_ns=21,
    absent={"cnps_sent": "missing"}, memory_total_bytes=22, memory_available_bytes=23,
)  # fmt: skip
EARLIER_NODE = msgspec.structs.replace(NODE, memory_total_bytes=None, memory_available_bytes=None)
EARLIER_TOTALS = Totals(
    steps=43, step_ns=12_000, phases_ns={"data": 4_000}, batches=43, window_ns=600, compute_ns=400,
    communication_ns=150, overlap_ns=90, exposed_communication_ns=60, copy_ns=40, idle_ns=100, windows=1,
)  # fmt: skip
LATER_TOTALS = msgspec.structs.replace(
    EARLIER_TOTALS,
    device_steps=3,
    device_step_ns=900,
    device_phases_ns={"data": 100, "forward": 800},
    samples=344,
    tokens=22_016,
    samples_step_ns=11_000,
    tokens_step_ns=11_500,
)
TOTALS_WITHOUT_TAILS = msgspec.structs.replace(LATER_TOTALS, call_ns={"cudaStreamSynchronize": 150})
TOTALS_WITHOUT_FLOPS = msgspec.structs.replace(TOTALS_WITHOUT_TAILS, device_tail_steps=2, device_tail_ns=50)
TOTALS_WITHOUT_COPIES = msgspec.structs.replace(TOTALS_WITHOUT_FLOPS, model_flops=4.3e13, executed_flops=5.6e13)
TOTALS = msgspec.structs.replace(TOTALS_WITHOUT_COPIES, host_copies=HOST_COPIES)
EARLIER_LOSSES = Losses(
    steps_overwritten=1, steps_dropped_in_reports=2, reports_dropped=3, windows_skipped={"events": 4},
    errors={"sample": 5},
)  # fmt: skip
LATER_LOSSES = msgspec.structs.replace(EARLIER_LOSSES, device_timings_skipped={"capture": 6})
LOSSES_WITHOUT_TAILS = msgspec.structs.replace(LATER_LOSSES, steps_made=52, steps_buffered=8)
LOSSES = msgspec.structs.replace(LOSSES_WITHOUT_TAILS, device_tails_skipped={"no_node": 1})

EARLIER_COST = AgentCost(
    part_ns={"step_hooks": 6_000}, dropped={"full_windows": True}, full_stretch_ratio=4.0, light_stretch_ratio=2.0,
    changes=1,
)  # fmt: skip
LATER_COST = msgspec.structs.replace(EARLIER_COST, attached_ratio=0.34, detached_ratio=-0.01)
COST_WITHOUT_TIMING = msgspec.structs.replace(LATER_COST, window_effect="ended")
COST = msgspec.structs.replace(COST_WITHOUT_TIMING, timing_ratio=0.02, timing_effect="kept")
ALLOCATOR_WITHOUT_STEPS = AllocatorSample(
    host_ns=1_602, allocated_bytes=1, reserved_bytes=2, active_bytes=3, inactive_split_bytes=0, allocated_peak_bytes=4,
    reserved_peak_bytes=5, active_peak_bytes=6, retries=0, ooms=7, device_allocs=8, device_frees=9,
    absent={"ooms": "not told"},
)  # fmt: skip
ALLOCATOR = msgspec.structs.replace(ALLOCATOR_WITHOUT_STEPS, allocated_peak_after_step=40, allocated_peak_by_step=300)

PROGRESS = GroupStatus(group="default_pg", enqueued=12, started=11, completed=10)
PENDING = PendingCollective(
    group="default_pg", op="all_reduce", sequence=12, age_ns=31_000, bytes=3_108, sizes=((777,),), dtypes=("Float",),
    state="scheduled", timeout_ns=600_000,
)  # fmt: skip
STALL_SAMPLES = StallSamples(
    count=9, span_ns=280, changes=2, cpu_ns=270, frame=StackFrame("train.py", 55, "evaluate"), wakes=7
)
STALL = Stall(
    number=1, since_host_ns=1_300, taken_host_ns=1_640, limit_ns=300, activity="collective", last_step=42,
    stacks=(ThreadStack(name="MainThread", frames=(StackFrame("train.py", 24, "main"),), frames_left_out=3),),
    threads_left_out=2, pending=(PENDING,), pending_left_out=4, absent={"pending": "a CUDA graph is being captured"},
    samples=STALL_SAMPLES,
)  # fmt: skip
STALL_WITHOUT_WAKES = msgspec.structs.replace(STALL, samples=msgspec.structs.replace(STALL_SAMPLES, wakes=None))
THREAD = KernelThread(
    thread=4711, name="python", state="S", wait_channel="futex_do_wait", system_call=202, cpu_ns=10_000_000
)
OUT_OF_MEMORY = OutOfMemory(
    number=3, host_ns=1_604, device=1, asked_bytes=1 << 31, free_bytes=1 << 30, limit_bytes=80 << 30,
    allocated_bytes=70 << 30, reserved_bytes=78 << 30, inactive_split_bytes=5 << 30, step=43, phase="forward",
    held=(
        HeldMemory(bytes=4 << 30, blocks=2, frames=(StackFrame("model.py", 24, "forward"),), module="Linear in Block"),
    ),
    absent={"held": "not told"}, parameters_bytes=14 << 30, gradients_bytes=13 << 30, optimizer_state_bytes=28 << 30,
    largest_free_bytes=1 << 28, snapshot="/captures/run/out-of-memory/rank-3-1.pickle",
)  # fmt: skip
NOTICE_WITHOUT_SNAPSHOT = msgspec.structs.replace(
    OUT_OF_MEMORY,
    held=(msgspec.structs.replace(OUT_OF_MEMORY.held[0], module=""),),
    largest_free_bytes=None,
    snapshot="",
)
NOTICE_WITHOUT_MODEL = msgspec.structs.replace(
    NOTICE_WITHOUT_SNAPSHOT, parameters_bytes=None, gradients_bytes=None, optimizer_state_bytes=None
)
FLOPS = StepFlops(
    model=FlopSum(2e12, 2, 610), executed=FlopSum(1.3e12, 1, 310), source="measured", peak_flops_per_s=9.894e14,
    peak_type="bf16", absent={"executed": "not measured of all"}, executed_peak_flops_per_s=9.7e14,
    executed_is_upper_bound=True,
)  # fmt: skip
ENQUEUES = pack_enqueues([Enqueue(42, "mesh_dp/0,2", 8, 1_450)], [(42, 43)], wall_error_ns=10_000)
SAVED = SavedLine(
    call="torch.save", line="train.py:24 (main)", in_background=True, count=3, duration_ns=90, longest_ns=40,
    bytes=1 << 30, last_ns=20, last_bytes=1 << 29,
)  # fmt: skip
PIPELINE = PipelineSchedule(name="ScheduleInterleaved1F1B", stages=(1, 3), stage_count=4, ranks=2, microbatches=8)
LAYERS = LayerTimes(
    kind="TransformerBlock", first=8, samples=16, last_step=900, calls=4, absent="none",
    columns=((20, 21), (40, None), (58, 20), (63, 22), (1 << 20, 1 << 21)),
)  # fmt: skip
QUIET = QuietPlace(step=42, does="works", line="train.py:52 (main)", call="time.sleep")
COMPILATIONS = Compilations(
    compiled=3, recompiled=1, duration_ns=700, cached=1, uncached=2, unseen=1,
    start=CompiledStart(last_step=3, elapsed_ns=900, compile_ns=600, frames=2),
    frames=(
        CompiledFrame(
            step=42, frame="train.py:24 (forward)", compiled=1, recompiled=1, duration_ns=100, reason="k == 4",
            gives_up=True,
        ),
    ),
)  # fmt: skip
FLOPS_WITHOUT_TYPES = msgspec.structs.replace(FLOPS, executed_peak_flops_per_s=None, executed_is_upper_bound=False)
COMMUNICATOR = RasCommunicator(
    name="cf264af53edbe986", size=8, ranks_left_out=1,
    ranks=(
        RasRank(
            communicator_rank=3, state="behind", host="10.0.0.2", pid=4711, rank=2, op="AllReduce", launched=41,
            furthest=42, error="system error",
        ),
    ),
)  # fmt: skip
IDENTITY = RankIdentity(
    run=RunId("job-7"), rank=2, local_rank=1, world_size=4, node="n1", restart_count=1,
    boot_id=BootId("0123456789abcdef"), pid=4711, machine_id="machine/pid:[1]", slurm_job_id="4711_3", user="ada",
    k8s_namespace="ml", k8s_pod="bert-worker-1",
)  # fmt: skip
NO_SCHEDULER = {"slurm_job_id": "", "user": "", "k8s_namespace": "", "k8s_pod": ""}
"""Fields of an identity from before there were any about the scheduler."""

LATER_IN_HELLO: dict[str, object] = {"wants_summary": False, "script": ""}
"""What a Hello has had last."""
STATED: dict[str, Message] = {
    "hello": Hello(
        left_behind=True,
        hello_number=3,
        fault="host_sleep of 50 ms in the forward, steps 200 to 400",
        wants_summary=True,
        script="train.py",
        identity=RankIdentity(
            run=RunId("job-7"), rank=2, local_rank=0, world_size=4, node="n1", restart_count=1,
            boot_id=BootId("0123456789abcdef"), pid=4711, machine_id="machine/pid:[1]", slurm_job_id="4711_3",
            user="ada", k8s_namespace="ml", k8s_pod="bert-worker-1",
        ),
        first_sequence=5, host_ns=1_700, wall_ns=1_700_000_000_000_000_000, report_interval_ns=1_000_000,
        agent_version="0.1.0", python_version="3.11.7", torch_version="2.13.0",
    ),
    "welcome": Welcome(admitted_through=4, metrics_url="http://n0:18491/metrics", hello_number=3),
    "report": Report(
        sequence=5, host_ns=1_650, steps=STEPS, collectives=COLLECTIVES, covered_steps=((40, 41), (44, 44)),
        breakdowns=(BREAKDOWN,), host=HOST, devices=(DEVICE,), totals=TOTALS, losses=LOSSES,
        groups=(GroupInfo(label="mesh_dp/0,2", description="mesh_dp", ranks=(0, 2), backend="nccl"),),
        overhead_ratio=0.0025, cost=COST, allocator=ALLOCATOR, progress=(PROGRESS,), stalled_since_host_ns=1_300,
        stall=STALL, synchronizations=(SYNCHRONIZATIONS,), node=NODE, timed_steps=((42, 43), (45, 46)),
        out_of_memory=(OUT_OF_MEMORY,), flops=FLOPS, enqueues=ENQUEUES, compilations=COMPILATIONS,
        saves=(SAVED,), pipeline=PIPELINE, layers=LAYERS, quiet=(QUIET,),
    ),
    "ack": Ack(through=5),
    "hello_wanted": HelloWanted(),
    "refused": Refused(reason="ranks_max", detail="raise ranks_max"),
    "clock_ping": ClockPing(collector_ns=-1),
    "clock_pong": ClockPong(collector_ns=-1, host_ns=1 << 62),
    "goodbye": Goodbye(
        sequence=6, reason="failed", detail="ValueError", exit_code=1, line="train.py:24 (main)"
    ),
    "rank_ended": RankEnded(
        sequence=7, identity=IDENTITY, host_ns=1_800, wall_ns=1_700_000_000_000_000_100, reason="out_of_memory",
        detail="SIGKILL", exit_code=1, signal=9, core_dumped=True, oom_kills=1, last_step=42, pending=(PENDING,),
        absent={"exit_code": "taken"}, stacks=(ThreadStack(name="current thread"),),
    ),
    "rank_unresponsive": RankUnresponsive(
        sequence=8, identity=IDENTITY, host_ns=1_750, since_host_ns=1_300, last_step=42, state="T", threads=(THREAD,),
        threads_left_out=5, progress=(PROGRESS,), pending=(PENDING,), waits={"TCPStore__wait": 1},
        absent={"pending": "timed out"},
    ),
    "capture_order": CaptureOrder(
        id="c1", first_step=120, last_step=124, options=("shapes",), bytes_max=10**9, pause_ns_max=2 * 10**9,
        is_over=True,
    ),
    "capture_state": CaptureState(
        id="c1", state="written", reason="a CUDA graph was being captured", next_step=125, first_step=120,
        last_step=123, expected_pause_ns=400_000_000, pause_ns=410_000_000, size_bytes=2_300_000, sha256="ab" * 32,
    ),
    "capture_part_wanted": CapturePartWanted(id="c1", offset=262_144, length=262_144),
    "capture_part": CapturePart(id="c1", offset=262_144, data=b"\x1f\x8b", problem="no such file"),
    "sample_order": SampleOrder(
        id="s3-7", mode="long", interval_ns=20_000_000, lasts_ns=600_000_000_000, steps_max=3,
        longer_than_ns=240_000_000,
    ),
    "settings_order": SettingsOrder(
        id="1764425000.250000",
        values={"full_window_interval_s": "5", "line_samples": "false"},
        lasts_ns={"full_window_interval_s": 1_800_000_000_000},
    ),
    "settings_taken": SettingsTaken(
        id="1764425000.250000", refused={"line_samples": "capture_orders is off on this rank"}
    ),
    "samples_taken": SamplesTaken(
        id="s3-7", state="taken", reason="no step that counts ended while it was sampled",
        stacks=(
            SampledStack(
                frames=(StackFrame("train.py", 50, "main"), StackFrame("train.py", 104, "augment")), call="time.sleep",
                inside="PIL/Image.py:9 (open)", waits_in="sleep",
            ),
        ),
        steps=(SampledStep(step=120, duration_ns=250_000_000, stack_ns=((0, 146_000_000), (1, 104_000_000))),),
        samples=12, span_ns=4_000_000_000, cpu_ns=3_100_000_000, cost_ns=400_000,
        workers=(
            SampledWorker(
                number=1, count=4, fetches=17, stacks=(SampledStack(call="time.sleep", stage="fetch"),),
                step=SampledStep(step=-1, duration_ns=3_600_000_000, stack_ns=((0, 3_600_000_000),)),
            ),
        ),
        loader=SampledLoader(workers=8, start_method="spawn", looks=20, ready=3, early=2, unpinned=1),
        threads=(SampledStep(step=7, duration_ns=186_000_000, stack_ns=((1, 90_000_000),)),),
        held=HeldGrowth(
            steps=20, objects=1_000_000, added_objects=40, frozen=9, is_searched=False,
            resident_bytes={"RssAnon": 41_943_040},
            containers=(
                GrownContainer(
                    name="kept of train.py", kind="list", length=60, added=40, added_bytes=41_943_040,
                    element="torch.Tensor", line="train.py:33 (main)",
                ),
            ),
        ),
    ),
    "ras_answered": RasAnswered(
        sequence=9, identity=IDENTITY, host_ns=1_900, stalled_since_host_ns=1_300, address="localhost:28028",
        took_ns=300, nccl_version="2.29.2", communicators_total=3, communicators=(COMMUNICATOR,),
        communicators_left_out=1, timeouts=2, is_own=True, absent={"communicators": "its end did not come in time"},
    ),
    "inspector_read": InspectorRead(
        sequence=10, identity=IDENTITY, host_ns=1_900, since_host_ns=1_300, dump_interval_ns=500_000_000,
        communicators=(
            InspectorCommunicator(
                id="0x7f8c496ae9f661", name="TP 0", size=8, last_op="AllReduce", last_sequence=1_407,
                last_bytes=1_048_576,
                bandwidths=(InspectorBandwidth(op="AllReduce", count=40, bus_bandwidth_bytes_per_s=1.75e10),),
            ),
        ),
        communicators_left_out=1, lines_skipped=2, bytes_skipped=3, absent={"dump": "it cannot be read"},
    ),
    "run_summary": RunSummary(
        slowdown_ratio=1.25, goodput_ratio=0.75, mfu=0.5, exposed_communication_ratio=0.125, data_wait_ratio=0.25,
        absent={"mfu": "rank 0: no GPU is in use"},
        findings=(
            OpenFinding(3, "straggler", "host_cpu", "rank 2", "rank 2 is slow", severity="critical", since_step=41),
        ),
        findings_left_out=2,
    ),
    "preflight_past_wanted": PreflightPastWanted(number=1, nodes=(NodeDevice("n1", "H100"),)),
    "preflight_ended": PreflightEnded(
        number=2, preflight="0123456789abcdef",
        outcomes=(
            NodeOutcome(node="n1", device="H100", status="named", rates={"memory": 2.5}, reasons=("memory: slow",)),
        ),
        forgets_past=True,
    ),
    "preflight_answer": PreflightAnswer(number=2, past=(NodePast("n1", ({"memory": 3.0},)),), problem="no store"),
    "relay_hello": RelayHello(name="n1", boot_id="0123456789abcdef", version="0.1.0"),
    "relayed": Relayed(
        frames=(RelayedFrame(peer=b"0123456789abcdef", frame=encode(Ack(through=5)), age_ns=900, key="k" * 40),),
        counts=RelayCounts(refused={"bad_magic": 1}, dropped={"no_collector": 2}),
        gpus=NodeGpus(
            node="n1", gpus_left_out=1, took_ns=3_000, unread="no_driver",
            gpus=(
                HeldGpu(
                    uuid="GPU-0", index=4, model="H100", memory_used_bytes=1 << 36, memory_total_bytes=1 << 37,
                    utilization_ratio=0.25, holders_left_out=2, held_ns=9, idle_ns=8, run="r", rank=3, step_age_ns=7,
                    holders=(GpuHolder(pid=77, user="ana", job="812", program="python", memory_bytes=1 << 35),),
                    absent={"idle_ns": "not_supported"},
                ),
            ),
        ),
    ),
}  # fmt: skip

WITHOUT_QUIET = msgspec.structs.replace(STATED["report"], quiet=())
WITHOUT_LAYERS = msgspec.structs.replace(
    WITHOUT_QUIET, layers=None, breakdowns=(BREAKDOWN_WITHOUT_COPIES,), totals=TOTALS_WITHOUT_COPIES,
    stall=STALL_WITHOUT_WAKES,
)  # fmt: skip
"""Nor with copies from the host, nor with the wakes of a stalled thread."""
WITHOUT_PIPELINE = msgspec.structs.replace(WITHOUT_LAYERS, pipeline=None, out_of_memory=(NOTICE_WITHOUT_SNAPSHOT,))
WITHOUT_SAVES = msgspec.structs.replace(WITHOUT_PIPELINE, host=HOST_WITHOUT_BLOCK_IO, saves=None)
WITHOUT_ENERGY = msgspec.structs.replace(WITHOUT_SAVES, devices=(DEVICE_WITHOUT_ENERGY,), host=HOST_WITHOUT_THROTTLED)
"""Nor with the share of a CPU limit."""
WITHOUT_COMPILATIONS = msgspec.structs.replace(WITHOUT_ENERGY, compilations=None)
WITHOUT_PEAK_STEPS = msgspec.structs.replace(WITHOUT_COMPILATIONS, allocator=ALLOCATOR_WITHOUT_STEPS)
WITHOUT_ENQUEUES = msgspec.structs.replace(WITHOUT_PEAK_STEPS, enqueues=None)
WITHOUT_TIMING = msgspec.structs.replace(WITHOUT_ENQUEUES, cost=COST_WITHOUT_TIMING)
WITHOUT_MODEL_BYTES = msgspec.structs.replace(
    WITHOUT_TIMING, out_of_memory=(NOTICE_WITHOUT_MODEL,), flops=FLOPS_WITHOUT_TYPES
)
"""Nor with the peak of the executed FLOPs."""
WITHOUT_FLOPS = msgspec.structs.replace(WITHOUT_MODEL_BYTES, totals=TOTALS_WITHOUT_FLOPS, flops=StepFlops())
WITHOUT_OUT_OF_MEMORY = msgspec.structs.replace(WITHOUT_FLOPS, out_of_memory=(), node=EARLIER_NODE)
"""Nor with the memory of the machine."""
WITHOUT_CORE_WAIT = msgspec.structs.replace(WITHOUT_OUT_OF_MEMORY, host=EARLIER_HOST)
WITHOUT_TAILS = msgspec.structs.replace(
    WITHOUT_CORE_WAIT,
    totals=TOTALS_WITHOUT_TAILS,
    losses=LOSSES_WITHOUT_TAILS,
    stall=msgspec.structs.replace(STALL, samples=None),
)
"""Nor with samples of the stall."""
WITHOUT_TIMED_STEPS = msgspec.structs.replace(WITHOUT_TAILS, timed_steps=())
EARLIER_REPORT = msgspec.structs.replace(
    WITHOUT_TIMED_STEPS, totals=LATER_TOTALS, synchronizations=(), devices=(EARLIER_DEVICE,), node=None
)
"""As it was before there were blocking calls, samples of the machine, and of PCIe links."""

Place = tuple[str | int, ...]
"""Place of a structure in a message: names of fields, indices in lists."""

STRUCTURES: list[tuple[str, Place]] = [
    *((name, ()) for name in STATED),
    ("hello", ("identity",)),
    *(("report", (field,)) for field in ("steps", "collectives", "host", "totals", "losses", "cost", "allocator")),
    ("report", ("node",)),
    ("report", ("node", "ports", 0)),
    ("report", ("node", "interfaces", 0)),
    ("report", ("collectives", "table")),
    *(("report", (field, 0)) for field in ("breakdowns", "devices", "groups", "progress", "synchronizations")),
    ("report", ("synchronizations", 0, "kinds", 0)),
    ("report", ("breakdowns", 0, "host_copies")),
    ("report", ("stall",)),
    ("report", ("out_of_memory", 0)),
    ("report", ("flops",)),
    ("report", ("flops", "model")),
    ("report", ("enqueues",)),
    ("report", ("enqueues", "table")),
    ("report", ("compilations",)),
    ("report", ("saves", 0)),
    ("report", ("pipeline",)),
    ("report", ("layers",)),
    ("report", ("compilations", "start")),
    ("report", ("compilations", "frames", 0)),
    ("report", ("out_of_memory", 0, "held", 0)),
    ("report", ("stall", "stacks", 0)),
    ("report", ("stall", "stacks", 0, "frames", 0)),
    ("report", ("stall", "pending", 0)),
    ("samples_taken", ("held",)),
    ("samples_taken", ("held", "containers", 0)),
    ("rank_unresponsive", ("threads", 0)),
    ("ras_answered", ("communicators", 0)),
    ("ras_answered", ("communicators", 0, "ranks", 0)),
    ("inspector_read", ("communicators", 0)),
    ("inspector_read", ("communicators", 0, "bandwidths", 0)),
    ("run_summary", ("findings", 0)),
    ("preflight_past_wanted", ("nodes", 0)),
    ("preflight_ended", ("outcomes", 0)),
    ("preflight_answer", ("past", 0)),
    ("relayed", ("frames", 0)),
    ("relayed", ("counts",)),
]

each_kind = pytest.mark.parametrize("name", STATED)
each_structure = pytest.mark.parametrize(("name", "path"), STRUCTURES)


def read_golden(name: str) -> bytes:
    return bytes.fromhex((GOLDEN / f"{name}.hex").read_text())


def write_golden(folder: Path) -> list[str]:
    """Write the frames that are missing in the folder; returns their names. Only a person calls this, see above."""
    missing = [name for name in STATED if not (folder / f"{name}.hex").exists()]
    for name in missing:
        frame = encode(STATED[name])
        lines = [frame[at : at + HEX_LINE_BYTES].hex(" ") for at in range(0, len(frame), HEX_LINE_BYTES)]
        (folder / f"{name}.hex").write_text("\n".join(lines) + "\n")
    return missing


def without_scheduler(name: str) -> Message:
    """Return the message with an identity that says nothing of a scheduler."""
    stated = STATED[name]
    assert isinstance(stated, (Hello, RankEnded))
    return msgspec.structs.replace(stated, identity=msgspec.structs.replace(stated.identity, **NO_SCHEDULER))


def find_stated(message: Message, path: Place) -> msgspec.Struct:
    """Return the structure at that path of a message."""
    found: Any = message
    for place in path:
        found = getattr(found, place) if isinstance(place, str) else found[place]
    assert isinstance(found, msgspec.Struct)
    return found


def find_body(name: str, path: Place) -> tuple[list[Any], list[Any]]:
    """Return the body of a golden frame as plain lists, and the one of them that is the structure at that path."""
    body = part = msgspec.msgpack.decode(read_golden(name)[HEADER_BYTES:])
    for depth, place in enumerate(path):
        fields = find_stated(STATED[name], path[:depth]).__struct_fields__ if isinstance(place, str) else ()
        part = part[fields.index(place) if isinstance(place, str) else place]
    return body, part


def decode_body(name: str, body: list[Any]) -> Message:
    return decode(read_golden(name)[:HEADER_BYTES] + msgspec.msgpack.encode(body))


def find_default(field: msgspec.structs.FieldInfo) -> object:
    """Return the field's default, NODEFAULT when it has none."""
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def has_default_at_the_end(name: str, path: Place) -> bool:
    stated = find_stated(STATED[name], path)
    fields = msgspec.structs.fields(stated)
    # A table without its block contradicts itself, and is refused for that.
    return bool(fields) and not fields[-1].required and not isinstance(stated, Table)


def test_there_is_a_frame_of_every_kind() -> None:
    assert {type(message) for message in STATED.values()} == set(MESSAGE_TYPES)
    assert {file.stem for file in GOLDEN.glob("*.hex")} == set(STATED)


def test_the_kinds_keep_their_bytes() -> None:
    assert {name: read_golden(name)[:HEADER_BYTES].hex(" ", -4) for name in STATED} == {
        "hello": "52534350 000101",
        "welcome": "52534350 000102",
        "report": "52534350 000103",
        "ack": "52534350 000104",
        "hello_wanted": "52534350 000105",
        "refused": "52534350 000106",
        "clock_ping": "52534350 000107",
        "clock_pong": "52534350 000108",
        "goodbye": "52534350 000109",
        "rank_ended": "52534350 00010a",
        "rank_unresponsive": "52534350 00010b",
        "relay_hello": "52534350 00010c",
        "relayed": "52534350 00010d",
        "ras_answered": "52534350 00010e",
        "capture_order": "52534350 00010f",
        "capture_state": "52534350 000110",
        "capture_part_wanted": "52534350 000111",
        "capture_part": "52534350 000112",
        "run_summary": "52534350 000113",
        "preflight_past_wanted": "52534350 000114",
        "preflight_ended": "52534350 000115",
        "preflight_answer": "52534350 000116",
        "inspector_read": "52534350 000117",
        "sample_order": "52534350 000118",
        "samples_taken": "52534350 000119",
        "settings_order": "52534350 00011a",
        "settings_taken": "52534350 00011b",
    }


@each_kind
def test_a_frame_of_the_past_means_what_it_meant(name: str) -> None:
    assert decode(read_golden(name)) == STATED[name]


def test_earlier_report_with_fewer_device_fields_decodes() -> None:
    frame = bytes.fromhex((GOLDEN / "earlier" / "report_narrow_device.hex").read_text())
    report = STATED["report"]
    assert isinstance(report, Report)
    earlier = {
        "host": EARLIER_HOST, "breakdowns": (BREAKDOWN_WITHOUT_COPIES,),
        "totals": EARLIER_TOTALS, "losses": EARLIER_LOSSES, "cost": AgentCost(), "allocator": None, "progress": (),
        "stalled_since_host_ns": None, "stall": None, "synchronizations": (), "node": None, "timed_steps": (),
        "out_of_memory": (), "flops": StepFlops(), "enqueues": None, "compilations": None,
        "saves": None, "pipeline": None, "layers": None, "quiet": (),
    }  # fmt: skip
    assert decode(frame) == msgspec.structs.replace(report, steps=NARROW_STEPS, devices=(NARROW_DEVICE,), **earlier)


def test_earlier_relayed_without_gpus_decodes() -> None:
    frame = bytes.fromhex((GOLDEN / "earlier" / "relayed_without_gpus.hex").read_text())
    assert decode(frame) == msgspec.structs.replace(STATED["relayed"], gpus=None)


def test_earlier_hello_without_left_behind_decodes() -> None:
    frame = bytes.fromhex((GOLDEN / "earlier" / "hello_without_left_behind.hex").read_text())
    earlier = {"left_behind": False, "hello_number": 0, "fault": "", **LATER_IN_HELLO}
    assert decode(frame) == msgspec.structs.replace(without_scheduler("hello"), **earlier)


def test_earlier_hello_without_fault_decodes() -> None:
    frame = bytes.fromhex((GOLDEN / "earlier" / "hello_without_fault.hex").read_text())
    assert decode(frame) == msgspec.structs.replace(without_scheduler("hello"), fault="", **LATER_IN_HELLO)


def test_earlier_samples_without_threads_and_held_bytes_decode() -> None:
    frame = bytes.fromhex((GOLDEN / "earlier" / "samples_taken_without_threads.hex").read_text())
    stated = STATED["samples_taken"]
    assert isinstance(stated, SamplesTaken)
    assert decode(frame) == msgspec.structs.replace(stated, threads=(), held=None)


@pytest.mark.parametrize("name", ["hello", "rank_ended"])
def test_earlier_identity_without_the_scheduler_decodes(name: str) -> None:
    """Neither did that Hello have the wish for summaries and the script."""
    frame = bytes.fromhex((GOLDEN / "earlier" / f"{name}_without_scheduler.hex").read_text())
    later = LATER_IN_HELLO if name == "hello" else {}
    assert decode(frame) == msgspec.structs.replace(without_scheduler(name), **later)


def test_later_identity_is_read_by_earlier_agents_and_collectors() -> None:
    body = msgspec.msgpack.decode(read_golden("hello")[HEADER_BYTES:])
    frame = bytes.fromhex((GOLDEN / "earlier" / "hello_without_scheduler.hex").read_text())
    earlier = msgspec.msgpack.decode(frame[HEADER_BYTES:])
    place = Hello.__struct_fields__.index("identity")
    assert body[place][: len(earlier[place])] == earlier[place], "what was there keeps its place"
    assert body[place][len(earlier[place]) :] == ["4711_3", "ada", "ml", "bert-worker-1"]
    assert [*body[:place], *body[place + 1 : len(earlier)]] == [*earlier[:place], *earlier[place + 1 :]]


@pytest.mark.parametrize("name", ["hello", "welcome"])
def test_earlier_greeting_without_hello_number_decodes(name: str) -> None:
    frame = bytes.fromhex((GOLDEN / "earlier" / f"{name}_without_number.hex").read_text())
    later = {"hello_number": 0, "fault": "", **LATER_IN_HELLO} if name == "hello" else {"hello_number": 0}
    assert decode(frame) == msgspec.structs.replace(
        without_scheduler(name) if name == "hello" else STATED[name], **later
    )


def test_earlier_report_without_steps_made_decodes() -> None:
    frame = bytes.fromhex((GOLDEN / "earlier" / "report_without_steps_made.hex").read_text())
    assert decode(frame) == msgspec.structs.replace(EARLIER_REPORT, losses=LATER_LOSSES, cost=EARLIER_COST)


def test_earlier_report_without_timing_effect_decodes() -> None:
    frame = bytes.fromhex((GOLDEN / "earlier" / "report_without_timing_effect.hex").read_text())
    assert decode(frame) == WITHOUT_TIMING


def test_earlier_report_without_window_effect_decodes() -> None:
    frame = bytes.fromhex((GOLDEN / "earlier" / "report_without_window_effect.hex").read_text())
    assert decode(frame) == msgspec.structs.replace(EARLIER_REPORT, cost=LATER_COST)


def test_earlier_report_without_step_effect_decodes() -> None:
    frame = bytes.fromhex((GOLDEN / "earlier" / "report_without_step_effect.hex").read_text())
    assert decode(frame) == msgspec.structs.replace(EARLIER_REPORT, cost=EARLIER_COST)


def test_earlier_report_without_synchronizations_decodes() -> None:
    frame = bytes.fromhex((GOLDEN / "earlier" / "report_without_synchronizations.hex").read_text())
    assert decode(frame) == EARLIER_REPORT


def test_earlier_report_without_the_machine_decodes() -> None:
    frame = bytes.fromhex((GOLDEN / "earlier" / "report_without_machine.hex").read_text())
    assert decode(frame) == EARLIER_REPORT


def test_earlier_report_without_timed_steps_decodes() -> None:
    frame = bytes.fromhex((GOLDEN / "earlier" / "report_without_timed_steps.hex").read_text())
    assert decode(frame) == WITHOUT_TIMED_STEPS


def test_earlier_report_without_tails_and_samples_decodes() -> None:
    frame = bytes.fromhex((GOLDEN / "earlier" / "report_without_tails.hex").read_text())
    assert decode(frame) == WITHOUT_TAILS


def test_earlier_report_without_the_wait_for_a_core_decodes() -> None:
    frame = bytes.fromhex((GOLDEN / "earlier" / "report_without_core_wait.hex").read_text())
    assert decode(frame) == WITHOUT_CORE_WAIT


def test_earlier_report_without_errors_of_the_allocator_decodes() -> None:
    frame = bytes.fromhex((GOLDEN / "earlier" / "report_without_out_of_memory.hex").read_text())
    assert decode(frame) == WITHOUT_OUT_OF_MEMORY


def test_earlier_report_without_flops_decodes() -> None:
    frame = bytes.fromhex((GOLDEN / "earlier" / "report_without_flops.hex").read_text())
    assert decode(frame) == WITHOUT_FLOPS


def test_earlier_report_without_steps_of_the_peak_decodes() -> None:
    frame = bytes.fromhex((GOLDEN / "earlier" / "report_without_peak_steps.hex").read_text())
    assert decode(frame) == WITHOUT_PEAK_STEPS


def test_earlier_report_without_energy_decodes() -> None:
    frame = bytes.fromhex((GOLDEN / "earlier" / "report_without_energy.hex").read_text())
    assert decode(frame) == WITHOUT_ENERGY


def test_earlier_report_without_quiet_places_decodes() -> None:
    frame = bytes.fromhex((GOLDEN / "earlier" / "report_without_quiet.hex").read_text())
    assert decode(frame) == WITHOUT_QUIET


def test_earlier_report_without_layers_decodes() -> None:
    frame = bytes.fromhex((GOLDEN / "earlier" / "report_without_layers.hex").read_text())
    assert decode(frame) == WITHOUT_LAYERS


def test_earlier_report_without_pipeline_decodes() -> None:
    frame = bytes.fromhex((GOLDEN / "earlier" / "report_without_pipeline.hex").read_text())
    assert decode(frame) == WITHOUT_PIPELINE


def test_earlier_report_without_saves_decodes() -> None:
    frame = bytes.fromhex((GOLDEN / "earlier" / "report_without_saves.hex").read_text())
    assert decode(frame) == WITHOUT_SAVES


def test_earlier_report_without_compilations_decodes() -> None:
    frame = bytes.fromhex((GOLDEN / "earlier" / "report_without_compilations.hex").read_text())
    assert decode(frame) == WITHOUT_COMPILATIONS


def test_earlier_report_without_enqueues_decodes() -> None:
    frame = bytes.fromhex((GOLDEN / "earlier" / "report_without_enqueues.hex").read_text())
    assert decode(frame) == WITHOUT_ENQUEUES


def test_earlier_report_without_the_bytes_of_a_model_decodes() -> None:
    frame = bytes.fromhex((GOLDEN / "earlier" / "report_without_model_bytes.hex").read_text())
    assert decode(frame) == WITHOUT_MODEL_BYTES


def test_earlier_goodbye_without_line_decodes() -> None:
    frame = bytes.fromhex((GOLDEN / "earlier" / "goodbye_without_line.hex").read_text())
    assert decode(frame) == msgspec.structs.replace(STATED["goodbye"], line="")


@each_structure
def test_no_stated_field_has_its_default_so_that_each_is_seen(name: str, path: Place) -> None:
    stated = find_stated(STATED[name], path)
    assert [f.name for f in msgspec.structs.fields(stated) if getattr(stated, f.name) == find_default(f)] == []


@each_structure
def test_a_field_of_tomorrow_is_skipped_wherever_it_stands(name: str, path: Place) -> None:
    body, part = find_body(name, path)
    part.append({"a field": ["of tomorrow"]})
    assert decode_body(name, body) == STATED[name]


@pytest.mark.parametrize(("name", "path"), [row for row in STRUCTURES if has_default_at_the_end(*row)])
def test_a_field_that_has_a_default_may_be_missing_at_the_end(name: str, path: Place) -> None:
    body, part = find_body(name, path)
    part.pop()
    stated = find_stated(STATED[name], path)
    last = msgspec.structs.fields(stated)[-1]
    expected = msgspec.structs.replace(stated, **{last.name: find_default(last)})
    assert find_stated(decode_body(name, body), path) == expected


def test_frame_of_later_protocol_is_refused_with_both_numbers() -> None:
    frame = read_golden("ack")
    later = frame[:4] + (2).to_bytes(2, "big") + frame[6:]
    with pytest.raises(DecodeError) as caught:
        decode(later)
    assert caught.value.reason is DecodeReason.PROTOCOL_TOO_NEW
    assert "protocol 2, this side speaks 1 to 1; upgrade rankscope on this side" in str(caught.value)


if __name__ == "__main__":
    write_golden(GOLDEN)
