"""Keep the events of threads that may turn out to train, and pass on those of the one that does.

At the start the main thread is assumed to train. Ray Train runs the loop on another one, as a window system may, which
its first optimizer step shows. Batches and backwards of that step came before: without them it would not be counted.
"""

from collections import deque
from collections.abc import Callable
from threading import get_ident
from time import monotonic_ns
from typing import Any, Final

from rankscope.agent.steps.batch_size import BatchReader
from rankscope.agent.steps.event_buffer import HookEventBuffer
from rankscope.agent.steps.step_timer import StepTimer

EVENTS_MAX: Final = 4096
"""Events kept: a first step of 512 micro-batches has 2,048. Of more the latest are kept."""


class EarlyEvents:
    """The events of all threads but `buffer.thread`, while it is not confirmed that this one trains. Any thread.

    They have no time on the device: only the training thread may record that.
    """

    def __init__(
        self, buffer: HookEventBuffer, timer: StepTimer, read_clock_ns: Callable[[], int] = monotonic_ns
    ) -> None:
        self._buffer = buffer
        self._timer = timer
        self._read_clock_ns = read_clock_ns
        self._kept: deque[tuple[int, Callable[..., None], int, tuple[Any, ...]]] = deque(maxlen=EVENTS_MAX)
        self.threads_inside: set[int] = set()
        """The threads that are inside a backward; several may be at once."""

    def claim(self) -> None:
        """Make the calling thread the one that trains, and pass its events on. Those before the last event that has
        charged time are left out: that time belongs to another step, or to none.
        """
        buffer, thread = self._buffer, get_ident()
        kept, self._kept = self._kept, deque(maxlen=EVENTS_MAX)
        if thread != buffer.thread:
            with buffer.flushed():
                since_ns = self._timer.recorder.mark_ns
                for _ in range(len(kept)):  # not `in kept`: another thread may be about to append, which would raise
                    owner, handle, now_ns, arguments = kept.popleft()
                    if owner == thread and now_ns >= since_ns:
                        buffer.entries.extend((handle, now_ns, arguments))
                buffer.thread = thread
        buffer.thread_is_confirmed = True

    def fetch(self, torch: Any, original: Callable[..., Any], iterator: Any) -> Any:
        """Fetch a batch by the loader's own method, and keep its begin and its end."""
        self._keep(self._timer.data_begin, torch.is_grad_enabled())
        try:
            batch = original(iterator)
        except BaseException:
            self._keep(self._timer.data_end, False, id(iterator))  # noqa: FBT003 - as the hooks write it
            raise
        self._keep(self._timer.data_end, True, id(iterator), BatchReader(torch).read(batch, iterator))  # noqa: FBT003
        return batch

    def run_backward(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a backward, and keep its begin and its end. While it lasts, hooks that step optimizers are noted."""
        thread, is_inside = get_ident(), self.is_inside
        self._keep(self._timer.backward_begin)
        self.threads_inside.add(thread)
        try:
            return original(*args, **kwargs)
        finally:
            if not is_inside:
                self.threads_inside.discard(thread)
            self._keep(self._timer.backward_end)

    @property
    def is_inside(self) -> bool:
        """Whether the calling thread is inside a backward that it has begun here."""
        return get_ident() in self.threads_inside

    def _keep(self, handle: Callable[..., None], *arguments: Any) -> None:
        self._kept.append((get_ident(), handle, self._read_clock_ns(), arguments))
