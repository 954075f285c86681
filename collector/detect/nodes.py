"""Whether it is the machine: nearly all ranks of a node are slow, and others are not."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from rankscope.collector.detect.stragglers import Slow

SHARE_MIN: Final = 0.75
"""Of a node's ranks so many must be slow for it to be the node: the last one or two may be just below the limit."""


def join_nodes(slow_ranks: Sequence[Slow], nodes: Mapping[int, str]) -> list[tuple[str | None, tuple[Slow, ...]]]:
    """The slow ranks, those of a slow node together with its name, every other one by itself; in the order given.

    A node of which one rank reports, and one that all ranks are on, is not told from its ranks.
    """
    sizes = Counter(nodes.values())
    slow_on: dict[str, list[Slow]] = {}
    for slow in slow_ranks:
        slow_on.setdefault(nodes[slow.rank], []).append(slow)
    whole = {
        node
        for node, found in slow_on.items()
        if len(sizes) > 1 and len(found) >= max(2, math.ceil(SHARE_MIN * sizes[node]))
    }
    joined: dict[str | int, list[Slow]] = {}
    for slow in slow_ranks:
        node = nodes[slow.rank]
        joined.setdefault(node if node in whole else slow.rank, []).append(slow)
    return [(key if isinstance(key, str) else None, tuple(found)) for key, found in joined.items()]
