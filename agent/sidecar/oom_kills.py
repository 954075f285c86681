"""Attributes SIGKILL deaths to the OOM killer, whose victims the kernel counts by cgroup and for the whole machine.

    cgroup v2   memory.events, `oom_kill`: victims in this cgroup and below, whichever limit killed them
    cgroup v1   memory.oom_control, `oom_kill` (Linux >= 4.13)
    neither     /proc/vmstat, `oom_kill`: the whole machine, including processes of other users

A process that died of SIGKILL while the count of its cgroup rose counts as killed by the OOM killer. Each rise accounts
for one death only. If two ranks of one cgroup die within RISE_NS_MAX and one was killed otherwise, which one is not
known.
"""

import contextlib
import os
from typing import Final, NamedTuple

from rankscope.agent.cgroups import find_cgroup_folders
from rankscope.measure.units import NS_PER_S

RISE_NS_MAX: Final = 5 * NS_PER_S
"""Longest time from a rise of the count to the death it explains: a large process takes seconds to end."""
COUNT_FIELD: Final = "oom_kill"


class KillCounter(NamedTuple):
    """A file with a line `oom_kill N`. `place` describes it for the user."""

    path: str
    place: str


class OomKills:
    """The OOM victims of a cgroup. Create it while a process is running, since later its cgroup is not known."""

    def __init__(self, counter: KillCounter | None) -> None:
        self._counter = counter
        self._count = None if counter is None else read_count(counter.path)
        self._rise = 0
        self._risen_ns = 0

    @property
    def place(self) -> str:
        """Description of what is counted, for the user; empty if nothing is."""
        return self._counter.place if self._counter is not None and self._count is not None else ""

    def update(self, now_ns: int) -> None:
        """Read the counter."""
        count = None if self._counter is None else read_count(self._counter.path)
        if count is not None and self._count is not None and count > self._count:
            self._rise += count - self._count
            self._risen_ns = now_ns
        self._count = self._count if count is None else count

    def claim(self, now_ns: int) -> int | None:
        """Return the number of recent victims not attributed to a death yet, and attribute one of them.

        None if nothing is counted.
        """
        if self._count is None:
            return None
        self.update(now_ns)
        if now_ns - self._risen_ns > RISE_NS_MAX:
            self._rise = 0
        found, self._rise = self._rise, max(0, self._rise - 1)
        return found


def find_counter(pid: int, proc: str = "/proc", mounts: str = "/sys/fs/cgroup") -> KillCounter | None:
    """Return the narrowest counter that includes the process; None if the kernel has none."""
    # With both versions mounted, the memory controller belongs to v1.
    folders = find_cgroup_folders(f"{proc}/{pid}/cgroup", "memory", mounts)
    places = [(folder, "memory.oom_control") for folder in folders.own]
    places += [(folder, "memory.events") for folder in folders.shared]
    for folder, name in places:
        path = os.path.join(folder, name)
        if read_count(path) is not None:
            return KillCounter(path, f"cgroup {folder.rstrip('/')}")
    machine = f"{proc}/vmstat"
    return KillCounter(machine, "the whole machine") if read_count(machine) is not None else None


def read_count(path: str) -> int | None:
    """Return the number after `oom_kill` in the file (not `oom_kill_disable`); None if there is none."""
    with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as file:
        for line in file:
            words = line.split()
            if len(words) > 1 and words[0] == COUNT_FIELD:
                return int(words[1])
    return None
