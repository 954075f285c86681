"""Processes that act as ranks, and their beacons, for tests."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from rankscope.agent.sidecar.beacon import Beacon, Descriptor, Heartbeat
from rankscope.agent.sidecar.exit_status import read_start_ticks
from rankscope.measure.identity import BootId, RankIdentity, RunId
from rankscope.measure.machine import read_machine_id

DEADLINE_S = 300.0
MS = 1_000_000
S = 1_000_000_000

ENDS = {
    "exit 0": ("pass", 0, None),
    "exit 3": ("raise SystemExit(3)", 3, None),
    "os._exit 7": ("os._exit(7)", 7, None),
    "SIGSEGV": ("ctypes.string_at(0)", None, signal.SIGSEGV),
    "abort()": ("os.abort()", None, signal.SIGABRT),
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", None, signal.SIGKILL),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM)", None, signal.SIGTERM),
}
"""Ways in which a process ends: the statement, its exit code, or else the signal."""


class Process:
    """A Python process that waits and then runs a statement."""

    def __init__(self, statement: str) -> None:
        script = f"import ctypes, os, resource, signal, sys; sys.stdin.read(); {statement}"
        no_core = "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); "
        self._child = subprocess.Popen([sys.executable, "-S", "-c", no_core + script], stdin=subprocess.PIPE)
        self.pid = self._child.pid
        self.start_ticks = read_start_ticks(self.pid)

    def end(self) -> None:
        """Let it run the statement; return when it is a zombie."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.stdin = None
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def stop(self) -> None:
        """Suspend it, as Ctrl-Z does; return when it is suspended."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def reap(self) -> None:
        """Reap it, as a launcher does."""
        self._child.wait(DEADLINE_S)

    def kill(self) -> None:
        """Kill it."""
        self._child.kill()
        self._child.communicate(timeout=DEADLINE_S)


def identity_of(rank: int, pid: int) -> RankIdentity:
    return RankIdentity(
        run=RunId("job-7"), rank=rank, local_rank=rank, world_size=2, node="n1", restart_count=0,
        boot_id=BootId(f"boot-of-{rank}"), pid=pid,
        machine_id=read_machine_id(),
    )  # fmt: skip


def light_beacon(folder: Path, rank: int, process: Process, heartbeat: Heartbeat, **changed: object) -> Beacon:
    """Write the beacon of a rank, which counts as frozen after 10 s without a heartbeat."""
    fields: dict[str, object] = {
        "identity": identity_of(rank, process.pid),
        "start_ticks": process.start_ticks,
        "frozen_after_ns": 10 * S,
        "endpoint": "tcp://collector:1",
    }
    return Beacon(str(folder), Descriptor(**(fields | changed)), heartbeat)  # type: ignore[arg-type]
