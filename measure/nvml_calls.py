"""Wraps pynvml: its functions under their changing names, its errors as short names, the handles of one device.

A reading is made once per sample. It raises NVML's error if all its values are unknown, and returns an `Absent` in
place of a single missing value.
"""

import contextlib
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import msgspec

REASON_LENGTH_MAX = 64
"""Errors unknown to pynvml have a text from the driver, which is truncated to this length."""

LOST_REASONS = frozenset({"gpu_is_lost", "gpu_not_found", "reset_required", "uninitialized"})
"""Errors of the whole device, after which no other value is read, since each call may block until a timeout."""

HERTZ_PER_MEGAHERTZ = 1_000_000
MILLIWATTS_PER_WATT = 1_000
MILLIJOULES_PER_JOULE = 1_000
PERCENT = 100
BYTES_PER_KIB = 1024
BYTES_PER_MIB = 1024 * 1024


class Absent(NamedTuple):
    """The reason of a missing value, in its place."""

    reason: str


class Reading(NamedTuple):
    """Fields of DeviceSample that are read together; `read` returns a value or an Absent for each, in their order."""

    fields: tuple[str, ...]
    read: Callable[[], tuple[Any, ...]]


class Device(msgspec.Struct, frozen=True):
    """The NVML handles of one device.

    `own` and `board` differ for a slice (MIG), which has its own memory and multiprocessors, while power, temperature,
    clocks, links and error counts exist only for the whole board.
    """

    uuid: str
    model: str
    own: Any
    board: Any

    @property
    def is_slice(self) -> bool:
        """True if it is a slice of a GPU (MIG)."""
        return self.uuid.startswith("MIG-")


class Call:
    """An NVML function under its alternative names. A name that pynvml or the driver lacks is not tried again."""

    def __init__(self, module: ModuleType, *spellings: tuple[Any, ...]) -> None:
        self._missing: type[Exception] = module.NVMLError_FunctionNotFound
        self._spellings = [
            (getattr(module, name), arguments) for name, *arguments in spellings if hasattr(module, name)
        ]

    def __call__(self, handle: Any) -> Any:
        """Call it for a handle."""
        while self._spellings:
            function, arguments = self._spellings[0]
            try:
                return function(handle, *arguments)
            except self._missing:
                del self._spellings[0]
        raise self._missing


class Nvml:
    """The opened NVML library. Its methods raise `error_type`."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        self.error_type: type[Exception] = module.NVMLError
        self._reasons: dict[int, str] = {
            getattr(module, name): name.removeprefix("NVML_ERROR_").lower()
            for name in dir(module)
            if name.startswith("NVML_ERROR_")
        }

    def reason(self, error: Exception) -> str:
        """Return a short name of an NVML error, such as 'no_permission', or the driver's text if pynvml has no name."""
        named = self._reasons.get(getattr(error, "value", 0))
        return named or re.sub(r"[^a-z0-9]+", "_", str(error).lower()).strip("_")[:REASON_LENGTH_MAX]

    def absent(self, code: int) -> Absent:
        """Return the reason of one missing value of several, from its NVML return code."""
        return Absent(self.reason(self.module.NVMLError(code)))

    def find_device(self, uuid: str) -> Device:
        """Return the device with torch's UUID: a GPU or a slice of one, which torch does not distinguish."""
        own = self._find_handle(uuid)
        if own is None:
            uuid = "MIG-" + uuid.removeprefix("GPU-")
            own = self.module.nvmlDeviceGetHandleByUUID(uuid)
        is_slice = uuid.startswith("MIG-")
        board = self.module.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(own) if is_slice else own
        return Device(uuid, self.read_model(own), own, board)

    def find_instance(self, device: Device) -> int | None:
        """Return the number of a slice's GPU instance on its board; None for a whole GPU."""
        return int(self.module.nvmlDeviceGetGpuInstanceId(device.own)) if device.is_slice else None

    def read_model(self, handle: Any) -> str:
        """Return the name of a device; empty where it cannot be read."""
        try:
            return str(self.module.nvmlDeviceGetName(handle))
        except self.error_type:
            return ""

    def find_memory_call(self) -> Call:
        """Return the call that reads the memory of a handle. Its version 1, without a number, counts what the driver
        has reserved as used: only for drivers that have no other.
        """
        name = "nvmlDeviceGetMemoryInfo"
        return Call(self.module, (name, self.module.nvmlMemory_v2), (name,))

    def shutdown(self) -> None:
        """Undo nvmlInit. NVML counts its users, so others in this process are not affected."""
        with contextlib.suppress(self.error_type):  # the driver may be gone already
            self.module.nvmlShutdown()

    def _find_handle(self, uuid: str) -> Any:
        try:
            return self.module.nvmlDeviceGetHandleByUUID(uuid)
        except self.module.NVMLError_NotFound:
            if not uuid.startswith("GPU-"):
                raise
            return None
