"""Tell in a run of two whether a rank became slower, or its only peer became faster. Pure.

Of many ranks the others are what is usual. Of two each is the other's measure: a rank that stays as it was has an
excess as soon as its peer needs less time. So its own times are compared with what they were before, too, which the run
remembers for longer than the table of steps (`RunView.own_levels`).
"""

import math

import numpy as np

from rankscope.collector.detect.statistics.excess import find_peers_ns
from rankscope.collector.detect.view import RunView
from rankscope.collector.steps.step_series import Ints


def is_peer_faster(
    view: RunView, rank: int, before: Ints, since: Ints, *, steps_min: int, as_fast_ratio: float
) -> bool:
    """Return whether a rank has fallen behind its only peer mostly because that one became faster; False where it is
    not known. `since` are the rows of its slow steps, `before` those of the steps before: where fewer than `steps_min`
    of them are kept, the first block of steps counts in which the two differed by less than `as_fast_ratio`.
    """
    now = _find_medians(view, rank, since)
    then = _find_medians(view, rank, before) if len(before) >= steps_min else _recall(view, rank, as_fast_ratio)
    if then is None:
        return False
    return then[1] - now[1] > max(0.0, now[0] - then[0])


def _find_medians(view: RunView, rank: int, rows: Ints) -> tuple[float, float]:
    """Return the median own time of the rank in these steps, in ns, and that of its peer."""
    own_ns = view.series.own_ns[rows, view.series.column_of(rank)]
    return float(np.median(own_ns)), float(np.median(find_peers_ns(view.excess_of(rank)[rows], own_ns)))


def _recall(view: RunView, rank: int, as_fast_ratio: float) -> tuple[float, float] | None:
    """Return the same of the first block of steps in which both were as fast; None where there is none."""
    if not view.own_levels:
        return None
    column = view.series.column_of(rank)
    mine_ns, peers_ns = view.own_levels[column].step_ns, view.own_levels[1 - column].step_ns
    apart = np.abs(np.log(np.maximum(mine_ns, 1.0)) - np.log(np.maximum(peers_ns, 1.0)))
    equal = np.flatnonzero(apart < math.log(as_fast_ratio))
    return (float(mine_ns[equal[0]]), float(peers_ns[equal[0]])) if len(equal) else None
