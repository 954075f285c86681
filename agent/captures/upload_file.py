"""Upload one file to a URL with fsspec, in a process of its own, and delete it, whether it arrived or not.

The process is one of low priority without any GPU: fsspec and the packages of its protocols start threads and import
much, which has no place in the training process.
"""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Final

NICENESS: Final = 19
TIME_LIMIT_S: Final = 300
TRIES: Final = 3
PAUSE_S: Final = 2.0
"""Time before the second try; twice as long before each further one."""
LOCAL: Final = ("file", "local")

BOOT: Final = (
    "import sys, types; sys.path[:] = [path for path in sys.path if path]; home = types.ModuleType('rankscope'); "
    "home.__path__ = [sys.argv[1]]; sys.modules['rankscope'] = home; "
    "from rankscope.agent.captures.upload_file import main; main()"
)
"""The working directory is no place to import from: it may hold a `typing.py`. The package `rankscope` is made by
hand, as for the reduction of windows: its folders have the same names in a wheel and in the sources."""
NO_DEVICES: Final = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
LEFT_OUT: Final = ("RANKSCOPE", "PYTHONINSPECT", "PYTHONPROFILEIMPORTTIME")
"""Beginnings of variables that the process does not get: it must not measure itself."""


def command_line() -> list[str]:
    """Return the command that starts `main` in a new interpreter with the packages of this one."""
    packages = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return [sys.executable, "-c", BOOT, packages]


def make_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the process: that of the rank, with its credentials, and no device.

    >>> found = make_environment({"AWS_REGION": "eu", "RANKSCOPE_RUN": "a", "CUDA_VISIBLE_DEVICES": "3"})
    >>> found["AWS_REGION"], found["CUDA_VISIBLE_DEVICES"], "RANKSCOPE_RUN" in found
    ('eu', '', False)
    """
    kept = {name: value for name, value in environment.items() if not name.startswith(LEFT_OUT)}
    return {**kept, **dict.fromkeys(NO_DEVICES, "")}


def upload(source: str, target: str, *, wait: Callable[[float], None] = time.sleep) -> None:
    """Upload the file, with TRIES tries. Raises the error of the last one."""
    from fsspec.core import url_to_fs  # noqa: PLC0415 - not a dependency of the agent

    makes_folders = {"auto_mkdir": True} if target.partition("://")[0] in LOCAL else {}
    for number in range(TRIES):
        try:
            # Without a cache: one that holds a broken connection would fail again.
            system, path = url_to_fs(target, skip_instance_cache=True, **makes_folders)
            system.put_file(source, path)
        except Exception:
            if number == TRIES - 1:
                raise
            wait(PAUSE_S * 2**number)
        else:
            return


def main() -> None:
    """Upload the file that stdin names, and delete it. A time limit ends the process."""
    os.nice(NICENESS)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the thread that has started it may block all
    signal.alarm(TIME_LIMIT_S)  # its parent may be gone
    request = json.loads(sys.stdin.buffer.read())
    try:
        upload(request["source"], request["target"])
    finally:
        with contextlib.suppress(OSError):
            os.unlink(request["source"])
