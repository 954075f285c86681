"""Show on stderr how far a command is that reads many files, or large ones.

On a terminal that is one line, written over and removed at the end; elsewhere a line after 10 s, and one more each time
that twice as long has passed, so that a log stays short.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final, TextIO

from rankscope.collector.traces.files import Progress

ALL_GOOD, SOME_FAILED, NOTHING_USABLE = 0, 1, 2
"""Exit statuses of `analyze` and `merge`."""
REDRAW_S: Final = 0.2
FIRST_LINE_S: Final = 10.0
"""Most commands are over by then."""
_ERASE: Final = "\r\x1b[K"


class ProgressLine:
    """The line of one command. `now_s` is a clock in s."""

    def __init__(self, unit: str, out: TextIO, now_s: Callable[[], float] = time.monotonic) -> None:
        """Write nothing yet."""
        self._unit, self._out, self._now_s = unit, out, now_s
        self._is_terminal = out.isatty()
        self._begin_s = now_s()
        self._next_s = self._begin_s + (REDRAW_S if self._is_terminal else FIRST_LINE_S)

    def move(self, done: float, of: int) -> None:
        """Show that so many of all units are done, if it is time to."""
        now_s = self._now_s()
        if now_s < self._next_s:
            return
        passed_s = now_s - self._begin_s
        text = self._describe(done, of, passed_s)
        if self._is_terminal:
            self._write(f"{_ERASE}{text}")
            self._next_s = now_s + REDRAW_S
        else:
            self._write(f"{text}\n")
            self._next_s = self._begin_s + 2 * passed_s

    def close(self) -> None:
        """Remove the line from a terminal."""
        if self._is_terminal:
            self._write(_ERASE)

    def _describe(self, done: float, of: int, passed_s: float) -> str:
        doing = "comparing" if done >= of else f"{100 * done / max(1, of):.0f} %"
        return f"rankscope: {doing}; {int(done):,} of {of:,} {self._unit}, {passed_s:.0f} s"

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # closed, or nobody reads it
            self._out.write(text)
            self._out.flush()


@contextlib.contextmanager
def show_progress(unit: str) -> Iterator[Progress]:
    """Yield what to call with the number of units done, and of all."""
    line = ProgressLine(unit, sys.stderr)
    try:
        yield line.move
    finally:
        line.close()
