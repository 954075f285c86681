"""The boundary between our mistakes and somebody's training: errors are counted, said, and switch their part off."""

import contextlib
import os
import sys
from collections.abc import Callable
from typing import TextIO


class Guard:
    """Counts the exceptions of each part of the agent, and switches a part off that has used up its budget.

    A hook asks `is_off(part)`, runs, and hands an exception to `record(part, error)`; it never lets one through.
    `on_off` is told the part, on the thread that made the error, and must not raise.
    """

    def __init__(self, error_budget: int, on_off: Callable[[str], None] | None = None) -> None:
        self._error_budget = error_budget
        self._on_off = on_off
        self._errors: dict[str, int] = {}
        self._off: set[str] = set()

    @property
    def errors(self) -> dict[str, int]:
        """How many errors each part has made."""
        return dict(self._errors)

    def is_off(self, part: str) -> bool:
        """Whether the part has been switched off."""
        return part in self._off

    def record(self, part: str, error: BaseException) -> None:
        """Count an error of a part. The first is said on stderr, and the one that uses up the budget."""
        count = self._errors.get(part, 0) + 1
        self._errors[part] = count
        if count == 1:
            say(f"{part} failed ({describe(error)}); training is not affected, this is counted")
        if count >= self._error_budget and part not in self._off:
            self._off.add(part)
            say(f"{part} is switched off after {count} errors")
            if self._on_off is not None:
                self._on_off(part)


def describe(error: BaseException) -> str:
    """The error's type and text, the type alone when the text cannot be made. Never raises.

    >>> describe(ValueError("no such rank"))
    'ValueError: no such rank'
    """
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - __str__ is anybody's code
        return type(error).__name__


def say(text: str, stream: TextIO | None = None) -> None:
    """One line on stderr for the person who runs the job. Never raises: the stream may be closed, the disk full, or
    sys.stderr an object of the script's own.

    The interpreter's own stderr is written past its buffer. What a full disk refuses would stay in there, the flush at
    the end of the process would fail, and Python would end a training that went well with status 120.
    """
    stream = stream or sys.stderr
    line = f"rankscope: {text}\n"
    with contextlib.suppress(Exception):
        if sys.__stderr__ is not None and stream is sys.__stderr__:
            os.write(stream.fileno(), line.encode(errors="backslashreplace"))
        else:
            stream.write(line)
            stream.flush()
