"""The CPU limit of a cgroup, from files as the kernel writes them."""

from pathlib import Path

import pytest

from rankscope.agent.sample.cpu_limit import CpuLimit


class Machine:
    """The files of a machine: a process in a cgroup, and what the kernel counts there."""

    def __init__(self, folder: Path, membership: str) -> None:
        self.cgroups = folder / "cgroup"
        (folder / "proc" / "self").mkdir(parents=True)
        (folder / "proc" / "self" / "cgroup").write_text(membership)
        self.limit = CpuLimit(str(folder / "proc"), str(self.cgroups))

    def count(self, place: str, text: str) -> None:
        (self.cgroups / place).mkdir(parents=True, exist_ok=True)
        (self.cgroups / place / "cpu.stat").write_text(text)


def periods(count: int, throttled: int) -> str:
    return f"usage_usec 9\nnr_periods {count}\nnr_throttled {throttled}\nthrottled_usec 7\n"


PLACES = [
    ("0::/pod/box\n", "pod/box"),
    ("0::/pod/box\n", "pod"),  # the limit is that of the whole pod
    ("0::/../pod/box\n", ""),  # as in a container: its own cgroup is the mount
    ("2:memory:/m\n1:cpu,cpuacct:/pod/box\n", "cpu/pod/box"),
    ("2:cpu:/pod/box\n", "cpu"),
    ("1:memory:/m\n0::/pod\n", "unified/pod"),
]


@pytest.mark.parametrize(("membership", "place"), PLACES)
def test_share_is_of_the_periods_since_the_last_reading(tmp_path: Path, membership: str, place: str) -> None:
    machine = Machine(tmp_path, membership)
    found = []
    for count, throttled in ((100, 100), (120, 105), (120, 105), (140, 125)):
        machine.count(place, periods(count, throttled))
        found.append(machine.limit.read_throttled_ratio())
    assert found == [None, 0.25, None, 1.0]


@pytest.mark.parametrize("text", ["", "usage_usec 9\n", periods(0, 0), "nr_periods x\nnr_throttled 1\n", "\n\0\xff"])
def test_without_a_limit_there_is_no_share(tmp_path: Path, text: str) -> None:
    machine = Machine(tmp_path, "0::/pod\n")
    machine.count("pod", text)
    assert [machine.limit.read_throttled_ratio() for _ in range(2)] == [None, None]


def test_nearest_limit_counts(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/pod/box\n")
    found = []
    for count, throttled in ((10, 0), (20, 5)):
        machine.count("pod", periods(2 * count, 0))
        machine.count("pod/box", periods(count, throttled))
        found.append(machine.limit.read_throttled_ratio())
    assert found == [None, 0.5]


def test_cgroup_that_is_gone_or_begins_anew_has_no_share(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/pod\n")
    machine.count("pod", periods(100, 9))
    machine.limit.read_throttled_ratio()
    (machine.cgroups / "pod" / "cpu.stat").unlink()
    assert machine.limit.read_throttled_ratio() is None
    for count in (30, 20):
        machine.count("pod", periods(count, 9))
        assert machine.limit.read_throttled_ratio() is None


def test_machine_without_cgroups_has_no_share(tmp_path: Path) -> None:
    assert CpuLimit(str(tmp_path), str(tmp_path)).read_throttled_ratio() is None
