"""The measures of the training process and of what the agent in it costs."""

from typing import Final

from rankscope.measure.exported import NOT_NEGATIVE, RANK, RATIO, Measure

_PROCESS: Final = "agent: the training process (HostSample)"
_LOSSES: Final = "agent: its own count (Losses)"
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
        "Part of the time that the agent itself costs the training process.", "own time / elapsed time",
        "agent: its overhead meter", NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_agent_part_seconds_total", "counter", "seconds", (*RANK, "part"),
        "Own CPU time of each part of the agent, in the training thread and beside it.",
        "sum of thread CPU time by part", _COST, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_agent_part_dropped", "gauge", "", (*RANK, "part"),
        "1 while the agent does without the part to keep its cost within overhead_ratio_max, 0 while it does not.",
        "1 if dropped", _COST, RATIO,
    ),
    Measure(
        "rankscope_agent_window_interval_ratio", "gauge", "ratio", (*RANK, "kind"),
        "How many times further apart profiler windows are, because of their cost, than they would be; full or light.",
        "distance / distance without regard to cost", _COST, (1, None),
    ),
    Measure(
        "rankscope_agent_part_changes_total", "counter", "", RANK,
        "How often the agent has dropped a part or taken it back because of its cost.", "count", _COST, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_agent_errors_total", "counter", "", (*RANK, "part"),
        "Errors of the agent's own parts; training was not affected.", "count by part", _LOSSES, NOT_NEGATIVE,
    ),
)  # fmt: skip
