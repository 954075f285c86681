"""Every question that is asked of a run, in the order in which they are asked: what explains comes before what would
otherwise be left unexplained.
"""

from rankscope.collector.config import CollectorConfig
from rankscope.collector.detect.slow_ranks import SlowRanks
from rankscope.collector.detect.slowdowns import RunSlowdown, StageSlowdowns
from rankscope.collector.detect.stragglers import Thresholds
from rankscope.collector.detect.view import Detector


def build_detectors(config: CollectorConfig) -> tuple[Detector, ...]:
    """The detectors with their thresholds."""
    thresholds = read_thresholds(config)
    return (
        SlowRanks(thresholds),
        StageSlowdowns(thresholds),
        RunSlowdown(thresholds),
    )


def read_thresholds(config: CollectorConfig) -> Thresholds:
    """When a rank is called slow."""
    return Thresholds(
        steps=config.detect_steps,
        steps_min=config.detect_steps_min,
        slowdown_ratio_min=config.slowdown_ratio_min,
        slowdown_close_ratio=config.slowdown_close_ratio,
        robust_z_min=config.robust_z_min,
        persistence_ratio=config.persistence_ratio,
    )
