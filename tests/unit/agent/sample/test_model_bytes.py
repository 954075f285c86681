"""What a model takes of a device, of real tensors on the CPU, which has the number -1."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from rankscope.agent.sample.model_bytes import ModelBytes, find_model_bytes
from rankscope.measure.errors import UnavailableError

CPU = -1
BYTES = 4 * (16 * 32 + 32)
"""Of a linear layer of 16 by 32 with its bias, in fp32."""
ADAM_STEPS = 2 * 4
"""Adam counts its steps in a number of 4 bytes for each parameter."""


@pytest.fixture
def layer() -> Iterator[nn.Linear]:
    yield nn.Linear(16, 32)
    gc.collect()


def train(layer: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    layer(torch.ones(4, 16)).sum().backward()
    optimizer.step()


def test_each_kind_has_the_bytes_of_its_tensors(layer: nn.Linear) -> None:
    optimizer = torch.optim.Adam(layer.parameters())
    objects = [layer.weight, layer.bias, optimizer, torch.ones(1000), "text"]
    assert find_model_bytes(CPU, objects) == ModelBytes(BYTES, 0, 0)
    train(layer, optimizer)
    assert find_model_bytes(CPU, objects) == ModelBytes(BYTES, BYTES, 2 * BYTES + ADAM_STEPS)
    optimizer.zero_grad()
    assert find_model_bytes(CPU, objects) == ModelBytes(BYTES, 0, 2 * BYTES + ADAM_STEPS)


def test_they_are_found_among_all_objects_of_the_process(layer: nn.Linear) -> None:
    optimizer = torch.optim.Adam(layer.parameters())
    before = find_model_bytes(CPU) or ModelBytes(0, 0, 0)
    train(layer, optimizer)
    after = find_model_bytes(CPU)
    assert after is not None
    assert tuple(new - old for new, old in zip(after, before, strict=True)) == (0, BYTES, 2 * BYTES + ADAM_STEPS)


def test_master_copies_of_an_optimizer_are_parameters(layer: nn.Linear) -> None:
    master = layer.weight.detach().clone().requires_grad_()
    optimizer = torch.optim.SGD([master])
    assert find_model_bytes(CPU, [layer.weight, optimizer]) == ModelBytes(2 * 4 * 16 * 32, 0, 0)


def test_storage_that_two_parameters_share_counts_once(layer: nn.Linear) -> None:
    tied = nn.Parameter(layer.weight.detach())
    assert find_model_bytes(CPU, [layer.weight, tied]) == ModelBytes(4 * 16 * 32, 0, 0)


def test_optimizer_whose_state_is_no_dict_by_parameter_has_none(layer: nn.Linear) -> None:
    optimizer = torch.optim.SGD([layer.weight])
    state: dict[Any, Any] = optimizer.state
    state["of all"] = 3
    assert find_model_bytes(CPU, [optimizer]) == ModelBytes(4 * 16 * 32, 0, 0)


def test_parameter_of_a_lazy_module_has_no_bytes_yet(layer: nn.Linear) -> None:
    lazy = nn.LazyLinear(4)
    assert find_model_bytes(CPU, [lazy.weight, layer.weight]) == ModelBytes(4 * 16 * 32, 0, 0)


def test_a_process_of_very_many_objects_is_not_searched(layer: nn.Linear) -> None:
    assert find_model_bytes(CPU, [layer.weight, layer.bias], objects_max=2) == ModelBytes(BYTES, 0, 0)
    with pytest.raises(UnavailableError, match="the process has 2 objects; at most 1 are searched"):
        find_model_bytes(CPU, [layer.weight, layer.bias], objects_max=1)


def test_device_without_a_model_has_no_bytes(layer: nn.Linear) -> None:
    assert find_model_bytes(0, [layer.weight]) is None
    assert find_model_bytes(CPU, [torch.ones(3), object()]) is None
