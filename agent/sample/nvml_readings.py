"""Reads the values of one GPU from NVML: state, traffic, PCIe link, memory errors and Xids, activity of its units.

State: utilization, memory, power and energy, temperature, clocks, and what throttles the clocks.

Traffic: bytes over NVLink and PCIe so far, from counters of the board, in one call. nvmlDeviceGetPcieThroughput is not
used, since it waits 20 ms for each direction.

PCIe link: its width and generation, now and at most.

Faults: ECC errors, remapped rows of memory, and Xids, which are the driver's numbers of GPU errors (79: it has fallen
off the bus). NVML reports Xids as events, collected without waiting from a set that is registered once. Reading a set
needs no access to the device, so the Xid of a lost GPU is found too.

Activity: the use of SMs, tensor cores, memory bandwidth and NVLink since the last sample, which NVML computes from two
snapshots of performance counters (GPM; Hopper and newer). It needs neither a profiler nor special permissions.
"""

import contextlib
import math
from functools import partial
from typing import Any, Final

from rankscope.measure.nvml_calls import (
    BYTES_PER_KIB,
    BYTES_PER_MIB,
    HERTZ_PER_MEGAHERTZ,
    MILLIJOULES_PER_JOULE,
    MILLIWATTS_PER_WATT,
    PERCENT,
    Absent,
    Call,
    Device,
    Nvml,
    Reading,
)

STATE_FIELDS = (
    "utilization_ratio",
    "memory_used_bytes",
    "memory_total_bytes",
    "power_watts",
    "temperature_celsius",
    "sm_clock_hertz",
    "throttle_reasons",
    "memory_clock_hertz",
    "power_limit_watts",
    "energy_joules",
)

THROTTLE_REASONS = {
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
    0x200: "board_limit",
    0x400: "reliability",
}
"""nvmlClocksEventReason* (before driver 535: nvmlClocksThrottleReason*) by its bit."""

GPU_IDLE = 0x001
APPLICATIONS_CLOCKS_SETTING = 0x002
"""Not throttling: an idle GPU, and clocks set by the administrator."""


def name_throttle_reasons(mask: int) -> tuple[str, ...]:
    """Return the reasons in NVML's bit mask, lowest bit first; empty if the clocks are not throttled.

    >>> name_throttle_reasons(0x028), name_throttle_reasons(GPU_IDLE), name_throttle_reasons(0x1000)
    (('hw_slowdown', 'sw_thermal_slowdown'), (), ('bit_12',))
    """
    held = mask & ~(GPU_IDLE | APPLICATIONS_CLOCKS_SETTING)
    bits = (bit for bit in range(held.bit_length()) if held >> bit & 1)
    return tuple(THROTTLE_REASONS.get(1 << bit, f"bit_{bit}") for bit in bits)


OF_THE_BOARD = Absent("counted_for_the_whole_board")
"""Slices of one board would each have the energy of all."""


class StateReadings:
    """The state of one GPU, each value read separately and converted to the units of DeviceSample."""

    def __init__(self, nvml: Nvml, device: Device) -> None:
        module = nvml.module
        self._module, self._device = module, device
        self._memory = nvml.find_memory_call()
        # pynvml will remove the old names of the next two with CUDA 14; all present drivers have the first one.
        sensor = module.NVML_TEMPERATURE_GPU
        self._temperature = Call(module, ("nvmlDeviceGetTemperature", sensor), ("nvmlDeviceGetTemperatureV", sensor))
        self._throttle_mask = Call(
            module, ("nvmlDeviceGetCurrentClocksEventReasons",), ("nvmlDeviceGetCurrentClocksThrottleReasons",)
        )
        self.readings = (
            Reading(("utilization_ratio",), self._read_utilization),
            Reading(("memory_used_bytes", "memory_total_bytes"), self._read_memory),
            Reading(("power_watts",), self._read_power),
            Reading(("temperature_celsius",), self._read_temperature),
            Reading(("sm_clock_hertz",), partial(self._read_clock, module.NVML_CLOCK_SM)),
            Reading(("throttle_reasons",), self._read_throttle_reasons),
            Reading(("memory_clock_hertz",), partial(self._read_clock, module.NVML_CLOCK_MEM)),
            Reading(("power_limit_watts",), self._read_power_limit),
            Reading(("energy_joules",), self._read_energy),
        )
        self._energy_first: int | None = None

    def _read_utilization(self) -> tuple[float]:
        """Return the share of the driver's last sampling period (1/6 s to 1 s) in which any kernel ran."""
        return (self._module.nvmlDeviceGetUtilizationRates(self._device.board).gpu / PERCENT,)

    def _read_memory(self) -> tuple[int, int]:
        memory = self._memory(self._device.own)
        return int(memory.used), int(memory.total)

    def _read_power(self) -> tuple[float]:
        return (self._module.nvmlDeviceGetPowerUsage(self._device.board) / MILLIWATTS_PER_WATT,)

    def _read_power_limit(self) -> tuple[float]:
        """Return the lowest of all limits in force."""
        return (self._module.nvmlDeviceGetEnforcedPowerLimit(self._device.board) / MILLIWATTS_PER_WATT,)

    def _read_energy(self) -> tuple[float | Absent]:
        """Return what the board has used since the first reading; NVML counts mJ since the driver was loaded."""
        if self._device.is_slice:
            return (OF_THE_BOARD,)
        now = int(self._module.nvmlDeviceGetTotalEnergyConsumption(self._device.board))
        if self._energy_first is None:
            self._energy_first = now
        return (max(0, now - self._energy_first) / MILLIJOULES_PER_JOULE,)

    def _read_temperature(self) -> tuple[float]:
        return (float(self._temperature(self._device.board)),)

    def _read_clock(self, clock: Any) -> tuple[int]:
        return (self._module.nvmlDeviceGetClockInfo(self._device.board, clock) * HERTZ_PER_MEGAHERTZ,)

    def _read_throttle_reasons(self) -> tuple[tuple[str, ...]]:
        return (name_throttle_reasons(self._throttle_mask(self._device.board)),)


TRAFFIC_FIELDS = ("nvlink_tx_bytes", "nvlink_rx_bytes", "pcie_tx_bytes", "pcie_rx_bytes")

ALL_LINKS = 0xFFFF_FFFF
"""The scope in which NVML adds up all links of a device."""

ASKED = {
    "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX": (138, ALL_LINKS),
    "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX": (139, ALL_LINKS),
    "NVML_FI_DEV_PCIE_COUNT_TX_BYTES": (197, 0),
    "NVML_FI_DEV_PCIE_COUNT_RX_BYTES": (198, 0),
}
"""Numbers and scopes in the order of TRAFFIC_FIELDS, by NVML's names; pynvml before 12.560 lacks the last two."""

UNITS_BYTES = (BYTES_PER_KIB, BYTES_PER_KIB, 1, 1)

WRAPS = Absent("counter_of_32_bits_wraps")
"""At 64 GB/s a PCIe byte counter of 32 bits wraps 15 times a second, so no rate can be computed."""


class TrafficReadings:
    """The traffic of the board, also for a slice of it."""

    def __init__(self, nvml: Nvml, device: Device) -> None:
        self._nvml, self._device = nvml, device
        self._asked = list(ASKED.values())
        self.readings = (Reading(TRAFFIC_FIELDS, self._read),)

    def _read(self) -> tuple[int | Absent, ...]:
        values = self._nvml.module.nvmlDeviceGetFieldValues(self._device.board, self._asked)
        return tuple(self._to_bytes(value, unit) for value, unit in zip(values, UNITS_BYTES, strict=True))

    def _to_bytes(self, value: Any, unit_bytes: int) -> int | Absent:
        module = self._nvml.module
        if value.nvmlReturn != module.NVML_SUCCESS:
            return self._nvml.absent(value.nvmlReturn)
        if value.valueType == module.NVML_VALUE_TYPE_UNSIGNED_INT:
            return WRAPS
        return int(value.value.ullVal) * unit_bytes


PCIE_CALLS: Final = {
    "pcie_link_width": "nvmlDeviceGetCurrPcieLinkWidth",
    "pcie_link_width_max": "nvmlDeviceGetMaxPcieLinkWidth",
    "pcie_link_generation": "nvmlDeviceGetCurrPcieLinkGeneration",
    "pcie_link_generation_max": "nvmlDeviceGetMaxPcieLinkGeneration",
}
PCIE_FIELDS = tuple(PCIE_CALLS)


class PcieReadings:
    """The PCIe link of the board: what it has, and the most that this board and this slot can have together.

    A GPU lowers its generation while it is idle.
    """

    def __init__(self, nvml: Nvml, device: Device) -> None:
        self._module, self._board = nvml.module, device.board
        self.readings = tuple(Reading((field,), partial(self._read, name)) for field, name in PCIE_CALLS.items())

    def _read(self, name: str) -> tuple[int]:
        return (int(getattr(self._module, name)(self._board)),)


ECC_FIELDS = ("ecc_corrected", "ecc_uncorrected")
REMAP_FIELDS = ("remapped_rows_correctable", "remapped_rows_uncorrectable", "remapping_pending", "remapping_failed")
XID_FIELDS = ("xid_count", "xid_last")

EVENTS_MAX = 64
"""Largest number of events read in one sample. Further ones wait in the driver for the next."""

ANY_INSTANCE: Final = 0xFFFF_FFFF
"""The instance of an event that NVML does not attribute to one slice of the board."""

NOT_WATCHED = Absent("not_watched")
NONE_SEEN = Absent("none_seen")


class FaultReadings:
    """The memory errors of the board, which are not counted by slice. ECC counts start when the driver is loaded."""

    def __init__(self, nvml: Nvml, device: Device) -> None:
        self._module, self._device = nvml.module, device
        self.readings = (
            Reading(ECC_FIELDS[:1], partial(self._read_ecc, nvml.module.NVML_MEMORY_ERROR_TYPE_CORRECTED)),
            Reading(ECC_FIELDS[1:], partial(self._read_ecc, nvml.module.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)),
            Reading(REMAP_FIELDS, self._read_remaps),
        )

    def _read_ecc(self, kind: Any) -> tuple[int]:
        board, since_driver_load = self._device.board, self._module.NVML_VOLATILE_ECC
        return (int(self._module.nvmlDeviceGetTotalEccErrors(board, kind, since_driver_load)),)

    def _read_remaps(self) -> tuple[int, int, bool, bool]:
        correctable, uncorrectable, is_pending, has_failed = self._module.nvmlDeviceGetRemappedRows(self._device.board)
        return int(correctable), int(uncorrectable), bool(is_pending), bool(has_failed)


class XidWatch:
    """Counter of the Xid errors of one GPU from the first `start` on, also while the GPU is lost."""

    def __init__(self) -> None:
        self._nvml: Nvml | None = None
        self._events: Any = None
        self._instance: int | None = None
        self._absent = NOT_WATCHED
        self._count: int | None = None
        self._last: int | None = None
        self.readings = (Reading(XID_FIELDS, self._read),)

    def start(self, nvml: Nvml, device: Device) -> None:
        """Register the device, replacing a previous registration. An NVML error is kept as the reason of absence."""
        self.collect_last()
        self.stop()
        self._nvml = nvml
        module = nvml.module
        try:
            self._instance = nvml.find_instance(device)
            self._events = module.nvmlEventSetCreate()
            module.nvmlDeviceRegisterEvents(device.board, module.nvmlEventTypeXidCriticalError, self._events)
        except nvml.error_type as error:
            self.stop()
            self._absent = Absent(nvml.reason(error))
        else:
            self._count = self._count or 0

    def stop(self) -> None:
        """Free the event set and keep the counts."""
        if self._nvml is not None and self._events is not None:
            with contextlib.suppress(self._nvml.error_type):  # a driver that is gone has forgotten it already
                self._nvml.module.nvmlEventSetFree(self._events)
        self._events = None
        self._absent = NOT_WATCHED

    def collect_last(self) -> dict[str, int | Absent]:
        """Collect pending events and return the fields for a sample of a lost GPU; empty if it was never registered."""
        if self._nvml is not None and self._events is not None:
            with contextlib.suppress(self._nvml.error_type):
                self._collect(self._nvml)
        return {} if self._count is None else dict(zip(XID_FIELDS, self._known(), strict=True))

    def _read(self) -> tuple[int | Absent, ...]:
        if self._nvml is None or self._events is None:
            return self._absent, self._absent
        self._collect(self._nvml)
        return self._known()

    def _known(self) -> tuple[int | Absent, int | Absent]:
        return self._count or 0, NONE_SEEN if self._last is None else self._last

    def _collect(self, nvml: Nvml) -> None:
        for _ in range(EVENTS_MAX):
            try:
                event = nvml.module.nvmlEventSetWait(self._events, 0)
            except nvml.module.NVMLError_Timeout:
                return
            if self._instance is None or event.gpuInstanceId in {self._instance, ANY_INSTANCE}:
                self._count = (self._count or 0) + 1
                self._last = int(event.eventData)


METRICS = {
    "sm_active_ratio": ("NVML_GPM_METRIC_SM_UTIL", PERCENT),
    "sm_occupancy_ratio": ("NVML_GPM_METRIC_SM_OCCUPANCY", PERCENT),
    "tensor_active_ratio": ("NVML_GPM_METRIC_ANY_TENSOR_UTIL", PERCENT),
    "dram_bandwidth_ratio": ("NVML_GPM_METRIC_DRAM_BW_UTIL", PERCENT),
    "nvlink_tx_bytes_per_s": ("NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC", 1 / BYTES_PER_MIB),
    "nvlink_rx_bytes_per_s": ("NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC", 1 / BYTES_PER_MIB),
}
"""NVML's name of each field, and the divisor that converts NVML's unit (per cent, MiB/s) to the field's unit."""

ACTIVITY_FIELDS = tuple(METRICS)

FIRST_SAMPLE = Absent("needs_two_samples")
NOT_SUPPORTED = Absent("not_supported")
NOT_A_NUMBER = Absent("not_a_number")


class ActivityReadings:
    """The activity of one device, computed by NVML from two snapshots."""

    def __init__(self, nvml: Nvml, device: Device) -> None:
        self._nvml, self._device = nvml, device
        self._instance: int | None = None
        self._snapshots: list[Any] = []
        self._has_earlier = False
        self._absent = NOT_SUPPORTED
        self.readings = (Reading(ACTIVITY_FIELDS, self._read),)
        try:
            self._open()
        except nvml.error_type as error:
            self.close()
            self._absent = Absent(nvml.reason(error))

    def close(self) -> None:
        """Free the snapshots; from then on there are no values."""
        for snapshot in self._snapshots:
            with contextlib.suppress(self._nvml.error_type):  # a driver that is gone has forgotten them already
                self._nvml.module.nvmlGpmSampleFree(snapshot)
        self._snapshots = []

    def _open(self) -> None:
        module = self._nvml.module
        if not module.nvmlGpmQueryDeviceSupport(self._device.board).isSupportedDevice:
            return
        self._instance = self._nvml.find_instance(self._device)
        for _ in range(2):
            self._snapshots.append(module.nvmlGpmSampleAlloc())
        # 20 kB with room for every metric, so it is made only once.
        self._request = module.c_nvmlGpmMetricsGet_t()
        self._request.version = module.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(METRICS)
        for place, (name, _) in enumerate(METRICS.values()):
            self._request.metrics[place].metricId = getattr(module, name)

    def _read(self) -> tuple[float | Absent, ...]:
        if not self._snapshots:
            return (self._absent,) * len(ACTIVITY_FIELDS)
        earlier, later = self._snapshots
        has_earlier, self._has_earlier = self._has_earlier, False
        self._capture(later)
        self._has_earlier = True
        self._snapshots.reverse()  # the later one is the earlier one of the next sample
        if not has_earlier:
            return (FIRST_SAMPLE,) * len(ACTIVITY_FIELDS)
        self._request.sample1, self._request.sample2 = earlier, later
        self._nvml.module.nvmlGpmMetricsGet(self._request)
        return tuple(self._convert(place, unit) for place, (_, unit) in enumerate(METRICS.values()))

    def _capture(self, snapshot: Any) -> None:
        module, board = self._nvml.module, self._device.board
        if self._instance is None:
            module.nvmlGpmSampleGet(board, snapshot)
        else:
            module.nvmlGpmMigSampleGet(board, self._instance, snapshot)

    def _convert(self, place: int, unit: float) -> float | Absent:
        metric = self._request.metrics[place]
        if metric.nvmlReturn != self._nvml.module.NVML_SUCCESS:
            return self._nvml.absent(metric.nvmlReturn)
        return float(metric.value) / unit if math.isfinite(metric.value) else NOT_A_NUMBER
