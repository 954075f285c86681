"""MallocTrim: memory that windows freed in the heap returns to the kernel."""

import subprocess
import sys

import pytest

from rankscope.agent.profiler.malloc_trim import GROWTH_BYTES_MIN, TRIM_NS_MAX, TRIMS_IN_A_ROW_MAX, MallocTrim

MIB = 2**20
MODEL = 300 * MIB


class Heap:
    """A process with a model and the freed memory of windows; `held` is training's own."""

    def __init__(self, *, takes_ns: int = 1_000_000) -> None:
        self.left = 0
        self.held = MODEL
        self.given_back = 0
        self.cpu_ns = 0
        self._takes_ns = takes_ns
        self.relief = MallocTrim(self._trim, lambda: self.cpu_ns)

    def _trim(self) -> None:
        self.given_back += 1
        self.left = 0
        self.cpu_ns += self._takes_ns

    def window(self, leaves: int = 0) -> None:
        before = self.held + self.left
        self.left += leaves
        self.relief.after_window(before)


def test_memory_of_windows_is_trimmed_early() -> None:
    heap = Heap()
    highest = 0
    for _ in range(100):
        heap.window(leaves=5 * MIB)
        highest = max(highest, heap.left)
    assert heap.given_back == 20  # each fifth: 20 MiB are more than is left alone
    assert highest == 20 * MIB


def test_windows_that_leave_no_memory_are_not_trimmed() -> None:
    heap = Heap()
    for _ in range(100):
        heap.window()
    assert heap.given_back == 0


def test_memory_freed_with_each_window_is_ignored() -> None:
    heap = Heap()
    for grown in (0, GROWTH_BYTES_MIN - 1) * 10:
        heap.relief.after_window(MODEL + grown)
    assert heap.given_back == 0


def test_growth_of_training_is_not_trimmed_repeatedly() -> None:
    heap = Heap()
    heap.window()
    heap.held += 200 * MIB
    for _ in range(100):
        heap.window()
    assert heap.given_back == TRIMS_IN_A_ROW_MAX


def test_memory_of_windows_is_trimmed_after_training_grew() -> None:
    heap = Heap()
    heap.window()
    heap.held += 200 * MIB
    for _ in range(TRIMS_IN_A_ROW_MAX + 1):
        heap.window()
    heap.window(leaves=GROWTH_BYTES_MIN)
    heap.window()
    assert heap.given_back == TRIMS_IN_A_ROW_MAX + 1


def test_smaller_training_lowers_the_baseline() -> None:
    heap = Heap()
    heap.window()
    heap.held -= 100 * MIB
    heap.window(leaves=GROWTH_BYTES_MIN)
    heap.window()
    assert heap.given_back == 1


def test_window_from_before_a_trim_does_not_raise_the_baseline() -> None:
    """The next window begins before the agent thread has read the one before."""
    heap = Heap()
    heap.window()
    for _ in range(50):
        heap.left += GROWTH_BYTES_MIN
        begun_before = heap.held + heap.left
        heap.relief.after_window(begun_before)
        heap.relief.after_window(begun_before)
        heap.window()
    assert heap.left == 0


def test_slow_trim_is_the_last() -> None:
    heap = Heap(takes_ns=TRIM_NS_MAX + 1)
    for _ in range(100):
        heap.window(leaves=5 * MIB)
    assert heap.given_back == 1


def test_no_trim_without_resident_bytes_or_function() -> None:
    heap = Heap()
    for _ in range(10):
        heap.relief.after_window(None)
    assert heap.given_back == 0
    MallocTrim(None).after_window(MODEL)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
def test_glibc_trims_free_memory_between_used_blocks() -> None:
    """In a process of its own, in the heap of a thread as in that of the program: training allocates in both."""
    program = """
import ctypes, threading
from rankscope.agent.profiler.malloc_trim import find_malloc_trim
from rankscope.agent.sample.host import ResidentMemory

library, size, memory, trimmed = ctypes.CDLL(None), 32768, ResidentMemory(), []
library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

def work():
    blocks = [library.malloc(size) for _ in range(2048)]
    for block in blocks:
        ctypes.memset(block, 1, size)
    full = memory.read_bytes()
    for block in blocks[::2]:
        library.free(block)
    trimmed.append(full - memory.read_bytes() < 8 << 20)
    find_malloc_trim()()
    trimmed.append(full - memory.read_bytes() > 28 << 20)

work()
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(*trimmed)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=500, check=True)
    assert done.stdout.split() == ["True"] * 4
