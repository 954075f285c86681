"""Entry point of `torchrun ... -m rankscope.agent.preflight`: see command.py."""

import sys

# `python -m` searches the working directory first; nothing of a training is imported here.
if not (getattr(sys.flags, "safe_path", False) or sys.flags.isolated):
    del sys.path[0]

from rankscope.agent.preflight.command import main

main()
