"""How often the CPU limit of a container stops this process.

A limit (`cpu.max`, in cgroup v1 `cpu.cfs_quota_us`) gives the tasks of a cgroup so much CPU time in each period, mostly
100 ms; once it is spent they stand still for the rest of the period. The kernel counts both in `cpu.stat`: `nr_periods`
in which they ran, `nr_throttled` in which they were stopped. The limit may be that of a cgroup above the own one.
"""

import os
from collections.abc import Iterator
from typing import Final, NamedTuple

from rankscope.agent.cgroups import find_cgroup_folders

STAT_BYTES_MAX: Final = 4096


class _Periods(NamedTuple):
    """The periods since the cgroup was made: all, and those in which its tasks were stopped."""

    passed: int
    throttled: int


class CpuLimit:
    """The limit of this process, found once, at the first reading. For one thread."""

    def __init__(self, proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> None:
        self._proc, self._cgroups = proc, cgroups
        self._path: str | None = None
        self._last: _Periods | None = None

    def read_throttled_ratio(self) -> float | None:
        """Return in which share of the periods since the last reading the limit stopped tasks of the cgroup, from 0 to
        1; None in the first reading, without a limit, while no period has passed, and where it cannot be read.
        """
        if self._path is None:
            self._path = self._find_path()
        before, self._last = self._last, _read(self._path) if self._path else None
        if before is None or self._last is None or self._last.passed <= before.passed:
            return None
        ratio = (self._last.throttled - before.throttled) / (self._last.passed - before.passed)
        return min(1.0, max(0.0, ratio))

    def _find_path(self) -> str:
        """Return the file of the nearest cgroup that has a limit; empty where none has one."""
        found = find_cgroup_folders(os.path.join(self._proc, "self", "cgroup"), "cpu", self._cgroups)
        for folder in (*found.own, *found.shared):
            for path in self._climb(folder):
                periods = _read(path)
                if periods is not None and periods.passed:
                    return path
        return ""

    def _climb(self, folder: str) -> Iterator[str]:
        while len(folder := folder.rstrip("/")) > len(self._cgroups):
            yield os.path.join(folder, "cpu.stat")
            folder = os.path.dirname(folder)
        yield os.path.join(folder, "cpu.stat")


def _read(path: str) -> _Periods | None:
    try:
        with open(path, "rb") as file:
            lines = [line.split() for line in file.read(STAT_BYTES_MAX).splitlines()]
        values = {line[0]: int(line[1]) for line in lines if line[0] in {b"nr_periods", b"nr_throttled"}}
        return _Periods(values[b"nr_periods"], values[b"nr_throttled"])
    except (OSError, ValueError, LookupError):
        return None
