"""Waits for torch's gloo threads to finish their last work before the interpreter exits.

A thread of ProcessGroupGloo signals the end of a collective and then destroys its record, for which it takes the GIL.
If the interpreter exits in between, CPython ends the thread inside C++: "terminate called without an active exception",
SIGABRT, and a successful training counts as failed (pytorch issue 190489; also without the agent).
"""

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Final

from rankscope.measure.proc_stat import read_stat

THREAD_NAME: Final = "pt_gloo_runloop"
TASKS: Final = "/proc/self/task"
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
