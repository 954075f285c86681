"""Lets a forked child exit.

The first session of torch's profiler starts a thread of Kineto, which waits on a condition variable as long as the
process lives. A fork has that variable and not the thread, and its destructor, which runs when the child exits, waits
for the thread for ever (glibc 2.25 and later). A training without a profiler has no such variable. So a child of a
measured process leaves by `_exit`, with its status, after the exit handlers of its own and after what the C library
has buffered is written, and before those of its parent. A child of multiprocessing leaves by `os._exit` anyway.
"""

import contextlib
import ctypes
from collections.abc import Callable


def find_early_exit() -> Callable[[], None]:
    """Return what a forked child calls, at once, so that it leaves like this. With another C library than glibc, which
    alone tells an exit handler the status, it does nothing.
    """
    with contextlib.suppress(AttributeError, OSError):
        libc = ctypes.CDLL(None)
        on_exit, register, leave, flush = (libc[name] for name in ("on_exit", "__cxa_atexit", "_exit", "fflush"))
        on_exit.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        register.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        leave_at, flush_at = (ctypes.cast(function, ctypes.c_void_p) for function in (leave, flush))

        def leave_early() -> None:
            """Have the C library call the last of them first: fflush(NULL), then _exit(status)."""
            on_exit(leave_at, None)
            register(flush_at, None, None)

        return leave_early
    return lambda: None
