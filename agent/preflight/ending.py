"""End a pre-flight on SIGTERM, or when it hangs, with a sentence, also while its main thread is inside torch.

Python runs signal handlers only between instructions of its main thread, and a wait inside gloo, NCCL or CUDA is none.
So SIGTERM, which torchrun sends to all ranks when one has failed, is blocked, and a thread waits for it.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Final, NoReturn

POLL_S: Final = 0.5


def block_sigterm() -> None:
    """Leave SIGTERM to `DeadlineWatch`. Call it before any other thread begins: threads inherit what is blocked."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


class DeadlineWatch:
    """Thread that ends the process on SIGTERM, and after the deadline.

    `stage` is what the process is at, and `status` its exit status; the main thread sets both.
    """

    def __init__(self, say: Callable[[str], None], limit_s: float, status: int) -> None:
        self.stage = "start"
        self.status = status
        self._say = say
        self._limit_s = limit_s
        self._end_s = time.monotonic() + limit_s

    def start(self) -> None:
        """Begin to watch."""
        threading.Thread(target=self._run, name="rankscope-preflight-watch", daemon=True).start()

    def set_limit(self, limit_s: float) -> None:
        """Set the deadline to so many seconds from now."""
        self._limit_s, self._end_s = limit_s, time.monotonic() + limit_s

    def _run(self) -> None:
        while True:
            got = signal.sigtimedwait({signal.SIGTERM}, POLL_S)
            if got is not None:
                self._say(f"ended by SIGTERM at {self.stage}: the launcher sends it when another rank has failed")
            elif time.monotonic() >= self._end_s:
                self._say(f"not over {self._limit_s:.0f} s later, at {self.stage}: ended")
            else:
                continue
            leave(self.status)


def leave(status: int) -> NoReturn:
    """End the process at once: threads of torch that wait for a rank that is gone would delay it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
