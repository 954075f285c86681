"""Entry point of `torchrun ... -m rankscope.agent train.py ARGS`: see launch.py."""

import sys

# `python -m` searches the working directory first; the agent must not import anything from it.
IS_SAFE = getattr(sys.flags, "safe_path", False) or sys.flags.isolated
DIRECTORY = None if IS_SAFE else sys.path.pop(0)

from rankscope.agent.launch import main  # noqa: E402 - not before

main(DIRECTORY)
