"""Imports parts of the agent when they are first used, in a process that trains.

A process that trains for weeks mostly never takes a capture, samples lines or stalls. What these need would be 10,000
lines more to compile and to keep in every rank. It is imported with the first order, window, device or stall, mostly on
the agent's thread:

    by a plain import      in a function: a package knows its folder, so neither a changed working directory nor a
                           changed `sys.path` matters
    of our own files only  whatever else they import has been imported by torch or by the agent's start: a module of the
                           script that has the name of one of Python's is not found by mistake (`import_path.py`)
    never across a fork    a child in whose parent another thread was importing would wait for that thread for ever, in
                           an import of its own: a fork waits until the import is done, some milliseconds at most
    with errors contained  like every other error of the part that wanted it (`guard.py`)
"""

import os
import threading
from typing import Final

LATE_IMPORTS: Final = threading.RLock()
"""To be held, by `with`, around an import that may come while training runs."""

os.register_at_fork(
    before=LATE_IMPORTS.acquire, after_in_parent=LATE_IMPORTS.release, after_in_child=LATE_IMPORTS.release
)
