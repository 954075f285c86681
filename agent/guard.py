"""Keeps errors of the agent away from training: counts them, logs them, and switches off a part that fails repeatedly.

The log line of an error has its file and line. With RANKSCOPE_DEBUG=1 the traceback goes to stderr as well, once for
each part and type of error.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from threading import get_ident
from types import FrameType, FunctionType, MethodType
from typing import Final, TextIO

from rankscope.agent.green_threads import find_patched
from rankscope.measure.own_files import is_own_file

DEBUG_VARIABLE: Final = "RANKSCOPE_DEBUG"
TRACEBACKS_MAX: Final = 64
"""Largest number of tracebacks that one process prints."""
VARIABLE_ARGUMENTS: Final = 0x04
"""As `inspect.CO_VARARGS`, without that import."""
WINDOWS: Final = "windows"
CAPTURES: Final = "captures"
LINE_SAMPLES: Final = "line_samples"
"""Parts that are imported when they are first used, and may be switched off before."""
HELD_MAX: Final = 8
"""Errors of signal handlers that wait for code of ours to end: one is usual."""

_printed: set[tuple[str, str]] = set()


class ScriptInterruptError(Exception):
    """A signal handler of the script has raised `error` while the agent waited. It is the script's, not the agent's."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def pause(seconds: float) -> None:
    """Sleep; Python runs signal handlers of the script meanwhile. Raises ScriptInterruptError with what one raises."""
    try:
        time.sleep(seconds)
    except Exception as error:  # noqa: BLE001 - the script's, and passed on to it
        raise ScriptInterruptError(error) from None


class Guard:
    """Counter of exceptions per part of the agent, which switches a part off after `error_budget` of them.

    A hook checks `is_off(part)`, runs, and passes an exception to `record(part, error)`; it never raises. What a signal
    handler of the script has raised amid code of ours is not counted but held, until `pop_held` gives it back: ours
    goes on, and the script gets its own once that is done.
    """

    def __init__(self, error_budget: int) -> None:
        self._error_budget = error_budget
        self.on_off: Callable[[str], object] | None = None
        """Called with a part that is switched off for its errors, on the thread of the last one. Must not raise."""
        self._errors: dict[str, int] = {}
        self._off: set[str] = set()
        self._held: list[tuple[int, BaseException]] = []

    @property
    def errors(self) -> dict[str, int]:
        """Number of errors by part."""
        return dict(self._errors)

    @property
    def held(self) -> int:
        """How many errors of signal handlers wait for code of ours to end."""
        return len(self._held)

    def is_off(self, part: str) -> bool:
        """Return whether the part has been switched off."""
        return part in self._off

    def switch_off(self, part: str) -> None:
        """Switch a part off that has no error."""
        self._off.add(part)

    def record(self, part: str, error: BaseException) -> None:
        """Count an error of a part, unless it is the script's. Log the first, and the one that uses up the budget."""
        if is_of_script(error):
            self.hold(error)
            return
        count = self._errors.get(part, 0) + 1
        self._errors[part] = count
        if find_patched():
            print_traceback(part, error)  # what follows from the patch is said in one line, by the agent thread
        elif count == 1:
            log_line(f"{part} failed ({explain(part, error)}); training is not affected, the error is counted")
        else:
            print_traceback(part, error)
        if count >= self._error_budget and part not in self._off:
            self._off.add(part)
            log_line(f"{part} is switched off after {count} errors")
            if self.on_off is not None:
                self.on_off(part)

    def hold(self, error: BaseException) -> None:
        """Keep what a signal handler of the script has raised on this thread."""
        if len(self._held) < HELD_MAX:
            self._held.append((get_ident(), error))

    def pop_held(self) -> BaseException | None:
        """Return what is held for this thread, once; the first where there are several."""
        thread = get_ident()
        for place, (owner, error) in enumerate(self._held):
            if owner == thread:
                del self._held[place]
                return error
        return None

    def raise_held(self) -> None:
        """Raise what is held for this thread, once: the script's code follows."""
        error = self.pop_held() if self._held else None
        if error is not None:
            raise error


def is_of_script(error: BaseException) -> bool:
    """Return whether a signal handler has raised this amid code of ours, or Python's own one (KeyboardInterrupt): it is
    the script's. A handler is known as such, or by its argument, the frame that it has interrupted, where another one
    has taken its place. Ours raise only Exception.
    """
    if not isinstance(error, Exception):
        return True
    handlers = {_find_code(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in handlers or _is_handler(trace.tb_frame):
            return True
        trace = trace.tb_next
    return False


def _find_code(handler: object) -> object:
    """Return the code of a handler in Python; None for another one. Nothing of the script's is called: an object may
    have any `__getattr__`.
    """
    while True:
        kind = type(handler)
        if issubclass(kind, partial):
            handler = partial.func.__get__(handler)
        elif kind is MethodType:
            handler = MethodType.__func__.__get__(handler)
        elif kind is FunctionType:
            return FunctionType.__code__.__get__(handler)  # type: ignore[attr-defined]
        else:
            called = (vars(one).get("__call__") for one in kind.__mro__)
            found = next((one for one in called if one is not None), None)
            return FunctionType.__code__.__get__(found) if type(found) is FunctionType else None  # type: ignore[attr-defined]


def _is_handler(frame: FrameType) -> bool:
    caller, code = frame.f_back, frame.f_code
    if caller is None:
        return False
    names = code.co_varnames[: code.co_argcount + bool(code.co_flags & VARIABLE_ARGUMENTS)]
    values = [frame.f_locals.get(name) for name in names]
    return any(value is caller or (type(value) is tuple and any(one is caller for one in value)) for value in values)


def describe(error: BaseException) -> str:
    """Return the error's type and text, or the type alone when the text cannot be made. Never raise.

    >>> describe(ValueError("no such rank"))
    'ValueError: no such rank'
    """
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - __str__ may be foreign code
        return type(error).__name__


def explain(part: str, error: BaseException) -> str:
    """Return an error of a part with its place; with RANKSCOPE_DEBUG=1 print the traceback. Never raise."""
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
    ours = [place for place in places if is_own_file(place[0])]
    return "{}:{}".format(*(ours or places)[-1]) if places else ""


def find_last_error(text: str) -> str:
    r"""Return the error of the last traceback in the output of a child process, and where it was raised.

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
    """Return whether RANKSCOPE_DEBUG asks for tracebacks."""
    return os.environ.get(DEBUG_VARIABLE, "") not in ("", "0")


def print_traceback(part: str, error: BaseException) -> None:
    """Print the error's traceback on stderr if debugging, once for each part and type. Never raise."""
    key = part, type(error).__name__
    if not is_debugging() or key in _printed or len(_printed) >= TRACEBACKS_MAX:
        return
    _printed.add(key)
    with contextlib.suppress(Exception):  # __str__ may be foreign code
        import traceback  # noqa: PLC0415 - seldom needed

        lines = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        log_line(f"traceback of {part} ({DEBUG_VARIABLE} is set):\n{lines.rstrip()}")


def log_line(text: str, stream: TextIO | None = None) -> None:
    """Write a line for the user on stderr, or on `stream`. Never raise: the stream may be closed or the disk full.

    The interpreter's stderr is written unbuffered: text that a full disk refuses would stay in the buffer, and Python
    would exit with status 120 because the final flush fails.
    """
    stream = stream or sys.stderr
    line = f"rankscope: {text}\n"
    with contextlib.suppress(Exception):
        if sys.__stderr__ is not None and stream is sys.__stderr__:
            os.write(stream.fileno(), line.encode(errors="backslashreplace"))
        else:
            stream.write(line)
            stream.flush()
