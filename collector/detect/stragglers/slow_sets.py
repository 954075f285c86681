"""Join slow ranks to the sets that one fault slows: a node, several nodes, ranks that became slow together. Pure.

Problem: four of eight nodes become a tenth slower at once. Each alone costs nothing, since the other three hold up the
run as well; four findings say so four times, and none states the cost of all.

So ranks whose node is slow as a whole are one set, and so are sets with the same cause that began at the same step and
lost as much in each: one finding, whose cost is what the run would gain without all of them.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from rankscope.collector.detect.finding import Finding
from rankscope.collector.detect.stragglers.persistent import SlowRank
from rankscope.collector.detect.suggestions import UNATTRIBUTED

SHARE_MIN: Final = 0.75
"""Share of a node's ranks that must be slow for the finding to be about the node."""
SAME_BEGIN_STEPS: Final = 10
"""Steps between two begins up to which they are one: each is known to a few steps."""
SAME_EXCESS_RATIO: Final = 1.5
"""Ratio of two excesses up to which they are one: each is a median of noisy steps."""


class SlowSet(NamedTuple):
    """Slow ranks, the slowest first, and the nodes that are theirs; none where the ranks are no whole nodes."""

    nodes: tuple[str, ...]
    ranks: tuple[SlowRank, ...]


def join_nodes(slow_ranks: Sequence[SlowRank], nodes: Mapping[int, str]) -> list[SlowSet]:
    """Group the slow ranks: those of a slow node with its name, every other one by itself; in the order given.

    A node with a single rank, and one that has all ranks, is not distinguished from its ranks.
    """
    sizes = Counter(nodes.values())
    slow_on: dict[str, list[SlowRank]] = {}
    for slow in slow_ranks:
        slow_on.setdefault(nodes[slow.rank], []).append(slow)
    whole = {
        node
        for node, found in slow_on.items()
        if len(sizes) > 1 and len(found) >= max(2, math.ceil(SHARE_MIN * sizes[node]))
    }
    joined: dict[str | int, list[SlowRank]] = {}
    for slow in slow_ranks:
        node = nodes[slow.rank]
        joined.setdefault(node if node in whole else slow.rank, []).append(slow)
    return [SlowSet((key,) if isinstance(key, str) else (), tuple(found)) for key, found in joined.items()]


def join_alike(sets: Sequence[SlowSet], causes: Sequence[str], known: Mapping[int, Finding]) -> list[SlowSet]:
    """Join the sets, given with their causes, that became slow together; in the order given. `known` are the open
    findings by rank: what one of them has joined stays so, whatever the last steps show.

    Only nodes are joined to nodes, and ranks to ranks.
    """
    joined: list[tuple[SlowSet, str]] = []
    for one, cause in zip(sets, causes, strict=True):
        for place, (other, other_cause) in enumerate(joined):
            # What is not known of a node speaks against nothing.
            of_both = {cause, other_cause} - ({UNATTRIBUTED} if one.nodes else set())
            is_same = len(of_both) <= 1 and _began_together(one.ranks[0], other.ranks[0])
            if bool(one.nodes) == bool(other.nodes) and (is_same or _were_joined(one, other, known)):
                both = SlowSet((*other.nodes, *one.nodes), (*other.ranks, *one.ranks))
                joined[place] = both, cause if other_cause == UNATTRIBUTED else other_cause
                break
        else:
            joined.append((one, cause))
    return [SlowSet(tuple(sorted(one.nodes)), one.ranks) for one, _ in joined]


def _began_together(one: SlowRank, other: SlowRank) -> bool:
    if "intermittent" in {one.pattern, other.pattern}:
        return False
    excesses_ns = [max(1.0, slow.excess_ns) for slow in (one, other)]
    is_as_slow = max(excesses_ns) <= SAME_EXCESS_RATIO * min(excesses_ns)
    return is_as_slow and abs(one.since_step - other.since_step) <= SAME_BEGIN_STEPS


def _were_joined(one: SlowSet, other: SlowSet, known: Mapping[int, Finding]) -> bool:
    mine = {finding.number for slow in one.ranks if (finding := known.get(slow.rank)) is not None}
    return any(slow.rank in known and known[slow.rank].number in mine for slow in other.ranks)
