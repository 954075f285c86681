"""Keys as they are pressed, from a terminal that would otherwise hand over whole lines."""

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
"""What terminals send for them (xterm's ctlseqs, both of its modes, and the Linux console)."""
SIGNS = {"\r": ENTER, "\n": ENTER, "\x7f": BACKSPACE, "\x08": BACKSPACE, "\x1b": ESCAPE, "\x04": "q"}
"""Ctrl-D ends what reads from a terminal."""


@contextlib.contextmanager
def raw_terminal() -> Iterator[int]:
    """Keys come one by one and are not shown, until the block ends, however it does. Gives stdin's descriptor."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def read_keys(descriptor: int, wait_s: float) -> list[str]:
    """The keys pressed until now, after at most `wait_s`. Raises EOFError when the terminal has gone."""
    readable, _, _ = select.select([descriptor], [], [], wait_s)
    if not readable:
        return []
    data = os.read(descriptor, READ_BYTES)
    if not data:
        raise EOFError
    return split_keys(data.decode(errors="replace"))


def split_keys(text: str) -> list[str]:
    r"""The keys in what a terminal sent at once. What it sends for keys that are not known is left out.

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
    """How many signs belong to one key: an escape sequence ends with its first letter or `~` (ECMA-48, 5.4)."""
    if not text.startswith(("\x1b[", "\x1bO"), place):
        return 1
    for end in range(place + 2, len(text)):
        if "@" <= text[end] <= "~":
            return end + 1 - place
    return len(text) - place
