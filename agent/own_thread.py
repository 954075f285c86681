"""The threads of the agent."""

import contextlib
import threading
from typing import Any

END_S = 1.0
"""Time to end, without anything left to do."""


class OwnThread(threading.Thread):
    """A thread of the agent that holds up nobody, and ends without a traceback also if threads were patched meanwhile:
    Python then looks for it under the name of a greenlet.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._over = threading.Event()

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
