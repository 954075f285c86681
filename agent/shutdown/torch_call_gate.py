"""Keeps a thread of ours out of torch's C++ while the interpreter ends.

CPython 3.11 ends a thread that wants the interpreter's lock (GIL) back by then with `pthread_exit`. Within a call of
torch that lets go of the lock that unwinds through C++, which does not allow it: "terminate called without an active
exception", SIGABRT, and a training that had succeeded counts as failed (seen with each method of TCPStore). So such
calls of a daemon thread go through a gate, which is shut before the interpreter ends.
"""

import threading
from types import TracebackType


class TorchCallGate:
    """`with gate:` around each such call; `shut` waits for the present one, and lets nobody in after it: who comes then
    waits until the process is gone.
    """

    def __init__(self) -> None:
        self._passing = threading.Lock()

    def __enter__(self) -> None:
        self._passing.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._passing.release()

    def shut(self, seconds_max: float) -> bool:
        """For good. Whether nobody is within; a call that takes longer than that is left to itself."""
        return self._passing.acquire(timeout=seconds_max)
