"""Call a store without waiting for it: that of a server may take as long as the network likes, or never answer.

A call to a file is made at once, since it waits 0.2 s at most; one to a server in a thread, one at a time, and the
caller looks later whether it has returned.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from rankscope.collector.store_address import StoreAddress

T = TypeVar("T")

FIRST_S_MAX: Final = 10.0
"""Longest wait for a server when a collector starts: it then goes on with the runs and incidents of the last one."""
LAST_S_MAX: Final = 10.0
"""Longest wait for a server when a collector ends."""
STUCK_S: Final = 30.0
"""A call that takes longer is a problem that is said; it is not given up, since it may still return."""


class StoreCalls(Generic[T]):
    """Calls to one store, one after the other. For one thread."""

    def __init__(self, address: StoreAddress | None) -> None:
        self._is_at_once = not address or isinstance(address, Path)
        self._call: _Call[T] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a call has begun whose result was not taken."""
        return self._call is not None

    def find_problem(self) -> str | None:
        """Return that a call takes too long; None where none does."""
        call = self._call
        if call is None or call.done.is_set() or time.monotonic() - call.begun_s < STUCK_S:
            return None
        return f"the store has not answered for {STUCK_S:g} s"

    def begin(self, call: Callable[[], T]) -> None:
        """Begin a call; none may be on. It returns its errors: one that it raises is raised by `take`."""
        self._call = _Call(call)
        if self._is_at_once:
            self._call.run()
        else:
            threading.Thread(target=self._call.run, name="rankscope-store-call", daemon=True).start()

    def take(self, wait_s: float = 0.0) -> T | None:
        """Return the result of the call, once; None where there is none within `wait_s`."""
        call = self._call
        if call is None or not call.done.wait(wait_s):
            return None
        self._call = None
        if call.error is not None:
            raise call.error
        return call.result

    def drop(self) -> None:
        """Take no notice of the call that is on."""
        self._call = None


class _Call(Generic[T]):
    """One call, in whichever thread."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self.begun_s = time.monotonic()
        self.done = threading.Event()
        self.result: T | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Make the call, and keep what it returns or raises."""
        try:
            self.result = self._call()
        except BaseException as error:  # noqa: BLE001 - who takes the result raises it
            self.error = error
        self.done.set()
