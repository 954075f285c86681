"""Starts the sidecar of a node from any of its ranks, unless one holds the lock of their directory.

`start_if_needed` is slow: starting a program takes 0.1 s and more.
"""

import os
import subprocess
import sys
from typing import Final

from rankscope.agent.guard import find_last_error, is_debugging
from rankscope.agent.identity import drop_rank_variables
from rankscope.agent.nameless_file import open_nameless
from rankscope.agent.sidecar.directory import acquire_lock
from rankscope.agent.sidecar.faults import read_faults
from rankscope.measure.child_command import build_child_command
from rankscope.measure.errors import UnavailableError

START_S_MAX: Final = 60.0
STARTS_MAX: Final = 3
"""Starts of the sidecar by each rank, in case it is killed."""
STDERR_BYTES_MAX: Final = 64 * 1024


class SidecarStarter:
    """The starts of the sidecar by one rank."""

    def __init__(self) -> None:
        self._starts = 0

    def start_if_needed(self, folder: str) -> None:
        """Start the sidecar unless it runs, at most STARTS_MAX times. Raise OSError or UnavailableError."""
        lock = acquire_lock(folder)
        if lock is None:
            return
        try:
            if self._starts < STARTS_MAX:
                self._starts += 1
                _start(folder, lock)
        finally:
            os.close(lock)  # the sidecar has its own copy

    def check(self, folder: str) -> None:
        """Start the sidecar if it was killed, and raise the errors that it had as UnavailableError."""
        faults = read_faults(folder)  # before the start, which may fail
        self.start_if_needed(folder)
        _raise(faults)


def raise_faults(folder: str) -> None:
    """Raise the sidecar's errors as UnavailableError, so that the watchdog counts and logs them."""
    _raise(read_faults(folder))


def _raise(faults: str) -> None:
    if faults:
        raise UnavailableError(f"the sidecar of this node had an error: {faults}")


def _start(folder: str, lock: int) -> None:
    """Start the sidecar; return once it has detached from this process. Raise UnavailableError."""
    # The sidecar must not inherit the launcher's pipes or the training's sockets, whose closing is an event for peers.
    # It inherits stderr only for debugging.
    with open_nameless("rankscope-sidecar-start") as stderr:
        code = _start_and_wait(folder, lock, None if is_debugging() else stderr.fileno())
        if code:
            stderr.seek(0)
            why = find_last_error(stderr.read(STDERR_BYTES_MAX).decode(errors="replace"))
            raise UnavailableError(f"the sidecar did not start (exit code {code}{f', {why}' if why else ''})")


def _start_and_wait(folder: str, lock: int, stderr: int | None) -> int:
    child = subprocess.Popen(  # noqa: S603 - the agent's own program
        build_child_command(sys.executable, "rankscope.agent.sidecar", folder, str(lock)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        pass_fds=(lock,),
        start_new_session=True,
        env=drop_rank_variables(os.environ),
    )
    try:
        return child.wait(START_S_MAX)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()
