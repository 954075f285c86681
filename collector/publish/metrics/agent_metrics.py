"""Metrics of the training process, of the cost of the agent in it, and of losses between a rank and the collector.

docs/delivery.md explains the losses. Per rank, at any time, with the prefix `step_records_`: `created = published +
acked_by_previous_collector + lost (all reasons) + buffered`.
"""

from collections.abc import Callable, Mapping
from typing import Final

from rankscope.collector.publish.metrics.measures import NOT_NEGATIVE, RANK, RATIO, Measure
from rankscope.collector.publish.metrics.rank_columns import (
    ACCOUNTED_RANKS,
    KNOWN_RANKS,
    Number,
    RankColumns,
    of_host,
    of_step_records,
    per_rank,
    per_rank_and,
    to_seconds,
)
from rankscope.collector.runs.ratio_basis import read_change
from rankscope.collector.runs.snapshot import RankSnapshot
from rankscope.measure.bounds import to_count
from rankscope.measure.records import Compilations, SavedLine
from rankscope.measure.units import ns_to_s

_PROCESS: Final = "agent: the training process (HostSample)"
_SAVES: Final = "agent: saves (SavedLine)"
_LOSSES: Final = "agent: own counters (Losses)"
_COST: Final = "agent: its overhead meter (AgentCost)"
_ADMISSION: Final = "collector: admission"
_COMPILED: Final = "agent: torch's record of each compilation (Compilations)"
_ACCOUNT: Final = "collector: step records of a rank process (StepAccounting)"


def _part_seconds(rank: RankSnapshot) -> Mapping[str, Number]:
    return {part: ns_to_s(nanoseconds) for part, nanoseconds in rank.cost.part_ns.items()}


def _window_intervals(rank: RankSnapshot) -> Mapping[str, Number]:
    return {"full": rank.cost.full_stretch_ratio, "light": rank.cost.light_stretch_ratio}


def _step_effects(rank: RankSnapshot) -> Mapping[str, Number]:
    cost = rank.cost
    ratios = {"attached": cost.attached_ratio, "detached": cost.detached_ratio, "timed": cost.timing_ratio}
    return {state: read_change(ratio) for state, ratio in ratios.items()}


def _of_compilations(read: Callable[[Compilations], Number]) -> RankColumns:
    """Return the reader of a number of a rank that has compiled anything."""

    def read_rank(rank: RankSnapshot) -> Number:
        seen = rank.compilations
        return read(seen) if seen is not None and seen.duration_ns else None

    return per_rank(read_rank)


def _of_saves(read: Callable[[SavedLine], int | None]) -> RankColumns:
    """Return the reader of a sum over the saves of a rank; None where it has none, or the value of one is not known."""

    def read_rank(rank: RankSnapshot) -> Number:
        values = [read(one) for one in rank.saves or ()]
        return None if not values or None in values else to_count(sum(one or 0 for one in values))

    return per_rank(read_rank)


def _save_seconds(rank: RankSnapshot) -> Number:
    return ns_to_s(sum(one.duration_ns for one in rank.saves)) if rank.saves else None


AGENT: Final[tuple[Measure, ...]] = (
    Measure(
        "rankscope_process_cpu_seconds_total", "counter", "seconds", RANK,
        "CPU time of the training process.", "user + system", _PROCESS, NOT_NEGATIVE,
        of_host(lambda host: to_seconds(host.cpu_ns)),
    ),
    Measure(
        "rankscope_process_core_wait_seconds_total", "counter", "seconds", RANK,
        "Time the main thread of the training process, which trains, was ready to run and had no CPU core.",
        "wait in the run queue; absent where the kernel does not count it", _PROCESS, NOT_NEGATIVE,
        of_host(lambda host: to_seconds(host.run_queue_wait_ns)),
    ),
    Measure(
        "rankscope_process_throttled_ratio", "gauge", "", RANK,
        "Share of the periods of its container's CPU limit in which the limit stopped the training process.",
        "nr_throttled / nr_periods of cpu.stat since the previous sample; absent without a limit at the agent's start, "
        "which is when it is looked up", _PROCESS, RATIO,
        of_host(lambda host: host.throttled_ratio),
    ),
    Measure(
        "rankscope_process_block_io_wait_seconds_total", "counter", "seconds", RANK,
        "Time the main thread of the training process, which trains, waited for block I/O and for pages from swap.",
        "delayacct_blkio_ticks; absent where the kernel does not count it (kernel.task_delayacct)", _PROCESS,
        NOT_NEGATIVE,
        of_host(lambda host: to_seconds(host.block_io_wait_ns)),
    ),
    Measure(
        "rankscope_process_major_faults_total", "counter", "", RANK,
        "Pages that the training process had to wait for until they were read from a disk.", "ru_majflt", _PROCESS,
        NOT_NEGATIVE,
        of_host(lambda host: host.major_faults),
    ),
    Measure(
        "rankscope_saves_total", "counter", "", RANK,
        "Saves by torch.save, torch.distributed.checkpoint, safetensors or Lightning, also in the background.",
        "count", _SAVES, NOT_NEGATIVE,
        _of_saves(lambda one: one.count),
    ),
    Measure(
        "rankscope_save_seconds_total", "counter", "seconds", RANK,
        "Time of these saves, without waits for other ranks.", "from begin to end", _SAVES, NOT_NEGATIVE,
        per_rank(_save_seconds),
    ),
    Measure(
        "rankscope_saved_bytes_total", "counter", "bytes", RANK,
        "Bytes that these saves have written; absent where they are not known of one.", "size of the files", _SAVES,
        NOT_NEGATIVE,
        _of_saves(lambda one: one.bytes),
    ),
    Measure(
        "rankscope_process_resident_memory_bytes", "gauge", "bytes", RANK,
        "Resident memory of the training process.", "RSS", _PROCESS, NOT_NEGATIVE,
        of_host(lambda host: host.resident_bytes),
    ),
    Measure(
        "rankscope_gc_pause_seconds_total", "counter", "seconds", RANK,
        "Time the training process spent in Python's garbage collector.", "sum of pauses", _PROCESS, NOT_NEGATIVE,
        of_host(lambda host: to_seconds(host.gc_pause_ns)),
    ),
    Measure(
        "rankscope_compile_seconds_total", "counter", "seconds", RANK,
        "Time the training process spent in torch.compile, backward included.", "sum over compilations", _COMPILED,
        NOT_NEGATIVE,
        _of_compilations(lambda seen: ns_to_s(seen.duration_ns)),
    ),
    Measure(
        "rankscope_compilations_total", "counter", "", RANK,
        "Frames that torch.compile compiled in the training process, those compiled again included.",
        "count", _COMPILED, NOT_NEGATIVE,
        _of_compilations(lambda seen: seen.compiled),
    ),
    Measure(
        "rankscope_recompilations_total", "counter", "", RANK,
        "Frames that torch.compile compiled again, as a guard had failed.", "count", _COMPILED, NOT_NEGATIVE,
        _of_compilations(lambda seen: seen.recompiled),
    ),
    Measure(
        "rankscope_compile_cache_hits_total", "counter", "", RANK,
        "Compilations that torch found in one of its caches; absent where none was looked up.", "count", _COMPILED,
        NOT_NEGATIVE,
        _of_compilations(lambda seen: seen.cached if seen.cached + seen.uncached else None),
    ),
    Measure(
        "rankscope_agent_overhead_ratio", "gauge", "ratio", RANK,
        "Share of the training process's time that the agent uses.", "agent time / elapsed time",
        "agent: its overhead meter", NOT_NEGATIVE,
        per_rank(lambda rank: rank.overhead_ratio),
    ),
    Measure(
        "rankscope_agent_part_seconds_total", "counter", "seconds", (*RANK, "part"),
        "CPU time of each part of the agent, on the training thread and on its own threads.",
        "sum of thread CPU time by part", _COST, NOT_NEGATIVE,
        per_rank_and(_part_seconds),
    ),
    Measure(
        "rankscope_agent_part_dropped", "gauge", "", (*RANK, "part"),
        "1 while the agent has disabled the part, to stay within overhead_ratio_max or because windows of a GPU slowed "
        "training; 0 while the part is in use.",
        "1 if disabled", _COST, RATIO,
        per_rank_and(lambda rank: rank.cost.dropped),
    ),
    Measure(
        "rankscope_agent_window_interval_ratio", "gauge", "ratio", (*RANK, "kind"),
        "Interval between profiler windows over the configured one, by kind (full, light); above 1 to limit cost.",
        "interval / interval without regard to cost", _COST, (1, None),
        per_rank_and(_window_intervals),
    ),
    Measure(
        "rankscope_agent_step_effect_ratio", "gauge", "ratio", (*RANK, "state"),
        "Step time outside of full windows over that before the GPU's first one, minus 1: with CUPTI attached, and "
        "after it was detached; timed: step time since torch times the collectives of NCCL over that before, minus 1.",
        "median of block means / that of the steps before - 1", "agent: step times (AgentCost)", (-1, None),
        per_rank_and(_step_effects),
    ),
    Measure(
        "rankscope_agent_part_changes_total", "counter", "", RANK,
        "Times the agent disabled or restored a part because of its cost.", "count", _COST, NOT_NEGATIVE,
        per_rank(lambda rank: rank.cost.changes if rank.cost.part_ns else None),
    ),
    Measure(
        "rankscope_agent_errors_total", "counter", "", (*RANK, "part"),
        "Errors inside the agent, by part; training was not affected.", "count by part", _LOSSES, NOT_NEGATIVE,
        per_rank_and(lambda rank: rank.losses.errors),
    ),
)  # fmt: skip


DELIVERY: Final[tuple[Measure, ...]] = (
    Measure(
        "rankscope_reports_dropped_total", "counter", "", RANK,
        "Reports dropped from the agent's full resend buffer.", "count", _LOSSES, NOT_NEGATIVE,
        per_rank(lambda rank: rank.losses.reports_dropped if rank.reports_admitted else None),
    ),
    Measure(
        "rankscope_report_gaps_total", "counter", "", RANK,
        "Reports of the current rank process that never arrived.",
        "sequence numbers given up", _ADMISSION, NOT_NEGATIVE,
        per_rank(lambda rank: rank.report_gaps, KNOWN_RANKS),
    ),
    Measure(
        "rankscope_step_records_created_total", "counter", "", RANK,
        "Step records the rank has created: published + acked_by_previous_collector + lost + buffered.",
        "count", _LOSSES, NOT_NEGATIVE,
        of_step_records(lambda steps: steps.made),
    ),
    Measure(
        "rankscope_step_records_published_total", "counter", "", RANK,
        "Step records this collector admitted in time to compare them with other ranks.",
        "rows admitted - late", _ACCOUNT, NOT_NEGATIVE,
        of_step_records(lambda steps: steps.published),
    ),
    Measure(
        "rankscope_step_records_acked_by_previous_collector_total", "counter", "", RANK,
        "Step records that the collector before this one acknowledged.",
        "steps reported - admitted - dropped", _ACCOUNT, NOT_NEGATIVE,
        of_step_records(lambda steps: steps.published_elsewhere),
    ),
    Measure(
        "rankscope_step_records_buffered", "gauge", "", RANK,
        "Step records created but not yet in a report, at the time of the last report.",
        "count", _LOSSES, NOT_NEGATIVE,
        of_step_records(lambda steps: steps.buffered),
    ),
    Measure(
        "rankscope_step_records_lost_total", "counter", "", (*RANK, "reason"),
        "Step records lost, by reason: overwritten in the agent's ring, dropped_in_reports, or late.",
        "count by reason", "agent: Losses; collector: step window, StepAccounting", NOT_NEGATIVE,
        RankColumns(
            ACCOUNTED_RANKS,
            {
                ("overwritten",): lambda rank: rank.steps.overwritten,
                ("dropped_in_reports",): lambda rank: rank.steps.dropped_in_reports,
                ("late",): lambda rank: rank.steps.late,
            },
        ),
    ),
)  # fmt: skip
