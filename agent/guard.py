"""The boundary between our mistakes and somebody's training: errors are counted, said, and switch their part off.

What is said of an error names the file and the line. With RANKSCOPE_DEBUG=1 its traceback goes to stderr as well, once
for each part and type of error.
"""

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Final, TextIO

DEBUG_VARIABLE: Final = "RANKSCOPE_DEBUG"
TRACEBACKS_MAX: Final = 64
"""Tracebacks that one process prints at most."""

_PACKAGES: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OUR_FOLDERS: Final = tuple(os.path.join(_PACKAGES, name, "") for name in ("agent", "measure", "uplink"))
_printed: set[tuple[str, str]] = set()


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
            log_line(f"{part} failed ({explain(part, error)}); training is not affected, this is counted")
        else:
            print_traceback(part, error)
        if count >= self._error_budget and part not in self._off:
            self._off.add(part)
            log_line(f"{part} is switched off after {count} errors")
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


def explain(part: str, error: BaseException) -> str:
    """Return what happened in a part of the agent, and where; with RANKSCOPE_DEBUG=1 print the traceback.

    Never raise.
    """
    print_traceback(part, error)
    place = find_place(error)
    return f"{describe(error)}, at {place}" if place else describe(error)


def find_place(error: BaseException) -> str:
    """Return the file and line of the innermost frame of our code, else of any; empty for an error never raised."""
    places = []
    trace = error.__traceback__
    while trace is not None:
        places.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    ours = [place for place in places if place[0].startswith(_OUR_FOLDERS)]
    return "{}:{}".format(*(ours or places)[-1]) if places else ""


def find_last_error(text: str) -> str:
    r"""Return the error that the last traceback in the text of a child process ends with, and where it was raised.

    >>> find_last_error('Traceback:\n  File "/a.py", line 3, in f\n    g()\n  File "/b.py", line 7, in g\nOSError: no')
    'OSError: no, at /b.py:7'
    >>> find_last_error("")
    ''
    """
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    named = [line.strip().split('"') for line in lines if line.lstrip().startswith('File "')]
    frames = [parts for parts in named if len(parts) > 2]  # noqa: PLR2004 - a text that was cut ends anywhere
    numbers = ["".join(filter(str.isdigit, frame[2].partition("line ")[2].partition(",")[0])) for frame in frames]
    place = f", at {frames[-1][1]}:{numbers[-1]}" if frames else ""
    return f"{lines[-1].strip()[:200]}{place}"


def is_debugging() -> bool:
    """Whether tracebacks are wanted."""
    return os.environ.get(DEBUG_VARIABLE, "") not in ("", "0")


def print_traceback(part: str, error: BaseException) -> None:
    """Print the error's traceback on stderr where that is wanted, once for each part and type. Never raise."""
    key = part, type(error).__name__
    if not is_debugging() or key in _printed or len(_printed) >= TRACEBACKS_MAX:
        return
    _printed.add(key)
    with contextlib.suppress(Exception):  # its text is made by anybody's code
        import traceback  # noqa: PLC0415 - few need it

        lines = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        log_line(f"traceback of {part} ({DEBUG_VARIABLE} is set):\n{lines.rstrip()}")


def log_line(text: str, stream: TextIO | None = None) -> None:
    """Write a line on stderr for the person who runs the job. Never raises: the stream may be closed, the disk full, or
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
