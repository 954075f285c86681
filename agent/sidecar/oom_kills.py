"""Whether the OOM killer has struck: the kernel counts its victims, by cgroup and over the whole machine.

    cgroup v2   memory.events, `oom_kill`: victims in this cgroup and below, whichever limit killed them
    cgroup v1   memory.oom_control, `oom_kill` (Linux >= 4.13)
    neither     /proc/vmstat, `oom_kill`: the whole machine, other people's processes too

A process that died of SIGKILL while the count of its cgroup rose was killed by the OOM killer, as far as anybody can
tell. A rise counts for one death only: two ranks in one cgroup of which one was killed by hand are told apart, though
not which is which when both die within RISE_NS_MAX.
"""

import contextlib
import os
from typing import Final, NamedTuple

from rankscope.agent.sidecar.cgroups import find_cgroup_folders
from rankscope.measure.units import NS_PER_S

RISE_NS_MAX: Final = 5 * NS_PER_S
"""How long after a rise of the count a death may still be due to it: a big process takes seconds to die."""
COUNT_FIELD: Final = "oom_kill"


class Counter(NamedTuple):
    """A file that has a line `oom_kill N`. `place` names it for people."""

    path: str
    place: str


class OomKills:
    """The count that concerns one process. Found while it lives, since later its cgroup is not known."""

    def __init__(self, counter: Counter | None) -> None:
        self._counter = counter
        self._count = None if counter is None else read_count(counter.path)
        self._rise = 0
        self._risen_ns = 0

    @property
    def place(self) -> str:
        """Where it is counted, for people; empty where it is not."""
        return self._counter.place if self._counter is not None and self._count is not None else ""

    def look(self, now_ns: int) -> None:
        """Take in what has been counted since."""
        count = None if self._counter is None else read_count(self._counter.path)
        if count is not None and self._count is not None and count > self._count:
            self._rise += count - self._count
            self._risen_ns = now_ns
        self._count = self._count if count is None else count

    def take(self, now_ns: int) -> int | None:
        """The victims counted lately that no death has been put down to yet; one of them is, if there is any.

        None where nothing is counted.
        """
        if self._count is None:
            return None
        self.look(now_ns)
        if now_ns - self._risen_ns > RISE_NS_MAX:
            self._rise = 0
        found, self._rise = self._rise, max(0, self._rise - 1)
        return found


def find_counter(pid: int, proc: str = "/proc", mounts: str = "/sys/fs/cgroup") -> Counter | None:
    """The narrowest count that concerns the process; None when the kernel has none."""
    # Where both versions are mounted, the controller of memory is v1's.
    folders = find_cgroup_folders(f"{proc}/{pid}/cgroup", "memory", mounts)
    places = [(folder, "memory.oom_control") for folder in folders.own]
    places += [(folder, "memory.events") for folder in folders.shared]
    for folder, name in places:
        path = os.path.join(folder, name)
        if read_count(path) is not None:
            return Counter(path, f"cgroup {folder.rstrip('/')}")
    machine = f"{proc}/vmstat"
    return Counter(machine, "the whole machine") if read_count(machine) is not None else None


def read_count(path: str) -> int | None:
    """The number after `oom_kill` in such a file; None when it has none.

    `oom_kill_disable 0` of cgroup v1 is another line.
    """
    with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as file:
        for line in file:
            words = line.split()
            if len(words) > 1 and words[0] == COUNT_FIELD:
                return int(words[1])
    return None
