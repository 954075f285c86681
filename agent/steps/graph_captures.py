"""Whether a CUDA graph is being captured, on any thread.

While one is, most CUDA calls of other threads, and some of the capturing one, invalidate it (capture mode `global`, the
default): a training job would fail because of us. So windows neither begin nor end then, and nobody reads what makes
torch query events. The capturing thread's own state can be asked for, those of other threads not: so the begin and end
of every capture are watched.
"""

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

Value = TypeVar("Value")


class GraphCaptures:
    """Counts the captures that are open. `capture_begin` and `capture_end` of torch.cuda.CUDAGraph are wrapped by it.

    `is_current_stream_capturing` tells of captures begun without them, on this thread's stream.
    """

    def __init__(self, is_current_stream_capturing: Callable[[], bool] = lambda: False) -> None:
        self._is_current_stream_capturing = is_current_stream_capturing
        self._lock = threading.RLock()
        self._open = 0

    def is_open(self) -> bool:
        """Whether a graph is being captured, as far as can be seen from this thread."""
        return self._open > 0 or self._is_current_stream_capturing()

    def run_between(self, action: Callable[[], Value]) -> Value | None:
        """What the action returns; None, without running it, while a graph is being captured. A capture that wants to
        begin meanwhile waits, so the action must be short.
        """
        with self._lock:
            return None if self.is_open() else action()

    def wrap_begin(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`CUDAGraph.capture_begin`, watched."""

        @functools.wraps(original)
        def capture_begin(*args: Any, **kwargs: Any) -> Any:
            self._change(1)
            try:
                return original(*args, **kwargs)
            except BaseException:
                self._change(-1)
                raise

        return capture_begin

    def wrap_end(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`CUDAGraph.capture_end`, watched. A capture that fails to end is over as well."""

        @functools.wraps(original)
        def capture_end(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            finally:
                self._change(-1)

        return capture_end

    def _change(self, by: int) -> None:
        with self._lock:
            self._open = max(0, self._open + by)  # one that was open before it was watched may end
