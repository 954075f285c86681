"""What windows leave free in the heap goes back to the kernel."""

import subprocess
import sys

import pytest

from rankscope.agent.profiler.malloc_trim import GROWTH_BYTES_MIN, TRIM_NS_MAX, TRIMS_IN_A_ROW_MAX, MallocTrim

MIB = 2**20
MODEL = 300 * MIB


class Heap:
    """A process that holds a model, and what windows have left. What is `held` is training's own."""

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


def test_what_windows_leave_is_given_back_before_it_is_much() -> None:
    heap = Heap()
    highest = 0
    for _ in range(100):
        heap.window(leaves=5 * MIB)
        highest = max(highest, heap.left)
    assert heap.given_back == 20  # each fifth: 20 MiB are more than is left alone
    assert highest == 20 * MIB


def test_windows_that_leave_nothing_cost_nothing() -> None:
    heap = Heap()
    for _ in range(100):
        heap.window()
    assert heap.given_back == 0


def test_what_comes_and_goes_with_a_window_is_left_alone() -> None:
    heap = Heap()
    for grown in (0, GROWTH_BYTES_MIN - 1) * 10:
        heap.relief.after_window(MODEL + grown)
    assert heap.given_back == 0


def test_training_that_has_grown_itself_is_not_disturbed_again_and_again() -> None:
    heap = Heap()
    heap.window()
    heap.held += 200 * MIB
    for _ in range(100):
        heap.window()
    assert heap.given_back == TRIMS_IN_A_ROW_MAX


def test_what_is_left_after_training_has_grown_is_told_from_it() -> None:
    heap = Heap()
    heap.window()
    heap.held += 200 * MIB
    for _ in range(TRIMS_IN_A_ROW_MAX + 1):
        heap.window()
    heap.window(leaves=GROWTH_BYTES_MIN)
    heap.window()
    assert heap.given_back == TRIMS_IN_A_ROW_MAX + 1


def test_training_that_has_become_smaller_counts_from_there() -> None:
    heap = Heap()
    heap.window()
    heap.held -= 100 * MIB
    heap.window(leaves=GROWTH_BYTES_MIN)
    heap.window()
    assert heap.given_back == 1


def test_a_window_that_began_before_does_not_raise_what_is_usual() -> None:
    """The next window begins at once, and the agent thread comes to the one before only then."""
    heap = Heap()
    heap.window()
    for _ in range(50):
        heap.left += GROWTH_BYTES_MIN
        begun_before = heap.held + heap.left
        heap.relief.after_window(begun_before)
        heap.relief.after_window(begun_before)
        heap.window()
    assert heap.left == 0


def test_a_heap_that_takes_long_is_not_the_windows() -> None:
    heap = Heap(takes_ns=TRIM_NS_MAX + 1)
    for _ in range(100):
        heap.window(leaves=5 * MIB)
    assert heap.given_back == 1


def test_what_is_not_known_or_cannot_be_given_back_is_no_reason() -> None:
    heap = Heap()
    for _ in range(10):
        heap.relief.after_window(None)
    assert heap.given_back == 0
    MallocTrim(None).after_window(MODEL)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
def test_glibc_gives_back_what_lies_between_what_is_used() -> None:
    """In a process of its own, in the heap of a thread as in that of the program: training allocates in both."""
    program = """
import ctypes, threading
from rankscope.agent.profiler.malloc_trim import find_malloc_trim
from rankscope.agent.sample.host import ResidentMemory

library, size, memory, told = ctypes.CDLL(None), 32768, ResidentMemory(), []
library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

def work():
    blocks = [library.malloc(size) for _ in range(2048)]
    for block in blocks:
        ctypes.memset(block, 1, size)
    full = memory.read_bytes()
    for block in blocks[::2]:
        library.free(block)
    told.append(full - memory.read_bytes() < 8 << 20)
    find_malloc_trim()()
    told.append(full - memory.read_bytes() > 28 << 20)

work()
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(*told)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["True"] * 4
