"""Gives torch's gloo threads time to let go of their last work before the interpreter ends.

A thread of ProcessGroupGloo says that a collective is over, and then destroys its record, for which it takes the
interpreter's lock (GIL). Where the machine is so busy that the interpreter has begun to end in between, CPython ends
the thread amid C++: "terminate called without an active exception", SIGABRT, and a training that had succeeded counts
as failed (torch 2.13 without anything of ours: 2 of 19 short jobs on two cores with ten processes; pytorch issue
190489). So at the end, while the interpreter is whole, whoever is about to do so is let through.
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
LOOK_S: Final = 0.001
"""After each look the lock is free for so long, for who waits for it."""


def drain_gloo_threads(seconds_max: float = SECONDS_MAX, tasks: str = TASKS) -> bool:
    """Wait until no thread of gloo has anything to do, but no longer than that; whether it came to that. Where there is
    no /proc it waits for nobody.
    """
    end_s = time.monotonic() + seconds_max
    while states := list(_read_states(tasks)):
        time.sleep(LOOK_S)  # one that waits for the lock already does not look as if it had anything to do
        if RUNNABLE not in states:
            break
        if time.monotonic() >= end_s:
            return False
    return True


def _read_states(tasks: str) -> Iterator[str]:
    """What each thread of gloo does, as proc(5) calls it."""
    threads: list[str] = []
    with contextlib.suppress(OSError):
        threads = os.listdir(tasks)
    for thread in threads:
        stat = read_stat(f"{tasks}/{thread}")
        if stat is not None and stat.name == THREAD_NAME:
            yield stat.state
