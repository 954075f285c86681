"""Samples this process: CPU, memory, context switches, page faults, and pauses of the garbage collector.

CPU, switches, major faults    one getrusage(RUSAGE_SELF), which is faster than /proc and exact to 1 us
wait for a CPU                 the second number of /proc/self/schedstat, which is about the main thread, in ns; in user
                               space nothing tells it from another wait
resident memory                the second number of /proc/self/statm, kept open: ten times as fast as psutil;
                               getrusage has only the peak
stopped by a CPU limit         cpu.stat of the cgroup (cpu_limit.py)
wait for block I/O             field 42 of /proc/self/stat, of the main thread (block_io.py)
garbage collection             collection_times.py, by gc.callbacks, the only source; 0.5 us a call, two a collection
"""

import os
import resource
import time
from collections.abc import Callable
from typing import Final

from rankscope.agent.collection_times import CollectionTimes
from rankscope.agent.sample.block_io import BLOCK_IO_WAIT, BlockIo
from rankscope.agent.sample.cpu_limit import CpuLimit
from rankscope.measure.clock import Clock
from rankscope.measure.records import HostSample
from rankscope.measure.units import s_to_ns

Usage = resource.struct_rusage
STATM: Final = "/proc/self/statm"
STATM_BYTES_MAX: Final = 256
"""Seven numbers of at most 20 digits."""
SCHEDSTAT: Final = "/proc/self/schedstat"


def read_own_usage() -> Usage:
    """Return the kernel's resource usage of this process, all threads included."""
    return resource.getrusage(resource.RUSAGE_SELF)


class ResidentMemory:
    """The resident memory of this process, read from a file that stays open, or by psutil without one (macOS)."""

    def __init__(self, path: str = STATM) -> None:
        self._path = path
        self._file: int | None = None

    def read_bytes(self) -> int:
        """Return the resident memory of this process in bytes. Raise OSError if it cannot be read."""
        if self._file is None:
            try:
                self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return _ask_psutil()
        fields = os.pread(self._file, STATM_BYTES_MAX, 0).split()
        try:
            return int(fields[1]) * resource.getpagesize()
        except (IndexError, ValueError) as error:
            raise OSError(f"{self._path} holds {fields}, not numbers of pages") from error

    def find_bytes(self) -> int | None:
        """Return the resident memory of this process in bytes; None if it cannot be read."""
        try:
            return self.read_bytes()
        except OSError:
            return None

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def _ask_psutil() -> int:
    import psutil  # type: ignore[import-untyped, unused-ignore]  # noqa: PLC0415 - typed only where types-psutil is

    try:
        return int(psutil.Process().memory_info().rss)
    except psutil.Error as error:
        raise OSError(f"the memory of this process cannot be read: {error}") from error


def find_run_queue_wait(path: str = SCHEDSTAT) -> int | None:
    """Return for how long the main thread of this process was ready to run and had no CPU, in ns; None where the kernel
    does not count it: then the file is missing, or all its numbers are 0.
    """
    try:
        with open(path, "rb") as file:
            ran, waited, _ = file.read(STATM_BYTES_MAX).split()
        return int(waited) if int(ran) else None
    except (OSError, ValueError):
        return None


class GcMeter:
    """Meter of the pauses of this process by Python's garbage collector.

    Both values count from 0 at the first `install()`, are None while removed, continue at the next `install()`, and
    never decrease. One thread reads them.
    """

    def __init__(self, read_clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._times = CollectionTimes(read_clock_ns)
        self._installed = False
        self._pause_ns = 0
        self._collections = 0

    @property
    def pause_ns(self) -> int | None:
        """Total time of collections, None while not installed."""
        self._add_up()
        return self._pause_ns if self._installed else None

    @property
    def collections(self) -> int | None:
        """Number of collections of all generations, None while not installed."""
        self._add_up()
        return self._collections if self._installed else None

    def install(self) -> None:
        """Start counting. A second call changes nothing."""
        if not self._installed:
            self._installed = True
            self._times.install()

    def remove(self) -> None:
        """Stop counting. Safe if not installed, and if the script has emptied gc.callbacks."""
        self._installed = False
        self._times.remove()

    def _add_up(self) -> None:
        for one in self._times.take():
            self._pause_ns += one.duration_ns
            self._collections += 1


class HostSampler:
    """The sampler of this process. `read_usage` may raise OSError; `schedstat` is the file of the main thread."""

    def __init__(
        self,
        clock: Clock,
        gc_meter: GcMeter | None = None,
        *,
        read_usage: Callable[[], Usage] = read_own_usage,
        memory: ResidentMemory | None = None,
        schedstat: str = SCHEDSTAT,
        limit: CpuLimit | None = None,
        block_io: BlockIo | None = None,
    ) -> None:
        self._clock = clock
        self._schedstat = schedstat
        self._gc_meter = gc_meter
        self._read_usage = read_usage
        self._memory = memory or ResidentMemory()
        self._limit = limit or CpuLimit()
        self._block_io = block_io or BlockIo()

    def sample(self) -> HostSample:
        """Return a sample of the process. Values that the platform denies are None."""
        usage = self._usage()
        waits = usage if usage is not None and _counts_waits(usage) else None
        return HostSample(
            host_ns=self._clock.monotonic_ns(),
            cpu_ns=s_to_ns(usage.ru_utime + usage.ru_stime) if usage is not None else None,
            resident_bytes=self._memory.find_bytes(),
            voluntary_switches=waits.ru_nvcsw if waits is not None else None,
            involuntary_switches=waits.ru_nivcsw if waits is not None else None,
            major_faults=waits.ru_majflt if waits is not None else None,
            gc_pause_ns=self._gc_meter.pause_ns if self._gc_meter is not None else None,
            gc_collections=self._gc_meter.collections if self._gc_meter is not None else None,
            run_queue_wait_ns=find_run_queue_wait(self._schedstat),
            throttled_ratio=self._limit.read_throttled_ratio(),
            block_io_wait_ns=self._block_io.read_wait_ns(),
            absent={BLOCK_IO_WAIT: self._block_io.obstacle} if self._block_io.obstacle else {},
        )

    def find_resident_bytes(self) -> int | None:
        """Return the resident memory of this process; None if it cannot be read."""
        return self._memory.find_bytes()

    def close(self) -> None:
        """Close the open file."""
        self._memory.close()

    def _usage(self) -> Usage | None:
        try:
            return self._read_usage()
        except OSError:
            return None


def _counts_waits(usage: Usage) -> bool:
    """Return whether the kernel counts context switches at all.

    A process that has imported torch has switched at least once. A sandbox kernel (gVisor) reports 0 for switches and
    faults, which is not a measurement.
    """
    return usage.ru_nvcsw + usage.ru_nivcsw > 0
