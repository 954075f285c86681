"""Limits and names of captures that agents and collector share. It imports nothing: the agent reads it with its
settings.
"""

from typing import Final

CAPTURE_STEPS_MAX: Final = 100
"""Most steps of one capture: each is kept in memory until the last has ended."""
CAPTURE_STEP_MIN: Final = 2
"""First step with which a capture can begin: that at whose begin the agent has its first boundary."""
MODULES: Final = "modules"
SHAPES: Final = "shapes"
CAPTURE_OPTIONS: Final = (SHAPES, "stacks", "memory", MODULES)
"""What a capture may record beside operators, kernels and copies."""
MODULE_PREFIX: Final = "nn.Module: "
"""What the name of a module's forward begins with, as torch writes it and as captures mark it."""
MODULES_KEY: Final = "rankscope_modules"
"""Key in the head of a trace under which a capture says how many parameters each module has."""
CPU_KEY: Final = "rankscope_cpu"
"""Field of a trace's head with how busy the processors were."""
MEMORY_KEY: Final = "rankscope_memory"
"""Key in the head of a trace under which a capture says where the model's memory was."""
