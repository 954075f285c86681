"""The recordings that other tests judge were made while no clock jumped."""

import pytest
import torch
from torch import nn

from rankscope.agent.profiler.torch_profiler import TorchProfiler
from rankscope.measure.clock import read_wall_minus_host_ns
from rankscope.measure.units import NS_PER_S
from tests.unit.agent.profiler import recorded_window


@pytest.mark.parametrize("jump_ns", [-NS_PER_S, NS_PER_S])
def test_steps_amid_which_a_clock_jumped_are_recorded_again(monkeypatch: pytest.MonkeyPatch, jump_ns: int) -> None:
    jumps_ns = iter([jump_ns, 0])
    monkeypatch.setattr(
        recorded_window, "read_wall_minus_host_ns", lambda: read_wall_minus_host_ns() + next(jumps_ns, 0)
    )
    model = nn.Linear(8, 8)
    answer = recorded_window.record_and_reduce(lambda: model(torch.ones(2, 8)).sum().backward(), TorchProfiler.find())
    assert [found.operator_count != 0 for found in answer.breakdowns] == [True] * recorded_window.STEPS
