"""Read all NVIDIA GPUs of a machine through NVML: who holds them, how much of their memory, whether a kernel ran.

A board is read as a whole, also one in MIG mode, for which NVML has no utilization: whether it is idle is not known
then. Where no driver can be used, the reading says why (`unread`), and it is tried again with the next one.
"""

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from rankscope.collector.relay.gpu_holders import GpuHolders
from rankscope.measure.bounds import SHORT_NAME_LENGTH_MAX
from rankscope.measure.held_gpus import HOLDERS_MAX, NODE_GPUS_MAX, GpuHolder, HeldGpu, NodeGpus
from rankscope.measure.nvml_calls import PERCENT, Call, Nvml

HELD_BYTES_MIN: Final = 1024**3
"""Memory in use from which a GPU without a visible process counts as held: old drivers count what they reserve for
themselves, up to some 600 MiB."""
NO_PROCESS_VISIBLE: Final = "no_process_visible"
PROCESS_CALLS: Final = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
)
VERSIONS: Final = ("_v3", "_v2")
"""pynvml's name without a version raises an error of its own where the driver has only the older one."""


class GpuReader:
    """The GPUs of this machine. For one thread. Raises no error of NVML."""

    def __init__(self, node: str, holders: GpuHolders, find_module: Callable[[], ModuleType] | None = None) -> None:
        self._node = node
        self._holders = holders
        self._find_module = find_module or (lambda: importlib.import_module("pynvml"))
        self._nvml: Nvml | None = None
        self._boards: list[_Board] = []

    def read(self) -> NodeGpus:
        """Return the GPUs, without the times that only several readings have."""
        unread = self._open() if self._nvml is None else ""
        if self._nvml is None:
            return NodeGpus(self._node, unread=unread[:SHORT_NAME_LENGTH_MAX])
        gpus = tuple(board.read(self._holders) for board in self._boards[:NODE_GPUS_MAX])
        if gpus and all(gpu.memory_used_bytes is None and gpu.utilization_ratio is None for gpu in gpus):
            self.close()  # the driver was unloaded, or all have fallen off the bus: found again with the next reading
        return NodeGpus(self._node, gpus, gpus_left_out=max(0, len(self._boards) - NODE_GPUS_MAX))

    def close(self) -> None:
        """Close NVML; the next reading opens it."""
        nvml, self._nvml, self._boards = self._nvml, None, []
        if nvml is not None:
            nvml.shutdown()

    def _open(self) -> str:
        """Open NVML and find all boards; return why that failed, empty if it did not."""
        try:
            module = self._find_module()
        except ImportError:
            return "pynvml_not_installed"
        nvml = Nvml(module)
        try:
            module.nvmlInit()
        except nvml.error_type as error:
            return nvml.reason(error)
        try:
            self._boards = [_Board(nvml, index) for index in range(int(module.nvmlDeviceGetCount()))]
        except nvml.error_type as error:
            nvml.shutdown()
            return nvml.reason(error)
        self._nvml = nvml
        return ""


class _Board:
    """One GPU. Raises NVML's error where it has no handle, or no UUID."""

    def __init__(self, nvml: Nvml, index: int) -> None:
        module = nvml.module
        self._nvml = nvml
        self._index = index
        self._handle = module.nvmlDeviceGetHandleByIndex(index)
        self._uuid = str(module.nvmlDeviceGetUUID(self._handle))[:SHORT_NAME_LENGTH_MAX]
        self._model = nvml.read_model(self._handle)[:SHORT_NAME_LENGTH_MAX]
        self._memory = nvml.find_memory_call()
        self._utilization = Call(module, ("nvmlDeviceGetUtilizationRates",))
        self._processes = [Call(module, *((name + version,) for version in VERSIONS)) for name in PROCESS_CALLS]

    def read(self, holders: GpuHolders) -> HeldGpu:
        absent: dict[str, str] = {}
        memory = self._ask(self._memory, ("memory_used_bytes", "memory_total_bytes"), absent)
        rates = self._ask(self._utilization, ("utilization_ratio",), absent)
        used_bytes = None if memory is None else int(memory.used)
        found = self._find_holders(holders, absent)
        if not found and (used_bytes or 0) >= HELD_BYTES_MIN:
            absent.setdefault("holders", NO_PROCESS_VISIBLE)
        return HeldGpu(
            uuid=self._uuid, index=self._index, model=self._model,
            memory_used_bytes=used_bytes,
            memory_total_bytes=None if memory is None else int(memory.total),
            utilization_ratio=None if rates is None else rates.gpu / PERCENT,
            holders=tuple(found[:HOLDERS_MAX]), holders_left_out=max(0, len(found) - HOLDERS_MAX), absent=absent,
        )  # fmt: skip

    def _find_holders(self, holders: GpuHolders, absent: dict[str, str]) -> list[GpuHolder]:
        """Return each process on the GPU once, and the scheduler's job where none of them is known to be of it."""
        memory_of: dict[int, int | None] = {}
        reasons = []
        for call in self._processes:
            try:
                for process in call(self._handle):
                    memory_of[int(process.pid)] = getattr(process, "usedGpuMemory", None)
            except self._nvml.error_type as error:
                reasons.append(self._nvml.reason(error))
        if len(reasons) == len(self._processes):
            absent["holders"] = reasons[0]
        found = [holders.read(pid, memory_bytes) for pid, memory_bytes in sorted(memory_of.items())]
        given = holders.read_job_of((str(self._index), self._uuid))
        if given is not None and all(one.job != given.job for one in found):
            found.append(given)
        return found

    def _ask(self, call: Call, fields: tuple[str, ...], absent: dict[str, str]) -> Any:
        try:
            return call(self._handle)
        except self._nvml.error_type as error:
            absent.update(dict.fromkeys(fields, self._nvml.reason(error)))
            return None
