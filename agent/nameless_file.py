"""Opens anonymous files for the input or output of child processes, which vanish with the last process using them."""

import contextlib
import os
import tempfile
from typing import IO


def open_nameless(name: str) -> IO[bytes]:
    """Return an empty file to read and write, in memory if possible, else in TMPDIR. Raise OSError.

    `os.memfd_create` is missing in Pythons built for an old glibc (conda, uv), and some sandboxes refuse it. `name` is
    only shown in /proc.
    """
    with contextlib.suppress(AttributeError, OSError):
        return open(os.memfd_create(name), "w+b")
    return tempfile.TemporaryFile()
