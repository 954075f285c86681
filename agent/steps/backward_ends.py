"""Note when the own work of each backward has ended on the host, while a profiler window is open.

With DDP the training thread waits for its gradients after that, and not before. The starts of collectives do not show
it: gloo serves a group by two worker threads, so a third one that waits in its queue begins when one of the first two
has ended, however long ago it was enqueued (`profiler/window_reduction.py` has what follows).

Only in a process without GPUs, where autograd runs on the thread that calls it. No error leaves this class; where
autograd is compiled or traced, or torch lacks what is needed, nothing is noted.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic_ns
from typing import Any, Final

import msgspec

from rankscope.agent.guard import Guard
from rankscope.agent.steps.autograd_callbacks import AutogradCallbacks, find_first_node

PART: Final = "backward_ends"
ENDS_MAX: Final = 4096
"""Ends kept until their window is reduced: 50 steps of a window with 80 backwards each."""


class WatchedBackward(msgspec.Struct):
    """A backward that is watched. `is_over`: it has returned, so that a late callback does nothing."""

    handle: Any = None
    is_over: bool = False


class BackwardEnds:
    """The ends of this process: written by the training thread, read by the agent's.

    `is_recording` returns whether a window is open.
    """

    def __init__(
        self, guard: Guard, *, is_recording: Callable[[], bool], read_clock_ns: Callable[[], int] = monotonic_ns
    ) -> None:
        self._guard = guard
        self._find_recording = is_recording
        self._read_clock_ns = read_clock_ns
        self._callbacks = AutogradCallbacks()
        self._ends_host_ns: deque[int] = deque(maxlen=ENDS_MAX)
        self._is_off = False
        self.spent_ns = 0
        """The cost to the training thread so far."""

    def list_entrances(self) -> tuple[Callable[..., Any], ...]:
        """Return the methods that training calls."""
        own = BackwardEnds
        return own.is_recording, own.begin, own.end, own.on_first_node, own.on_last_node

    @property
    def is_due(self) -> bool:
        """Whether `begin` and `end` are to be called around a backward now."""
        return self.is_recording()

    def is_recording(self) -> bool:
        """Return whether a window is open, and nothing of ours has failed."""
        try:
            return not self._is_off and self._find_recording()
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the training script
            self._switch_off(error)
            return False

    def begin(self, arguments: Sequence[Any], keywords: dict[str, Any]) -> WatchedBackward:
        """Watch the backward that is about to be called with these arguments of the engine."""
        begin_ns = self._read_clock_ns()
        watched = WatchedBackward()
        try:
            self._callbacks.find()
            node = find_first_node(arguments, keywords)
            if self._callbacks.find_obstacle(node) is None:
                watched.handle = node.register_prehook(partial(self.on_first_node, watched))
        except Exception as error:  # noqa: BLE001 - as above
            self._switch_off(error)
        self.spent_ns += self._read_clock_ns() - begin_ns
        return watched

    def end(self, watched: WatchedBackward, now_ns: int) -> None:
        """Handle the return of that backward, or its error, at the hook event of this time."""
        watched.is_over = True
        try:
            if watched.handle is not None:
                watched.handle.remove()
        except Exception as error:  # noqa: BLE001 - as above
            self._switch_off(error)
        self.spent_ns += self._read_clock_ns() - now_ns

    def on_first_node(self, watched: WatchedBackward, _gradients: object) -> None:
        """Queue the callback. Returns None, which leaves the gradients."""
        begin_ns = self._read_clock_ns()
        if watched.is_over or self._callbacks.queue is None:
            return
        try:
            self._callbacks.queue(partial(self.on_last_node, watched))
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach autograd
            self._switch_off(error)
        self.spent_ns += self._read_clock_ns() - begin_ns

    def on_last_node(self, watched: WatchedBackward) -> None:
        """Note the end. A callback must raise nothing."""
        if not watched.is_over:
            self._ends_host_ns.append(self._read_clock_ns())

    def find_between(self, begin_host_ns: int, end_host_ns: int) -> list[int]:
        """Return the noted ends from the first time on and before the second, ascending."""
        return [end_ns for end_ns in list(self._ends_host_ns) if begin_host_ns <= end_ns < end_host_ns]

    def _switch_off(self, error: Exception) -> None:
        self._is_off = True
        self._guard.record(PART, error)
