"""Describes where a frozen rank is blocked: its threads from /proc, its collectives from torch's worker server.

The kernel function (wchan) and the system call number may be hidden from this user: then they are None, and the state
and CPU time remain. A rank process has hundreds of sleeping threads; the main thread comes first, then those that run
or wait for a device, and those above THREADS_MAX are only counted.
"""

import contextlib
import os
from typing import Final, NamedTuple

from rankscope.agent.captures.flight_dump import find_completed, find_names, find_pending, to_statuses
from rankscope.agent.sidecar.beacon import Descriptor, Heartbeat
from rankscope.agent.sidecar.worker_questions import ask_dumps, ask_waits
from rankscope.measure.clock import Clock
from rankscope.measure.node_messages import RankUnresponsive
from rankscope.measure.proc_stat import read_stat
from rankscope.measure.stalls import KernelThread
from rankscope.measure.units import NS_PER_S

THREADS_MAX: Final = 32
LISTED_MAX: Final = 2048
"""Largest number of threads read of one process."""
ASK_S: Final = 1.0
"""Timeout of a worker server; dumping a full flight recorder takes 0.2 s."""
_NOTHING: Final = frozenset({"", "0"})


class KernelView(NamedTuple):
    """The threads of a process, the main one first; `state` is the main thread's, empty when it is gone."""

    state: str
    threads: tuple[KernelThread, ...]
    left_out: int


def inspect_frozen(
    descriptor: Descriptor, heartbeat: Heartbeat, clock: Clock, proc: str = "/proc"
) -> tuple[RankUnresponsive, bool]:
    """Return the notice about a frozen rank, and whether its flight recorders were read. It may take seconds."""
    view = read_threads(descriptor.identity.pid, proc)
    absent: dict[str, str] = {}
    dumps = []
    waits: dict[str, int] = {}
    if descriptor.socket_path:
        dumps = ask_dumps(descriptor.socket_path, ASK_S, absent)
        waits = ask_waits(descriptor.socket_path, ASK_S) if dumps else {}
    else:
        absent["pending"] = f"torch's worker server does not run in the rank: {descriptor.why_no_socket}"
    known = descriptor.group_labels
    labels = {number: known[name] for number, name in find_names(dumps).items() if name in known}
    notice = RankUnresponsive(
        sequence=1,
        identity=descriptor.identity,
        host_ns=clock.monotonic_ns(),
        since_host_ns=heartbeat.written_host_ns,
        last_step=heartbeat.last_step,
        state=view.state,
        threads=view.threads,
        threads_left_out=view.left_out,
        progress=to_statuses(dumps, labels, find_completed(dumps)),
        pending=find_pending(dumps, labels, clock.wall_ns()).collectives if dumps else (),
        waits=waits,
        absent=absent,
    )
    return notice, bool(dumps)


def read_threads(pid: int, proc: str = "/proc") -> KernelView:
    """Return the present state of the threads of a process."""
    folder = f"{proc}/{pid}/task"
    numbers: list[int] = []
    with contextlib.suppress(OSError):
        numbers = [int(name) for name in os.listdir(folder)]
    found = [thread for number in sorted(numbers)[:LISTED_MAX] if (thread := _read_thread(folder, number)) is not None]
    found.sort(key=lambda thread: (thread.thread != pid, thread.state == "S", thread.thread))
    state = found[0].state if found and found[0].thread == pid else ""
    return KernelView(state, tuple(found[:THREADS_MAX]), max(0, len(numbers) - min(len(found), THREADS_MAX)))


def _read_thread(folder: str, number: int) -> KernelThread | None:
    stat = read_stat(f"{folder}/{number}")
    if stat is None or stat.cpu_ticks is None:
        return None
    wait_channel = (_read(f"{folder}/{number}/wchan") or "").strip()
    return KernelThread(
        thread=number,
        name=stat.name[:64],
        state=stat.state,
        wait_channel=None if wait_channel in _NOTHING else wait_channel[:64],
        system_call=_parse_system_call(_read(f"{folder}/{number}/syscall")),
        cpu_ns=stat.cpu_ticks * NS_PER_S // os.sysconf("SC_CLK_TCK"),
    )


def _parse_system_call(text: str | None) -> int | None:
    """Parse /proc/PID/task/TID/syscall: `running`, or call number and arguments; -1: blocked outside a system call."""
    with contextlib.suppress(ValueError, IndexError):
        number = int((text or "").split()[0])
        return number if number >= 0 else None
    return None


def _read(path: str) -> str | None:
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return file.read(4096)
    return None
