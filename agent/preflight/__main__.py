"""Entry point of `torchrun ... -m rankscope.preflight`: see command.py.

This folder is installed under two names, as `rankscope.agent.preflight` too (pyproject.toml); all imports in it have
the longer one.
"""

import sys

# `python -m` searches the working directory first; nothing of a training is imported here.
if not (getattr(sys.flags, "safe_path", False) or sys.flags.isolated):
    del sys.path[0]

from rankscope.agent.preflight.command import main

main()
