"""Finds out whether gevent or eventlet has replaced the threads, clocks and sockets of this process.

After that a thread of the agent is a greenlet of the training thread: one that waits in ZeroMQ keeps training from
running, for ever. Threads that were started before stay what they are, but what they call is no longer what they need.
"""

import sys
from typing import Final

MODULES: Final = ("threading", "thread", "time", "select", "socket", "queue", "subprocess", "os", "signal")
"""What the agent uses of the standard library and a patch may replace; eventlet says thread for threading."""

PATCHERS: Final = (
    ("gevent", "gevent.monkey", "is_module_patched"),
    ("eventlet", "eventlet.patcher", "is_monkey_patched"),
)
"""Each library with the public function that says what it has replaced."""


def find_patched() -> str:
    """Return the library that has replaced any of them; empty for none.

    >>> find_patched()
    ''
    """
    for library, module, function in PATCHERS:
        is_patched = getattr(sys.modules.get(module), function, None)
        if is_patched is not None and any(map(is_patched, MODULES)):
            return library
    return ""
