"""The measures of which every rank has series, read by column: what there is a row of, and what each row's value is.

A family of 16,384 ranks is read block by block (`RowSet`), so that nothing here takes long in one go. Measures that
have a row for the same things (every live rank, every GPU) share the finder of their rows, and so its result.

What a rank has too much of is left out and counted: the names in a report are those of another machine.
"""

import contextlib
import signal
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol

from rankscope.collector.runs import ratios
from rankscope.collector.runs.snapshot import RankSnapshot
from rankscope.collector.runs.step_accounting import StepCounts
from rankscope.collector.steps.collective_totals import CollectiveTotals
from rankscope.measure.records import AllocatorSample, DeviceSample, HostSample, Totals, WindowBreakdown
from rankscope.measure.units import ns_to_s

Number = float | None
"""A value; None is not known, and has no series."""

Labels = tuple[str, ...]


class RowSet(NamedTuple):
    """Rows of some ranks: of each the place of its rank among them, the values of the labels it has beyond run and
    rank (an empty list: none has any), and what its value is read from. `left_out` rows are not here.
    """

    owners: Sequence[int]
    labels: Sequence[Labels]
    items: Sequence[Any]
    left_out: int = 0


class Rows(Protocol):
    """Finds what there is a row of. `is_shared`: several measures have these rows."""

    is_shared: bool

    def find(self, ranks: Sequence[RankSnapshot], most: int) -> RowSet:
        """The rows of these ranks, of each rank at most so many."""
        ...


class RankColumns(NamedTuple):
    """How a measure is read. `values` reads the value from a row's item, by the values of the labels that come after
    the row's own: one column each.
    """

    rows: Rows
    values: Mapping[Labels, Callable[[Any], Number]]


# -- rows -------------------------------------------------------------------------------------------------------------


class _Ranks:
    """A row for each rank that is wanted."""

    is_shared = True

    def __init__(self, is_wanted: Callable[[RankSnapshot], bool]) -> None:
        self._is_wanted = is_wanted

    def find(self, ranks: Sequence[RankSnapshot], most: int) -> RowSet:  # noqa: ARG002 - there is one of each
        is_wanted = self._is_wanted
        owners = [place for place, rank in enumerate(ranks) if is_wanted(rank)]
        return RowSet(owners, (), ranks if len(owners) == len(ranks) else [ranks[place] for place in owners])


class _PartsOfRanks:
    """Rows for the parts of each rank that is wanted; `split` gives them by their labels, or by their one label."""

    def __init__(
        self,
        split: Callable[[RankSnapshot], Mapping[Any, Any]],
        is_wanted: Callable[[RankSnapshot], bool],
        *,
        is_shared: bool,
        has_one_label: bool = False,
    ) -> None:
        self.is_shared = is_shared
        self._has_one_label = has_one_label
        self._split = split
        self._is_wanted = is_wanted

    def find(self, ranks: Sequence[RankSnapshot], most: int) -> RowSet:
        owners: list[int] = []
        labels: list[Labels] = []
        items: list[Any] = []
        left_out = 0
        split, is_wanted, has_one_label = self._split, self._is_wanted, self._has_one_label
        for place, rank in enumerate(ranks):
            parts = split(rank) if is_wanted(rank) else None
            if not parts:
                continue
            if len(parts) > most:
                left_out += len(parts) - most
                parts = dict(islice(parts.items(), most))
            owners.extend([place] * len(parts))
            labels.extend(zip(parts) if has_one_label else parts)
            items.extend(parts.values())
        return RowSet(owners, labels, items, left_out)


def _is_any(_rank: RankSnapshot) -> bool:
    return True


def _is_known(rank: RankSnapshot) -> bool:
    """Whether it reports, or has ended."""
    return rank.ended is not None or not rank.awaited


def is_live(rank: RankSnapshot) -> bool:
    """Whether it reports. Counters of one that is awaited may be behind what they were: they come with its report."""
    return rank.ended is None and not rank.awaited


def _has_reported(rank: RankSnapshot) -> bool:
    return rank.reports_admitted > 0 and _is_known(rank)


def _split_devices(rank: RankSnapshot) -> Mapping[Labels, DeviceSample]:
    """Each once, whatever a report says: one series twice would spoil the page for all."""
    node = rank.identity.node
    return {(node, device.uuid): device for device in rank.devices}


def _split_collectives(rank: RankSnapshot) -> Mapping[Labels, CollectiveTotals]:
    return {(kind.group, kind.op): kind for kind in rank.collectives}


ALL_RANKS: Final = _Ranks(_is_any)
KNOWN_RANKS: Final = _Ranks(_is_known)
LIVE_RANKS: Final = _Ranks(is_live)
ACCOUNTED_RANKS: Final = _Ranks(_has_reported)
DEVICES: Final = _PartsOfRanks(_split_devices, is_live, is_shared=True)
COLLECTIVES: Final = _PartsOfRanks(_split_collectives, is_live, is_shared=True)


# -- columns ----------------------------------------------------------------------------------------------------------


def _per_rank(read: Callable[[RankSnapshot], Number], rows: Rows = LIVE_RANKS) -> RankColumns:
    return RankColumns(rows, {(): read})


def _per_rank_and(read: Callable[[RankSnapshot], Mapping[str, Number]]) -> RankColumns:
    """For measures with one more label, whose values are the keys of what `read` returns."""
    return RankColumns(_PartsOfRanks(read, is_live, is_shared=False, has_one_label=True), {(): _itself})


def _infos(read: Callable[[RankSnapshot], Labels], is_wanted: Callable[[RankSnapshot], bool]) -> RankColumns:
    """For measures that only carry labels, which `read` returns."""

    def split(rank: RankSnapshot) -> Mapping[Labels, int]:
        return {read(rank): 1}

    return RankColumns(_PartsOfRanks(split, is_wanted, is_shared=False), {(): _itself})


def _of_account(read: Callable[[StepCounts], Number]) -> RankColumns:
    """Of ranks that have ended, too: whether anything was lost is asked after the end."""
    return _per_rank(lambda rank: read(rank.steps), ACCOUNTED_RANKS)


def _per_collective(read: Callable[[CollectiveTotals], Number]) -> RankColumns:
    return RankColumns(COLLECTIVES, {(): read})


def _per_device(read: Callable[[DeviceSample], Number]) -> RankColumns:
    return RankColumns(DEVICES, {(): read})


def _per_device_and(fields: Mapping[str, str]) -> RankColumns:
    """For device measures with one more label: its values, and the field of DeviceSample that each is read from."""
    return RankColumns(DEVICES, {(label,): attrgetter(field) for label, field in fields.items()})


def _of_totals(read: Callable[[Totals], Number]) -> RankColumns:
    return _per_rank(lambda rank: read(rank.totals) if rank.reports_admitted else None)


def _of_windows(read: Callable[[Totals], int]) -> RankColumns:
    return _per_rank(lambda rank: ns_to_s(read(rank.totals)) if rank.totals.windows else None)


def _of_device_steps(read: Callable[[Totals], float]) -> RankColumns:
    return _per_rank(lambda rank: read(rank.totals) if rank.totals.device_steps else None)


def _of_breakdown(read: Callable[[WindowBreakdown], Number]) -> RankColumns:
    return _per_rank(lambda rank: None if rank.breakdown is None else read(rank.breakdown))


def _of_allocator(read: Callable[[AllocatorSample], Number]) -> RankColumns:
    return _per_rank(lambda rank: None if rank.allocator is None else read(rank.allocator))


def _of_host(read: Callable[[HostSample], Number]) -> RankColumns:
    return _per_rank(lambda rank: None if rank.host is None else read(rank.host))


# -- what the value is ------------------------------------------------------------------------------------------------


def _itself(value: Number) -> Number:
    return value


def _seconds(nanoseconds: Number) -> Number:
    return None if nanoseconds is None else ns_to_s(nanoseconds)


def _rank_info(rank: RankSnapshot) -> Labels:
    identity = rank.identity
    gpu, gpu_model = (rank.devices[0].uuid, rank.devices[0].model) if rank.devices else ("", "")
    return (
        identity.node, str(identity.local_rank), gpu, gpu_model, str(identity.pid), rank.agent_version,
        rank.torch_version,
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


def _part_seconds(rank: RankSnapshot) -> Mapping[str, Number]:
    return {part: ns_to_s(nanoseconds) for part, nanoseconds in rank.cost.part_ns.items()}


def _stretch(rank: RankSnapshot) -> Mapping[str, Number]:
    return {"full": rank.cost.full_stretch_ratio, "light": rank.cost.light_stretch_ratio}


def _throttled(device: DeviceSample) -> Number:
    return None if device.throttle_reasons is None else int(len(device.throttle_reasons) > 0)


RANK_READERS: Final[Mapping[str, RankColumns]] = {
    "rankscope_rank_info": _infos(_rank_info, _is_any),
    "rankscope_rank_up": _per_rank(lambda rank: int(rank.up and rank.ended is None), ALL_RANKS),
    "rankscope_rank_end_info": _infos(_end_info, _has_ended),
    "rankscope_report_gaps_total": _per_rank(lambda rank: rank.report_gaps, KNOWN_RANKS),
    "rankscope_step_records_lost_total": RankColumns(
        ACCOUNTED_RANKS,
        {
            ("overwritten",): lambda rank: rank.steps.overwritten,
            ("dropped_in_reports",): lambda rank: rank.steps.dropped_in_reports,
            ("late",): lambda rank: rank.steps.late,
        },
    ),
    "rankscope_rank_stalled": _per_rank(lambda rank: rank.stalled),
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
    "rankscope_rank_slowdown_ratio": _per_rank(lambda rank: rank.slowdown_ratio),
    "rankscope_rank_caused_wait_seconds": _per_rank(lambda rank: _seconds(rank.wait_caused_ns_median)),
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
    "rankscope_agent_window_interval_ratio": _per_rank_and(_stretch),
    "rankscope_agent_part_changes_total": _per_rank(lambda rank: rank.cost.changes if rank.cost.part_ns else None),
    "rankscope_agent_errors_total": _per_rank_and(lambda rank: rank.losses.errors),
    "rankscope_reports_dropped_total": _per_rank(
        lambda rank: rank.losses.reports_dropped if rank.reports_admitted else None
    ),
    "rankscope_step_records_created_total": _of_account(lambda steps: steps.made),
    "rankscope_step_records_published_total": _of_account(lambda steps: steps.published),
    "rankscope_step_records_acked_by_previous_collector_total": _of_account(lambda steps: steps.published_elsewhere),
    "rankscope_step_records_buffered": _of_account(lambda steps: steps.buffered),
}
"""How each measure of which every rank has series is read."""
