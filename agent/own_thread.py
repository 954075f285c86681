"""The threads of the agent."""

import contextlib
import threading


class OwnThread(threading.Thread):
    """A thread of the agent that holds up nobody, and ends without a traceback also if threads were patched meanwhile:
    Python then looks for it under the name of a greenlet.
    """

    def join(self, timeout: float | None = None) -> None:
        """Do not wait: a script that joins all threads there are means its own, and this one runs until the script has
        ended.
        """

    def wait_for_end(self, seconds: float) -> None:
        """Wait for its end, at most so long."""
        super().join(seconds)

    def _delete(self) -> None:
        with contextlib.suppress(KeyError):
            super()._delete()  # type: ignore[misc] # of Python's own, called when the thread has run
