"""Mark on the device where a backward's own work ends: from there until backward() returns is its *tail*.

    host      backward() -- first node: queue ---- nodes ---------- last node: callbacks ------------- returns
    stream    event ------- the backward's own work -------------- event | DDP's wait for its all-reduces | event
                                                                         |------------ tail -------------|

Autograd calls the callbacks with the caller's streams as the current ones, ours before DDP's, in which the stream
waits for the gradients that are still being reduced (`autograd_callbacks.py`). With DDP the tail is then the exposed
communication of the step, waiting and transfer, and the step without it is the time that this rank itself needs
(docs/definitions.md section 2).

Callback and pre-hook run on a thread of autograd's, while the training thread is inside backward() and waits. They only
write to the `Tail` of their own backward; everything else here is the training thread's.

There is no hook in a process without peers, and none in a step that is not timed. Where autograd is compiled or traced,
or torch lacks what is needed, a timed step has no tail, with a reason; so it has where a backward has no node, or its
callback is not called, or called in another stream.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from rankscope.agent.guard import Guard
from rankscope.agent.steps.autograd_callbacks import AutogradCallbacks, find_first_node
from rankscope.agent.steps.event_pool import EventPool
from rankscope.agent.steps.graph_captures import GraphCaptures
from rankscope.measure.units import NS_PER_MS

PART: Final = "device_tails"

CAPTURE: Final = "capture"
POOL_EMPTY: Final = "pool_empty"
NOT_CALLED: Final = "not_called"
STREAM_CHANGED: Final = "stream_changed"
NOT_WATCHED: Final = "not_watched"
ERROR: Final = "error"


class Tail(msgspec.Struct):
    """The tail of one backward. `event` is recorded where its own work ends, `end_ns` is the host time of the hook
    event after it. `obstacle`: why it is not known; `is_over`: backward() has returned, so that a late callback does
    nothing.
    """

    event: Any = None
    end_ns: int = 0
    handle: Any = None
    is_marked: bool = False
    is_over: bool = False
    obstacle: str | None = None
    error: Exception | None = None
    costs_ns: list[int] = msgspec.field(default_factory=list)


class BackwardTails:
    """The tails of the step that is timed now. `is_due` says whether there is one, and so whether `begin` and `end` are
    to be called around a backward.

    `has_peers` returns whether this process communicates with another; `on_cuda_error` gets an error of CUDA, on the
    training thread. `skipped` counts the timed steps without a tail by reason. No error leaves this class.
    """

    def __init__(
        self,
        cuda: Any,
        pool: EventPool,
        guard: Guard,
        captures: GraphCaptures,
        on_cuda_error: Callable[[Exception], None],
        *,
        has_peers: Callable[[], bool],
        read_clock_ns: Callable[[], int],
    ) -> None:
        self._cuda = cuda
        self._pool = pool
        self._guard = guard
        self._captures = captures
        self._on_cuda_error = on_cuda_error
        self._has_peers = has_peers
        self._read_clock_ns = read_clock_ns
        self._callbacks = AutogradCallbacks()
        self._is_off = False
        self._stream: Any = None
        self._tails: list[Tail] = []
        self.is_due = False
        self.skipped: dict[str, int] = {}

    def list_entrances(self) -> tuple[Callable[..., Any], ...]:
        """Return the methods that training calls."""
        own = BackwardTails
        return own.begin, own.end, own.on_first_node, own.on_last_node

    # -- a step that is timed -----------------------------------------------------------------------------------------

    def begin_step(self, stream: Any) -> None:
        """Mark the backwards of the step that begins now in this stream, if there are peers."""
        self._stream, self._tails = stream, []
        try:
            self.is_due = not self._is_off and self._has_peers()
            if self.is_due:
                self._callbacks.find()
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the training script
            self._switch_off(error)

    def end_step(self) -> tuple[bool, list[Tail]]:
        """Return whether the step that ends was to have a tail, and the tails of its backwards."""
        was_due, tails = self.is_due, self._tails
        self.is_due, self._tails = False, []
        return was_due, tails

    def skip(self, reason: str) -> None:
        """Count a timed step without a tail."""
        self.skipped[reason] = self.skipped.get(reason, 0) + 1

    # -- around one backward ------------------------------------------------------------------------------------------

    def begin(self, arguments: Sequence[Any], keywords: dict[str, Any]) -> Tail:
        """Watch the backward that is about to be called with these arguments of the engine."""
        begin_ns = self._read_clock_ns()
        tail = Tail()
        self._tails.append(tail)
        try:
            node = find_first_node(arguments, keywords)
            tail.obstacle = CAPTURE if self._captures.is_open() else self._callbacks.find_obstacle(node)
            if tail.obstacle is None:
                tail.event = self._pool.get(self._stream)
                tail.obstacle = POOL_EMPTY if tail.event is None else None
            if tail.obstacle is None:
                tail.handle = node.register_prehook(partial(self.on_first_node, tail))
        except Exception as error:  # noqa: BLE001 - as above
            tail.obstacle = ERROR
            self._switch_off(error)
        tail.costs_ns.append(self._read_clock_ns() - begin_ns)
        return tail

    def end(self, tail: Tail, now_ns: int) -> None:
        """Handle the end of that backward, by a return or an error, at the hook event of this time."""
        begin_ns = self._read_clock_ns()
        tail.is_over, tail.end_ns = True, now_ns
        try:
            if tail.handle is not None:
                tail.handle.remove()
            if tail.event is not None and not tail.is_marked:
                self._pool.give_up(tail.event)
                tail.event, tail.obstacle = None, tail.obstacle or NOT_CALLED
        except Exception as error:  # noqa: BLE001 - as above
            self._switch_off(error)
        if tail.error is not None:
            self._on_cuda_error(tail.error)
        tail.costs_ns[0] += self._read_clock_ns() - begin_ns

    def on_first_node(self, tail: Tail, _gradients: object) -> None:
        """Queue the callback, on the thread that runs the first node. Returns None, which leaves the gradients."""
        begin_ns = self._read_clock_ns()
        if tail.is_over or self._callbacks.queue is None:
            return
        try:
            self._callbacks.queue(partial(self.on_last_node, tail))
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach autograd
            tail.obstacle = ERROR
            self._switch_off(error)
        tail.costs_ns.append(self._read_clock_ns() - begin_ns)

    def on_last_node(self, tail: Tail) -> None:
        """Record the event, on the thread that runs the callbacks. A callback must raise nothing."""
        begin_ns = self._read_clock_ns()
        if tail.is_over or tail.is_marked:
            return
        try:
            if self._captures.is_open():
                tail.obstacle = CAPTURE
            elif self._cuda.current_stream() != self._stream:
                tail.obstacle = STREAM_CHANGED
            else:
                tail.event.record(self._stream)
                tail.is_marked = True
        except Exception as error:  # noqa: BLE001 - as above
            tail.obstacle, tail.error = ERROR, error
        tail.costs_ns[-1] += self._read_clock_ns() - begin_ns

    def _switch_off(self, error: Exception) -> None:
        self._is_off = True
        self._guard.record(PART, error)


def find_obstacle(tails: Sequence[Tail], events: dict[int, Any], backwards: int) -> str | None:
    """Return why a step with that many backwards has no tail; None where all of them are marked, and `events` has the
    CUDA event at the end of each.
    """
    obstacles = [tail.obstacle for tail in tails if tail.obstacle is not None]
    if obstacles:
        return obstacles[0]
    is_whole = bool(tails) and len(tails) == backwards and all(tail.end_ns in events for tail in tails)
    return None if is_whole else NOT_WATCHED


def read_tail_ns(tails: Sequence[Tail], events: dict[int, Any]) -> int:
    """Return the sum of the tails of a step in ns, by the device. All must be marked, and `events` must have the CUDA
    event at the end of each; all are complete.
    """
    return sum(max(0, round(tail.event.elapsed_time(events[tail.end_ns]) * NS_PER_MS)) for tail in tails)
