"""From where on a number is yellow or red. What detection judges has detection's own limits, and what an alert is about
that alert's: `OF_ALERTS` says which, and a test holds them together.
"""

from collections.abc import Mapping
from typing import Final

from rankscope.collector.config import CollectorConfig
from rankscope.collector.detect.run_rules import thresholds

SLOWDOWN: Final = CollectorConfig().slowdown_ratio_min
"""Smallest effect called slow."""
SLOWDOWN_LARGE: Final = 1.2
"""A fifth slower: in synchronous training the whole job is, then."""
DATA: Final = thresholds.DATA_RATIO_MIN
EXPOSED: Final = thresholds.EXPOSED_RATIO_MIN
IDLE: Final = thresholds.IDLE_RATIO_MIN
OVERLAP: Final = thresholds.OVERLAP_RATIO_MAX

GOODPUT_LOW: Final = 0.7
GOODPUT_GOOD: Final = 0.9
"""A tenth of the time is what a start and its checkpoints take of a day."""
UTILIZATION_LOW: Final = 0.5
MEMORY_NEARLY_FULL: Final = 0.98
OVERHEAD: Final = 0.006
CLOCK_SLOWER: Final = 0.1
RETRIES: Final = 3

OF_ALERTS: Final[Mapping[str, tuple[float, ...]]] = {
    "RankscopeGoodputLow": (GOODPUT_LOW,),
    "RankscopeLowGpuUtilisation": (1 - IDLE, UTILIZATION_LOW),
    "RankscopeGpuMemoryNearlyFull": (MEMORY_NEARLY_FULL,),
    "RankscopeAgentOverhead": (OVERHEAD,),
    "RankscopeGpuThrottled": (CLOCK_SLOWER,),
    "RankscopeAllocatorRetries": (RETRIES,),
}
"""Alerts by name, with the limits in their expressions. All other alerts are about what is there or not."""
