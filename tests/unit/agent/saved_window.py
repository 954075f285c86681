"""A real window of this process, read both ways: live, and from the file that torch writes of the same session."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from rankscope.agent.probe.kineto_windows import RawWindow
from rankscope.agent.probe.torch_profiler import TorchProfiler
from rankscope.agent.reduce_window import StepBounds, WindowRequest
from rankscope.agent.report.window_reading import read_window
from rankscope.collector.traces.files import read_chunks
from rankscope.measure.kineto_columns import read_trace
from rankscope.measure.rank_view import RankView
from rankscope.measure.window_columns import to_trace


class SavedWindow(NamedTuple):
    """The request as the agent makes it, and the views of both, on the file's clock."""

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


def record_window(device: str, steps: int, folder: Path, before_step: Callable[[], None] = lambda: None) -> SavedWindow:
    """Train that many steps within a full session of the agent's own profiler. `before_step` is part of each."""
    training, profiler = Training(device), TorchProfiler.find()
    for _ in range(3):
        training.step()
    on_device = profiler.sees_device
    if profiler.is_first_of_device:
        profiler.start(full=True)
        training.step()
        profiler.stop()
    profiler.start(full=True)
    moments_ns = [time.monotonic_ns()]
    for _ in range(steps):
        before_step()
        training.step()
        moments_ns.append(time.monotonic_ns())
    result = profiler.stop()
    wall_minus_host_ns = time.time_ns() - time.monotonic_ns()
    window = RawWindow(True, (), result, wall_minus_host_ns, {}, {}, 0, on_device)
    columns = read_window(window, result.trace_activities(), lambda: None).columns
    assert columns is not None
    path = folder / "window.json"
    result.save(str(path))  # what export_chrome_trace calls
    trace = read_trace(read_chunks(str(path)))
    return SavedWindow(
        WindowRequest(
            columns=columns,
            steps=tuple(StepBounds(n, *moments_ns[n : n + 2]) for n in range(steps)),
            wall_minus_host_ns=wall_minus_host_ns,
            on_device=on_device,
        ),
        RankView(to_trace(columns, ahead_ns=int(trace.head["baseTimeNanoseconds"]))),
        RankView(trace),
    )
