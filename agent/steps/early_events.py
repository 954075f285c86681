"""Keep the events of threads that may turn out to train, and pass on those of the one that does.

At the start the main thread is assumed to train. Ray Train runs the loop on another one, as a window system may, which
its first optimizer step shows. Batches and backwards of that step came before: without them it would not be counted.
A pool may run each step on another of its threads: training moves to a thread that steps an optimizer while the one
before is between two steps. Where it is amid a step, two loops train at once, and only the first one is counted.
"""

from collections import deque
from collections.abc import Callable
from threading import get_ident
from time import monotonic_ns
from typing import Any, Final

from rankscope.agent.steps.autograd_callbacks import accumulates_gradients, keeps_graph
from rankscope.agent.steps.batch_size import BatchReader
from rankscope.agent.steps.event_buffer import HookEventBuffer
from rankscope.agent.steps.step_timer import StepTimer

RIVALS_MAX: Final = 3
"""Optimizer steps of another thread amid a step, after which only the first thread is taken for the one that trains."""
SETTLED_STEPS: Final = 16
"""Steps on one thread after which sessions of the profiler begin again where training has moved from another one."""
MOVES_MIN: Final = 3
"""Moves in a row from a thread on which training had not settled, after which they are told: epochs on threads of their
own have windows."""
EVENTS_MAX: Final = 4096
"""Events kept: a first step of 512 micro-batches has 2,048. Of more the latest are kept."""


class LoopNotice:
    """What the user is told, once each, of a loop that is measured in part: optimizers are stepped on several threads,
    or signal handlers raise amid the agent.

    >>> notice = LoopNotice(0)
    >>> notice.find(moves=1, rivals=0), notice.find(moves=MOVES_MIN, rivals=0)[:55], notice.find(moves=9, rivals=0)
    ('', 'the training of rank 0 goes from thread to thread: its ', '')
    >>> notice.find(moves=0, rivals=0, interrupted=2)[:60], notice.find(moves=0, rivals=0, interrupted=3)
    ('a signal handler of rank 0 raises exceptions while the agent', '')
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._said: set[str] = set()

    def find(self, *, moves: int, rivals: int, interrupted: int = 0) -> str:
        """Return what is to be said now; empty for nothing."""
        if rivals >= RIVALS_MAX and "rivals" not in self._said:
            self._said |= {"rivals", "moves"}
            return (
                f"rank {self._rank} steps optimizers on several threads at once: the steps of one of them are counted, "
                "the others' are not. Call rankscope.step() where a step of the run ends (docs/loops.md)."
            )
        if moves >= MOVES_MIN and "moves" not in self._said:
            self._said.add("moves")
            return (
                f"the training of rank {self._rank} goes from thread to thread: its steps are counted, but while it "
                "does so none is in a profiler window, so its waiting for other ranks is not known. On one thread, "
                "such as a pool's with max_workers=1, it has windows (docs/program-shapes.md)."
            )
        if interrupted and "interrupted" not in self._said:
            self._said.add("interrupted")
            return (
                f"a signal handler of rank {self._rank} raises exceptions while the agent counts a step: each can make "
                "one step fewer, counted with the next one (docs/program-shapes.md)."
            )
        return ""


class EarlyEvents:
    """The events of all threads but `buffer.thread`, unless two loops train at once. Any thread.

    They have no time on the device: only the training thread may record that.
    """

    def __init__(
        self,
        buffer: HookEventBuffer,
        timer: StepTimer,
        read_clock_ns: Callable[[], int] = monotonic_ns,
        on_move: Callable[[], object] = lambda: None,
    ) -> None:
        self._buffer = buffer
        self._timer = timer
        self._read_clock_ns = read_clock_ns
        self._on_move = on_move
        self._kept: deque[tuple[int, Callable[..., None], int, tuple[Any, ...]]] = deque(maxlen=EVENTS_MAX)
        self.threads_inside: set[int] = set()
        """The threads that are inside a backward; several may be at once."""
        self.moves = 0
        """How often in a row training has gone on on another thread before it had settled on one."""
        self._move_step = 0
        self.rivals = 0
        """Optimizer steps of other threads that were not counted, since the one that trains was amid a step."""
        self.first_thread: int | None = None
        """The first one that has stepped an optimizer."""

    def confirm(self) -> None:
        """Note that `buffer.thread` has stepped an optimizer."""
        self.first_thread = self.first_thread or self._buffer.thread

    def claim(self) -> None:
        """Make the calling thread the one that trains, and pass its events on. Those before the last event that has
        charged time are left out: that time belongs to another step, or to none.
        """
        buffer, thread = self._buffer, get_ident()
        if buffer.thread is None or self.rivals >= RIVALS_MAX:
            return
        if thread != buffer.thread:
            with buffer.flushed():
                if self.first_thread is not None and not self._timer.is_between_steps:
                    self._count_rival()
                    return
                if self.first_thread is not None:
                    is_settled = self._timer.step >= self._move_step + SETTLED_STEPS
                    self.moves, self._move_step = 1 if is_settled else self.moves + 1, self._timer.step
                    self._on_move()  # before the first step of this thread is counted
                kept, self._kept = self._kept, deque(maxlen=EVENTS_MAX)
                since_ns = self._timer.recorder.mark_ns
                for _ in range(len(kept)):  # not `in kept`: another thread may be about to append, which would raise
                    owner, handle, now_ns, arguments = kept.popleft()
                    if owner == thread and now_ns >= since_ns:
                        buffer.entries.extend((handle, now_ns, arguments))
                buffer.thread, buffer.calls_open = thread, 1  # of its events one may have no end
        self.confirm()

    def _count_rival(self) -> None:
        self.rivals += 1
        if self.rivals >= RIVALS_MAX:
            self._buffer.thread, self._buffer.thread_is_confirmed = self.first_thread, True
            self._kept.clear()

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
        """Run a backward, given the engine's arguments, and keep its begin and its end. While it lasts, hooks that step
        optimizers are noted.
        """
        thread, is_inside = get_ident(), self.is_inside
        accumulates = accumulates_gradients(args, kwargs)
        if accumulates:
            self._keep(self._timer.backward_begin)
        else:
            self._keep(self._timer.gradients_begin, self._timer.counts_gradients(keeps_graph(args, kwargs)))
        self.threads_inside.add(thread)
        try:
            return original(*args, **kwargs)
        finally:
            if not is_inside:
                self.threads_inside.discard(thread)
            self._keep(self._timer.backward_end if accumulates else self._timer.gradients_end)

    @property
    def is_inside(self) -> bool:
        """Whether the calling thread is inside a backward that it has begun here."""
        return get_ident() in self.threads_inside

    def _keep(self, handle: Callable[..., None], *arguments: Any) -> None:
        self._kept.append((get_ident(), handle, self._read_clock_ns(), arguments))
