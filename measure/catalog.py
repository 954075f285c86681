"""The table of every exported measure: the page of metrics is driven by it, and the documentation is printed from it.

Names follow Prometheus: prefix `rankscope_`, base units at the end, `_total` for what counts up, `_info` for what only
carries labels. The labels `job`, `instance` and `pod` belong to whoever scrapes and are never used.

The median step is `rankscope_step_median_seconds` and not `rankscope_step_seconds`: OpenMetrics, which Prometheus asks
for first, names the counter `rankscope_step_seconds_total` without its `_total`, and two families of one name make the
whole page invalid.

A measure that is unknown is absent from the page, never 0. A rank that has ended keeps its `rank_info`, its
`rank_up` and the account of its step records.
"""

from typing import Final

from rankscope.measure.delivery_measures import DELIVERY
from rankscope.measure.exported import (
    CAUSE,
    COLLECTIVE,
    DEVICE,
    DEVICE_DIRECTION,
    DEVICE_KIND,
    NOT_NEGATIVE,
    ONE,
    RANK,
    RANK_INFO,
    RATIO,
    RUN,
    Measure,
)

SERIES_LEFT_OUT: Final = "rankscope_series_left_out"
"""The one measure that is about the page itself."""

_STEPS: Final = "agent: steps by the host clock (Totals)"
_TIMERS: Final = "agent: events on the device, in some steps (Totals)"
_LAST_WINDOWS: Final = "agent: short profiled windows, the last ones (WindowBreakdown)"
_WINDOWS: Final = "agent: short profiled windows, added up (Totals)"
_COLLECTIVES: Final = "collector: collectives of all ranks, matched (CollectiveTotals)"
_DETECTION: Final = "collector: detection (docs/definitions.md section 4)"
_GOODPUT: Final = "collector: the run's account of time (GoodputSnapshot)"
_NVML: Final = "agent: NVML, on AMD amdsmi (DeviceSample)"
_AMD: Final = "agent: amdsmi (DeviceSample)"
_ALLOCATOR: Final = "agent: torch's caching allocator (AllocatorSample)"
_PROCESS: Final = "agent: the training process (HostSample)"
_LOSSES: Final = "agent: its own count (Losses)"
_COST: Final = "agent: its overhead meter (AgentCost)"
_COLLECTOR: Final = "collector: about itself (CollectorCounts)"


def _window_seconds(part: str, what: str, formula: str) -> Measure:
    return Measure(
        f"rankscope_device_{part}_seconds_total", "counter", "seconds", RANK,
        f"Time in profiled windows {what}. For a ratio divide by rankscope_device_window_seconds_total.",
        formula, _WINDOWS, NOT_NEGATIVE,
    )  # fmt: skip


def _window_ratio(part: str, what: str, formula: str) -> Measure:
    return Measure(
        f"rankscope_{part}_ratio", "gauge", "ratio", RANK,
        f"{what}, in the last profiled windows.", formula, _LAST_WINDOWS, RATIO,
    )  # fmt: skip


CATALOG: Final[tuple[Measure, ...]] = (
    Measure(
        "rankscope_run_info", "info", "", ("run", "world_size", "restart_count"),
        "A training run the collector knows.", "always 1", "collector: RunSnapshot", ONE,
    ),
    Measure(
        "rankscope_rank_info", "info", "", RANK_INFO,
        "A rank in its present life, also after its end. The gpu is its UUID, empty without one.",
        "always 1", "agent: Hello; NVML", ONE,
    ),
    Measure(
        "rankscope_rank_up", "gauge", "", RANK,
        "1 while the rank's agent reports, 0 when it is silent or has ended.",
        "1 if a report came within the time allowed, else 0", "collector: arrival of reports", RATIO,
    ),
    Measure(
        "rankscope_rank_stalled", "gauge", "", RANK,
        "1 while nothing happens in the rank, by its own word or its sidecar's, 0 while something does.",
        "1 if no moment of training came for max(stall_s, 10 median steps)",
        "agent: Stall; sidecar: RankUnresponsive", RATIO,
    ),
    Measure(
        "rankscope_rank_end_info", "info", "", ("run", "rank", "reason", "exit_code", "signal"),
        "How a rank that has ended did so; exit_code and signal are empty where not known.",
        "always 1", "agent: Goodbye; sidecar: RankEnded", ONE,
    ),
    Measure(
        "rankscope_rank_last_report_timestamp_seconds", "gauge", "seconds", RANK,
        "When the rank's last report came, in seconds since 1970 by the collector's clock.",
        "wall clock at arrival", "collector: arrival of reports", NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_steps_total", "counter", "", RANK,
        "Training steps finished in this life of the rank.", "count of steps", _STEPS, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_step_seconds_total", "counter", "seconds", RANK,
        "Time spent in finished training steps.", "sum of step durations", _STEPS, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_step_phase_seconds_total", "counter", "seconds", (*RANK, "phase"),
        "Time spent in each phase of finished training steps; the phases of a step sum to the step.",
        "sum of phase durations", _STEPS, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_device_steps_total", "counter", "", RANK,
        "Training steps whose phases were timed on the device as well.", "count of timed steps", _TIMERS, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_device_step_seconds_total", "counter", "seconds", RANK,
        "Length of the timed steps by the device's clock, on the stream of the training.",
        "sum of the device phases", _TIMERS, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_device_phase_seconds_total", "counter", "seconds", (*RANK, "phase"),
        "Length of each phase of the timed steps by the device's clock. "
        "For a share divide by rankscope_device_step_seconds_total, for a mean by rankscope_device_steps_total.",
        "sum of the time between the events at the begin and the end of a phase", _TIMERS, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_device_timings_skipped_total", "counter", "", (*RANK, "reason"),
        "Steps that were to be timed on the device and could not be; the steps themselves are not lost.",
        "count by reason", _LOSSES, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_samples_total", "counter", "", RANK,
        "Samples in the batches of finished training steps of this rank; absent while not known.",
        "sum of samples", _STEPS, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_tokens_total", "counter", "", RANK,
        "Tokens in the batches of finished training steps of this rank, padding included; absent while not known.",
        "sum of tokens", _STEPS, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_step_median_seconds", "gauge", "seconds", RANK,
        "Median duration of the last steps that detection looks at.",
        "median(step)", "collector: step window", NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_device_window_seconds_total", "counter", "seconds", RANK,
        "Length of the profiled windows: the steps whose device time is known in detail.",
        "|W|", _WINDOWS, NOT_NEGATIVE,
    ),
    _window_seconds("compute", "in which compute kernels ran", "|K|"),
    _window_seconds("communication", "in which communication kernels ran", "|M|"),
    _window_seconds("overlap", "in which communication was hidden behind compute", "|K and M|"),
    _window_seconds("exposed_communication", "in which only communication ran", "|M minus K|"),
    _window_seconds("copy", "in which only copies ran", "|X minus (K or M)|"),
    _window_seconds("idle", "in which the device did nothing", "|W| - |K or M or X|"),
    _window_ratio("compute", "Part of the time in which compute kernels ran", "|K| / |W|"),
    _window_ratio("communication", "Part of the time in which communication kernels ran", "|M| / |W|"),
    _window_ratio("overlap", "Part of the communication that was hidden behind compute", "|K and M| / |M|"),
    _window_ratio("exposed_communication", "Part of the time in which only communication ran", "|M minus K| / |W|"),
    _window_ratio("idle", "Part of the time in which the device did nothing", "1 - |K or M or X| / |W|"),
    Measure(
        "rankscope_collectives_total", "counter", "", COLLECTIVE,
        "Collective operations the rank took part in.", "count", _COLLECTIVES, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_collective_seconds_total", "counter", "seconds", COLLECTIVE,
        "Time in collective operations, waiting for peers included.", "sum of d_r", _COLLECTIVES, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_collective_bytes_total", "counter", "bytes", COLLECTIVE,
        "Size of the data of collective operations, as nccl-tests counts it.",
        "sum of bytes", _COLLECTIVES, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_collective_wait_seconds_total", "counter", "seconds", COLLECTIVE,
        "Time the rank waited in collectives for later members of the group, over those found on all members.",
        "sum of (d_r - min over the group of d)", _COLLECTIVES, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_collective_transfer_seconds_total", "counter", "seconds", COLLECTIVE,
        "Time the data movement itself took in collectives, over those found on all members.",
        "sum of (min over the group of d)", _COLLECTIVES, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_collective_bus_bandwidth_bytes_per_second", "gauge", "bytes_per_second", COLLECTIVE,
        "Bus bandwidth of the last matched collectives, as nccl-tests defines it.",
        "bytes / transfer * f(op, group size)", _COLLECTIVES, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_straggler", "gauge", "", CAUSE,
        "1 while detection holds the rank for a straggler of this cause; absent otherwise.",
        "1 per open finding", _DETECTION, ONE,
    ),
    Measure(
        "rankscope_rank_slowdown_ratio", "gauge", "ratio", RANK,
        "Own time of the rank over that of the ranks that do the same work; 1 is equal, above is slower.",
        "median(self) / median over the twins of median(self)", _DETECTION, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_run_slowdown_ratio", "gauge", "ratio", RUN,
        "Step of the run over what it would be without its straggler; 1 is no loss.",
        "step / ideal step", _DETECTION, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_lost_gpu_seconds_total", "counter", "seconds", CAUSE,
        "GPU time the whole run lost because this rank was slow; a rank without a GPU counts as one GPU.",
        "sum of (step - ideal step) * world_size", _DETECTION, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_rank_wait_caused_seconds", "gauge", "seconds", RANK,
        "Waiting of all ranks in a step that this rank caused and did not merely pass on, in the last steps.",
        "median over steps of the charges to the rank", _DETECTION, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_goodput_ratio", "gauge", "ratio", RUN,
        "Part of the run's time so far that went into steps, without what slow ranks cost.",
        "productive / wall", _GOODPUT, RATIO,
    ),
    Measure(
        "rankscope_run_seconds_total", "counter", "seconds", ("run", "kind"),
        "The run's time by what it went into: steps, startup, between_steps, stalled, restart.",
        "time between the ends of the steps reported, by what the run did", _GOODPUT, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_gpu_utilization_ratio", "gauge", "ratio", DEVICE,
        "Part of the last moments in which any kernel ran on the GPU.", "NVML utilization.gpu", _NVML, RATIO,
    ),
    Measure(
        "rankscope_gpu_memory_used_bytes", "gauge", "bytes", DEVICE,
        "GPU memory in use, by all processes.", "NVML memory.used", _NVML, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_gpu_memory_total_bytes", "gauge", "bytes", DEVICE,
        "GPU memory there is.", "NVML memory.total", _NVML, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_gpu_power_watts", "gauge", "watts", DEVICE,
        "Power the GPU draws.", "NVML power usage", _NVML, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_gpu_temperature_celsius", "gauge", "celsius", DEVICE,
        "Temperature of the GPU.", "NVML temperature", _NVML, (-50, 150),
    ),
    Measure(
        "rankscope_gpu_sm_clock_hertz", "gauge", "hertz", DEVICE,
        "Clock of the GPU's multiprocessors.", "NVML SM clock", _NVML, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_gpu_throttled", "gauge", "", DEVICE,
        "1 while the GPU's clocks are held down by heat, power or a fault, 0 while they are not.",
        "1 if NVML gives any such reason", _NVML, RATIO,
    ),
    Measure(
        "rankscope_gpu_power_limit_watts", "gauge", "watts", DEVICE,
        "Power above which the GPU's clocks are held down.", "NVML enforced power limit", _NVML, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_gpu_memory_clock_hertz", "gauge", "hertz", DEVICE,
        "Clock of the GPU's memory.", "NVML memory clock", _NVML, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_gpu_xid_errors_total", "counter", "", DEVICE,
        "Xid errors of the GPU since the agent first saw it.", "count of NVML's Xid events", _NVML, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_gpu_last_xid", "gauge", "", DEVICE,
        "Number of the GPU's last Xid error, as in NVIDIA's list; absent until there is one.",
        "data of NVML's last Xid event", _NVML, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_gpu_ecc_errors_total", "counter", "", DEVICE_KIND,
        "Bit errors found in the GPU's memories since its driver was loaded, by kind: corrected, uncorrected.",
        "NVML total ECC errors, volatile", _NVML, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_gpu_remapped_rows", "gauge", "", DEVICE_KIND,
        "Rows of GPU memory replaced for good because of bit errors, by kind: correctable, uncorrectable.",
        "NVML remapped rows", _NVML, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_gpu_row_remapping_pending", "gauge", "", DEVICE,
        "1 while a row of GPU memory waits for a reset of the GPU to be replaced.", "NVML remapped rows", _NVML, RATIO,
    ),
    Measure(
        "rankscope_gpu_row_remapping_failed", "gauge", "", DEVICE,
        "1 if a row of GPU memory could not be replaced; such a GPU is to be exchanged.",
        "NVML remapped rows", _NVML, RATIO,
    ),
    Measure(
        "rankscope_gpu_sm_active_ratio", "gauge", "ratio", DEVICE,
        "Part of the GPU's multiprocessors that were busy, mean since the last sample; Hopper and newer.",
        "NVML GPM SM_UTIL / 100", _NVML, RATIO,
    ),
    Measure(
        "rankscope_gpu_sm_occupancy_ratio", "gauge", "ratio", DEVICE,
        "Active warps over those the multiprocessors can hold, mean since the last sample; Hopper and newer.",
        "NVML GPM SM_OCCUPANCY / 100", _NVML, RATIO,
    ),
    Measure(
        "rankscope_gpu_tensor_active_ratio", "gauge", "ratio", DEVICE,
        "Part of the time in which the tensor cores worked, mean since the last sample; Hopper and newer.",
        "NVML GPM ANY_TENSOR_UTIL / 100", _NVML, RATIO,
    ),
    Measure(
        "rankscope_gpu_dram_bandwidth_ratio", "gauge", "ratio", DEVICE,
        "Bandwidth of the GPU's memory in use, over what it can do, mean since the last sample; Hopper and newer.",
        "NVML GPM DRAM_BW_UTIL / 100", _NVML, RATIO,
    ),
    Measure(
        "rankscope_gpu_nvlink_bytes_total", "counter", "bytes", DEVICE_DIRECTION,
        "Data sent (tx) and received (rx) over all NVLinks of the GPU, without the protocol's own.",
        "NVML NVLINK_THROUGHPUT_DATA of all links * 1024", _NVML, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_gpu_xgmi_bytes_total", "counter", "bytes", DEVICE_DIRECTION,
        "Data sent (tx) and received (rx) over all XGMI links of an AMD GPU.",
        "amdsmi xgmi_write_data_acc, xgmi_read_data_acc of all links * 1024", _AMD, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_gpu_pcie_bytes_total", "counter", "bytes", DEVICE_DIRECTION,
        "Bytes sent (tx) and received (rx) over the GPU's PCIe bus.", "NVML PCIE_COUNT", _NVML, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_torch_memory_allocated_bytes", "gauge", "bytes", RANK,
        "GPU memory that torch has handed out to tensors.", "allocated_bytes.all.current", _ALLOCATOR, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_torch_memory_reserved_bytes", "gauge", "bytes", RANK,
        "GPU memory that torch has taken from the driver.", "reserved_bytes.all.current", _ALLOCATOR, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_torch_memory_active_bytes", "gauge", "bytes", RANK,
        "GPU memory that is handed out, or was and waits for another stream to be done with it.",
        "active_bytes.all.current", _ALLOCATOR, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_torch_memory_inactive_split_bytes", "gauge", "bytes", RANK,
        "Free GPU memory in blocks that are partly in use, which torch cannot give back: fragmentation.",
        "inactive_split_bytes.all.current", _ALLOCATOR, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_torch_memory_retries_total", "counter", "", RANK,
        "Times the driver had no memory left and torch emptied its cache to try again, which stops the GPU.",
        "num_alloc_retries", _ALLOCATOR, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_torch_memory_ooms_total", "counter", "", RANK,
        "Out-of-memory errors that torch has raised.", "num_ooms", _ALLOCATOR, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_torch_memory_device_allocs_total", "counter", "", RANK,
        "Times torch asked the driver for memory; a steady training does not.",
        "num_device_alloc", _ALLOCATOR, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_torch_memory_device_frees_total", "counter", "", RANK,
        "Times torch gave memory back to the driver; a steady training does not.",
        "num_device_free", _ALLOCATOR, NOT_NEGATIVE,
    ),
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
        "rankscope_agent_window_stretch_ratio", "gauge", "ratio", (*RANK, "kind"),
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
    *DELIVERY,
    Measure(
        "rankscope_frames_refused_total", "counter", "", ("reason",),
        "Frames the collector could not take for a message.", "count by reason", _COLLECTOR, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_frames_received_total", "counter", "", (),
        "Frames that have come in, refused ones included.", "count", _COLLECTOR, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_peers_refused_total", "counter", "", ("reason",),
        "Connections and Hellos refused, and messages in the name of somebody else's rank.",
        "count by reason", _COLLECTOR, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_answers_unsent_total", "counter", "", ("reason",),
        "Answers whose agent is gone or does not read.", "count by reason", _COLLECTOR, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_http_refused_total", "counter", "", ("reason",),
        "HTTP requests turned away: busy, unauthorised, or tls_failed.", "count by reason", _COLLECTOR, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_runs_evicted_total", "counter", "", (),
        "Runs that had ended and were let go to make room.", "count", _COLLECTOR, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_collector_errors_total", "counter", "", ("part",),
        "Errors of the collector's own parts; the other runs were not affected.",
        "count by part", _COLLECTOR, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_store_writable", "gauge", "", (),
        "1 while the collector's store can be written to.", "0 or 1", _COLLECTOR, RATIO,
    ),
    Measure(
        "rankscope_store_used_bytes", "gauge", "bytes", (),
        "What the collector's store holds.", "pages in use * page size", _COLLECTOR, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_history_dropped_total", "counter", "", (),
        "Lines of history that gave way while the store could not be written to.", "count", _COLLECTOR, NOT_NEGATIVE,
    ),
    Measure(
        SERIES_LEFT_OUT, "gauge", "", (),
        "Series this page lacks because it would have more than it may.", "series - series_max, at least 0",
        "collector: this page", NOT_NEGATIVE,
    ),
)  # fmt: skip
