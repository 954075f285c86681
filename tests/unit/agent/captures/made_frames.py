"""Frames of functions in files that do not exist."""

import sys
from types import FrameType
from typing import Any

SCRIPT = "/home/me/train.py"


def frame_in(*files: str, line: int = 1, function: str = "wait", module: str = "__main__") -> FrameType:
    """Return the frame of a function in the last of these files, called from the one before it, and so on; each call is
    at that line.
    """
    found: list[Any] = [lambda: sys._getframe(1)]
    for file in reversed(files):
        scope: dict[str, Any] = {"inner": found[-1], "__name__": module}
        text = "\n" * (line - 1) + f"def {function}(): return inner()"
        exec(compile(text, file, "exec"), scope)  # noqa: S102 - for the names of files
        found.append(scope[function])
    frame = found[-1]()
    assert isinstance(frame, FrameType)
    return frame
