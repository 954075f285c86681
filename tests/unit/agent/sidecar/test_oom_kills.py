"""Tests of counting victims of the OOM killer, with fake /proc and /sys/fs/cgroup."""

from pathlib import Path

import pytest

from rankscope.agent.sidecar.oom_kills import RISE_NS_MAX, OomKills, find_counter

PID = 4711
V1_CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"
V2_EVENTS = "low 0\nhigh 3\nmax 71\noom 2\noom_kill {}\noom_group_kill 0\n"


class Machine:
    """The two trees. Paths are relative to the mount of cgroups."""

    def __init__(self, folder: Path, cgroup: str) -> None:
        self.proc, self.mounts = folder / "proc", folder / "cgroup"
        (self.proc / str(PID)).mkdir(parents=True)
        (self.proc / str(PID) / "cgroup").write_text(cgroup)
        (self.proc / "vmstat").write_text("pgfault 9\noom_kill 5\n")

    def write(self, path: str, text: str) -> None:
        (self.mounts / path).parent.mkdir(parents=True, exist_ok=True)
        (self.mounts / path).write_text(text)

    def find(self) -> tuple[str, str]:
        counter = find_counter(PID, str(self.proc), str(self.mounts))
        assert counter is not None
        return counter.path, counter.place.replace(str(self.mounts), "")

    def count(self) -> OomKills:
        return OomKills(find_counter(PID, str(self.proc), str(self.mounts)))


def test_unified_hierarchy_counts_the_own_cgroup(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/jobs/bert\n")
    machine.write("jobs/bert/memory.events", V2_EVENTS.format(0))
    assert machine.find()[1] == "cgroup /jobs/bert"


def test_memory_is_counted_by_v1_if_both_are_mounted(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "4:memory:/jobs/bert\n1:cpu:/\n0::/\n")
    machine.write("memory/jobs/bert/memory.oom_control", V1_CONTROL.format(0))
    assert machine.find()[1] == "cgroup /memory/jobs/bert"


def test_mount_of_a_container_is_its_cgroup(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/../../kubepods/pod7\n4:memory:/kubepods/pod7\n")
    machine.write("memory/memory.oom_control", V1_CONTROL.format(0))
    assert machine.find()[1] == "cgroup /memory"


def test_machine_count_replaces_a_missing_cgroup(tmp_path: Path) -> None:
    assert Machine(tmp_path, "0::/\n").find()[1] == "the whole machine"


def test_where_nothing_counts_it_is_not_known(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/\n")
    (machine.proc / "vmstat").write_text("pgfault 9\n")
    kills = OomKills(find_counter(PID, str(machine.proc), str(machine.mounts)))
    assert (kills.claim(0), kills.place) == (None, "")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path, "0::/jobs/bert\n")
    machine.write("jobs/bert/memory.events", V2_EVENTS.format(4))
    return machine


def strike(machine: Machine, count: int) -> None:
    machine.write("jobs/bert/memory.events", V2_EVENTS.format(count))


def test_victims_from_before_do_not_count(machine: Machine) -> None:
    assert machine.count().claim(0) == 0


def test_a_death_right_after_a_rise_is_put_down_to_it(machine: Machine) -> None:
    kills = machine.count()
    strike(machine, 5)
    assert kills.claim(0) == 1


def test_one_victim_explains_one_death(machine: Machine) -> None:
    kills = machine.count()
    strike(machine, 5)
    assert [kills.claim(0), kills.claim(0)] == [1, 0]


def test_two_victims_explain_two_deaths(machine: Machine) -> None:
    kills = machine.count()
    strike(machine, 6)
    assert [kills.claim(0), kills.claim(0), kills.claim(0)] == [2, 1, 0]


def test_a_victim_of_long_ago_explains_nothing(machine: Machine) -> None:
    # A worker of a data loader was the victim; the rank itself is killed later, by the launcher.
    kills = machine.count()
    strike(machine, 5)
    kills.update(0)
    assert kills.claim(RISE_NS_MAX + 1) == 0


def test_removed_cgroup_keeps_its_count(machine: Machine) -> None:
    kills = machine.count()
    strike(machine, 5)
    kills.update(0)
    (machine.mounts / "jobs/bert/memory.events").unlink()
    assert kills.claim(1) == 1
