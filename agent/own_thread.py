"""The threads of the agent."""

import contextlib
import threading


class OwnThread(threading.Thread):
    """A thread of the agent that ends without a traceback also if threads were patched meanwhile: Python then
    looks for it under the name of a greenlet.
    """

    def _delete(self) -> None:
        with contextlib.suppress(KeyError):
            super()._delete()  # type: ignore[misc] # of Python's own, called when the thread has run
