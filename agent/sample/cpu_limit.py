"""How often the CPU limit of a container stops this process, by the kernel's `cpu.stat` of its cgroup.

A limit (`cpu.max`, in cgroup v1 `cpu.cfs_quota_us`) gives the tasks of a cgroup so much CPU time in each period, mostly
100 ms; once it is spent they stand still for the rest of it. It may be that of a cgroup above the own one.
"""

import contextlib
import os

from rankscope.agent.cgroups import find_cgroup_folders


class CpuLimit:
    """The limit of this process, found at the first reading. For one thread."""

    def __init__(self, proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> None:
        self._proc, self._cgroups = proc, cgroups
        self._path: str | None = None
        self._last = (0, 0)

    def read_throttled_ratio(self) -> float | None:
        """Return in which share of the periods since the last reading the limit stopped tasks of the cgroup, from 0 to
        1; None in the first reading, without a limit, while no period has passed, and where it cannot be read.
        """
        if self._path is None:
            self._path = self._find_path()
        if not self._path:
            return None
        before, self._last = self._last, _read(self._path)
        periods, throttled = self._last[0] - before[0], self._last[1] - before[1]
        return min(1.0, max(0.0, throttled / periods)) if before[0] and periods > 0 else None

    def _find_path(self) -> str:
        """Return the file of the nearest cgroup that has a limit; empty where none has one."""
        found = find_cgroup_folders(os.path.join(self._proc, "self", "cgroup"), "cpu", self._cgroups)
        for own in (*found.own, *found.shared):
            folder = own
            while len(folder) >= len(self._cgroups):
                if _read(path := os.path.join(folder, "cpu.stat"))[0]:
                    return path
                folder = os.path.dirname(folder)
        return ""


def _read(path: str) -> tuple[int, int]:
    """Return all periods since the cgroup was made, and those in which it was stopped; zeros where that is unknown."""
    with contextlib.suppress(OSError, ValueError, LookupError), open(path, "rb") as file:
        values = dict(line.split(maxsplit=1) for line in file.read(4096).splitlines())
        return int(values[b"nr_periods"]), int(values[b"nr_throttled"])
    return 0, 0
