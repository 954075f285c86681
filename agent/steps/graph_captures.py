"""Detect whether a CUDA graph is being captured, on any thread.

Meanwhile most CUDA calls of other threads, and some of the capturing one, invalidate the capture (mode `global`, the
default): training would fail because of us. So no window begins or ends then, and nothing is read that makes torch
query events. CUDA reports captures only for the calling thread, so the begin and end of every capture are hooked.
"""

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from rankscope.agent.config import NO
from rankscope.agent.steps.first_graph import FirstGraph

Value = TypeVar("Value")


class GraphCaptures:
    """Count the open captures, by wrappers of torch.cuda.CUDAGraph's `capture_begin` and `capture_end`.

    `is_current_stream_capturing` reports captures begun without these, on this thread's stream. `cuda_graphs` is the
    setting of that name; NO where there is no device with graphs.
    """

    def __init__(self, is_current_stream_capturing: Callable[[], bool] = lambda: False, cuda_graphs: str = NO) -> None:
        self._is_current_stream_capturing = is_current_stream_capturing
        self._lock = threading.RLock()
        self._open = 0
        self.begun = 0
        """The captures so far."""
        self.first_graph = FirstGraph(cuda_graphs, self)
        """Whether profiler sessions wait for the first one."""

    def is_open(self) -> bool:
        """Return whether a graph is being captured, as far as this thread can see."""
        return self._open > 0 or self._is_current_stream_capturing()

    def run_between(self, action: Callable[[], Value]) -> Value | None:
        """Run the action and return its result; None, without running it, while a graph is being captured. A capture
        cannot begin before the action returns, so it must be short.
        """
        with self._lock:
            return None if self.is_open() else action()

    def wrap_begin(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return `CUDAGraph.capture_begin`, counted."""

        @functools.wraps(original)
        def capture_begin(*args: Any, **kwargs: Any) -> Any:
            self._change(1)
            self.begun += 1
            try:
                return original(*args, **kwargs)
            except BaseException:
                self._change(-1)
                raise

        return capture_begin

    def wrap_end(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a wrapper of `CUDAGraph.capture_end` that counts the capture as ended, even if the call raises."""

        @functools.wraps(original)
        def capture_end(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            finally:
                self._change(-1)

        return capture_end

    def _change(self, by: int) -> None:
        with self._lock:
            self._open = max(0, self._open + by)  # one that began before the hooks were installed may end
