"""Rank dashboard: all metrics of one rank, beside the median of its run."""

from typing import Final

from grafana_foundation_sdk.builders.dashboard import Dashboard

from deploy.grafana.generator import thresholds
from deploy.grafana.generator.expressions import (
    WINDOWS,
    phases_of_run,
    rate,
    series,
    shares_of_rank,
    shares_of_run,
    use_of_peak,
)
from deploy.grafana.generator.frame import (
    LIVE_RUN,
    NODE,
    OF_RANK,
    OF_RUN,
    RANK,
    Placed,
    annotation,
    dashboard,
    lay_out,
    link_to,
    rank_variable,
    run_variable,
)
from deploy.grafana.generator.panels import (
    BYTES,
    BYTES_PER_S,
    CELSIUS,
    FLOPS,
    GPU_HOURS,
    HERTZ,
    NUMBER,
    PER_S,
    RATIO,
    SECONDS,
    THIRD,
    TIMES,
    WATTS,
    YELLOW,
    Query,
    areas,
    lines,
    number,
    too_high,
    words,
)

SLOWDOWN_COLORS: Final = too_high(yellow=thresholds.SLOWDOWN, red=thresholds.SLOWDOWN_LARGE)
OF_THIS, OF_MEDIAN = "rank $rank", "median of the run"
TO_NODE: Final = link_to(NODE, "The node", run="run", node="__field.labels.node", rank="rank")
INFO: Final = series("rank_info", OF_RANK)


HELP: Final = """\
**What is different about this rank?** Each graph has the rank beside the median of its run. *Slowdown* is its
compute without waits over that of its peer ranks. A slow rank waits less in collectives than the others, and
makes them wait. Open *GPU* for clocks and heat, *Process and agent* for the CPU. On the live page a capture of
it can be ordered."""


def build() -> Dashboard:
    """Return the dashboard."""
    page = dashboard(
        RANK,
        "rankscope / Rank",
        "One rank: all of its metrics, beside its run.",
        run_variable(),
        rank_variable(),
        live=LIVE_RUN + "&rank=${rank:percentencode}",
    )
    page.annotation(
        annotation(
            "Straggler",
            series("straggler", OF_RANK),
            title="Rank {{rank}} is slow",
            text="cause: {{cause}}",
            color=YELLOW,
        )
    )
    rows = (
        ("Now", _now()),
        ("Steps", _steps()),
        ("Device and communication", _device()),
        ("GPU", _gpu()),
        ("Memory", _memory()),
        ("Process and agent", _process()),
    )
    return lay_out(page, HELP, rows, is_open=2)


def _now() -> list[Placed]:
    return [
        words("Node", "Where it runs.", Query(f"max by (node) ({INFO})", "{{node}}"), link=TO_NODE),
        words("GPU", "Model of its GPU.", Query(f"max by (gpu_model) ({INFO})", "{{gpu_model}}")),
        number(
            "Slowdown",
            "Compute time excluding waits over that of the peer ranks; 1 is equal.",
            TIMES,
            series("rank_slowdown_ratio", OF_RANK),
            colors=SLOWDOWN_COLORS,
            decimals=3,
        ),
        words(
            "Cause",
            "Cause of the open straggler finding, if there is one.",
            Query(series("straggler", OF_RANK), "{{cause}}"),
        ),
        number(
            "Caused wait a step",
            "Waiting of all ranks that originated at this rank, per step.",
            SECONDS,
            series("rank_caused_wait_seconds", OF_RANK),
        ),
        number(
            "Lost so far",
            "GPU time the run has lost because of this rank.",
            GPU_HOURS,
            f"(sum({series('lost_gpu_seconds_total', OF_RANK)}) or vector(0)) / 3600",
            decimals=2,
        ),
    ]


def beside_median(title: str, description: str, unit: str, name: str) -> Placed:
    """Return a panel with a gauge of the rank and its median over the run."""
    return lines(
        title,
        description,
        unit,
        Query(series(name, OF_RANK), OF_THIS),
        Query(f"quantile(0.5, {series(name, OF_RUN)})", OF_MEDIAN),
        width=THIRD,
    )


def rate_beside_median(title: str, description: str, unit: str, name: str) -> Placed:
    """Return a panel with the rate of a counter of the rank and the median of that rate over the run."""
    return lines(
        title,
        description,
        unit,
        Query(rate(name, OF_RANK), OF_THIS),
        Query(f"quantile(0.5, {rate(name, OF_RUN)})", OF_MEDIAN),
        width=THIRD,
    )


def _steps() -> list[Placed]:
    return [
        lines(
            "Slowdown",
            "Compute time excluding waits over that of the peer ranks, with the maximum and median of the run.",
            TIMES,
            Query(series("rank_slowdown_ratio", OF_RANK), OF_THIS),
            Query(f"max({series('rank_slowdown_ratio', OF_RUN)})", "slowest of the run"),
            Query(f"quantile(0.5, {series('rank_slowdown_ratio', OF_RUN)})", OF_MEDIAN),
            colors=SLOWDOWN_COLORS,
            width=THIRD,
        ),
        beside_median("Step", "Median of the last steps.", SECONDS, "step_median_seconds"),
        beside_median(
            "Caused wait a step",
            "Waiting of all ranks caused by this rank, per step.",
            SECONDS,
            "rank_caused_wait_seconds",
        ),
        areas("Phases of its steps", "Mean duration by the host's clock.", SECONDS, _phases()),
        areas("Phases of all ranks' steps", "Mean duration over all ranks, for comparison.", SECONDS, phases_of_run()),
        lines(
            "Phases on the device",
            "Mean duration in the steps that were timed on the device. The end of backward is a part of the backward.",
            SECONDS,
            Query(
                f"sum by (phase) ({rate('device_phase_seconds_total', OF_RANK)})"
                f" / on () group_left () sum({rate('device_steps_total', OF_RANK)})",
                "{{phase}}",
            ),
            Query(
                f"{rate('device_tail_seconds_total', OF_RANK)} / {rate('device_tail_steps_total', OF_RANK)}",
                "end of backward: waiting for communication",
            ),
            width=THIRD,
        ),
        lines(
            "Samples a second",
            "Samples of this rank, where the batch size is known.",
            PER_S,
            Query(rate("samples_total", OF_RANK), "samples"),
            width=THIRD,
        ),
        lines(
            "Tokens a second",
            "Tokens of this rank, padding included.",
            PER_S,
            Query(rate("tokens_total", OF_RANK), "tokens"),
            width=THIRD,
        ),
        use_of_peak(
            "Use of the device's peak",
            series("mfu_ratio", OF_RANK),
            series("hfu_ratio", OF_RANK),
            "of the last minute of steps",
        ),
        lines(
            "FLOPs a second",
            "FLOPs that the model needed, and those that were executed, recomputation included.",
            FLOPS,
            Query(rate("model_flops_total", OF_RANK), "model"),
            Query(rate("executed_flops_total", OF_RANK), "executed"),
            width=THIRD,
        ),
    ]


def _phases() -> Query:
    return Query(
        f"sum by (phase) ({rate('step_phase_seconds_total', OF_RANK)})"
        f" / on () group_left () sum({rate('steps_total', OF_RANK)})",
        "{{phase}}",
    )


def _device() -> list[Placed]:
    step_seconds = f"sum({rate('step_seconds_total', OF_RANK)})"
    windows = f"sum({rate('device_window_seconds_total', OF_RANK, WINDOWS)})"
    wait, transfer = (
        Query(
            f"sum by (op) ({rate(f'collective_{part}_seconds_total', OF_RANK)}) / on () group_left () {step_seconds}",
            f"{{{{op}}}}: {part}",
        )
        for part in ("wait", "transfer")
    )
    return [
        areas(
            "Where its device's time goes",
            "Share of its profiler windows, over ten minutes.",
            RATIO,
            *shares_of_rank(),
            parts_of_whole=True,
        ),
        areas(
            "Where all devices' time goes",
            "Share of all ranks' profiler windows, for comparison.",
            RATIO,
            *shares_of_run(),
            parts_of_whole=True,
        ),
        areas(
            "Waits of its host for its GPU",
            "Share of its profiler windows spent in blocking calls, by call. The live page names the source lines.",
            RATIO,
            Query(f"{rate('host_sync_seconds_total', OF_RANK, WINDOWS)} / on () group_left () {windows}", "{{call}}"),
        ),
        lines(
            "Copies from the host",
            "Share of its profiler windows in which it copied from its host's memory and computed nothing, by the kind "
            "of memory. Copies from pageable memory take longer, and the host waits for them (docs/copies.md).",
            RATIO,
            Query(
                f"{rate('exposed_host_copy_seconds_total', OF_RANK, WINDOWS)} / on () group_left () {windows}",
                "{{memory}}",
            ),
            Query(f"quantile(0.5, {series('exposed_host_copy_ratio', OF_RUN)})", OF_MEDIAN),
            colors=too_high(yellow=thresholds.HOST_COPY),
        ),
        lines(
            "Speed of copies from the host",
            "Bytes per second while it copied, by the kind of memory.",
            BYTES_PER_S,
            Query(
                f"{rate('host_copy_bytes_total', OF_RANK, WINDOWS)}"
                f" / {rate('host_copy_seconds_total', OF_RANK, WINDOWS)}",
                "{{memory}}",
            ),
        ),
        lines(
            "Collectives",
            "Share of its steps spent waiting for later members of a group, and transferring data. A straggler waits "
            "less than the others.",
            RATIO,
            wait,
            transfer,
        ),
        lines(
            "Bus bandwidth",
            "Bus bandwidth of its last matched collectives, as defined by nccl-tests.",
            BYTES_PER_S,
            Query(series("collective_bus_bandwidth_bytes_per_second", OF_RANK), "{{op}} in {{group}}"),
        ),
        lines(
            "Bandwidth by NCCL",
            "Bus bandwidth of NCCL's last operations by its Inspector plugin, waiting for later ranks included. Empty "
            "without its dumps.",
            BYTES_PER_S,
            Query(series("nccl_bus_bandwidth_bytes_per_second", OF_RANK), "{{op}} in {{communicator}}"),
        ),
        lines(
            "Data in collectives",
            "Bytes a second, counted as in nccl-tests.",
            BYTES_PER_S,
            Query(f"sum by (op) ({rate('collective_bytes_total', OF_RANK)})", "{{op}}"),
        ),
        lines(
            "Collective calls",
            "Calls a second.",
            PER_S,
            Query(f"sum by (op) ({rate('collectives_total', OF_RANK)})", "{{op}}"),
        ),
    ]


def _gpu() -> list[Placed]:
    return [
        beside_median("SM clock", "SM clock of its GPU.", HERTZ, "gpu_sm_clock_hertz"),
        beside_median("Memory clock", "Memory clock of its GPU.", HERTZ, "gpu_memory_clock_hertz"),
        lines(
            "Power",
            "Power draw, its limit, and the median draw of the run.",
            WATTS,
            Query(series("gpu_power_watts", OF_RANK), OF_THIS),
            Query(series("gpu_power_limit_watts", OF_RANK), "its limit"),
            Query(f"quantile(0.5, {series('gpu_power_watts', OF_RUN)})", OF_MEDIAN),
            width=THIRD,
        ),
        beside_median("Temperature", "Temperature of its GPU.", CELSIUS, "gpu_temperature_celsius"),
        beside_median("Utilization", "Share of the time in which a kernel ran.", RATIO, "gpu_utilization_ratio"),
        beside_median("Tensor cores", "Share of the time in which they were active.", RATIO, "gpu_tensor_active_ratio"),
        lines(
            "NVLink",
            "Bytes a second over all links of the GPU.",
            BYTES_PER_S,
            Query(rate("gpu_nvlink_bytes_total", OF_RANK), "{{direction}}"),
            width=THIRD,
        ),
        lines(
            "PCIe",
            "Bytes a second over the PCIe bus of the GPU.",
            BYTES_PER_S,
            Query(rate("gpu_pcie_bytes_total", OF_RANK), "{{direction}}"),
            width=THIRD,
        ),
        lines(
            "Throttling and faults",
            "1 while the clocks are limited; errors count since the agent or the driver started.",
            NUMBER,
            Query(series("gpu_throttled", OF_RANK), "throttled"),
            Query(series("gpu_xid_errors_total", OF_RANK), "Xid errors"),
            Query(series("gpu_ecc_errors_total", OF_RANK), "ECC, {{kind}}"),
            width=THIRD,
        ),
    ]


def _memory() -> list[Placed]:
    return [
        lines(
            "GPU memory by torch's allocator",
            "Reserved from the driver, allocated to tensors, and free in partly used blocks that cannot be returned "
            "(fragments); beside the memory of the GPU.",
            BYTES,
            Query(series("torch_memory_reserved_bytes", OF_RANK), "reserved"),
            Query(series("torch_memory_active_bytes", OF_RANK), "active"),
            Query(series("torch_memory_allocated_bytes", OF_RANK), "allocated"),
            Query(series("torch_memory_allocated_peak_bytes", OF_RANK), "allocated, peak so far"),
            Query(series("torch_memory_inactive_split_bytes", OF_RANK), "fragments"),
            Query(series("gpu_memory_total_bytes", OF_RANK), "of the GPU"),
            Query(series("gpu_memory_headroom_bytes", OF_RANK), "left for tensors"),
        ),
        lines(
            "Driver memory calls",
            "Steady training makes none; a retry stalls the GPU.",
            PER_S,
            Query(rate("torch_memory_device_allocs_total", OF_RANK), "taken"),
            Query(rate("torch_memory_device_frees_total", OF_RANK), "given back"),
            Query(rate("torch_memory_retries_total", OF_RANK), "retries"),
            Query(rate("torch_memory_ooms_total", OF_RANK), "out of memory"),
        ),
    ]


def _process() -> list[Placed]:
    return [
        rate_beside_median("CPU", "CPU cores used by the training process.", NUMBER, "process_cpu_seconds_total"),
        rate_beside_median(
            "Wait for a CPU core",
            "Share of the time in which the training thread was ready to run and had no CPU core: the machine is busy "
            "with something else, or has too few cores.",
            RATIO,
            "process_core_wait_seconds_total",
        ),
        beside_median(
            "Stopped by the CPU limit",
            "Share of the periods of its container's CPU limit in which the limit stopped the training process.",
            RATIO,
            "process_throttled_ratio",
        ),
        rate_beside_median(
            "Wait for block I/O",
            "Share of the time in which the training thread waited for a disk; only where kernel.task_delayacct is on.",
            RATIO,
            "process_block_io_wait_seconds_total",
        ),
        rate_beside_median(
            "Pages read from disk",
            "Pages of memory that the training process waited for until they were read from a disk.",
            PER_S,
            "process_major_faults_total",
        ),
        lines(
            "Speed of saves",
            "Bytes that it has saved for each second of saving; docs/loops.md has what counts as a save.",
            BYTES_PER_S,
            Query(f"{rate('saved_bytes_total', OF_RANK)} / {rate('save_seconds_total', OF_RANK)}", OF_THIS),
            width=THIRD,
        ),
        lines("Saves", "Saves so far.", NUMBER, Query(series("saves_total", OF_RANK), OF_THIS), width=THIRD),
        beside_median(
            "Resident memory", "Resident memory of the training process.", BYTES, "process_resident_memory_bytes"
        ),
        rate_beside_median(
            "Garbage collection", "Share of the time in Python's garbage collector.", RATIO, "gc_pause_seconds_total"
        ),
        rate_beside_median(
            "Compilation", "Share of the time in torch.compile; docs/compilation.md.", RATIO, "compile_seconds_total"
        ),
        lines(
            "Compilations",
            "Frames compiled so far, those of them that were compiled again, and what came from caches.",
            NUMBER,
            Query(series("compilations_total", OF_RANK), "compiled"),
            Query(series("recompilations_total", OF_RANK), "compiled again"),
            Query(series("compile_cache_hits_total", OF_RANK), "from a cache"),
            width=THIRD,
        ),
        *_agent(),
        *_windows(),
    ]


def _agent() -> list[Placed]:
    return [
        lines(
            "Agent overhead",
            "Agent time over training time so far, and the maximum of the run.",
            RATIO,
            Query(series("agent_overhead_ratio", OF_RANK), OF_THIS),
            Query(f"max({series('agent_overhead_ratio', OF_RUN)})", "most of the run"),
            colors=too_high(red=thresholds.OVERHEAD),
            width=THIRD,
        ),
        lines(
            "Agent overhead by part",
            "CPU seconds a second of each part; docs/cost.md explains the parts.",
            RATIO,
            Query(rate("agent_part_seconds_total", OF_RANK), "{{part}}"),
            width=THIRD,
        ),
        lines(
            "Lost records and reports",
            "Step records and reports of this rank that were lost; docs/delivery.md explains the reasons.",
            PER_S,
            Query(rate("step_records_lost_total", OF_RANK), "steps: {{reason}}"),
            Query(rate("reports_dropped_total", OF_RANK), "reports dropped"),
            Query(rate("report_gaps_total", OF_RANK), "reports that never came"),
            Query(rate("device_timings_skipped_total", OF_RANK), "times on the device: {{reason}}"),
            Query(rate("device_tails_skipped_total", OF_RANK), "end of backward on the device: {{reason}}"),
            width=THIRD,
        ),
        lines(
            "Time since last report",
            "Time since the last report of the rank arrived.",
            SECONDS,
            Query(f"time() - {series('rank_last_report_timestamp_seconds', OF_RANK)}", OF_THIS),
            width=THIRD,
        ),
        lines(
            "Disabled parts of the agent",
            "1 while the agent has disabled a part to stay within its overhead budget.",
            NUMBER,
            Query(series("agent_part_dropped", OF_RANK), "{{part}}"),
            most=1,
            width=THIRD,
        ),
    ]


def _windows() -> list[Placed]:
    return [
        lines(
            "Profiler window interval",
            "Interval between profiler windows over the configured one; above 1 to limit their cost.",
            TIMES,
            Query(series("agent_window_interval_ratio", OF_RANK), "{{kind}}"),
            width=THIRD,
        ),
        lines(
            "Age of the newest profiler window",
            "By the rank's clock, at its last report. The compute, communication and idle ratios are absent when it is "
            "old (docs/definitions.md).",
            SECONDS,
            Query(series("window_age_seconds", OF_RANK), OF_THIS),
            width=THIRD,
        ),
        lines(
            "Steps in profiler windows",
            "Share of the steps since the first of the last windows that the ratios stand on.",
            RATIO,
            Query(series("window_step_share_ratio", OF_RANK), OF_THIS),
            width=THIRD,
        ),
        lines(
            "Effect of the agent on the steps",
            "Step time over that before, minus 1. attached, detached: outside of full windows, since the first one and "
            "since CUPTI was detached; timed: since torch times collectives (docs/cost.md).",
            RATIO,
            Query(series("agent_step_effect_ratio", OF_RANK), "{{state}}"),
            width=THIRD,
        ),
    ]
