"""Ranges (record_function) that are still open when the profiler session they were entered in ends.

torch 2.13 keeps in an open range a pointer into that session's memory, and leaving the range writes through it whenever
a session is on, also when that is another one and the memory has been given back: the heap is corrupted (valgrind:
invalid write in onFunctionExit). Windows come back to back and begin inside ranges, such as the one that torch puts
around every optimizer step or the user's own around an epoch. While no session is on leaving writes nothing. So a range
that would be left in another session than it was entered in is left a little later: when that session has ended.
"""

import functools
from collections import deque
from collections.abc import Callable
from typing import Any

NO_SESSION = 0


class OpenRanges:
    """Knows in which session each range was entered, the user's sessions included. `__enter__` and `__exit__` of
    record_function are wrapped by it while a session is on; outside of all nothing harmful can happen, and a training
    step that enters a handful of ranges pays nothing.
    """

    def __init__(self) -> None:
        self._session = NO_SESSION
        self._sessions_begun = 0
        self._deferred_exits: deque[Callable[[], Any]] = deque()
        self._begin_watching: Callable[[], None] = lambda: None
        self._end_watching: Callable[[], None] = lambda: None

    def watch_sessions(self, begin: Callable[[], None], end: Callable[[], None]) -> None:
        """From now on `begin` puts the wrappers in place when a session begins, and `end` takes them away again."""
        self._begin_watching, self._end_watching = begin, end

    def on_session_begin(self) -> None:
        """A profiler session, anybody's, is about to be on."""
        self._sessions_begun += 1
        self._session = self._sessions_begun
        self._begin_watching()

    def on_session_end(self) -> None:
        """No session is on any more: what waited for this is left now."""
        self._session = NO_SESSION
        self._end_watching()
        while self._deferred_exits:
            self._deferred_exits.popleft()()

    # Each is one Python call around torch's own: a training step enters a handful of ranges.

    def wrap_enter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`record_function.__enter__`, watched."""

        @functools.wraps(original)
        def __enter__(opened: Any) -> Any:  # noqa: N807 - it stands in for the range's own
            opened._rankscope_session = self._session
            return original(opened)

        return __enter__

    def wrap_exit(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`record_function.__exit__`, now or when it does no harm. A range entered before this object was there counts
        as another session's.
        """

        @functools.wraps(original)
        def __exit__(opened: Any, *error: Any) -> Any:  # noqa: N807 - as above
            if self._session in (NO_SESSION, getattr(opened, "_rankscope_session", None)):
                return original(opened, *error)
            self._deferred_exits.append(lambda: original(opened, None, None, None))
            return None

        return __exit__
