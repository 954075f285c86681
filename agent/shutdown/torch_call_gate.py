"""Keeps agent threads out of torch's C++ while the interpreter exits.

CPython 3.11 ends a thread that tries to take the GIL during the exit with `pthread_exit`. In a call of torch that has
released the GIL (any method of TCPStore) this unwinds through C++: "terminate called without an active exception",
SIGABRT, and a successful training counts as failed. So daemon threads make such calls through a gate, which is shut
before the interpreter exits.
"""

import threading
from types import TracebackType


class TorchCallGate:
    """Context manager around calls into torch; after `shut` a caller blocks until the process is gone."""

    def __init__(self) -> None:
        self._in_call = threading.Lock()

    def __enter__(self) -> None:
        self._in_call.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._in_call.release()

    def shut(self, seconds_max: float) -> bool:
        """Shut the gate for good, after waiting for the present call; return False if that takes longer."""
        return self._in_call.acquire(timeout=seconds_max)
