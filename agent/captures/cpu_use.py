"""Note how busy the processors were during a capture: this process, and the whole machine.

torch's profiler does not record it. What is noted goes into the head of the trace; `rankscope analyze` reads it.
"""

import json
import os
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from rankscope.agent.guard import Guard
from rankscope.measure.capture_limits import CPU_KEY
from rankscope.measure.units import NS_PER_S

PART: Final = "noting the use of processors in captures"
VERSION: Final = 1
STAT: Final = "/proc/stat"


class Readings(NamedTuple):
    """Times so far in ns: of the clock, CPU time of this process, and of all processors busy and altogether; the last
    two are None where the system does not tell.
    """

    clock_ns: int
    process_ns: int
    busy_ns: int | None
    all_ns: int | None


class CpuUseNotes:
    """Notes of the captures of this process, on the training thread."""

    def __init__(self, guard: Guard, read: Callable[[], Readings] | None = None) -> None:
        """Read the times by `read`; without one those of this process and of Linux."""
        self._guard = guard
        self._read = read or read_times
        self._first: Readings | None = None
        self.session: Any = None
        """The session of torch's profiler that the notes are of; forgotten when they end."""

    def begin(self) -> None:
        """Count from now on."""
        self._first = None if self._guard.is_off(PART) else self._read()

    def end(self) -> None:
        """Put what was used since into the head of the trace that the session is recording. Never raises."""
        first, self._first = self._first, None
        session, self.session = self.session, None
        if first is None or session is None:
            return
        try:
            notes = {"version": VERSION, **compare(first, self._read())}
            session.add_metadata_json(CPU_KEY, json.dumps(notes, separators=(",", ":")))
        except Exception as error:  # noqa: BLE001 - no error of a capture may reach the training script
            self._guard.record(PART, error)


def compare(first: Readings, last: Readings) -> dict[str, int | float | None]:
    """Return the length in ns, the CPU time of this process in it, and the share of all processors that was busy.

    >>> compare(Readings(0, 10, 100, 400), Readings(50, 90, 160, 600))
    {'window_ns': 50, 'process_ns': 80, 'system_ratio': 0.3}
    """
    ratio = None
    if None not in (first.busy_ns, last.busy_ns, first.all_ns, last.all_ns):
        whole = (last.all_ns or 0) - (first.all_ns or 0)
        ratio = ((last.busy_ns or 0) - (first.busy_ns or 0)) / whole if whole > 0 else None
    return {
        "window_ns": last.clock_ns - first.clock_ns,
        "process_ns": last.process_ns - first.process_ns,
        "system_ratio": ratio,
    }


def read_times(path: str = STAT) -> Readings:
    """Return the times of this process and of the machine."""
    busy_ns, all_ns = None, None
    try:
        with open(path, encoding="ascii") as file:
            busy_ns, all_ns = parse_cpu_line(file.readline(), NS_PER_S // os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError):
        pass  # another system: only the process is known
    return Readings(time.monotonic_ns(), time.process_time_ns(), busy_ns, all_ns)


def parse_cpu_line(line: str, tick_ns: int) -> tuple[int, int]:
    """Return busy and all time in ns from the first line of /proc/stat, proc(5): waiting for a disk is no work, and
    guests are in user time already. Raises ValueError for another line.

    >>> parse_cpu_line("cpu  10 2 8 70 10 0 0 0 5 0", 1)
    (20, 100)
    """
    name, *fields = line.split()
    ticks = [int(field) for field in fields[:8]]
    if name != "cpu" or len(ticks) < 5:  # noqa: PLR2004 - user, nice, system, idle, iowait
        raise ValueError(line)
    waiting = ticks[3] + ticks[4]
    return (sum(ticks) - waiting) * tick_ns, sum(ticks) * tick_ns
