"""Passes errors of the sidecar, which has no output, to a rank of its node for logging.

The sidecar appends a line to a file in its directory, once for each part and type of error. A rank checks the file
regularly, removes it and logs its lines. With RANKSCOPE_DEBUG=1 tracebacks go to the ranks' stderr directly.
"""

import contextlib
import os
from typing import Final

from rankscope.agent.guard import explain
from rankscope.agent.private_folder import PRIVATE_FILE

FAULTS: Final = "faults"
FAULTS_MAX: Final = 16
LINE_LENGTH_MAX: Final = 500


class SidecarFaults:
    """The writer of errors, in the sidecar."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, FAULTS)
        self._noted: set[tuple[str, str]] = set()

    def note(self, part: str, error: BaseException) -> None:
        """Write a line about the error for the ranks. Never raise."""
        text = explain(f"the sidecar's {part}", error)
        key = part, type(error).__name__
        if key in self._noted or len(self._noted) >= FAULTS_MAX:
            return
        self._noted.add(key)
        line = " ".join(f"{part} failed ({text})".split())[:LINE_LENGTH_MAX] + "\n"
        with contextlib.suppress(OSError):
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, PRIVATE_FILE)
            try:
                os.write(file, line.encode(errors="replace"))
            finally:
                os.close(file)


def read_faults(folder: str) -> str:
    """Return and remove the errors that the sidecar has written since the last call; empty if there are none."""
    path = os.path.join(folder, FAULTS)
    claimed = f"{path}.{os.getpid()}"
    try:
        os.rename(path, claimed)  # so that only one rank of the node reads it
        with open(claimed, encoding="utf-8", errors="replace") as file:
            lines = file.read(FAULTS_MAX * LINE_LENGTH_MAX).splitlines()
        os.unlink(claimed)
    except OSError:
        return ""
    return "; ".join(lines)
