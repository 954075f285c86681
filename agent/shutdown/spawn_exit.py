"""The end of a rank that multiprocessing has started, as torch.multiprocessing.spawn does.

Such a process calls no sys.excepthook, and a forked one no atexit; both run multiprocessing's finalizers, while the
exception that ends them is being raised.
"""

import multiprocessing
import multiprocessing.util
import sys
from typing import Protocol

BEFORE_CHILDREN = 100
"""The priority of a finalizer that runs before those without one, and before the children are waited for."""


class EndingSession(Protocol):
    """What is called of a session when its process ends."""

    def note_error(self, error: BaseException) -> None:
        """The exception that ends the process."""

    def note_exit(self, code: object) -> None:
        """The code that it exits with."""

    def stop(self) -> None:
        """Report the end, and stop."""


def stop_with_process(session: EndingSession) -> None:
    """Stop the session when this process ends, if multiprocessing has started it."""
    if multiprocessing.parent_process() is not None:
        multiprocessing.util.Finalize(None, _stop, args=(session,), exitpriority=BEFORE_CHILDREN)


def _stop(session: EndingSession) -> None:
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit):
        # torch's spawn hands what was raised to the parent, and ends with 1 instead.
        if error.code and error.__context__ is not None:
            session.note_error(error.__context__)
        else:
            session.note_exit(error.code)
    elif error is not None:
        session.note_error(error)
    session.stop()
