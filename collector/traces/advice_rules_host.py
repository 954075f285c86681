"""Judge the host: a device that waits for launches, for data, or for a host that waits for the device."""

from rankscope.collector.detect.run_rules.thresholds import DATA_RATIO_MIN, IDLE_RATIO_MIN, percent
from rankscope.collector.detect.suggestions import FEED_FASTER, FREE_THE_ALLOCATOR, FREE_THE_HOST, LAUNCH_AHEAD
from rankscope.collector.traces.advice_rules import (
    no_device,
    of_rank,
    on_rank,
    ranks_of,
    severity_of,
    window_of,
)
from rankscope.collector.traces.judged_time import LONG_STEP_RATIO_MIN
from rankscope.collector.traces.report import UNKNOWN_DEVICE, Abstention, Advice, RankReport, SynchronizationRow
from rankscope.measure.units import format_duration

# -- low_gpu_utilization ----------------------------------------------------------------------------------------------


def judge_gpu_utilization(report: RankReport) -> Advice | Abstention | None:
    """Judge whether the device is idle because the host does not keep up.

    Waits for data and for the device itself do not count: data_bound and blocking_sync judge them.
    """
    key, signs, window_ns = "low_gpu_utilization", report.signs, window_of(report)
    if signs.idle_ns is None or signs.idle_launch_ns is None or signs.idle_allocation_ns is None or not window_ns:
        return no_device(key, report)
    host_ratio = (signs.idle_launch_ns + signs.idle_allocation_ns) / window_ns
    if host_ratio < IDLE_RATIO_MIN:
        return None
    allocates = signs.idle_allocation_ns > signs.idle_launch_ns
    doing = "allocated or freed device memory" if allocates else "launched its work too late"
    return Advice(
        key=key,
        severity=severity_of(host_ratio / 2),
        ranks=ranks_of(report),
        sentence=(
            f"The GPU{of_rank(report)} was idle {percent(signs.idle_ns / window_ns)} of the time, "
            f"{percent(host_ratio)} because the host {doing}."
        ),
        action=FREE_THE_ALLOCATOR if allocates else f"{FREE_THE_HOST} {_PROFILER_SLOWS}",
        evidence={
            "host_idle_ratio": host_ratio,
            "host_idle_ratio_min": IDLE_RATIO_MIN,
            "cause": "allocation" if allocates else "launch",
            "idle_ratio": signs.idle_ns / window_ns,
            "idle_launch_ns": signs.idle_launch_ns,
            "idle_allocation_ns": signs.idle_allocation_ns,
            "idle_data_loader_ns": signs.idle_data_loader_ns,
            "idle_synchronization_ns": signs.idle_synchronization_ns,
        },
    )


_PROFILER_SLOWS = "The profiler slows the host too: compare the step's time without."

# -- small_kernels ----------------------------------------------------------------------------------------------------

SHORT_KERNEL_RATIO_MIN = 0.5
"""The median kernel is shorter than its launch."""
SMALL_KERNEL_IDLE_RATIO_MIN = 0.15
"""Share of the time that the device waits for launches: short kernels cost nothing while its queue is full."""
LAUNCHES_MIN = 50
"""With fewer kernels each one is more than 2 % of the share."""


def judge_small_kernels(report: RankReport) -> Advice | Abstention | None:
    """Judge whether most kernels run shorter than their launch takes, while the device waits for launches."""
    key, signs = "small_kernels", report.signs
    launched, short, idle_ns, window_ns = (
        signs.launched_kernel_count,
        signs.short_kernel_count,
        signs.idle_launch_ns,
        window_of(report),
    )
    if launched is None or short is None or idle_ns is None or not window_ns:
        return no_device(key, report)
    if launched < LAUNCHES_MIN:
        return Abstention(key=key, reason=f"only {launched} kernels with their launches, fewer than {LAUNCHES_MIN}")
    if short / launched < SHORT_KERNEL_RATIO_MIN or idle_ns / window_ns < SMALL_KERNEL_IDLE_RATIO_MIN:
        return None
    return Advice(
        key=key,
        severity="warning",
        ranks=ranks_of(report),
        sentence=(
            f"{percent(short / launched)} of the {launched:,} kernels{of_rank(report)} ran shorter than the call that "
            f"launched them, and the GPU waited for launches {percent(idle_ns / window_ns)} of the time."
        ),
        action=(
            "Launch fewer and larger kernels: torch.compile or CUDA graphs, fused optimizers (fused=True), fused "
            "attention and normalization, a larger batch."
        ),
        evidence={
            "short_kernel_ratio": short / launched,
            "short_kernel_ratio_min": SHORT_KERNEL_RATIO_MIN,
            "idle_launch_ratio": idle_ns / window_ns,
            "idle_launch_ratio_min": SMALL_KERNEL_IDLE_RATIO_MIN,
            "launched_kernel_count": launched,
            "launch_call_ns": signs.launch_call_ns,
        },
    )


# -- data_bound -------------------------------------------------------------------------------------------------------


def judge_data_loading(report: RankReport) -> Advice | Abstention | None:
    """Judge whether the steps wait for the data loader: by the device's idle time in it, else by the loader's time."""
    key, signs = "data_bound", report.signs
    if report.device == UNKNOWN_DEVICE:
        return no_device(key)
    if not report.steps:
        return Abstention(key=key, reason="no steps in the trace (profiler.step() was not called)")
    if not signs.window_ns:
        return no_device(key, report)
    if not signs.data_loader_count:
        return Abstention(key=key, reason="no DataLoader in the trace: other sources of data cannot be judged")
    loader_ns = signs.data_loader_host_ns
    waited_ns = loader_ns if signs.idle_data_loader_ns is None else signs.idle_data_loader_ns
    ratio = waited_ns / signs.window_ns
    if ratio < DATA_RATIO_MIN:
        return None
    pageable = any("Pageable -> Device" in row.name for row in report.copies)
    waits = "The steps" if signs.idle_data_loader_ns is None else "The GPU"
    return Advice(
        key=key,
        severity=severity_of(ratio),
        ranks=ranks_of(report),
        sentence=(
            f"{waits}{of_rank(report)} waited for the data loader {percent(ratio)} of the time, "
            f"{format_duration(waited_ns / max(signs.step_count, 1))} in a step."
        ),
        action=_advise_on_data(single_process=signs.single_process_loader, pageable=pageable),
        evidence={
            "data_loader_ratio": ratio,
            "data_loader_ratio_min": DATA_RATIO_MIN,
            "data_loader_host_ns": loader_ns,
            "data_loader_waited_ns": waited_ns,
            "batch_count": signs.data_loader_count,
        },
    )


def _advise_on_data(*, single_process: bool | None, pageable: bool) -> str:
    workers = (
        "The loader has no workers: set num_workers (and persistent_workers=True), so that batches are made during the "
        "step."
        if single_process
        else FEED_FASTER
    )
    pin = " Batches are copied from pageable memory: set pin_memory=True and copy with non_blocking=True."
    return workers + (pin if pageable else "")


# -- blocking_sync ----------------------------------------------------------------------------------------------------

BLOCKED_RATIO_MIN = 0.05
"""Share of the window in which the host could have launched ahead."""


def judge_blocking_sync(report: RankReport) -> Advice | Abstention | None:
    """Judge whether the host waits for the device instead of launching ahead. The time blocked costs at most the
    device's idle time without launches: a host that waits with a full queue loses nothing.
    """
    key, signs, window_ns = "blocking_sync", report.signs, window_of(report)
    if signs.blocked_ns is None or signs.idle_launch_ns is None or signs.idle_synchronization_ns is None:
        return no_device(key, report)
    cost_ns = min(signs.blocked_ns, signs.idle_launch_ns + signs.idle_synchronization_ns)
    if not window_ns or cost_ns / window_ns < BLOCKED_RATIO_MIN:
        return None
    rows = own_synchronizations(report)
    worst = rows[0] if rows else None
    where = describe_synchronization(worst) if worst is not None else "copies from or to pageable memory"
    return Advice(
        key=key,
        severity=severity_of(cost_ns / window_ns),
        ranks=ranks_of(report),
        sentence=(
            f"{on_rank(report)}the host waited for the GPU for {format_duration(signs.blocked_ns)} instead of "
            f"launching ahead, which cost up to {percent(cost_ns / window_ns)} of the time; mostly in {where}."
        ),
        action=f"{LAUNCH_AHEAD} torch.cuda.set_sync_debug_mode('warn') names the lines.",
        evidence={
            "blocked_cost_ratio": cost_ns / window_ns,
            "blocked_cost_ratio_min": BLOCKED_RATIO_MIN,
            "blocked_ns": signs.blocked_ns,
            "call": worst.name if worst else None,
            "operator": worst.operator if worst else None,
            "source": worst.source if worst else None,
            "count": worst.count if worst else None,
            "total_ns": worst.total_ns if worst else None,
        },
    )


def own_synchronizations(report: RankReport) -> list[SynchronizationRow]:
    """Return the synchronizations by time, without the profiler's own last one."""
    left_ns = report.signs.profiler_synchronization_ns
    rows = []
    for row in report.synchronizations:
        is_profilers = left_ns is not None and row.name.endswith("DeviceSynchronize") and row.max_ns >= left_ns
        if is_profilers:
            left_ns = None
        if not (is_profilers and row.count == 1):
            rows.append(row)
    return rows


def describe_synchronization(row: SynchronizationRow) -> str:
    """`aten::item (cudaStreamSynchronize, 12 times, 1.1 ms) at train.py(44): step`."""
    where = f" at {row.source}" if row.source else ""
    times = f"{row.count:,} time{'s' if row.count != 1 else ''}, {format_duration(row.total_ns)}"
    return f"{row.operator} ({row.name}, {times}){where}" if row.operator else f"{row.name} ({times}){where}"


# -- long_step --------------------------------------------------------------------------------------------------------


def judge_long_steps(report: RankReport) -> Advice | None:
    """Judge whether a few steps took many times as long as the others: one step must not stand for a trace."""
    long, signs = report.signs.long_steps, report.signs
    if not long:
        return None
    worst = max(long, key=lambda one: one.window_ns)
    others = f"the other {signs.step_count}" if signs.step_count > 1 else "the other one"
    inside = f" in {worst.range_name}" if worst.range_name is not None else ""
    took = f"took {format_duration(worst.window_ns)}{inside}"
    more = f", {len(long) - 1} more took long too" if len(long) > 1 else ""
    idle = ""
    if signs.idle_ns is not None and signs.window_ns:
        idle = f"; there the GPU was idle {percent(signs.idle_ns / signs.window_ns)} of the time"
    ratio = worst.window_ns / max(1, worst.usual_ns)
    return Advice(
        key="long_step",
        severity="hint",
        ranks=ranks_of(report),
        sentence=(
            f"Step {worst.step}{of_rank(report)} {took}{more}: {ratio:,.0f} times as long as {others} in the median. "
            f"Shares of idle time are of {others} only{idle}."
        ),
        action=(
            "If it compiles, loads or captures for the first time, record later steps: schedule(wait=..., warmup=...). "
            "If it comes again, such as saving or evaluating, move it off the training thread or do it less often."
        ),
        evidence={
            "step_ratio": ratio,
            "step_ratio_min": LONG_STEP_RATIO_MIN,
            "step": worst.step,
            "window_ns": worst.window_ns,
            "usual_ns": worst.usual_ns,
            "idle_ns": worst.idle_ns,
            "range": worst.range_name,
            "range_ns": worst.range_ns,
            "long_step_count": len(long),
        },
    )
