"""Throughput from steps written out by hand: a step of 250 ms that waits 50 ms for its data, and one of 750 ms."""

import pytest

from rankscope.agent.steps.throughput import RANGE_STEPS_MAX, Spread, ThroughputMeter
from rankscope.measure.records import StepRecord

MS = 1_000_000


def step(
    number: int, duration_ms: int, data_ms: int, samples: int | None = None, tokens: int | None = None
) -> StepRecord:
    phases_ns = {"data": data_ms * MS, "other": (duration_ms - data_ms) * MS}
    return StepRecord(
        step=number, start_host_ns=0, duration_ns=duration_ms * MS, phases_ns=phases_ns, samples=samples, tokens=tokens
    )


def meter_of(*steps: StepRecord, warmup_steps: int = 0) -> ThroughputMeter:
    meter = ThroughputMeter(warmup_steps)
    for record in steps:
        meter.add(record)
    return meter


QUICK, SLOW = step(0, 250, 50, samples=8, tokens=512), step(1, 750, 150, samples=8, tokens=256)


def test_averages_are_over_time_and_extremes_are_those_of_a_step() -> None:
    found = meter_of(QUICK, SLOW).find()
    assert found is not None
    assert (found.steps, found.duration_s) == (2, 1.0)
    assert found.batch_cost_s == Spread(0.5, 0.75, 0.25)
    assert found.reader_cost_s == Spread(0.1, 0.15, 0.05)
    assert found.reader_ratio == 200 / 1000
    # Two steps, 16 samples and 768 tokens in one second; 1 / 0.25 and 1 / 0.75; 8 / 0.25 and 8 / 0.75; and so on.
    assert (found.steps_per_s.average, found.steps_per_s.largest) == pytest.approx((2.0, 4.0))
    assert found.steps_per_s.smallest == pytest.approx(4 / 3)
    assert found.samples_per_s is not None
    assert found.samples_per_s.average == pytest.approx(16.0)
    assert (found.samples_per_s.largest, found.samples_per_s.smallest) == pytest.approx((32.0, 32 / 3))
    assert found.tokens_per_s is not None
    assert (found.tokens_per_s.average, found.tokens_per_s.largest) == pytest.approx((768.0, 2048.0))


def test_speed_is_over_the_steps_whose_samples_are_known() -> None:
    found = meter_of(step(0, 250, 0, samples=8), step(1, 750, 0), step(2, 250, 0, samples=0)).find()
    assert found is not None
    assert found.samples_per_s is not None
    assert (found.samples_per_s.average, found.samples_per_s.smallest) == pytest.approx((8 / 0.5, 0.0))
    assert found.tokens_per_s is None


def test_first_steps_are_left_out() -> None:
    meter = meter_of(step(0, 9_000, 0), step(1, 250, 50), warmup_steps=1)
    found = meter.find()
    assert found is not None
    assert (found.steps, found.batch_cost_s.largest) == (1, 0.25)


@pytest.mark.parametrize("warmup_steps", [0, 2])
def test_without_counted_steps_there_is_no_throughput(warmup_steps: int) -> None:
    meter = meter_of(*(QUICK, SLOW) if warmup_steps else (), warmup_steps=warmup_steps)
    assert (meter.find(), meter.find(5)) == (None, None)


def test_range_covers_the_last_steps_and_find_has_no_effect() -> None:
    meter = meter_of(QUICK, SLOW)
    for _ in range(2):
        last = meter.find(1)
        assert last is not None
        assert (last.steps, last.batch_cost_s) == (1, Spread(0.75, 0.75, 0.75))
    assert meter.find(0) is None
    assert meter.find(-3) is None


def test_last_steps_are_bounded_and_the_run_is_not() -> None:
    meter = meter_of(*[step(number, 250, 50) for number in range(RANGE_STEPS_MAX + 5)])
    run, last = meter.find(), meter.find(RANGE_STEPS_MAX + 5)
    assert run is not None
    assert last is not None
    assert (run.steps, last.steps) == (RANGE_STEPS_MAX + 5, RANGE_STEPS_MAX)
