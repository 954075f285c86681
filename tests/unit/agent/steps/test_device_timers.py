"""Device times on the strict stand-in for torch.cuda: one tick of its clock is one nanosecond."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rankscope.agent.guard import Guard
from rankscope.agent.steps.device_timers import DeviceTimers
from rankscope.agent.steps.timing_plan import INTERVAL_STEPS_MAX, TimingPlan
from rankscope.measure.records import StepRecord
from rankscope.measure.units import NS_PER_MS
from tests.cuda_stand_in import StandInCuda, Stream
from tests.cuda_stand_in.suite import FIRST_ANNOUNCED, DeviceTimersSuite, FixedPlan, Loop, device_phases


class StandInGpu:
    """The stand-in as a device of the suite."""

    slack_ns = 100
    """A step reads the clock some dozen times, a tick each."""

    def __init__(self, cuda: StandInCuda | None = None) -> None:
        self.cuda = cuda or StandInCuda()
        self.read_clock_ns = self.cuda.read_clock_ns
        self.work = self.cuda.work

    def finish(self) -> None:
        self.cuda.now_ns = max(self.cuda.now_ns, self.cuda.stream.busy_until_ns)

    @contextmanager
    def other_stream(self) -> Iterator[None]:
        before, self.cuda.stream = self.cuda.stream, Stream()
        try:
            yield
        finally:
            self.cuda.stream = before


@pytest.fixture
def gpu() -> StandInGpu:
    return StandInGpu()


class TestOnTheStandIn(DeviceTimersSuite):
    pass


def steps_of(loop: Loop) -> list[int]:
    return [record.step for record in loop.records]


def test_device_gap_belongs_to_the_phase_that_kept_it_idle(gpu: StandInGpu) -> None:
    def think() -> None:
        gpu.cuda.now_ns += 70_000

    loop = Loop(gpu).warm_up()
    loop.step(forward=think)
    loop.step()
    assert device_phases(loop.end()[FIRST_ANNOUNCED])["forward"] == pytest.approx(70_000, abs=gpu.slack_ns)


def test_events_are_used_again(gpu: StandInGpu) -> None:
    loop = Loop(gpu).warm_up()
    for _ in range(20):
        loop.step(forward_ms=1)
        gpu.finish()
    loop.end()
    # A step has an event where it begins, one after its boundary, five within it and one where the next begins; the
    # last step has no next one.
    assert gpu.cuda.recorded == 20 * 8 - 1
    assert gpu.cuda.made <= 2 * 8


def test_step_that_exhausts_the_event_pool_has_no_device_times(gpu: StandInGpu) -> None:
    loop = Loop(gpu, events_max=4).warm_up()
    loop.step()
    loop.step()
    assert loop.end()[FIRST_ANNOUNCED].device_phases_ns is None
    assert loop.timers.skipped["pool_empty"] >= 1
    assert gpu.cuda.made == 4


def test_device_far_behind_loses_device_times_but_no_records(gpu: StandInGpu) -> None:
    loop = Loop(gpu, interval_steps=16, records_waiting_max=3).warm_up()
    loop.step(forward_ms=10_000)
    for _ in range(3):
        loop.step()
    assert steps_of(loop) == [0, 1]
    loop.step()
    assert steps_of(loop) == [0, 1, 2, 3, 4, 5]
    assert loop.records[2].device_phases_ns is None
    assert loop.timers.skipped == {"not_ready": 1}


def test_record_of_a_long_step_is_released_within_the_next(gpu: StandInGpu) -> None:
    loop = Loop(gpu, interval_steps=16).warm_up()
    loop.step(optimizer_ms=100)
    loop.timer.data_begin(loop.now_ns())
    assert steps_of(loop) == [0, 1]
    gpu.cuda.now_ns += 100 * NS_PER_MS
    loop.timer.data_end(loop.now_ns())
    assert steps_of(loop) == [0, 1, 2]


def test_no_record_is_lost_at_the_end_while_the_device_works(gpu: StandInGpu) -> None:
    loop = Loop(gpu, interval_steps=16).warm_up()
    loop.step(forward_ms=100)
    loop.timer.finish()
    loop.timers.close()
    assert steps_of(loop) == [0, 1, 2]
    assert loop.timers.skipped == {"not_ready": 1}


def test_close_on_another_thread_releases_records_without_calls(gpu: StandInGpu) -> None:
    loop = Loop(gpu, interval_steps=16).warm_up()
    loop.step(forward_ms=100)
    loop.step()
    ending = threading.Thread(target=loop.timers.close)
    ending.start()
    ending.join()
    assert steps_of(loop) == [0, 1, 2]
    assert loop.guard.errors == {}


def test_event_on_another_thread_makes_no_call(gpu: StandInGpu) -> None:
    loop = Loop(gpu).warm_up()

    def note_elsewhere() -> None:
        other = threading.Thread(target=loop.now_ns)
        other.start()
        other.join()

    loop.step(forward=note_elsewhere)
    loop.step()
    loop.end()
    assert loop.timers.skipped == {"other_thread": 1}


def test_no_other_call_before_cuda_is_initialized() -> None:
    gpu = StandInGpu(StandInCuda(initialized=False))
    loop = Loop(gpu).warm_up()
    loop.step()
    assert len(loop.end()) == 3
    assert (gpu.cuda.made, loop.timers.skipped) == (0, {})


def test_first_cuda_error_is_counted_and_ends_all_calls(gpu: StandInGpu, capsys: pytest.CaptureFixture[str]) -> None:
    loop = Loop(gpu).warm_up()
    loop.step(forward_ms=50)
    gpu.cuda.failure = RuntimeError("CUDA error: unspecified launch failure")
    for _ in range(3):
        loop.step()
    loop.timer.finish()
    assert steps_of(loop) == [0, 1, 2, 3, 4, 5]
    assert loop.guard.errors == {"device_times": 1}
    assert "training is not affected" in capsys.readouterr().err


def test_evaluation_discards_the_timing_of_its_step(gpu: StandInGpu) -> None:
    loop = Loop(gpu).warm_up()
    loop.step()
    loop.timer.data_begin(loop.now_ns(), training=False)
    loop.timer.data_end(loop.now_ns())
    assert [record.step for record in loop.end().values() if record.device_phases_ns is not None] == [2]
    assert loop.timers.skipped == {}


def test_failed_begin_of_a_capture_does_not_stop_the_timers(gpu: StandInGpu) -> None:
    loop = Loop(gpu).warm_up()

    def refuse(_graph: object) -> None:
        raise RuntimeError("capture must start on a non-default stream")

    with pytest.raises(RuntimeError, match="non-default"):
        loop.captures.wrap_begin(refuse)(object())
    loop.step()
    loop.step()
    assert loop.end()[FIRST_ANNOUNCED].device_phases_ns is not None


def test_cost_of_events_makes_timed_steps_rarer() -> None:
    gpu = StandInGpu(StandInCuda(record_ns=2_000))
    plan = TimingPlan(warmup_steps=FIRST_ANNOUNCED, overhead_ratio_max=1.0)
    plan.interval_steps = 1
    loop = Loop(gpu, plan).warm_up()
    plan.learn_step(10_000)
    loop.step()
    loop.step()
    loop.end()
    assert loop.timers.spent_ns >= 8 * 2_000  # as many events as a step has
    assert plan.interval_steps == 2  # all of 10 us may be spent: in one step too little for 16 us, in two enough


@pytest.mark.parametrize(
    ("step_ms", "cost_us", "interval_steps"),
    [
        (10, 160, 16),  # 10 us are a thousandth of 10 ms: in the first interval, 16 steps, 160 us may be spent
        (10, 161, 32),
        (10, 63, 8),  # in 16 steps there is room for 2.54 times as much
        (10, 65, 16),  # here for less than 2.5 times: the interval stays as it is
        (1000, 400, 1),
        (0.001, 40, INTERVAL_STEPS_MAX),
    ],
)
def test_interval_is_the_power_of_two_that_meets_the_budget(step_ms: float, cost_us: int, interval_steps: int) -> None:
    plan = TimingPlan(warmup_steps=0, overhead_ratio_max=0.001)
    plan.learn_step(round(step_ms * NS_PER_MS))
    plan.learn_cost(cost_us * 1_000)
    assert plan.interval_steps == interval_steps


def test_ranks_share_the_timed_steps_of_the_rarer_one() -> None:
    plans = [TimingPlan(warmup_steps=4, overhead_ratio_max=0.001) for _ in range(2)]
    for plan, step_ns in zip(plans, (4 * NS_PER_MS, 11 * NS_PER_MS), strict=True):
        plan.learn_cost(30_000)
        plan.learn_step(step_ns)
    rare, often = ({step for step in range(200) if plan.is_due(step)} for plan in plans)
    assert rare < often


def test_two_events_at_one_time_are_one_mark(gpu: StandInGpu) -> None:
    timers = DeviceTimers(
        gpu.cuda, FixedPlan(1, warmup_steps=0), Guard(1), lambda _record: None, read_clock_ns=lambda: 5
    )
    timers.on_boundary(0)
    assert [timers.read_event_ns() for _ in range(3)] == [5, 5, 5]
    assert gpu.cuda.recorded == 2  # where the step begins, and this one


def test_untimed_record_is_passed_on_at_once(gpu: StandInGpu) -> None:
    loop = Loop(gpu)
    record = StepRecord(step=7, start_host_ns=0, duration_ns=0, phases_ns={})
    loop.timers.on_record(record)
    assert loop.records == [record]
