"""Thresholds from which a number is yellow or red: those of detection or of the alert about it (`OF_ALERTS`).

A test compares them.
"""

from collections.abc import Mapping
from typing import Final

from rankscope.collector.config import CollectorConfig
from rankscope.collector.detect.memory.growth import CRITICAL_S, WARNING_S
from rankscope.collector.detect.run_rules import thresholds
from rankscope.collector.incidents.nodes import RATIO_MIN

SLOWDOWN: Final = CollectorConfig().slowdown_ratio_min
"""Smallest slowdown that detection reports."""
SLOWDOWN_LARGE: Final = 1.2
"""A fifth slower, and with it the whole synchronous run."""
DATA: Final = thresholds.DATA_RATIO_MIN
EXPOSED: Final = thresholds.EXPOSED_RATIO_MIN
IDLE: Final = thresholds.IDLE_RATIO_MIN
HOST_COPY: Final = thresholds.HOST_COPY_RATIO_MIN
OVERLAP: Final = thresholds.OVERLAP_RATIO_MAX
NODE_HELD_UP: Final = RATIO_MIN
"""Of `rankscope nodes --exclude-file`."""

GOODPUT_LOW: Final = 0.7
GOODPUT_GOOD: Final = 0.9
"""A tenth of a day goes into startup and checkpoints."""
UTILIZATION_LOW: Final = 0.5
MEMORY_NEARLY_FULL: Final = 0.98
LEFT_S: Final = CRITICAL_S
LEFT_LITTLE_S: Final = WARNING_S
"""Until host memory has run out."""
OVERHEAD: Final = 0.006
CLOCK_SLOWER: Final = 0.1
RETRIES: Final = 3
MFU_FELL: Final = 0.8
"""Of MFU in the hour before: a fifth less."""
STEP_TAIL: Final = 3
"""Of the 99th percentile over the median of steps."""
STEPS_OF_TAIL: Final = 500
"""1 % of them are five."""
EQUAL_WORK: Final = 0.05
"""Difference of the FLOPs of a step that counts as none."""

OF_ALERTS: Final[Mapping[str, tuple[float, ...]]] = {
    "RankscopeGoodputLow": (GOODPUT_LOW,),
    "RankscopeStepTail": (STEP_TAIL, STEPS_OF_TAIL),
    "RankscopeLowGpuUtilization": (1 - IDLE, UTILIZATION_LOW),
    "RankscopeGpuMemoryNearlyFull": (MEMORY_NEARLY_FULL,),
    "RankscopeHostMemoryGrows": (LEFT_S,),
    "RankscopeAgentOverhead": (OVERHEAD,),
    "RankscopeGpuThrottled": (CLOCK_SLOWER,),
    "RankscopeAllocatorRetries": (RETRIES,),
    "RankscopeMfuFell": (MFU_FELL, EQUAL_WORK),
}
"""Alerts by name, with the thresholds in their expressions. Other alerts have none."""
