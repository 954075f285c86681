"""A file for what a child process reads or writes, which no folder has: nothing is left of it, however both end."""

import contextlib
import os
import tempfile
from typing import IO


def open_nameless(name: str) -> IO[bytes]:
    """Return an empty file to read and write, in memory where that can be had, else in TMPDIR. Raise OSError.

    `os.memfd_create` is absent from a Python that was built for an old glibc, as those of conda and uv have been, and
    some sandboxes refuse it. `name` is only shown in /proc.
    """
    with contextlib.suppress(AttributeError, OSError):
        return open(os.memfd_create(name), "w+b")
    return tempfile.TemporaryFile()
