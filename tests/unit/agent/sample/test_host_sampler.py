"""Tests of the host sampler and the garbage collection meter."""

import gc
import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from rankscope.agent.sample.block_io import BlockIo
from rankscope.agent.sample.host import GcMeter, HostSampler, ResidentMemory
from rankscope.measure.clock import SystemClock
from rankscope.measure.units import HostNs, WallNs

MIB = 1024 * 1024


@dataclass
class ManualClock:
    """A clock that a test moves."""

    now_ns: int = 0

    def monotonic_ns(self) -> HostNs:
        return HostNs(self.now_ns)

    def wall_ns(self) -> WallNs:
        return WallNs(self.now_ns)


def _usage(
    *, user_s: float = 0.0, system_s: float = 0.0, waits: tuple[int, int, int] = (0, 0, 0)
) -> resource.struct_rusage:
    """A getrusage answer; `waits` are voluntary switches, involuntary switches, major faults."""
    voluntary, involuntary, major_faults = waits
    return resource.struct_rusage(
        (user_s, system_s, 0, 0, 0, 0, 0, major_faults, 0, 0, 0, 0, 0, 0, voluntary, involuntary)
    )


def _deny_usage() -> resource.struct_rusage:
    raise PermissionError


@pytest.fixture
def meter() -> Iterator[GcMeter]:
    """A meter that is gone from gc.callbacks after the test, whatever happens."""
    made = GcMeter()
    gc.disable()  # so that only the test's own gc.collect() counts
    yield made
    gc.enable()
    made.remove()


def test_cpu_time_is_user_plus_system() -> None:
    sampler = HostSampler(ManualClock(), read_usage=lambda: _usage(user_s=1.25, system_s=0.5))
    assert sampler.sample().cpu_ns == 1_750_000_000


def test_sample_has_switches_faults_and_time() -> None:
    sampler = HostSampler(ManualClock(77), read_usage=lambda: _usage(waits=(5, 3, 0)))
    sample = sampler.sample()
    assert (sample.voluntary_switches, sample.involuntary_switches, sample.major_faults) == (5, 3, 0)
    assert sample.host_ns == 77


def test_zero_counters_of_a_sandbox_kernel_are_none() -> None:
    sampler = HostSampler(ManualClock(), read_usage=lambda: _usage(user_s=1.0, waits=(0, 0, 0)))
    sample = sampler.sample()
    assert (sample.voluntary_switches, sample.involuntary_switches, sample.major_faults) == (None, None, None)
    assert sample.cpu_ns == 1_000_000_000


def test_denied_usage_leaves_the_memory_measured() -> None:
    sample = HostSampler(ManualClock(), read_usage=_deny_usage).sample()
    assert sample.cpu_ns is None
    assert sample.voluntary_switches is None
    assert sample.resident_bytes == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)


def test_denied_memory_is_none_and_not_zero(tmp_path: Path) -> None:
    """A folder in the place of the file cannot be read."""
    assert HostSampler(ManualClock(), memory=ResidentMemory(str(tmp_path))).sample().resident_bytes is None


def test_wait_for_a_core_is_the_second_number_of_the_main_thread(tmp_path: Path) -> None:
    file = tmp_path / "schedstat"
    file.write_text("9000 700 12\n")
    assert HostSampler(ManualClock(), schedstat=str(file)).sample().run_queue_wait_ns == 700


@pytest.mark.parametrize("text", ["0 0 0", "", "9000", "many waits here"])
def test_wait_that_the_kernel_does_not_count_is_none(tmp_path: Path, text: str) -> None:
    file = tmp_path / "schedstat"
    assert HostSampler(ManualClock(), schedstat=str(file)).sample().run_queue_wait_ns is None
    file.write_text(text)
    assert HostSampler(ManualClock(), schedstat=str(file)).sample().run_queue_wait_ns is None


def test_cpu_time_of_this_process_never_decreases() -> None:
    sampler = HostSampler(SystemClock())
    first, second = sampler.sample(), sampler.sample()
    assert first.cpu_ns is not None
    assert second.cpu_ns is not None
    assert 0 < first.cpu_ns <= second.cpu_ns
    assert first.resident_bytes is not None
    assert first.resident_bytes > 1_000_000  # no CPython fits into a megabyte


def test_without_a_meter_collector_pauses_are_not_measured() -> None:
    sample = HostSampler(SystemClock()).sample()
    assert (sample.gc_pause_ns, sample.gc_collections) == (None, None)


def test_meter_that_saw_no_collection_measures_zero(meter: GcMeter) -> None:
    meter.install()
    sample = HostSampler(SystemClock(), meter).sample()
    assert (sample.gc_pause_ns, sample.gc_collections) == (0, 0)


def test_each_collection_is_counted_with_its_pause(meter: GcMeter) -> None:
    meter.install()
    gc.collect()
    gc.collect(0)
    assert meter.collections == 2
    assert meter.pause_ns is not None
    assert meter.pause_ns > 0


def test_pause_is_the_time_from_start_to_stop_of_each_collection() -> None:
    readings = iter([100, 130, 1000, 1005])
    meter = GcMeter(read_clock_ns=lambda: next(readings))
    gc.disable()
    try:
        meter.install()
        gc.collect()
        gc.collect()
        assert meter.pause_ns == (130 - 100) + (1005 - 1000)
    finally:
        meter.remove()
        gc.enable()


def test_removed_meter_measures_nothing_and_leaves_no_callback(meter: GcMeter) -> None:
    before = len(gc.callbacks)
    meter.install()
    meter.install()
    assert len(gc.callbacks) == before + 1
    meter.remove()
    meter.remove()
    assert len(gc.callbacks) == before
    assert meter.pause_ns is None
    assert meter.collections is None


def test_reinstalled_meter_continues_its_counts(meter: GcMeter) -> None:
    meter.install()
    gc.collect()
    meter.remove()
    gc.collect()
    meter.install()
    gc.collect()
    assert meter.collections == 2


def test_meter_ignores_a_collection_begun_before_it(meter: GcMeter) -> None:
    class Installer:
        def __init__(self) -> None:
            self.itself = self  # a cycle, so that only the collector frees it

        def __del__(self) -> None:
            meter.install()

    Installer()
    gc.collect()
    assert (meter.pause_ns, meter.collections) == (0, 0)
    gc.collect()
    assert meter.collections == 1


def test_resident_memory_grows_with_the_process() -> None:
    memory = ResidentMemory()
    before = memory.read_bytes()
    held = bytearray(64 * MIB)
    for page in range(0, len(held), resource.getpagesize()):
        held[page] = 1
    assert memory.read_bytes() - before > 32 * MIB
    memory.close()
    memory.close()


def test_resident_memory_equals_psutil() -> None:
    told = psutil.Process().memory_info().rss
    assert ResidentMemory().read_bytes() == pytest.approx(told, rel=0.2)


def test_where_there_is_no_proc_psutil_is_asked(tmp_path: Path) -> None:
    told = psutil.Process().memory_info().rss
    assert ResidentMemory(str(tmp_path / "statm")).read_bytes() == pytest.approx(told, rel=0.2)


@pytest.mark.parametrize("text", ["", "12", "many pages"])
def test_invalid_statm_is_an_error_with_the_file(tmp_path: Path, text: str) -> None:
    file = tmp_path / "statm"
    file.write_text(text)
    with pytest.raises(OSError, match="statm"):
        ResidentMemory(str(file)).read_bytes()


STAT = "4711 (train.py) x) R " + " ".join(str(field) for field in range(4, 53))
"""As /proc/self/stat has it: each field from the fourth on is its own number."""


def block_io(folder: Path, switch: str | None, stat: str = STAT) -> BlockIo:
    """Return the reader of files with these contents; None: there is none."""
    for name, text in (("switch", switch), ("stat", stat)):
        if text is not None:
            (folder / name).write_text(text)
    return BlockIo(str(folder / "switch"), str(folder / "stat"))


def test_wait_for_block_io_is_in_ticks(tmp_path: Path) -> None:
    sample = HostSampler(ManualClock(), block_io=block_io(tmp_path, "1\n")).sample()
    assert sample.block_io_wait_ns == 42 * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    assert sample.absent == {}


@pytest.mark.parametrize(
    ("switch", "stat", "reason"),
    [
        ("0\n", STAT, "kernel.task_delayacct was 0 when training began; with 1 the kernel counts it"),
        (None, STAT, "this kernel has no kernel.task_delayacct"),
        ("1\n", "4711 (train.py) R 4", "stat cannot be read: list index out of range"),
    ],
)
def test_wait_the_kernel_does_not_count_is_absent_with_reason(
    tmp_path: Path, switch: str | None, stat: str, reason: str
) -> None:
    sample = HostSampler(ManualClock(), block_io=block_io(tmp_path, switch, stat)).sample()
    assert sample.block_io_wait_ns is None
    assert sample.absent["block_io_wait_ns"].endswith(reason)
