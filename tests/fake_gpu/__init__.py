"""A GPU inside torch's own Kineto, for machines without one; device.cpp says what it does.

Kineto, its sessions and everything of the agent are the real ones. The agent is given the device as it finds a real
one, by `torch_profiler.find_devices`; of torch nothing is replaced.
"""

import ctypes
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch

from rankscope.measure.units import NS_PER_S

SOURCE = Path(__file__).with_name("device.cpp")
COMPILE_S_MAX = 300.0


def compile_device(folder: Path) -> Path:
    """Compile the device against this torch into the folder, and return the library. Takes 5 to 50 s.

    Raises RuntimeError, with the cure, without g++ and when it refuses the source: a test that needs the device then
    fails, where a skip would hide what is not tested.
    """
    compiler = shutil.which("g++")
    if compiler is None:
        raise RuntimeError(f"g++ is not on PATH, so {SOURCE.name} cannot be compiled; install it (apt-get install g++)")
    root, library = Path(torch.__file__).parent, folder / "libfake_gpu.so"
    includes = [word for path in ("include", "include/kineto") for word in ("-isystem", str(root / path))]
    options = [
        "-std=c++20", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror",
        "-DFMT_HEADER_ONLY", "-DKINETO_NAMESPACE=libkineto",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
    ]  # fmt: skip
    links = [f"-L{root / 'lib'}", "-ltorch_cpu", "-lc10"]
    command = [compiler, *options, *includes, str(SOURCE), *links, "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMPILE_S_MAX)
    if done.returncode != 0:
        raise RuntimeError(f"g++ returned {done.returncode} for {SOURCE.name}:\n{done.stderr}")
    return library


class Counts(NamedTuple):
    """Sessions so far, those that lost all kernels, those that detached; whether the device is attached."""

    sessions: int
    lost: int
    detached: int
    is_attached: bool


class FakeGpu:
    """The device of this process. Every operator of torch launches a kernel of `kernel_ns`; while a session has left it
    attached, each launch takes the host `dearer_ns` longer.
    """

    def __init__(self, library: str, *, kernel_ns: int, dearer_ns: int) -> None:
        self._library = ctypes.CDLL(library)
        self._library.gpu_idle_from_ns.restype = ctypes.c_int64
        self._library.gpu_count.restype = ctypes.c_int64
        self._library.gpu_install(ctypes.c_int64(kernel_ns), ctypes.c_int64(dearer_ns))

    @property
    def idle_from_ns(self) -> int:
        """When it will have done all that has been launched, by the wall clock."""
        return int(self._library.gpu_idle_from_ns())

    @property
    def counts(self) -> Counts:
        """What it has seen of sessions."""
        sessions, lost, detached, attached = (int(self._library.gpu_count(what)) for what in range(4))
        return Counts(sessions, lost, detached, bool(attached))

    def synchronize(self) -> None:
        """Wait until it is idle, as `loss.item()` does."""
        while (left_ns := self.idle_from_ns - time.time_ns()) > 0:
            time.sleep(left_ns / NS_PER_S)

    def write_kernels(self, path: Path) -> None:
        """Write each kernel's call, by the host clock, and its length, ns."""
        self._library.gpu_write(str(path).encode())

    def give_to_agent(self, *, can_detach: bool = True) -> None:
        """Let the agent, which has not been started yet, find this device."""
        from rankscope.agent.profiler import torch_profiler  # noqa: PLC0415 - only the process of a job needs it

        gpu = self

        class Event:
            """A mark in the device's stream."""

            def __init__(self) -> None:
                self._at_ns = gpu.idle_from_ns

            def query(self) -> bool:
                return time.time_ns() >= self._at_ns

            def synchronize(self) -> None:
                assert self.query()

        def mark() -> list[Event]:
            return [Event()]

        def find(_autograd: Any, c_profiler: Any) -> tuple[torch_profiler.DeviceKind, ...]:
            activity = c_profiler.ProfilerActivity.CUDA
            return (torch_profiler.DeviceKind(lambda: True, lambda: True, activity, mark),)

        given: Any = torch_profiler
        given.find_devices = find
        given.TorchProfiler.can_detach = property(lambda _profiler: can_detach)
