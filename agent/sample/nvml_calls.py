"""pynvml's calls, its errors as short names, and the handles of one device. What is measured stands in the nvml_ files.

A reading is asked for once a sample. It raises NVML's error when nothing of it is known, and has an `Absent` in place
of each value that is missing alone.
"""

import contextlib
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import msgspec

REASON_LENGTH_MAX = 64
"""NVML may know errors that pynvml does not name; their text comes from the driver and is cut here."""

LOST_REASONS = frozenset({"gpu_is_lost", "gpu_not_found", "reset_required", "uninitialized"})
"""Errors of the whole device: the other values are not asked for, since each such call can take until a time-out."""

HERTZ_PER_MEGAHERTZ = 1_000_000
MILLIWATTS_PER_WATT = 1_000
PERCENT = 100
BYTES_PER_KIB = 1024
BYTES_PER_MIB = 1024 * 1024


class Absent(NamedTuple):
    """In place of a value: why there is none."""

    reason: str


class Reading(NamedTuple):
    """Fields of DeviceSample that are read together; `read` gives a value or an Absent for each, in their order."""

    fields: tuple[str, ...]
    read: Callable[[], tuple[Any, ...]]


class Device(msgspec.Struct, frozen=True):
    """NVML's handles of one device.

    They differ for a slice (MIG): it has memory and multiprocessors of its own, while power, heat, clocks, links and
    error counts exist only for the whole board.
    """

    uuid: str
    model: str
    own: Any
    board: Any

    @property
    def is_slice(self) -> bool:
        """Whether it is a part of a GPU (MIG)."""
        return self.uuid.startswith("MIG-")


class Call:
    """One question to NVML under the names it has had. A name that pynvml or the driver lacks is not tried again."""

    def __init__(self, module: ModuleType, *spellings: tuple[Any, ...]) -> None:
        self._missing: type[Exception] = module.NVMLError_FunctionNotFound
        self._spellings = [
            (getattr(module, name), arguments) for name, *arguments in spellings if hasattr(module, name)
        ]

    def __call__(self, handle: Any) -> Any:
        """What NVML answers about that handle."""
        while self._spellings:
            function, arguments = self._spellings[0]
            try:
                return function(handle, *arguments)
            except self._missing:
                del self._spellings[0]
        raise self._missing


class Nvml:
    """The opened library. Its methods raise `error_type`."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        self.error_type: type[Exception] = module.NVMLError
        self._reasons: dict[int, str] = {
            getattr(module, name): name.removeprefix("NVML_ERROR_").lower()
            for name in dir(module)
            if name.startswith("NVML_ERROR_")
        }

    def reason(self, error: Exception) -> str:
        """An NVML error as a short name: 'no_permission'; one that pynvml has no name for, by the driver's own text."""
        named = self._reasons.get(getattr(error, "value", 0))
        return named or re.sub(r"[^a-z0-9]+", "_", str(error).lower()).strip("_")[:REASON_LENGTH_MAX]

    def absent(self, code: int) -> Absent:
        """Why one value of several is missing, by the code that NVML left with it."""
        return Absent(self.reason(self.module.NVMLError(code)))

    def find_device(self, uuid: str) -> Device:
        """The device with torch's UUID: a GPU, or a slice of one, which torch does not tell apart."""
        own = self._find_handle(uuid)
        if own is None:
            uuid = "MIG-" + uuid.removeprefix("GPU-")
            own = self.module.nvmlDeviceGetHandleByUUID(uuid)
        is_slice = uuid.startswith("MIG-")
        board = self.module.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(own) if is_slice else own
        return Device(uuid, self._read_model(own), own, board)

    def find_instance(self, device: Device) -> int | None:
        """The number of a slice's GPU instance on its board; None for a whole GPU."""
        return int(self.module.nvmlDeviceGetGpuInstanceId(device.own)) if device.is_slice else None

    def shutdown(self) -> None:
        """Give back what nvmlInit took. NVML counts both, so others in this process keep theirs."""
        with contextlib.suppress(self.error_type):  # nothing is left to do about a driver that is gone already
            self.module.nvmlShutdown()

    def _find_handle(self, uuid: str) -> Any:
        try:
            return self.module.nvmlDeviceGetHandleByUUID(uuid)
        except self.module.NVMLError_NotFound:
            if not uuid.startswith("GPU-"):
                raise
            return None

    def _read_model(self, handle: Any) -> str:
        try:
            return str(self.module.nvmlDeviceGetName(handle))
        except self.error_type:
            return ""
