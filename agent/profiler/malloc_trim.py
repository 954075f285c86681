"""What windows leave free in the heap, for the kernel to have back.

While a session of torch's profiler lasts each of its events keeps some bytes, and they lie where a buffer of training
was before, so that the next buffer needs new memory. Once the window has been read its bytes are free, but malloc holds
what lies between what is used, and training does not find the large pieces that it had. With FSDP2 on a CPU, whose
buffers come and go in each layer, a rank with steps of 190 ms held 21 to 45 MiB more than without the agent; since this
is given back it holds 7 more (`tests/benchmarks/results/overhead.md`).

Training is put off while that lasts only where it asks malloc for memory, some ms; it is counted as the windows' cost.
"""

import contextlib
import ctypes
import time
from collections.abc import Callable
from typing import Final

from rankscope.measure.units import NS_PER_MS

GROWTH_BYTES_MIN: Final = 16 * 2**20
"""Less than this is left alone: windows come and go with 2 to 8 MiB of their own."""
TRIMS_IN_A_ROW_MAX: Final = 2
"""In a row. The first may have come after the next window had begun; what is resident after two is training's."""
TRIM_NS_MAX: Final = 30 * NS_PER_MS
"""CPU time. Where it took longer the heap is so large that it is not what windows have left: it is done no more."""


class MallocTrim:
    """Gives back what windows have left, when the process has become larger from window to window.

    Compared is what is resident when windows begin, always at the boundary of a step, where training holds the same.
    What stays resident though all has been given back is training's own.
    """

    def __init__(self, trim: Callable[[], None] | None, read_cpu_ns: Callable[[], int] = time.thread_time_ns) -> None:
        self._trim = trim
        self._read_cpu_ns = read_cpu_ns
        self._usual_bytes: int | None = None
        self._tries = 0

    def after_window(self, resident_before_bytes: int | None) -> None:
        """A window has been read and let go of; at its begin that much was resident, None: not known."""
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
    """glibc's malloc_trim(3) for all heaps, without Python's lock; None with another C library. With another malloc in
    its place, as jemalloc, it finds nothing and takes no time.
    """
    with contextlib.suppress(AttributeError, OSError):
        trim = ctypes.CDLL(None).malloc_trim
        trim.argtypes = [ctypes.c_size_t]
        return lambda: trim(0)
    return None
