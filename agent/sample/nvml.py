"""Samples the NVIDIA GPU of this rank through NVML, the driver's library that nvidia-smi uses too.

    read_device_uuid() -> None              no CUDA in this process (yet), or an AMD GPU: NVML is not loaded
    nvmlInit fails                          logged once with the cure; from then on sample() returns () at no cost
    the GPU is not found, or gets lost      a sample with every field absent, with the reason, except the Xid errors of
                                            the loss; retried after 10 s, 20 s, ... 10 min without NVML calls between
    one value cannot be read                that field is None with its reason in `absent`; the others are measured

The values are read by nvml_readings.py. pynvml calls NVML through ctypes, which releases the GIL: a slow driver delays
only the calling thread.
"""

import importlib
from collections.abc import Callable
from typing import Any

from rankscope.agent.guard import log_line
from rankscope.agent.sample import nvml_readings
from rankscope.measure.clock import Clock
from rankscope.measure.nvml_calls import LOST_REASONS, Absent, Device, Nvml, Reading
from rankscope.measure.records import DeviceSample
from rankscope.measure.units import NS_PER_S

RETRY_NS_FIRST = 10 * NS_PER_S
RETRY_NS_MAX = 600 * NS_PER_S

FIELDS = (
    *nvml_readings.STATE_FIELDS,
    *nvml_readings.TRAFFIC_FIELDS,
    *nvml_readings.PCIE_FIELDS,
    *nvml_readings.ECC_FIELDS,
    *nvml_readings.REMAP_FIELDS,
    *nvml_readings.XID_FIELDS,
    *nvml_readings.ACTIVITY_FIELDS,
)
"""The fields of DeviceSample that NVML fills."""


class _LostError(Exception):
    """Raised when the whole device cannot be read; its text is the reason."""


class _DeviceReadings:
    """All readings of one device, from when it is found until it is lost or closed."""

    def __init__(self, nvml: Nvml, device: Device, xids: nvml_readings.XidWatch) -> None:
        self._nvml = nvml
        self._activity = nvml_readings.ActivityReadings(nvml, device)
        self._readings: tuple[Reading, ...] = (
            *nvml_readings.StateReadings(nvml, device).readings,
            *nvml_readings.TrafficReadings(nvml, device).readings,
            *nvml_readings.PcieReadings(nvml, device).readings,
            *nvml_readings.FaultReadings(nvml, device).readings,
            *xids.readings,
            *self._activity.readings,
        )

    def read(self) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the values by field, and the reasons of missing ones. Raise _LostError."""
        values: dict[str, Any] = {}
        absent: dict[str, str] = {}
        for reading in self._readings:
            for field, value in zip(reading.fields, self._read_one(reading), strict=True):
                if not isinstance(value, Absent):
                    values[field] = value
                    continue
                absent[field] = value.reason
                if value.reason in LOST_REASONS:
                    raise _LostError(value.reason)
        if values.keys() <= set(nvml_readings.XID_FIELDS):  # these come from the driver, not from the device
            raise _LostError(absent[FIELDS[0]])
        return values, absent

    def close(self) -> None:
        """Free what NVML holds for these readings."""
        self._activity.close()

    def _read_one(self, reading: Reading) -> tuple[Any, ...]:
        try:
            return reading.read()
        except self._nvml.error_type as error:
            return (Absent(self._nvml.reason(error)),) * len(reading.fields)


class NvmlSampler:
    """The sampler of the GPU whose UUID `read_device_uuid` returns. For one thread.

    `on_unavailable` gets a sentence for the user if NVML cannot be used at all. No method raises an NVML error.
    """

    def __init__(
        self,
        clock: Clock,
        read_device_uuid: Callable[[], str | None],
        *,
        on_unavailable: Callable[[str], None] = log_line,
    ) -> None:
        self._clock = clock
        self._read_device_uuid = read_device_uuid
        self._on_unavailable = on_unavailable
        self._unavailable: str | None = None
        self._nvml: Nvml | None = None
        self._readings: _DeviceReadings | None = None
        self._xids = nvml_readings.XidWatch()
        self._asked_uuid = ""
        self._uuid = ""
        self._model = ""
        self._absent_reason = ""
        self._lost_xids: dict[str, int | Absent] = {}
        self._retry_ns = 0
        self._retry_wait_ns = RETRY_NS_FIRST

    @property
    def unavailable(self) -> str | None:
        """Reason why NVML is not used at all, for example 'driver_not_loaded'; None while it is, or is not needed."""
        return self._unavailable

    def sample(self) -> tuple[DeviceSample, ...]:
        """Return one sample of the rank's GPU; empty without a GPU or without NVML."""
        if self._unavailable is not None:
            return ()
        uuid = self._read_device_uuid()
        nvml = None if uuid is None else self._nvml or self._open()
        if uuid is None or nvml is None:
            return ()
        now_ns = self._clock.monotonic_ns()
        if uuid != self._asked_uuid:
            self._begin_with(uuid, now_ns)
        if self._readings is None and now_ns >= self._retry_ns:
            self._find(nvml, now_ns)
        if self._readings is None:
            return (self._absent_sample(now_ns),)
        return (self._read(self._readings, now_ns),)

    def close(self) -> None:
        """Close NVML. From then on sample() returns ()."""
        self._close_readings()
        self._xids.stop()
        if self._nvml is not None:
            self._nvml.shutdown()
        self._nvml = None
        self._unavailable = self._unavailable or "closed"

    def _open(self) -> Nvml | None:
        try:
            module = importlib.import_module("pynvml")
        except ImportError as error:
            self._give_up("pynvml_not_installed", f"{error}; install nvidia-ml-py")
            return None
        nvml = Nvml(module)
        try:
            module.nvmlInit()
        except module.NVMLError as error:
            cure = (
                "the NVIDIA driver's libnvidia-ml.so.1 must be found and fit the loaded driver; a container needs "
                "`utility` in NVIDIA_DRIVER_CAPABILITIES"
            )
            self._give_up(nvml.reason(error), f"nvmlInit failed with {error}; {cure}")
            return None
        self._nvml = nvml
        return nvml

    def _give_up(self, reason: str, explanation: str) -> None:
        self._unavailable = reason
        self._on_unavailable(f"GPU sensors are not read ({reason}): {explanation}. Everything else is measured")

    def _begin_with(self, uuid: str, now_ns: int) -> None:
        self._close_readings()
        self._xids.stop()
        self._xids = nvml_readings.XidWatch()
        self._asked_uuid = uuid
        self._uuid = uuid
        self._model = ""
        self._retry_ns = now_ns
        self._retry_wait_ns = RETRY_NS_FIRST

    def _find(self, nvml: Nvml, now_ns: int) -> None:
        try:
            device = nvml.find_device(self._asked_uuid)
        except nvml.error_type as error:
            self._lose(nvml.reason(error), now_ns)
            return
        self._uuid, self._model = device.uuid, device.model
        self._xids.start(nvml, device)
        self._readings = _DeviceReadings(nvml, device, self._xids)

    def _close_readings(self) -> None:
        if self._readings is not None:
            self._readings.close()
        self._readings = None

    def _lose(self, reason: str, now_ns: int) -> None:
        """Drop the handle and make no NVML call for a while. The wait doubles until a value is read again.

        Pending Xids are collected first, since they may explain the loss.
        """
        self._close_readings()
        self._absent_reason = reason
        self._lost_xids = self._xids.collect_last()
        self._retry_ns = now_ns + self._retry_wait_ns
        self._retry_wait_ns = min(2 * self._retry_wait_ns, RETRY_NS_MAX)

    def _read(self, readings: _DeviceReadings, now_ns: int) -> DeviceSample:
        try:
            values, absent = readings.read()
        except _LostError as lost:
            self._lose(str(lost), now_ns)
            return self._absent_sample(now_ns)
        self._retry_wait_ns = RETRY_NS_FIRST
        return DeviceSample(host_ns=now_ns, uuid=self._uuid, model=self._model, absent=absent, **values)

    def _absent_sample(self, now_ns: int) -> DeviceSample:
        known: dict[str, Any] = {}
        absent = dict.fromkeys(FIELDS, self._absent_reason)
        for field, value in self._lost_xids.items():
            if isinstance(value, Absent):
                absent[field] = value.reason
            else:
                del absent[field]
                known[field] = value
        return DeviceSample(host_ns=now_ns, uuid=self._uuid, model=self._model, absent=absent, **known)
