"""Tests of DeviceTimers for any device: run on the stand-in by tests/unit/agent/steps/test_device_timers.py, on a
real GPU by tests/gpu/test_device_timers.py.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import pytest

from rankscope.agent.guard import Guard
from rankscope.agent.steps.device_timers import DeviceTimers
from rankscope.agent.steps.graph_captures import GraphCaptures
from rankscope.agent.steps.step_timer import StepTimer
from rankscope.agent.steps.timing_plan import TimingPlan
from rankscope.measure.records import StepRecord
from rankscope.measure.units import NS_PER_MS

FIRST_ANNOUNCED = 2
"""The begins of steps 0 and 1 are known only later: the cycle of optimizers is not known yet."""


class Gpu(Protocol):
    """A device and its host, real or not. `slack_ns` is the tolerance of a time."""

    cuda: Any
    slack_ns: int

    def read_clock_ns(self) -> int:
        """The host's clock."""
        ...

    def work(self, duration_ns: int) -> None:
        """Keep the device busy for so long; returns at once."""
        ...

    def finish(self) -> None:
        """Wait until the device is idle."""
        ...

    def other_stream(self) -> AbstractContextManager[Any]:
        """Within it another stream is the current one."""
        ...


class FixedPlan(TimingPlan):
    """A plan with a fixed interval, at any cost."""

    def __init__(self, interval_steps: int, warmup_steps: int = FIRST_ANNOUNCED) -> None:
        super().__init__(warmup_steps=warmup_steps, overhead_ratio_max=1.0)
        self.interval_steps = interval_steps

    def learn_cost(self, cost_ns: int) -> None:
        """Nothing is learned."""


class Loop:
    """A training loop on a device. Its steps are timed by `timers` as the session has it."""

    def __init__(self, gpu: Gpu, plan: TimingPlan | None = None, *, interval_steps: int = 1, **options: int) -> None:
        self.gpu = gpu
        self.records: list[StepRecord] = []
        self.guard = Guard(3)
        self.plan = plan or FixedPlan(interval_steps)
        self.captures = GraphCaptures(gpu.cuda.is_current_stream_capturing)
        self.timers = DeviceTimers(
            gpu.cuda,
            self.plan,
            self.guard,
            self.records.append,
            captures=self.captures,
            has_peers=lambda: False,
            read_clock_ns=gpu.read_clock_ns,
            **options,
        )
        self.timer = StepTimer(
            self.timers.on_record,
            self.timers.on_boundary,
            self.timers.on_pause,
            on_charge=self.timers.on_charge,
            read_clock_ns=self.timers.read_event_ns,
        )

    def now_ns(self) -> int:
        return self.timers.read_event_ns()

    def step(
        self, forward_ms: int = 0, backward_ms: int = 0, optimizer_ms: int = 0, **within: Callable[[], Any]
    ) -> None:
        """One step; its work is enqueued in the phases, and `forward=` is called within that phase."""
        timer, gpu = self.timer, self.gpu
        timer.data_begin(self.now_ns())
        timer.data_end(self.now_ns())
        gpu.work(forward_ms * NS_PER_MS)
        within.get("forward", lambda: None)()
        timer.backward_begin(self.now_ns())
        gpu.work(backward_ms * NS_PER_MS)
        timer.backward_end(self.now_ns())
        timer.optimizer_begin(self.now_ns(), 1)
        gpu.work(optimizer_ms * NS_PER_MS)
        timer.optimizer_end(self.now_ns())

    def warm_up(self) -> "Loop":
        """The steps before the first that can be timed, on a device that is idle afterwards."""
        for _ in range(FIRST_ANNOUNCED):
            self.step()
        self.gpu.finish()
        return self

    def end(self) -> dict[int, StepRecord]:
        """Let the device finish, and everything be handed on."""
        self.gpu.finish()
        self.timer.finish()
        self.timers.close()
        assert self.guard.errors == {}
        return {record.step: record for record in self.records}

    @contextmanager
    def capturing(self) -> Iterator[Any]:
        """Capture a graph as the hooks let the timers see it."""
        graph = self.gpu.cuda.CUDAGraph()
        begin = self.captures.wrap_begin(type(graph).capture_begin)
        end = self.captures.wrap_end(type(graph).capture_end)
        begin(graph)
        yield graph
        end(graph)


def device_phases(record: StepRecord) -> dict[str, int]:
    assert record.device_phases_ns is not None
    return dict(record.device_phases_ns)


class DeviceTimersSuite:
    """To be inherited by a class of tests, where there is a fixture `gpu`."""

    def test_each_phase_is_as_long_as_its_work_took_the_device(self, gpu: Gpu) -> None:
        loop = Loop(gpu).warm_up()
        loop.step(forward_ms=30, backward_ms=50, optimizer_ms=20)
        loop.step()
        phases_ns = device_phases(loop.end()[FIRST_ANNOUNCED])
        # The host has enqueued all of it in no time: on its clock every phase is short.
        expected_ms = {"data": 0, "forward": 30, "backward": 50, "optimizer": 20, "other": 0}
        assert phases_ns == pytest.approx({k: v * NS_PER_MS for k, v in expected_ms.items()}, abs=gpu.slack_ns)

    def test_device_step_is_as_long_as_a_synchronizing_host_measures(self, gpu: Gpu) -> None:
        loop = Loop(gpu).warm_up()
        begin_ns = gpu.read_clock_ns()
        loop.step(forward_ms=40, optimizer_ms=40, forward=gpu.finish)
        gpu.finish()
        duration_ns = gpu.read_clock_ns() - begin_ns
        loop.step()
        assert sum(device_phases(loop.end()[FIRST_ANNOUNCED]).values()) == pytest.approx(
            duration_ns, abs=2 * gpu.slack_ns
        )

    def test_record_waits_for_device_times_but_training_does_not(self, gpu: Gpu) -> None:
        loop = Loop(gpu).warm_up()
        begin_ns = gpu.read_clock_ns()
        loop.step(backward_ms=400)
        loop.step()
        assert gpu.read_clock_ns() - begin_ns < 400 * NS_PER_MS
        assert [record.step for record in loop.records] == [0, 1]
        gpu.finish()
        loop.step()
        assert [record.step for record in loop.records] == [0, 1, 2, 3]

    def test_captured_step_has_no_device_times(self, gpu: Gpu) -> None:
        loop = Loop(gpu).warm_up()

        def capture() -> None:
            with gpu.other_stream(), loop.capturing():
                gpu.work(NS_PER_MS)
                loop.timer.user.begin_phase(loop.now_ns(), "captured")
                loop.timer.user.end_phase(loop.now_ns())

        loop.step(forward=capture)
        loop.step()
        records = loop.end()
        assert loop.timers.skipped == {"capture": 1}
        assert [records[step].device_phases_ns is None for step in (2, 3)] == [True, False]

    def test_held_record_is_not_queried_during_a_capture(self, gpu: Gpu) -> None:
        loop = Loop(gpu, interval_steps=4).warm_up()
        loop.step(forward_ms=60)
        loop.step()
        with gpu.other_stream(), loop.capturing():
            loop.timers.on_record(StepRecord(step=90, start_host_ns=0, duration_ns=0, phases_ns={}))
            assert [record.step for record in loop.records] == [0, 1]
        loop.end()
        assert [record.step for record in loop.records] == [0, 1, 2, 90, 3]
        assert loop.records[2].device_phases_ns is not None

    def test_step_that_changes_its_stream_goes_without_device_times(self, gpu: Gpu) -> None:
        loop = Loop(gpu).warm_up()

        def train_on_the_side() -> None:
            with gpu.other_stream():
                loop.timer.user.begin_phase(loop.now_ns(), "beside")
                loop.timer.user.end_phase(loop.now_ns())

        loop.step(forward=train_on_the_side)
        loop.step()
        assert loop.end()[FIRST_ANNOUNCED].device_phases_ns is None
        assert loop.timers.skipped == {"stream_changed": 1}

    def test_only_the_steps_that_are_due_are_timed(self, gpu: Gpu) -> None:
        loop = Loop(gpu, interval_steps=4).warm_up()
        for _ in range(9):
            loop.step()
            gpu.finish()
        timed = [step for step, record in loop.end().items() if record.device_phases_ns is not None]
        assert timed == [2 + since for since in (0, 6, 8)]
