"""What the collector's process asks of Python and of the C library, so that many ranks cost little."""

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
"""New objects between two looks of the garbage collector, about 5 MB: at 16,384 ranks some looks a second."""

SWITCH_S: Final = 0.0005
"""How long a thread that computes keeps Python's lock from one that waits for it, instead of 5 ms."""

M_ARENA_MAX: Final = -8
"""glibc's number for the most heaps that malloc keeps, mallopt(3)."""

HEAP_LOOK_S: Final = 20.0
"""Between two looks for memory that is free and still held."""
FREE_BYTES_MIN: Final = 32 * 2**20
"""Less than this is left alone: it is used again within seconds."""

THREAD_NAME_BYTES_MAX: Final = 15
"""The kernel's TASK_COMM_LEN without the zero at the end."""


def raise_gc_threshold() -> None:
    """Python's garbage collector looks for cycles, of which there are few here. What is there now stays, and is not
    looked at again; and with the usual 700 new objects between two looks a batch of reports would be one.
    """
    gc.freeze()
    gc.set_threshold(GC_OBJECTS_MIN)


def shorten_switch_interval() -> None:
    """The thread that receives lets go of Python's lock twice in each message, and has to have it back from one that
    looks at the ranks or writes pages meanwhile.
    """
    sys.setswitchinterval(SWITCH_S)


def limit_malloc_arenas() -> None:
    """To be called before there are threads: glibc gives each a heap of its own, and what ZeroMQ's thread has allocated
    and another one freed stays with that heap. Measured at 1,024 ranks: 189 MiB, with one heap 148. Elsewhere than with
    glibc nothing is done.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


class _HeapUse(ctypes.Structure):
    """What mallinfo2(3) tells, in bytes. `fordblks` are free."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    )  # fmt: skip


class FreeMemory:
    """What malloc holds free within the heap, for the kernel to have back."""

    def __init__(self) -> None:
        self._resident_bytes = 0
        """The least since the last time: what was free then still counts as free, though no page of it is held."""

    def give_back(self) -> bool:
        """Give it back; whether there was much. Measured: after a collector with 512 ranks was stopped for four seconds
        140 MiB were held and 44 used; giving the rest back took 18 ms. Other threads that ask malloc for memory wait
        for it, those that run Python code do not.
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
    """Look for free memory every HEAP_LOOK_S, from a thread that ends with the process."""

    def work() -> None:
        name_this_thread("heap")
        memory, pause = FreeMemory(), threading.Event()
        while not pause.wait(HEAP_LOOK_S):
            memory.give_back()

    if _load_glibc() is not None:
        threading.Thread(target=work, name="rankscope-heap", daemon=True).start()


def read_resident_bytes() -> int:
    """Resident memory of this process. Raises OSError where there is no /proc."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@functools.cache
def _load_glibc() -> ctypes.CDLL | None:
    """None elsewhere than with glibc 2.33 and later."""
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
