"""Build all detectors with their thresholds, in the order in which they run: those that explain come first."""

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
"""Share of the steps, less those in which something else took even longer."""


def build_detectors(config: CollectorConfig) -> tuple[Detector, ...]:
    """Return the detectors with the thresholds of the configuration."""
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
    """Return the thresholds of a slow rank."""
    return Thresholds(
        steps_min=config.detect_steps_min,
        slowdown_ratio_min=config.slowdown_ratio_min,
        slowdown_close_ratio=config.slowdown_close_ratio,
        robust_z_min=config.robust_z_min,
        persistence_ratio=config.persistence_ratio,
    )


def read_link_thresholds(config: CollectorConfig) -> Thresholds:
    """Return the thresholds of a slow link. It has recovered when half of the smallest effect is gone, as with
    ranks.
    """
    return _with_effect(read_thresholds(config), config.link_slowdown_ratio_min)


def read_imbalance_thresholds(config: CollectorConfig) -> Thresholds:
    """Return the thresholds of an imbalance: a group has more work than the others in all steps but a few."""
    thresholds = _with_effect(read_thresholds(config), config.imbalance_ratio_min)
    return replace(thresholds, persistence_ratio=max(EVERY_STEP, config.persistence_ratio))


def _with_effect(thresholds: Thresholds, ratio_min: float) -> Thresholds:
    return replace(thresholds, slowdown_ratio_min=ratio_min, slowdown_close_ratio=1 + (ratio_min - 1) / 2)
