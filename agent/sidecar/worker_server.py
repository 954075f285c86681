"""Opens torch's worker server in a rank; the sidecar asks it while Python in the rank is blocked (worker_questions.py).

The server is C++: it answers requests about the flight recorder and waits without the GIL, on a socket in the sidecar's
directory. Opening it takes 0.2 ms and 0.6 MB. It keeps max(8, cores - 1) idle threads, so it is opened only if process
limits leave plenty of room: a thread that cannot be created there would end the training.
"""

import contextlib
import ctypes
import os
import time
from collections.abc import Iterator
from typing import Any, Final

from rankscope.agent.process_room import find_obstacle
from rankscope.measure.errors import UnavailableError

SOCKET_PATH_BYTES_MAX: Final = 107
"""The kernel's limit for the address of a unix socket."""
_ERROR_LEVEL: Final = 2


def open_server(path: str) -> Any:
    """Open the server at the socket `path`. Raise UnavailableError if that is not possible or not safe.

    It runs until the process ends: closing it would wait for its threads and write to stderr.
    """
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        raise UnavailableError(f"{path} is longer than the address of a socket may be")
    obstacle = find_obstacle(threads=max(8, (os.cpu_count() or 1) - 1) + 1)
    if obstacle:
        raise UnavailableError(obstacle)
    try:
        from torch._C._distributed_c10d import _WorkerServer  # noqa: PLC0415 - the user's torch
    except ImportError as error:
        raise UnavailableError("this torch has no worker server") from error
    with _quiet_torch():
        server = _WorkerServer(path)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))
    return server


@contextlib.contextmanager
def _quiet_torch() -> Iterator[None]:
    """Raise the level of torch's C++ log during the opening of the server, to suppress its warnings, if possible."""
    try:
        import torch  # noqa: PLC0415

        library = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so"))
        level = ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level")
    except (ImportError, OSError, ValueError):
        yield
        return
    before, level.value = level.value, max(level.value, _ERROR_LEVEL)
    try:
        yield
        time.sleep(0.01)  # the line is written by the server's own thread
    finally:
        level.value = before
