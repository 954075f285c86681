"""The GPU of this rank, from NVML: the driver's own library, which also nvidia-smi reads.

    read_device_uuid() -> None              no CUDA in this process (yet): NVML is not even loaded
    nvmlInit fails                          said once, with the cure; from then on sample() returns () at no cost
    the GPU is not found, or gets lost      a sample with every field absent, and why; looked for again after 10 s,
                                            20 s, ... 10 min, and in between NVML is left alone
    one value cannot be read                that field is None, `absent` says why; the others are measured

pynvml calls NVML through ctypes, which lets go of the GIL: a driver that answers slowly holds up only its caller. Its
own part of a sample is 33 us (Python 3.11, against tests/nvml_stand_in); what a real driver adds has not been measured.
"""

import contextlib
import importlib
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from rankscope.agent.guard import say
from rankscope.measure.clock import Clock
from rankscope.measure.records import DeviceSample
from rankscope.measure.units import NS_PER_S

RETRY_NS_FIRST = 10 * NS_PER_S
RETRY_NS_MAX = 600 * NS_PER_S

REASON_LENGTH_MAX = 64
"""NVML may know errors that pynvml does not name; their text comes from the driver and is cut here."""

LOST_REASONS = frozenset({"gpu_is_lost", "gpu_not_found", "reset_required", "uninitialized"})
"""Errors of the whole device: the other values are not asked for, since each such call can take until a time-out."""

FIELDS = (
    "utilization_ratio",
    "memory_used_bytes",
    "memory_total_bytes",
    "power_watts",
    "temperature_celsius",
    "sm_clock_hertz",
    "throttle_reasons",
)
"""The fields of DeviceSample that NVML fills."""

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

HERTZ_PER_MEGAHERTZ = 1_000_000
MILLIWATTS_PER_WATT = 1_000


def name_throttle_reasons(mask: int) -> tuple[str, ...]:
    """The reasons in NVML's bit mask, lowest bit first; empty when the clocks are not held down.

    >>> name_throttle_reasons(0x028), name_throttle_reasons(GPU_IDLE), name_throttle_reasons(0x1000)
    (('hw_slowdown', 'sw_thermal_slowdown'), (), ('bit_12',))
    """
    held = mask & ~(GPU_IDLE | APPLICATIONS_CLOCKS_SETTING)
    bits = (bit for bit in range(held.bit_length()) if held >> bit & 1)
    return tuple(THROTTLE_REASONS.get(1 << bit, f"bit_{bit}") for bit in bits)


def torch_device_uuid(modules: Mapping[str, Any] = sys.modules) -> str | None:
    """The UUID of the GPU that the calling thread's torch computes on, for example 'GPU-8f6d...'.

    To be called on the training thread, as TrainingDevice does: CUDA's current device belongs to a thread, and every
    other thread gets device 0 whatever the script has set. It neither imports torch nor starts CUDA. None: torch is
    not imported, has not used CUDA yet, is built for AMD GPUs (NVML does not know them), or is too old to tell the
    UUID. A slice of a GPU (MIG) has the prefix 'GPU-' here too, since torch does not tell slices apart. Raises what
    torch raises when CUDA is broken.
    """
    torch = modules.get("torch")
    cuda = getattr(torch, "cuda", None)  # None while another thread is still importing torch
    if torch is None or cuda is None or not cuda.is_initialized() or torch.version.hip is not None:
        return None
    uuid = getattr(cuda.get_device_properties(cuda.current_device()), "uuid", None)
    return None if uuid is None else f"GPU-{uuid}"


class TrainingDevice:
    """The GPU of the training thread, remembered for the thread that samples."""

    def __init__(self, read_device_uuid: Callable[[], str | None] = torch_device_uuid) -> None:
        self._read_device_uuid = read_device_uuid
        self._uuid: str | None = None

    def observe(self) -> None:
        """Look which GPU this thread uses, until there is one. Call it on the training thread, once per step."""
        if self._uuid is None:
            self._uuid = self._read_device_uuid()

    def uuid(self) -> str | None:
        """What was seen, from any thread; None while there is no GPU. This is what NvmlSampler is given."""
        return self._uuid


@dataclass(frozen=True, slots=True)
class _Device:
    """NVML's handles of one device.

    They differ for a slice (MIG): it has memory of its own, while power, heat, clocks and utilisation exist only for
    the whole board.
    """

    uuid: str
    model: str
    own: Any
    board: Any


class NvmlSampler:
    """Samples the GPU with the UUID that `read_device_uuid` gives, on the thread that drives the sampler.

    `on_unavailable` gets one sentence for people when NVML cannot be used at all. No NVML error leaves this class.
    """

    def __init__(
        self,
        clock: Clock,
        read_device_uuid: Callable[[], str | None],
        *,
        on_unavailable: Callable[[str], None] = say,
    ) -> None:
        self._clock = clock
        self._read_device_uuid = read_device_uuid
        self._on_unavailable = on_unavailable
        self._unavailable: str | None = None
        self._nvml: _Nvml | None = None
        self._device: _Device | None = None
        self._asked_uuid = ""
        self._uuid = ""
        self._model = ""
        self._absent_reason = ""
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
        if self._device is None and now_ns >= self._retry_ns:
            self._find(nvml, now_ns)
        if self._device is None:
            return (self._absent_sample(now_ns),)
        return (self._read(nvml, self._device, now_ns),)

    def close(self) -> None:
        """Let go of NVML. From then on sample() returns ()."""
        if self._nvml is not None:
            self._nvml.shutdown()
        self._nvml = None
        self._device = None
        self._unavailable = self._unavailable or "closed"

    def _open(self) -> "_Nvml | None":
        try:
            module = importlib.import_module("pynvml")
        except ImportError as error:
            self._give_up("pynvml_not_installed", f"{error}; install nvidia-ml-py")
            return None
        nvml = _Nvml(module)
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
        self._asked_uuid = uuid
        self._uuid = uuid
        self._model = ""
        self._device = None
        self._retry_ns = now_ns
        self._retry_wait_ns = RETRY_NS_FIRST

    def _find(self, nvml: "_Nvml", now_ns: int) -> None:
        try:
            self._device = nvml.find_device(self._asked_uuid)
        except nvml.error_type as error:
            self._lose(nvml.reason(error), now_ns)
        else:
            self._uuid = self._device.uuid
            self._model = self._device.model

    def _lose(self, reason: str, now_ns: int) -> None:
        """No handle any more, and no NVML call until the wait is over. The wait grows until a value is read again."""
        self._device = None
        self._absent_reason = reason
        self._retry_ns = now_ns + self._retry_wait_ns
        self._retry_wait_ns = min(2 * self._retry_wait_ns, RETRY_NS_MAX)

    def _read(self, nvml: "_Nvml", device: _Device, now_ns: int) -> DeviceSample:
        values: dict[str, Any] = {}
        absent: dict[str, str] = {}
        for fields, read in nvml.readings:
            try:
                values.update(zip(fields, read(device), strict=True))
            except nvml.error_type as error:
                reason = nvml.reason(error)
                absent.update(dict.fromkeys(fields, reason))
                if reason in LOST_REASONS or len(absent) == len(FIELDS):
                    self._lose(reason, now_ns)
                    return self._absent_sample(now_ns)
        self._retry_wait_ns = RETRY_NS_FIRST
        return DeviceSample(host_ns=now_ns, uuid=device.uuid, model=device.model, absent=absent, **values)

    def _absent_sample(self, now_ns: int) -> DeviceSample:
        absent = dict.fromkeys(FIELDS, self._absent_reason)
        return DeviceSample(host_ns=now_ns, uuid=self._uuid, model=self._model, absent=absent)


class _Call:
    """One question to NVML under the names it has had. A name that pynvml or the driver lacks is not tried again."""

    def __init__(self, module: ModuleType, *spellings: tuple[Any, ...]) -> None:
        self._missing: type[Exception] = module.NVMLError_FunctionNotFound
        self._spellings = [
            (getattr(module, name), arguments) for name, *arguments in spellings if hasattr(module, name)
        ]

    def __call__(self, handle: Any) -> Any:
        while self._spellings:
            function, arguments = self._spellings[0]
            try:
                return function(handle, *arguments)
            except self._missing:
                del self._spellings[0]
        raise self._missing


class _Nvml:
    """pynvml's calls in our units. Its methods raise `error_type`."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self.error_type: type[Exception] = module.NVMLError
        self._reasons: dict[int, str] = {
            getattr(module, name): name.removeprefix("NVML_ERROR_").lower()
            for name in dir(module)
            if name.startswith("NVML_ERROR_")
        }
        # The first version, with no number, counts what the driver keeps for itself as used.
        self._memory = _Call(module, ("nvmlDeviceGetMemoryInfo", module.nvmlMemory_v2), ("nvmlDeviceGetMemoryInfo",))
        # pynvml announces that the old names of the next two go with CUDA 14; every driver in use has the first one.
        sensor = module.NVML_TEMPERATURE_GPU
        self._temperature = _Call(module, ("nvmlDeviceGetTemperature", sensor), ("nvmlDeviceGetTemperatureV", sensor))
        self._throttle_mask = _Call(
            module, ("nvmlDeviceGetCurrentClocksEventReasons",), ("nvmlDeviceGetCurrentClocksThrottleReasons",)
        )
        self.readings: tuple[tuple[tuple[str, ...], Callable[[_Device], tuple[Any, ...]]], ...] = (
            (("utilization_ratio",), self._read_utilization),
            (("memory_used_bytes", "memory_total_bytes"), self._read_memory),
            (("power_watts",), self._read_power),
            (("temperature_celsius",), self._read_temperature),
            (("sm_clock_hertz",), self._read_sm_clock),
            (("throttle_reasons",), self._read_throttle_reasons),
        )

    def reason(self, error: Exception) -> str:
        """An NVML error as a short name: 'no_permission'; one that pynvml has no name for, by the driver's own text."""
        named = self._reasons.get(getattr(error, "value", 0))
        return named or re.sub(r"[^a-z0-9]+", "_", str(error).lower()).strip("_")[:REASON_LENGTH_MAX]

    def find_device(self, uuid: str) -> _Device:
        """The device with torch's UUID: a GPU, or a slice of one, which torch does not tell apart."""
        own = self._find_handle(uuid)
        if own is None:
            uuid = "MIG-" + uuid.removeprefix("GPU-")
            own = self._module.nvmlDeviceGetHandleByUUID(uuid)
        is_slice = uuid.startswith("MIG-")
        board = self._module.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(own) if is_slice else own
        return _Device(uuid, self._read_model(own), own, board)

    def shutdown(self) -> None:
        """Give back what nvmlInit took. NVML counts both, so others in this process keep theirs."""
        with contextlib.suppress(self.error_type):  # nothing is left to do about a driver that is gone already
            self._module.nvmlShutdown()

    def _find_handle(self, uuid: str) -> Any:
        try:
            return self._module.nvmlDeviceGetHandleByUUID(uuid)
        except self._module.NVMLError_NotFound:
            if not uuid.startswith("GPU-"):
                raise
            return None

    def _read_model(self, handle: Any) -> str:
        try:
            return str(self._module.nvmlDeviceGetName(handle))
        except self.error_type:
            return ""

    def _read_utilization(self, device: _Device) -> tuple[float]:
        """The share of the driver's last sampling period (1/6 s to 1 s) in which any kernel ran."""
        return (self._module.nvmlDeviceGetUtilizationRates(device.board).gpu / 100,)

    def _read_memory(self, device: _Device) -> tuple[int, int]:
        memory = self._memory(device.own)
        return int(memory.used), int(memory.total)

    def _read_power(self, device: _Device) -> tuple[float]:
        return (self._module.nvmlDeviceGetPowerUsage(device.board) / MILLIWATTS_PER_WATT,)

    def _read_temperature(self, device: _Device) -> tuple[float]:
        return (float(self._temperature(device.board)),)

    def _read_sm_clock(self, device: _Device) -> tuple[int]:
        megahertz = self._module.nvmlDeviceGetClockInfo(device.board, self._module.NVML_CLOCK_SM)
        return (megahertz * HERTZ_PER_MEGAHERTZ,)

    def _read_throttle_reasons(self, device: _Device) -> tuple[tuple[str, ...]]:
        return (name_throttle_reasons(self._throttle_mask(device.board)),)
