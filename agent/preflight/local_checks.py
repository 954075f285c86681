"""Measure what one rank can do alone: matrix products, memory bandwidth, copies between host and GPU, the disk.

All ranks of a node do it at the same time, as in training: they share power, cooling, memory and cores. On a CPU torch
uses its own number of threads (OMP_NUM_THREADS, 1 under torchrun).
"""

import os
import tempfile
import time
from collections.abc import Callable
from typing import Final

import torch

from rankscope.agent.preflight.checks import CPU, CUDA, DTYPES, GIGA, MEMORY, TO_DEVICE, TO_HOST, name_matmul
from rankscope.agent.preflight.results import Measured

MATMUL_SIZE: Final = {CPU: 384, CUDA: 8192}
"""Rows and columns of the square matrices: some ms on a core, and enough for every SM of a GPU."""
TERA: Final = 1e12
COPY_BYTES: Final = {CPU: 64 * 2**20, CUDA: 512 * 2**20}
"""Bytes of one copy: more than any cache of one rank."""
HOST_COPY_BYTES: Final = 128 * 2**20
WARM_UP_RATIO: Final = 0.25
"""Share of the time of a GPU's matrix products that is not measured, in which its clock settles."""
BLOCK_BYTES: Final = 4 * 2**20
FILE_BYTES_MAX: Final = 64 * 2**20
"""Size at which writing begins anew at the start of the file."""
PART_S: Final = 0.1
"""Length of a part: longer than a time slice of Linux, and one period of a CPU quota."""
PARTS_MIN: Final = 3
"""Parts that are measured even if they take longer than the time given."""


class CheckedDevice:
    """The device of this rank: its GPU where torch finds one, otherwise the CPU."""

    def __init__(self, local_rank: int) -> None:
        self.kind = CUDA if torch.cuda.is_available() else CPU
        self.torch_device = torch.device("cpu")
        if self.kind == CUDA:
            self.torch_device = torch.device("cuda", local_rank % torch.cuda.device_count())
            torch.cuda.set_device(self.torch_device)

    @property
    def name(self) -> str:
        """Return the model of the GPU or CPU."""
        return torch.cuda.get_device_name(self.torch_device) if self.kind == CUDA else read_cpu_model()

    @property
    def threads(self) -> int:
        """Return how many threads torch computes with on the CPU."""
        return torch.get_num_threads()

    def synchronize(self) -> None:
        """Wait until the GPU has done all it was given."""
        if self.kind == CUDA:
            torch.cuda.synchronize(self.torch_device)

    def measure(self, check: str, seconds: float, on_load: Callable[[], None]) -> Measured:
        """Return the rates of a check by its name. `on_load` is called once while a GPU is multiplying.

        What torch raises becomes the reason why there are none.
        """
        try:
            if check == MEMORY:
                return self._measure_memory(seconds)
            if check in {TO_DEVICE, TO_HOST}:
                return self._measure_copies(check, seconds)
            (dtype,) = (dtype for dtype in DTYPES[self.kind] if name_matmul(dtype) == check)
            return self._measure_matmul(getattr(torch, dtype), seconds, on_load)
        except (RuntimeError, MemoryError) as error:  # out of memory, or a format that the device lacks
            return Measured(absent=str(error).partition("\n")[0][:200] or type(error).__name__)

    def _measure_matmul(self, dtype: torch.dtype, seconds: float, on_load: Callable[[], None]) -> Measured:
        size = MATMUL_SIZE[self.kind]
        left, right, out = (torch.ones(size, size, dtype=dtype, device=self.torch_device) for _ in range(3))

        def multiply() -> None:
            torch.mm(left, right, out=out)
            self.synchronize()

        if self.kind == CUDA:
            measure_rates(multiply, 1.0, seconds * WARM_UP_RATIO)
            for _ in range(16):
                torch.mm(left, right, out=out)
            on_load()
            self.synchronize()
        unit = TERA if self.kind == CUDA else GIGA
        return Measured(values=measure_rates(multiply, 2 * size**3 / unit, seconds))

    def _measure_memory(self, seconds: float) -> Measured:
        size = COPY_BYTES[self.kind]
        source, target = (torch.zeros(size, dtype=torch.uint8, device=self.torch_device) for _ in range(2))

        def copy() -> None:
            target.copy_(source)
            self.synchronize()

        return Measured(values=measure_rates(copy, 2 * size / GIGA, seconds))  # each byte is read and written

    def _measure_copies(self, check: str, seconds: float) -> Measured:
        host = torch.zeros(HOST_COPY_BYTES, dtype=torch.uint8, pin_memory=True)
        device = torch.zeros(HOST_COPY_BYTES, dtype=torch.uint8, device=self.torch_device)
        target, source = (device, host) if check == TO_DEVICE else (host, device)

        def copy() -> None:
            target.copy_(source, non_blocking=True)
            self.synchronize()

        return Measured(values=measure_rates(copy, HOST_COPY_BYTES / GIGA, seconds))


class CpuShare:
    """How much of the time this process had its CPUs: CPU time over time and threads, 0 to 1. For one thread."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._cpu_s = 0.0
        self._s = 0.0

    def measure(self, work: Callable[[], Measured]) -> Measured:
        """Do the work and count its time. Return what it returns."""
        begin_cpu_s, begin_s = time.process_time(), time.perf_counter()
        measured = work()
        self._cpu_s += time.process_time() - begin_cpu_s
        self._s += time.perf_counter() - begin_s
        return measured

    @property
    def share(self) -> float | None:
        """Return the share; None before any work."""
        return min(1.0, self._cpu_s / (self._s * self._threads)) if self._s else None


def read_cpu_model(path: str = "/proc/cpuinfo") -> str:
    """Return the model of the CPU by Linux; `CPU` where it does not say."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = (line.partition(":") for line in file)
            return next((value.strip() for name, _, value in lines if name.strip() == "model name"), "") or "CPU"
    except OSError:
        return "CPU"


def measure_disk(folder: str, seconds: float) -> Measured:
    """Return the rates in GB/s of blocks written and synchronized in a file without a name in `folder`.

    Where that is not possible, the reason with the cure.
    """
    block = os.urandom(BLOCK_BYTES)
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:

            def write() -> None:
                if file.tell() >= FILE_BYTES_MAX:
                    file.seek(0)
                rest = memoryview(block)
                while rest:
                    rest = rest[file.write(rest) :]
                os.fsync(file.fileno())

            return Measured(values=measure_rates(write, BLOCK_BYTES / GIGA, seconds))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        return Measured(absent=f"{folder} cannot be written to: {reason}. Name another folder by --disk-folder")


def measure_rates(
    work: Callable[[], None], amount: float, seconds: float, read_s: Callable[[], float] = time.perf_counter
) -> tuple[float, ...]:
    """Return the rates, in `amount` per second, of PARTS_MIN or more parts of PART_S or more, after one warm-up call.

    `work` does the amount once and returns when it is done. Its errors are passed on.

    >>> clock_s = iter([0.0] + [0.06 * tick for tick in range(99)])
    >>> [round(rate, 3) for rate in measure_rates(lambda: None, 3.0, 0.3, lambda: next(clock_s))]  # 2 x 3 in 0.12 s
    [50.0, 50.0, 50.0]
    """
    work()
    end_s = read_s() + seconds
    rates: list[float] = []
    begin_s, count = read_s(), 0
    while len(rates) < PARTS_MIN or begin_s < end_s:
        work()
        count += 1
        now_s = read_s()
        if now_s - begin_s >= PART_S:
            rates.append(amount * count / (now_s - begin_s))
            begin_s, count = now_s, 0
    return tuple(rates)
