"""Tune Python's garbage collector and thread switching, and glibc's malloc, for a collector of many ranks."""

import contextlib
import ctypes
import functools
import gc
import os
import sys
import threading
from pathlib import Path
from typing import Final

GC_OBJECTS_MIN: Final = 50_000
"""New objects between two runs of the garbage collector, about 5 MB: at 16,384 ranks some runs a second."""

SWITCH_S: Final = 0.0005
"""How long a computing thread keeps the interpreter's lock from one that waits for it; Python's default is 5 ms."""

M_ARENA_MAX: Final = -8
"""glibc's number for the most heaps that malloc keeps, mallopt(3)."""

M_MMAP_THRESHOLD: Final = -3
"""glibc's number for the size from which on a block is mapped by itself, mallopt(3)."""
LARGE_BLOCK_BYTES: Final = 2 * 2**20
"""Below the frames by which a few peers can make libzmq hold much: the largest that an agent sends is just under 4 MiB.
Above most arrays that a detection pass makes in passing: one over 16,384 ranks takes as long as without this."""

TRIM_CHECK_S: Final = 20.0
"""Time between two checks for memory that is free and still held."""
FREE_BYTES_MIN: Final = 32 * 2**20
"""Less than this is kept: it is used again within seconds."""

THREAD_NAME_BYTES_MAX: Final = 15
"""The kernel's TASK_COMM_LEN without the zero at the end."""


def raise_gc_threshold() -> None:
    """Run the garbage collector rarely, and exclude the objects that exist now. It finds reference cycles, of which
    there are few here; with Python's threshold of 700 new objects it would run for every batch of reports.
    """
    gc.freeze()
    gc.set_threshold(GC_OBJECTS_MIN)


def shorten_switch_interval() -> None:
    """Make computing threads release the interpreter's lock sooner: the receive thread releases it twice in each
    message, and needs it back from a detection pass or a page that is being rendered.
    """
    sys.setswitchinterval(SWITCH_S)


def limit_malloc_arenas() -> None:
    """Limit glibc to one heap; call it before threads are started. glibc gives each thread a heap of its own, and
    memory that ZeroMQ's thread allocates and another one frees stays in the first one's heap. No effect without glibc.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def map_large_blocks() -> None:
    """Map blocks of LARGE_BLOCK_BYTES and more by themselves, so that they return to the kernel when they are freed.

    Otherwise glibc raises its own limit to the size of the first large block that is freed, and allocates later ones in
    its heap, where the small block behind each keeps it: after 64 peers had been cut off that sent frames of 4 MiB
    without their end, again and again, 246 MiB stayed; 6 do with this. No effect without glibc.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)


class _HeapUse(ctypes.Structure):
    """The result of mallinfo2(3), in bytes. `fordblks` are free."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    )  # fmt: skip


class HeapTrimmer:
    """Returns to the kernel the memory that malloc holds free within its heap."""

    def __init__(self) -> None:
        self._resident_bytes = 0
        """The smallest resident memory since the last trim. malloc still counts returned pages as free, so only growth
        beyond this shows that there is memory to return."""

    def trim(self) -> bool:
        """Return free memory to the kernel if there is at least FREE_BYTES_MIN; return whether it did. Takes about 18
        ms for 100 MiB, in which other threads wait only for malloc.
        """
        library = _load_glibc()
        if library is None or library.mallinfo2().fordblks < FREE_BYTES_MIN:
            return False
        resident_bytes = read_resident_bytes()
        self._resident_bytes = min(self._resident_bytes, resident_bytes)
        if resident_bytes < self._resident_bytes + FREE_BYTES_MIN:
            return False
        library.malloc_trim(0)
        self._resident_bytes = read_resident_bytes()
        return True


def start_malloc_trim() -> None:
    """Start a daemon thread that trims the heap every TRIM_CHECK_S."""

    def work() -> None:
        name_this_thread("heap")
        trimmer, pause = HeapTrimmer(), threading.Event()
        while not pause.wait(TRIM_CHECK_S):
            trimmer.trim()

    if _load_glibc() is not None:
        threading.Thread(target=work, name="rankscope-heap", daemon=True).start()


def read_heap_bytes() -> int:
    """Return the memory that malloc has given out; the resident memory without glibc 2.33. Raises OSError where neither
    is known. Takes some 10 us, and more with many free pieces between.
    """
    library = _load_glibc()
    if library is None:
        return read_resident_bytes()
    use = library.mallinfo2()
    return int(use.uordblks) + int(use.hblkhd)


def read_resident_bytes() -> int:
    """Return the resident memory of this process. Raises OSError where there is no /proc."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@functools.cache
def _load_glibc() -> ctypes.CDLL | None:
    """Return glibc from 2.33 on, else None."""
    with contextlib.suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        library.mallinfo2.restype = _HeapUse
        library.malloc_trim.argtypes = [ctypes.c_size_t]
        return library
    return None


def name_this_thread(name: str) -> None:
    """Give the calling thread a name that `top -H` and /proc show; Python itself does so from 3.14 on."""
    own = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
    with contextlib.suppress(OSError):
        own.write_bytes(name.encode()[:THREAD_NAME_BYTES_MAX])
