"""Tell ranks whose batches have clearly more tokens than those of others, in every step: they do more work by design,
and are no peers of the others. Pure.

Batches that differ from step to step make no classes: which rank has the most changes, and that is found elsewhere
(`detect/run_rules/batch_imbalance.py`).
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from rankscope.collector.steps.step_series import Cells

APART_RATIO: Final = 1.1
"""Ratio of the medians of two neighboring classes: less makes steps by less than a tenth longer."""
STEADY_RATIO: Final = 0.05
STEADY_SHARE: Final = 0.9
"""A rank's tokens are within that of their median in this share of the steps."""
STEPS_MIN: Final = 12
STEPS_READ: Final = 64


def find_token_classes(tokens: Cells | None, ranks: Sequence[int]) -> Mapping[int, int]:
    """Return the class of each of these ranks, 0 for the fewest tokens; empty where there is one, or it is not known.

    `tokens`: of each step and rank, shape (n, ranks), NaN where not known.
    """
    if tokens is None or not len(ranks):
        return {}
    last = tokens[-STEPS_READ:]
    last = last[~np.isnan(last).any(axis=1)]
    if len(last) < STEPS_MIN:
        return {}
    medians = np.median(last, axis=0)
    if medians.min() <= 0 or medians.max() < APART_RATIO * medians.min():
        return {}
    is_near = np.abs(last - medians) <= STEADY_RATIO * medians
    if (is_near.mean(axis=0) < STEADY_SHARE).any():
        return {}
    order = np.argsort(medians, kind="stable")
    begins = medians[order][1:] >= APART_RATIO * medians[order][:-1]
    classes = np.empty(len(ranks), dtype=np.int64)
    classes[order] = np.concatenate([[0], np.cumsum(begins)])
    return dict(zip(ranks, classes.tolist(), strict=True)) if begins.any() else {}
