"""Define the records of one rank. Frozen; None means not measured, 0 is a measurement.

A name that ends in `_host_ns` is a time by that host's clock, one in `_ns` a duration.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

import msgspec

from rankscope.measure.bounds import (
    Flags,
    GroupNames,
    Members,
    Name,
    Names,
    Numbers,
    Ports,
    Reasons,
    ShortName,
    Some,
    to_count,
)
from rankscope.measure.identity import Count
from rankscope.measure.table import COLUMNS_MAX, Table

PHASES = ("data", "forward", "backward", "optimizer", "other")
"""Phases of every step, in this order. They sum to the step; time in a user's own phases is not counted in these."""

CHECKPOINT = "checkpoint"
"""The phase in which a rank saves: of the script's, of a framework's, or as the agent finds saves."""

CHECKPOINT_WAIT = "checkpoint_wait"
"""The rest of a torch.distributed.checkpoint's save: its plan, and the wait for what other ranks write."""

SYNCHRONIZING_OPS = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
"""Collectives that no member leaves before the last has entered: only in these is waiting separable from transfer."""

ROOTED_OPS = frozenset({"broadcast", "reduce", "gather", "scatter"})
"""Collectives with a root. Who waits for whom depends on the backend: with gloo the root of a broadcast waits for its
receivers."""


class StepRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One training step of one rank, by its host clock.

    `phases_ns` has every phase of PHASES (and the user's own); their sum is `duration_ns`. `cpu_ns` is the CPU time of
    the training thread in the step: for the remainder it was blocked or waited for a core. `batches` counts batches
    drawn from data loaders, `backwards` the calls of backward (micro batches). `device_phases_ns` has the same phases
    by the device's clock, on the stream that the training used; their sum is the step there. None: this step was not
    timed on a device. `samples` and `tokens` count the content of this rank's batches, None if one of them is not
    known. `device_tail_ns` is the part of `device_phases_ns` between the end of the backwards' own work and their
    return, in which the stream waits for communication (docs/definitions.md section 2); None where it is not known.
    `captured`: recording a trace has made the step longer, so it is not compared with others. `backward_cpu_ns` is the
    part of `cpu_ns` in backward, None where it was not read: for the rest of that phase the thread waited for other
    ranks, or for something else.
    """

    step: int
    start_host_ns: int
    duration_ns: int
    phases_ns: Mapping[str, int]
    cpu_ns: int | None = None
    batches: int = 0
    backwards: int = 0
    device_phases_ns: Mapping[str, int] | None = None
    samples: int | None = None
    tokens: int | None = None
    device_tail_ns: int | None = None
    captured: bool = False
    backward_cpu_ns: int | None = None

    @property
    def end_host_ns(self) -> int:
        """Return when the step ended."""
        return self.start_host_ns + self.duration_ns


class CollectiveRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One collective operation on one rank.

    `group` is `identity.group_label`; `sequence` the number of the operation in its group, None if the backend does not
    report it; `bytes` the size of the data as nccl-tests counts it; the duration includes waiting for the peers.
    `exposed_ns` is the part of the duration in which the rank computed nothing, on a CPU as far as it shows (an upper
    bound); None if it was not measured.
    """

    step: int
    group: str
    op: str
    start_host_ns: int
    duration_ns: int
    sequence: int | None = None
    bytes: int | None = None
    exposed_ns: int | None = None


class HostCopies(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Copies from the host's memory to the device: how many, for how long one ran, for how much of that (`exposed_ns`)
    no kernel did, and their bytes. Those from pageable memory, which is not pinned, count in `pageable_` again. Of
    `unsized` copies the bytes are not known, of `untold` ones the kind of memory, as of all on AMD.
    """

    count: Count = 0
    duration_ns: Count = 0
    exposed_ns: Count = 0
    bytes: Count = 0
    pageable_ns: Count = 0
    pageable_exposed_ns: Count = 0
    pageable_bytes: Count = 0
    unsized: Count = 0
    untold: Count = 0


def add_host_copies(found: Iterable[HostCopies | None]) -> HostCopies | None:
    """Return the sum of those that are known; None of none."""
    known = [msgspec.structs.astuple(one) for one in found if one is not None]
    sums = map(to_count, map(sum, zip(*known, strict=True)))
    return HostCopies(**dict(zip(HostCopies.__struct_fields__, sums, strict=True))) if known else None


class WindowBreakdown(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """How one rank spent a window of whole steps: docs/definitions.md section 1. The parts sum to the window exactly:

    (compute - overlap) + overlap + exposed_communication + copy + idle = window

    `operator_count` counts the device kernels, on a CPU the operators no other operator encloses. The exposed part of
    `host_copies` is a part of copy; None on a CPU.
    """

    first_step: int
    step_count: int
    window_ns: int
    compute_ns: int
    communication_ns: int
    overlap_ns: int
    exposed_communication_ns: int
    copy_ns: int
    idle_ns: int
    operator_count: int | None = None
    host_copies: HostCopies | None = None

    @property
    def is_possible(self) -> bool:
        """Return whether the parts sum to the window and none is below 0, so that no share of it is outside of 0 to 1.

        >>> times = {"communication_ns": 40, "overlap_ns": 30, "exposed_communication_ns": 10, "copy_ns": 0}
        >>> window = WindowBreakdown(first_step=1, step_count=1, window_ns=100, compute_ns=70, idle_ns=20, **times)
        >>> window.is_possible, msgspec.structs.replace(window, compute_ns=170).is_possible
        (True, False)
        """
        alone_ns, hidden_ns = self.compute_ns - self.overlap_ns, self.overlap_ns
        parts_ns = (alone_ns, hidden_ns, self.exposed_communication_ns, self.copy_ns, self.idle_ns)
        copies = self.host_copies or HostCopies()
        limits = (*parts_ns, self.communication_ns - hidden_ns, self.copy_ns - copies.exposed_ns)
        of_copies = (copies.exposed_ns - copies.pageable_exposed_ns, copies.bytes - copies.pageable_bytes)
        return min(*limits, *of_copies) >= 0 and sum(parts_ns) == self.window_ns


SYNCHRONIZATIONS_MAX = 8
"""Kinds of blocking call that a window reports one by one, those with the longest waits; all count in its sums."""

CALLS_MAX = 16
"""Names of calls that are summed one by one; CUDA has six that wait."""
OTHER_CALLS = "other"
"""Stands for the calls beyond."""


class Synchronization(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The blocking calls of one kind in a window: one runtime function, called inside one operator, from one line.

    `operator` is None where none was recorded, `line` (`train.py:24 (main)`) where it is not known. `waits_ns` is their
    time up to the device's last work within them, without that in which only a collective ran on the device,
    `longest_ns` the longest of them; during `idle_ns`, at most that long, the device was idle around the end of a call.
    """

    call: Name
    operator: Name | None = None
    line: Name | None = None
    count: int = 0
    waits_ns: int = 0
    longest_ns: int = 0
    idle_ns: int = 0


class WindowSynchronizations(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """How a rank's host waited for its device in the steps of a full window; all zero: there was no blocking call.

    `call_ns` is the sum of the waits by call, `idle_ns` that of all kinds, of which `kinds` has the longest.
    """

    first_step: int
    step_count: int
    call_ns: Numbers = {}
    idle_ns: int = 0
    kinds: Annotated[tuple[Synchronization, ...], msgspec.Meta(max_length=SYNCHRONIZATIONS_MAX)] = ()

    @property
    def waits_ns(self) -> int:
        """The sum of all waits."""
        return sum(self.call_ns.values())


def add_waits(call_ns: dict[str, int], call: str, waits_ns: int) -> None:
    """Add the waits in a call to the sums by call, of which there are at most CALLS_MAX and OTHER_CALLS."""
    key = call if call in call_ns or len(call_ns) < CALLS_MAX else OTHER_CALLS
    call_ns[key] = call_ns.get(key, 0) + waits_ns


class HostSample(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Sample of the rank's process. Everything but the memory counts up from the start of the process.

    `gc_pause_ns` (time spent in Python's garbage collector) and `gc_collections` count from the start of the agent.
    `run_queue_wait_ns` is for how long the main thread, which trains, was ready to run and had no CPU.
    `throttled_ratio` is, since the previous sample, the share of the periods of its cgroup's CPU limit in which the
    limit stopped it. `block_io_wait_ns` is for how long the main thread waited for block I/O and pages from swap, in
    ticks of 10 ms; where the kernel does not count it, `absent` has the reason.
    """

    host_ns: int
    cpu_ns: int | None = None
    resident_bytes: int | None = None
    voluntary_switches: int | None = None
    involuntary_switches: int | None = None
    major_faults: int | None = None
    gc_pause_ns: int | None = None
    gc_collections: int | None = None
    run_queue_wait_ns: int | None = None
    throttled_ratio: float | None = None
    block_io_wait_ns: int | None = None
    absent: Reasons = {}


class DeviceSample(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Sample of the rank's GPU, from NVML, on AMD from amdsmi. A field that could not be read is None, with the reason
    in `absent`. NVIDIA's GPUs have no XGMI, whose fields are None there without a reason.

    For a slice (MIG) the memory, the activity and the Xid errors are the slice's, all else the board's. The bytes of
    NVLink and XGMI (all links together) and PCIe count up, as do the ECC errors, since the driver was loaded;
    `xid_count` since the agent first read the GPU. `xid_last` is the number of the latest Xid error. Remapped rows are
    rows of memory that were permanently replaced; a pending remapping needs a reset of the GPU, a failed one a new GPU.
    The activity ratios and bytes per second are means since the previous sample. The PCIe link has a width in lanes and
    a generation, both now (a GPU lowers the generation while it is idle) and at most, with this board in this slot.
    `energy_joules` is what the board has used since the agent first read it; a slice has none of its own.
    """

    host_ns: int
    uuid: Name
    model: Name = ""
    utilization_ratio: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None
    sm_clock_hertz: int | None = None
    throttle_reasons: Names | None = None
    absent: Reasons = {}
    memory_clock_hertz: int | None = None
    power_limit_watts: float | None = None
    nvlink_tx_bytes: int | None = None
    nvlink_rx_bytes: int | None = None
    pcie_tx_bytes: int | None = None
    pcie_rx_bytes: int | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    remapped_rows_correctable: int | None = None
    remapped_rows_uncorrectable: int | None = None
    remapping_pending: bool | None = None
    remapping_failed: bool | None = None
    xid_count: int | None = None
    xid_last: int | None = None
    sm_active_ratio: float | None = None
    sm_occupancy_ratio: float | None = None
    tensor_active_ratio: float | None = None
    dram_bandwidth_ratio: float | None = None
    nvlink_tx_bytes_per_s: float | None = None
    nvlink_rx_bytes_per_s: float | None = None
    xgmi_tx_bytes: int | None = None
    xgmi_rx_bytes: int | None = None
    pcie_link_width: int | None = None
    pcie_link_width_max: int | None = None
    pcie_link_generation: int | None = None
    pcie_link_generation_max: int | None = None
    energy_joules: float | None = None


class AllocatorSample(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Sample of torch's caching allocator for the rank's GPU. A field that torch does not report is None, with the
    reason in `absent`.

    Bytes handed out to tensors (allocated), plus those that wait for another stream (active), bytes requested from the
    driver (reserved); `inactive_split_bytes` are free pieces of blocks in use, which cannot be returned: fragmentation.
    The peaks are since the start, or since the script has reset them. The other fields count up, likewise: `retries`
    are the times the driver refused memory and the cache was emptied, which stops the GPU; `device_allocs` and
    `device_frees` are calls of the driver, none of which occur in a steady training.

    `allocated_peak_bytes` was first reached after the end of `allocated_peak_after_step`, and before the end of
    `allocated_peak_by_step`. The first is None where the peak was there at the first sample, or no step had ended
    before an earlier one; the second while no step has ended since the sample in which the peak was first seen.
    """

    host_ns: int
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    active_bytes: int | None = None
    inactive_split_bytes: int | None = None
    allocated_peak_bytes: int | None = None
    reserved_peak_bytes: int | None = None
    active_peak_bytes: int | None = None
    retries: int | None = None
    ooms: int | None = None
    device_allocs: int | None = None
    device_frees: int | None = None
    absent: Reasons = {}
    allocated_peak_after_step: int | None = None
    allocated_peak_by_step: int | None = None


class PortSample(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Sample of one port of an InfiniBand or RoCE card, `mlx5_0/1`, as Linux shows it in /sys/class/infiniband.

    All but the state and the rate count up since the card was reset. Which of them there are differs between cards and
    drivers: None where the file is missing. `xmit_wait` counts ticks, of a length that the card defines, in which data
    waited to be sent. `cnps_sent` and `cnps_handled` are congestion notifications of RoCE: sent by this port because
    packets arrived marked, and received by it, so that it slowed down.
    """

    name: ShortName
    is_active: bool | None = None
    rate_bits_per_s: int | None = None
    tx_bytes: int | None = None
    rx_bytes: int | None = None
    xmit_wait: int | None = None
    symbol_errors: int | None = None
    receive_errors: int | None = None
    link_recoveries: int | None = None
    link_downs: int | None = None
    receiver_not_ready: int | None = None
    out_of_sequence: int | None = None
    adaptive_retransmissions: int | None = None
    ack_timeouts: int | None = None
    cnps_sent: int | None = None
    cnps_handled: int | None = None


class InterfaceSample(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Sample of one network interface, `eth0`; counts of both directions together since it was created."""

    name: ShortName
    bytes: int
    errors: int
    drops: int


class NodeSample(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Sample of the machine that a rank runs on, read by its rank with local rank 0. A field that could not be read is
    None, with the reason in `absent`; ports and interfaces that were not read, or are beyond a limit, are only counted.

    All times and segments count up, times since the machine or the control group was started. `cpu_pressure_ns`: some
    task of the machine waited for a CPU (/proc/pressure/cpu); `group_cpu_pressure_ns` the same for the tasks of the
    reading process's control group. `cpu_steal_ns`: the hypervisor ran others, the mean over the CPUs. TCP segments
    are those of the network namespace. `memory_available_bytes` is what new allocations can get without swapping, from
    the machine or within the limit of the reading process's control group, whichever is less; `memory_total_bytes` is
    the machine's memory, or that limit.
    """

    host_ns: int
    ports: Annotated[tuple[PortSample, ...], Ports] = ()
    ports_left_out: int = 0
    interfaces: Annotated[tuple[InterfaceSample, ...], Ports] = ()
    interfaces_left_out: int = 0
    tcp_segments_sent: int | None = None
    tcp_segments_retransmitted: int | None = None
    cpu_pressure_ns: int | None = None
    group_cpu_pressure_ns: int | None = None
    cpu_steal_ns: int | None = None
    absent: Reasons = {}
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None


class GroupInfo(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """A process group that the rank belongs to."""

    label: Name
    description: Name
    ranks: Members
    backend: Name


class Totals(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Totals of this rank process so far. Every report carries them, so that no counter depends on every report having
    arrived and a collector that starts late knows them at once. `device_` counts the steps that were timed on the
    device, and their time there.

    `samples` and `tokens` are None until a step has a known number of them; `samples_step_ns` and `tokens_step_ns` are
    the durations of the steps where they are known: samples / samples_step_ns is a speed even if some steps are
    unknown. `call_ns` sums the waits in blocking calls within windows (WindowSynchronizations), by call.
    `device_tail_steps` counts the steps timed on the device whose tail is known, `device_tail_ns` sums these tails.
    `model_flops` and `executed_flops` (`model_flops.py`) are None until they were known of a step; they are those of
    the steps made so far, also of those whose records are not reported yet, or were lost. `host_copies` are those of
    all windows of a device; None before the first.
    """

    steps: int = 0
    step_ns: int = 0
    phases_ns: Numbers = {}
    batches: int = 0
    window_ns: int = 0
    compute_ns: int = 0
    communication_ns: int = 0
    overlap_ns: int = 0
    exposed_communication_ns: int = 0
    copy_ns: int = 0
    idle_ns: int = 0
    windows: int = 0
    device_steps: int = 0
    device_step_ns: int = 0
    device_phases_ns: Numbers = {}
    samples: int | None = None
    tokens: int | None = None
    samples_step_ns: int = 0
    tokens_step_ns: int = 0
    call_ns: Numbers = {}
    device_tail_steps: int = 0
    device_tail_ns: int = 0
    model_flops: float | None = None
    executed_flops: float | None = None
    host_copies: HostCopies | None = None


class Losses(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Losses of this rank process so far, by where they occurred, and the errors of the agent's own parts.

    `device_timings_skipped`: steps that were to be timed on the device and could not be, by reason; the steps
    themselves are not lost. `steps_made` is the total that the losses are parts of, `steps_buffered` how many of those
    were not yet in a report: `steps_made = steps_overwritten + steps_buffered + Totals.steps`. None: not reported.
    `device_tails_skipped`: steps that were timed on the device without their tail, in a rank with peers, by reason.
    """

    steps_overwritten: int = 0
    steps_dropped_in_reports: int = 0
    reports_dropped: int = 0
    windows_skipped: Numbers = {}
    errors: Numbers = {}
    device_timings_skipped: Numbers = {}
    steps_made: int | None = None
    steps_buffered: int | None = None
    device_tails_skipped: Numbers = {}


class AgentCost(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Cost of the agent for this rank so far, and the parts of the agent that are out of use to save cost.

    `part_ns` is CPU time by part of the agent, `dropped` maps each part that can be dropped to whether it is. A stretch
    ratio is the distance between two windows over the distance without regard to cost. `changes` counts how often a
    part was dropped or restored.

    `attached_ratio` is the step time outside of full windows over that before the GPU's first one, minus 1 (-1 and up),
    `detached_ratio` that after CUPTI was detached from the process; None: not measured. `window_effect` is the state of
    this comparison (`agent/profiler/window_effect.py`), empty where no GPU is in use, and where it is not made or not
    reported; `awaits_graph` while no window may begin before the run's first CUDA graph.

    `timing_ratio` is the step time since torch times the collectives of NCCL over that before, minus 1, where the agent
    has measured it (`agent/profiler/measured_timing.py`); None: not known. `timing_effect` is the state of this
    comparison, empty where it is not made or not reported.
    """

    part_ns: Numbers = {}
    dropped: Flags = {}
    full_stretch_ratio: float | None = None
    light_stretch_ratio: float | None = None
    changes: int = 0
    attached_ratio: float | None = None
    detached_ratio: float | None = None
    window_effect: Name = ""
    timing_ratio: float | None = None
    timing_effect: Name = ""


STEP_COLUMNS = ("step", "start_host_ns", "duration_ns", "cpu_ns", "batches", "backwards", "samples", "tokens")
PHASE_PREFIX = "phase:"
COLLECTIVE_COLUMNS = ("step", "group", "op", "start_host_ns", "duration_ns", "sequence", "bytes", "exposed_ns")
DEVICE_PREFIX = "device:"
DEVICE_TAIL = "device_tail_ns"
CAPTURED = "captured"
BACKWARD_CPU = "backward_cpu_ns"


def steps_to_table(records: Sequence[StepRecord]) -> Table:
    """Return step records as a table; each phase is a column `phase:NAME`.

    If any step was timed on the device there are columns `device:NAME` too, MISSING in the other steps, and where a
    tail is known DEVICE_TAIL; where steps were captured CAPTURED, 0 or 1; where it was read BACKWARD_CPU. User phases
    beyond the column limit are added to `device:other`.
    """
    phases = list(PHASES) + sorted({name for record in records for name in record.phases_ns} - set(PHASES))
    room = COLUMNS_MAX - len(STEP_COLUMNS) - len(phases)
    on_device = phases[:room] if any(r.device_phases_ns is not None for r in records) and room >= len(PHASES) else []
    columns: list[Sequence[int | None]] = [
        [r.step for r in records],
        [r.start_host_ns for r in records],
        [r.duration_ns for r in records],
        [r.cpu_ns for r in records],
        [r.batches for r in records],
        [r.backwards for r in records],
        [r.samples for r in records],
        [r.tokens for r in records],
        *([r.phases_ns.get(name, 0) for r in records] for name in phases),
    ]
    if on_device:
        columns += zip(*(_device_row(r.device_phases_ns, on_device) for r in records), strict=True)
    names = [*STEP_COLUMNS, *(PHASE_PREFIX + name for name in phases), *(DEVICE_PREFIX + name for name in on_device)]
    if on_device and len(names) < COLUMNS_MAX and any(r.device_tail_ns is not None for r in records):
        columns.append([r.device_tail_ns for r in records])
        names.append(DEVICE_TAIL)
    if any(r.captured for r in records) and len(names) < COLUMNS_MAX:
        columns.append([int(r.captured) for r in records])
        names.append(CAPTURED)
    if any(r.backward_cpu_ns is not None for r in records) and len(names) < COLUMNS_MAX:
        columns.append([r.backward_cpu_ns for r in records])
        names.append(BACKWARD_CPU)
    return Table.from_columns(names, columns)


def _device_row(phases_ns: Mapping[str, int] | None, columns: Sequence[str]) -> list[int | None]:
    if phases_ns is None:
        return [None] * len(columns)
    row: dict[str, int | None] = {name: phases_ns.get(name, 0) for name in columns}
    row["other"] = sum(phases_ns.values()) - sum(ns or 0 for name, ns in row.items() if name != "other")
    return list(row.values())


class Collectives(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Collective records as a table whose columns `group` and `op` index the two lists of names."""

    groups: GroupNames = ()
    ops: GroupNames = ()
    table: Table = Table()


def collectives_to_table(records: Sequence[CollectiveRecord]) -> Collectives:
    """Return collective records as a table."""
    groups = {name: index for index, name in enumerate(sorted({r.group for r in records}))}
    ops = {name: index for index, name in enumerate(sorted({r.op for r in records}))}
    rows = [
        (r.step, groups[r.group], ops[r.op], r.start_host_ns, r.duration_ns, r.sequence, r.bytes, r.exposed_ns)
        for r in records
    ]
    return Collectives(tuple(groups), tuple(ops), Table.from_rows(COLLECTIVE_COLUMNS, rows))


class WindowFlops(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The FLOPs (2 for a multiply-accumulate) of each of `step_count` steps from `first_step` on, or the `reason` why
    they are not known. Without a backward model FLOPs are those of the forward. With `is_upper_bound` a recomputation
    may have stopped before its last product, which a window of a CPU does not show: executed FLOPs are at most this.
    `number_types` has the shares of the model's and of the executed FLOPs by type, as peaks are listed by, else as
    torch spells it.
    """

    first_step: int
    step_count: int
    model_flops: int | None = None
    executed_flops: int | None = None
    number_types: Mapping[str, tuple[float, float]] = {}
    is_upper_bound: bool = False
    reason: str | None = None


class CompiledFrame(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """What torch.compile compiled of a frame (`train.py:24 (forward)`, backward included) until the end of `step` (-1:
    after the last) since the one before. `reason`: the guard that failed, in torch's words. `gives_up`: torch has
    reached its limit of recompilations, and runs the frame uncompiled from now on.
    """

    step: int
    frame: Name = ""
    compiled: Count = 0
    recompiled: Count = 0
    duration_ns: Count = 0
    reason: Name = ""
    gives_up: bool = False


class CompiledStart(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The first steps up to `last_step`, the last that compilation has made longer, and `compile_ns` of their time."""

    last_step: Count
    elapsed_ns: Count
    compile_ns: Count
    frames: Count


class Compilations(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """What torch.compile has done in this process so far; `frames` are those since the report before. `cached` were
    found in a cache of torch's, `uncached` looked for and not found. `unseen`: times that more was compiled between two
    reports than torch remembers, so that the counts are too low.
    """

    compiled: Count = 0
    recompiled: Count = 0
    duration_ns: Count = 0
    cached: Count = 0
    uncached: Count = 0
    unseen: Count = 0
    start: CompiledStart | None = None
    frames: Annotated[tuple[CompiledFrame, ...], Some] = ()


NO_COMPILATIONS = Compilations()

SAVE_LINES_MAX = 16
"""Lines of a process that are told one by one: a script saves at one or two. The rest of a call has the line ``."""


class PipelineSchedule(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """A pipeline as announced: class of its schedule, stages of this rank and in all, ranks, microbatches of a step."""

    name: Name
    stages: Annotated[tuple[Count, ...], Some]
    stage_count: Count
    ranks: Count
    microbatches: Count


class LayerTimes(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The repeated blocks of a rank's model, numbered from `first`, called `calls` times in a step: medians a call, of
    `samples` timed steps. `columns`: forward, backward, both together (lowest and highest decile), in ns, and the bytes
    that it keeps for its backward. None: not known; `absent` says why all are.
    """

    kind: Name
    first: Count = 0
    samples: Count = 0
    last_step: Count = 0
    calls: Count = 0
    columns: Annotated[tuple[Annotated[tuple[Count | None, ...], msgspec.Meta(max_length=256)], ...], Some] = ()
    absent: Name = ""


class SavedLine(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """What a process has saved so far by `call` (`torch.save`) at a `line` of the script (`train.py:24 (main)`, empty
    where none was found): how often, in how much time of its own, without that for other ranks, and how many bytes,
    None where that is not known of one. `last_` are those of the latest. `in_background`: on a thread that does not
    train, so that no step waits for it.
    """

    call: Name
    line: Name = ""
    in_background: bool = False
    count: Count = 0
    duration_ns: Count = 0
    longest_ns: Count = 0
    bytes: Count | None = None
    last_ns: Count = 0
    last_bytes: Count | None = None
