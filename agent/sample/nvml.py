"""The GPU of this rank, from NVML: the driver's own library, which also nvidia-smi reads.

    read_device_uuid() -> None              no CUDA in this process (yet), or an AMD GPU: NVML is not even loaded
    nvmlInit fails                          said once, with the cure; from then on sample() returns () at no cost
    the GPU is not found, or gets lost      a sample with every field absent, and why, but the Xid errors that came
                                            with the loss; looked for again after 10 s, 20 s, ... 10 min, and in
                                            between NVML is left alone
    one value cannot be read                that field is None, `absent` says why; the others are measured

What is read stands in nvml_state.py, nvml_traffic.py, nvml_faults.py and nvml_activity.py. pynvml calls NVML through
ctypes, which lets go of the GIL: a driver that answers slowly holds up only its caller. Its own part of a sample is
about 0.1 ms (Python 3.11, against tests/nvml_stand_in); what a real driver adds has not been measured.
"""

import importlib
from collections.abc import Callable
from typing import Any

from rankscope.agent.guard import log_line
from rankscope.agent.sample import nvml_activity, nvml_faults, nvml_state, nvml_traffic
from rankscope.agent.sample.nvml_calls import LOST_REASONS, Absent, Device, Nvml, Reading
from rankscope.measure.clock import Clock
from rankscope.measure.records import DeviceSample
from rankscope.measure.units import NS_PER_S

RETRY_NS_FIRST = 10 * NS_PER_S
RETRY_NS_MAX = 600 * NS_PER_S

FIELDS = (
    *nvml_state.FIELDS,
    *nvml_traffic.FIELDS,
    *nvml_faults.ECC_FIELDS,
    *nvml_faults.REMAP_FIELDS,
    *nvml_faults.XID_FIELDS,
    *nvml_activity.FIELDS,
)
"""The fields of DeviceSample that NVML fills."""


class _LostError(Exception):
    """The whole device cannot be read; its text is the reason."""


class _DeviceReadings:
    """Everything that is read from one device, from when it is found until it is lost or let go."""

    def __init__(self, nvml: Nvml, device: Device, xids: nvml_faults.XidWatch) -> None:
        self._nvml = nvml
        self._activity = nvml_activity.ActivityReadings(nvml, device)
        self._readings: tuple[Reading, ...] = (
            *nvml_state.StateReadings(nvml, device).readings,
            *nvml_traffic.TrafficReadings(nvml, device).readings,
            *nvml_faults.FaultReadings(nvml, device).readings,
            *xids.readings,
            *self._activity.readings,
        )

    def read(self) -> tuple[dict[str, Any], dict[str, str]]:
        """The values by field, and the reasons of those that are missing. Raises _LostError."""
        values: dict[str, Any] = {}
        absent: dict[str, str] = {}
        for reading in self._readings:
            for field, value in zip(reading.fields, self._ask(reading), strict=True):
                if not isinstance(value, Absent):
                    values[field] = value
                    continue
                absent[field] = value.reason
                if value.reason in LOST_REASONS:
                    raise _LostError(value.reason)
        if values.keys() <= set(nvml_faults.XID_FIELDS):  # these come from the driver, not from the device
            raise _LostError(absent[FIELDS[0]])
        return values, absent

    def close(self) -> None:
        """Give back what NVML holds for these readings."""
        self._activity.close()

    def _ask(self, reading: Reading) -> tuple[Any, ...]:
        try:
            return reading.read()
        except self._nvml.error_type as error:
            return (Absent(self._nvml.reason(error)),) * len(reading.fields)


class NvmlSampler:
    """Samples the GPU with the UUID that `read_device_uuid` gives, on the thread that drives the sampler.

    `on_unavailable` gets one sentence for people when NVML cannot be used at all. No NVML error leaves this class.
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
        self._xids = nvml_faults.XidWatch()
        self._asked_uuid = ""
        self._uuid = ""
        self._model = ""
        self._absent_reason = ""
        self._lost_xids: dict[str, int | Absent] = {}
        self._retry_ns = 0
        self._retry_wait_ns = RETRY_NS_FIRST

    @property
    def unavailable(self) -> str | None:
        """Why NVML is not used at all, for example 'driver_not_loaded'; None while it is, or has not been needed."""
        return self._unavailable

    def sample(self) -> tuple[DeviceSample, ...]:
        """One sample of the rank's GPU; empty when there is no GPU to ask for or no NVML to ask."""
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
        """Let go of NVML. From then on sample() returns ()."""
        self._let_go()
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
            self._give_up(nvml.reason(error), f"nvmlInit says {error}; {cure}")
            return None
        self._nvml = nvml
        return nvml

    def _give_up(self, reason: str, explanation: str) -> None:
        self._unavailable = reason
        self._on_unavailable(f"GPU sensors are not read ({reason}): {explanation}. Everything else is measured")

    def _begin_with(self, uuid: str, now_ns: int) -> None:
        self._let_go()
        self._xids.stop()
        self._xids = nvml_faults.XidWatch()
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

    def _let_go(self) -> None:
        if self._readings is not None:
            self._readings.close()
        self._readings = None

    def _lose(self, reason: str, now_ns: int) -> None:
        """No handle any more, and no NVML call until the wait is over. The wait grows until a value is read again.

        The Xid that tells why it is lost may have come since the last sample: it is collected first.
        """
        self._let_go()
        self._absent_reason = reason
        self._lost_xids = self._xids.settle()
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
