"""The fake GPU hands over what a profiler should not: the training goes on, and what cannot be used is counted."""

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.integration.fake_gpu_jobs import find_library, settings
from tests.integration.faults import sized
from tests.integration.listening_collector import Life, listening
from tests.integration.serving import is_end_known, serving
from tests.integration.torchrun import ALONE, CHECKOUT, Ended, python, run, run_forked, started

KERNEL_NS, TRANSFER_NS = 20_000, 100_000
STEPS = 60
RESIDENT_MIB_MORE_MAX = 8
NO_CORRELATION, SAME_CORRELATION, ENDS_BEFORE_BEGIN, TIME_ZERO, TIME_HUGE = range(1, 6)
NO_NAME, LONG_NAME, NAME_NOT_UTF8, METADATA_BROKEN, UNKNOWN_CALL = range(6, 11)
"""As in device.cpp."""


def train(folder: Path, *options: str, steps: int = STEPS) -> tuple[Ended, Life]:
    with listening() as collector:
        script = ("fake_gpu.py", find_library(), str(folder / "work"), "--steps", str(steps), "--how", "waits")
        ended = run_forked(*script, *options, environment={**ALONE, **settings(collector.endpoint)})
    assert (ended.exit_code, ended.left) == (0, ()), ended.stderr
    (life,) = collector.lives
    assert [record.step for record in life.steps] == list(range(steps))
    return ended, life


def train_with(folder: Path, faults: Mapping[str, float]) -> tuple[Ended, Life]:
    return train(folder, "--kernel-ns", str(KERNEL_NS), "--all-reduce", "--faults", json.dumps(faults))


def check_compute(life: Life) -> None:
    """Each step computes as many kernels as it launched, each of its length."""
    assert life.breakdowns
    for found in life.breakdowns:
        assert found.operator_count is not None
        assert found.compute_ns == (found.operator_count - 1) * KERNEL_NS, "all but the collective's"
        assert found.communication_ns == TRANSFER_NS


@pytest.mark.parametrize("malformed", [NO_CORRELATION, SAME_CORRELATION, TIME_ZERO])
def test_steps_whose_work_belongs_to_no_call_are_cut_and_counted(tmp_path: Path, malformed: int) -> None:
    _, life = train_with(tmp_path, {"malformed": malformed})
    assert (life.breakdowns, life.losses.errors) == ([], {})
    assert life.losses.windows_skipped["steps_cut"] > 0


@pytest.mark.parametrize("malformed", [ENDS_BEFORE_BEGIN, TIME_HUGE])
def test_windows_with_impossible_times_are_left_out_and_counted(tmp_path: Path, malformed: int) -> None:
    _, life = train_with(tmp_path, {"malformed": malformed})
    assert (life.breakdowns, life.losses.errors) == ([], {})
    assert life.losses.windows_skipped["times_impossible"] > 0


@pytest.mark.parametrize("malformed", [NO_NAME, LONG_NAME])
def test_kernels_with_an_odd_name_are_compute(tmp_path: Path, malformed: int) -> None:
    _, life = train_with(tmp_path, {"malformed": malformed})
    assert life.losses.errors == {}
    assert [found.operator_count for found in life.breakdowns]
    for found in life.breakdowns:
        assert found.compute_ns + found.exposed_communication_ns + found.copy_ns + found.idle_ns == found.window_ns


def test_a_name_that_is_no_text_is_said_once_and_counted(tmp_path: Path) -> None:
    ended, life = train_with(tmp_path, {"malformed": NAME_NOT_UTF8})
    assert life.breakdowns == []
    assert set(life.losses.errors) == {"windows"}
    assert ended.stderr.count("windows failed") == 1


@pytest.mark.parametrize("malformed", [METADATA_BROKEN, UNKNOWN_CALL])
def test_what_is_not_needed_for_a_breakdown_may_be_broken(tmp_path: Path, malformed: int) -> None:
    _, life = train_with(tmp_path, {"malformed": malformed})
    check_compute(life)
    assert life.losses.errors == {}


@pytest.mark.parametrize("faults", [{"backwards": 1}, {"latency_ns": 3_000_000}, {"drop_calls": 7}])
def test_order_latency_and_missing_calls_change_no_sum(tmp_path: Path, faults: Mapping[str, float]) -> None:
    _, life = train_with(tmp_path, faults)
    check_compute(life)
    assert life.losses.errors == {}


def test_steps_with_missing_kernels_are_cut(tmp_path: Path) -> None:
    _, life = train_with(tmp_path, {"drop_work": 7})
    assert (life.breakdowns, life.losses.errors) == ([], {})
    assert life.losses.windows_skipped["steps_cut"] > 0


def test_a_device_whose_clock_drifts_is_as_wrong_as_its_clock(tmp_path: Path) -> None:
    _, life = train_with(tmp_path, {"drift_ppm": 200})
    for found in life.breakdowns:
        assert found.operator_count is not None
        assert found.compute_ns == pytest.approx((found.operator_count - 1) * KERNEL_NS * 1.0002, rel=1e-5)
    assert life.breakdowns


@pytest.mark.parametrize(
    "call",
    [
        "cudaLaunchKernelExC", "cuLaunchKernelEx", "hipExtModuleLaunchKernel",
    ],
)  # fmt: skip
def test_launches_of_every_driver_are_seen(tmp_path: Path, call: str) -> None:
    _, life = train(tmp_path, "--kernel-ns", str(KERNEL_NS), "--all-reduce", "--call", call, steps=12)
    check_compute(life)


def test_window_of_a_million_activities_is_left_out_and_counted(tmp_path: Path) -> None:
    _, life = train(tmp_path, "--kernel-ns", "100", "--kernels-a-launch", "1000", steps=9)
    assert (life.breakdowns, life.losses.errors) == ([], {})
    assert life.losses.windows_skipped["events_max"] > 0


def test_hundreds_of_windows_do_not_grow_the_process() -> None:
    windows = sized(300, 1_000)
    ended = run(python("fake_gpu_windows.py", find_library(), "--windows", str(windows)), {"PYTHONPATH": CHECKOUT})
    assert (ended.exit_code, ended.left) == (0, ()), ended.stderr
    lines = [line.split() for line in ended.stdout.splitlines()]
    assert [line[:2] for line in lines] == [["2", "True"]] * windows
    resident_mib = [int(line[2]) for line in lines]
    first, second = resident_mib[100 : windows // 2], resident_mib[windows // 2 :]
    assert max(second) - max(first) <= RESIDENT_MIB_MORE_MAX, resident_mib[::50]


def test_rank_killed_amid_a_window_is_reported_leaving_nothing(tmp_path: Path) -> None:
    with serving() as served:
        given = {**ALONE, **settings(served.endpoint, run="killed", full_window_interval_s="1")}
        script = ("fake_gpu.py", find_library(), str(tmp_path / "work"), "--steps", "100000", "--how", "waits")
        with started(python(*script, "--kernel-ns", str(KERNEL_NS), "--stop-amid-session"), given) as job:
            job.wait_for_output("amid a session")
            os.kill(job.launcher.pid, signal.SIGKILL)
            ended = job.wait()
        seen = served.wait_for_run("killed", is_end_known)
    assert (ended.exit_code, ended.left) == (-signal.SIGKILL, ())
    assert seen.ranks[0].ended == "killed"
    assert seen.ranks[0].losses.errors == {}
