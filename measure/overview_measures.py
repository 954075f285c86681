"""Metrics of a run's ranks together, of its nodes and of its worst ranks.

The number of series grows with the nodes of a run, not with its ranks; docs/metrics.md has the bounds.
"""

from typing import Final

from rankscope.measure.exported import NODE, NOT_NEGATIVE, RATIO, RUN, WORST, WORST_RANKS, Measure, Range

_RANKS: Final = "collector: the run's ranks (RunSnapshot)"
_WINDOWS: Final = "agent: last full profiler windows (WindowBreakdown) of all live ranks"
_GPUS: Final = "agent: NVML, on AMD amdsmi (DeviceSample); each GPU once"
_DETECTION: Final = "collector: detection (docs/definitions.md section 4)"


def _run_ratio(part: str, what: str, formula: str) -> Measure:
    return Measure(
        f"rankscope_run_{part}_ratio", "gauge", "ratio", RUN,
        f"{what}, in the last profiler windows of all live ranks together.", formula, _WINDOWS, RATIO,
    )  # fmt: skip


def _of_gpus(name: str, unit: str, text: str, formula: str, valid_range: Range = NOT_NEGATIVE) -> Measure:
    return Measure(f"rankscope_node_{name}", "gauge", unit, NODE, text, formula, _GPUS, valid_range)


OVERVIEW: Final[tuple[Measure, ...]] = (
    Measure(
        "rankscope_run_stalled_ranks", "gauge", "", RUN,
        "Live ranks of the run that are stalled.", "count of rankscope_rank_stalled = 1", _RANKS, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_run_steps_total", "counter", "", RUN,
        "Training steps finished by the current process of the rank that has finished most.",
        "max over the ranks of rankscope_steps_total", _RANKS, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_run_step_median_seconds", "gauge", "seconds", RUN,
        "Median duration of the run's last steps.", "median over the ranks of rankscope_step_median_seconds", _RANKS,
        NOT_NEGATIVE,
    ),
    _run_ratio("compute", "Share of the time in which compute kernels ran", "sum |K| / sum |W|"),
    _run_ratio("communication", "Share of the time in which communication kernels ran", "sum |M| / sum |W|"),
    _run_ratio("overlap", "Share of the communication that was hidden behind compute", "sum |K and M| / sum |M|"),
    _run_ratio(
        "exposed_communication", "Share of the time in which only communication ran", "sum |M minus K| / sum |W|"
    ),
    _run_ratio("idle", "Share of the time in which the device was idle", "1 - sum |K or M or X| / sum |W|"),
    Measure(
        "rankscope_run_gpu_utilization_ratio", "gauge", "ratio", RUN,
        "Share of the last sample period in which a kernel ran, mean over the run's GPUs.",
        "mean of rankscope_gpu_utilization_ratio", _GPUS, RATIO,
    ),
    Measure(
        "rankscope_node_ranks", "gauge", "", NODE,
        "Live ranks of the run on the node, without silent ones.", "count", _RANKS, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_node_slowdown_ratio", "gauge", "ratio", NODE,
        "Slowdown of the slowest rank on the node.", "max of rankscope_rank_slowdown_ratio", _DETECTION, NOT_NEGATIVE,
    ),
    _of_gpus("gpus", "", "GPUs of the node that the run's live ranks use.", "count"),
    _of_gpus(
        "gpu_utilization_ratio", "ratio",
        "Share of the last sample period in which a kernel ran, mean over the node's GPUs.",
        "mean of rankscope_gpu_utilization_ratio", RATIO,
    ),
    _of_gpus(
        "gpu_memory_used_ratio", "ratio", "Memory in use over total memory, of the node's fullest GPU.",
        "max of memory.used / memory.total", RATIO,
    ),
    _of_gpus(
        "gpu_power_watts", "watts", "Power draw of the node's GPUs together.", "sum of rankscope_gpu_power_watts"
    ),
    _of_gpus(
        "gpu_temperature_celsius", "celsius", "Temperature of the node's hottest GPU.",
        "max of rankscope_gpu_temperature_celsius", (-50, 150),
    ),
    _of_gpus(
        "gpu_sm_clock_hertz", "hertz", "SM clock of the node's slowest GPU.",
        "min of rankscope_gpu_sm_clock_hertz",
    ),
    _of_gpus(
        "gpus_throttled", "", "GPUs of the node whose clocks are limited by heat, power or a fault.",
        "count of rankscope_gpu_throttled = 1",
    ),
    _of_gpus(
        "gpu_xid_errors", "", "Xid errors of the node's GPUs since the agents started to watch them.",
        "sum of rankscope_gpu_xid_errors_total",
    ),
    _of_gpus(
        "gpu_uncorrected_ecc_errors", "", "Uncorrected ECC errors of the node's GPUs since their driver was loaded.",
        'sum of rankscope_gpu_ecc_errors_total{kind="uncorrected"}',
    ),
    Measure(
        "rankscope_worst_rank_slowdown_ratio", "gauge", "ratio", WORST,
        f"Slowdown of the {WORST_RANKS} slowest live ranks of the run.",
        f"the {WORST_RANKS} largest of rankscope_rank_slowdown_ratio", _DETECTION, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_worst_rank_caused_wait_seconds", "gauge", "seconds", WORST,
        f"Waiting of all ranks in a step caused by each of the {WORST_RANKS} live ranks that caused the most.",
        f"the {WORST_RANKS} largest of rankscope_rank_caused_wait_seconds", _DETECTION, NOT_NEGATIVE,
    ),
)  # fmt: skip
