"""Lets forks end without clearing away what was imported before them: import it first, and call `keep_modules` last.

At its end the interpreter clears each module in `sys.modules`, and C++ the registers of torch's operators. In a fork of
a process that has imported torch that copies the 47,000 pages they lie in: 0.3 s of a core, more than most ranks train.
Here the last of all exit functions takes kept modules out of `sys.modules`, and lets exit() end in _exit(). All else is
as ever: threads are waited for, exit functions run, and what the script has imported itself is cleared, the agent too.
WHOLE_END in the environment lets a process end as it does without us.
"""

import atexit
import ctypes
import os
import sys
import weakref
from types import ModuleType

_kept: dict[str, ModuleType] = {}
_libc = ctypes.CDLL(None)


def keep_modules() -> None:
    """Keep what is imported now and not of Python itself."""
    _kept.update({name: module for name, module in sys.modules.items() if _is_foreign(name)})
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_kept))  # it outlives this module
    atexit.register(_spare, list(weakref.finalize._registry))  # type: ignore[attr-defined]


def _is_foreign(name: str) -> bool:
    return name.partition(".")[0] not in sys.stdlib_module_names and name not in ("__main__", __name__)


def _spare(finalizers: "list[weakref.finalize[..., object]]") -> None:
    """Leave torch's libraries of operators as they are: their finalizers take out one operator after the other."""
    for finalizer in finalizers if "WHOLE_END" not in os.environ else ():
        finalizer.atexit = False


@atexit.register  # the first one registered is the last one called
def _leave_modules() -> None:
    if not _kept or "WHOLE_END" in os.environ:
        return
    for name in _kept:
        sys.modules.pop(name, None)
    _libc.fflush(None)
    _libc.on_exit(_libc._exit, None)  # called first by exit(), with its status
