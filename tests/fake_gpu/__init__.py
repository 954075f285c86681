"""A GPU inside torch's own Kineto, for machines without one; device.cpp says what it does.

Kineto, its sessions and everything of the agent are the real ones. The agent is given the device where it looks for a
real one; of torch nothing is replaced, but that `join_torchs_profiler` adds the device to what its sessions record.
"""

import ctypes
import functools
import json
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from rankscope.measure.units import NS_PER_S
from tests.fake_gpu.cuda import FakeCuda
from tests.fake_gpu.recorded import RecordedWork
from tests.nvml_stand_in.sampling import QUIET

SOURCE = Path(__file__).with_name("device.cpp")
COMPILE_S_MAX = 300.0
STREAM = 7
KERNEL, MEMCPY, MEMSET, BLOCKING_CALL = range(4)
"""Kinds of work, as in device.cpp; the last is a call that blocks the host."""
ALL_OPERATORS = "*"


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
    """Sessions so far, those that lost all work, those that detached; whether the device is attached."""

    sessions: int
    lost: int
    detached: int
    is_attached: bool


class Work(NamedTuple):
    """One piece of work as the device knows it. `called_ns` is by the host clock, the others by the wall clock."""

    called_ns: int
    begin_ns: int
    end_ns: int
    kind: int
    stream: int
    name: str

    @property
    def length_ns(self) -> int:
        """How long it took."""
        return self.end_ns - self.begin_ns


def read_work(path: Path) -> list[Work]:
    """Return what `FakeGpu.write_work` wrote, by the time of the call."""
    lines = [line.split(" ", 5) for line in path.read_text().splitlines()]
    return sorted(Work(int(a), int(b), int(c), int(d), int(e), name) for a, b, c, d, e, name in lines)


class FakeGpu:
    """The device of this process. Nothing runs on it before a rule says which operators of torch launch what."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)
        self._library.gpu_idle_from_ns.restype = ctypes.c_int64
        self._library.gpu_count.restype = ctypes.c_int64
        self._library.gpu_replay.restype = ctypes.c_int64
        self._library.gpu_install()
        self._over_ns = 0

    def launch(
        self,
        operator: str,
        length_ns: int,
        *,
        kind: int = KERNEL,
        name: str = "fake_kernel",
        call: str = "cudaLaunchKernel",
        stream: int = STREAM,
        count: int = 1,
        size: int | None = None,
    ) -> None:
        """Let an operator launch that from now on, each time it is called; a copy with this name has `size` bytes."""
        of_operator, of_work, of_call = (text.encode() for text in (operator, name, call))
        if size is not None:
            self._library.gpu_bytes(of_work, ctypes.c_int64(size))
        length, times = ctypes.c_int64(length_ns), ctypes.c_int64(count)
        self._library.gpu_rule(of_operator, kind, of_work, of_call, stream, length, times)

    def block(self, operator: str, call: str = "cudaStreamSynchronize", ns_min: int = 0) -> None:
        """Let the host wait in that call, at the end of an operator, until its stream is idle, and at least so long."""
        self._library.gpu_hold(operator.encode(), call.encode(), ctypes.c_int64(ns_min))

    def set_fault(self, **values: float) -> None:
        """Set faults: `ratio` (of the length of kernels), `dearer_ns` (a launch while attached), `latency_ns`,
        `drop_calls` and `drop_work` (every n-th is missing from sessions), `backwards`, `drift_ppm` (of the device's
        clock in sessions), `malformed` (a number of device.cpp), `forget` (its own list of work). `at_end` is none:
        operators launch at their end, and not right before torch's profiler sees their begin, so that a trace has the
        call within them.
        """
        for what, value in values.items():
            assert self._library.gpu_set(what.encode(), ctypes.c_double(value)), what

    def join_torchs_profiler(self) -> None:
        """Let sessions of torch.profiler record the device, and wait for it at their end, as they do with a real one
        where torch is built for it.
        """
        from torch.autograd import profiler  # noqa: PLC0415 - only the process of a job needs it

        its_profile = _as_any(profiler).profile
        prepare, end = its_profile._prepare_trace, its_profile.__exit__

        def prepare_with_device(session: Any) -> None:
            session.kineto_activities.add(torch.profiler.ProfilerActivity.CUDA)
            prepare(session)

        def end_with_device(session: Any, *error: Any) -> Any:
            self.synchronize()
            return end(session, *error)

        its_profile._prepare_trace, its_profile.__exit__ = prepare_with_device, end_with_device

    # -- collectives --------------------------------------------------------------------------------------------------

    def meet(self, path: Path, rank: int, world_size: int) -> None:
        """Share collectives with the other ranks, by a file that is not there before the first comes."""
        self._group = {
            "Group size": world_size, "Process Group Name": "0", "Process Group Description": "default_pg",
            "Process Group Ranks": str(list(range(world_size))), "Rank": rank, "dtype": "Float",
        }  # fmt: skip
        assert self._library.gpu_meet(str(path).encode(), ctypes.c_int64(rank), ctypes.c_int64(world_size))

    def all_reduce(self, elements: int, transfer_ns: int) -> None:
        """Enqueue an all-reduce of the default group behind what the training's stream has so far. Returns at once."""
        told = {"Collective name": "allreduce", "In msg nelems": elements, "Out msg nelems": elements, **self._group}
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        self._library.gpu_collective(name.encode(), json.dumps(told)[1:-1].encode(), ctypes.c_int64(transfer_ns))

    def join(self) -> None:
        """Let the training's stream wait for all collectives, as DDP does at the end of backward. The host waits until
        all members have enqueued them.
        """
        assert self._library.gpu_join(), "a member has not entered a collective within a minute"

    # -- replay -------------------------------------------------------------------------------------------------------

    def load(self, work: Sequence[RecordedWork]) -> None:
        """Load what `replay` repeats."""
        for one in work:
            times = (ctypes.c_int64(at_ns) for at_ns in (one.call_at_ns, one.begin_at_ns, one.end_at_ns))
            texts = (text.encode() for text in (one.name, one.call, one.metadata))
            self._library.gpu_record(one.kind, one.stream, *times, *texts)

    def replay(self) -> None:
        """Repeat the loaded work from now on; `synchronize` waits for it and for its last call."""
        self._over_ns = int(self._library.gpu_replay())

    # -- what it knows ------------------------------------------------------------------------------------------------

    @property
    def idle_from_ns(self) -> int:
        """When the training's stream will have done all that has been launched, by the wall clock."""
        return int(self._library.gpu_idle_from_ns(0))

    @property
    def counts(self) -> Counts:
        """What it has seen of sessions."""
        sessions, lost, detached, attached = (int(self._library.gpu_count(what)) for what in range(4))
        return Counts(sessions, lost, detached, bool(attached))

    @property
    def is_recording(self) -> bool:
        """Whether a session records it."""
        return bool(self._library.gpu_count(4))

    def synchronize(self) -> None:
        """Wait until all its streams are idle, as torch.cuda.synchronize does."""
        while (left_ns := max(self._over_ns, int(self._library.gpu_idle_from_ns(1))) - time.time_ns()) > 0:
            time.sleep(left_ns / NS_PER_S)

    def write_work(self, path: Path) -> None:
        """Write all work so far, for `read_work`."""
        self._library.gpu_write(str(path).encode())

    def give_to_agent(self, *, can_detach: bool = True) -> None:
        """Let the agent, which has not been started yet, find this device wherever it looks for one. The tensors of the
        CPU stand for its tensors.
        """
        from rankscope.agent import session, training_thread  # noqa: PLC0415 - only the process of a job needs them
        from rankscope.agent.profiler import torch_profiler  # noqa: PLC0415
        from rankscope.agent.sample import out_of_memory, rank_samples  # noqa: PLC0415
        from rankscope.agent.sample.model_bytes import find_model_bytes  # noqa: PLC0415
        from rankscope.agent.sample.out_of_memory import OutOfMemoryWatch  # noqa: PLC0415
        from rankscope.agent.sample.torch_device import TorchDevice, TrainingDevice  # noqa: PLC0415

        cuda = self.cuda = FakeCuda(lambda: self.idle_from_ns)

        def find_devices(_autograd: Any, c_profiler: Any) -> tuple[torch_profiler.DeviceKind, ...]:
            activity = c_profiler.ProfilerActivity.CUDA
            return (torch_profiler.DeviceKind(lambda: True, lambda: True, activity, cuda.mark),)

        device = TorchDevice(index=0, uuid=QUIET, pci_address=None, is_amd=False)
        profiler, samples, memory, training, its_session = map(
            _as_any, (torch_profiler, rank_samples, out_of_memory, training_thread, session)
        )
        profiler.find_devices = find_devices
        profiler.TorchProfiler.can_detach = property(lambda _profiler: can_detach)
        samples.find_cuda = training.find_cuda = lambda: cuda
        memory.OutOfMemoryWatch.__init__ = functools.partialmethod(
            OutOfMemoryWatch.__init__, find_model=lambda _device: find_model_bytes(-1)
        )
        its_session.TrainingDevice = functools.partial(TrainingDevice, lambda: device, lambda: True)


def _as_any(module: Any) -> Any:
    return module
