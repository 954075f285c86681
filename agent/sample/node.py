"""Samples the machine: network ports and interfaces, TCP, and whether its CPUs were short.

    fabric.py             InfiniBand and RoCE ports, network interfaces
    /proc/net/snmp        TCP segments sent and sent again, of the network namespace
    /proc/pressure/cpu    time in which some task waited for a CPU (PSI; Linux 4.20, may be switched off at boot)
    cpu.pressure          the same of the tasks in this process's control group (cgroup v2)
    /proc/stat            time that the hypervisor took from the CPUs (steal)
    host_memory.py        memory that is available

Everything but the memory counts up. The rank with local rank 0 reads it, and no other: the machine is the same for all
its ranks. A
card's driver asks the firmware for each counter of a port. So it reads at most every INTERVAL_NS_MIN, less often where
a reading takes long, and begins no further port after READING_NS_MAX.
"""

import os
from typing import Final, NamedTuple

from rankscope.agent.cgroups import find_cgroup_folders
from rankscope.agent.sample.fabric import COUNT_MAX, NO_INTERFACES, parse_count, read_interfaces, read_ports, read_text
from rankscope.agent.sample.host_memory import GroupFiles, find_group_files, read_memory
from rankscope.measure.clock import Clock
from rankscope.measure.records import NodeSample
from rankscope.measure.units import NS_PER_MS, NS_PER_S, NS_PER_US

INTERVAL_NS_MIN: Final = 10 * NS_PER_S
"""Least time between two samples. Links become slow for minutes, and no port's error is read twice a second."""
INTERVAL_NS_MAX: Final = 600 * NS_PER_S
READING_RATIO_MAX: Final = 0.001
"""Share of the time that is spent on reading: the agent's thread may wait that long for a driver."""
READING_NS_MAX: Final = 100 * NS_PER_MS
"""Time after which no further port is begun."""

NO_LINE: Final = "no_such_line"
NO_GROUP: Final = "no_control_group_of_version_2"
NO_TICKS: Final = "no_length_of_a_tick"

_STEAL: Final = 8
"""Place of steal in a `cpu` line of /proc/stat, after its name (proc(5), since Linux 2.6.11)."""


class Places(NamedTuple):
    """The folders and files to read; tests have their own."""

    infiniband: str = "/sys/class/infiniband"
    interfaces: str = "/sys/class/net"
    proc: str = "/proc"
    cgroups: str = "/sys/fs/cgroup"


REAL_PLACES: Final = Places()


class NodeSampler:
    """The sampler of the machine. For one thread. Raises nothing: what cannot be read is absent, with the reason."""

    def __init__(self, clock: Clock, places: Places = REAL_PLACES) -> None:
        self._clock = clock
        self._places = places
        self._group_file = _find_group_file(places)
        self._memory_files = find_group_files(places.proc, places.cgroups)
        self._last: NodeSample | None = None
        self._due_ns = 0

    def sample(self) -> NodeSample:
        """Return a sample of the machine, the last one again while the next is not due."""
        now_ns = self._clock.monotonic_ns()
        if self._last is None or now_ns >= self._due_ns:
            self._last = self._read(now_ns)
            took_ns = self._clock.monotonic_ns() - now_ns
            self._due_ns = now_ns + min(INTERVAL_NS_MAX, max(INTERVAL_NS_MIN, round(took_ns / READING_RATIO_MAX)))
        return self._last

    def _read(self, now_ns: int) -> NodeSample:
        places = self._places
        end_ns = now_ns + READING_NS_MAX
        ports = read_ports(places.infiniband, lambda: self._clock.monotonic_ns() < end_ns)
        interfaces = read_interfaces(places.interfaces)
        absent = dict(ports.absent)
        if not interfaces.samples:
            absent["interfaces"] = NO_INTERFACES
        values: dict[str, int] = {}
        for found in (
            _read_tcp(os.path.join(places.proc, "net", "snmp")),
            {"cpu_pressure_ns": read_pressure_ns(os.path.join(places.proc, "pressure", "cpu"))},
            {"group_cpu_pressure_ns": read_pressure_ns(self._group_file) if self._group_file else NO_GROUP},
            {"cpu_steal_ns": read_steal_ns(os.path.join(places.proc, "stat"), os.cpu_count() or 1)},
            _read_memory(places.proc, self._memory_files),
        ):
            for field, value in found.items():
                if isinstance(value, int):
                    values[field] = value
                else:
                    absent[field] = value
        return NodeSample(
            host_ns=now_ns,
            ports=ports.samples,
            ports_left_out=ports.left_out,
            interfaces=interfaces.samples,
            interfaces_left_out=interfaces.left_out,
            absent=absent,
            **values,
        )


Found = dict[str, int | str]
"""By field its value, or the reason why there is none."""


def _find_group_file(places: Places) -> str | None:
    """Return the file with the CPU pressure of this process's own control group; None without one, and where only the
    root of a mount is seen, which may be the machine's.
    """
    membership = os.path.join(places.proc, "self", "cgroup")
    folders = find_cgroup_folders(membership, "cpu", places.cgroups).shared[:2]  # of the own path, at both mounts
    files = (os.path.join(folder, "cpu.pressure") for folder in folders)
    return next((file for file in files if os.path.exists(file)), None)


def _read_memory(proc: str, group: GroupFiles | None) -> Found:
    found = read_memory(proc, group)
    if isinstance(found, str):
        return {"memory_total_bytes": found, "memory_available_bytes": found}
    return {"memory_total_bytes": found.total_bytes, "memory_available_bytes": found.available_bytes}


def _read_tcp(path: str) -> Found:
    fields = {"tcp_segments_sent": "OutSegs", "tcp_segments_retransmitted": "RetransSegs"}
    text, reason = read_text(path)
    if text is None:
        return dict.fromkeys(fields, reason)
    lines = [line.split() for line in text.splitlines() if line.startswith("Tcp:")]
    counts = dict(zip(*lines, strict=False)) if len(lines) == 2 else {}  # noqa: PLR2004 - of names, and of numbers
    found = {field: parse_count(counts.get(name, "")) for field, name in fields.items()}
    return {field: NO_LINE if count is None else count for field, count in found.items()}


def read_pressure_ns(path: str) -> int | str:
    """Return for how long some task waited for a CPU, in ns since the start; or the reason why it is not known."""
    text, reason = read_text(path)
    if text is None:
        return reason
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        total_us = parse_count(rest.rpartition("total=")[2])
        if name == "some" and total_us is not None:
            return min(COUNT_MAX, total_us * NS_PER_US)
    return NO_LINE


def read_steal_ns(path: str, cpus: int) -> int | str:
    """Return for how long the hypervisor ran others instead of one CPU of this machine, the mean over its CPUs, in ns
    since its start; or the reason why it is not known.
    """
    text, reason = read_text(path)
    if text is None:
        return reason
    words = text.partition("\n")[0].split()
    ticks = parse_count(words[_STEAL]) if words[:1] == ["cpu"] and len(words) > _STEAL else None
    if ticks is None:
        return NO_LINE
    ticks_per_s = _read_ticks_per_s()
    return NO_TICKS if ticks_per_s <= 0 else min(COUNT_MAX, ticks * NS_PER_S // (ticks_per_s * cpus))


def _read_ticks_per_s() -> int:
    """Return how many ticks of /proc/stat there are in a second; not positive where the system does not say."""
    try:
        return os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return 0
