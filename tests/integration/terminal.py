"""A real pseudo-terminal with `rankscope top` in it, and an emulator that says what a person would see."""

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator

import pyte

from tests.integration.serving import DEADLINE_S

COLUMNS, LINES = 80, 24
READ_BYTES = 65_536
LOOK_S = 0.1


def take_terminal() -> None:
    """Make stdin the terminal of this session, from which Ctrl-C comes."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """A pseudo-terminal with `rankscope top` in it."""

    def __init__(self, *arguments: str, columns: int = COLUMNS, lines: int = LINES) -> None:
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self._ours, theirs = pty.openpty()
        self.resize(columns, lines)
        self.attributes = termios.tcgetattr(theirs)
        self._theirs = theirs
        self.child = subprocess.Popen(
            [sys.executable, "-m", "rankscope.collector", "top", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "", "LINES": ""},
            start_new_session=True,
            preexec_fn=take_terminal,  # noqa: PLW1509 - one system call
        )

    def resize(self, columns: int, lines: int) -> None:
        """As the window's corner is dragged."""
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.screen.resize(lines, columns)

    def press(self, keys: str) -> None:
        """As somebody types."""
        os.write(self._ours, keys.encode())

    def wait_until(self, holds: Callable[[list[str]], bool]) -> list[str]:
        """The lines of the screen once it is so. Fails after the deadline with what it shows."""
        end_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < end_s:
            readable, _, _ = select.select([self._ours], [], [], LOOK_S)
            if readable:
                self._stream.feed(os.read(self._ours, READ_BYTES))
            if holds(self.lines):
                return self.lines
        raise AssertionError("the screen shows:\n" + "\n".join(self.lines))

    def wait_for_end(self, seconds_max: float) -> int:
        """The exit code; until then what is written is read, as by a person's terminal. Fails with what it shows."""
        end_s = time.monotonic() + seconds_max
        while self.child.poll() is None:
            assert time.monotonic() < end_s, "it goes on, and shows:\n" + "\n".join(self.lines)
            if select.select([self._ours], [], [], LOOK_S)[0]:
                self._stream.feed(os.read(self._ours, READ_BYTES))
        return self.child.returncode

    @property
    def lines(self) -> list[str]:
        """What it shows, line by line."""
        return [text.rstrip() for text in self.screen.display]

    @property
    def is_as_before(self) -> bool:
        """Whether the terminal takes whole lines and shows what is typed, as it did."""
        return termios.tcgetattr(self._theirs) == self.attributes

    def close(self) -> None:
        """Make sure that nothing is left."""
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        os.close(self._ours)
        os.close(self._theirs)


@contextlib.contextmanager
def top(*arguments: str, columns: int = COLUMNS, lines: int = LINES) -> Iterator[Terminal]:
    """Start it; it does not outlive the block."""
    terminal = Terminal(*arguments, columns=columns, lines=lines)
    try:
        yield terminal
    finally:
        terminal.close()
