"""Find nodes that are slower than the others where they are as many as these. Pure.

Problem: four of eight nodes are 7 % slow. The median of a rank's peers lies between the two halves: each slow rank
exceeds it by 3 %, which is not worth saying, and each healthy one falls short of it.

So where the nodes fall into two groups far apart, the slower ones, half of all at most, are left out of what ranks are
compared with. Whether they are slow is then found as for any other rank. For example: nodes at 100, 100, 101, 100, 107,
108, 107 and 107 ms: the gap of 6 is five times the width of either group, and the last four are left out.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from rankscope.collector.detect.statistics.change_points import SIGMA_FLOOR
from rankscope.collector.steps.step_series import StepSeries

NODES_MIN: Final = 4
RANKS_MIN: Final = 2
"""Nodes, and ranks of each, of which the levels are known well enough."""
RATIO_MIN: Final = 1.05
"""Ratio of the two groups, as between a slow rank and its peers."""
APART: Final = 3.0
"""Widths of either group by which they are apart, and SIGMA_FLOOR at least."""


def find_slower_nodes(series: StepSeries, nodes: Mapping[int, str], members: Sequence[int], steps: int) -> list[int]:
    """Return the ranks among the `members` of one comparison whose nodes are the slower group, by the last `steps`
    steps that are known of all of them; none where nodes do not fall into two groups.
    """
    of_node: dict[str, list[int]] = {}
    for rank in members:
        of_node.setdefault(nodes.get(rank, ""), []).append(rank)  # columns that are no ranks are on no node
    if len(of_node) < NODES_MIN or min(map(len, of_node.values())) < RANKS_MIN:
        return []
    own_ns = series.own_ns[:, series.columns_of(members)]
    known = np.flatnonzero(~np.isnan(own_ns).any(axis=1))[-steps:]
    if len(known) < steps:
        return []
    level = dict(zip(members, np.median(own_ns[known], axis=0).tolist(), strict=True))
    logs = {
        node: math.log(max(1.0, float(np.median([level[rank] for rank in ranks])))) for node, ranks in of_node.items()
    }
    ordered = sorted(logs, key=lambda node: logs[node])
    values = [logs[node] for node in ordered]
    least = len(ordered) - len(ordered) // 2
    split = max(range(least, len(ordered)), key=lambda place: values[place] - values[place - 1])
    gap = values[split] - values[split - 1]
    width = max(values[split - 1] - values[0], values[-1] - values[split], SIGMA_FLOOR)
    lower, upper = float(np.median(values[:split])), float(np.median(values[split:]))
    if gap < APART * width or upper - lower < math.log(RATIO_MIN):
        return []
    return sorted(rank for node in ordered[split:] for rank in of_node[node])
