"""Device times on a real, otherwise idle GPU: the suite of the stand-in, and tests that need a GPU."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rankscope.agent.guard import Guard
from rankscope.agent.steps.device_timers import DeviceTimers
from rankscope.agent.steps.graph_captures import GraphCaptures
from rankscope.agent.steps.step_timer import StepTimer
from rankscope.agent.steps.torch_hooks import TorchHooks
from rankscope.measure.records import StepRecord
from rankscope.measure.units import NS_PER_MS
from tests.cuda_stand_in.suite import FIRST_ANNOUNCED, DeviceTimersSuite, FixedPlan

pytestmark = pytest.mark.gpu

CALIBRATION_CYCLES = 200_000_000
STEPS = 12


class RealGpu:
    """The GPU of this machine as a device of the suite; its work spins for a number of cycles measured beforehand."""

    slack_ns = 5 * NS_PER_MS
    """Clocks change under load, and the first graph or stream takes longer."""

    def __init__(self) -> None:
        self.cuda = torch.cuda
        torch.cuda._sleep(CALIBRATION_CYCLES)  # wakes the clocks up
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.cuda._sleep(CALIBRATION_CYCLES)
        end.record()
        torch.cuda.synchronize()
        self._cycles_per_ns = CALIBRATION_CYCLES / (begin.elapsed_time(end) * NS_PER_MS)

    def read_clock_ns(self) -> int:
        return time.monotonic_ns()

    def work(self, duration_ns: int) -> None:
        if duration_ns:
            torch.cuda._sleep(round(duration_ns * self._cycles_per_ns))

    def finish(self) -> None:
        torch.cuda.synchronize()

    @contextmanager
    def other_stream(self) -> Iterator[Any]:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            yield side
        torch.cuda.current_stream().wait_stream(side)


@pytest.fixture(scope="module")
def gpu() -> RealGpu:
    return RealGpu()


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
class TestOnTheGpu(DeviceTimersSuite):
    pass


class Watched:
    """The hooks and timers as the session combines them, on the real CUDA."""

    def __init__(self) -> None:
        self.records: list[StepRecord] = []
        self.guard = Guard(1)
        self.captures = GraphCaptures(torch.cuda.is_current_stream_capturing)
        self.timers = DeviceTimers(torch.cuda, FixedPlan(1), self.guard, self.records.append, captures=self.captures)
        self.timer = StepTimer(
            self.timers.on_record, self.timers.on_boundary, self.timers.on_pause,
            on_charge=self.timers.on_charge, read_clock_ns=self.timers.read_event_ns,
        )  # fmt: skip
        self.hooks = TorchHooks(
            self.timer, self.guard, lambda _begins: None, device_timers=self.timers, captures=self.captures
        )

    def end(self) -> list[StepRecord]:
        torch.cuda.synchronize()
        self.hooks.catch_up()
        self.timer.finish()
        self.timers.close()
        assert self.guard.errors == {}
        return self.records


@pytest.fixture
def watched() -> Iterator[Watched]:
    watched = Watched()
    watched.hooks.install()
    yield watched
    watched.hooks.remove()


class Training:
    """A few layers on the GPU, always the same; `begin_again` puts the weights back."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model: nn.Module = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4))).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.batch = torch.randn(256, 512, device="cuda")

    def loss(self) -> Tensor:
        self.optimizer.zero_grad(set_to_none=False)
        loss: Tensor = self.model(self.batch).square().mean()
        return loss

    def step(self) -> None:
        self.loss().backward()
        self.optimizer.step()

    def weights(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self.model.parameters()]


def timed(records: list[StepRecord]) -> list[StepRecord]:
    return [record for record in records if record.device_phases_ns is not None]


def train_twice(run: Any, watched: Watched) -> tuple[list[Tensor], list[Tensor]]:
    """Return the weights after the same training without and with the hooks."""
    watched.hooks.remove()
    without = run(Training())
    again = Watched()
    again.hooks.install()
    try:
        with_hooks = run(Training())
        watched.records.extend(again.end())
    finally:
        again.hooks.remove()
    return without, with_hooks


def test_device_step_is_the_wall_time_of_a_busy_device(watched: Watched) -> None:
    training = Training()
    layers = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(8))).cuda()
    training.model, training.batch = layers, torch.randn(4096, 4096, device="cuda")
    training.optimizer = torch.optim.SGD(layers.parameters(), lr=1e-4)
    for _ in range(STEPS):
        training.step()
    torch.cuda.synchronize()
    begin_ns, first = time.monotonic_ns(), watched.timer.recorder.next_step
    for _ in range(STEPS):
        training.step()
    torch.cuda.synchronize()
    wall_ns = time.monotonic_ns() - begin_ns
    chosen = [sum(r.device_phases_ns.values()) for r in timed(watched.end()) if r.step >= first and r.device_phases_ns]
    assert len(chosen) >= STEPS - 2
    # The mean, since the ends of the timed steps need not be those of the wall clock.
    assert sum(chosen) / len(chosen) == pytest.approx(wall_ns / STEPS, rel=0.1)


def test_captured_and_replayed_step_gives_the_same_weights(watched: Watched) -> None:
    def run(training: Training) -> list[Tensor]:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                training.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            training.step()
        for _ in range(STEPS):
            graph.replay()
        for _ in range(FIRST_ANNOUNCED + 2):
            training.step()
        torch.cuda.synchronize()
        return training.weights()

    without, with_hooks = train_twice(run, watched)
    assert all(torch.equal(*pair) for pair in zip(without, with_hooks, strict=True))
    assert timed(watched.records)


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match")  # torch says so without us, too
def test_graphed_callables_are_captured_as_without_us(watched: Watched) -> None:
    def run(training: Training) -> list[Tensor]:
        sample = torch.randn_like(training.batch)
        torch.cuda.make_graphed_callables(training.model, (sample,))  # it changes the module itself
        for _ in range(STEPS):
            training.step()
        torch.cuda.synchronize()
        return training.weights()

    without, with_hooks = train_twice(run, watched)
    assert all(torch.equal(*pair) for pair in zip(without, with_hooks, strict=True))
    assert timed(watched.records)


@pytest.mark.filterwarnings("ignore:::torch")  # of torch's own modules, which are imported here first
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_training_is_timed_and_gives_the_same_weights(watched: Watched, mode: str) -> None:
    def run(training: Training) -> list[Tensor]:
        torch._dynamo.reset()
        model = torch.compile(training.model, mode=mode)
        for _ in range(STEPS):
            torch.compiler.cudagraph_mark_step_begin()
            # Otherwise the gradients would be tensors of the graph, which its next replay overwrites.
            training.optimizer.zero_grad(set_to_none=True)
            model(training.batch).square().mean().backward()
            training.optimizer.step()
        torch.cuda.synchronize()
        return training.weights()

    without, with_hooks = train_twice(run, watched)
    for pair in zip(without, with_hooks, strict=True):
        torch.testing.assert_close(*pair)
    assert timed(watched.records)
