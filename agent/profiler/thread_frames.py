"""Reads the Python frame of another thread by CPython's C API, a hundred times a second without harm.

In CPython 3.11 `sys._current_frames()` must not be called that often: it allocates frames while it holds the lock of
the list of threads. An allocation may start a garbage collection, which may run code that releases the interpreter's
lock. Then threads that start or end wait for the list with the interpreter's lock held, and the process stands still
(python/cpython#106883, #116969).

`PyThreadState_GetFrame` takes no lock but the interpreter's. It may allocate too, and the thread must not run then,
since the frame might be gone. So before 3.12, from which on no allocation starts a collection, the collector is off
during a walk. A script that calls gc.disable() within these 80 us, for which threads must be switched in the middle of
them, would find it on again.

The functions are prototypes of this file: those of `ctypes.pythonapi` are shared with the script. They return
addresses, since a NULL declared as an object crashes in ctypes (3.10 to 3.13).
"""

import ctypes
import sys
import sysconfig
from types import FrameType
from typing import Final

from rankscope.measure.errors import RankscopeError

COLLECTS_IN_ALLOCATIONS: Final = sys.version_info < (3, 12)


class FramesMissingError(RankscopeError):
    """Frames of other threads cannot be read in this interpreter."""


class ThreadState:
    """The address of a thread's state; 0 once the thread wants to be read no more, since it may end then."""

    __slots__ = ("address",)

    def __init__(self, address: int) -> None:
        self.address = address


class ThreadFrames:
    """Reader of frames. Raises FramesMissingError where the interpreter has no such API, or no lock of its own."""

    def __init__(self) -> None:
        if sysconfig.get_config_var("Py_GIL_DISABLED"):
            raise FramesMissingError("Python without a global interpreter lock lets no thread read another's frames")
        try:
            of_api = ctypes.pythonapi
            self._find_state = ctypes.PYFUNCTYPE(ctypes.c_void_p)(("PyThreadState_Get", of_api))
            self._find_frame = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(("PyThreadState_GetFrame", of_api))
            self._release = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("Py_DecRef", of_api))
            self._disable = ctypes.PYFUNCTYPE(ctypes.c_int)(("PyGC_Disable", of_api))
            self._enable = ctypes.PYFUNCTYPE(ctypes.c_int)(("PyGC_Enable", of_api))
        except AttributeError as error:
            raise FramesMissingError(f"this Python has not all of the C API: {error}") from None

    def find_own_state(self) -> ThreadState:
        """Return the state of the calling thread, for `find_innermost`."""
        return ThreadState(self._find_state())

    def find_innermost(self, state: ThreadState) -> FrameType | None:
        """Return the innermost frame of that thread, None while it runs no Python or wants to be read no more. The
        collector must be paused.
        """
        # Threads are switched at the end of a call, not between reading the address and this one.
        address = self._find_frame(state.address) if state.address else None
        if address is None:
            return None
        frame: FrameType = ctypes.cast(address, ctypes.py_object).value
        self._release(address)
        return frame

    def pause_collector(self) -> bool:
        """Keep the garbage collector from running, where it matters. Return whether `resume_collector` is needed."""
        return COLLECTS_IN_ALLOCATIONS and bool(self._disable())

    def resume_collector(self) -> None:
        """Let the garbage collector run again."""
        self._enable()
