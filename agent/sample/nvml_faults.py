"""What is wrong with a GPU: bit errors in its memory, rows of memory put out of use, and Xid errors.

An Xid is the driver's number for an error of a GPU (79: it has fallen off the bus). NVML tells them as events, which
are collected from a set that is registered once and asked without waiting. A set does not ask the device, so the Xid
of a GPU that is lost is found too.
"""

import contextlib
from functools import partial
from typing import Any, Final

from rankscope.agent.sample.nvml_calls import Absent, Device, Nvml, Reading

ECC_FIELDS = ("ecc_corrected", "ecc_uncorrected")
REMAP_FIELDS = ("remapped_rows_correctable", "remapped_rows_uncorrectable", "remapping_pending", "remapping_failed")
XID_FIELDS = ("xid_count", "xid_last")

EVENTS_MAX = 64
"""So many events are taken in one sample. The others wait in the driver for the next."""

ANY_INSTANCE: Final = 0xFFFF_FFFF
"""Of an event that NVML does not put down to one slice of the board."""

NOT_WATCHED = Absent("not_watched")
NONE_SEEN = Absent("none_seen")


class FaultReadings:
    """Asks the board: memory errors and remapped rows are not told by slice. ECC counts begin with the driver."""

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
    """Counts the Xid errors of one GPU from the first `start` on, also over the times in which the GPU is lost."""

    def __init__(self) -> None:
        self._nvml: Nvml | None = None
        self._events: Any = None
        self._instance: int | None = None
        self._absent = NOT_WATCHED
        self._count: int | None = None
        self._last: int | None = None
        self.readings = (Reading(XID_FIELDS, self._read),)

    def start(self, nvml: Nvml, device: Device) -> None:
        """Register the device, which replaces a registration of before. What NVML says against it is kept as reason."""
        self.settle()
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
        """Give the event set back. What was counted stays."""
        if self._nvml is not None and self._events is not None:
            with contextlib.suppress(self._nvml.error_type):  # a driver that is gone has forgotten it already
                self._nvml.module.nvmlEventSetFree(self._events)
        self._events = None
        self._absent = NOT_WATCHED

    def settle(self) -> dict[str, int | Absent]:
        """The fields for a sample of a lost GPU: with what can still be collected; empty when it was never watched."""
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
