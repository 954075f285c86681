"""The sample of the machine, from folders like /proc and /sys, and once from the real ones."""

from pathlib import Path

import pytest

from rankscope.agent.sample.node import NodeSampler, Places, read_steal_ns
from rankscope.measure.clock import SystemClock
from rankscope.measure.records import NodeSample
from rankscope.measure.units import NS_PER_S, HostNs, WallNs

SNMP = """Ip: Forwarding DefaultTTL
Ip: 1 64
Tcp: RtoAlgorithm OutSegs RetransSegs InErrs
Tcp: 1 3101943 4467 0
"""
PRESSURE = "some avg10=0.00 avg60=0.00 avg300=0.08 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
STAT = "cpu  1192171 1459 94771 1359525 5342 0 7402 1782 0 0\ncpu0 595790 27791\nintr 13758990\n"


class Clock:
    """A clock that stands until it is moved, or moves by a step each time it is read."""

    now_s = 0.0
    step_s = 0.0

    def monotonic_ns(self) -> HostNs:
        now_s = self.now_s
        self.now_s += self.step_s
        return HostNs(round(now_s * NS_PER_S))

    def wall_ns(self) -> WallNs:
        return WallNs(0)


class Machine:
    """A machine in a folder, in which the process is in the control group /job."""

    def __init__(self, folder: Path) -> None:
        self.places = Places(str(folder / "ib"), str(folder / "net"), str(folder / "proc"), str(folder / "cgroup"))
        self.proc, self.group = folder / "proc", folder / "cgroup" / "job"
        self.write(self.proc / "net" / "snmp", SNMP)
        self.write(self.proc / "pressure" / "cpu", PRESSURE.format(2198677903))
        self.write(self.proc / "stat", STAT)
        self.write(self.proc / "self" / "cgroup", "0::/job\n")
        self.write(self.group / "cpu.pressure", PRESSURE.format(11))
        self.write(self.proc / "meminfo", "MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 600 kB\n")
        self.clock = Clock()

    def write(self, file: Path, text: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def make_sampler(self) -> NodeSampler:
        return NodeSampler(self.clock, self.places)

    def sample(self) -> NodeSample:
        return self.make_sampler().sample()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_tcp_and_pressure_count_up_in_our_units(machine: Machine) -> None:
    sample = machine.sample()
    assert (sample.tcp_segments_sent, sample.tcp_segments_retransmitted) == (3_101_943, 4_467)
    assert (sample.cpu_pressure_ns, sample.group_cpu_pressure_ns) == (2_198_677_903_000, 11_000)
    assert sample.absent == {"ports": "no_infiniband_or_roce_card", "interfaces": "no_network_interface"}


def test_steal_is_the_mean_over_the_cpus(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sysconf", lambda _name: 100)
    # 1782 ticks of 10 ms on two CPUs.
    assert read_steal_ns(str(machine.proc / "stat"), 2) == 8_910_000_000


@pytest.mark.parametrize(
    ("file", "fields", "text", "reason"),
    [
        ("net/snmp", ("tcp_segments_sent", "tcp_segments_retransmitted"), None, "missing"),
        ("net/snmp", ("tcp_segments_sent", "tcp_segments_retransmitted"), "Tcp: OutSegs\n", "no_such_line"),
        ("net/snmp", ("tcp_segments_retransmitted",), "Tcp: OutSegs\nTcp: 5\n", "no_such_line"),
        ("pressure/cpu", ("cpu_pressure_ns",), None, "missing"),
        ("pressure/cpu", ("cpu_pressure_ns",), "", "no_such_line"),
        ("pressure/cpu", ("cpu_pressure_ns",), "full total=5\nsome total=x\n", "no_such_line"),
        ("stat", ("cpu_steal_ns",), None, "missing"),
        ("stat", ("cpu_steal_ns",), "cpu 1 2 3\n", "no_such_line"),
        ("stat", ("cpu_steal_ns",), "intr 1 2 3 4 5 6 7 8 9\n", "no_such_line"),
        ("self/cgroup", ("group_cpu_pressure_ns",), "4:memory:/job\n", "no_control_group_of_version_2"),
    ],
)
def test_what_cannot_be_read_is_absent_with_the_reason(
    machine: Machine, file: str, fields: tuple[str, ...], text: str | None, reason: str
) -> None:
    if text is None:
        (machine.proc / file).unlink()
    else:
        (machine.proc / file).write_text(text)
    sample = machine.sample()
    assert {field: sample.absent[field] for field in fields} == dict.fromkeys(fields, reason)
    assert [getattr(sample, field) for field in fields] == [None] * len(fields)


def test_group_whose_file_goes_away_is_absent(machine: Machine) -> None:
    sampler = machine.make_sampler()
    (machine.group / "cpu.pressure").unlink()
    assert sampler.sample().absent["group_cpu_pressure_ns"] == "missing"


def test_machine_is_read_at_most_every_ten_seconds(machine: Machine) -> None:
    sampler = machine.make_sampler()
    first = sampler.sample()
    machine.clock.now_s = 9
    assert sampler.sample() is first
    machine.clock.now_s = 10
    assert sampler.sample().host_ns == 10 * NS_PER_S


@pytest.mark.parametrize(("took_s", "due_s"), [(0.01, 10), (0.02, 20), (5.0, 600)])
def test_slow_reading_makes_the_next_one_later(machine: Machine, took_s: float, due_s: int) -> None:
    """A thousand times as long, at most ten minutes. The clock is read at the begin and at the end."""
    sampler = machine.make_sampler()
    machine.clock.step_s = took_s
    first = sampler.sample()
    machine.clock.step_s = 0
    machine.clock.now_s = due_s - 1
    assert sampler.sample() is first
    machine.clock.now_s = due_s
    assert sampler.sample() is not first


def test_no_port_is_begun_after_a_tenth_of_a_second(machine: Machine) -> None:
    for number in range(9):
        machine.write(Path(machine.places.infiniband) / f"mlx5_{number}" / "ports" / "1" / "state", "4: ACTIVE")
    machine.clock.step_s = 0.03  # each port takes as long: the fourth would begin at 0.09 s, the fifth at 0.12
    sample = machine.sample()
    assert (len(sample.ports), sample.ports_left_out) == (4, 5)


def test_group_whose_own_folder_is_not_there_is_not_the_root(machine: Machine) -> None:
    machine.write(machine.group.parent / "cpu.pressure", PRESSURE.format(5))
    (machine.group / "cpu.pressure").unlink()
    assert machine.sample().absent["group_cpu_pressure_ns"] == "no_control_group_of_version_2"
    machine.write(machine.proc / "self" / "cgroup", "0::/\n")  # in a container with a namespace of its own
    assert machine.sample().group_cpu_pressure_ns == 5_000


@pytest.mark.parametrize("found", [0, -1, OSError(22, "no"), ValueError("unknown name")])
def test_steal_in_ticks_of_unknown_length_is_absent(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, found: int | Exception
) -> None:
    def answer(_name: str) -> int:
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr("os.sysconf", answer)
    assert machine.sample().absent["cpu_steal_ns"] == "no_length_of_a_tick"


def test_ticks_need_not_divide_a_second(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sysconf", lambda _name: 1024)
    # 1782 / 1024 s on one CPU.
    assert read_steal_ns(str(machine.proc / "stat"), 1) == 1_740_234_375


def test_real_machine_has_a_value_or_a_reason_for_every_field() -> None:
    sample = NodeSampler(SystemClock()).sample()
    fields = set(NodeSample.__struct_fields__) - {"host_ns", "absent", "ports_left_out", "interfaces_left_out"}
    missing = {field for field in fields if getattr(sample, field) in {None, ()}}
    assert missing <= sample.absent.keys()
    assert sample.tcp_segments_sent is not None
