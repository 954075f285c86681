"""Defer the exit of ranges (record_function) that outlive the profiler session they were entered in.

torch 2.13 keeps a pointer into that session's memory in an open range, and the exit writes through it whenever a
session is on, also another one, when the memory has been freed: the heap is corrupted (valgrind: invalid write in
onFunctionExit). Windows follow each other without a gap and begin inside ranges, such as torch's around every optimizer
step or the user's around an epoch. While no session is on the exit writes nothing. So a range that would exit in
another session than it was entered in exits when that session has ended.

The ranges around code that torch.compile has made, and around the forward of an autograd.Function, are C++'s own, and
nobody can defer their exits. Where a whole training step is compiled, each boundary is inside of one. So no session
begins while one that an ended session has recorded is open. Its frame tells: it has a mark from that session's end on,
as a trace function, which Python calls in no frame unless the thread is traced.
"""

import contextlib
import functools
import sys
from collections import deque
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from rankscope.agent.steps.open_collectives import OpenCollectives
from rankscope.agent.steps.patches import Patch

NO_SESSION = 0


def _recorded(_frame: FrameType, _event: str, _argument: object) -> None:
    """Mark the frame of a range that an ended session has recorded."""


def _unrecorded(_frame: FrameType, _event: str, _argument: object) -> None:
    """Mark the frame of a range that was open when a session began, which records nothing of it."""


class OpenRanges:
    """Track the session in which each range was entered, the user's sessions included. `__enter__` and `__exit__` of
    record_function are wrapped only while a session is on: outside of sessions no exit does harm, and the ranges of a
    training step cost nothing more.
    """

    def __init__(self) -> None:
        self.collectives = OpenCollectives()
        """What of the sessions is still to be recorded when they might end."""
        self._session = NO_SESSION
        self.records_functions = True
        """Whether the session that is on records ranges of C++, as all do but those of a user's scope alone."""
        self._sessions_begun = 0
        self._deferred_exits: deque[Callable[[], Any]] = deque()
        self._begin_watching: Callable[[], None] = lambda: None
        self._end_watching: Callable[[], None] = lambda: None

    def watch(self, record_function: Any) -> Callable[[], None]:
        """Wrap the methods of `record_function` while a session is on; return a function that removes the wrappers."""
        enter = Patch(record_function, "__enter__", self.wrap_enter)
        leave = Patch(record_function, "__exit__", self.wrap_exit)

        def begin() -> None:
            enter.apply()
            leave.apply()

        def end() -> None:
            enter.revert()
            leave.revert()

        self.watch_sessions(begin, end)
        return end

    def watch_sessions(self, begin: Callable[[], None], end: Callable[[], None]) -> None:
        """Call `begin`, which installs the wrappers, when a session begins, and `end`, which removes them, when it
        ends.
        """
        self._begin_watching, self._end_watching = begin, end

    def on_session_begin(self) -> None:
        """Handle the begin of a profiler session, ours or the user's."""
        self._sessions_begun += 1
        self._session = self._sessions_begun
        mark_frames(_unrecorded)
        self._begin_watching()
        self.collectives.begin()

    def on_session_end(self) -> None:
        """Handle the end of the session: run the deferred exits."""
        self._session = NO_SESSION
        if self.records_functions:
            mark_frames(_recorded)
        self.records_functions = True
        self._end_watching()
        self.collectives.end()
        while self._deferred_exits:
            self._deferred_exits.popleft()()

    @property
    def may_begin(self) -> bool:
        """Whether no range of C++ that an ended session has recorded is open on this thread."""
        return all(frame.f_trace in (None, _unrecorded) for frame in find_frames())

    @contextlib.contextmanager
    def beginning_session(self) -> Iterator[None]:
        """Handle the begin of the session that begins within the context, and its end if it does not begin."""
        self.on_session_begin()
        try:
            yield
        except BaseException:
            self.on_session_end()
            raise

    def wrap_enter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return `record_function.__enter__`, which notes the session."""

        @functools.wraps(original)
        def __enter__(opened: Any) -> Any:  # noqa: N807 - it stands in for the range's own
            opened._rankscope_session = self._session
            return original(opened)

        return __enter__

    def wrap_exit(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return `record_function.__exit__`, deferred where it would do harm. A range entered before this object
        existed counts as another session's.
        """

        @functools.wraps(original)
        def __exit__(opened: Any, *error: Any) -> Any:  # noqa: N807 - as above
            if self._session in (NO_SESSION, getattr(opened, "_rankscope_session", None)):
                return original(opened, *error)
            self._deferred_exits.append(lambda: original(opened, None, None, None))
            return None

        return __exit__


def mark_frames(mark: Callable[[FrameType, str, object], None]) -> None:
    """Mark the frames in ranges of C++ that have no mark, and that nobody traces."""
    for frame in find_frames():
        if frame.f_trace is None:
            frame.f_trace = mark


def find_frames() -> Iterator[FrameType]:
    """Return the frames of this thread in ranges of C++: those that run code of torch.compile, or that have called the
    forward of an autograd.Function.
    """
    compiled = getattr(sys.modules.get("torch._dynamo.convert_frame"), "output_codes", ())
    functions = getattr(sys.modules.get("torch.autograd.function"), "Function", None)
    apply = getattr(getattr(functions, "apply", None), "__code__", None)
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is apply or frame.f_code in compiled:
            yield frame
        frame = frame.f_back
