"""Sizes of convolutions by the gradient of their output; what has no shapes has none."""

from dataclasses import replace

import torch
from torch import nn

from rankscope.agent.profiler.host_operators import HostOperators
from rankscope.agent.profiler.torch_profiler import TorchProfiler
from rankscope.agent.profiler.window_reading import read_window
from rankscope.agent.profiler.window_scheduler import RawWindow
from rankscope.measure.host_convolutions import BACKWARD, FORWARD, find_positions
from rankscope.measure.rank_view import RankView
from rankscope.measure.window_columns import to_trace


def record(model: nn.Module, x: torch.Tensor) -> RankView:
    """Return what the host recorded of a forward and a backward."""
    profiler = TorchProfiler.find()
    profiler.start(full=True, shapes=True, host_only=True)
    model(x).sum().backward()
    result: HostOperators = profiler.stop()
    window = RawWindow(True, [], result, 0, {}, {}, 0, has_shapes=True, host_only=True)
    columns = read_window(window, [*result.trace_activities()], lambda: None).columns
    assert columns is not None
    return RankView(to_trace(columns), has_unknown_device=True)


def test_both_have_the_positions_of_the_output() -> None:
    view = record(nn.Conv2d(3, 4, 3, stride=2, padding=1), torch.randn(2, 3, 9, 7))
    found = {view.trace.name(row): values for row, values in find_positions(view).items()}
    assert found == {FORWARD: b'["20"]', BACKWARD: b'["20"]'}  # 5 x 4


def test_of_a_transposed_one_those_of_the_input() -> None:
    view = record(nn.ConvTranspose1d(3, 3, 4, stride=3), torch.randn(2, 3, 6))
    assert set(find_positions(view).values()) == {b'["6"]'}


def test_without_shapes_nothing_is_known() -> None:
    view = record(nn.Conv1d(2, 2, 3), torch.randn(1, 2, 8))
    assert find_positions(RankView(replace(view.trace, shapes={}))) == {}
