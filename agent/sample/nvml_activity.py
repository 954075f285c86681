"""How busy a GPU's parts were since the last sample, from its own performance counters (GPM; Hopper and newer).

NVML computes each value from two snapshots of the counters: the one of now and the one of the sample before. It needs
no profiler and no permission of its own.
"""

import contextlib
import math
from typing import Any

from rankscope.agent.sample.nvml_calls import BYTES_PER_MIB, PERCENT, Absent, Device, Nvml, Reading

METRICS = {
    "sm_active_ratio": ("NVML_GPM_METRIC_SM_UTIL", PERCENT),
    "sm_occupancy_ratio": ("NVML_GPM_METRIC_SM_OCCUPANCY", PERCENT),
    "tensor_active_ratio": ("NVML_GPM_METRIC_ANY_TENSOR_UTIL", PERCENT),
    "dram_bandwidth_ratio": ("NVML_GPM_METRIC_DRAM_BW_UTIL", PERCENT),
    "nvlink_tx_bytes_per_s": ("NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC", 1 / BYTES_PER_MIB),
    "nvlink_rx_bytes_per_s": ("NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC", 1 / BYTES_PER_MIB),
}
"""NVML's name of each field, and how many of NVML's units (per cent, MiB/s) are one of ours."""

FIELDS = tuple(METRICS)

FIRST_SAMPLE = Absent("needs_two_samples")
NOT_SUPPORTED = Absent("not_supported")
NOT_A_NUMBER = Absent("not_a_number")


class ActivityReadings:
    """Holds the two snapshots of one device, and what NVML computes from them."""

    def __init__(self, nvml: Nvml, device: Device) -> None:
        self._nvml, self._device = nvml, device
        self._instance: int | None = None
        self._snapshots: list[Any] = []
        self._has_earlier = False
        self._absent = NOT_SUPPORTED
        self.readings = (Reading(FIELDS, self._read),)
        try:
            self._open()
        except nvml.error_type as error:
            self.close()
            self._absent = Absent(nvml.reason(error))

    def close(self) -> None:
        """Give the snapshots back; from then on there are no values."""
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
        # 20 kB with room for every metric there is, so it is made once.
        self._request = module.c_nvmlGpmMetricsGet_t()
        self._request.version = module.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(METRICS)
        for place, (name, _) in enumerate(METRICS.values()):
            self._request.metrics[place].metricId = getattr(module, name)

    def _read(self) -> tuple[float | Absent, ...]:
        if not self._snapshots:
            return (self._absent,) * len(FIELDS)
        earlier, later = self._snapshots
        has_earlier, self._has_earlier = self._has_earlier, False
        self._take(later)
        self._has_earlier = True
        self._snapshots.reverse()  # what is later now is the earlier one of the next sample
        if not has_earlier:
            return (FIRST_SAMPLE,) * len(FIELDS)
        self._request.sample1, self._request.sample2 = earlier, later
        self._nvml.module.nvmlGpmMetricsGet(self._request)
        return tuple(self._to_ours(place, unit) for place, (_, unit) in enumerate(METRICS.values()))

    def _take(self, snapshot: Any) -> None:
        module, board = self._nvml.module, self._device.board
        if self._instance is None:
            module.nvmlGpmSampleGet(board, snapshot)
        else:
            module.nvmlGpmMigSampleGet(board, self._instance, snapshot)

    def _to_ours(self, place: int, unit: float) -> float | Absent:
        metric = self._request.metrics[place]
        if metric.nvmlReturn != self._nvml.module.NVML_SUCCESS:
            return self._nvml.absent(metric.nvmlReturn)
        return float(metric.value) / unit if math.isfinite(metric.value) else NOT_A_NUMBER
