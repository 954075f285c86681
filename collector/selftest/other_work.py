"""Measure how much of this machine's cores other processes use while a training of the selftest runs.

    cores of others = (CPU time of the machine - CPU time of this process and all below it) / time

The machine's is that of all its processes, beside waiting for disks and idling (`/proc/stat`), and what a hypervisor
gave to others (`steal`). In a container it is that of the whole host, whose cores are then shared out by limits that it
does not show: so other work counts there that takes no core from this training.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Final

import psutil

IDLE: Final = frozenset({"idle", "iowait", "guest", "guest_nice"})
"""Fields of `/proc/stat` that are no work; guests are counted in `user` already."""


class OtherWork:
    """CPU time of others from its creation on. `update` has to be called about twice a second: what a process used
    after the last call before it ended counts as work of others.
    """

    def __init__(
        self,
        read_machine_s: Callable[[], float] | None = None,
        read_own_s: Callable[[], dict[int, float]] | None = None,
    ) -> None:
        self._read_machine_s = read_machine_s or read_machine_cpu_s
        self._read_own_s = read_own_s or read_own_cpu_s
        self._begin_machine_s = self._read_machine_s()
        self._begin_own_s = self._read_own_s()
        self._own_s = dict(self._begin_own_s)

    def update(self) -> None:
        """Read the CPU time of this process and of all below it."""
        self._own_s |= self._read_own_s()

    def measure_cores(self, took_s: float) -> float:
        """Return how many cores others used on average over `took_s`, 0 or more.

        >>> machine_s, own_s = iter([100.0, 110.0]), iter([{1: 5.0}, {1: 6.0, 2: 3.0}])
        >>> work = OtherWork(lambda: next(machine_s), lambda: next(own_s))
        >>> work.update()
        >>> work.measure_cores(4.0)  # (10 - (6 - 5) - 3) / 4
        1.5
        """
        own_s = sum(s - self._begin_own_s.get(pid, 0.0) for pid, s in self._own_s.items())
        others_s = self._read_machine_s() - self._begin_machine_s - own_s
        return max(0.0, others_s / took_s) if took_s > 0 else 0.0


def read_machine_cpu_s() -> float:
    """Return the CPU time that this machine has worked since it started, in s, over all its cores."""
    times = psutil.cpu_times()._asdict()
    return float(sum(s for field, s in times.items() if field not in IDLE))


def read_own_cpu_s() -> dict[int, float]:
    """Return the CPU time of this process and of all below it that run, in s by process id."""
    own = psutil.Process()
    found = {}
    for process in [own, *own.children(recursive=True)]:
        with suppress(psutil.Error):
            used = process.cpu_times()
            found[process.pid] = float(used.user + used.system)
    return found
