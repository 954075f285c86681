"""Keeps threads out of torch's C++ while the interpreter exits.

CPython ends a thread that tries to take the GIL during the exit with `pthread_exit`. Within C++ this unwinds through
torch: "terminate called without an active exception", SIGABRT, and a successful training counts as failed (pytorch
issue 190489). Two kinds of thread can be there:

    torch's gloo threads    signal the end of a collective and then destroy its record, for which they take the GIL,
                            also without the agent; `drain_gloo_threads` waits until they have done so
    the agent's own         in a call that has released the GIL (any method of TCPStore); they make such calls through
                            a `TorchCallGate`, which is shut before the interpreter exits
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Final

from rankscope.agent.steps.open_collectives import TASKS, THREAD_NAME
from rankscope.measure.proc_stat import read_stat

RUNNABLE: Final = "R"
SECONDS_MAX: Final = 0.2
POLL_S: Final = 0.001
"""Pause between checks, during which the GIL is free for the gloo threads."""


def drain_gloo_threads(seconds_max: float = SECONDS_MAX, tasks: str = TASKS) -> bool:
    """Wait until no gloo thread is runnable, at most `seconds_max`; return whether that was reached.

    Without /proc it does not wait.
    """
    end_s = time.monotonic() + seconds_max
    while states := list(_read_states(tasks)):
        time.sleep(POLL_S)  # a thread that waits for the GIL is not shown as runnable
        if RUNNABLE not in states:
            break
        if time.monotonic() >= end_s:
            return False
    return True


def _read_states(tasks: str) -> Iterator[str]:
    """Return the state of each gloo thread, as in proc(5)."""
    threads: list[str] = []
    with contextlib.suppress(OSError):
        threads = os.listdir(tasks)
    for thread in threads:
        stat = read_stat(f"{tasks}/{thread}")
        if stat is not None and stat.name == THREAD_NAME:
            yield stat.state


class TorchCallGate:
    """Context manager around calls into torch; after `shut` a caller blocks until the process is gone."""

    def __init__(self) -> None:
        self._in_call = threading.Lock()

    def __enter__(self) -> None:
        self._in_call.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._in_call.release()

    def shut(self, seconds_max: float) -> bool:
        """Shut the gate for good, after waiting for the present call; return False if that takes longer."""
        return self._in_call.acquire(timeout=seconds_max)
