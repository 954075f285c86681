"""`torchrun ... -m rankscope.agent train.py ARGS`: see launch.py."""

import sys

# The working directory, which `python -m` searches before everything else: nothing in it is ours to import.
IS_SAFE = getattr(sys.flags, "safe_path", False) or sys.flags.isolated
DIRECTORY = None if IS_SAFE else sys.path.pop(0)

from rankscope.agent.launch import main  # noqa: E402 - not before

main(DIRECTORY)
