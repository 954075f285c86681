"""Find the ranks, nodes and links that are slow in the results of all ranks, and which checks could not be compared.

A rank is compared with ranks of other nodes where there are PEERS_MIN of the same device, otherwise with all others of
it: a node on which every rank is slow would be its own measure. A node's exchange is its rate with the best of its
partners: a slow node is slow with all of them, its partners are not. A link is slow where its two nodes are faster with
others.
"""

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from rankscope.agent.preflight.checks import PAIRS, NodeCheck
from rankscope.agent.preflight.comparison import PEERS_MIN, compare
from rankscope.agent.preflight.results import RankResults, Slow

Past = Mapping[str, Mapping[str, Sequence[float]]]
"""Rates of earlier pre-flights by check and node, the latest last."""


class ComparedSubject(NamedTuple):
    """What is compared: a rank or a node. `group` is equal for those that can be compared; `values` are not empty."""

    node: str
    rank: int | None
    group: str
    values: tuple[float, ...]


class Judgement(NamedTuple):
    """What is slow, the titles of the checks that were compared, and the reasons why others were not, by title."""

    slow: tuple[Slow, ...]
    compared: tuple[str, ...]
    not_compared: dict[str, str]


def judge(results: Sequence[RankResults], checks: Sequence[NodeCheck], past: Past) -> Judgement:
    """Return what is slow in the results of all ranks; `past` has the rates of earlier pre-flights."""
    slow: list[Slow] = []
    compared: list[str] = []
    not_compared: dict[str, str] = {}
    for check in checks:
        subjects = list_subjects(results, check)
        found, reason, had_peers = _judge_peers(subjects, check)
        earlier, was_compared = _judge_past(subjects, check, past.get(check.name, {}))
        slow += _join(found, earlier)
        if had_peers or was_compared:
            compared.append(check.title)
        if reason:
            not_compared[check.title] = reason
        if check.name == PAIRS:
            slow += find_slow_links(results, check, {one.node for one in slow})
    return Judgement(tuple(slow), tuple(compared), not_compared)


def list_subjects(results: Sequence[RankResults], check: NodeCheck) -> list[ComparedSubject]:
    """Return the subjects of a check that have a value. A node's group includes the number of its ranks."""
    if check.name == PAIRS:
        return _list_exchanges(results)
    ranks_of = {one.node: sum(other.node == one.node for other in results) for one in results}
    return [
        ComparedSubject(
            one.node,
            None if check.of_node else one.rank,
            f"{one.device}, {ranks_of[one.node]} ranks a node" if check.of_node else one.device,
            one.checks[check.name].values,
        )
        for one in results
        if check.name in one.checks and one.checks[check.name].values and (one.local_rank == 0 or not check.of_node)
    ]


def find_slow_links(results: Sequence[RankResults], check: NodeCheck, slow_nodes: set[str]) -> list[Slow]:
    """Return the pairs of nodes, none of them slow itself, whose exchange was slower than those of the other pairs."""
    pairs = {
        pair: values for pair, values in merge_pairs(results).items() if not slow_nodes.intersection(pair)
    }  # fmt: skip
    slow = []
    for pair, values in pairs.items():
        peers = [other for name, other in pairs.items() if name != pair]
        if len(peers) < PEERS_MIN or not _are_better_elsewhere(pair, pairs):
            continue
        found = compare(values, peers, check.ratio_min)
        if found.is_slow:
            slow.append(
                Slow(
                    check=check.name, node=pair[0], rank=None, own=found.own, against=found.against, peers=len(peers),
                    ratio=found.ratio, deviations=found.deviations, other=pair[1],
                )
            )  # fmt: skip
    return slow


def merge_pairs(results: Iterable[RankResults]) -> dict[tuple[str, str], tuple[float, ...]]:
    """Return the rates by pair of nodes in order of names: those of all its ranks, as both ends measured them."""
    pairs: dict[tuple[str, str], tuple[float, ...]] = {}
    for one in results:
        for rates in one.pairs:
            pair = (min(rates.node, rates.other), max(rates.node, rates.other))
            pairs[pair] = pairs.get(pair, ()) + rates.values
    return {pair: values for pair, values in pairs.items() if values}


def _are_better_elsewhere(pair: tuple[str, str], pairs: Mapping[tuple[str, str], Sequence[float]]) -> bool:
    own = statistics.median(pairs[pair])
    return all(
        any(node in other and statistics.median(values) > own for other, values in pairs.items() if other != pair)
        for node in pair
    )


def _list_exchanges(results: Sequence[RankResults]) -> list[ComparedSubject]:
    pairs = merge_pairs(results)
    devices = {one.node: one.device for one in results}
    subjects = []
    for node, device in devices.items():
        own = [values for pair, values in pairs.items() if node in pair]
        if own:
            subjects.append(ComparedSubject(node, None, device, max(own, key=statistics.median)))
    return subjects


def _judge_peers(subjects: Sequence[ComparedSubject], check: NodeCheck) -> tuple[list[Slow], str, bool]:
    """Return what is slow, the reason if anything with a value could not be compared, and whether anything could."""
    if not subjects:
        return [], "no values", False
    slow, reason, had_peers = [], "", False
    for one in subjects:
        others = [other for other in subjects if other is not one and other.group == one.group]
        elsewhere = [other for other in others if other.node != one.node]
        peers = elsewhere if len(elsewhere) >= PEERS_MIN else others
        if len(peers) < PEERS_MIN:
            what = "nodes" if check.of_node else "ranks"
            reason = f"{PEERS_MIN} other {what} with the same device ({one.group}) are needed; there are {len(peers)}"
            continue
        had_peers = True
        found = compare(one.values, [peer.values for peer in peers], check.ratio_min)
        if found.is_slow:
            slow.append(
                Slow(
                    check=check.name, node=one.node, rank=one.rank, own=found.own, against=found.against,
                    peers=len(peers), ratio=found.ratio, deviations=found.deviations,
                )
            )  # fmt: skip
    return slow, reason, had_peers


def find_slowest(subjects: Iterable[ComparedSubject]) -> dict[str, ComparedSubject]:
    """Return the subject with the lowest median rate of each node."""
    slowest: dict[str, ComparedSubject] = {}
    for one in subjects:
        known = slowest.get(one.node)
        if known is None or statistics.median(one.values) < statistics.median(known.values):
            slowest[one.node] = one
    return slowest


def _judge_past(
    subjects: Sequence[ComparedSubject], check: NodeCheck, past: Mapping[str, Sequence[float]]
) -> tuple[list[Slow], bool]:
    """Return the nodes whose slowest rank is slower than it was, and whether every node has enough of a past."""
    slow, slowest = [], find_slowest(subjects)
    known = {node: past[node] for node in slowest if len(past.get(node, ())) >= PEERS_MIN}
    for node, values in known.items():
        one = slowest[node]
        found = compare(one.values, [[value] for value in values], max(check.ratio_min, PAST_RATIO_MIN))
        if found.is_slow:
            slow.append(
                Slow(
                    check=check.name, node=node, rank=one.rank, own=found.own, against=found.against,
                    peers=len(values), ratio=found.ratio, deviations=found.deviations, is_past=True,
                )
            )  # fmt: skip
    return slow, bool(slowest) and len(known) == len(slowest)


PAST_RATIO_MIN = 1.1
"""Drivers, temperature and neighbors on a switch change between two pre-flights."""


def _join(found: Sequence[Slow], earlier: Sequence[Slow]) -> list[Slow]:
    """Return both, without comparisons with the past of what is slow beside its peers anyway."""
    known = {one.node for one in found}
    return [*found, *(one for one in earlier if one.node not in known)]


def confirm(first: Sequence[Slow], again: Sequence[Slow], repeated: Collection[str]) -> tuple[Slow, ...]:
    """Return what was slow in both measurements, with the numbers of the second. `repeated` are the names of the checks
    that were measured again: of the others `again` has the first values, which confirm nothing.
    """
    before = {(one.check, one.node, one.rank, one.other, one.is_past) for one in first if one.check in repeated}
    return tuple(one for one in again if (one.check, one.node, one.rank, one.other, one.is_past) in before)


def describe_unconfirmed(first: Sequence[Slow], checks: Sequence[NodeCheck], repeated: Collection[str]) -> list[str]:
    """Return for each check that was slow and not measured again where that was."""
    said = []
    for check in checks:
        nodes = sorted({node for one in first if one.check == check.name for node in (one.node, one.other) if node})
        if nodes and check.name not in repeated:
            said.append(f"{check.title} again (slow once on {', '.join(nodes)}: nobody is named for it)")
    return said
