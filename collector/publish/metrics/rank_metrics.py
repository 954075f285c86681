"""Metrics of a rank: its process, steps and phases, profiler windows and collectives."""

import contextlib
import signal
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

from rankscope.collector.publish.metrics.measures import (
    COLLECTIVE,
    NCCL_KIND,
    NOT_NEGATIVE,
    ONE,
    RANK,
    RANK_END_INFO,
    RANK_INFO,
    RATIO,
    Measure,
    OfSnapshot,
    Value,
)
from rankscope.collector.publish.metrics.rank_columns import (
    ALL_RANKS,
    Labels,
    Number,
    RankColumns,
    infos,
    is_any,
    of_breakdown,
    of_device_steps,
    of_device_tails,
    of_totals,
    of_windows,
    per_collective,
    per_nccl_kind,
    per_rank,
    per_rank_and,
    to_seconds,
)
from rankscope.collector.runs import ratios
from rankscope.collector.runs.snapshot import RankSnapshot, Snapshot
from rankscope.measure.units import ns_to_s

_STEPS: Final = "agent: steps by the host clock (Totals)"
_TIMERS: Final = "agent: device timers, in sampled steps (Totals)"
_LAST_WINDOWS: Final = "agent: last full profiler windows (WindowBreakdown)"
_WINDOWS: Final = "agent: full profiler windows, summed (Totals)"
_INSPECTOR: Final = "sidecar: dumps of NCCL Inspector (InspectorRead)"
_COLLECTIVES: Final = "collector: collectives of all ranks, matched (CollectiveTotals)"
_LOSSES: Final = "agent: own counters (Losses)"


def _window_seconds(part: str, what: str, formula: str, read: RankColumns) -> Measure:
    return Measure(
        f"rankscope_device_{part}_seconds_total", "counter", "seconds", RANK,
        f"Time in profiler windows {what}. Divide by rankscope_device_window_seconds_total for a ratio.",
        formula, _WINDOWS, NOT_NEGATIVE, read,
    )  # fmt: skip


def _window_ratio(part: str, what: str, formula: str, read: RankColumns) -> Measure:
    return Measure(
        f"rankscope_{part}_ratio", "gauge", "ratio", RANK,
        f"{what}, in the last profiler windows; absent once these have ended or are old.",
        formula, _LAST_WINDOWS, RATIO, read,
    )  # fmt: skip


# -- readers -----------------------------------------------------------------------------------------------------------


def _run_info(snapshot: Snapshot) -> Iterator[Value]:
    for run in snapshot.runs:
        yield (run.run, str(run.world_size), str(run.restart_count), run.run_id), 1


def _rank_info(rank: RankSnapshot) -> Labels:
    identity = rank.identity
    gpu, gpu_model = (rank.devices[0].uuid, rank.devices[0].model) if rank.devices else ("", "")
    return (
        identity.node, str(identity.local_rank), gpu, gpu_model, str(identity.pid), rank.agent_version,
        rank.torch_version, identity.slurm_job_id, identity.user, identity.k8s_namespace, identity.k8s_pod,
    )  # fmt: skip


def _has_ended(rank: RankSnapshot) -> bool:
    return rank.ended is not None


def _end_info(rank: RankSnapshot) -> Labels:
    number = None if rank.end is None else rank.end.signal
    code = "" if rank.exit_code is None else str(rank.exit_code)
    return rank.ended or "", code, "" if number is None else _name_signal(number)


def _name_signal(number: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return str(number)


def _phases(rank: RankSnapshot) -> Mapping[str, Number]:
    return {phase: ns_to_s(nanoseconds) for phase, nanoseconds in rank.totals.phases_ns.items()}


def _device_phases(rank: RankSnapshot) -> Mapping[str, Number]:
    return {phase: ns_to_s(nanoseconds) for phase, nanoseconds in rank.totals.device_phases_ns.items()}


def _call_waits(rank: RankSnapshot) -> Mapping[str, Number]:
    return {call: ns_to_s(nanoseconds) for call, nanoseconds in rank.totals.call_ns.items()}


def _by_memory(whole: str, pageable: str, rank: RankSnapshot) -> Mapping[str, Number]:
    """Return a part of the copies from the host by the kind of memory; the rest is of unknown kind where some is."""
    copies = rank.totals.host_copies
    if copies is None or (whole == "bytes" and copies.unsized):
        return {}
    of_pageable = getattr(copies, pageable)
    rest = max(0, getattr(copies, whole) - of_pageable)
    return {"pageable": of_pageable, "unknown" if copies.untold else "pinned": rest}


def _copy_seconds(whole: str, pageable: str) -> RankColumns:
    def read(rank: RankSnapshot) -> Mapping[str, Number]:
        return {memory: ns_to_s(value or 0) for memory, value in _by_memory(whole, pageable, rank).items()}

    return per_rank_and(read)


# -- the table ---------------------------------------------------------------------------------------------------------

RANKS: Final[tuple[Measure, ...]] = (
    Measure(
        "rankscope_run_info", "info", "", ("run", "world_size", "restart_count", "run_id"),
        "A training run known to the collector; of several runs of one name the latest.",
        "always 1", "collector: RunSnapshot", ONE,
        OfSnapshot(_run_info),
    ),
    Measure(
        "rankscope_rank_info", "info", "", RANK_INFO,
        "A rank and its current or last process. gpu is the UUID of its GPU, user whose process it is; a label is "
        "empty where that is not known or there is none.",
        "always 1", "agent: Hello; NVML", ONE,
        infos(_rank_info, is_any),
    ),
    Measure(
        "rankscope_rank_up", "gauge", "", RANK,
        "1 while the rank's agent reports, 0 when it is silent or has ended.",
        "1 if a report arrived within the time allowed, else 0", "collector: arrival of reports", RATIO,
        per_rank(lambda rank: int(rank.up and rank.ended is None), ALL_RANKS),
    ),
    Measure(
        "rankscope_rank_stalled", "gauge", "", RANK,
        "1 while the rank makes no progress, as it or its sidecar reports, 0 while it does.",
        "1 if stalled or unresponsive: docs/definitions.md section 6",
        "agent: Stall; sidecar: RankUnresponsive", RATIO,
        per_rank(lambda rank: rank.stalled),
    ),
    Measure(
        "rankscope_rank_end_info", "info", "", RANK_END_INFO,
        "How the process of the rank ended; exit_code and signal are empty where not known.",
        "always 1", "agent: Goodbye; sidecar: RankEnded", ONE,
        infos(_end_info, _has_ended),
    ),
    Measure(
        "rankscope_rank_last_report_timestamp_seconds", "gauge", "seconds", RANK,
        "Unix time at which the rank's last report arrived, by the collector's clock.",
        "wall clock at arrival", "collector: arrival of reports", NOT_NEGATIVE,
        per_rank(lambda rank: rank.last_report_wall_s),
    ),
    Measure(
        "rankscope_steps_total", "counter", "", RANK,
        "Training steps finished by the current process of the rank.", "count of steps", _STEPS, NOT_NEGATIVE,
        of_totals(lambda totals: totals.steps),
    ),
    Measure(
        "rankscope_step_seconds_total", "counter", "seconds", RANK,
        "Time spent in finished training steps.", "sum of step durations", _STEPS, NOT_NEGATIVE,
        of_totals(lambda totals: ns_to_s(totals.step_ns)),
    ),
    Measure(
        "rankscope_step_phase_seconds_total", "counter", "seconds", (*RANK, "phase"),
        "Time spent in each phase of finished training steps; the phases sum to the step.",
        "sum of phase durations", _STEPS, NOT_NEGATIVE,
        per_rank_and(_phases),
    ),
    Measure(
        "rankscope_device_steps_total", "counter", "", RANK,
        "Training steps whose phases were also timed on the device.", "count of timed steps", _TIMERS, NOT_NEGATIVE,
        of_device_steps(lambda totals: totals.device_steps),
    ),
    Measure(
        "rankscope_device_step_seconds_total", "counter", "seconds", RANK,
        "Duration of the timed steps by the device's clock, on the training stream.",
        "sum of the device phases", _TIMERS, NOT_NEGATIVE,
        of_device_steps(lambda totals: ns_to_s(totals.device_step_ns)),
    ),
    Measure(
        "rankscope_device_phase_seconds_total", "counter", "seconds", (*RANK, "phase"),
        "Duration of each phase of the timed steps by the device's clock. "
        "Divide by rankscope_device_step_seconds_total for a share, by rankscope_device_steps_total for a mean.",
        "sum of the time between the device events at begin and end of the phase", _TIMERS, NOT_NEGATIVE,
        per_rank_and(_device_phases),
    ),
    Measure(
        "rankscope_device_tail_steps_total", "counter", "", RANK,
        "Steps timed on the device of which it is known when the backward's own work ended there.",
        "count of timed steps with a known tail", _TIMERS, NOT_NEGATIVE,
        of_device_tails(lambda totals: totals.device_tail_steps),
    ),
    Measure(
        "rankscope_device_tail_seconds_total", "counter", "seconds", RANK,
        "Time on the device from the end of the backward's own work to the return of backward. With DDP it is the "
        "exposed communication of these steps. Divide by rankscope_device_tail_steps_total for a mean.",
        "sum of the time between the two device events", _TIMERS, NOT_NEGATIVE,
        of_device_tails(lambda totals: ns_to_s(totals.device_tail_ns)),
    ),
    Measure(
        "rankscope_device_tails_skipped_total", "counter", "", (*RANK, "reason"),
        "Steps timed on the device, in a rank with peers, without the tail of their backward, by reason.",
        "count by reason", _LOSSES, NOT_NEGATIVE,
        per_rank_and(lambda rank: rank.losses.device_tails_skipped),
    ),
    Measure(
        "rankscope_device_timings_skipped_total", "counter", "", (*RANK, "reason"),
        "Steps that could not be timed on the device, by reason; the step records are not lost.",
        "count by reason", _LOSSES, NOT_NEGATIVE,
        per_rank_and(lambda rank: rank.losses.device_timings_skipped),
    ),
    Measure(
        "rankscope_samples_total", "counter", "", RANK,
        "Samples in the batches of finished training steps of this rank; absent while not known.",
        "sum of samples", _STEPS, NOT_NEGATIVE,
        of_totals(lambda totals: totals.samples),
    ),
    Measure(
        "rankscope_tokens_total", "counter", "", RANK,
        "Tokens in the batches of finished training steps of this rank, padding included; absent while not known.",
        "sum of tokens", _STEPS, NOT_NEGATIVE,
        of_totals(lambda totals: totals.tokens),
    ),
    Measure(
        "rankscope_step_median_seconds", "gauge", "seconds", RANK,
        "Median duration of the last steps, those that detection uses.",
        "median(step)", "collector: step table", NOT_NEGATIVE,
        per_rank(lambda rank: to_seconds(rank.step_ns_median)),
    ),
    Measure(
        "rankscope_device_window_seconds_total", "counter", "seconds", RANK,
        "Duration of the profiler windows, in which the device time is known in detail.",
        "|W|", _WINDOWS, NOT_NEGATIVE,
        of_windows(lambda totals: totals.window_ns),
    ),
    _window_seconds("compute", "in which compute kernels ran", "|K|", of_windows(lambda totals: totals.compute_ns)),
    _window_seconds(
        "communication", "in which communication kernels ran", "|M|",
        of_windows(lambda totals: totals.communication_ns),
    ),
    _window_seconds(
        "overlap", "in which communication was hidden behind compute", "|K and M|",
        of_windows(lambda totals: totals.overlap_ns),
    ),
    _window_seconds(
        "exposed_communication", "in which only communication ran", "|M minus K|",
        of_windows(lambda totals: totals.exposed_communication_ns),
    ),
    _window_seconds(
        "copy", "in which only copies ran", "|X minus (K or M)|",
        of_windows(lambda totals: totals.copy_ns),
    ),
    _window_seconds(
        "idle", "in which the device was idle", "|W| - |K or M or X|",
        of_windows(lambda totals: totals.idle_ns),
    ),
    Measure(
        "rankscope_host_sync_seconds_total", "counter", "seconds", (*RANK, "call"),
        "Time in profiler windows of a GPU in which the host waited for it in a blocking call, by call. Divide by "
        "rankscope_device_window_seconds_total for a ratio. Without a series there was no such call in any window.",
        "sum of the calls' durations up to the device's last work in each, without the time in which only "
        "communication ran", _WINDOWS, NOT_NEGATIVE,
        per_rank_and(_call_waits),
    ),
    Measure(
        "rankscope_host_copy_seconds_total", "counter", "seconds", (*RANK, "memory"),
        "Time in profiler windows in which a GPU copied from the host's memory: pageable, pinned, or unknown (AMD). "
        "Divide by rankscope_device_window_seconds_total for a ratio.",
        "|H|", _WINDOWS, NOT_NEGATIVE,
        _copy_seconds("duration_ns", "pageable_ns"),
    ),
    Measure(
        "rankscope_exposed_host_copy_seconds_total", "counter", "seconds", (*RANK, "memory"),
        "The part of rankscope_host_copy_seconds_total in which no kernel ran.",
        "|H minus (K or M)|", _WINDOWS, NOT_NEGATIVE,
        _copy_seconds("exposed_ns", "pageable_exposed_ns"),
    ),
    Measure(
        "rankscope_host_copy_bytes_total", "counter", "bytes", (*RANK, "memory"),
        "Bytes that a GPU copied from the host's memory in profiler windows; absent where they are not known.",
        "sum of the copies' bytes", _WINDOWS, NOT_NEGATIVE,
        per_rank_and(partial(_by_memory, "bytes", "pageable_bytes")),
    ),
    _window_ratio(
        "compute", "Share of the time in which compute kernels ran", "|K| / |W|",
        of_breakdown(ratios.compute_ratio),
    ),
    _window_ratio(
        "communication", "Share of the time in which communication kernels ran", "|M| / |W|",
        of_breakdown(ratios.communication_ratio),
    ),
    _window_ratio(
        "overlap", "Share of the communication that was hidden behind compute", "|K and M| / |M|",
        of_breakdown(ratios.overlap_ratio),
    ),
    _window_ratio(
        "exposed_communication", "Share of the time in which only communication ran", "|M minus K| / |W|",
        of_breakdown(ratios.exposed_communication_ratio),
    ),
    _window_ratio(
        "idle", "Share of the time in which the device was idle", "1 - |K or M or X| / |W|",
        of_breakdown(ratios.idle_ratio),
    ),
    _window_ratio(
        "exposed_host_copy", "Share of the time in which copies from the host's memory ran and no kernel did",
        "|H minus (K or M)| / |W|",
        of_breakdown(ratios.exposed_host_copy_ratio),
    ),
    Measure(
        "rankscope_window_age_seconds", "gauge", "seconds", RANK,
        "Time from the report with the newest full profiler window to the rank's last report, by its own clock. The "
        "ratios are absent when it is old or windows have ended.",
        "host time of the last report - that of the report with the window", _LAST_WINDOWS, NOT_NEGATIVE,
        per_rank(lambda rank: rank.ratio_basis.age_s),
    ),
    Measure(
        "rankscope_window_step_share_ratio", "gauge", "ratio", RANK,
        "Share of the steps since the first of the last full profiler windows that were in these windows: what the "
        "ratios stand on.",
        "steps in windows / steps since the first of them", _LAST_WINDOWS, RATIO,
        per_rank(lambda rank: rank.ratio_basis.share),
    ),
    Measure(
        "rankscope_collectives_total", "counter", "", COLLECTIVE,
        "Collective operations of the rank.", "count", _COLLECTIVES, NOT_NEGATIVE,
        per_collective(lambda kind: kind.count),
    ),
    Measure(
        "rankscope_collective_seconds_total", "counter", "seconds", COLLECTIVE,
        "Time in collective operations, waiting included.", "sum of d_r", _COLLECTIVES, NOT_NEGATIVE,
        per_collective(lambda kind: ns_to_s(kind.duration_ns)),
    ),
    Measure(
        "rankscope_collective_bytes_total", "counter", "bytes", COLLECTIVE,
        "Size of the data of collective operations, counted as in nccl-tests.",
        "sum of bytes", _COLLECTIVES, NOT_NEGATIVE,
        per_collective(lambda kind: kind.bytes),
    ),
    Measure(
        "rankscope_collective_wait_seconds_total", "counter", "seconds", COLLECTIVE,
        "Time the rank waited in collectives for later members of the group, in collectives matched on all members.",
        "sum of (d_r - min over the group of d)", _COLLECTIVES, NOT_NEGATIVE,
        per_collective(lambda kind: to_seconds(kind.wait_ns)),
    ),
    Measure(
        "rankscope_collective_transfer_seconds_total", "counter", "seconds", COLLECTIVE,
        "Transfer time in collectives, in collectives matched on all members.",
        "sum of (min over the group of d)", _COLLECTIVES, NOT_NEGATIVE,
        per_collective(lambda kind: to_seconds(kind.transfer_ns)),
    ),
    Measure(
        "rankscope_collective_bus_bandwidth_bytes_per_second", "gauge", "bytes_per_second", COLLECTIVE,
        "Bus bandwidth of the last matched collectives, as defined by nccl-tests.",
        "bytes / transfer * f(op, group size)", _COLLECTIVES, NOT_NEGATIVE,
        per_collective(lambda kind: kind.bus_bandwidth_bytes_per_s),
    ),
    Measure(
        "rankscope_nccl_bus_bandwidth_bytes_per_second", "gauge", "bytes_per_second", NCCL_KIND,
        "Bus bandwidth of NCCL's last operations in a communicator, waiting for later ranks included, by its Inspector "
        "plugin; absent without dumps.",
        "median of busbw_gbs * 10^9 of the operations dumped between two readings", _INSPECTOR, NOT_NEGATIVE,
        per_nccl_kind(lambda kind: kind.bus_bandwidth_bytes_per_s),
    ),
)  # fmt: skip
