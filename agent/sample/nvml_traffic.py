"""What has gone over a GPU's NVLinks and its PCIe bus so far: counters of the board, all of them in one call.

nvmlDeviceGetPcieThroughput is not used: it waits 20 ms for each direction, twice what a whole sample may take.
"""

from typing import Any

from rankscope.agent.sample.nvml_calls import BYTES_PER_KIB, Absent, Device, Nvml, Reading

FIELDS = ("nvlink_tx_bytes", "nvlink_rx_bytes", "pcie_tx_bytes", "pcie_rx_bytes")

ALL_LINKS = 0xFFFF_FFFF
"""The scope in which NVML adds up a device's links itself."""

ASKED = {
    "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX": (138, ALL_LINKS),
    "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX": (139, ALL_LINKS),
    "NVML_FI_DEV_PCIE_COUNT_TX_BYTES": (197, 0),
    "NVML_FI_DEV_PCIE_COUNT_RX_BYTES": (198, 0),
}
"""Numbers and scopes in the order of FIELDS, by NVML's names; pynvml before 12.560 does not know the last two."""

UNITS_BYTES = (BYTES_PER_KIB, BYTES_PER_KIB, 1, 1)

WRAPS = Absent("counter_of_32_bits_wraps")
"""A PCIe bus of 64 GB/s goes around 32 bits of bytes 15 times a second: no rate can be had from that."""


class TrafficReadings:
    """Asks the board, also for a slice of it."""

    def __init__(self, nvml: Nvml, device: Device) -> None:
        self._nvml, self._device = nvml, device
        self._asked = list(ASKED.values())
        self.readings = (Reading(FIELDS, self._read),)

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
