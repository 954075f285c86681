"""Every question that is asked of a run, in the order in which they are asked: what explains comes before what would
otherwise be left unexplained.
"""

from dataclasses import replace
from typing import Final

from rankscope.collector.config import CollectorConfig
from rankscope.collector.detect.hangs.detector import Hangs
from rankscope.collector.detect.links.detector import SlowLinks
from rankscope.collector.detect.run_rules.batch_imbalance import BatchImbalance
from rankscope.collector.detect.run_rules.regressions import RunSlowdown, StageSlowdowns
from rankscope.collector.detect.run_rules.rules import RunRules
from rankscope.collector.detect.run_rules.stage_imbalance import StageImbalance
from rankscope.collector.detect.stragglers.detector import SlowRanks
from rankscope.collector.detect.stragglers.persistent import Thresholds
from rankscope.collector.detect.view import Detector

EVERY_STEP: Final = 0.9
"""A share of steps that leaves out those in which something else took longer still."""


def build_detectors(config: CollectorConfig) -> tuple[Detector, ...]:
    """The detectors with their thresholds."""
    thresholds = read_thresholds(config)
    return (
        Hangs(),
        SlowLinks(read_link_thresholds(config)),
        SlowRanks(thresholds),
        StageSlowdowns(thresholds),
        RunSlowdown(thresholds),
        StageImbalance(read_imbalance_thresholds(config)),
        BatchImbalance(config.uneven_work_ratio_min),
        RunRules(config.detect_steps),
    )


def read_thresholds(config: CollectorConfig) -> Thresholds:
    """When a rank is called slow."""
    return Thresholds(
        steps_min=config.detect_steps_min,
        slowdown_ratio_min=config.slowdown_ratio_min,
        slowdown_close_ratio=config.slowdown_close_ratio,
        robust_z_min=config.robust_z_min,
        persistence_ratio=config.persistence_ratio,
    )


def read_link_thresholds(config: CollectorConfig) -> Thresholds:
    """When a link is called slow. It is so no longer when half of the smallest effect is gone, as with ranks."""
    return _with_effect(read_thresholds(config), config.link_slowdown_ratio_min)


def read_imbalance_thresholds(config: CollectorConfig) -> Thresholds:
    """When a group of ranks is said to have more work than the others: in every step, but for a few."""
    thresholds = _with_effect(read_thresholds(config), config.imbalance_ratio_min)
    return replace(thresholds, persistence_ratio=max(EVERY_STEP, config.persistence_ratio))


def _with_effect(thresholds: Thresholds, ratio_min: float) -> Thresholds:
    return replace(thresholds, slowdown_ratio_min=ratio_min, slowdown_close_ratio=1 + (ratio_min - 1) / 2)
