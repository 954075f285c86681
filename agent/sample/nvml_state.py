"""How a GPU is at this moment: utilisation, memory, power, heat, clocks, and what holds the clocks down."""

from functools import partial
from typing import Any

from rankscope.agent.sample.nvml_calls import (
    HERTZ_PER_MEGAHERTZ,
    MILLIWATTS_PER_WATT,
    PERCENT,
    Call,
    Device,
    Nvml,
    Reading,
)

FIELDS = (
    "utilization_ratio",
    "memory_used_bytes",
    "memory_total_bytes",
    "power_watts",
    "temperature_celsius",
    "sm_clock_hertz",
    "throttle_reasons",
    "memory_clock_hertz",
    "power_limit_watts",
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
"""Not throttling: nothing to do, and clocks that somebody has set on purpose."""


def name_throttle_reasons(mask: int) -> tuple[str, ...]:
    """The reasons in NVML's bit mask, lowest bit first; empty when the clocks are not held down.

    >>> name_throttle_reasons(0x028), name_throttle_reasons(GPU_IDLE), name_throttle_reasons(0x1000)
    (('hw_slowdown', 'sw_thermal_slowdown'), (), ('bit_12',))
    """
    held = mask & ~(GPU_IDLE | APPLICATIONS_CLOCKS_SETTING)
    bits = (bit for bit in range(held.bit_length()) if held >> bit & 1)
    return tuple(THROTTLE_REASONS.get(1 << bit, f"bit_{bit}") for bit in bits)


class StateReadings:
    """Asks for each value by itself, in our units."""

    def __init__(self, nvml: Nvml, device: Device) -> None:
        module = nvml.module
        self._module, self._device = module, device
        # The first version, with no number, counts what the driver keeps for itself as used.
        self._memory = Call(module, ("nvmlDeviceGetMemoryInfo", module.nvmlMemory_v2), ("nvmlDeviceGetMemoryInfo",))
        # pynvml announces that the old names of the next two go with CUDA 14; every driver in use has the first one.
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
        )

    def _read_utilization(self) -> tuple[float]:
        """The share of the driver's last sampling period (1/6 s to 1 s) in which any kernel ran."""
        return (self._module.nvmlDeviceGetUtilizationRates(self._device.board).gpu / PERCENT,)

    def _read_memory(self) -> tuple[int, int]:
        memory = self._memory(self._device.own)
        return int(memory.used), int(memory.total)

    def _read_power(self) -> tuple[float]:
        return (self._module.nvmlDeviceGetPowerUsage(self._device.board) / MILLIWATTS_PER_WATT,)

    def _read_power_limit(self) -> tuple[float]:
        """The lowest of all limits in force, also of those that nobody has set by hand."""
        return (self._module.nvmlDeviceGetEnforcedPowerLimit(self._device.board) / MILLIWATTS_PER_WATT,)

    def _read_temperature(self) -> tuple[float]:
        return (float(self._temperature(self._device.board)),)

    def _read_clock(self, clock: Any) -> tuple[int]:
        return (self._module.nvmlDeviceGetClockInfo(self._device.board, clock) * HERTZ_PER_MEGAHERTZ,)

    def _read_throttle_reasons(self) -> tuple[tuple[str, ...]]:
        return (name_throttle_reasons(self._throttle_mask(self._device.board)),)
