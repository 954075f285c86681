"""What each kind of fault does, on the training thread. All of it ends by itself."""

import ctypes
import gc
import os
import subprocess
import sys
import threading
import time
from typing import Final

from rankscope.agent.fault_spec import FaultSpec
from rankscope.agent.identity import drop_rank_variables

EXIT_CODE: Final = 3
HOGS: Final = 7
"""Processes on the core of the training thread, which then gets an eighth of it. Ranks that share the other cores of
the machine wait for each other there: with three hogs they waited 0.6 times as long for a core as this rank, and from
0.5 on a rank is not told from its peers (`ALIKE_RATIO` of the collector's host_times.py)."""
HOG_S_MAX: Final = 600.0
"""Longest life of such a process; a fault that lasts longer goes on without them."""
HOG_CODE: Final = """\
import os, sys, time
parent, end_s = int(sys.argv[1]), time.monotonic() + float(sys.argv[3])
os.sched_setaffinity(0, {int(sys.argv[2])})
while os.getppid() == parent and time.monotonic() < end_s:
    for _ in range(100_000):
        pass
"""
"""Computes until its parent ends, and at most for the given seconds."""
STOP_COMMAND: Final = 'trap "" HUP INT TERM; kill -STOP "$1"; sleep "$2"; kill -CONT "$1"'
"""Stops a process, and continues it: a stopped process cannot do that by itself. A session of its own and the trap
keep the shell alive when the run is ended meanwhile."""
CHURN_BYTES: Final = 32 * 1024 * 1024
"""A block that the C library maps and unmaps each time, above any threshold of malloc's (mallopt(3): 32 MiB)."""
CALIBRATED: Final = 200_000
"""Numbers summed to learn how fast the processor sums: some ms."""


class Actions:
    """The actions of one fault. `act` is called in each of its steps, or once; `end` after the last one."""

    def __init__(self, spec: FaultSpec) -> None:
        self._ms = spec.ms or 0
        self._act = {
            "host_sleep": self._sleep,
            "loader_delay": self._sleep,
            "hang": self._sleep,
            "gil_spin": self._keep_lock,
            "garbage_collection": self._collect,
            "allocation_churn": self._churn,
            "cpu_hog": self._start_hogs,
            "sigstop": self._stop_process,
            "exit": _exit,
            "crash": _crash,
        }[spec.kind]
        self._sums_per_ns = 0.0
        self._hogs: list[subprocess.Popen[bytes]] = []
        self._cores: set[int] = set()
        self._pid = os.getpid()

    def act(self) -> None:
        """Do what the fault does in one step."""
        self._act()

    def end(self) -> None:
        """End what the fault has started, and unbind the thread that calls this, which is the training thread."""
        hogs, self._hogs = self._hogs, []
        for hog in hogs:
            hog.kill()
            hog.wait()
        if hogs and os.getpid() == self._pid:
            os.sched_setaffinity(0, self._cores)

    def _sleep(self) -> None:
        time.sleep(self._ms / 1e3)

    def _keep_lock(self) -> None:
        """Let another thread sum numbers in C for that long: it computes and does not release Python's lock."""
        if not self._sums_per_ns:
            begin_ns = time.thread_time_ns()
            sum(range(CALIBRATED))
            self._sums_per_ns = CALIBRATED / max(1, time.thread_time_ns() - begin_ns)
        count = round(self._ms * 1e6 * self._sums_per_ns)
        begin, done = threading.Lock(), threading.Lock()
        begin.acquire()
        done.acquire()

        def spin() -> None:
            begin.acquire()
            sum(range(count))
            done.release()

        # The calling thread gives Python's lock up only where it waits for `done`: it never waits for that lock, which
        # would wake it every few ms, each time to wait for a core on a busy machine.
        threading.Thread(target=spin, name="rankscope-fault", daemon=True).start()
        begin.release()
        done.acquire()

    def _collect(self) -> None:
        """Run whole collections until they have lasted that long: one takes some 0.1 s in a process with torch."""
        end_ns = time.monotonic_ns() + self._ms * 1_000_000
        while time.monotonic_ns() < end_ns:
            gc.collect()

    def _churn(self) -> None:
        end_ns = time.monotonic_ns() + self._ms * 1_000_000
        bytearray(CHURN_BYTES)
        while time.monotonic_ns() < end_ns:
            bytearray(CHURN_BYTES)

    def _start_hogs(self) -> None:
        """Bind the calling thread to one of its cores, and start processes there; later calls do nothing."""
        if self._hogs:
            return
        self._cores = os.sched_getaffinity(0)
        core = max(self._cores)
        command = [sys.executable, "-I", "-S", "-c", HOG_CODE, str(self._pid), str(core), str(HOG_S_MAX)]
        environment = drop_rank_variables(os.environ)
        for _ in range(HOGS):
            hog = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)  # noqa: S603 - this interpreter, and code of ours
            self._hogs.append(hog)
        os.sched_setaffinity(0, {core})

    def _stop_process(self) -> None:
        words = ("/bin/sh", "-c", STOP_COMMAND, "sh", str(os.getpid()), str(self._ms / 1e3))
        environment = drop_rank_variables(os.environ)
        helper = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)  # noqa: S603 - a command of ours
        helper.wait()


def _exit() -> None:
    sys.stdout.flush()
    os._exit(EXIT_CODE)


def _crash() -> None:
    ctypes.string_at(0)
