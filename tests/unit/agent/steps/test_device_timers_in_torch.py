"""Device times of a real training with TorchHooks, with the stand-in for CUDA."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from rankscope.agent.guard import Guard
from rankscope.agent.steps.device_timers import DeviceTimers, find_cuda
from rankscope.agent.steps.graph_captures import GraphCaptures
from rankscope.agent.steps.step_timer import StepTimer
from rankscope.agent.steps.torch_hooks import TorchHooks
from rankscope.measure.records import StepRecord
from tests.cuda_stand_in import StandInCuda
from tests.cuda_stand_in.suite import FixedPlan

BATCHES = 6
FORWARD_NS, BACKWARD_NS = 3_000_000, 5_000_000
GRAPHS = [torch.cuda.CUDAGraph, getattr(getattr(torch, "accelerator", None), "Graph", torch.cuda.CUDAGraph)]


class Training:
    """A model of one layer whose forward and backward keep the device busy, with hooks as the session installs them."""

    def __init__(self) -> None:
        self.cuda = StandInCuda()
        self.records: list[StepRecord] = []
        self.guard = Guard(1)
        self.captures = GraphCaptures(self.cuda.is_current_stream_capturing)
        self.timers = DeviceTimers(
            self.cuda,
            FixedPlan(1),
            self.guard,
            self.records.append,
            captures=self.captures,
            read_clock_ns=self.cuda.read_clock_ns,
        )
        self.timer = StepTimer(
            self.timers.on_record, self.timers.on_boundary, self.timers.on_pause,
            on_charge=self.timers.on_charge, read_clock_ns=self.timers.read_event_ns,
        )  # fmt: skip
        self.hooks = TorchHooks(
            self.timer, self.guard, lambda _begins: None, device_timers=self.timers, captures=self.captures
        )
        self.model = nn.Linear(4, 1)
        self.model.weight.register_hook(lambda _gradient: self.cuda.work(BACKWARD_NS))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.batches = DataLoader(TensorDataset(torch.ones(2 * BATCHES, 4)), batch_size=2)

    def step(self, batch: Tensor) -> None:
        self.optimizer.zero_grad()
        self.cuda.work(FORWARD_NS)
        self.model(batch).square().mean().backward()
        self.optimizer.step()

    def train(self, step: Callable[[Tensor], None] | None = None) -> list[StepRecord]:
        for (batch,) in self.batches:
            (step or self.step)(batch)
        self.cuda.now_ns = max(self.cuda.now_ns, self.cuda.stream.busy_until_ns)
        self.hooks.catch_up()
        self.timer.finish()
        self.timers.close()
        assert self.guard.errors == {}
        return self.records


@pytest.fixture
def training() -> Iterator[Training]:
    training = Training()
    training.hooks.install()
    yield training
    training.hooks.remove()


def test_forward_and_backward_are_separate_on_the_device(training: Training) -> None:
    records = training.train()
    assert [record.step for record in records] == list(range(BATCHES))
    for record in records[2:]:
        assert record.device_phases_ns is not None
        assert record.device_phases_ns["backward"] == pytest.approx(BACKWARD_NS, abs=1_000)
        assert record.phases_ns["backward"] < 1_000  # by the host's clock: ticks of asking what time it is
    # The host is far ahead: the device is late with the step before when the next begins, and never waits in between.
    assert records[-1].device_phases_ns == pytest.approx(
        {"data": 0, "forward": FORWARD_NS, "backward": BACKWARD_NS, "optimizer": 0, "other": 0}, abs=1_000
    )


def test_compiled_step_is_timed_and_the_compiler_does_not_warn(training: Training) -> None:
    compiled = torch.compile(lambda batch: training.model(batch).square().mean(), backend="eager")

    def step(batch: Tensor) -> None:
        training.cuda.work(FORWARD_NS)
        compiled(batch).backward()
        training.optimizer.step()

    torch._dynamo.reset()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        records = training.train(step)
    assert [str(warning.message) for warning in caught if "Dynamo" in str(warning.message)] == []
    assert all(record.device_phases_ns is not None for record in records[2:])


def test_fully_compiled_step_is_timed(training: Training) -> None:
    compiled = torch.compile(training.step, backend="eager")
    torch._dynamo.reset()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        records = training.train(compiled)
    assert [str(warning.message) for warning in caught if "Dynamo" in str(warning.message)] == []
    assert all(record.device_phases_ns is not None for record in records[2:])


@pytest.mark.parametrize("graph", GRAPHS)
def test_captures_are_counted_only_while_hooks_are_installed(graph: Any) -> None:
    before = (graph.capture_begin, graph.capture_end)
    training = Training()
    training.hooks.install()
    assert graph.capture_begin is not before[0]
    assert graph.capture_end is not before[1]
    training.hooks.remove()
    assert (graph.capture_begin, graph.capture_end) == before


def test_only_a_torch_that_is_built_for_gpus_has_timers() -> None:
    is_built_for_gpus = torch.version.cuda is not None or torch.version.hip is not None
    assert find_cuda() is (torch.cuda if is_built_for_gpus else None)
