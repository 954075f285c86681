"""Looks where threads are, a hundred times a second, for as long as somebody wants samples: the one sampler of the
agent. Full windows of a GPU want the lines of blocking calls (`profiler/line_sampler.py`), the collector those of a
rank that it suspects (`stack_samples.py`).

It has a thread of its own, which sleeps without a limit in between, and is woken by who comes. The agent's thread
cannot do it, since it sends and waits for minutes at a time, and a thread for each window would have to be started at a
step boundary.

How frames are read
-------------------
By `sys._current_frames()` with the garbage collector off until they have been walked. The interpreter allocates there
while it holds the lock of its list of threads, and before CPython 3.12 an allocation may start a collection, which may
run code of the script that waits for that lock, or lets the thread leave the frame meanwhile (python/cpython#106883,
#116969). A script that calls gc.disable() within these 50 us would find the collector on again, before 3.12.
"""

import contextlib
import gc
import queue
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final, Protocol

from rankscope.agent.captures.stacks import OUR_THREADS
from rankscope.agent.guard import LINE_SAMPLES, Guard
from rankscope.agent.own_thread import OwnThread

PART: Final = LINE_SAMPLES
COLLECTS_IN_ALLOCATIONS: Final = sys.version_info < (3, 12)


class Sampled(Protocol):
    """One who wants samples. `thread` is the ident of the thread, `interval_s` how often; `is_wanted` is False once it
    wants no more, `is_due` while it wants none now. `cpu_ns` is the CPU time that sampling for it has taken, which the
    sampler adds to. `wants_others`: it looks at the other threads, too.
    """

    wants_others: bool
    thread: int
    interval_s: float
    is_wanted: bool
    cpu_ns: int

    @property
    def is_due(self) -> bool:
        """Whether it wants a sample now. Asked once before each."""
        ...

    def add(self, host_ns: int, frame: FrameType | None) -> None:
        """Take the innermost frame of the thread at this time, None while it runs no Python. Keep no frame."""
        ...

    def add_others(self, host_ns: int, frames: dict[int, FrameType]) -> None:
        """Take the innermost frames of other threads at this time, by ident, each out of `frames`. Keep no frame."""
        ...


def read_all_frames() -> dict[int, FrameType]:
    """Return the innermost frame of each thread. The collector must be off (`collector_off`)."""
    return sys._current_frames()  # noqa: SLF001 - documented, and the only way


@contextlib.contextmanager
def collector_off() -> Iterator[None]:
    """Keep the garbage collector from running in this context, where it might, if it is on."""
    is_paused = COLLECTS_IN_ALLOCATIONS and gc.isenabled()
    if is_paused:
        gc.disable()
    try:
        yield
    finally:
        if is_paused:
            gc.enable()


class ThreadSampler:
    """The sampler of one process. Any thread may call `begin`; to end, set `is_wanted` to False.

    An error is counted by the guard, which ends sampling for good after too many; nobody gets samples then.
    """

    def __init__(
        self,
        guard: Guard,
        *,
        read_frames: Callable[[], dict[int, FrameType]] = read_all_frames,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        self._guard = guard
        self._read_frames = read_frames
        self._monotonic_ns = monotonic_ns
        self._sleep = self._wait_for_new if sleep is None else sleep
        self._new: queue.SimpleQueue[Sampled | None] = queue.SimpleQueue()  # None: there are no more
        self._come: list[Sampled | None] = []  # out of the queue
        self._is_closed = self._is_started = False
        self.is_paused = False
        """Whether it begins nothing, by an order of the collector. Written by the agent thread."""
        self._thread = OwnThread(target=self._run, name=f"{OUR_THREADS}lines", daemon=True)

    @property
    def is_usable(self) -> bool:
        """Whether it will sample."""
        return not self._is_closed and not self._guard.is_off(PART)

    def start(self) -> None:
        """Start the thread, if it is not; it waits to be wanted. Where none can be started there are no samples."""
        if self._is_started or self._is_closed:
            return
        self._is_started = True
        try:
            self._thread.start()
        except RuntimeError as error:
            self._is_closed = True
            self._guard.record(PART, error)

    def begin(self, wanted: Sampled) -> None:
        """Begin to sample for somebody. Nothing happens once sampling has ended for good, and while it is paused."""
        if self.is_usable and not self.is_paused:
            self._new.put(wanted)

    def close(self) -> None:
        """End the thread, soon. Never waits."""
        self._is_closed = True
        self._new.put(None)

    def wait(self, seconds: float) -> None:
        """Wait after `close` for the end of the thread, at most so long. One that is there when Python ends is ended
        amid its frames: where torch evaluates these (torch.compile), the process is aborted.
        """
        self._thread.wait_for_end(seconds)

    # -- its own thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        wanted: list[Sampled] = []
        while self.is_usable:
            while not self._new.empty() or not (wanted or self._come):
                self._come.append(self._new.get())
            for found in self._come:
                if found is None:
                    return
                if found not in wanted:  # one that wanted no more for a moment
                    wanted.append(found)
            self._come.clear()
            wanted = self.sample(wanted)

    def _wait_for_new(self, seconds: float) -> None:
        """Sleep until somebody wants samples, or there are no more, at most so long."""
        with contextlib.suppress(queue.Empty):
            self._come.append(self._new.get(timeout=seconds))

    def sample(self, wanted: list[Sampled]) -> list[Sampled]:
        """Take a sample for each of these that still wants one, and sleep; return who did."""
        wanted = [one for one in wanted if one.is_wanted]
        if not wanted:
            return wanted
        begin_ns = time.thread_time_ns()
        try:
            due = [one for one in wanted if one.is_due]
            with collector_off() if due else contextlib.nullcontext():
                frames = self._read_frames() if due else {}
                own = [frames.get(one.thread) for one in due]
                looking = next((one for one in due if one.wants_others), None)
                if looking is None:
                    frames.clear()  # those of other threads: what a thread returns from is to be freed there
                now_ns = self._monotonic_ns()
                for one, frame in zip(due, own, strict=True):
                    one.add(now_ns, frame)
                own.clear()
                if looking is not None:
                    looking.add_others(now_ns, frames)
                    frames.clear()
        except Exception as error:  # noqa: BLE001 - no error of the agent may reach the training script
            self._guard.record(PART, error)
        each_ns = (time.thread_time_ns() - begin_ns) // len(wanted)
        for one in wanted:
            one.cpu_ns += each_ns
        self._sleep(min(one.interval_s for one in wanted))
        return wanted
