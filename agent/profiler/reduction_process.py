"""Run the reduction of full windows in a child process: one at a time, started for a window and gone after it.

The attributes of activities are read here, in short batches, and not from a file that the profiler saves: saving holds
the GIL in one go, and other threads waited up to 57 ms for it instead of 20. The reduction itself needs the GIL as
well, so it runs in a child, which takes 0.3 ms to start and 0.13 s of CPU on another core, at a lower weight.
"""

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from rankscope.agent.guard import explain, find_last_error, is_debugging, log_line
from rankscope.agent.late_imports import LATE_IMPORTS
from rankscope.agent.profiler.reduce_window import (
    ENVIRONMENT,
    TIME_LIMIT_S,
    WindowAnswer,
    WindowRequest,
    command_line,
    reduce_window,
)
from rankscope.measure.errors import TraceError
from rankscope.measure.units import s_to_ns

if TYPE_CHECKING:
    from rankscope.agent.spawned_child import Child

WAITING_MAX = 2
"""Largest number of windows that wait while one is reduced. One with the most events allowed takes 7 MB; as a trace
file, 60 MB or more."""
PENDING_ANSWERS_MAX = WAITING_MAX + 1
"""Windows whose answer is pending."""


IN_PLACE_EVENTS_MAX = 10_000
"""A window of at most this many events is reduced on the agent thread, in 0.6 ms per thousand events. A child process
needs 130 ms of CPU time before its first event, which delays training on a machine with all cores busy."""


PART: Final = "breaking a window down"


def spawn(request: bytes) -> "Child":
    """Start the child that reduces this encoded request. Raises OSError when it cannot be started."""
    with LATE_IMPORTS:
        from rankscope.agent.spawned_child import SpawnedChild  # noqa: PLC0415 - with the first large window

    return SpawnedChild(command_line(), request, {**os.environ, **ENVIRONMENT})


class ReductionProcesses:
    """Answer requests in order. `failed` counts failures by reason; `cpu_ns` is the CPU time of the children.

    `communication_kernels` is a pattern of the user's (see WindowRequest) for windows of a device. It may take for ever
    on a name, and holds the interpreter meanwhile: such windows are reduced in children, which have a time limit. Those
    that are pending at the end are computed here only after a child has got through one.
    """

    def __init__(
        self,
        spawn_child: "Callable[[bytes], Child]" = spawn,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        *,
        in_place_events_max: int = IN_PLACE_EVENTS_MAX,
        communication_kernels: str = "",
    ) -> None:
        self._communication_kernels = communication_kernels
        self._pattern_is_tried = False
        self._spawn = spawn_child
        self._monotonic_ns = monotonic_ns
        self._in_place_events_max = in_place_events_max
        self._ready: list[WindowAnswer] = []
        self._waiting: deque[WindowRequest] = deque()
        self._running: tuple[Child, WindowRequest, int] | None = None
        self.failed: dict[str, int] = {}
        self.cpu_ns = 0

    def submit(self, request: WindowRequest) -> None:
        """Reduce this request after those before it."""
        if request.on_device and self._communication_kernels:
            request = msgspec.structs.replace(request, communication_kernels=self._communication_kernels)
        is_small = (
            not request.saved
            and not request.communication_kernels
            and not request.counts_flops
            and len(request.columns) <= self._in_place_events_max
        )
        if is_small and self._running is None and not self._waiting:
            self._ready.append(reduce_window(request))
            return
        if len(self._waiting) >= WAITING_MAX:
            self._waiting.popleft()
            self._count("reduction_backlog")
        self._waiting.append(request)
        self._start_next()

    def collect(self) -> list[WindowAnswer]:
        """Return the answers since the last call. Never waits."""
        answers, self._ready = self._ready, []
        answer = self._poll()
        self._start_next()
        return answers + ([answer] if answer is not None else [])

    def finish(self) -> list[WindowAnswer]:
        """Return the answers to all pending requests; those not ready are computed here. A running child ends."""
        answers, self._ready = self._ready, []
        answer = self._poll()
        requests = list(self._waiting)
        self._waiting.clear()
        if self._running is not None:
            child, request, _ = self._running
            self._running = None
            child.kill()
            requests.insert(0, request)
        answers += [answer] if answer is not None else []
        return answers + [found for found in map(self._reduce_here, requests) if found is not None]

    def _reduce_here(self, request: WindowRequest) -> WindowAnswer | None:
        if request.communication_kernels and not self._pattern_is_tried:
            self._count("reduction_untried")
            return None
        try:
            return reduce_window(request)
        except TraceError as error:
            self._fail(explain(PART, error))
            return None

    def _start_next(self) -> None:
        if self._running is not None or not self._waiting:
            return
        request = self._waiting.popleft()
        try:
            child = self._spawn(msgspec.msgpack.encode(request))
        except (OSError, AttributeError, TypeError, ValueError) as error:  # no memory, or no known interpreter
            self._fail(explain(PART, error))
        else:
            self._running = child, request, self._monotonic_ns()

    def _poll(self) -> WindowAnswer | None:
        if self._running is None:
            return None
        child, request, started_ns = self._running
        ended = child.poll()
        if ended is None:
            if self._monotonic_ns() - started_ns > s_to_ns(TIME_LIMIT_S):
                self._running = None
                self._count("reduction_time_limit")
                child.kill()
            return None
        self._running = None
        self.cpu_ns += ended.cpu_ns
        if ended.exit_code == 0:
            with contextlib.suppress(msgspec.DecodeError):
                answer = msgspec.msgpack.decode(ended.output, type=WindowAnswer)
                self._pattern_is_tried |= bool(request.communication_kernels)
                return answer
        errors = ended.errors.decode(errors="replace")
        self._fail(find_last_error(errors) or f"its process ended with exit code {ended.exit_code}", errors)
        return None

    def _fail(self, why: str, child_errors: str = "") -> None:
        """Count a lost window, and warn about the first."""
        self._count("reduction_failed")
        if self.failed["reduction_failed"] == 1:
            if child_errors and is_debugging():
                log_line(f"the process that breaks windows down wrote:\n{child_errors.rstrip()}")
            lost = "training is not affected, and lost windows are counted"
            log_line(f"the breakdown of a profiler window could not be computed ({why}); {lost}")

    def _count(self, reason: str) -> None:
        self.failed[reason] = self.failed.get(reason, 0) + 1
