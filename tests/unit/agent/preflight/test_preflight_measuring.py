"""What one rank measures alone, and what it says where it cannot."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from rankscope.agent.preflight import local_checks
from rankscope.agent.preflight.checks import CPU, MEMORY, name_matmul
from rankscope.agent.preflight.faults import Sensors
from rankscope.agent.preflight.local_checks import CheckedDevice, CpuShare, measure_disk, measure_rates, read_cpu_model
from rankscope.agent.preflight.options import parse_options
from rankscope.agent.preflight.results import Measured
from rankscope.agent.sample.node import Places


class Clock:
    """A clock that work moves on."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def read(self) -> float:
        return self.now_s

    def work(self, seconds: float) -> None:
        self.now_s += seconds


def test_rate_of_each_part_is_that_of_its_work() -> None:
    clock = Clock()
    durations = iter([8.0, *[0.0625] * 4, *[0.125] * 2])  # the first one warms up
    rates = measure_rates(lambda: clock.work(next(durations)), 1.0, 0.5, clock.read)
    assert rates == (16.0, 16.0, 8.0, 8.0)


def test_three_parts_are_measured_however_long_they_take() -> None:
    clock = Clock()
    assert measure_rates(lambda: clock.work(2.0), 4.0, 0.5, clock.read) == (2.0, 2.0, 2.0)


def test_disk_is_measured_and_leaves_nothing(tmp_path: Path) -> None:
    measured = measure_disk(str(tmp_path), 0.1)
    assert measured.absent == ""
    assert min(measured.values) > 0
    assert list(tmp_path.iterdir()) == []


def test_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    measured = measure_disk(str(file), 0.1)
    assert measured.values == ()
    assert measured.absent == f"{file} cannot be written to: Not a directory. Name another folder by --disk-folder"


def test_cpu_device_multiplies_and_copies() -> None:
    device = CheckedDevice(0)
    if device.kind != CPU:
        pytest.skip("there is a GPU here")
    for check in (name_matmul("float32"), MEMORY):
        measured = device.measure(check, 0.1, lambda: None)
        assert len(measured.values) >= 3
        assert 1e-3 < min(measured.values) < max(measured.values) < 1e6  # in 1e9 a second


def test_what_torch_raises_becomes_the_reason() -> None:
    device = CheckedDevice(0)

    def fail() -> None:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB\nmore")

    device.synchronize = fail  # type: ignore[method-assign]
    assert device.measure(MEMORY, 0.1, lambda: None) == Measured(absent="CUDA out of memory. Tried to allocate 2 GiB")


def test_cpu_share_is_that_of_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu_s, wall_s = iter([1.0, 1.5, 7.0, 7.5]), iter([0.0, 1.0, 20.0, 20.25])
    clock = SimpleNamespace(process_time=lambda: next(cpu_s), perf_counter=lambda: next(wall_s))
    monkeypatch.setattr(local_checks, "time", clock)
    share = CpuShare(threads=2)
    assert share.share is None
    done = Measured(values=(1.0,))
    assert share.measure(lambda: done) is done
    assert share.share == pytest.approx(0.25)  # half a CPU second in a second of two threads
    share.measure(lambda: done)
    assert share.share == pytest.approx(1.0 / 2.5)


def test_cpu_model_is_read_from_linux(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text("processor\t: 0\nmodel name\t: AMD EPYC 9654\nmodel name\t: other\n")
    assert read_cpu_model(str(path)) == "AMD EPYC 9654"
    path.write_text("processor\t: 0\n")
    assert read_cpu_model(str(path)) == "CPU"
    assert read_cpu_model(str(tmp_path / "none")) == "CPU"


def test_sensors_without_gpu_and_network_find_nothing(tmp_path: Path) -> None:
    places = Places(infiniband=str(tmp_path / "ib"), interfaces=str(tmp_path / "net"))
    sensors = Sensors(is_reader=True, places=places)
    sensors.begin()
    sensors.note_load()
    assert sensors.end(1) == ([], [])


def test_port_that_goes_down_between_the_readings_is_found(tmp_path: Path) -> None:
    port = tmp_path / "ib" / "mlx5_0" / "ports" / "1"
    (port / "counters").mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    (port / "counters" / "link_downed").write_text("1\n")
    places = Places(infiniband=str(tmp_path / "ib"), interfaces=str(tmp_path / "net"))
    sensors, beside = (Sensors(is_reader=is_reader, places=places) for is_reader in (True, False))
    sensors.begin()
    beside.begin()
    (port / "counters" / "link_downed").write_text("2\n")
    assert sensors.end(8) == (["port mlx5_0/1 went down 1 times during the pre-flight"], [])
    assert beside.end(8) == ([], [])  # one rank a node reads them


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--budget-s", "1"], "1 is not between 2 and 3600 seconds"),
        (["--wait-s", "soon"], "'soon' is no number of seconds"),
        (["--wait-s", "nan"], "nan is not between 1 and 3600 seconds"),
    ],
)
def test_wrong_option_is_said(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_options(arguments)
    assert ended.value.code == 2
    assert text in capsys.readouterr().err
