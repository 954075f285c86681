"""The process that reduces full windows: one at a time, started when there is one to reduce, gone when it is done.

Measured on windows of 9,000 operators in two steps (torch 2.13, CPU build, two cores shared with others; medians of
15, ns an event with the GIL held): ending the window 1,700 (2,400 where the profiler also makes Python's event
objects), the list of activities 490, five attributes of each 1,000, letting go of the list 290. Saving the result to
a file instead takes 1,830, in one go, and writes 300 bytes an event for a child to parse: the longest that another
thread was kept waiting was 57 ms, and 20 ms with reading in short batches. So attributes are read. The reduction
takes 270 more; in a child it takes no GIL, 0.3 ms to start it, and 0.13 s of CPU on another core and with less
weight, most of it the import of numpy. From the profiler's result to the request for the child it is 4,000 in all,
where breaking the window down in the training process took 4,500 (side by side in one run, 15 windows of two ranks,
when the machine was busier than above).
"""

import contextlib
import os
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from rankscope.agent.guard import explain, find_last_error, is_debugging, log_line
from rankscope.agent.nameless_file import open_nameless
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

WAITING_MAX = 2
"""Windows that wait for the one being reduced; each of the most events allowed takes 7 MB, as a file at least 60."""
PENDING_ANSWERS_MAX = WAITING_MAX + 1
"""Windows whose answer may still come."""


IN_PLACE_EVENTS_MAX = 10_000
"""A window of fewer is reduced on the agent's own thread: 0.6 ms for a thousand events (medians of 15), where a child
takes 130 ms of another core before its first. On a machine that computes on all its cores that is training's time."""


PART: Final = "breaking a window down"
ERRORS_BYTES_MAX: Final = 64 * 1024


class Ended(NamedTuple):
    """A child that has ended: its exit code (negative: the signal), its CPU time, its stdout and its stderr."""

    exit_code: int
    cpu_ns: int
    output: bytes
    errors: bytes = b""


class Child(Protocol):
    """A running child; `SpawnedChild` is the real one."""

    def poll(self) -> Ended | None:
        """How it ended; None while it runs."""
        ...

    def kill(self) -> None:
        """End it, and wait until it has."""
        ...


class SpawnedChild:
    """A child with its input and output in files without a name: nothing blocks, and nothing is left of them."""

    def __init__(self, command: Sequence[str], request: bytes, environment: Mapping[str, str]) -> None:
        with open_nameless("rankscope-window") as given:
            given.write(request)
            given.seek(0)
            self._answer = open_nameless("rankscope-breakdown")  # poll or kill closes both
            self._errors = open_nameless("rankscope-errors")
            try:
                self._process = subprocess.Popen(  # noqa: S603 - this interpreter, and a command of ours
                    command, stdin=given, stdout=self._answer, stderr=self._errors, env=dict(environment)
                )
            except BaseException:
                self._answer.close()
                self._errors.close()
                raise

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def poll(self) -> Ended | None:
        """How it ended; None while it runs."""
        cpu_s = 0.0
        try:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        except ChildProcessError:
            # The script waits for any child, or has all of them waited for: then the answer alone tells how it went.
            self._process.returncode = 0
        else:
            if pid == 0:
                return None
            self._process.returncode = os.waitstatus_to_exitcode(status)
            cpu_s = usage.ru_utime + usage.ru_stime
        with self._answer, self._errors:
            self._answer.seek(0)
            self._errors.seek(0)
            errors = self._errors.read(ERRORS_BYTES_MAX)
            return Ended(self._process.returncode, s_to_ns(cpu_s), self._answer.read(), errors)

    def kill(self) -> None:
        """End it, and wait until it has."""
        with self._answer, self._errors:
            self._process.kill()
            self._process.wait()


def spawn(request: bytes) -> Child:
    """The child that reduces this encoded request. Raises OSError when it cannot be started."""
    return SpawnedChild(command_line(), request, {**os.environ, **ENVIRONMENT})


class ReductionProcesses:
    """Takes requests, gives answers, in order. What fails is counted in `failed` by reason; `cpu_ns` is what the
    children have cost.
    """

    def __init__(
        self,
        spawn_child: Callable[[bytes], Child] = spawn,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        *,
        in_place_events_max: int = IN_PLACE_EVENTS_MAX,
    ) -> None:
        self._spawn = spawn_child
        self._monotonic_ns = monotonic_ns
        self._in_place_events_max = in_place_events_max
        self._ready: list[WindowAnswer] = []
        self._waiting: deque[WindowRequest] = deque()
        self._running: tuple[Child, WindowRequest, int] | None = None
        self.failed: dict[str, int] = {}
        self.cpu_ns = 0

    def submit(self, request: WindowRequest) -> None:
        """Reduce this, when the ones before are done."""
        is_small = not request.saved and len(request.columns) <= self._in_place_events_max
        if is_small and self._running is None and not self._waiting:
            self._ready.append(reduce_window(request))
            return
        if len(self._waiting) >= WAITING_MAX:
            self._waiting.popleft()
            self._count("reduction_backlog")
        self._waiting.append(request)
        self._start_next()

    def collect(self) -> list[WindowAnswer]:
        """The answers that have come since. Never waits."""
        answers, self._ready = self._ready, []
        answer = self._poll()
        self._start_next()
        return answers + ([answer] if answer is not None else [])

    def finish(self) -> list[WindowAnswer]:
        """Answers to everything submitted, made here and now: training is over, nobody is kept waiting."""
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
        except (OSError, AttributeError, TypeError, ValueError) as error:  # no room, or no interpreter that is known
            self._fail(explain(PART, error))
        else:
            self._running = child, request, self._monotonic_ns()

    def _poll(self) -> WindowAnswer | None:
        if self._running is None:
            return None
        child, _, started_ns = self._running
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
                return msgspec.msgpack.decode(ended.output, type=WindowAnswer)
        errors = ended.errors.decode(errors="replace")
        self._fail(find_last_error(errors) or f"its process ended with exit code {ended.exit_code}", errors)
        return None

    def _fail(self, why: str, child_said: str = "") -> None:
        """Count a window that is lost, and say the first."""
        self._count("reduction_failed")
        if self.failed["reduction_failed"] == 1:
            if child_said and is_debugging():
                log_line(f"the process that breaks windows down wrote:\n{child_said.rstrip()}")
            log_line(f"a profiler window could not be broken down ({why}); training is not affected, this is counted")

    def _count(self, reason: str) -> None:
        self.failed[reason] = self.failed.get(reason, 0) + 1
