"""Find nodes that are slow as a whole, also where no rank of theirs stands out of its noise by itself.

Problem: four of sixteen nodes are 5 % slow. A rank at the limit passes its test in every other pass, so that one set of
32 ranks is told as a dozen ranks that are slow now and then, and none of them costs anything beside the others. And
where half of the nodes are slow, the median of a rank's peers lies between the two halves.

So nodes are judged as ranks are (`persistent.py`), by the middle own time of their ranks with the same work, which
has less noise, and against the nodes that are not in question. What that shows is known better than of one rank:

    the smallest effect is NODE_EFFECT of a rank's, and identical nodes differ by less than identical ranks

The ranks of a slow node have its begin and its steps, and their own size.
"""

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from rankscope.collector.detect.finding import Abstain
from rankscope.collector.detect.statistics.change_points import SIGMA_FLOOR
from rankscope.collector.detect.stragglers.begin import find_since_range
from rankscope.collector.detect.stragglers.persistent import SlowRank, Thresholds, find_stragglers
from rankscope.collector.detect.stragglers.slow_sets import SHARE_MIN
from rankscope.collector.detect.view import RunView, as_rank_series
from rankscope.collector.steps.peer_groups import PEERS_SAMPLED_MAX, PeerComparison, middle_of_ranks
from rankscope.collector.steps.step_series import Floats, Ints, medians_of_last

NODES_MIN: Final = 4
RANKS_MIN: Final = 2
"""Nodes, and ranks of each, of which the middle says more than one rank does."""
NODE_EFFECT: Final = 0.8
"""Share of the effect of a slow rank that makes a slow node: just that effect is missed in half of all passes."""
IN_QUESTION: Final = 0.25
"""Share of a node's effect in the last steps from which on it is no peer of others: where half of all nodes are slow,
the median of all lies half-way to them."""
MEMBER: Final = 0.5
"""Share of its node's excess that a rank has at least that is slow with it."""
JUDGED_MAX: Final = 16
"""Nodes judged one by one in a pass, a few milliseconds each. Of more these are some of every size, and the others are
slow if they were as slow in the same steps."""


class _Nodes(NamedTuple):
    """The nodes of one comparison that are in question, as columns of `view`; columns after them are of other nodes.
    `ranks` are those of each.
    """

    view: RunView
    ranks: tuple[tuple[int, ...], ...]


class SlowNodes(NamedTuple):
    """The ranks of nodes that are slow as a whole, with their numbers, and those of them that are much slower than
    their node.
    """

    ranks: Mapping[int, SlowRank]
    beyond: frozenset[int]

    def not_explained(self, ranks: Collection[int]) -> Collection[int]:
        """Return those of all ranks that may be slow for more than their node."""
        return [rank for rank in ranks if rank not in self.ranks or rank in self.beyond] if self.ranks else ranks

    def add_to(self, alone: Sequence[SlowRank]) -> tuple[SlowRank, ...]:
        """Return all slow ranks, the slowest first: those that are slow `alone`, and the others of the nodes."""
        slow_ranks = {**self.ranks, **{slow.rank: slow for slow in alone}}
        return tuple(sorted(slow_ranks.values(), key=lambda slow: -slow.slowdown_ratio))


def find_slow_nodes(view: RunView, thresholds: Thresholds, found: Collection[int]) -> SlowNodes:
    """Return the ranks of every node that is slow as a whole. One whose ranks were `found` to be steadily slow before
    need only not have recovered.
    """
    slow: list[SlowRank] = []
    beyond: set[int] = set()
    if len(view.series.ranks) < view.world_size or np.count_nonzero(view.is_known) < thresholds.steps_min:
        return SlowNodes({}, frozenset())
    of_nodes = replace(
        thresholds,
        slowdown_ratio_min=1 + NODE_EFFECT * (thresholds.slowdown_ratio_min - 1),
        slowdown_close_ratio=1 + NODE_EFFECT * (thresholds.slowdown_close_ratio - 1),
        sigma_floor=SIGMA_FLOOR / RANKS_MIN**0.5,
    )
    for one in view.peer_groups.comparisons:
        if one.do_same_work and (nodes := _find_in_question(view, one, of_nodes, found)) is not None:
            was_found = [_is_most(found, ranks) for ranks in nodes.ranks]
            for node, ranks in _judge(view, nodes, of_nodes, [column for column, was in enumerate(was_found) if was]):
                slow += ranks
                least_ns = node.own_ns + (thresholds.slowdown_ratio_min - 1) * node.peers_own_ns
                beyond.update(one.rank for one in ranks if one.own_ns >= least_ns)
    return SlowNodes({one.rank: one for one in slow}, frozenset(beyond))


def _is_most(found: Collection[int], ranks: Sequence[int]) -> bool:
    return sum(rank in found for rank in ranks) >= SHARE_MIN * len(ranks)


def _find_in_question(
    view: RunView, comparison: PeerComparison, thresholds: Thresholds, found: Collection[int]
) -> _Nodes | None:
    """Return the nodes that may be slow beside those that are not; None where there are none, or more than half of
    those that were not found before.
    """
    of_node: dict[str, list[int]] = {}
    for rank in comparison.members:
        of_node.setdefault(view.nodes.get(rank, ""), []).append(rank)  # columns that are no ranks are on no node
    nodes = [tuple(ranks) for ranks in of_node.values() if len(ranks) >= RANKS_MIN]
    if len(nodes) < NODES_MIN:
        return None
    level = np.nan_to_num(medians_of_last(view.excess, thresholds.steps_min), nan=0.0).tolist()
    least = IN_QUESTION * (thresholds.slowdown_ratio_min - 1)
    column_of = view.series.column_of
    slow = [ranks for ranks in nodes if statistics.median([level[column_of(rank)] for rank in ranks]) >= least]
    known = sum(_is_most(found, ranks) for ranks in nodes)
    new = sum(not _is_most(found, ranks) for ranks in slow)
    if not slow or 2 * new > len(nodes) - known or len(nodes) - len(slow) < RANKS_MIN:
        return None
    among = set(slow)
    others = [ranks for ranks in nodes if ranks not in among]
    others = others[:: -(-len(others) // PEERS_SAMPLED_MAX)]
    columns = [_middle(view, ranks) for ranks in (*slow, *others)]
    against = tuple(range(len(slow), len(columns)))
    comparisons = (
        PeerComparison(tuple(range(len(slow))), against, do_same_work=True, are_apart=True),
        PeerComparison(against, against, do_same_work=True),
    )
    return _Nodes(as_rank_series(view, columns, comparisons), tuple(slow))


def _middle(view: RunView, ranks: Sequence[int]) -> Floats:
    """Return the middle own time of some ranks in each step, shape (n,) in ns; NaN where fewer than half are known."""
    own_ns = view.series.own_ns[:, view.series.columns_of(ranks)]
    known = 2 * np.count_nonzero(~np.isnan(own_ns), axis=1) >= len(ranks)
    middle_ns = np.full(len(own_ns), np.nan)
    middle_ns[known] = middle_of_ranks(own_ns[known])
    return middle_ns


def _judge(
    view: RunView, nodes: _Nodes, thresholds: Thresholds, found: Collection[int]
) -> list[tuple[SlowRank, list[SlowRank]]]:
    """Return the nodes that are slow, each as the column that shows it, with their ranks."""
    levels = medians_of_last(nodes.view.excess, thresholds.steps_min)[: len(nodes.ranks)]
    by_level = np.argsort(levels).tolist()
    among = by_level[:: -(-len(by_level) // JUDGED_MAX)]
    verdict = find_stragglers(nodes.view, thresholds, found, among=among)
    if isinstance(verdict, Abstain) or not verdict:
        return []
    like = {slow.rank: slow for slow in verdict}
    for column in set(by_level).difference(among):
        like[column] = min(verdict, key=lambda slow: abs(levels[slow.rank] - levels[column]))
    shared: dict[int, tuple[SlowRank, Ints]] = {}
    slow_nodes = []
    for column, slow in like.items():
        if slow.rank not in shared:
            since_range = find_since_range(slow, slow.since_step, nodes.view)
            rows = np.flatnonzero(np.isin(view.series.steps, slow.slow_steps))
            shared[slow.rank] = slow._replace(since_range=since_range), rows
        node, rows = shared[slow.rank]
        slow_nodes.append((node, _find_ranks(view, nodes.ranks[column], node, rows, thresholds)))
    return slow_nodes


def _find_ranks(
    view: RunView, ranks: Sequence[int], node: SlowRank, rows: Ints, thresholds: Thresholds
) -> list[SlowRank]:
    """Return those ranks of a node that are slow with it, or as another that is, in some rows, with their own size;
    none where these are too few.
    """
    own_ns = view.series.own_ns[np.ix_(rows, view.series.columns_of(ranks))]
    known = ~np.isnan(own_ns).any(axis=1)
    if not known.any():
        return []
    own_ns = np.median(own_ns[known], axis=0)
    least_ns = node.peers_own_ns + MEMBER * (node.own_ns - node.peers_own_ns)
    members = [(rank, own) for rank, own in zip(ranks, own_ns.tolist(), strict=True) if own >= least_ns]
    is_slow = float(np.median(own_ns)) >= thresholds.slowdown_close_ratio * node.peers_own_ns
    if not is_slow or len(members) < SHARE_MIN * len(ranks):
        return []
    return [
        node._replace(
            rank=rank,
            slowdown_ratio=own / node.peers_own_ns,
            own_ns=own,
            peers=view.compared.of(rank).peers_of(rank),
        )
        for rank, own in members
    ]
