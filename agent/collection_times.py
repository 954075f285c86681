"""Notes when Python's garbage collector runs, without a step of Python.

    gc.callbacks    (phase, details) -> the attribute of that name -> clock and thread -> a list     all within C

A signal that comes amid a collection is handled at the next step of Python. In a callback written in Python that would
be within the callback, and what a handler raises there is printed and lost: Ctrl-C, a handler of SIGTERM or of a timer
would end nothing. A collection may take a tenth of a second.
"""

import gc
import os
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import repeat, starmap
from threading import get_ident
from time import monotonic_ns
from typing import Any, Final, NamedTuple

START: Final = "start"
STOP: Final = "stop"
"""The phases, as `gc` names them."""
EVENTS_MAX: Final = 65_536
"""Begins and ends that are kept until they are taken: those of 4 s with 8,000 collections a second."""


class Collection(NamedTuple):
    """A collection on a thread, by the monotonic clock."""

    thread: int
    begin_ns: int
    end_ns: int

    @property
    def duration_ns(self) -> int:
        """How long it took."""
        return self.end_ns - self.begin_ns


class CollectionTimes:
    """The collections of this process while it is installed, for one thread that takes them.

    A forked child notes none until it installs its own.
    """

    def __init__(self, read_clock_ns: Callable[[], int] = monotonic_ns) -> None:
        self._events: deque[tuple[str, int, int]] = deque(maxlen=EVENTS_MAX)
        notes = {phase: _make_note(phase, read_clock_ns, self._events.append) for phase in (START, STOP)}
        self._callback = _Callback(getattr, type("Phases", (), notes)())

    def install(self) -> None:
        """Note collections from now on."""
        gc.callbacks.append(self._callback)

    def remove(self) -> None:
        """Note no more. Does nothing where it is not installed, or the script has emptied `gc.callbacks`."""
        _remove(lambda one: one is self._callback)

    def take(self) -> list[Collection]:
        """Return the collections that have ended since the last call. One that was going on when this was installed,
        or removed, is left out.
        """
        events, found = self._events, []
        while len(events) > 1 or (events and events[0][0] == STOP):
            phase, begin_ns, thread = events.popleft()
            if phase == START and events[0][0] == STOP:
                _, end_ns, _ = events.popleft()
                found.append(Collection(thread, begin_ns, end_ns))
        return found


class _Callback(partial[Any]):
    """A callback of ours, told by its type."""


def _make_note(phase: str, read_clock_ns: Callable[[], int], append: Callable[[Any], object]) -> property:
    """Return an attribute that appends phase, time and thread each time it is read. With a clock of C nothing in it is
    Python's code.
    """
    events = zip(repeat(phase), starmap(read_clock_ns, repeat(())), starmap(get_ident, repeat(())))
    return property(partial(next, map(append, events)))


def _remove(is_wanted: Callable[[object], bool]) -> None:
    for place in reversed(range(len(gc.callbacks))):
        if is_wanted(gc.callbacks[place]):
            del gc.callbacks[place]


os.register_at_fork(after_in_child=lambda: _remove(lambda one: type(one) is _Callback))
