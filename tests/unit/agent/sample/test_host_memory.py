"""How much memory is available, from files like those of /proc and /sys/fs/cgroup."""

from pathlib import Path

import pytest

from rankscope.agent.sample.host_memory import NO_LINE, HostMemory, find_group_files, read_memory

KIB = 1024
GIB = 2**30
MEMINFO = f"MemTotal: {64 * GIB // KIB} kB\nMemFree: 1 kB\nMemAvailable: {40 * GIB // KIB} kB\n"


class Machine:
    """A machine with 64 GiB, of which 40 are available, and a process in some control group."""

    def __init__(self, folder: Path, membership: str = "0::/job\n") -> None:
        self.proc, self.cgroups = folder / "proc", folder / "cgroup"
        self.write("proc/meminfo", MEMINFO)
        self.write("proc/self/cgroup", membership)

    def write(self, path: str, text: str) -> None:
        file = self.proc.parent / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def limit(self, limit: object, usage: object, stat: str = "anon 5\ninactive_file 0\n") -> None:
        self.write("cgroup/job/memory.max", f"{limit}\n")
        self.write("cgroup/job/memory.current", f"{usage}\n")
        self.write("cgroup/job/memory.stat", stat)

    def read(self) -> HostMemory | str:
        return read_memory(str(self.proc), find_group_files(str(self.proc), str(self.cgroups)))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_machine_without_a_limit_has_what_the_kernel_says(machine: Machine) -> None:
    assert machine.read() == HostMemory(64 * GIB, 40 * GIB)
    machine.limit("max", 9 * GIB)
    assert machine.read() == HostMemory(64 * GIB, 40 * GIB)


def test_limit_of_the_group_leaves_less(machine: Machine) -> None:
    # 16 GiB allowed, 12 used, 2 of them droppable.
    machine.limit(16 * GIB, 12 * GIB, f"anon 5\ninactive_file {2 * GIB}\n")
    assert machine.read() == HostMemory(16 * GIB, 6 * GIB)


def test_group_cannot_have_more_than_the_machine(machine: Machine) -> None:
    machine.limit(60 * GIB, 5 * GIB)
    assert machine.read() == HostMemory(60 * GIB, 40 * GIB)
    machine.limit(70 * GIB, 69 * GIB)
    assert machine.read() == HostMemory(64 * GIB, 40 * GIB)


def test_group_above_its_limit_has_nothing_left(machine: Machine) -> None:
    machine.limit(GIB, 2 * GIB, "")
    assert machine.read() == HostMemory(GIB, 0)


@pytest.mark.parametrize(("limit", "usage"), [("none", GIB), (GIB, "none"), (2**63 - 4096, GIB)])
def test_limit_that_is_none_is_ignored(machine: Machine, limit: object, usage: object) -> None:
    machine.limit(limit, usage)
    assert machine.read() == HostMemory(64 * GIB, 40 * GIB)


def test_limit_of_version_1_is_read(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "5:memory:/job\n")
    machine.write("cgroup/memory/job/memory.limit_in_bytes", str(8 * GIB))
    machine.write("cgroup/memory/job/memory.usage_in_bytes", str(7 * GIB))
    machine.write("cgroup/memory/job/memory.stat", f"inactive_file 1\ntotal_inactive_file {GIB}\n")
    assert machine.read() == HostMemory(8 * GIB, 2 * GIB)


def test_memory_that_is_not_told_is_absent(machine: Machine) -> None:
    machine.write("proc/meminfo", "MemTotal: 5 kB\nMemAvailable\n")
    assert machine.read() == NO_LINE
    (machine.proc / "meminfo").unlink()
    assert machine.read() == "missing"


def test_memory_of_this_machine_is_read() -> None:
    found = read_memory("/proc", find_group_files("/proc", "/sys/fs/cgroup"))
    assert isinstance(found, HostMemory)
    assert 0 <= found.available_bytes <= found.total_bytes
