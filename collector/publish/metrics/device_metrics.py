"""Metrics of GPUs and of torch's caching allocator."""

from typing import Final

from rankscope.collector.detect.memory.headroom import find_device_headroom
from rankscope.collector.publish.metrics.measures import (
    DEVICE,
    DEVICE_DIRECTION,
    DEVICE_KIND,
    NOT_NEGATIVE,
    RANK,
    RATIO,
    Measure,
)
from rankscope.collector.publish.metrics.rank_columns import (
    Number,
    of_allocator,
    per_device,
    per_device_and,
    per_rank,
)
from rankscope.collector.runs.snapshot import RankSnapshot
from rankscope.measure.records import DeviceSample

_NVML: Final = "agent: NVML, on AMD amdsmi (DeviceSample)"
_AMD: Final = "agent: amdsmi (DeviceSample)"
_ALLOCATOR: Final = "agent: torch's caching allocator (AllocatorSample)"


def _throttled(device: DeviceSample) -> Number:
    return None if device.throttle_reasons is None else int(len(device.throttle_reasons) > 0)


def _headroom_bytes(rank: RankSnapshot) -> Number:
    return find_device_headroom(rank.devices[0] if rank.devices else None, rank.allocator)


DEVICES: Final[tuple[Measure, ...]] = (
    Measure(
        "rankscope_gpu_utilization_ratio", "gauge", "ratio", DEVICE,
        "Share of the last sample period in which a kernel ran on the GPU.", "NVML utilization.gpu", _NVML, RATIO,
        per_device(lambda device: device.utilization_ratio),
    ),
    Measure(
        "rankscope_gpu_memory_used_bytes", "gauge", "bytes", DEVICE,
        "GPU memory in use, by all processes.", "NVML memory.used", _NVML, NOT_NEGATIVE,
        per_device(lambda device: device.memory_used_bytes),
    ),
    Measure(
        "rankscope_gpu_memory_total_bytes", "gauge", "bytes", DEVICE,
        "Memory of the GPU.", "NVML memory.total", _NVML, NOT_NEGATIVE,
        per_device(lambda device: device.memory_total_bytes),
    ),
    Measure(
        "rankscope_gpu_power_watts", "gauge", "watts", DEVICE,
        "Power draw of the GPU.", "NVML power usage", _NVML, NOT_NEGATIVE,
        per_device(lambda device: device.power_watts),
    ),
    Measure(
        "rankscope_gpu_energy_joules_total", "counter", "joules", DEVICE,
        "Energy that the GPU's board has used since the agent first read it; absent for a slice (MIG).",
        "growth of NVML's energy counter", _NVML, NOT_NEGATIVE,
        per_device(lambda device: device.energy_joules),
    ),
    Measure(
        "rankscope_gpu_temperature_celsius", "gauge", "celsius", DEVICE,
        "Temperature of the GPU.", "NVML temperature", _NVML, (-50, 150),
        per_device(lambda device: device.temperature_celsius),
    ),
    Measure(
        "rankscope_gpu_sm_clock_hertz", "gauge", "hertz", DEVICE,
        "SM clock of the GPU.", "NVML SM clock", _NVML, NOT_NEGATIVE,
        per_device(lambda device: device.sm_clock_hertz),
    ),
    Measure(
        "rankscope_gpu_throttled", "gauge", "", DEVICE,
        "1 while heat, power or a fault limits the GPU's clocks, 0 while none does.",
        "1 if NVML reports such a reason", _NVML, RATIO,
        per_device(_throttled),
    ),
    Measure(
        "rankscope_gpu_power_limit_watts", "gauge", "watts", DEVICE,
        "Power above which the GPU's clocks are limited.", "NVML enforced power limit", _NVML, NOT_NEGATIVE,
        per_device(lambda device: device.power_limit_watts),
    ),
    Measure(
        "rankscope_gpu_memory_clock_hertz", "gauge", "hertz", DEVICE,
        "Memory clock of the GPU.", "NVML memory clock", _NVML, NOT_NEGATIVE,
        per_device(lambda device: device.memory_clock_hertz),
    ),
    Measure(
        "rankscope_gpu_xid_errors_total", "counter", "", DEVICE,
        "Xid errors of the GPU since the agent started to watch it.", "count of NVML's Xid events", _NVML, NOT_NEGATIVE,
        per_device(lambda device: device.xid_count),
    ),
    Measure(
        "rankscope_gpu_last_xid", "gauge", "", DEVICE,
        "Code of the GPU's last Xid error, as in NVIDIA's list; absent before the first one.",
        "data of NVML's last Xid event", _NVML, NOT_NEGATIVE,
        per_device(lambda device: device.xid_last),
    ),
    Measure(
        "rankscope_gpu_ecc_errors_total", "counter", "", DEVICE_KIND,
        "ECC errors of the GPU since its driver was loaded, by kind: corrected, uncorrected.",
        "NVML total ECC errors, volatile", _NVML, NOT_NEGATIVE,
        per_device_and({"corrected": "ecc_corrected", "uncorrected": "ecc_uncorrected"}),
    ),
    Measure(
        "rankscope_gpu_remapped_rows", "gauge", "", DEVICE_KIND,
        "Rows of GPU memory replaced permanently after ECC errors, by kind: correctable, uncorrectable.",
        "NVML remapped rows", _NVML, NOT_NEGATIVE,
        per_device_and(
            {"correctable": "remapped_rows_correctable", "uncorrectable": "remapped_rows_uncorrectable"}
        ),
    ),
    Measure(
        "rankscope_gpu_row_remapping_pending", "gauge", "", DEVICE,
        "1 while a row of GPU memory waits to be replaced at the next reset.", "NVML remapped rows", _NVML, RATIO,
        per_device(lambda device: device.remapping_pending),
    ),
    Measure(
        "rankscope_gpu_row_remapping_failed", "gauge", "", DEVICE,
        "1 if a row of GPU memory could not be replaced; exchange the GPU.",
        "NVML remapped rows", _NVML, RATIO,
        per_device(lambda device: device.remapping_failed),
    ),
    Measure(
        "rankscope_gpu_sm_active_ratio", "gauge", "ratio", DEVICE,
        "Share of the GPU's multiprocessors that were busy, mean since the last sample; Hopper and newer.",
        "NVML GPM SM_UTIL / 100", _NVML, RATIO,
        per_device(lambda device: device.sm_active_ratio),
    ),
    Measure(
        "rankscope_gpu_sm_occupancy_ratio", "gauge", "ratio", DEVICE,
        "Active warps over the maximum of the multiprocessors, mean since the last sample; Hopper and newer.",
        "NVML GPM SM_OCCUPANCY / 100", _NVML, RATIO,
        per_device(lambda device: device.sm_occupancy_ratio),
    ),
    Measure(
        "rankscope_gpu_tensor_active_ratio", "gauge", "ratio", DEVICE,
        "Share of the time in which tensor cores were active, mean since the last sample; Hopper and newer.",
        "NVML GPM ANY_TENSOR_UTIL / 100", _NVML, RATIO,
        per_device(lambda device: device.tensor_active_ratio),
    ),
    Measure(
        "rankscope_gpu_dram_bandwidth_ratio", "gauge", "ratio", DEVICE,
        "Memory bandwidth in use over the maximum, mean since the last sample; Hopper and newer.",
        "NVML GPM DRAM_BW_UTIL / 100", _NVML, RATIO,
        per_device(lambda device: device.dram_bandwidth_ratio),
    ),
    Measure(
        "rankscope_gpu_nvlink_bytes_total", "counter", "bytes", DEVICE_DIRECTION,
        "Data sent (tx) and received (rx) over all NVLinks of the GPU, without protocol overhead.",
        "NVML NVLINK_THROUGHPUT_DATA of all links * 1024", _NVML, NOT_NEGATIVE,
        per_device_and({"tx": "nvlink_tx_bytes", "rx": "nvlink_rx_bytes"}),
    ),
    Measure(
        "rankscope_gpu_pcie_link_width", "gauge", "", DEVICE,
        "Lanes of the GPU's PCIe link in use.", "NVML current PCIe link width", _NVML, NOT_NEGATIVE,
        per_device(lambda device: device.pcie_link_width),
    ),
    Measure(
        "rankscope_gpu_pcie_link_generation", "gauge", "", DEVICE,
        "Generation of the GPU's PCIe link; a GPU lowers it while it is idle.", "NVML current PCIe link generation",
        _NVML, NOT_NEGATIVE,
        per_device(lambda device: device.pcie_link_generation),
    ),
    Measure(
        "rankscope_gpu_xgmi_bytes_total", "counter", "bytes", DEVICE_DIRECTION,
        "Data sent (tx) and received (rx) over all XGMI links of an AMD GPU.",
        "amdsmi xgmi_write_data_acc, xgmi_read_data_acc of all links * 1024", _AMD, NOT_NEGATIVE,
        per_device_and({"tx": "xgmi_tx_bytes", "rx": "xgmi_rx_bytes"}),
    ),
    Measure(
        "rankscope_gpu_pcie_bytes_total", "counter", "bytes", DEVICE_DIRECTION,
        "Bytes sent (tx) and received (rx) over the GPU's PCIe bus.", "NVML PCIE_COUNT", _NVML, NOT_NEGATIVE,
        per_device_and({"tx": "pcie_tx_bytes", "rx": "pcie_rx_bytes"}),
    ),
    Measure(
        "rankscope_gpu_memory_headroom_bytes", "gauge", "bytes", RANK,
        "GPU memory that the rank's tensors may still take: free on its GPU, and reserved by torch but not used.",
        "memory.total - memory.used + reserved_bytes - allocated_bytes", f"{_NVML}; {_ALLOCATOR}", NOT_NEGATIVE,
        per_rank(_headroom_bytes),
    ),
    Measure(
        "rankscope_torch_memory_allocated_bytes", "gauge", "bytes", RANK,
        "GPU memory allocated to tensors.", "allocated_bytes.all.current", _ALLOCATOR, NOT_NEGATIVE,
        of_allocator(lambda sample: sample.allocated_bytes),
    ),
    Measure(
        "rankscope_torch_memory_allocated_peak_bytes", "gauge", "bytes", RANK,
        "Most GPU memory allocated to tensors at any time since the start, or since the script reset torch's peak.",
        "allocated_bytes.all.peak", _ALLOCATOR, NOT_NEGATIVE,
        of_allocator(lambda sample: sample.allocated_peak_bytes),
    ),
    Measure(
        "rankscope_torch_memory_reserved_bytes", "gauge", "bytes", RANK,
        "GPU memory that torch has reserved from the driver.", "reserved_bytes.all.current", _ALLOCATOR, NOT_NEGATIVE,
        of_allocator(lambda sample: sample.reserved_bytes),
    ),
    Measure(
        "rankscope_torch_memory_active_bytes", "gauge", "bytes", RANK,
        "GPU memory allocated to tensors, or freed but still in use by another stream.",
        "active_bytes.all.current", _ALLOCATOR, NOT_NEGATIVE,
        of_allocator(lambda sample: sample.active_bytes),
    ),
    Measure(
        "rankscope_torch_memory_inactive_split_bytes", "gauge", "bytes", RANK,
        "Free GPU memory in partly used blocks, which torch cannot return to the driver: fragmentation.",
        "inactive_split_bytes.all.current", _ALLOCATOR, NOT_NEGATIVE,
        of_allocator(lambda sample: sample.inactive_split_bytes),
    ),
    Measure(
        "rankscope_torch_memory_retries_total", "counter", "", RANK,
        "Times an allocation failed and torch emptied its cache to retry, which stalls the GPU.",
        "num_alloc_retries", _ALLOCATOR, NOT_NEGATIVE,
        of_allocator(lambda sample: sample.retries),
    ),
    Measure(
        "rankscope_torch_memory_ooms_total", "counter", "", RANK,
        "Out-of-memory errors raised by torch.", "num_ooms", _ALLOCATOR, NOT_NEGATIVE,
        of_allocator(lambda sample: sample.ooms),
    ),
    Measure(
        "rankscope_torch_memory_device_allocs_total", "counter", "", RANK,
        "Times torch allocated memory from the driver; 0 a second in steady training.",
        "num_device_alloc", _ALLOCATOR, NOT_NEGATIVE,
        of_allocator(lambda sample: sample.device_allocs),
    ),
    Measure(
        "rankscope_torch_memory_device_frees_total", "counter", "", RANK,
        "Times torch returned memory to the driver; 0 a second in steady training.",
        "num_device_free", _ALLOCATOR, NOT_NEGATIVE,
        of_allocator(lambda sample: sample.device_frees),
    ),
)  # fmt: skip
