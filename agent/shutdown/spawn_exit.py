"""Stops the session at the end of a rank started by multiprocessing, as with torch.multiprocessing.spawn.

Such a process calls no sys.excepthook, and a forked one no atexit; both run multiprocessing's finalizers while the
final exception is being raised.
"""

import multiprocessing
import multiprocessing.util
import sys
from typing import Protocol

BEFORE_CHILDREN = 100
"""Priority of a finalizer that runs before those without priority, and before child processes are joined."""


class EndingSession(Protocol):
    """The methods of a session that run when its process ends."""

    def note_error(self, error: BaseException) -> None:
        """Record the exception that ends the process."""

    def note_exit(self, code: object) -> None:
        """Record the exit code."""

    def stop(self) -> None:
        """Report the end and stop."""


def stop_with_process(session: EndingSession) -> None:
    """Stop the session when this process ends, if multiprocessing has started it."""
    if multiprocessing.parent_process() is not None:
        multiprocessing.util.Finalize(None, _stop, args=(session,), exitpriority=BEFORE_CHILDREN)


def _stop(session: EndingSession) -> None:
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit):
        # torch's spawn passes the exception to the parent and exits with 1.
        if error.code and error.__context__ is not None:
            session.note_error(error.__context__)
        else:
            session.note_exit(error.code)
    elif error is not None:
        session.note_error(error)
    session.stop()
