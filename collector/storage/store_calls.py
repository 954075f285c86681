"""Call a store without waiting for it: that of a server may take as long as the network likes, or never answer.

A call to a file is made at once, since it waits 0.2 s at most; one to a server in a thread, one at a time, and the
caller looks later whether it has returned.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Final, Generic, TypeVar

from rankscope.collector.store_address import StoreAddress

T = TypeVar("T")

FIRST_S_MAX: Final = 10.0
"""Longest wait for a server when a collector starts: it then goes on with the runs and incidents of the last one."""
LAST_S_MAX: Final = 10.0
"""Longest wait for a server when a collector ends."""
RETRY_S: Final = 5.0
"""Time between two tries while a store cannot be used or written to: what waits for it is bounded, and a try costs some
milliseconds.
"""
STUCK_S: Final = 30.0
"""A call that takes longer is a problem that is said; it is not given up, since it may still return."""


class StoreCalls(Generic[T]):
    """Calls to one store, one after the other. For one thread."""

    def __init__(self, address: StoreAddress | None) -> None:
        self._is_at_once = not address or isinstance(address, Path)
        self._call: Future[T] | None = None
        self._begun_s = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether a call has begun whose result was not taken."""
        return self._call is not None

    def find_problem(self) -> str | None:
        """Return that a call takes too long; None where none does."""
        if self._call is None or self._call.done() or time.monotonic() - self._begun_s < STUCK_S:
            return None
        return f"the store has not answered for {STUCK_S:g} s"

    def begin(self, call: Callable[[], T]) -> None:
        """Begin a call; none may be on. It returns its errors: one that it raises is raised by `take`."""
        self._call, self._begun_s = Future(), time.monotonic()
        if self._is_at_once:
            _make(call, self._call)
        else:  # no executor: it would wait at the end for a call that never returns
            threading.Thread(target=_make, args=(call, self._call), name="rankscope-store-call", daemon=True).start()

    def take(self, wait_s: float = 0.0) -> T | None:
        """Return the result of the call, once; None where there is none within `wait_s`."""
        call = self._call
        if call is None or wait((call,), wait_s).not_done:
            return None
        self._call = None
        return call.result()

    def drop(self) -> None:
        """Take no notice of the call that is on."""
        self._call = None


def _make(call: Callable[[], T], future: "Future[T]") -> None:
    """Make a call, in whichever thread, and keep what it returns or raises."""
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001 - who takes the result raises it
        future.set_exception(error)
