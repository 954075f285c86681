"""Every question that is asked of a run, in the order in which they are asked: what explains comes before what would
otherwise be left unexplained.
"""

from dataclasses import replace

from rankscope.collector.config import CollectorConfig
from rankscope.collector.detect.hangs import Hangs
from rankscope.collector.detect.slow_links import SlowLinks
from rankscope.collector.detect.slow_ranks import SlowRanks
from rankscope.collector.detect.slowdowns import RunSlowdown, StageSlowdowns
from rankscope.collector.detect.stragglers import Thresholds
from rankscope.collector.detect.view import Detector


def build_detectors(config: CollectorConfig) -> tuple[Detector, ...]:
    """The detectors with their thresholds."""
    thresholds = read_thresholds(config)
    return (
        Hangs(),
        SlowLinks(read_link_thresholds(config)),
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


def read_link_thresholds(config: CollectorConfig) -> Thresholds:
    """When a link is called slow. It is so no longer when half of the smallest effect is gone, as with ranks."""
    ratio_min = config.link_slowdown_ratio_min
    return replace(read_thresholds(config), slowdown_ratio_min=ratio_min, slowdown_close_ratio=1 + (ratio_min - 1) / 2)
