"""Result of `rankscope analyze` as typed objects: returned by the library, written as JSON, rendered as text and page.

Integers that end in `_ns` are nanoseconds; starts count from the trace's first event, none is a time of day. None:
not applicable or unknown. The JSON schema made from these classes is `docs/analyze.schema.json`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from rankscope.collector.traces.column_table import ColumnTable
from rankscope.collector.traces.data_frames import build_tables
from rankscope.collector.traces.profile_rows import ModelProfile
from rankscope.measure.kernel_classes import OTHER
from rankscope.measure.memory_flow import MemoryFlow

SCHEMA = 1


UNKNOWN_DEVICE: Final = "unknown device"
"""Name of the device of a rank whose device worked, with nothing of its work in the trace, or not known."""


class Breakdown(msgspec.Struct, frozen=True, kw_only=True):
    """Breakdown of a window (docs/definitions.md section 1). The parts sum to the window exactly:

    (compute - overlap) + overlap + exposed_communication + copy + idle = window
    """

    window_ns: int
    compute_ns: int
    communication_ns: int
    overlap_ns: int
    exposed_communication_ns: int
    copy_ns: int
    idle_ns: int
    busy_ratio: float | None
    overlap_ratio: float | None


class LaunchedWork(msgspec.Struct, frozen=True, kw_only=True):
    """Device work that a step launched, also where it ran after the step. Times count as elsewhere."""

    kernel_count: int
    copy_count: int
    first_ns: int | None
    last_ns: int | None
    busy_ns: int
    compute_ns: int
    communication_ns: int
    overlap_ns: int


class DeviceStep(Breakdown, frozen=True, kw_only=True):
    """One step by the device's clock: from the first work that it launched to the first work of the next one (the last:
    to the end of the work it launched). A host that runs ahead ends its own steps before their work begins.
    `waiting_ns` as in StepReport.
    """

    start_ns: int
    kernel_count: int
    waiting_ns: int | None = None


class StepReport(Breakdown, frozen=True, kw_only=True):
    """One step by the host's clock, from its start to the start of the next (the last: to its own end). `launched` is
    None on a CPU; `on_device` is None there too, and where a step launched nothing or its work is not in order.
    `waiting_ns` is the part of the exposed communication in which the rank waited for another one, in matched
    collectives and for messages; None where neither could be matched. `lost_launch_count`: calls that launched kernels
    of which the trace has none; a step with more than a few is not judged (`is_judged`), and not compared.
    """

    step: int
    start_ns: int
    kernel_count: int
    launched: LaunchedWork | None
    on_device: DeviceStep | None = None
    waiting_ns: int | None = None
    lost_launch_count: int = 0
    is_judged: bool = True


class LongStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that took many times as long as the median of the others, `usual_ns`, by the host's clock. `idle_ns`: no
    device worked, None on a CPU. `range_name`: the range or operator with the most of what it took more, `range_ns` its
    time in the step; None where none has half of that.
    """

    step: int
    start_ns: int
    window_ns: int
    usual_ns: int
    idle_ns: int | None
    range_name: str | None
    range_ns: int | None


class DeviceReport(Breakdown, frozen=True, kw_only=True):
    """One device. `utilization_ratio`: the share of the steps in which a kernel ran; `sm_efficiency_ratio`: the share
    of its multiprocessors that kernels had blocks for, over the same time; `achieved_occupancy_ratio`: warps resident,
    over the time of its kernels. The last two are the profiler's estimates. `tensor_core_ratio`: the share of kernel
    time on tensor cores by the kernels' names, a lower bound where `tensor_core_unknown_ratio`, the share of kernels
    whose names do not tell, is above 0. `memory_bytes` is all its memory, `compute_capability` CUDA's, such as `9.0`.
    """

    device: int | None
    name: str | None
    memory_bytes: int | None = None
    compute_capability: str | None = None
    kernel_count: int
    utilization_ratio: float | None
    sm_efficiency_ratio: float | None
    achieved_occupancy_ratio: float | None
    tensor_core_ratio: float | None
    tensor_core_unknown_ratio: float | None = None


class CpuUse(msgspec.Struct, frozen=True, kw_only=True):
    """Use of the processors during a capture by rankscope, `window_ns` long: `process_ns` is CPU time of this rank's
    process, `system_ratio` the share of all processors of its machine that worked, None where that is not known.
    """

    window_ns: int
    process_ns: int
    system_ratio: float | None = None


class SourceRow(msgspec.Struct, frozen=True, kw_only=True):
    """A place in the user's own code that led to `count` of the calls or kernels of a row, with `total_ns` of its time:
    of kernels and device self time, on a CPU host self time. `line` is where the function begins (old traces: the line
    of the call).
    """

    file: str
    line: int
    function: str
    count: int
    total_ns: int


class KernelRow(msgspec.Struct, frozen=True, kw_only=True):
    """All kernels of one name. `pct` is of the kernel time. `uses_tensor_cores` is None where the name does not tell;
    `kind` is its class, as in the table of classes. `blocks_per_sm` and `occupancy_ratio` (the profiler's estimate) are
    means over the time of those that have one, None without. `median_ns` is that of the durations, `deviation_ns` their
    standard deviation, over count - 1; None of a single one. `sources` are the places that launched the most of it,
    empty without stacks.
    """

    name: str
    count: int
    total_ns: int
    mean_ns: int
    min_ns: int
    max_ns: int
    pct: float
    is_communication: bool
    uses_tensor_cores: bool | None
    sources: list[SourceRow] = []
    kind: str = OTHER
    blocks_per_sm: float | None = None
    occupancy_ratio: float | None = None
    median_ns: float | None = None
    deviation_ns: float | None = None


class KernelLaunchRow(msgspec.Struct, frozen=True, kw_only=True):
    """Kernels of one name that one operator launched in one way: blocks of the grid and threads of a block by
    dimension, registers of a thread, bytes of memory that a block shares; None where the trace does not say, `operator`
    also for a launch in none. `may_use_tensor_cores` is of the operator, `uses_tensor_cores` of the kernel, by their
    names; blocks per SM and occupancy as in KernelRow.
    """

    name: str
    operator: str | None
    grid: str | None
    block: str | None
    registers: int | None
    shared_memory_bytes: int | None
    count: int
    total_ns: int
    mean_ns: int
    min_ns: int
    max_ns: int
    pct: float
    uses_tensor_cores: bool | None
    may_use_tensor_cores: bool
    blocks_per_sm: float | None
    occupancy_ratio: float | None


class KernelGroupRow(msgspec.Struct, frozen=True, kw_only=True):
    """All device work of one class of kernels, or of one of the user's groups, by `name_count` names; `group` is None
    for the work in no group. The times of a rank's rows sum to its device work.
    """

    group: str | None
    count: int
    name_count: int
    total_ns: int


class SequenceRow(msgspec.Struct, frozen=True, kw_only=True):
    """Pieces of device work with these names, one behind the other on a stream within a step, `count` times.
    `total_ns`: the work of all of them; `gap_ns`: the time inside in which the device was idle. `launch_count`: how
    many calls launched them (of a CUDA graph one for all its work); None where one is not in the trace. No work is in
    two rows; a gap may be, of rows on several streams.
    """

    names: list[str]
    count: int
    total_ns: int
    gap_ns: int
    launch_count: int | None


class CounterSum(msgspec.Struct, frozen=True, kw_only=True):
    """One hardware counter over the ranges of a row. `total` is None unless it adds up (its name ends in `.sum`)."""

    name: str
    mean: float
    min: float
    max: float
    total: float | None


class CounterRow(msgspec.Struct, frozen=True, kw_only=True):
    """All ranges of hardware counters of kernels of one name, launched by one operator; `operator` is None where that
    is not known.
    """

    name: str
    operator: str | None
    count: int
    counters: list[CounterSum]


class CopyRow(msgspec.Struct, frozen=True, kw_only=True):
    """All memory copies or sets of one kind. The rate is bytes over time. `host_total_ns` is the time of the calls that
    made them; None where one is not in the trace. The bandwidth is that of each copy, of the `bandwidth_count` of
    which it is known: as the profiler wrote it, else its bytes over its time; quantiles between two are interpolated.
    """

    name: str
    count: int
    bytes: int | None
    total_ns: int
    bytes_per_s: float | None
    min_ns: int | None = None
    max_ns: int | None = None
    host_total_ns: int | None = None
    bandwidth_count: int = 0
    bandwidth_min_bytes_per_s: float | None = None
    bandwidth_p25_bytes_per_s: float | None = None
    bandwidth_median_bytes_per_s: float | None = None
    bandwidth_p75_bytes_per_s: float | None = None
    bandwidth_p90_bytes_per_s: float | None = None
    bandwidth_max_bytes_per_s: float | None = None
    bandwidth_mean_bytes_per_s: float | None = None
    bandwidth_deviation_bytes_per_s: float | None = None


class CollectiveRow(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives of one kind in one group. `bytes` as in nccl-tests: for gathers and scatters the gathered size.

    `total_ns` includes waiting; transfer and bus bandwidth are known only where ranks were compared.
    """

    group: str
    group_size: int | None
    op: str
    dtype: str | None
    count: int
    bytes: int | None
    total_ns: int
    mean_ns: int
    transfer_ns: int | None = None
    bus_bandwidth_bytes_per_s: float | None = None


class CollectiveSizeRow(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives of all ranks, of one operation in one group, whose size is `size_from_bytes` at least and less than
    `size_to_bytes` (bytes as in CollectiveRow; None: not in the traces). `is_inside_node`: all members of the group
    are on one host; None when that is not known. `count` and the durations are of calls, one for each rank that took
    part. Skew is that of `matched_count` collectives, those matched across ranks: the longest duration of one less the
    shortest, the time between the first rank's arrival and the last one's. Algorithm bandwidth is bytes over time, bus
    bandwidth that by the factor of nccl-tests. `bandwidth_from` says over which time: `transfers` of the collectives
    that were matched on all members; `durations` of calls, where there are none: a lower bound, as they may include
    waiting.
    """

    op: str
    group: str
    group_size: int | None
    dtype: str | None
    size_from_bytes: int | None
    size_to_bytes: int | None
    is_inside_node: bool | None
    count: int
    total_ns: int
    duration_min_ns: int
    duration_median_ns: int
    duration_max_ns: int
    matched_count: int
    skew_min_ns: int | None
    skew_median_ns: int | None
    skew_max_ns: int | None
    bandwidth_from: str | None
    algorithm_bandwidth_min_bytes_per_s: float | None
    algorithm_bandwidth_median_bytes_per_s: float | None
    algorithm_bandwidth_max_bytes_per_s: float | None
    bus_bandwidth_min_bytes_per_s: float | None
    bus_bandwidth_median_bytes_per_s: float | None
    bus_bandwidth_max_bytes_per_s: float | None


class SynchronizationRow(msgspec.Struct, frozen=True, kw_only=True):
    """Calls in which the host waited for the device, by operator and, with stacks, by the function around
    them.
    """

    name: str
    count: int
    total_ns: int
    max_ns: int
    operator: str | None
    source: str | None


class IdleRow(msgspec.Struct, frozen=True, kw_only=True):
    """Time between pieces of work, of one stream of a device, or of all its streams together (`is_device`), in the
    window from the start of the first to the end of the last. Each gap is of one kind, by the call that launched the
    work after it: `host_wait_ns` where it was made in the gap, `kernel_wait_ns` where it was made before (the work
    waited for another stream, a dependency, or its own start), `other_ns` where it is not in the trace. The three sum
    to `idle_ns`.
    """

    device: int | None
    stream: int | None
    is_device: bool
    window_ns: int
    gap_count: int
    idle_ns: int
    longest_ns: int
    host_wait_ns: int
    kernel_wait_ns: int
    other_ns: int


class IdleGapRow(msgspec.Struct, frozen=True, kw_only=True):
    """The gaps of one kind (`host_wait`, `kernel_wait`, `other`) of a lane as in IdleRow: how many and how long they
    are; between two gaps quantiles are interpolated, the deviation of one is None.
    """

    device: int | None
    stream: int | None
    is_device: bool
    kind: str
    count: int
    total_ns: int
    mean_ns: float
    min_ns: int
    p25_ns: float
    median_ns: float
    p75_ns: float
    max_ns: int
    deviation_ns: float | None


class QueueRow(msgspec.Struct, frozen=True, kw_only=True):
    """How far the host ran ahead of one device in one step by the host's clock, without steps in one tenth of the trace
    (`part`, from 1); without either over all of them. The delay of work is from the start of the call that launched it
    to its own start, by the work that was launched in the period. The queue is the work that was launched and has not
    started; its median and p99 are over time. `empty_ns`: the queue was empty; `starved_ns`: all that was launched had
    ended too, so that the device had nothing to do. `full_ns`: on some stream 1,024 or more pieces were queued, where
    CUDA lets the host wait. Work whose launch is not in the trace is in no queue, only at work.
    """

    device: int | None
    step: int | None
    part: int | None
    start_ns: int
    window_ns: int
    launch_count: int
    delay_median_ns: int | None
    delay_p99_ns: int | None
    queue_median: int | None
    queue_p99: int | None
    queue_max: int | None
    empty_ns: int
    starved_ns: int
    full_ns: int = 0


class OperatorRow(msgspec.Struct, frozen=True, kw_only=True):
    """All calls of one operator: host time, and device time of its launches, with and without the operators inside
    it; the least and the most of one call, with those inside. `allocated_bytes` is what was allocated right inside,
    None where memory was not recorded. `sources` are the places with the most of it, empty without stacks.
    `may_use_tensor_cores` is whether it multiplies matrices, by its name; `tensor_core_ns` and
    `tensor_core_total_ns` are the parts of `device_self_ns` and `device_total_ns` in kernels that are on tensor cores
    by theirs, lower bounds, None without a device.
    """

    name: str
    count: int
    host_total_ns: int
    host_self_ns: int
    device_total_ns: int
    device_self_ns: int
    sources: list[SourceRow] = []
    host_min_ns: int | None = None
    host_max_ns: int | None = None
    device_min_ns: int | None = None
    device_max_ns: int | None = None
    allocated_bytes: int | None = None
    may_use_tensor_cores: bool = False
    tensor_core_ns: int | None = None
    tensor_core_total_ns: int | None = None


class LaunchedKernel(msgspec.Struct, frozen=True, kw_only=True):
    """Kernels and copies of one name that operators of a row launched, without the operators inside. `delay_ns`: from
    the start of the launching call to that of the work, in the mean.
    """

    name: str
    count: int
    total_ns: int
    delay_ns: int | None = None


class OperatorGroupRow(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one operator, on one thread where asked for by thread, and from one place in the code where asked for by
    frames: `frames` are the innermost ones around the calls, the innermost first. Times as in OperatorRow; `kernels`
    are those launched, the most first, where asked for, and `launch_delay_ns` then the time from the start of the
    operator to its first own launch, in the mean of the calls with one.
    """

    name: str
    thread: str | None
    frames: list[str]
    count: int
    host_total_ns: int
    host_self_ns: int
    device_total_ns: int
    device_self_ns: int
    kernels: list[LaunchedKernel] = []
    launch_delay_ns: int | None = None
    host_min_ns: int | None = None
    host_max_ns: int | None = None
    device_min_ns: int | None = None
    device_max_ns: int | None = None


class OperatorShapeRow(msgspec.Struct, frozen=True, kw_only=True):
    """All calls of one operator with inputs of the same shapes and types, as OperatorRow. `shapes` is None for calls
    without them in the trace.
    """

    name: str
    shapes: str | None
    count: int
    host_total_ns: int
    host_self_ns: int
    device_total_ns: int
    device_self_ns: int
    host_min_ns: int | None = None
    host_max_ns: int | None = None
    device_min_ns: int | None = None
    device_max_ns: int | None = None


class OperatorArgumentsRow(OperatorShapeRow, frozen=True, kw_only=True):
    """All calls of one operator of which all that was recorded of their inputs is the same. `arguments` has the strides
    of each tensor, `(64, 1)`, and the values of the other inputs, `-` for one without; None where none was recorded.
    """

    arguments: str | None


class RooflineRow(msgspec.Struct, frozen=True, kw_only=True):
    """All calls of one operator with inputs of the same shapes and types that launched computing kernels. `device_ns`
    is the time of these kernels, of which `kernel` has the most, `kernel_ns`. `flops`: operations of the products, None
    for operators without one; `bytes`: the least that had to be moved, each input read and each output written once;
    both of all calls, None with the `reason`. Rates are over `device_ns`. `intensity` is operations for each byte. The
    peaks are those of the device for this type of number, as given or by its data sheet. `bound`: compute or memory,
    whichever allows less at this intensity; `roof_ratio` is the share of that limit that was reached, above 1 where
    caches spare memory traffic, or where attention skips what a mask leaves out.
    """

    operator: str
    shapes: str | None
    kernel: str
    kernel_ns: int
    count: int
    kernel_count: int
    device_ns: int
    flops: int | None
    bytes: int | None
    flops_per_s: float | None
    bytes_per_s: float | None
    intensity: float | None
    peak_flops_per_s: float | None
    peak_bytes_per_s: float | None
    bound: str | None
    roof_ratio: float | None
    reason: str | None


class ModuleRow(msgspec.Struct, frozen=True, kw_only=True):
    """All calls of one instance of an nn.Module from one place of the tree of modules. `path` are the instances from
    the root, `Net_0/Linear_1`; None for what belongs to no module: launched outside of modules, in a backward operator
    without a forward one in the trace, or by a call that is not in it. `host_` and `device_` times without `backward_`
    are those of the forward, self without the modules inside; `backward_` times are those of the backward operators of
    what ran in it. The self times on the device of all rows sum to that of all device work; None without a device.
    `operator_count` are the operators that all calls of the forward called, with the modules inside; those inside of
    other operators do not count. `operator_self_count` is without the modules inside; None for what is in no module.
    """

    path: str | None
    name: str
    depth: int
    count: int | None
    host_total_ns: int | None
    host_self_ns: int | None
    backward_host_total_ns: int
    backward_host_self_ns: int
    device_total_ns: int | None
    device_self_ns: int | None
    backward_device_total_ns: int | None
    backward_device_self_ns: int | None
    operator_count: int | None = None
    operator_self_count: int | None = None


class RangeRow(msgspec.Struct, frozen=True, kw_only=True):
    """All ranges of one name, marked by the script or by torch. `device_from` says what the device time is: `ranges`,
    the profiler's own ranges on the device, from the first work to the last; `launches`, where it has written none, the
    sum of the work launched inside; None without a device, and where no launch is in the trace. Number, least, most and
    standard deviation on the device are of the profiler's own ranges; deviations are None of fewer than two.
    """

    name: str
    count: int
    host_total_ns: int
    device_total_ns: int | None
    device_from: str | None = None
    host_min_ns: int | None = None
    host_max_ns: int | None = None
    host_deviation_ns: float | None = None
    device_count: int | None = None
    device_min_ns: int | None = None
    device_max_ns: int | None = None
    device_deviation_ns: float | None = None


class RangeKernelRow(msgspec.Struct, frozen=True, kw_only=True):
    """Kernels or copies of one name that were launched in the user ranges of one name, also in ranges inside of them;
    in ranges of one name inside each other they count once. `pct` is of the device time launched in these ranges;
    `own_` what was launched in no range inside of them. `range_name` is None for what was launched in no range, or by a
    call that is not in the trace: the `own_ns` of all rows sum to that of all device work.
    """

    range_name: str | None
    name: str
    count: int
    total_ns: int
    mean_ns: int
    min_ns: int
    max_ns: int
    pct: float
    own_count: int
    own_ns: int


class EventRow(msgspec.Struct, frozen=True, kw_only=True):
    """One event, numbered by start. `category` is its kind: `cpu_op`, `annotation`, `python`, `runtime`, `driver`,
    `sync`, `kernel`, `memcpy`, `memset`, `gpu_annotation`, `overhead`, `span`, `counters`, `other`. `parent` is the
    number of the range around it on its thread, of device work that of the call that launched it; `operator` that of
    the innermost operator around. Step, module (as in ModuleRow) and innermost user range are those at the start of the
    event, of device work at its launch. `device`, `stream`, `bytes` (of copies), `grid` and `block` (of kernels,
    `512x1x1`) are of device work. None where there is none, or where it is not known.
    """

    event: int
    name: str
    category: str
    start_ns: int
    duration_ns: int
    step: int | None
    process: str
    thread: str
    device: int | None
    stream: int | None
    parent: int | None
    operator: int | None
    correlation: int | None
    module: str | None
    user_range: str | None
    bytes: int | None
    grid: str | None
    block: str | None


class ModelRow(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of the training step: data_loader, forward, backward, optimizer, other. Host times sum to the steps;
    device time is that of the work launched in the stage.
    """

    stage: str
    host_ns: int
    device_ns: int
    count: int = 0
    host_min_ns: int | None = None
    host_max_ns: int | None = None


class EventTypeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of event in the steps: time in which no kind listed before it was active. The kinds sum to the steps."""

    kind: str
    total_ns: int
    ratio: float | None


class StepEventTypes(msgspec.Struct, frozen=True, kw_only=True):
    """The time of one step by kind of event, as in EventTypeRow: the kinds sum to the step."""

    step: int
    kernel_ns: int
    memcpy_ns: int
    memset_ns: int
    communication_ns: int
    runtime_ns: int
    data_loader_ns: int
    cpu_op_ns: int
    other_ns: int


class MemoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that one operator allocated itself, and the part that it did not free; `total_` with what the
    operators inside it allocated. `calls` are all of the operator.
    """

    operator: str
    count: int
    allocated_bytes: int
    kept_bytes: int
    calls: int = 0
    total_count: int = 0
    total_allocated_bytes: int = 0
    total_kept_bytes: int = 0


class MemoryStretchOperator(MemoryRow, frozen=True, kw_only=True):
    """Memory by operator in a stretch of time, as MemoryRow; `calls` are those that ran in it."""

    device: int | None


class MemoryStretchRow(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one allocator in a stretch of time: what was held just before its start, at most, and at its end, which
    is not in it; what was allocated and freed in it. `device` is None for the CPU.
    """

    device: int | None
    start_ns: int
    end_ns: int
    start_bytes: int
    end_bytes: int
    peak_bytes: int
    peak_ns: int
    allocated_count: int
    allocated_bytes: int
    freed_count: int
    freed_bytes: int


class AllocationRow(msgspec.Struct, frozen=True, kw_only=True):
    """One allocation, `device` None for the CPU: the operator and the module that made it, None for none, and the step.
    `end` is `freed`; `held`, where it was still there at the end; or `unknown`, where something else was allocated at
    its address before a free: that is not in the trace. `freed_ns` and `lifetime_ns` are None then. Memory that was
    allocated before the trace has a row where it is freed: `allocated_ns` and all that it says of that are None.
    """

    device: int | None
    operator: str | None
    module: str | None
    step: int | None
    bytes: int
    allocated_ns: int | None
    freed_ns: int | None
    lifetime_ns: int | None
    end: str


class MemoryPeakRow(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that was held at the peak, by the operator that allocated it, the line of the user's code that called it
    (None without stacks) and what it is for.
    """

    operator: str
    source: str | None
    category: str
    bytes: int
    count: int
    largest_bytes: int


class MemoryCurve(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes held at some times, by category: they sum to what is held. `operators` are those that ended at these
    times, every `every_operators`-th of the trace; None where the times are those of events of the allocator.
    """

    times_ns: list[int]
    bytes: Mapping[str, list[int]]
    operators: list[str] | None
    every_operators: int | None


class MemoryTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one allocator over time. What is held is the allocator's total, or the sum of the events where that is
    not recorded (`has_totals`), and at least what the trace says of memory older than it, `older_bytes` at the first
    event. `fragmentation` is 1 - allocated / reserved at the peak, by the allocator's totals. `has_model` is whether
    the trace says where parameters, gradients and optimizer state are; without that they are unknown.
    `lost_free_count` counts allocations at addresses whose free is not in the trace.
    """

    has_totals: bool
    has_model: bool
    lifetime_count: int
    lost_free_count: int
    older_bytes: int
    peak_bytes: int
    peak_ns: int
    peak_by_category: Mapping[str, int]
    fragmentation: float | None
    at_peak: list[MemoryPeakRow]
    curve: MemoryCurve


class MemoryReport(msgspec.Struct, frozen=True, kw_only=True):
    """Allocator of one device; `device` is None for the CPU. Growth is from the first step's end to the last's.
    `timeline` is None where addresses were not recorded; `flow` also where it was not asked for.
    """

    device: int | None
    peak_bytes: int
    peak_ns: int
    reserved_peak_bytes: int | None
    growth_bytes: int
    growth_by_step_bytes: list[int]
    operators: list[MemoryRow]
    timeline: MemoryTimeline | None = None
    flow: MemoryFlow | None = None


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """A window in bins of equal length, of which the last may reach beyond it: the ns of compute alone, overlap,
    exposed communication and copies in each, and of operators on the host while no device worked (0 on a CPU, where
    they are the compute). The rest is idle.
    """

    start_ns: int
    bin_ns: int
    compute: list[int]
    overlap: list[int]
    communication: list[int]
    copy: list[int]
    host: list[int] = []
    window_ns: int = 0


class StepTimeline(Timeline, frozen=True, kw_only=True):
    """One step in bins, by the device's clock where every step of the rank has bounds by it, else by the host's."""

    step: int


class Signs(msgspec.Struct, frozen=True, kw_only=True):
    """Input of the advice rules that no table shows. Values of a device are None on a CPU.

    `window_ns`: from the first step's start to the last one's end, without `long_steps` and steps whose work is lost:
    `step_count` are left, `lost_launch_count` of `launch_count` launches are without work. Without steps that of the
    breakdown; None where nothing is left. What follows is of that time. `exposed_communication_ns`: something
    communicated, nothing computed; `step_wait_ns` of it was no transfer, as `exposed_wait_ns`. `idle_ns`: no device
    worked; meanwhile the host was in the data loader (`idle_data_loader_ns`), else in a call that waits for the device
    (`idle_synchronization_ns`), else allocating device memory (`idle_allocation_ns`), else it launched the work that
    ended the gap too late (`idle_launch_ns`).
    `blocked_ns`: the host's time in calls that found the device at work and waited for it, on threads that launch.
    `profiler_synchronization_ns`: the call with which the profiler stops, which is in none of the others.
    `launched_kernel_count`: kernels whose launching call is in the trace, `launch_call_ns` the time of these calls,
    `short_kernel_count` the kernels that ran shorter than their call.
    `data_loader_count`: batches requested from a DataLoader in the whole trace, `data_loader_host_ns` the time of it,
    `single_process_loader`: it had no workers.
    `shared_stream_communication_ns`: communication on streams that compute too.
    `message_excess_ns`: point-to-point operations beyond the fastest of their kind and size, outside of compute.
    `stage_wait_ns`: waiting in collectives for other stages of a pipeline, outside of compute; for any rank where the
    stages are not known, None where waiting is not.
    `exposed_wait_ns`: exposed communication of the breakdown that was no transfer: waiting in collectives, and messages
    beyond the fastest; None where waiting is not known. `waits_are_lower_bound`: traces of ranks are missing, for which
    the rank may have waited longer.
    `copy_operator_device_ns`: device time of the copies within the device launched by clone, contiguous, reshape and
    _to_copy, `copy_operator_host_ns` their time on the host, `copy_operator` the one with the most.
    `compute_capability_*`: the lowest of the CUDA devices at work. `largest_fp32_gemm`: the shapes of the matrix
    product in fp32 with the most work, `largest_fp32_gemm_flops` that work; None without `record_shapes`.
    `data_parallel_devices`: devices to which work was launched while a forward of nn.DataParallel ran, in all
    `data_parallel_count` of them. `gloo_count` collectives over gloo beside a device, with `gloo_bytes` (None where
    shapes were not recorded), took `gloo_exposed_ns` in which no device worked. `has_ddp_over_gloo`: a forward of
    DistributedDataParallel ran, and nothing communicated on the device.
    """

    window_ns: int | None = None
    step_count: int = 0
    long_steps: list[LongStep] = []
    launch_count: int | None = None
    lost_launch_count: int | None = None
    idle_ns: int | None = None
    idle_data_loader_ns: int | None = None
    idle_synchronization_ns: int | None = None
    idle_allocation_ns: int | None = None
    idle_launch_ns: int | None = None
    blocked_ns: int | None = None
    profiler_synchronization_ns: int | None = None
    launched_kernel_count: int | None = None
    short_kernel_count: int | None = None
    launch_call_ns: int | None = None
    data_loader_count: int = 0
    data_loader_host_ns: int = 0
    single_process_loader: bool | None = None
    shared_stream_communication_ns: int | None = None
    message_excess_ns: int | None = None
    stage_wait_ns: int | None = None
    exposed_wait_ns: int | None = None
    step_wait_ns: int | None = None
    waits_are_lower_bound: bool = False
    exposed_communication_ns: int = 0
    copy_operator_device_ns: int | None = None
    copy_operator_host_ns: int = 0
    copy_operator: str | None = None
    compute_capability_major: int | None = None
    compute_capability_minor: int | None = None
    largest_fp32_gemm: str | None = None
    largest_fp32_gemm_flops: int | None = None
    data_parallel_count: int | None = None
    data_parallel_devices: int | None = None
    gloo_count: int | None = None
    gloo_bytes: int | None = None
    gloo_exposed_ns: int | None = None
    has_ddp_over_gloo: bool | None = None


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """One rule that found something. `key` is stable; `evidence` has its numbers and thresholds; `ranks` are the ranks
    concerned.
    """

    key: str
    severity: str
    ranks: list[int]
    sentence: str
    action: str
    evidence: Mapping[str, float | int | str | None]


class Abstention(msgspec.Struct, frozen=True, kw_only=True):
    """One rule that could not judge, with the reason."""

    key: str
    reason: str


class RankReport(Breakdown, frozen=True, kw_only=True):
    """One trace. The breakdown is of the whole trace, from the first device event's start to the last one's end.
    `operator_shapes`, `operator_arguments`, `operator_groups`, `range_kernels`, `kernel_launches`, `roofline`,
    `modules`, `kernel_groups`, `kernel_sequences`, `flops`, `memory_stretch`, `memory_stretch_operators`, `allocations`
    and `events` are None where they were not asked for.
    """

    rank: int | None
    file: str
    device: str | None
    world_size: int | None
    backend: str | None
    host: str | None
    start_ns: int
    kernel_count: int
    event_count: int
    steps: list[StepReport]
    devices: list[DeviceReport]
    event_types: list[EventTypeRow]
    model: list[ModelRow]
    collectives: list[CollectiveRow]
    operators: list[OperatorRow]
    kernels: list[KernelRow]
    copies: list[CopyRow]
    user_ranges: list[RangeRow]
    synchronizations: list[SynchronizationRow]
    memory: list[MemoryReport]
    timeline: Timeline | None
    signs: Signs
    warnings: list[str]
    idle_time: list[IdleRow] = []
    idle_gaps: list[IdleGapRow] = []
    launch_queue: list[QueueRow] = []
    hardware_counters: list[CounterRow] = []
    operator_shapes: list[OperatorShapeRow] | None = None
    operator_arguments: list[OperatorArgumentsRow] | None = None
    operator_groups: list[OperatorGroupRow] | None = None
    range_kernels: list[RangeKernelRow] | None = None
    kernel_launches: list[KernelLaunchRow] | None = None
    step_timelines: list[StepTimeline] = []
    step_event_types: list[StepEventTypes] = []
    roofline: list[RooflineRow] | None = None
    modules: list[ModuleRow] | None = None
    kernel_groups: list[KernelGroupRow] | None = None
    kernel_sequences: list[SequenceRow] | None = None
    flops: ModelProfile | None = None
    cpu_use: CpuUse | None = None
    memory_stretch: list[MemoryStretchRow] | None = None
    memory_stretch_operators: list[MemoryStretchOperator] | None = None
    allocations: Sequence[AllocationRow] | None = None
    events: Sequence[EventRow] | None = None


class MatchedCollective(msgspec.Struct, frozen=True, kw_only=True):
    """One collective on all ranks that took part. `transfer_ns` is the shortest duration; a rank waited the remainder
    of its own. The rank with the shortest entered last, by `lateness_ns` less than the median.
    """

    group: str
    sequence: int
    op: str
    bytes: int | None
    ranks: list[int]
    transfer_ns: int | None
    wait_ns: Mapping[str, int] | None
    late_rank: int | None
    lateness_ns: int | None


class TraceFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One finding of the comparison of ranks, with its sentence: about `ranks`, which are slow together, the first of
    them `rank`, and the machines in `nodes` where it is about all or most of theirs. `slowdown_ratio` is that of the
    slowest, `run_slowdown_ratio` the steps over the same without this slowness.
    """

    kind: str
    rank: int
    slowdown_ratio: float | None
    cause: str | None
    sentence: str
    ranks: list[int]
    nodes: list[str] = []
    run_slowdown_ratio: float | None = None


class RankStanding(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence of whether one rank is slower than its peers, over the steps that all have. `slowdown_ratio`: its self
    time over the median peer's; `excess_ns` the difference in a step, give or take `noise_ns` (98 % of such records;
    None below 3 steps). It came last in `last_count` of `late_count` collectives that had a last rank, which made
    others wait for `wait_caused_ns`, `wait_caused_ratio` of all such waiting.
    """

    rank: int
    slowdown_ratio: float | None
    excess_ns: int | None
    noise_ns: int | None
    step_count: int
    slower_step_count: int
    last_count: int
    late_count: int
    wait_caused_ns: int
    wait_caused_ratio: float | None
    is_slow: bool


class TracedStage(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of a pipeline, its ranks one of each replica; times are those of a step on one rank, in the mean.
    `work_ns`: the step without waits, on the fastest replica; `bubble_ns`: waits for messages and for other stages
    that computing does not hide, before the first backward message of a step (`warm_up_ns`), after the last forward
    one (`drain_ns`), and in between (`steady_ns`); the three are None where the direction of messages is not known.
    `work_ratio`: the work over that of the median other stage; it was the longest in `longest_step_count` steps.
    """

    stage: int
    ranks: list[int]
    work_ns: int
    bubble_ns: int
    bubble_ratio: float | None
    warm_up_ns: int | None
    steady_ns: int | None
    drain_ns: int | None
    work_ratio: float
    longest_step_count: int


class PipelineSegment(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a stage's step, from its start on: `forward`, `backward`, `either` (messages and ranges of autograd
    do not tell them apart), `bubble`, or `other`.
    """

    kind: str
    start_ns: int
    length_ns: int


class PipelineLane(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's step in a picture of a pipeline; `start_ns` is from the earliest rank's. The pieces sum to it, but for
    those beyond 1,000, which are left out and counted.
    """

    stage: int
    rank: int
    start_ns: int
    window_ns: int
    segments: list[PipelineSegment]
    left_out_count: int


class PipelinePicture(msgspec.Struct, frozen=True, kw_only=True):
    """The slowest step that all stages have, by stage. `is_aligned`: the ranks are on one clock, else each begins at
    0. `rank_count` counts the ranks of all pipelines, of which the lanes are the first.
    """

    step: int
    is_aligned: bool
    rank_count: int
    lanes: list[PipelineLane]


class PipelineReport(msgspec.Struct, frozen=True, kw_only=True):
    """The stages of a pipeline, over the steps that all its ranks have. `unpaired_count`: sends and receives without a
    counterpart in these traces, or without the rank of it. `is_interleaved`: the last stage sends to the first.
    """

    stages: list[TracedStage]
    step_count: int
    message_count: int
    unpaired_count: int
    is_interleaved: bool
    bubble_ratio: float | None
    picture: PipelinePicture | None = None


class SharedClock(msgspec.Struct, frozen=True, kw_only=True):
    """The traces of all ranks on one clock, as `rankscope merge` places them. `starts_ns` has by rank when its first
    event began, from that of the earliest rank; it is empty where they could not be aligned, for the reason in
    `refused`. `how` says by what they were, `error_bound_ns` within what the ends of collectives then agree,
    `offset_bound_ns` by how much the clocks of two hosts may still be apart; None where that is not known.
    """

    starts_ns: Mapping[str, int]
    how: str | None
    refused: str | None
    error_bound_ns: int | None = None
    offset_bound_ns: int | None = None


class RankWait(msgspec.Struct, frozen=True, kw_only=True):
    """A wait of one rank for another: in a collective for the last rank to enter, or for the sender of a message.
    `start_ns` counts from the first event of the rank's trace, `late_start_ns` from that of the other one: when that
    entered. `step` launched what waited.
    """

    rank: int
    late_rank: int
    step: int | None
    op: str
    group: str | None
    start_ns: int
    wait_ns: int
    late_start_ns: int


class CrossRank(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of the ranks. `lower_bound` is True when ranks are missing, or when it is not known how
    many there are: there may have been more waiting.
    `refused` is the reason why waiting could not be separated from transfer. `standings` are empty then, and in a
    pipeline without replicas. `pipeline_refused` is the reason why ranks that exchange messages were not compared.
    `waits` are the longest of each step, of `wait_count` in all. `undecided` is why it is not known whether a rank is
    slow, where `standings` are known.
    """

    collectives: list[MatchedCollective]
    wait_ns: Mapping[str, int] | None
    transfer_ns: Mapping[str, int] | None
    findings: list[TraceFinding]
    lower_bound: bool
    refused: str | None
    end_disagreement_ns: int | None
    standings: list[RankStanding] = []
    pipeline: PipelineReport | None = None
    pipeline_refused: str | None = None
    clock: SharedClock | None = None
    waits: list[RankWait] = []
    wait_count: int = 0
    undecided: str | None = None


class DifferenceRow(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the time of a step, in the report's traces and in those it is compared with (`against_`): the mean
    over all steps of all ranks. `kind` is compute, communication, copy or idle; `difference_ns` is above 0 where the
    report's traces take longer, `share_ratio` its share of the difference of the steps, None where that is 0. Counts
    are of the pieces that begin in a step, 0 on the side that has none; idle time has no count.
    """

    kind: str
    name: str
    step_ns: int
    against_step_ns: int
    difference_ns: int
    share_ratio: float | None
    step_count: float | None
    against_step_count: float | None


class DifferenceTable(msgspec.Struct, frozen=True, kw_only=True):
    """All parts by one way of naming them (`key`: kernels, collectives, operators, ranges, modules), the largest
    difference first. The differences of the rows and `remainder_ns`, which is left by rounding each row down to whole
    ns, sum to the difference of the steps.
    """

    key: str
    rows: list[DifferenceRow]
    remainder_ns: int


class CallRow(msgspec.Struct, frozen=True, kw_only=True):
    """One call of an operator or user range in a step: `matched` with one of the traces to compare with, `added` (only
    here) or `removed` (only there). Times are of the call alone, of those that are not matched with all `call_count`
    calls of it: the host's, and that of the device work launched in it. `path` has the names around it.
    """

    kind: str
    rank: int | None
    step: int
    against_step: int
    path: str
    call_count: int
    host_ns: int
    against_host_ns: int
    host_difference_ns: int
    device_ns: int
    against_device_ns: int
    device_difference_ns: int


class CallMatching(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of one step of each rank, matched one by one in their order. `rows` are those with the largest
    difference, of each kind at most 1,000 of all that are counted. `notes` say what was not matched.
    """

    matched_count: int
    added_count: int
    removed_count: int
    rows: list[CallRow]
    notes: list[str]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of the report's traces beside those of others. `refused` is the reason why they were not compared;
    the tables are empty then. `clock`: by whose clock the steps are cut on both sides, host or device. `ranks` and
    `against_ranks` are those compared, `steps` and `against_steps` the steps of all of them together, `step_ns` their
    mean length. `notes` say what else differs. `calls` is None unless asked for.
    """

    against_files: list[str]
    refused: str | None
    notes: list[str] = []
    clock: str | None = None
    ranks: list[int | None] = []
    against_ranks: list[int | None] = []
    steps: int = 0
    against_steps: int = 0
    step_ns: int | None = None
    against_step_ns: int | None = None
    difference_ns: int | None = None
    tables: list[DifferenceTable] = []
    calls: CallMatching | None = None


class CycleRow(msgspec.Struct, frozen=True, kw_only=True):
    """One rank in one cycle of a profiler's schedule: the mean step and its parts (see Breakdown), by the device's
    clock where a step has bounds by it; None without steps. `difference_ns` is from the mean step of the rank's cycle
    before, `difference_ratio` its share of that. `is_slow`: the comparison of the ranks names it; None where it was
    not made.
    """

    cycle: int
    rank: int | None
    file: str
    step_count: int
    first_step: int | None
    last_step: int | None
    step_ns: int | None
    compute_ns: int | None
    overlap_ns: int | None
    exposed_communication_ns: int | None
    copy_ns: int | None
    idle_ns: int | None
    difference_ns: int | None
    difference_ratio: float | None
    is_slow: bool | None


class AllToAllRank(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank sent and received in the all-to-alls of one group whose sizes are in the trace. The ratios are to
    the median rank of the group here, None with one rank. `peer_bytes` is what it sent to `peer_rank`, the member of
    the group to which it sent the most (None where the members are not known), `peer_ratio` that over the median
    member, in the `split_count` of its calls whose splits are known. `total_ns` includes waiting.
    """

    group: str
    rank: int | None
    count: int
    sent_bytes: int
    received_bytes: int
    sent_ratio: float | None
    received_ratio: float | None
    split_count: int
    peer_rank: int | None
    peer_bytes: int | None
    peer_ratio: float | None
    total_ns: int


class AllToAllCall(msgspec.Struct, frozen=True, kw_only=True):
    """One all-to-all that was matched on `rank_count` ranks: the most that one of them sent and received, beside the
    median of them, and the shortest and the longest duration. Ratios are the most over the median, None where that is
    0.
    """

    group: str
    sequence: int
    rank_count: int
    sent_most_bytes: int
    sent_median_bytes: int
    sent_most_rank: int
    sent_ratio: float | None
    received_most_bytes: int
    received_median_bytes: int
    received_most_rank: int
    received_ratio: float | None
    shortest_ns: int
    longest_ns: int


class AllToAlls(msgspec.Struct, frozen=True, kw_only=True):
    """Imbalance of the all-to-alls: by rank, and by call, those first in which one rank received the most above the
    median; `left_out_count` further calls are not listed. `refused` is the reason why calls were not matched.
    """

    ranks: list[AllToAllRank]
    calls: list[AllToAllCall]
    left_out_count: int
    refused: str | None


class CriticalStep(msgspec.Struct, frozen=True, kw_only=True):
    """Critical path of one step, by kind of what bounds it; the kinds sum to `window_ns` exactly. It ends on `rank`,
    which ends the step last, and is that rank's step long. `host_ns`: the host, while no device work of the path was
    under way; `launch_ns`: from a launching call to the start of its work; `compute_ns`, `communication_ns`, `copy_ns`:
    device work; `unexplained_ns`: work waited, and nothing in the trace says for what. `rank_ns` is the time of the
    path by rank, `rank_change_count` how often it moves to another one; `inferred_count` moves between streams rest on
    the order of their work alone. `host_while_busy_ns` is the part of `host_ns` in which that rank's devices worked:
    much of it speaks against the path. `step` is None for the whole of a trace without steps.
    """

    step: int | None
    rank: int | None
    window_ns: int
    host_ns: int
    launch_ns: int
    compute_ns: int
    communication_ns: int
    copy_ns: int
    unexplained_ns: int
    rank_ns: Mapping[str, int]
    rank_change_count: int
    inferred_count: int
    host_while_busy_ns: int = 0


class CriticalPart(msgspec.Struct, frozen=True, kw_only=True):
    """What one operator, kernel or collective has of the critical paths of all steps. `kind` is host, launch, compute,
    communication, copy or unexplained; of the last and of launches the name is that of the work that waited.
    """

    kind: str
    name: str
    rank: int | None
    count: int
    total_ns: int
    ratio: float | None


class ShortenedStep(msgspec.Struct, frozen=True, kw_only=True):
    """Length of a step as recorded, on `rank`, which ends it last, and as simulated, until the last rank then ends."""

    step: int | None
    rank: int | None
    before_ns: int
    after_ns: int


class ShortenedPath(msgspec.Struct, frozen=True, kw_only=True):
    """What the steps would be with some operators and kernels shorter, simulated: `shares` has by pattern the share of
    their time that is left, 0 to 1. `matched_count` pieces of work on devices and stretches of the host have such a
    name, on the path or not. `steps` are those that have a path. `parts` are what the paths are made of then, and
    `left_out_ns` the time of further ones.
    """

    shares: Mapping[str, float]
    matched_count: int
    before_ns: int
    after_ns: int
    steps: list[ShortenedStep]
    parts: list[CriticalPart]
    left_out_ns: int
    notes: list[str]


class CriticalPath(msgspec.Struct, frozen=True, kw_only=True):
    """The critical paths of the steps, and what they are made of, the most first. The parts and `left_out_ns`, the time
    of further ones, sum to the steps. `notes` say what the traces do not show. `shortened` is None unless asked for.
    """

    steps: list[CriticalStep]
    parts: list[CriticalPart]
    left_out_ns: int
    notes: list[str]
    shortened: ShortenedPath | None = None


class FileError(msgspec.Struct, frozen=True, kw_only=True):
    """A file that could not be used, with the reason and the cure."""

    file: str
    reason: str


class TraceReport(msgspec.Struct, frozen=True, kw_only=True):
    """The whole result, of all files. `comparison`, `critical_path` and `all_to_all` are None unless asked for;
    `cycles` are empty unless all cycles were (`cycle="all"`): everything else is of the last cycle then.
    """

    schema: int = SCHEMA
    ranks: list[RankReport]
    cross_rank: CrossRank | None
    advice: list[Advice]
    abstained: list[Abstention]
    errors: list[FileError]
    comparison: Comparison | None = None
    collective_sizes: list[CollectiveSizeRow] = []
    cycles: list[CycleRow] = []
    critical_path: CriticalPath | None = None
    all_to_all: AllToAlls | None = None

    @property
    def named_ranks(self) -> set[int]:
        """Return the ranks that findings name."""
        return (
            {rank for one in self.cross_rank.findings for rank in one.ranks} if self.cross_rank is not None else set()
        )

    def to_pandas(self) -> dict[str, Any]:
        """Return each table by name as a DataFrame (data_frames.py lists them); those of ranks have a column `rank`.

        Needs pandas (`pip install pandas`).
        """
        import pandas as pd  # noqa: PLC0415 - an optional dependency

        return {
            name: rows.to_pandas() if isinstance(rows, ColumnTable) else pd.DataFrame(rows)
            for name, rows in build_tables(self).items()
        }

    def _repr_html_(self) -> str:
        """Return what a notebook shows of the report: its verdict, and the first rows of its tables."""
        from rankscope.collector.reports.notebook_view import render_fragment  # noqa: PLC0415 - a layer above

        return render_fragment(self)

    def _repr_pretty_(self, printer: Any, _is_cycle: bool) -> None:  # noqa: FBT001 - the signature of IPython
        """Print a line in IPython, which would print every field, and keep that in the notebook."""
        from rankscope.collector.reports.trace_text import headline  # noqa: PLC0415 - a layer above

        printer.text(f"<TraceReport: {headline(self)}>")
