"""Why ranks have become slower than they were: evidence written down by hand, in ms."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from rankscope.collector.detect.finding import Finding
from rankscope.collector.detect.stragglers.regression_cause import Compared, find_cause_of_change, find_undecided
from rankscope.collector.detect.stragglers.root_cause import Cause
from rankscope.collector.detect.view import Samples, TimeCount
from rankscope.collector.steps.group_transfers import GroupTransfers
from rankscope.measure.records import CompiledFrame, DeviceSample, WindowBreakdown
from tests.unit.collector.steps.step_series import MS, UNKNOWN, Rows, series_of, view_of

SINCE, STEPS, RANKS = 10, 20, 4
MINE = (0, 1)


def steps_of(before: float, after: float) -> Rows:
    return [[before if step < SINCE else after] * RANKS for step in range(STEPS)]


def cause(
    added_ms: float = 30.0,
    *,
    phases_ms: Mapping[str, Rows] | None = None,
    transfer_ms: Sequence[float] | None = None,
    samples: Samples | None = None,
    ranks: Sequence[int] = MINE,
    cpu_ms: Rows | None = None,
    own_is_measured: bool = True,
    compared: Compared = Compared(SINCE),  # noqa: B008 - immutable
) -> Cause:
    view = view_of(
        series_of(steps_of(100.0, 130.0), phases_ms=phases_ms, cpu_ms=cpu_ms, own_is_measured=own_is_measured),
        samples=samples,
        groups={"dp": (0, 2), "other": (2, 3)},
        transfers=transfers_of(transfer_ms),
    )
    return find_cause_of_change(view, ranks, compared, added_ms * MS)


def transfers_of(transfer_ms: Sequence[float] | None) -> GroupTransfers:
    if transfer_ms is None:
        return GroupTransfers()
    transfers_ns = {"dp": np.array(transfer_ms) * MS, "other": np.zeros(STEPS)}
    return GroupTransfers(transfers_ns, dict.fromkeys(transfers_ns, np.ones(STEPS)))


def device(clock: int | None = None, *reasons: str) -> DeviceSample:
    return DeviceSample(host_ns=0, uuid="", model="", sm_clock_hertz=clock, throttle_reasons=reasons)


def devices(mine: DeviceSample, others: DeviceSample | None = None) -> Samples:
    told = {rank: [mine] for rank in MINE} | ({} if others is None else {rank: [others] for rank in (2, 3)})
    return Samples({}, {}, told)


def window(step: int, compute: float, idle: float, operators: int | None = 100) -> WindowBreakdown:
    return WindowBreakdown(
        first_step=step, step_count=1, window_ns=200 * MS, compute_ns=round(compute * MS), communication_ns=0,
        overlap_ns=0, exposed_communication_ns=0, copy_ns=0, idle_ns=round(idle * MS), operator_count=operators,
    )  # fmt: skip


def windows(*found: WindowBreakdown, has_device: bool = True) -> Samples:
    return Samples({0: found}, {}, {0: [device()]} if has_device else {})


def test_nothing_measured_is_unattributed() -> None:
    assert cause() == Cause("unattributed", "no known cause", {})


@pytest.mark.parametrize(("after_ms", "name"), [(20.0, "data_loading"), (19.9, "unattributed")])
def test_data_loaders_that_explain_half_of_it_are_named(after_ms: float, name: str) -> None:
    found = cause(phases_ms={"data": steps_of(5.0, after_ms)})
    assert found.name == name
    assert found.evidence == {"data_added_ns": pytest.approx((after_ms - 5.0) * MS)}


def test_data_phase_unknown_on_a_side_is_no_cause() -> None:
    assert cause(phases_ms={"data": steps_of(UNKNOWN, 40.0)}).evidence == {}
    assert cause(phases_ms={"data": steps_of(5.0, UNKNOWN)}).evidence == {}


def test_transfer_of_their_groups_that_has_grown_is_a_slow_link() -> None:
    found = cause(transfer_ms=[5.0] * SINCE + [25.0] * SINCE)
    assert (found.name, found.evidence) == ("slow_link", {"transfer_added_ns": 20.0 * MS})
    assert cause(transfer_ms=[5.0] * SINCE + [15.0] * SINCE).name == "unattributed"
    assert cause(transfer_ms=[5.0] * SINCE + [25.0] * SINCE, ranks=(1,)).evidence == {}


@pytest.mark.parametrize(("compile_ms", "name"), [(16, "recompilation"), (14, "unattributed")])
def test_ranks_compiling_longer_are_named_with_frame_and_guard(compile_ms: int, name: str) -> None:
    frames = [
        CompiledFrame(step=step, frame="train.py:24 (scale)", duration_ns=compile_ms * MS, reason=f"k == {step}")
        for step in range(SINCE, STEPS)
    ]
    found = cause(samples=Samples({}, {}, {}, compiled={0: frames, 1: frames}))
    assert found.name == name
    assert found.evidence == {"recompilation_added_ns": compile_ms * MS}
    assert found.because.endswith(f"(scale): the guard k == {STEPS - 1} failed") is (name == "recompilation")


@pytest.mark.parametrize(("pause_ms", "name"), [(16, "garbage_collection"), (14, "unattributed")])
def test_garbage_collector_that_pauses_longer_is_named(pause_ms: int, name: str) -> None:
    before = [TimeCount(step, step * MS) for step in range(SINCE)]
    after = [TimeCount(step, (SINCE + (step - SINCE) * (pause_ms + 1)) * MS) for step in range(SINCE, STEPS)]
    found = cause(samples=Samples({}, {0: [*before, *after], 1: after}, {}))
    assert found.name == name
    assert found.evidence == {"gc_added_ns": pytest.approx(pause_ms * MS)}


@pytest.mark.parametrize(
    ("mine", "others", "name"),
    [
        (device(700, "sw_thermal_slowdown"), device(1000), "gpu_thermal_throttle"),
        (device(700, "sw_power_cap"), device(1000), "gpu_power_cap"),
        (device(700), device(1000), "gpu_slow_clock"),
        (device(980, "sw_thermal_slowdown"), device(1000), "unattributed"),
        (device(None, "sw_thermal_slowdown"), device(), "gpu_thermal_throttle"),
        (device(None, "sw_power_cap"), device(None, "sw_power_cap"), "unattributed"),
        (device(700, "sw_power_cap"), device(1000, "sw_power_cap"), "gpu_slow_clock"),
        (device(None, "sw_thermal_slowdown"), None, "unattributed"),
    ],
)
def test_gpus_that_run_slower_than_the_others_and_why(
    mine: DeviceSample, others: DeviceSample | None, name: str
) -> None:
    assert cause(samples=devices(mine, others)).name == name


@pytest.mark.parametrize(
    ("after", "has_device", "name"),
    [
        (window(12, 60.0, 20.0, 110), True, "more_work"),
        (window(12, 60.0, 20.0, 110), False, "more_work"),
        (window(12, 60.0, 20.0, 101), True, "gpu_compute"),
        (window(12, 60.0, 20.0, None), True, "gpu_compute"),
        (window(12, 60.0, 20.0, 101), False, "unattributed"),
        (window(12, 40.0, 50.0), True, "unattributed"),
        (window(12, 40.0, 50.0), False, "unattributed"),
        (window(12, 50.0, 30.0), True, "unattributed"),
    ],
)
def test_windows_before_and_after_are_compared(after: WindowBreakdown, has_device: bool, name: str) -> None:
    assert cause(samples=windows(window(3, 40.0, 20.0), after, has_device=has_device)).name == name


def test_windows_of_one_side_only_or_of_no_steps_tell_nothing() -> None:
    assert cause(samples=windows(window(12, 90.0, 20.0))).evidence == {}
    empty = WindowBreakdown(
        first_step=12, step_count=0, window_ns=0, compute_ns=0, communication_ns=0, overlap_ns=0,
        exposed_communication_ns=0, copy_ns=0, idle_ns=0,
    )  # fmt: skip
    assert cause(samples=windows(window(3, 40.0, 20.0), empty)).evidence == {}


# -- what the processes do longer: steps of 100 ms that take 130 since step 10, so 15 ms explain half ------------------

UNSEEN = "waiting for something not measured"


def counted(before_ms: float, after_ms: float) -> dict[int, tuple[TimeCount, ...]]:
    """A time that each rank counts, so many ms a step before step 10 and since then."""
    at_change_ms = before_ms * SINCE
    counts = [(0, 0.0), (9, before_ms * 9), (SINCE, at_change_ms), (19, at_change_ms + after_ms * 9)]
    return dict.fromkeys(MINE, tuple(TimeCount(steps, round(ms * MS)) for steps, ms in counts))


def host(*, core: tuple[float, float] = (0.0, 0.0), process: tuple[float, float] = (90.0, 90.0)) -> Samples:
    return Samples({}, {}, {}, core_waits=counted(*core), process_cpu=counted(*process))


IDLE_LONGER = windows(window(3, 40.0, 20.0), window(12, 40.0, 50.0))
"""GPUs that are idle 30 ms longer."""


@pytest.mark.parametrize(("after_ms", "name"), [(105.0, "host_cpu"), (104.9, "unseen_wait")])
def test_training_threads_that_compute_longer_are_a_slow_host(after_ms: float, name: str) -> None:
    found = cause(cpu_ms=steps_of(90.0, after_ms))
    assert found.name == name
    if name == "host_cpu":
        assert found.because == "their training threads computing 15.0 ms more per step than before"


def test_processes_that_compute_longer_are_a_slow_host() -> None:
    found = cause(cpu_ms=steps_of(90.0, 90.0), samples=host(process=(100.0, 130.0)))
    assert (found.name, found.because) == ("host_cpu", "their processes computing 30.0 ms more per step than before")
    assert found.evidence["process_cpu_added_ns"] == pytest.approx(30 * MS)


@pytest.mark.parametrize(("after_ms", "name"), [(17.0, "cpu_pressure"), (16.9, "unseen_wait")])
def test_same_cpu_time_and_longer_core_waits_are_cpu_pressure(after_ms: float, name: str) -> None:
    found = cause(cpu_ms=steps_of(90.0, 90.0), samples=host(core=(2.0, after_ms)))
    assert found.name == name
    if name == "cpu_pressure":
        assert found.because == "their training threads waiting 15.0 ms more per step for a CPU core than before"


def test_core_waits_longer_than_a_step_are_no_waits_in_steps() -> None:
    found = cause(cpu_ms=steps_of(90.0, 90.0), samples=host(core=(2.0, 133.0)))  # 131 ms longer, in steps of 130 ms
    assert found.name == "unseen_wait"
    assert "core_wait_added_ns" not in found.evidence


def test_longer_core_waits_come_before_transfers_without_gpus() -> None:
    # Transfers take 20 ms longer, and training threads wait 20 ms longer for a core: 15 ms explain half.
    transfer_ms = [5.0] * SINCE + [25.0] * SINCE
    assert cause(transfer_ms=transfer_ms, samples=host(core=(2.0, 22.0))).name == "cpu_pressure"
    assert cause(transfer_ms=transfer_ms, samples=host(core=(2.0, 16.0))).name == "slow_link"
    of_gpus = devices(device())._replace(core_waits=counted(2.0, 22.0))
    assert cause(transfer_ms=transfer_ms, samples=of_gpus).name == "slow_link"


def test_longer_time_off_the_cpu_on_cpus_is_an_unseen_wait() -> None:
    # 100 - 90 = 10 ms before and 130 - 90 = 40 since.
    found = cause(cpu_ms=steps_of(90.0, 90.0))
    assert (found.name, found.because) == (
        "unseen_wait",
        f"their training threads off the CPU 30.0 ms more per step than before, {UNSEEN}",
    )
    assert cause(cpu_ms=steps_of(100.0, 100.0)).name == "unseen_wait"  # never off it before
    assert cause(cpu_ms=steps_of(90.0, 104.9)).name == "unseen_wait"
    assert cause(60.0, cpu_ms=steps_of(90.0, 94.0)).name == "unattributed"  # 26 ms of 60


def test_time_off_the_cpu_in_data_is_no_unseen_wait() -> None:
    # 30 ms longer off the CPU, of which 14 in data: 16 are left, and with 16 in data 14.
    assert cause(32.0, cpu_ms=steps_of(60.0, 60.0), phases_ms={"data": steps_of(5.0, 19.0)}).name == "unseen_wait"
    found = cause(33.0, cpu_ms=steps_of(60.0, 60.0), phases_ms={"data": steps_of(5.0, 21.0)})
    assert (found.name, found.evidence["off_cpu_added_ns"]) == ("unattributed", 14.0 * MS)


def test_unseen_waits_need_measured_own_times_and_cpu_times() -> None:
    assert cause(cpu_ms=steps_of(90.0, 90.0), own_is_measured=False).name == "unattributed"
    assert cause(cpu_ms=steps_of(UNKNOWN, 90.0)).name == "unattributed"


@pytest.mark.parametrize(
    ("cpu_ms", "samples", "name", "because"),
    [
        (steps_of(90.0, 110.0), {}, "host_cpu", ", waiting for their hosts"),
        (steps_of(90.0, 90.0), {"process_cpu": counted(100.0, 120.0)}, "host_cpu", ", waiting for their hosts"),
        (steps_of(125.0, 120.0), {}, "host_cpu", ", waiting for their hosts"),  # spins, hardly off the CPU
        (
            steps_of(90.0, 90.0),
            {"core_waits": counted(0.0, 20.0)},
            "cpu_pressure",
            " and their training threads waiting 20.0 ms more per step for a CPU core than before",
        ),
        (steps_of(90.0, 90.0), {}, "unseen_wait", f", their training threads off the CPU, {UNSEEN}"),
        (None, {}, "unattributed", ", CPU time of their training threads not known"),
        (
            steps_of(90.0, UNKNOWN), {}, "unattributed", ", CPU time of their training threads not known",
        ),
    ],
)  # fmt: skip
def test_why_devices_are_idle_longer(cpu_ms: Rows | None, samples: Mapping[str, Any], name: str, because: str) -> None:
    found = cause(cpu_ms=cpu_ms, samples=IDLE_LONGER._replace(**samples))
    assert (found.name, found.because) == (name, f"their GPUs idle 30.0 ms more per step{because}")


def test_threads_say_nothing_of_gpus_that_are_not_idle_longer() -> None:
    busy = windows(window(3, 40.0, 20.0), window(12, 50.0, 30.0))
    assert cause(cpu_ms=steps_of(90.0, 110.0), samples=busy).name == "unattributed"
    assert cause(cpu_ms=steps_of(90.0, 110.0), samples=devices(device())).name == "unattributed"


@pytest.mark.parametrize(
    ("cause", "found_by", "now", "undecided"),
    [
        ("gpu_compute", {"compute_added_ns": 9.0}, {"data_added_ns": 0.0}, True),
        ("gpu_compute", {"compute_added_ns": 9.0}, {"compute_added_ns": 0.0}, False),
        ("data_loading", {"data_added_ns": 9.0, "compute_added_ns": 0.0}, {"data_added_ns": 0.0}, False),
        ("host_cpu", {"idle_added_ns": 9.0, "cpu_added_ns": 9.0}, {"cpu_added_ns": 0.0}, True),
        ("host_cpu", {"cpu_added_ns": 9.0}, {"cpu_added_ns": 0.0}, False),
        ("gpu_slow_clock", {"sm_clock_ratio": 0.8}, {}, False),
    ],
)
def test_cause_is_undecided_only_where_its_evidence_is_missing(
    cause: str, found_by: Mapping[str, float], now: Mapping[str, float], undecided: bool
) -> None:
    found = Finding(kind="run_slowdown", ranks=(), cause=cause, sentence="", evidence=found_by)
    assert bool(find_undecided(found, now)) is undecided
    assert find_undecided(found, now).items() <= found_by.items()
