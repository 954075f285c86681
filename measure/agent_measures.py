"""Metrics of the training process and of the cost of the agent in it."""

from typing import Final

from rankscope.measure.exported import NOT_NEGATIVE, RANK, RATIO, Measure

_PROCESS: Final = "agent: the training process (HostSample)"
_LOSSES: Final = "agent: own counters (Losses)"
_COST: Final = "agent: its overhead meter (AgentCost)"


AGENT: Final[tuple[Measure, ...]] = (
    Measure(
        "rankscope_process_cpu_seconds_total", "counter", "seconds", RANK,
        "CPU time of the training process.", "user + system", _PROCESS, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_process_resident_memory_bytes", "gauge", "bytes", RANK,
        "Resident memory of the training process.", "RSS", _PROCESS, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_gc_pause_seconds_total", "counter", "seconds", RANK,
        "Time the training process spent in Python's garbage collector.", "sum of pauses", _PROCESS, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_agent_overhead_ratio", "gauge", "ratio", RANK,
        "Share of the training process's time that the agent uses.", "agent time / elapsed time",
        "agent: its overhead meter", NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_agent_part_seconds_total", "counter", "seconds", (*RANK, "part"),
        "CPU time of each part of the agent, on the training thread and on its own threads.",
        "sum of thread CPU time by part", _COST, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_agent_part_dropped", "gauge", "", (*RANK, "part"),
        "1 while the agent has disabled the part to stay within overhead_ratio_max, 0 while the part is in use.",
        "1 if disabled", _COST, RATIO,
    ),
    Measure(
        "rankscope_agent_window_interval_ratio", "gauge", "ratio", (*RANK, "kind"),
        "Interval between profiler windows over the configured one, by kind (full, light); above 1 to limit cost.",
        "interval / interval without regard to cost", _COST, (1, None),
    ),
    Measure(
        "rankscope_agent_part_changes_total", "counter", "", RANK,
        "Times the agent disabled or restored a part because of its cost.", "count", _COST, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_agent_errors_total", "counter", "", (*RANK, "part"),
        "Errors inside the agent, by part; training was not affected.", "count by part", _LOSSES, NOT_NEGATIVE,
    ),
)  # fmt: skip
