"""Whether a CUDA graph is being captured: then nobody may ask the device anything from another thread.

An event that is queried while any thread captures in global mode makes the capture fail, and a full dump of NCCL's
flight recorder queries events. Captures are seen where they begin and end, since they are the business of one thread.
"""

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any


class GraphCaptures:
    """Counts the captures that are going on. `install` wraps `torch.cuda.CUDAGraph`, `remove` puts it back."""

    def __init__(self) -> None:
        self._open = 0
        self._undo: list[Callable[[], None]] = []

    @property
    def is_capturing(self) -> bool:
        """Whether a capture has begun that has not ended."""
        return self._open > 0

    def install(self, graph_class: Any = None) -> None:
        """Watch that class, by default torch's where torch can use CUDA; without it nothing is ever captured."""
        graph_class = graph_class or _find_graph_class()
        if graph_class is None:
            return
        self._replace(graph_class, "capture_begin", self._wrap_begin)
        self._replace(graph_class, "capture_end", self._wrap_end)

    def remove(self) -> None:
        """Put back what nobody has wrapped since."""
        while self._undo:
            self._undo.pop()()

    def _wrap_begin(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
            self._open += 1
            try:
                return original(graph, *args, **kwargs)
            except BaseException:
                self._open -= 1
                raise

        return capture_begin

    def _wrap_end(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def capture_end(graph: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(graph, *args, **kwargs)
            finally:
                self._open = max(0, self._open - 1)

        return capture_end

    def _replace(self, owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        original = getattr(owner, name)
        replacement = wrap(original)
        setattr(owner, name, replacement)

        def put_back() -> None:
            if getattr(owner, name) is replacement:
                setattr(owner, name, original)

        self._undo.append(put_back)


def _find_graph_class() -> Any:
    torch = sys.modules.get("torch")
    with contextlib.suppress(AttributeError):
        if torch is not None and torch.cuda._is_compiled():  # noqa: SLF001 - asks no device
            return torch.cuda.CUDAGraph
    return None
