"""Entry point of `torchrun ... -m rankscope.agent train.py ARGS`: see script_launch.py."""

import os  # runpy has imported it
import sys


def _take_directory() -> str | None:
    """Take the working directory off the front of `sys.path`, where `python -m` puts it: the agent must not import
    anything from it. Empty where it has been removed, None in safe-path mode: then it is not there.
    """
    if getattr(sys.flags, "safe_path", False) or sys.flags.isolated:
        return None
    try:
        os.getcwd()
    except OSError:
        return ""
    return sys.path.pop(0)


DIRECTORY = _take_directory()

from rankscope.agent.script_launch import main  # noqa: E402 - not before

main(DIRECTORY)
