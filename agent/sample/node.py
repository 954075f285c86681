"""Samples the machine: network ports and interfaces, TCP, and whether its CPUs were short.

    fabric.py             InfiniBand and RoCE ports, network interfaces
    /proc/net/snmp        TCP segments sent and sent again, of the network namespace
    /proc/pressure/cpu    time in which some task waited for a CPU (PSI; Linux 4.20, may be switched off at boot)
    cpu.pressure          the same of the tasks of this process's control group (cgroup v2)
    /proc/stat            time that the hypervisor took from the CPUs (steal)

Everything counts up. The rank with local rank 0 reads it, and no other: the machine is the same for all its ranks. It
reads at most every INTERVAL_NS_MIN, because a card's driver asks the firmware for each counter of a port.
"""

import os
from typing import Final, NamedTuple

from rankscope.agent.cgroups import find_cgroup_folders
from rankscope.agent.sample.fabric import COUNT_MAX, NO_INTERFACES, parse_count, read_interfaces, read_ports, read_text
from rankscope.measure.clock import Clock
from rankscope.measure.records import NodeSample
from rankscope.measure.units import NS_PER_S, NS_PER_US

INTERVAL_NS_MIN: Final = 10 * NS_PER_S
"""Least time between two samples. Links become slow for minutes, and no port's error is read twice a second."""

NO_LINE: Final = "no_such_line"
NO_GROUP: Final = "no_control_group_of_version_2"

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
        self._last: NodeSample | None = None

    def sample(self) -> NodeSample:
        """Return a sample of the machine, the last one again while it is younger than the least interval."""
        now_ns = self._clock.monotonic_ns()
        if self._last is None or now_ns - self._last.host_ns >= INTERVAL_NS_MIN:
            self._last = self._read(now_ns)
        return self._last

    def _read(self, now_ns: int) -> NodeSample:
        places = self._places
        ports, interfaces = read_ports(places.infiniband), read_interfaces(places.interfaces)
        absent = dict(ports.absent)
        if not interfaces.samples:
            absent["interfaces"] = NO_INTERFACES
        values: dict[str, int] = {}
        for found in (
            _read_tcp(os.path.join(places.proc, "net", "snmp")),
            {"cpu_pressure_ns": read_pressure_ns(os.path.join(places.proc, "pressure", "cpu"))},
            {"group_cpu_pressure_ns": read_pressure_ns(self._group_file) if self._group_file else NO_GROUP},
            {"cpu_steal_ns": read_steal_ns(os.path.join(places.proc, "stat"), os.cpu_count() or 1)},
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
    """Return the file with the CPU pressure of this process's own control group; None without one."""
    membership = os.path.join(places.proc, "self", "cgroup")
    folders = find_cgroup_folders(membership, "cpu", places.cgroups).shared
    files = (os.path.join(folder, "cpu.pressure") for folder in folders)
    return next((file for file in files if os.path.exists(file)), None)


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
    return min(COUNT_MAX, ticks * (NS_PER_S // os.sysconf("SC_CLK_TCK")) // cpus)
