"""Read single keys from a terminal."""

import contextlib
import os
import select
import sys
import termios
import tty
from collections.abc import Iterator

from rankscope.collector.top.board import BACKSPACE, DOWN, END, ENTER, ESCAPE, HOME, PAGE_DOWN, PAGE_UP, UP

READ_BYTES = 1024
ESCAPE_SEQUENCES = {
    "\x1b[A": UP, "\x1bOA": UP, "\x1b[B": DOWN, "\x1bOB": DOWN, "\x1b[5~": PAGE_UP, "\x1b[6~": PAGE_DOWN,
    "\x1b[H": HOME, "\x1bOH": HOME, "\x1b[1~": HOME, "\x1b[F": END, "\x1bOF": END, "\x1b[4~": END,
}  # fmt: skip
"""Escape sequences of the keys (xterm's ctlseqs in both modes, and the Linux console)."""
SIGNS = {"\r": ENTER, "\n": ENTER, "\x7f": BACKSPACE, "\x08": BACKSPACE, "\x1b": ESCAPE, "\x04": "q"}
"""Control characters of keys. Ctrl-D quits."""


@contextlib.contextmanager
def raw_terminal() -> Iterator[int]:
    """Yield stdin's descriptor with echo and line buffering off; restore the terminal when the block ends."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def read_keys(descriptor: int, wait_s: float) -> list[str]:
    """Return the keys pressed, after at most `wait_s` seconds. Raises EOFError when the terminal is closed."""
    readable, _, _ = select.select([descriptor], [], [], wait_s)
    if not readable:
        return []
    data = os.read(descriptor, READ_BYTES)
    if not data:
        raise EOFError
    return split_keys(data.decode(errors="replace"))


def split_keys(text: str) -> list[str]:
    r"""Return the keys in the text that a terminal sent, without unknown ones.

    >>> split_keys("s\x1b[B\x1b[6~/\r"), split_keys("\x1b"), split_keys("\x1b[99;1z!")
    (['s', 'down', 'page down', '/', 'enter'], ['escape'], ['!'])
    """
    keys = []
    place = 0
    while place < len(text):
        length = _sequence_length(text, place)
        sign = text[place : place + length]
        place += length
        key = ESCAPE_SEQUENCES.get(sign) or SIGNS.get(sign) or (sign if sign.isprintable() else "")
        if key:
            keys.append(key)
    return keys


def _sequence_length(text: str, place: int) -> int:
    """Return the number of characters of one key: an escape sequence ends with a letter or `~` (ECMA-48, 5.4)."""
    if not text.startswith(("\x1b[", "\x1bO"), place):
        return 1
    for end in range(place + 2, len(text)):
        if "@" <= text[end] <= "~":
            return end + 1 - place
    return len(text) - place
