"""Opens torch's worker server in a rank, and queries it from the sidecar while Python in the rank is blocked.

The server is C++: it answers requests about the flight recorder and waits without the GIL, on a socket in the sidecar's
directory. Opening it takes 0.2 ms and 0.6 MB. It keeps max(8, cores - 1) idle threads, so it is opened only if process
limits leave plenty of room: a thread that cannot be created there would end the training.
"""

import contextlib
import ctypes
import json
import os
import resource
import socket
import time
from collections.abc import Iterator
from typing import Any, Final

from rankscope.agent.cgroups import find_cgroup_folders
from rankscope.agent.guard import describe
from rankscope.measure.errors import UnavailableError
from rankscope.measure.units import NS_PER_MS

SOCKET_PATH_BYTES_MAX: Final = 107
"""The kernel's limit for the address of a unix socket."""
ROOM_FACTOR: Final = 8
"""Required ratio of available to needed threads: other ranks of the node need theirs too."""
ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
"""Largest response; the recorder's default of 2,000 entries is under 1 MB."""
_ERROR_LEVEL: Final = 2

STATUS_QUESTIONS: Final = ("fr_trace_json", "dump_nccl_trace_json?includecollectives=true&onlyactive=true")
WAITS_QUESTION: Final = "wait_counter_values"


class AnswerTooLargeError(ValueError):
    """A response has more than ANSWER_BYTES_MAX."""


class NoHandlerError(ValueError):
    """The server has no handler of that name."""


def open_server(path: str) -> Any:
    """Open the server at the socket `path`. Raise UnavailableError if that is not possible or not safe.

    It runs until the process ends: closing it would wait for its threads and write to stderr.
    """
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        raise UnavailableError(f"{path} is longer than the address of a socket may be")
    needed = max(8, (os.cpu_count() or 1) - 1) + 1
    room = find_thread_room()
    if room is not None and room < needed * ROOM_FACTOR:
        raise UnavailableError(f"it needs {needed} threads, and at most {room} more processes and threads are allowed")
    try:
        from torch._C._distributed_c10d import _WorkerServer  # noqa: PLC0415 - the user's torch
    except ImportError as error:
        raise UnavailableError("this torch has no worker server") from error
    with _quiet_torch():
        server = _WorkerServer(path)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))
    return server


def find_thread_room(cgroup: str = "/proc/self/cgroup", mounts: str = "/sys/fs/cgroup") -> int | None:
    """Return how many more processes and threads the known limits allow at most; None without a limit.

    Running ones are subtracted from the limit of a cgroup, not from RLIMIT_NPROC.
    """
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    rooms = [] if limit == resource.RLIM_INFINITY or os.getuid() == 0 else [limit]
    folders = find_cgroup_folders(cgroup, "pids", mounts)
    for folder in folders.own + folders.shared:
        most, present = _read_number(f"{folder}/pids.max"), _read_number(f"{folder}/pids.current")
        if most is not None and present is not None:
            rooms.append(most - present)
    return min(rooms, default=None)


def ask(path: str, question: str, seconds: float) -> Any:
    """Return the server's JSON response within `seconds`. Raise OSError, or ValueError if it is invalid."""
    return json.loads(ask_text(path, question, seconds))


def ask_text(path: str, question: str, seconds: float) -> bytes:
    """Return the text of the server's response within `seconds`. Raise OSError (TimeoutError if it is late),
    AnswerTooLargeError, NoHandlerError, or another ValueError if the question is refused.
    """
    deadline_s = time.monotonic() + seconds
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(seconds)
        connection.connect(path)
        head_lines = (
            f"POST /handler/{question} HTTP/1.1",
            "Host: rank",
            "Connection: close",
            "Content-Length: 0",
            "",
            "",
        )
        connection.sendall("\r\n".join(head_lines).encode())
        answer = bytearray()
        while True:
            connection.settimeout(max(0.001, deadline_s - time.monotonic()))
            part = connection.recv(1 << 16)
            if not part:
                break
            answer += part
            if len(answer) > ANSWER_BYTES_MAX:
                raise AnswerTooLargeError(f"the response to {question} has more than {ANSWER_BYTES_MAX} bytes")
    head, _, body = bytes(answer).partition(b"\r\n\r\n")
    status = head.split(b" ", 2)[1:2]
    if status != [b"200"]:
        error = NoHandlerError if status == [b"404"] else ValueError
        raise error(f"the response to {question} was {head[:60]!r}")
    return body


def ask_dumps(path: str, seconds: float, absent: dict[str, str]) -> list[dict[str, Any]]:
    """Return the dumps of the flight recorders; add the reason to `absent` if there is none."""
    dumps, refusals = [], []
    deadline_ns = time.monotonic_ns() + round(seconds * 1000) * NS_PER_MS
    for question in STATUS_QUESTIONS:
        left_ns = deadline_ns - time.monotonic_ns()
        try:
            answer = ask(path, question, max(0.05, left_ns / (1000 * NS_PER_MS)))
        except ValueError as error:  # builds without NCCL lack one of the handlers, torch 2.8 the other
            refusals.append(error)
        except OSError as error:
            absent["pending"] = describe(error)[:200]
        else:
            dumps += [answer] if isinstance(answer, dict) else []
    if refusals and not dumps:
        absent.setdefault("pending", describe(refusals[0])[:200])
    return dumps


def ask_waits(path: str, seconds: float) -> dict[str, int]:
    """Return the number of active waits by kind (for example `TCPStore__wait`), from torch's wait counters."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        counters = ask(path, WAITS_QUESTION, seconds)
        active = {name.rpartition(".")[2][:128]: int(found.get("active_count", 0)) for name, found in counters.items()}
        return {name: count for name, count in active.items() if count}
    return {}


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


def _read_number(path: str) -> int | None:
    with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as file:
        return int(file.read())
    return None
