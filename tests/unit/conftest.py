"""Configure the unit tests."""

import os

from rankscope.agent.profiler.torch_profiler import KINETO_QUIET

# Kineto reads it once a process: a test that used torch's profiler first would let it write into the stderr of another.
os.environ.setdefault(*KINETO_QUIET)
