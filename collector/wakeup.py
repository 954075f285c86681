"""Wake a thread that polls."""

import contextlib
import os
from typing import Final

_BYTES_MAX: Final = 4096


class Wakeup:
    """A pipe that is readable from a call of `set` on, until the thread that polls `fd` calls `clear`."""

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def set(self) -> None:
        """Wake the thread. Any thread may call it; never waits."""
        with contextlib.suppress(BlockingIOError, OSError):  # the pipe is full: it will wake anyway; or closed
            os.write(self._write_fd, b"\0")

    def clear(self) -> None:
        """Forget all calls of `set` so far."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, _BYTES_MAX)

    def close(self) -> None:
        """Close the pipe, once."""
        os.close(self.fd)
        os.close(self._write_fd)
