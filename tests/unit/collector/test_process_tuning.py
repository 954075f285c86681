"""Tuning of Python, malloc and the kernel for the collector's process."""

import gc
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rankscope.collector.process_tuning import GC_OBJECTS_MIN, SWITCH_S, THREAD_NAME_BYTES_MAX, name_this_thread


def test_thread_name_is_cut_to_the_kernel_limit() -> None:
    shown: list[str] = []

    def work() -> None:
        for name in ("receive", "a-name-that-is-too-long"):
            name_this_thread(name)
            shown.append(Path(f"/proc/self/task/{threading.get_native_id()}/comm").read_text().rstrip("\n"))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert shown == ["receive", "a-name-that-is-too-long"[:THREAD_NAME_BYTES_MAX]]


def test_garbage_collector_runs_rarely_and_skips_old_objects() -> None:
    """In a process of its own: these settings are of the whole process."""
    program = (
        "import gc; from rankscope.collector.process_tuning import limit_malloc_arenas\n"
        "from rankscope.collector.process_tuning import raise_gc_threshold as spare\n"
        "limit_malloc_arenas(); spare(); print(gc.get_threshold()[0], gc.get_freeze_count() > 1000)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=500, check=True)
    assert done.stdout.split() == [str(GC_OBJECTS_MIN), "True"]
    assert gc.isenabled()


def test_waiting_thread_gets_the_interpreter_lock_soon() -> None:
    program = (
        "import sys; from rankscope.collector.process_tuning import shorten_switch_interval\n"
        "shorten_switch_interval(); print(sys.getswitchinterval())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=500, check=True)
    assert float(done.stdout) == pytest.approx(SWITCH_S)


def test_free_heap_memory_returns_to_the_kernel() -> None:
    """Every other block of a heap is freed, so that nothing goes back by itself; in a process of its own."""
    program = """
import ctypes
from rankscope.collector.process_tuning import FREE_BYTES_MIN, HeapTrimmer, limit_malloc_arenas, read_resident_bytes

limit_malloc_arenas()
library, size, memory = ctypes.CDLL(None), 32768, HeapTrimmer()
library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
blocks = [library.malloc(size) for _ in range(4 * FREE_BYTES_MIN // size)]
for block in blocks:
    ctypes.memset(block, 1, size)
full = read_resident_bytes()
print(memory.trim())
for block in blocks[::2]:
    library.free(block)
print(memory.trim(), full - read_resident_bytes() > FREE_BYTES_MIN, memory.trim())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=500, check=True)
    assert done.stdout.split() == ["False", "True", "True", "False"]


@pytest.mark.parametrize(("call", "goes_back"), [("map_large_blocks()", True), ("", False)])
def test_large_blocks_go_back_to_the_kernel_when_freed(call: str, goes_back: bool) -> None:
    """A small block behind each keeps it in a heap, to which glibc moves large blocks once one was freed."""
    program = f"""
import ctypes
from rankscope.collector.process_tuning import limit_malloc_arenas, map_large_blocks, read_resident_bytes

limit_malloc_arenas()
{call}
library, size, count = ctypes.CDLL(None), 4 * 2**20, 32
library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
library.free(library.malloc(size))
before, blocks = read_resident_bytes(), []
for _ in range(count):
    blocks.append(library.malloc(size))
    ctypes.memset(blocks[-1], 1, size)
    ctypes.memset(library.malloc(65536), 1, 65536)
for block in blocks:
    library.free(block)
print(read_resident_bytes() - before < count * size // 4)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=500, check=True)
    assert done.stdout.split() == [str(goes_back)]
