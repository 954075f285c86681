"""The threads of the agent."""

import contextlib
import threading


class OwnThread(threading.Thread):
    """A thread of the agent that holds up nobody, and ends without a traceback also if threads were patched meanwhile:
    Python then looks for it under the name of a greenlet.
    """

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end for so many seconds; without a number do not wait. A script that joins all threads there are
        means its own, and this one runs until the script has ended.
        """
        if timeout is not None:
            super().join(timeout)

    def _delete(self) -> None:
        with contextlib.suppress(KeyError):
            super()._delete()  # type: ignore[misc] # of Python's own, called when the thread has run
