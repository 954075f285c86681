"""For how long the main thread of this process, which trains, has waited for block I/O, as the kernel counts it.

It counts only with `kernel.task_delayacct` on, and only for processes that have begun since. Without, the field is 0,
which is no measurement.
"""

import os
from typing import Final

from rankscope.measure.units import NS_PER_S

BLOCK_IO_WAIT: Final = "block_io_wait_ns"
"""The field of a host sample."""
SWITCH: Final = "/proc/sys/kernel/task_delayacct"
STAT: Final = "/proc/self/stat"
PLACE: Final = 42 - 3
"""Of the field, counted after the command's name, which is the second and may hold anything."""


class BlockIo:
    """The waits of this process; whether the kernel counts them is looked up once. For one thread."""

    def __init__(self, switch: str = SWITCH, stat: str = STAT) -> None:
        self._stat = stat
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self.obstacle = _find_obstacle(switch)
        """Why the waits are not known; empty where they are."""

    def read_wait_ns(self) -> int | None:
        """Return the waits since the begin of the process, in ns; None where they are not known."""
        if self.obstacle:
            return None
        try:
            with open(self._stat, "rb") as file:
                ticks = int(file.read().rpartition(b")")[2].split()[PLACE])
        except (OSError, ValueError, IndexError) as error:
            self.obstacle = f"{self._stat} cannot be read: {error}"
            return None
        return ticks * NS_PER_S // self._ticks_per_s


def _find_obstacle(switch: str) -> str:
    try:
        with open(switch, "rb") as file:
            is_on = file.read().strip() not in (b"", b"0")
    except OSError:
        return "this kernel has no kernel.task_delayacct"
    return "" if is_on else "kernel.task_delayacct was 0 when training began; with 1 the kernel counts it"
