"""Writes that may wait for a network, one at a time on a daemon thread: nothing of training waits for them."""

import atexit
import time
from collections.abc import Callable
from typing import Final

from rankscope.agent.own_thread import OwnThread

EXIT_WAIT_S: Final = 2.0
"""How long after its begin a write may hold up the end of the process: what was found last is to be in the log."""


class BackgroundWrites:
    """The writes of one log, which starts them on one thread."""

    def __init__(self) -> None:
        self._thread: OwnThread | None = None
        self._begun_s = 0.0
        self._error: Exception | None = None

    def start(self, write: Callable[[], object]) -> None:
        """Start a write, and raise what the one before has raised. While that has not ended, start none and raise
        TimeoutError. Raise RuntimeError when there can be no thread.
        """
        if self._thread is not None and self._thread.is_alive():
            raise TimeoutError("the write before has not ended yet")
        error, self._error = self._error, None
        self._begun_s = time.monotonic()
        thread = OwnThread(target=self._carry_out, args=(write,), name="rankscope-run-log", daemon=True)
        thread.start()
        if self._thread is None:
            atexit.register(self._wait_at_exit)
        self._thread = thread
        if error is not None:
            raise error

    def _carry_out(self, write: Callable[[], object]) -> None:
        try:
            write()
        except Exception as error:  # noqa: BLE001 - raised by the next `start`
            self._error = error

    def _wait_at_exit(self) -> None:
        if self._thread is not None:
            self._thread.wait_for_end(max(0.0, self._begun_s + EXIT_WAIT_S - time.monotonic()))
