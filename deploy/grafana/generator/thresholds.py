"""From where on a number is yellow or red. What detection judges has detection's own limits, the agent's cost that of
its configuration, and what an alert is about that alert's: `OF_ALERTS` says which, and a test holds them together.
"""

from collections.abc import Mapping
from typing import Final

from rankscope.agent.config import AgentConfig
from rankscope.collector.config import CollectorConfig
from rankscope.collector.detect import situations

SLOWDOWN: Final = CollectorConfig().slowdown_ratio_min
"""Smallest effect called slow."""
SLOWDOWN_LARGE: Final = 1.2
"""A fifth slower: in synchronous training the whole job is, then."""
DATA: Final = situations.DATA_RATIO_MIN
EXPOSED: Final = situations.EXPOSED_RATIO_MIN
IDLE: Final = situations.IDLE_RATIO_MIN
OVERLAP: Final = situations.OVERLAP_RATIO_MAX

OVERHEAD: Final = AgentConfig().overhead_ratio_max
"""What the agent may cost."""

GOODPUT_LOW: Final = 0.8
GOODPUT_GOOD: Final = 0.9
UTILIZATION_LOW: Final = 0.5
MEMORY_NEARLY_FULL: Final = 0.95

OF_ALERTS: Final[Mapping[str, float]] = {}
"""Alerts by name, and the limit in their expressions."""
