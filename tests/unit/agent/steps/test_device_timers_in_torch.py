"""Device times of a real training with TorchHooks, with the stand-in for CUDA."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from rankscope.agent.sample.torch_device import find_cuda
from tests.cuda_stand_in.training import BACKWARD_NS, BATCHES, FORWARD_NS, Training

GRAPHS = [torch.cuda.CUDAGraph, getattr(getattr(torch, "accelerator", None), "Graph", torch.cuda.CUDAGraph)]


@pytest.fixture
def training() -> Iterator[Training]:
    training = Training()
    training.hooks.install()
    yield training
    training.hooks.remove()
    assert training.guard.errors == {}


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
