"""The FLOPs of the last minute of steps, and the peak of the device, beside figures written out by hand."""

import pytest

from rankscope.agent.sample.step_flops import StepFlopsReader, find_peak
from rankscope.agent.sample.torch_device import TorchDevice
from rankscope.agent.steps.model_flops import ModelFlops
from rankscope.measure.model_flops import FlopSum
from rankscope.measure.records import StepRecord

S = 1_000_000_000


def device(name: str | None) -> TorchDevice:
    return TorchDevice(index=0, uuid=None, pci_address=None, is_amd=False, name=name)


def only(number_type: str | None) -> dict[str, tuple[float, float]]:
    return {} if number_type is None else {number_type: (1.0, 1.0)}


def add_steps(flops: ModelFlops, count: int, duration_s: float) -> None:
    for _ in range(count):
        flops.add(StepRecord(step=0, start_host_ns=0, duration_ns=round(duration_s * S), phases_ns={}))


def test_utilization_is_flops_over_step_time_over_peak() -> None:
    flops = ModelFlops()
    flops.set_measured(model=150 * 10**12, executed=200 * 10**12, number_types=only("bf16"))
    reader = StepFlopsReader(flops, lambda: device("NVIDIA A100-SXM4-80GB"), 0)
    add_steps(flops, 4, 1.0)
    found = reader.read()
    # 150 and 200 TFLOP/s of 312.
    assert (found.mfu, found.hfu) == pytest.approx((150 / 312, 200 / 312))
    assert (found.source, found.peak_type, found.absent) == ("measured", "bf16", {})
    assert found.model == FlopSum(600e12, 4, 4 * S)


def test_each_type_of_number_takes_the_time_at_its_own_peak() -> None:
    flops = ModelFlops()
    # Of the model's 150 TFLOP 120 in bf16 and 30 in fp32; of the 200 executed 160, 39.9 and 0.1 in tf32.
    types = {"fp32": (0.2, 0.1995), "bf16": (0.8, 0.8), "tf32": (0.0, 0.0005)}
    flops.set_measured(model=150 * 10**12, executed=200 * 10**12, number_types=types, is_upper_bound=True)
    reader = StepFlopsReader(flops, lambda: device("NVIDIA A100-SXM4-80GB"), 0)
    add_steps(flops, 2, 4.0)
    found = reader.read()
    # At 312, 19.5 and 156 TFLOP/s, in steps of 4 s.
    assert found.mfu == pytest.approx((120 / 312 + 30 / 19.5) / 4)
    assert found.hfu == pytest.approx((160 / 312 + 39.9 / 19.5 + 0.1 / 156) / 4)
    assert (found.peak_type, found.executed_is_upper_bound) == ("bf16, fp32", True)
    flops.clear_measured("the batch has another shape")
    assert not reader.read().executed_is_upper_bound


def test_rate_is_of_the_last_minute_of_steps() -> None:
    flops = ModelFlops()
    flops.set_declared(per_step=100)
    reader = StepFlopsReader(flops, lambda: None, 1e-10)
    add_steps(flops, 10, 10.0)
    assert reader.read().model == FlopSum(1_000.0, 10, 100 * S)
    add_steps(flops, 5, 10.0)
    assert reader.read().model == FlopSum(1_500.0, 15, 150 * S)  # since the last report there are 50 s
    add_steps(flops, 20, 1.0)
    found = reader.read()
    assert found.model == FlopSum(2_500.0, 25, 70 * S)  # since the report before, at 100 s
    assert found.mfu == pytest.approx(2_500 / 70 / 100)
    assert reader.read() == found


def test_memory_of_reports_is_bounded() -> None:
    flops = ModelFlops()
    flops.set_declared(per_step=1)
    reader = StepFlopsReader(flops, lambda: None, 1)
    for _ in range(3_000):
        add_steps(flops, 1, 0.001)
        reader.read()
    assert reader.read().model == FlopSum(1_023.0, 1_023, 1_023 * S // 1_000)


def test_what_is_not_known_is_absent_with_a_reason() -> None:
    flops = ModelFlops()
    found = StepFlopsReader(flops, lambda: None, 0).read()
    assert (found.model, found.executed, found.mfu, found.hfu) == (None, None, None, None)
    assert set(found.absent) == {"model", "executed", "peak"}
    flops.set_measured(5, 6)
    reader = StepFlopsReader(flops, lambda: None, 1)
    add_steps(flops, 1, 1.0)
    flops.clear_measured("the batch has another shape")
    found = reader.read()
    assert (found.model, found.executed) == (None, None)
    assert found.absent["executed"] == "the batch has another shape"


@pytest.mark.parametrize(
    ("name", "number_type", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", None, (989.4e12, "bf16")),
        ("NVIDIA H100 80GB HBM3", "tf32", (494.7e12, "tf32")),
        ("Tesla V100-SXM2-16GB", None, (125e12, "fp16")),
    ],
)
def test_peak_is_that_of_the_maker(name: str, number_type: str | None, expected: tuple[float, str]) -> None:
    peak, said = expected
    found = find_peak(device(name), only(number_type), 0)
    assert (found.flops_per_s, found.executed_flops_per_s) == pytest.approx((peak, peak))
    assert found.number_types == said


@pytest.mark.parametrize(
    ("name", "number_type", "said"),
    [
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None, "the peak of NVIDIA A100-SXM4-40GB MIG 1g.5gb is not known"),
        (None, None, "the peak of this GPU is not known"),
        ("Tesla V100-SXM2-16GB", "bf16", "the peak of Tesla V100-SXM2-16GB for bf16 is not known"),
        ("NVIDIA GB200", "fp8", "the peak of NVIDIA GB200 for fp8 is not known"),
        (
            "NVIDIA A100-SXM4-80GB",
            "c10::complex<float>",
            "the peak of NVIDIA A100-SXM4-80GB for c10::complex<float> is not known",
        ),
    ],
)
def test_peak_that_is_not_known_has_a_reason(name: str | None, number_type: str | None, said: str) -> None:
    found = find_peak(device(name), only(number_type), 0)
    assert (found.flops_per_s, found.absent) == (None, f"{said}; peak_tflops sets it")
