"""Read a real window of this process both ways: by its activities, and from the trace file of the same session."""

import time
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import msgspec
import torch
from torch import nn

from rankscope.agent.profiler.kineto_events import read_saved
from rankscope.agent.profiler.reduce_window import WindowRequest, read_events
from rankscope.agent.profiler.torch_profiler import TorchProfiler
from rankscope.agent.profiler.window_reading import read_window
from rankscope.agent.profiler.window_reduction import make_request
from rankscope.agent.profiler.window_scheduler import RawWindow
from rankscope.measure.kineto_columns import read_trace
from rankscope.measure.rank_view import RankView
from rankscope.measure.records import StepRecord


class SavedWindow(NamedTuple):
    """The request that the agent makes, and the views of both, on the file's clock."""

    request: WindowRequest
    live: RankView
    file: RankView


class Training:
    """A small model on one device."""

    def __init__(self, device: str) -> None:
        self._model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).to(device)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3)
        self._batch = torch.randn(32, 64)
        self._device = device

    def step(self) -> float:
        """A step that waits for its loss, as most do."""
        loss = self._model(self._batch.to(self._device)).square().mean()
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return float(loss.item())


def record_window(
    device: str,
    steps: int,
    before_step: Callable[[], None] = lambda: None,
    find_profiler: Callable[[], TorchProfiler] = TorchProfiler.find,
) -> SavedWindow:
    """Train `steps` steps within a full session of the agent's profiler. `before_step` is part of each."""
    training, profiler = Training(device), find_profiler()
    for _ in range(3):
        training.step()
    on_device = profiler.sees_device
    if profiler.is_first_of_device:
        profiler.start(full=True)
        training.step()
        profiler.stop()
    profiler.start(full=True)
    bounds_ns = [time.monotonic_ns()]
    for _ in range(steps):
        before_step()
        training.step()
        bounds_ns.append(time.monotonic_ns())
    result = profiler.stop()
    wall_minus_host_ns = time.time_ns() - time.monotonic_ns()
    records = tuple(
        StepRecord(step=step, start_host_ns=begin_ns, duration_ns=end_ns - begin_ns, phases_ns={})
        for step, (begin_ns, end_ns) in enumerate(pairwise(bounds_ns))
    )
    window = RawWindow(True, records, result, wall_minus_host_ns, {}, {}, 0, on_device)
    columns = read_window(window, result.trace_activities(), lambda: None).columns
    assert columns is not None
    request = make_request(window, columns)
    trace = read_trace([request.saved or read_saved(result)])  # a session can be saved once
    on_files_clock = msgspec.structs.replace(request, wall_minus_host_ns=int(trace.head["baseTimeNanoseconds"]))
    return SavedWindow(request, RankView(read_events(on_files_clock)), RankView(trace))
