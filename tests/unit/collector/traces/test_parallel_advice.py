"""Advice on nn.DataParallel and on gloo beside devices, on traces written by hand."""

from pathlib import Path
from typing import Any

import pytest

from rankscope.collector.traces import analyze
from rankscope.collector.traces.report import Advice, TraceReport
from tests.unit.measure.written_traces import Event, event, kernel, launch, to_json

STEPS = [event("user_annotation", f"ProfilerStep#{number}", 1_000 * number, 1_000) for number in range(2)]
WORK = [
    launch(10, 1), kernel("gemm", 20, 380, correlation=1), launch(1_010, 2), kernel("gemm", 1_020, 980, correlation=2),
]  # fmt: skip
"""Over 2,000 us the device is idle for 20 us, for 620 between the steps' kernels."""


def report_of(folder: Path, *events: Event) -> TraceReport:
    (folder / "rank0.json").write_bytes(to_json(*events))
    return analyze(str(folder))


def advice_of(report: TraceReport, key: str) -> Advice | None:
    return next((one for one in report.advice if one.key == key), None)


def reason_of(report: TraceReport, key: str) -> str | None:
    return next((one.reason for one in report.abstained if one.key == key), None)


# -- nn.DataParallel --------------------------------------------------------------------------------------------------

FORWARD = event("user_annotation", "DataParallel.forward", 100, 100)


def launched_on(*devices: int, at_us: int) -> list[Event]:
    """A launch and a kernel on each device; every thread launches to its own."""
    return [
        one
        for device in devices
        for one in (
            launch(at_us, 10 + device, tid=device + 1),
            kernel("gemm", at_us + 10, 50, device=device, correlation=10 + device),
        )
    ]


def test_data_parallel_over_three_devices_is_named(tmp_path: Path) -> None:
    found = advice_of(report_of(tmp_path, FORWARD, *launched_on(0, 1, 2, at_us=120)), "data_parallel")
    assert found is not None
    assert found.sentence == "On rank 0 one process drives 3 devices by nn.DataParallel."
    assert found.evidence == {"device_count": 3, "device_count_min": 2, "forward_count": 1}


@pytest.mark.parametrize(
    "events",
    [
        launched_on(0, 1, at_us=120),  # a model over two devices, without the range
        [FORWARD, *launched_on(0, at_us=120)],  # wrapped, over one device
        [FORWARD, *launched_on(0, at_us=120), *launched_on(1, at_us=300)],  # another device outside of the forward
        [{**FORWARD, "name": "DistributedDataParallel.forward"}, *launched_on(0, 1, at_us=120)],
    ],
)
def test_several_devices_alone_are_no_data_parallel(tmp_path: Path, events: list[Event]) -> None:
    report = report_of(tmp_path, *events)
    assert advice_of(report, "data_parallel") is None
    assert reason_of(report, "data_parallel") is None


# -- gloo -------------------------------------------------------------------------------------------------------------


def gloo(start_us: int, length_us: int, floats: int | None, name: str = "gloo:all_reduce") -> Event:
    shapes: dict[str, Any] = {} if floats is None else {"Input Dims": [[floats]], "Input type": ["float"]}
    return event("user_annotation", name, start_us, length_us, tid=9, **shapes)


DDP = event("user_annotation", "DistributedDataParallel.forward", 5, 100)
LARGE = 2 << 20
"""8 MiB in two steps are 4 MiB a step."""


def test_large_gloo_collectives_are_named_with_exposed_time(tmp_path: Path) -> None:
    # From 300 to 900, of which the device works until 400: 500 of the 2,000 us.
    found = advice_of(report_of(tmp_path, *STEPS, *WORK, gloo(300, 600, LARGE)), "gloo_beside_devices")
    assert found is not None
    assert found.sentence == (
        "On rank 0 no device works while collectives run over gloo, 4.0 MiB per step: 25 % of the time, waits for "
        "other ranks included."
    )
    assert found.evidence == {
        "gloo_exposed_ratio": 0.25, "gloo_exposed_ratio_min": 0.15, "gloo_step_bytes": 4 << 20,
        "gloo_step_bytes_min": 1 << 20, "gloo_count": 1, "ddp_over_gloo": 0,
    }  # fmt: skip


def test_gradients_over_gloo_are_named_without_sizes(tmp_path: Path) -> None:
    report = report_of(tmp_path, *STEPS, *WORK, DDP, gloo(300, 600, None))
    found = advice_of(report, "gloo_beside_devices")
    assert found is not None
    assert "while DistributedDataParallel's collectives run over gloo: 25 %" in found.sentence


@pytest.mark.parametrize(
    "events",
    [
        [gloo(300, 600, 1_000)],  # 4 kB, that wait for another rank
        [gloo(300, 600, None, "gloo:barrier")],
        [gloo(300, 600, LARGE, "gloo:send")],
        [gloo(1_100, 800, LARGE)],  # while the device computes
        [gloo(2_100, 600, LARGE), gloo(300, 5, 1_000)],  # a checkpoint behind the steps
        [gloo(300, 600, LARGE, "nccl:all_reduce")],
        [DDP, gloo(300, 600, 1_000), kernel("ncclDevKernel_AllReduce", 400, 5, stream=20)],
    ],
)
def test_control_hidden_and_late_gloo_collectives_are_normal(tmp_path: Path, events: list[Event]) -> None:
    report = report_of(tmp_path, *STEPS, *WORK, *events)
    assert advice_of(report, "gloo_beside_devices") is None
    assert reason_of(report, "gloo_beside_devices") is None


def test_sizes_that_are_not_recorded_are_the_reason(tmp_path: Path) -> None:
    report = report_of(tmp_path, *STEPS, *WORK, gloo(300, 600, None))
    assert reason_of(report, "gloo_beside_devices") == (
        "the sizes of collectives over gloo are not recorded (record_shapes=True)"
    )


def test_gloo_of_a_run_on_cpus_is_not_judged(tmp_path: Path) -> None:
    report = report_of(tmp_path, *STEPS, event("cpu_op", "aten::mm", 0, 300), gloo(300, 600, LARGE))
    assert advice_of(report, "gloo_beside_devices") is None
    assert reason_of(report, "gloo_beside_devices") == "no device work in the trace"
