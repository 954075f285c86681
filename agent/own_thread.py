"""The threads of the agent."""

import contextlib
import signal
import threading
from _signal import pthread_sigmask as set_mask  # type: ignore[import-not-found] # `signal` has Python around it
from collections.abc import Callable
from typing import Any, Final

END_S = 1.0
"""Time to end, without anything left to do."""
OF_A_THREAD: Final = frozenset(
    {
        signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGSYS, signal.SIGTRAP,
    }
)  # fmt: skip
"""Signals that come to the thread that has caused them. Blocked, they would end the process unheard."""
_OTHERS: Final = frozenset(signal.valid_signals() - OF_A_THREAD)


def call_without_signals(action: Callable[[], object]) -> None:
    """Call what starts threads that are to take no signals: they inherit the mask of this one. Raises what the action
    does, and what a signal handler of the script raises for a signal that has come meanwhile.

    A script that blocks a signal to wait for it (`signal.sigwait`, `signal.sigtimedwait`) would be ended by it
    otherwise, since the kernel gives it to any thread that does not block it.
    """
    before = set_mask(signal.SIG_BLOCK, ())
    try:
        try:
            set_mask(signal.SIG_BLOCK, _OTHERS)
            action()
        finally:
            set_mask(signal.SIG_SETMASK, before)
    finally:  # once more: other threads take signals, and a handler of the script may raise in front of the first
        set_mask(signal.SIG_SETMASK, before)


class OwnThread(threading.Thread):
    """A thread of the agent that holds up nobody, and ends without a traceback also if threads were patched meanwhile:
    Python then looks for it under the name of a greenlet.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._over = threading.Event()

    def start(self) -> None:
        """Start it. Raises RuntimeError where there can be no thread, and what a signal handler of the script raises
        once it has started.
        """
        call_without_signals(super().start)

    def run(self) -> None:
        """Run its target, and note its end."""
        try:
            super().run()
        finally:
            self._over.set()

    def join(self, timeout: float | None = None) -> None:
        """Do not wait: a script that joins all threads there are means its own, and this one runs until the script has
        ended.
        """

    def wait_for_end(self, seconds: float) -> None:
        """Wait for its end, at most so long. Python's own join() takes a thread for ended after a signal handler has
        raised amid it (3.11): so it is called once the thread has nothing left to do but to end.
        """
        if self.ident is not None and self._over.wait(seconds):
            super().join(END_S)

    def _delete(self) -> None:
        with contextlib.suppress(KeyError):
            super()._delete()  # type: ignore[misc] # of Python's own, called when the thread has run
