"""Return the memory that profiler windows freed in the heap to the kernel, by malloc_trim.

The events of a profiler session occupy heap memory that a buffer of training has just freed, so that the next buffer
needs new memory. Once the window has been read this memory is free again, but malloc keeps the fragments. With FSDP2
on a CPU a rank held 21 to 45 MiB more than without the agent, and 7 MiB more with malloc_trim
(`bench/results/overhead.md`).

Training waits only where it calls malloc meanwhile, some ms; the time counts as the windows' cost.
"""

import contextlib
import ctypes
import time
from collections.abc import Callable
from typing import Final

from rankscope.measure.units import NS_PER_MS

GROWTH_BYTES_MIN: Final = 16 * 2**20
"""Less growth is ignored: each window needs 2 to 8 MiB itself."""
TRIMS_IN_A_ROW_MAX: Final = 2
"""The first trim may come after the next window has begun; memory still resident after two belongs to training."""
TRIM_NS_MAX: Final = 30 * NS_PER_MS
"""CPU time. A trim that took longer is the last: the heap is too large for its growth to come from windows."""


class MallocTrim:
    """Trim the heap when the process has grown from window to window.

    It compares the resident memory at the begin of windows, always a step boundary, where training holds the same.
    Memory that stays resident after trims belongs to training.
    """

    def __init__(self, trim: Callable[[], None] | None, read_cpu_ns: Callable[[], int] = time.thread_time_ns) -> None:
        self._trim = trim
        self._read_cpu_ns = read_cpu_ns
        self._usual_bytes: int | None = None
        self._tries = 0

    def after_window(self, resident_before_bytes: int | None) -> None:
        """Trim if needed, after a window was read and freed; `resident_before_bytes` is from its begin, None: not
        known.
        """
        if resident_before_bytes is None or self._trim is None:
            return
        if self._usual_bytes is None or self._tries == TRIMS_IN_A_ROW_MAX:
            self._usual_bytes = resident_before_bytes
        self._usual_bytes = min(self._usual_bytes, resident_before_bytes)
        if resident_before_bytes < self._usual_bytes + GROWTH_BYTES_MIN:
            self._tries = 0
            return
        self._tries += 1
        begin_ns = self._read_cpu_ns()
        self._trim()
        if self._read_cpu_ns() - begin_ns > TRIM_NS_MAX:
            self._trim = None


def find_malloc_trim() -> Callable[[], None] | None:
    """Return glibc's malloc_trim(3) for all heaps, called without the GIL; None with another C library. With another
    malloc, such as jemalloc, it does nothing and takes no time.
    """
    with contextlib.suppress(AttributeError, OSError):
        trim = ctypes.CDLL(None).malloc_trim
        trim.argtypes = [ctypes.c_size_t]
        return lambda: trim(0)
    return None
