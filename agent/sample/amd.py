"""Samples the AMD GPU of this rank through amdsmi, ROCm's library that amd-smi uses too. As nvml.py for NVIDIA.

    no GPU in use (yet), or not AMD's       amdsmi is not imported
    amdsmi or its library is missing, or amdsmi_init fails
                                            logged once with the cure; from then on sample() returns () at no cost
    the GPU is not found or not readable    a sample with every field absent, with the reason; retried after 10 s,
                                            20 s, ... 10 min without amdsmi calls between
    one value cannot be read                that field is None with its reason in `absent`; the others are measured

amdsmi returns 'N/A' for a value that the GPU does not have. It calls its library through ctypes, which releases the
GIL. On a partitioned GPU (CPX, NPS4) the values are those of the whole board.

Functions that measure over an interval of their own (amdsmi_get_gpu_pci_throughput, amdsmi_get_violation_status) are
not used, since they block. Throttling is derived from counters that have grown since the last sample.
"""

import importlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final

from rankscope.agent.guard import log_line
from rankscope.agent.sample.torch_device import TorchDevice
from rankscope.measure.clock import Clock
from rankscope.measure.nvml_calls import (
    BYTES_PER_KIB,
    HERTZ_PER_MEGAHERTZ,
    PERCENT,
    Absent,
    Reading,
)
from rankscope.measure.records import DeviceSample
from rankscope.measure.units import NS_PER_S

RETRY_NS_FIRST = 10 * NS_PER_S
RETRY_NS_MAX = 600 * NS_PER_S
MICROWATTS_PER_WATT = 1_000_000
MICROJOULES_PER_JOULE = 1_000_000

THROTTLE_COUNTERS: Final[Mapping[str, str]] = {
    "prochot_residency_acc": "processor_hot_thermal",
    "ppt_residency_acc": "package_power",
    "socket_thm_residency_acc": "socket_thermal",
    "vr_thm_residency_acc": "voltage_regulator_thermal",
    "hbm_thm_residency_acc": "memory_thermal",
}
"""Throttle reason by counter of the GPU's metrics (1.6 and newer: MI300). Detection uses the words `thermal` and
`power`."""

UNNAMED_REASON = "unspecified"
"""Older GPUs report only whether they throttle, without a reason."""

LINK_COUNTERS: Final[Mapping[str, str]] = {
    "xgmi_tx_bytes": "xgmi_write_data_acc",
    "xgmi_rx_bytes": "xgmi_read_data_acc",
}
METRICS_FIELDS = ("throttle_reasons", *LINK_COUNTERS, "pcie_link_width")

NOT_COUNTED: Final = ("pcie_tx_bytes", "pcie_rx_bytes")
"""The metrics have only the sum of both directions, in an unsuitable unit."""

PCIE_WIDTH: Final = "pcie_link_width"
"""Name of the field, and of the counter in the metrics: the lanes in use."""
NOT_IN_METRICS: Final = ("pcie_link_width_max", "pcie_link_generation", "pcie_link_generation_max")
"""Would take a further call each time."""

ONLY_NVIDIA: Final = (
    "nvlink_tx_bytes", "nvlink_rx_bytes", "remapped_rows_correctable", "remapped_rows_uncorrectable",
    "remapping_pending", "remapping_failed", "xid_count", "xid_last", "sm_active_ratio", "sm_occupancy_ratio",
    "tensor_active_ratio", "dram_bandwidth_ratio", "nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s",
)  # fmt: skip

NEVER: Final[Mapping[str, str]] = {
    **dict.fromkeys(NOT_COUNTED, "not_counted_by_direction"),
    **dict.fromkeys(NOT_IN_METRICS, "not_in_the_metrics"),
    **dict.fromkeys(ONLY_NVIDIA, "not_on_amd"),
}
"""Fields that are never measured on AMD, with the reason."""

NOT_AVAILABLE = Absent("not_available")
OUT_OF_RANGE = Absent("out_of_range")
FIRST_SAMPLE = Absent("needs_two_samples")
NO_ADDRESS = "torch_tells_no_pci_address"


class _Readings:
    """All readings of one GPU."""

    def __init__(self, module: ModuleType, handle: Any) -> None:
        self._module, self._handle = module, handle
        self._before: dict[str, int] | None = None
        self._readings = (
            Reading(("utilization_ratio",), self._read_utilization),
            Reading(("memory_used_bytes", "memory_total_bytes"), self._read_memory),
            Reading(("power_watts",), self._read_power),
            Reading(("power_limit_watts",), self._read_power_limit),
            Reading(("temperature_celsius",), self._read_temperature),
            Reading(("sm_clock_hertz",), lambda: self._read_clock("GFX")),
            Reading(("memory_clock_hertz",), lambda: self._read_clock("MEM")),
            Reading(("ecc_corrected", "ecc_uncorrected"), self._read_ecc),
            Reading(METRICS_FIELDS, self._read_metrics),
            Reading(("energy_joules",), self._read_energy),
        )
        self._energy_first: float | None = None

    def read(self) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the values by field, and the reasons of missing ones."""
        values: dict[str, Any] = {}
        absent: dict[str, str] = {}
        for reading in self._readings:
            for field, value in zip(reading.fields, self._read_one(reading), strict=True):
                if isinstance(value, Absent):
                    absent[field] = value.reason
                else:
                    values[field] = value
        return values, absent

    def _read_one(self, reading: Reading) -> tuple[Any, ...]:
        try:
            return reading.read()
        except (self._module.AmdSmiException, AttributeError, KeyError) as error:  # names differ between its releases
            return (Absent(_reason(error)),) * len(reading.fields)

    def _read_utilization(self) -> tuple[Any]:
        percent = _number(self._module.amdsmi_get_gpu_activity(self._handle)["gfx_activity"])
        if isinstance(percent, Absent):
            return (percent,)
        return (percent / PERCENT if 0 <= percent <= PERCENT else OUT_OF_RANGE,)

    def _read_memory(self) -> tuple[int, int]:
        """Return used and total memory in bytes; amdsmi_get_gpu_vram_usage has only MiB."""
        module, kind = self._module, self._module.AmdSmiMemoryType.VRAM
        used = module.amdsmi_get_gpu_memory_usage(self._handle, kind)
        return int(used), int(module.amdsmi_get_gpu_memory_total(self._handle, kind))

    def _read_power(self) -> tuple[Any]:
        """Return the recent mean power; newer GPUs have only the present one."""
        power = self._module.amdsmi_get_power_info(self._handle)
        mean = _number(power["average_socket_power"])
        watts = _number(power["current_socket_power"]) if isinstance(mean, Absent) else mean
        return (watts if isinstance(watts, Absent) else float(watts),)

    def _read_power_limit(self) -> tuple[Any]:
        microwatts = _number(self._module.amdsmi_get_power_cap_info(self._handle)["power_cap"])
        return (microwatts if isinstance(microwatts, Absent) else microwatts / MICROWATTS_PER_WATT,)

    def _read_energy(self) -> tuple[float | Absent]:
        """Return what the GPU has used since the first reading, from a counter and its resolution in uJ. Of the two
        devices of one package only one counts; the other's stays 0.
        """
        count = self._module.amdsmi_get_energy_count(self._handle)
        total = count["energy_accumulator"] if "energy_accumulator" in count else count["power"]  # before ROCm 6.2
        counted, resolution = _number(total), _number(count["counter_resolution"])
        if isinstance(counted, Absent) or isinstance(resolution, Absent) or not counted:
            return (NOT_AVAILABLE,)
        now = counted * resolution / MICROJOULES_PER_JOULE
        if self._energy_first is None:
            self._energy_first = now
        return (max(0.0, now - self._energy_first),)

    def _read_temperature(self) -> tuple[float]:
        """Return the hotspot temperature, which limits the clocks and is the only one of newer GPUs."""
        module = self._module
        sensor, metric = module.AmdSmiTemperatureType.JUNCTION, module.AmdSmiTemperatureMetric.CURRENT
        return (float(module.amdsmi_get_temp_metric(self._handle, sensor, metric)),)

    def _read_clock(self, name: str) -> tuple[Any]:
        clock = self._module.amdsmi_get_clock_info(self._handle, self._module.AmdSmiClkType[name])
        megahertz = _number(clock["clk"] if "clk" in clock else clock["cur_clk"])  # its name before ROCm 6.2
        return (megahertz if isinstance(megahertz, Absent) else megahertz * HERTZ_PER_MEGAHERTZ,)

    def _read_ecc(self) -> tuple[Any, Any]:
        counts = self._module.amdsmi_get_gpu_total_ecc_count(self._handle)
        return _number(counts["correctable_count"]), _number(counts["uncorrectable_count"])

    def _read_metrics(self) -> tuple[Any, ...]:
        metrics = self._module.amdsmi_get_gpu_metrics_info(self._handle)
        links = (_add_up(metrics[counter]) for counter in LINK_COUNTERS.values())
        return (self._name_throttling(metrics), *links, _number(metrics.get(PCIE_WIDTH)))

    def _name_throttling(self, metrics: Mapping[str, Any]) -> tuple[str, ...] | Absent:
        values = {counter: _number(metrics.get(counter)) for counter in THROTTLE_COUNTERS}
        counted = {counter: value for counter, value in values.items() if not isinstance(value, Absent)}
        before, self._before = self._before, counted
        if not counted:
            throttles = metrics.get("throttle_status")
            return NOT_AVAILABLE if not isinstance(throttles, bool) else (UNNAMED_REASON,) * throttles
        if before is None:
            return FIRST_SAMPLE
        return tuple(
            THROTTLE_COUNTERS[counter] for counter, value in counted.items() if value > before.get(counter, value)
        )


FIELDS = (
    "utilization_ratio", "memory_used_bytes", "memory_total_bytes", "power_watts", "power_limit_watts",
    "temperature_celsius", "sm_clock_hertz", "memory_clock_hertz", "ecc_corrected", "ecc_uncorrected", *METRICS_FIELDS,
    "energy_joules",
)  # fmt: skip
"""The fields of DeviceSample that amdsmi fills."""


class AmdSampler:
    """The sampler of the GPU that `read_device` returns. For one thread.

    `on_unavailable` gets a sentence for the user if amdsmi cannot be used at all. No method raises an amdsmi error.
    """

    def __init__(
        self,
        clock: Clock,
        read_device: Callable[[], TorchDevice | None],
        *,
        on_unavailable: Callable[[str], None] = log_line,
    ) -> None:
        self._clock = clock
        self._read_device = read_device
        self._on_unavailable = on_unavailable
        self._unavailable: str | None = None
        self._module: ModuleType | None = None
        self._readings: _Readings | None = None
        self._uuid = ""
        self._model = ""
        self._absent_reason = ""
        self._retry_ns: int | None = None
        self._retry_wait_ns = RETRY_NS_FIRST

    @property
    def unavailable(self) -> str | None:
        """Reason why amdsmi is not used at all, for example 'not_installed'; None while it is, or is not needed."""
        return self._unavailable

    def sample(self) -> tuple[DeviceSample, ...]:
        """Return one sample of the rank's GPU; empty without an AMD GPU or without amdsmi."""
        device = None if self._unavailable is not None else self._read_device()
        if device is None or not device.is_amd:
            return ()
        module = self._module or self._open()
        if module is None:
            return ()
        now_ns = self._clock.monotonic_ns()
        if self._readings is None and (self._retry_ns is None or now_ns >= self._retry_ns):
            self._find(module, device, now_ns)
        values, absent = self._read(now_ns)
        return (DeviceSample(host_ns=now_ns, uuid=self._uuid, model=self._model, absent={**NEVER, **absent}, **values),)

    def close(self) -> None:
        """Close amdsmi, which counts its users, so torch is not affected. From then on sample() returns ()."""
        module, self._module, self._readings = self._module, None, None
        self._unavailable = self._unavailable or "closed"
        if module is not None:
            try:
                module.amdsmi_shut_down()
            except module.AmdSmiException:
                return  # the driver may be gone already

    def _open(self) -> ModuleType | None:
        cure = "install the amdsmi package that comes with ROCm, and let the process find its libamd_smi.so"
        try:
            module = importlib.import_module("amdsmi")
        except Exception as error:  # noqa: BLE001 - without its library the package may fail in any way
            reason = "not_installed" if isinstance(error, ImportError) else "library_not_found"
            self._give_up(reason, f"{type(error).__name__}: {error}; {cure}")
            return None
        try:
            module.amdsmi_init()
        except module.AmdSmiException as error:
            text = f"amdsmi_init failed with {_reason(error)}; {cure}; a container needs /dev/kfd"
            self._give_up(_reason(error), text)
            return None
        self._module = module
        return module

    def _give_up(self, reason: str, explanation: str) -> None:
        self._unavailable = reason
        self._on_unavailable(f"GPU sensors are not read ({reason}): {explanation}. Everything else is measured")

    def _find(self, module: ModuleType, device: TorchDevice, now_ns: int) -> None:
        try:
            handle = _find_handle(module, device.pci_address)
            if handle is None:
                self._lose(NO_ADDRESS, now_ns)
                return
            self._uuid = str(module.amdsmi_get_gpu_device_uuid(handle))
        except module.AmdSmiException as error:
            self._lose(_reason(error), now_ns)
            return
        self._model = self._read_model(module, handle)
        self._readings = _Readings(module, handle)

    def _lose(self, reason: str, now_ns: int) -> None:
        """Make no amdsmi call for a while. The wait doubles until a value is read again."""
        self._readings = None
        self._absent_reason = reason
        self._retry_ns = now_ns + self._retry_wait_ns
        self._retry_wait_ns = min(2 * self._retry_wait_ns, RETRY_NS_MAX)

    def _read(self, now_ns: int) -> tuple[dict[str, Any], dict[str, str]]:
        if self._readings is not None:
            values, absent = self._readings.read()
            if values:
                self._retry_wait_ns = RETRY_NS_FIRST
                return values, absent
            self._lose(absent[FIELDS[0]], now_ns)
        return {}, dict.fromkeys(FIELDS, self._absent_reason)

    @staticmethod
    def _read_model(module: ModuleType, handle: Any) -> str:
        try:
            name = str(module.amdsmi_get_gpu_asic_info(handle)["market_name"])
        except (module.AmdSmiException, KeyError):
            return ""
        return "" if name == "N/A" else name


def _find_handle(module: ModuleType, pci_address: str | None) -> Any:
    """Return the GPU at the PCI address; without an address the only GPU, or None if there are several."""
    if pci_address is not None:
        return module.amdsmi_get_processor_handle_from_bdf(pci_address)
    handles = module.amdsmi_get_processor_handles()
    return handles[0] if len(handles) == 1 else None


def _reason(error: Exception) -> str:
    """Return an amdsmi error as a short name, 'no_perm'; one without a code by its type."""
    if hasattr(error, "get_error_info"):
        return str(error.get_error_info(detailed=False)).removeprefix("AMDSMI_STATUS_").lower()
    return "not_in_this_amdsmi" if isinstance(error, AttributeError | KeyError) else type(error).__name__


def _number(value: Any) -> Any:
    """Return the value if it is a number, else the reason of absence."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else NOT_AVAILABLE


def _add_up(links: Any) -> int | Absent:
    """Return the bytes of all links, which are counted in KiB; links that the board lacks are 'N/A'."""
    counted = [link for link in links if not isinstance(_number(link), Absent)] if isinstance(links, list) else []
    return sum(counted) * BYTES_PER_KIB if counted else NOT_AVAILABLE
