"""Marks parts of the script's steps in captures: `rankscope.agent.scope`.

Only while a capture is on a scope opens a range of torch's profiler. Inside of compiled code it never does: TorchDynamo
takes the tracing check for a constant, so the state of captures is in no guard, and a capture recompiles nothing.
Nothing but built-in modules is imported: torch loads this file wherever rankscope is installed.
"""

import sys
from _thread import get_ident

TYPE_CHECKING = False
"""As in `rankscope.agent`."""

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any, ParamSpec, TypeVar

    P = ParamSpec("P")
    R = TypeVar("R")

NAME_LENGTH_MAX = 200
"""Characters of a name that are kept."""
_LEFT_ALONE = 0x20 | 0x80 | 0x200
"""Flags of the code of generators, coroutines and asynchronous generators: a call only makes them."""


class ScopeSwitch:
    """Whether scopes are marked in this process, and by what."""

    def __init__(self) -> None:
        self.make_range: Callable[[str], Any] | None = None
        """Makes a context manager that marks a range of this name; None while no capture is on."""
        self.on_error: Callable[[Exception], None] = _ignore
        """Gets the errors of ranges. Must not raise."""

    def turn_on(self, make_range: "Callable[[str], Any]", on_error: "Callable[[Exception], None]") -> None:
        """Mark scopes that begin from now on."""
        self.on_error = on_error
        self.make_range = make_range

    def turn_off(self) -> None:
        """Mark no more scopes. Those that are open still end."""
        self.make_range = None


def _ignore(_error: Exception) -> None:
    pass


def find_tracing_check(torch: "Any") -> "Callable[[], bool]":
    """Return the function by which code knows that TorchDynamo traces it; without one, one that says no."""
    return getattr(getattr(torch, "compiler", None), "is_dynamo_compiling", None) or _is_never_traced


def _is_never_traced() -> bool:
    return False


switch = ScopeSwitch()
"""The switch of this process, which captures turn."""
_is_traced = find_tracing_check(sys.modules.get("torch"))


def learn_torch(torch: "Any") -> None:
    """Take the tracing check from the torch of this process, which may have been imported later than this file."""
    global _is_traced  # noqa: PLW0603 - as a global TorchDynamo takes it for a constant
    _is_traced = find_tracing_check(torch)


class scope:  # noqa: N801 - used like a keyword, as rankscope.agent.phase
    """Context manager and decorator that marks a part of the step in captures: `with scope("attention"):`.

    Scopes may be nested, and one object may be used again, also by several threads. Inside of compiled code a scope
    marks nothing. A decorated generator or coroutine function is left as it is: use `with` inside of it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._open: dict[int, list[Any]] | None = None

    def __enter__(self) -> "scope":  # noqa: PYI034 - typing.Self is Python 3.11
        """Begin the scope."""
        if not _is_traced() and switch.make_range is not None:
            self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        """End the scope; an exception inside passes through."""
        if not _is_traced() and self._open:
            self._end()

    def __call__(self, function: "Callable[P, R]") -> "Callable[P, R]":
        """Return the function with each of its calls marked."""
        import functools  # noqa: PLC0415 - not before the script runs

        if getattr(getattr(function, "__code__", None), "co_flags", 0) & _LEFT_ALONE:
            return function
        name = self._name

        @functools.wraps(function)
        def marked(*arguments: "P.args", **named: "P.kwargs") -> "R":
            with scope(name):
                return function(*arguments, **named)

        return marked

    def _begin(self) -> None:
        make_range = switch.make_range
        if make_range is None:  # the capture has ended meanwhile
            return
        try:
            one = make_range(str(self._name)[:NAME_LENGTH_MAX])
            one.__enter__()
            if self._open is None:
                self._open = {}
            self._open.setdefault(get_ident(), []).append(one)
        except Exception as error:  # noqa: BLE001 - no error of a capture may reach the training script
            switch.on_error(error)

    def _end(self) -> None:
        """End the innermost range of this thread: a scope that began before the capture has none."""
        opened = self._open or {}
        mine = opened.get(get_ident())
        if not mine:
            return
        one = mine.pop()
        if not mine:
            del opened[get_ident()]
        try:
            one.__exit__(None, None, None)
        except Exception as error:  # noqa: BLE001 - as above
            switch.on_error(error)
