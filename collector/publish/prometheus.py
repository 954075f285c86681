"""The snapshot as Prometheus metric families, driven by measure/catalog.py: each measure there has one reader here.

What is unknown has no sample, and a measure that nobody knows no family. A rank that has ended, or is silent, keeps its
`rank_info`, its `rank_end_info`, a `rank_up` of 0 and the account of its step records (docs/delivery.md) as long as it
is in the snapshot; everything else of it stops.
"""

import contextlib
import math
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from rankscope.collector.detect import ratios
from rankscope.collector.detect.finding import STRAGGLER
from rankscope.collector.publish import run_values
from rankscope.collector.state.account import StepCounts
from rankscope.collector.state.snapshot import CollectiveTotals, RankSnapshot, RunSnapshot, Snapshot
from rankscope.measure.catalog import CATALOG, SERIES_LEFT_OUT
from rankscope.measure.exported import Measure
from rankscope.measure.records import AllocatorSample, DeviceSample, HostSample, Totals, WindowBreakdown
from rankscope.measure.units import ns_to_s

SERIES_MAX: Final = 250_000
"""Here Prometheus takes 0.8 s to read a page, and rendering it takes about 4 s."""

Labels = tuple[str, ...]
Value = tuple[Labels, float | None]
"""The values of a measure's labels, in their order, and its own value, None when it is not known."""

Reader = Callable[[Snapshot], Iterable[Value]]
Family = CounterMetricFamily | GaugeMetricFamily | InfoMetricFamily


class SnapshotExporter(Collector):
    """A collector of the prometheus-client library over the latest snapshot. Any thread may ask it.

    A page has at most `series_max` series, and one more that tells how many were left out; these are the last ones in
    the order of the catalogue.
    """

    def __init__(self, read_snapshot: Callable[[], Snapshot], *, series_max: int = SERIES_MAX) -> None:
        self._read_snapshot = read_snapshot
        self._series_max = series_max

    @property
    def series_count(self) -> int:
        """How many series a page has at this moment."""
        return sum(len(family.samples) for family in self.collect())

    def describe(self) -> Iterator[Family]:
        """Every family without samples, so that registering needs no snapshot."""
        return (_build_family(measure, ()) for measure in CATALOG)

    def collect(self) -> Iterator[Family]:
        """The families that have samples, in the order of the catalogue."""
        snapshot = self._read_snapshot()
        room, left_out = self._series_max, 0
        for measure in CATALOG:
            if measure.name == SERIES_LEFT_OUT:
                yield _build_family(measure, [((), left_out)])
                continue
            known = _find_known(READERS[measure.name](snapshot))
            shown = known[:room]
            room -= len(shown)
            left_out += len(known) - len(shown)
            if shown:
                yield _build_family(measure, shown)


def _find_known(values: Iterable[Value]) -> list[tuple[Labels, float]]:
    """Each series once, where the value is a number: one NaN or one series twice would spoil the page for all."""
    known = {labels: value for labels, value in values if value is not None and math.isfinite(value)}
    return list(known.items())


def _build_family(measure: Measure, values: Sequence[tuple[Labels, float]]) -> Family:
    if measure.kind == "info":
        # The library sets the `_info` at the end of the name itself, as it does with `_total`.
        info = InfoMetricFamily(measure.name.removesuffix("_info"), measure.help, labels=measure.labels)
        for labels, _ in values:
            info.add_metric(labels, {})
        return info
    make = CounterMetricFamily if measure.kind == "counter" else GaugeMetricFamily
    family = make(measure.name, measure.help, labels=measure.labels, unit=measure.unit)
    for labels, value in values:
        family.add_metric(labels, value)
    return family


# -- who has a value --------------------------------------------------------------------------------------------------


def _all_ranks(snapshot: Snapshot) -> Iterator[tuple[RunSnapshot, RankSnapshot]]:
    """Those that report, and those that have ended."""
    return ((run, rank) for run in snapshot.runs for rank in run.ranks if rank.ended is not None or not rank.awaited)


def _live_ranks(snapshot: Snapshot) -> Iterator[tuple[RunSnapshot, RankSnapshot]]:
    """Those that report. Counters of one that is awaited may be behind what they were: they come with its report."""
    return ((run, rank) for run, rank in _all_ranks(snapshot) if rank.ended is None)


def _rank_labels(run: RunSnapshot, rank: RankSnapshot) -> Labels:
    return run.run, str(rank.identity.rank)


def _per_rank(read: Callable[[RankSnapshot], float | None]) -> Reader:
    return lambda snapshot: ((_rank_labels(run, rank), read(rank)) for run, rank in _live_ranks(snapshot))


def _per_rank_and(read: Callable[[RankSnapshot], Mapping[str, float]]) -> Reader:
    """For measures with one more label, whose values are the keys of what `read` returns."""
    return lambda snapshot: (
        ((*_rank_labels(run, rank), key), value)
        for run, rank in _live_ranks(snapshot)
        for key, value in read(rank).items()
    )


def _of_account(read: Callable[[StepCounts], float | None]) -> Reader:
    """Of ranks that have ended, too: whether anything was lost is asked after the end."""
    return lambda snapshot: (
        (_rank_labels(run, rank), read(rank.steps)) for run, rank in _all_ranks(snapshot) if rank.reports_admitted
    )


def _per_collective(read: Callable[[CollectiveTotals], float | None]) -> Reader:
    return lambda snapshot: (
        ((*_rank_labels(run, rank), kind.group, kind.op), read(kind))
        for run, rank in _live_ranks(snapshot)
        for kind in rank.collectives
    )


def _per_device(read: Callable[[DeviceSample], float | None]) -> Reader:
    return lambda snapshot: (
        ((*_rank_labels(run, rank), rank.identity.node, device.uuid), read(device))
        for run, rank in _live_ranks(snapshot)
        for device in rank.devices
    )


def _per_device_and(fields: Mapping[str, str]) -> Reader:
    """For device measures with one more label: its values, and the field of DeviceSample that each is read from."""
    return lambda snapshot: (
        ((*_rank_labels(run, rank), rank.identity.node, device.uuid, label), getattr(device, field))
        for run, rank in _live_ranks(snapshot)
        for device in rank.devices
        for label, field in fields.items()
    )


def _per_cause(read: Callable[[RunSnapshot], Iterable[tuple[int | None, str, float]]]) -> Reader:
    """For what detection says of (rank, cause); only of ranks that live. No rank is an empty label, which is none."""

    def read_all(snapshot: Snapshot) -> Iterator[Value]:
        live = {_rank_labels(run, rank) for run, rank in _live_ranks(snapshot)}
        live |= {(run, "") for run, _ in live}
        for run in snapshot.runs:
            for rank, cause, value in read(run):
                label = "" if rank is None else str(rank)
                if (run.run, label) in live:
                    yield (run.run, label, cause), value

    return read_all


def _of_totals(read: Callable[[Totals], float | None]) -> Reader:
    return _per_rank(lambda rank: read(rank.totals) if rank.reports_admitted else None)


def _of_windows(read: Callable[[Totals], int]) -> Reader:
    return _per_rank(lambda rank: ns_to_s(read(rank.totals)) if rank.totals.windows else None)


def _of_device_steps(read: Callable[[Totals], float]) -> Reader:
    return _per_rank(lambda rank: read(rank.totals) if rank.totals.device_steps else None)


def _of_breakdown(read: Callable[[WindowBreakdown], float | None]) -> Reader:
    return _per_rank(lambda rank: None if rank.breakdown is None else read(rank.breakdown))


def _of_allocator(read: Callable[[AllocatorSample], float | None]) -> Reader:
    return _per_rank(lambda rank: None if rank.allocator is None else read(rank.allocator))


def _of_host(read: Callable[[HostSample], float | None]) -> Reader:
    return _per_rank(lambda rank: None if rank.host is None else read(rank.host))


def _of_collector(read: Callable[[Snapshot], float | None]) -> Reader:
    return lambda snapshot: [((), read(snapshot))]


def _of_collector_and(read: Callable[[Snapshot], Mapping[str, int]]) -> Reader:
    return lambda snapshot: (((key,), value) for key, value in read(snapshot).items())


# -- what the value is ------------------------------------------------------------------------------------------------


def _seconds(nanoseconds: float | None) -> float | None:
    return None if nanoseconds is None else ns_to_s(nanoseconds)


def _run_info(snapshot: Snapshot) -> Iterator[Value]:
    for run in snapshot.runs:
        yield (run.run, str(run.world_size), str(run.restart_count)), 1


def _rank_info(snapshot: Snapshot) -> Iterator[Value]:
    for run in snapshot.runs:
        for rank in run.ranks:
            identity = rank.identity
            gpu, gpu_model = (rank.devices[0].uuid, rank.devices[0].model) if rank.devices else ("", "")
            yield (
                *_rank_labels(run, rank), identity.node, str(identity.local_rank), gpu, gpu_model, str(identity.pid),
                rank.agent_version, rank.torch_version,
            ), 1  # fmt: skip


def _rank_up(snapshot: Snapshot) -> Iterator[Value]:
    for run in snapshot.runs:
        for rank in run.ranks:
            yield _rank_labels(run, rank), int(rank.up and rank.ended is None)


def _rank_ends(snapshot: Snapshot) -> Iterator[Value]:
    for run in snapshot.runs:
        for rank in run.ranks:
            if rank.ended is not None:
                number = None if rank.end is None else rank.end.signal
                code = "" if rank.exit_code is None else str(rank.exit_code)
                yield (*_rank_labels(run, rank), rank.ended, code, "" if number is None else _name(number)), 1


def _name(number: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return str(number)


def _live_runs(snapshot: Snapshot) -> list[RunSnapshot]:
    live = {run.run for run, _ in _live_ranks(snapshot)}
    return [run for run in snapshot.runs if run.run in live]


def _run_slowdown(snapshot: Snapshot) -> Iterator[Value]:
    return (((run.run,), run.run_slowdown_ratio) for run in _live_runs(snapshot))


def _goodput(snapshot: Snapshot) -> Iterator[Value]:
    return (((run.run,), run.goodput.goodput_ratio) for run in _live_runs(snapshot))


def _run_seconds(snapshot: Snapshot) -> Iterator[Value]:
    """Of a run that has made no step yet nothing is told, so that the counters of a run begin together."""
    for run in _live_runs(snapshot):
        spent = run.goodput
        kinds = {
            "steps": spent.steps_ns,
            "startup": spent.startup_ns,
            "between_steps": spent.between_steps_ns,
            "stalled": spent.stalled_ns,
            "restart": spent.restart_ns,
        }
        if any(kinds.values()):
            yield from (((run.run, kind), ns_to_s(spent_ns)) for kind, spent_ns in kinds.items())


def _stragglers(run: RunSnapshot) -> Iterator[tuple[int | None, str, float]]:
    slow = (finding for finding in run.open_findings if finding.kind == STRAGGLER)
    return ((rank, finding.cause, 1) for finding in slow for rank in finding.ranks)


def _lost(run: RunSnapshot) -> Iterator[tuple[int | None, str, float]]:
    return ((lost.rank, lost.cause, lost.lost_rank_seconds) for lost in run.lost)


def _phases(rank: RankSnapshot) -> Mapping[str, float]:
    return {phase: ns_to_s(nanoseconds) for phase, nanoseconds in rank.totals.phases_ns.items()}


def _part_seconds(rank: RankSnapshot) -> Mapping[str, float]:
    return {part: ns_to_s(nanoseconds) for part, nanoseconds in rank.cost.part_ns.items()}


def _stretch(rank: RankSnapshot) -> Mapping[str, float]:
    found = {"full": rank.cost.full_stretch_ratio, "light": rank.cost.light_stretch_ratio}
    return {kind: ratio for kind, ratio in found.items() if ratio is not None}


def _device_phases(rank: RankSnapshot) -> Mapping[str, float]:
    return {phase: ns_to_s(nanoseconds) for phase, nanoseconds in rank.totals.device_phases_ns.items()}


def _steps_lost(snapshot: Snapshot) -> Iterator[Value]:
    for run, rank in _all_ranks(snapshot):
        if rank.reports_admitted:
            labels, steps = _rank_labels(run, rank), rank.steps
            yield (*labels, "overwritten"), steps.overwritten
            yield (*labels, "dropped_in_reports"), steps.dropped_in_reports
            yield (*labels, "late"), steps.late


def _report_gaps(snapshot: Snapshot) -> Iterator[Value]:
    """Of ranks that have ended, too: what a killed one has left on the disk may still come."""
    return ((_rank_labels(run, rank), rank.report_gaps) for run, rank in _all_ranks(snapshot))


def _throttled(device: DeviceSample) -> float | None:
    return None if device.throttle_reasons is None else int(len(device.throttle_reasons) > 0)


READERS: Final[Mapping[str, Reader]] = {
    "rankscope_run_info": _run_info,
    "rankscope_rank_info": _rank_info,
    "rankscope_rank_up": _rank_up,
    "rankscope_rank_stalled": _per_rank(lambda rank: rank.stalled),
    "rankscope_rank_end_info": _rank_ends,
    "rankscope_rank_last_report_timestamp_seconds": _per_rank(lambda rank: rank.last_report_wall_s),
    "rankscope_steps_total": _of_totals(lambda totals: totals.steps),
    "rankscope_step_seconds_total": _of_totals(lambda totals: ns_to_s(totals.step_ns)),
    "rankscope_step_phase_seconds_total": _per_rank_and(_phases),
    "rankscope_device_steps_total": _of_device_steps(lambda totals: totals.device_steps),
    "rankscope_device_step_seconds_total": _of_device_steps(lambda totals: ns_to_s(totals.device_step_ns)),
    "rankscope_device_phase_seconds_total": _per_rank_and(_device_phases),
    "rankscope_device_timings_skipped_total": _per_rank_and(lambda rank: rank.losses.device_timings_skipped),
    "rankscope_samples_total": _of_totals(lambda totals: totals.samples),
    "rankscope_tokens_total": _of_totals(lambda totals: totals.tokens),
    "rankscope_step_median_seconds": _per_rank(lambda rank: _seconds(rank.step_ns_median)),
    "rankscope_device_window_seconds_total": _of_windows(lambda totals: totals.window_ns),
    "rankscope_device_compute_seconds_total": _of_windows(lambda totals: totals.compute_ns),
    "rankscope_device_communication_seconds_total": _of_windows(lambda totals: totals.communication_ns),
    "rankscope_device_overlap_seconds_total": _of_windows(lambda totals: totals.overlap_ns),
    "rankscope_device_exposed_communication_seconds_total": _of_windows(lambda totals: totals.exposed_communication_ns),
    "rankscope_device_copy_seconds_total": _of_windows(lambda totals: totals.copy_ns),
    "rankscope_device_idle_seconds_total": _of_windows(lambda totals: totals.idle_ns),
    "rankscope_compute_ratio": _of_breakdown(ratios.compute_ratio),
    "rankscope_communication_ratio": _of_breakdown(ratios.communication_ratio),
    "rankscope_overlap_ratio": _of_breakdown(ratios.overlap_ratio),
    "rankscope_exposed_communication_ratio": _of_breakdown(ratios.exposed_communication_ratio),
    "rankscope_idle_ratio": _of_breakdown(ratios.idle_ratio),
    "rankscope_collectives_total": _per_collective(lambda kind: kind.count),
    "rankscope_collective_seconds_total": _per_collective(lambda kind: ns_to_s(kind.duration_ns)),
    "rankscope_collective_bytes_total": _per_collective(lambda kind: kind.bytes),
    "rankscope_collective_wait_seconds_total": _per_collective(lambda kind: _seconds(kind.wait_ns)),
    "rankscope_collective_transfer_seconds_total": _per_collective(lambda kind: _seconds(kind.transfer_ns)),
    "rankscope_collective_bus_bandwidth_bytes_per_second": _per_collective(lambda kind: kind.bus_bandwidth_bytes_per_s),
    "rankscope_ranks": run_values.count_states,
    "rankscope_rank_missing": run_values.find_missing_ranks,
    "rankscope_node_missing": run_values.find_missing_nodes,
    "rankscope_agents": run_values.count_agents,
    "rankscope_finding_open": run_values.find_open,
    "rankscope_finding_slowdown_ratio": run_values.find_slowdowns,
    "rankscope_straggler": _per_cause(_stragglers),
    "rankscope_rank_slowdown_ratio": _per_rank(lambda rank: rank.slowdown_ratio),
    "rankscope_run_slowdown_ratio": _run_slowdown,
    "rankscope_lost_gpu_seconds_total": _per_cause(_lost),
    "rankscope_rank_wait_caused_seconds": _per_rank(lambda rank: _seconds(rank.wait_caused_ns_median)),
    "rankscope_goodput_ratio": _goodput,
    "rankscope_run_seconds_total": _run_seconds,
    "rankscope_gpu_utilization_ratio": _per_device(lambda device: device.utilization_ratio),
    "rankscope_gpu_memory_used_bytes": _per_device(lambda device: device.memory_used_bytes),
    "rankscope_gpu_memory_total_bytes": _per_device(lambda device: device.memory_total_bytes),
    "rankscope_gpu_power_watts": _per_device(lambda device: device.power_watts),
    "rankscope_gpu_temperature_celsius": _per_device(lambda device: device.temperature_celsius),
    "rankscope_gpu_sm_clock_hertz": _per_device(lambda device: device.sm_clock_hertz),
    "rankscope_gpu_throttled": _per_device(_throttled),
    "rankscope_gpu_power_limit_watts": _per_device(lambda device: device.power_limit_watts),
    "rankscope_gpu_memory_clock_hertz": _per_device(lambda device: device.memory_clock_hertz),
    "rankscope_gpu_xid_errors_total": _per_device(lambda device: device.xid_count),
    "rankscope_gpu_last_xid": _per_device(lambda device: device.xid_last),
    "rankscope_gpu_ecc_errors_total": _per_device_and({"corrected": "ecc_corrected", "uncorrected": "ecc_uncorrected"}),
    "rankscope_gpu_remapped_rows": _per_device_and(
        {"correctable": "remapped_rows_correctable", "uncorrectable": "remapped_rows_uncorrectable"}
    ),
    "rankscope_gpu_row_remapping_pending": _per_device(lambda device: device.remapping_pending),
    "rankscope_gpu_row_remapping_failed": _per_device(lambda device: device.remapping_failed),
    "rankscope_gpu_sm_active_ratio": _per_device(lambda device: device.sm_active_ratio),
    "rankscope_gpu_sm_occupancy_ratio": _per_device(lambda device: device.sm_occupancy_ratio),
    "rankscope_gpu_tensor_active_ratio": _per_device(lambda device: device.tensor_active_ratio),
    "rankscope_gpu_dram_bandwidth_ratio": _per_device(lambda device: device.dram_bandwidth_ratio),
    "rankscope_gpu_nvlink_bytes_total": _per_device_and({"tx": "nvlink_tx_bytes", "rx": "nvlink_rx_bytes"}),
    "rankscope_gpu_xgmi_bytes_total": _per_device_and({"tx": "xgmi_tx_bytes", "rx": "xgmi_rx_bytes"}),
    "rankscope_gpu_pcie_bytes_total": _per_device_and({"tx": "pcie_tx_bytes", "rx": "pcie_rx_bytes"}),
    "rankscope_torch_memory_allocated_bytes": _of_allocator(lambda sample: sample.allocated_bytes),
    "rankscope_torch_memory_reserved_bytes": _of_allocator(lambda sample: sample.reserved_bytes),
    "rankscope_torch_memory_active_bytes": _of_allocator(lambda sample: sample.active_bytes),
    "rankscope_torch_memory_inactive_split_bytes": _of_allocator(lambda sample: sample.inactive_split_bytes),
    "rankscope_torch_memory_retries_total": _of_allocator(lambda sample: sample.retries),
    "rankscope_torch_memory_ooms_total": _of_allocator(lambda sample: sample.ooms),
    "rankscope_torch_memory_device_allocs_total": _of_allocator(lambda sample: sample.device_allocs),
    "rankscope_torch_memory_device_frees_total": _of_allocator(lambda sample: sample.device_frees),
    "rankscope_process_cpu_seconds_total": _of_host(lambda host: _seconds(host.cpu_ns)),
    "rankscope_process_resident_memory_bytes": _of_host(lambda host: host.resident_bytes),
    "rankscope_gc_pause_seconds_total": _of_host(lambda host: _seconds(host.gc_pause_ns)),
    "rankscope_agent_overhead_ratio": _per_rank(lambda rank: rank.overhead_ratio),
    "rankscope_agent_part_seconds_total": _per_rank_and(_part_seconds),
    "rankscope_agent_part_dropped": _per_rank_and(lambda rank: rank.cost.dropped),
    "rankscope_agent_window_stretch_ratio": _per_rank_and(_stretch),
    "rankscope_agent_part_changes_total": _per_rank(lambda rank: rank.cost.changes if rank.cost.part_ns else None),
    "rankscope_agent_errors_total": _per_rank_and(lambda rank: rank.losses.errors),
    "rankscope_reports_dropped_total": _per_rank(
        lambda rank: rank.losses.reports_dropped if rank.reports_admitted else None
    ),
    "rankscope_report_gaps_total": _report_gaps,
    "rankscope_steps_made_total": _of_account(lambda steps: steps.made),
    "rankscope_steps_published_total": _of_account(lambda steps: steps.published),
    "rankscope_steps_published_elsewhere_total": _of_account(lambda steps: steps.published_elsewhere),
    "rankscope_steps_buffered": _of_account(lambda steps: steps.buffered),
    "rankscope_steps_lost_total": _steps_lost,
    "rankscope_collector_info": lambda snapshot: [((snapshot.version,), 1)],
    "rankscope_frames_refused_total": _of_collector_and(lambda snapshot: snapshot.counts.frames_refused),
    "rankscope_frames_received_total": _of_collector(lambda snapshot: snapshot.counts.frames_received),
    "rankscope_peers_refused_total": _of_collector_and(lambda snapshot: snapshot.counts.peers_refused),
    "rankscope_answers_unsent_total": _of_collector_and(lambda snapshot: snapshot.counts.answers_unsent),
    "rankscope_relays": _of_collector(lambda snapshot: snapshot.counts.relays),
    "rankscope_relay_batches_total": _of_collector(lambda snapshot: snapshot.counts.relay_batches),
    "rankscope_relay_frames_dropped_total": _of_collector_and(lambda snapshot: snapshot.counts.relay_dropped),
    "rankscope_relay_refused_total": _of_collector_and(lambda snapshot: snapshot.counts.relay_refused),
    "rankscope_http_refused_total": _of_collector_and(lambda snapshot: snapshot.counts.http_refused),
    "rankscope_runs_evicted_total": _of_collector(lambda snapshot: snapshot.counts.runs_evicted),
    "rankscope_collector_errors_total": _of_collector_and(lambda snapshot: snapshot.counts.contained_errors),
    "rankscope_store_writable": _of_collector(lambda snapshot: snapshot.counts.store_writable),
    "rankscope_store_used_bytes": _of_collector(lambda snapshot: snapshot.counts.store_bytes),
    "rankscope_history_dropped_total": _of_collector(lambda snapshot: snapshot.counts.history_dropped),
}
"""How each measure of the catalogue but SERIES_LEFT_OUT is read from a snapshot."""
