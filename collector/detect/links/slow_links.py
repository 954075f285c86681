"""Find slow links: process groups whose transfers take longer than those of similar groups, or than before.

The transfer of a synchronizing collective is the shortest duration of any member (`wait_times.py`), so a rank that
enters late does not lengthen it, and only the links remain. A group is compared with its siblings as a rank with its
peers, by the same rules (`persistent.py`), on

    x[step] = log(transfer of the group / median transfer of its siblings)

Siblings are the groups of the same mesh dimension, with as many members on as many machines, that move as many bytes.
A group with fewer than three of them is compared with its own past: the median of its transfer before the clearest
change of level. That past leaves the step table, so an open finding keeps it. All siblings together are compared with
their past too: what slows most of them at once (a switch, a congested fabric) does not show between them.

Steps in which a group moved a different number of bytes than lately do not count.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple, TypeVar

import numpy as np

from rankscope.collector.detect.finding import Abstain
from rankscope.collector.detect.links.link_counters import LinkCounters
from rankscope.collector.detect.statistics.change_points import find_change
from rankscope.collector.detect.statistics.excess import find_excess_ns
from rankscope.collector.detect.statistics.noise import measure_noise
from rankscope.collector.detect.stragglers.persistent import (
    SlowRank,
    Thresholds,
    find_stragglers,
    has_recovered,
    measure_excess,
)
from rankscope.collector.detect.view import RunView, as_rank_series
from rankscope.collector.steps.peer_groups import PEERS_MIN, PeerComparison
from rankscope.collector.steps.step_series import Floats

SAME_BYTES_RATIO: Final = 0.05
"""Difference of bytes that counts as none: padding is below it, the small last batch of an epoch above."""
EXCESS_STEP_RATIO_MIN: Final = 0.005
"""Least excess over the step: a smaller one cannot make a run one percent slower, and the transfer of collectives of a
few microseconds cannot be separated from the launch (docs/definitions.md section 3)."""


class Past(NamedTuple):
    """The past transfer of a group, in ns, and the uncertainty of its logarithm."""

    ns: float
    error: float = 0.0


class SlowLink(NamedTuple):
    """A group, or a family of siblings, whose transfer passes every test, with the medians since its present level.
    `siblings` is empty where it was compared with its own past. By step, shape (n,) in ns, NaN where not known:
    `excess_ns` is by how much the transfer is longer, `exposed_ns` how much of it was exposed.
    """

    group: str
    siblings: tuple[str, ...]
    slow: SlowRank
    excess_ns: Floats
    exposed_ns: Floats


@dataclass(frozen=True)
class Links:
    """The transfers of all groups as a view with a column per group, then one per family of siblings, then one per past
    that is compared with. `names` are those of the columns but the pasts; `families` the groups of each family. The
    `counters` are those of the machines' network ports.
    """

    view: RunView
    names: tuple[str, ...]
    families: Mapping[str, tuple[str, ...]]
    pasts: Mapping[str, Past]
    exposed_ns: Mapping[str, Floats]
    counters: LinkCounters

    def has_recovered(self, name: str, thresholds: Thresholds, steps: int = 0) -> bool:
        """Return whether the transfer is no longer than that of its siblings or past, by the last `steps` known steps;
        False when not known.
        """
        return name in self.names and has_recovered(self.view.excess_of(self.names.index(name)), thresholds, steps)

    def describe(self, slow: SlowRank) -> SlowLink:
        """Return what was found for a column as a slow group or family."""
        name = self.names[slow.rank]
        siblings = tuple(self.names[peer] for peer in slow.peers.ranks if peer < len(self.names))
        excess_ns = find_excess_ns(self.view.excess_of(slow.rank), self.view.series.own_ns[:, slow.rank])
        exposed = np.stack([self.exposed_ns[group] for group in self.families.get(name, (name,))])
        return SlowLink(name, siblings, slow, excess_ns, np.median(exposed, axis=0))


def build_links(view: RunView, pasts: Mapping[str, Past], thresholds: Thresholds) -> Links:
    """Build the view of all groups of more than one rank. `pasts` are those of open findings."""
    groups = sorted(group for group in view.transfers_ns if _has_links(view, group))
    usual = {group: _usual_bytes(view, group, thresholds.steps_min) for group in groups}
    transfers = {group: _steady_transfer(view, group, usual[group]) for group in groups}
    alike: dict[tuple[object, ...], list[str]] = defaultdict(list)
    for group in groups:
        alike[_family_of(view, group, usual[group])].append(group)
    families = {_name_family(view, family): tuple(family) for family in alike.values() if len(family) > PEERS_MIN}
    transfers |= {name: _middle([transfers[group] for group in family]) for name, family in families.items()}
    names = tuple(transfers)
    columns, comparisons, found = list(transfers.values()), [], {}
    place = {name: column for column, name in enumerate(names)}
    for family in families.values():
        siblings = tuple(sorted(place[group] for group in family))
        comparisons.append(PeerComparison(siblings, siblings, do_same_work=True))
    among_siblings = {group for family in families.values() for group in family}
    for column, name in enumerate(names):
        if name not in among_siblings:
            found[name] = pasts.get(name) or find_past(columns[column], thresholds.steps_min)
            comparisons.append(PeerComparison((column,), (column, len(columns)), do_same_work=True))
            columns.append(np.full(len(view.series.steps), found[name].ns))
    counters = LinkCounters(lambda: view.machines)
    return Links(
        as_rank_series(view, columns, comparisons), names, families, found, view.transfers.exposed_ns, counters
    )


def _has_links(view: RunView, group: str) -> bool:
    """Return whether there is a link between its members: on one machine without GPUs the cores that compute also move
    the data.
    """
    members = view.groups.get(group, ())
    on_machines = len({view.nodes.get(rank) for rank in members}) > 1
    return len(members) > 1 and (on_machines or any(view.samples.devices.get(rank) for rank in members))


def find_slow_links(links: Links, step_ns: float, thresholds: Thresholds) -> tuple[SlowLink, ...] | Abstain:
    """Return the groups whose links are slow now, slowest first; or why no verdict can be given. `step_ns`: a usual
    step.
    """
    if not links.names:
        return Abstain("no transfer of any process group is known")
    verdict = find_stragglers(links.view, thresholds)
    if isinstance(verdict, Abstain):
        known = int(np.count_nonzero(~np.isnan(links.view.excess), axis=0).max())
        return Abstain(f"the transfers of {known} steps can be compared, {thresholds.steps_min} are needed")
    found = [links.describe(slow) for slow in verdict]
    return tuple(
        link
        for link in found
        if link.slow.own_ns - link.slow.peers_own_ns >= EXCESS_STEP_RATIO_MIN * step_ns
        and (link.siblings or _exceeds_its_past(link, links.pasts[link.group], thresholds))
    )


def find_past(transfer_ns: Floats, steps_min: int) -> Past:
    """Return the median of a group's transfer, shape (n,), before the clearest change of its level. With too few steps
    before it, the median of all with an infinite error, so that no verdict follows.
    """
    known = np.log(np.maximum(transfer_ns[~np.isnan(transfer_ns)], 1.0))
    if len(known) == 0:
        return Past(math.nan)
    change = find_change(known)
    if change < steps_min:
        return Past(float(np.exp(np.median(known))), math.inf)
    return Past(float(np.exp(np.median(known[:change]))), measure_noise(known, change).median_error(change))


def _exceeds_its_past(link: SlowLink, past: Past, thresholds: Thresholds) -> bool:
    """Return whether the excess is certain also with the error of the past, which `find_stragglers` takes as exact."""
    excess = measure_excess(math.log(link.slow.slowdown_ratio))
    return excess >= thresholds.robust_z_min * math.hypot(excess / link.slow.robust_z, past.error)


def _family_of(view: RunView, group: str, usual_bytes: float | None) -> tuple[object, ...]:
    """Return what siblings have in common: the dimension, the number of members and of machines, the bytes of a
    step.
    """
    members = view.groups[group]
    machines = {view.nodes.get(rank) for rank in members}
    return group.partition("/")[0], len(members), len(machines), usual_bytes


def _middle(transfers_ns: Sequence[Floats]) -> Floats:
    """Return by step the transfer that more than half of the groups reach, shape (n,); NaN where one is not known."""
    stacked = np.stack(transfers_ns)
    nth = (len(stacked) - 1) // 2
    return np.where(np.isnan(stacked).any(axis=0), np.nan, np.partition(stacked, nth, axis=0)[nth])


def _name_family(view: RunView, groups: Sequence[str]) -> str:
    """Return a name like that of a group: the dimension, a star for the siblings, and their lowest rank."""
    return f"{groups[0].partition('/')[0]}/*{min(view.groups[group][0] for group in groups)}"


def _usual_bytes(view: RunView, group: str, steps: int) -> float | None:
    """Return the median over the last known steps."""
    known = view.transfer_bytes[group][~np.isnan(view.transfer_bytes[group])][-steps:]
    return median(known.tolist()) if len(known) else None


def _steady_transfer(view: RunView, group: str, usual_bytes: float | None) -> Floats:
    """Return the transfer of steps that moved the usual bytes, NaN in the others; shape (n,)."""
    if usual_bytes is None:
        return view.transfers_ns[group]
    differs = np.abs(view.transfer_bytes[group] - usual_bytes) > SAME_BYTES_RATIO * usual_bytes
    return np.where(differs, np.nan, view.transfers_ns[group])


# Location of a slow link, from what several slow groups have in common.
#
# One slow group proves that some link between its members is slow. Slow groups that share only one rank prove that
# rank's link (network card, port); groups that share one node of several, that node's; groups that all span the same
# two nodes, the links between the two.

Place = TypeVar("Place", int, str)


class Location(NamedTuple):
    """Slow groups with one link as their origin. `ranks`, ascending: those that the groups have in common, for one
    group all. `nodes`: the machines of these ranks. `suspect` is what the groups prove: `rank`, `node`, `node pair`, or
    empty.
    """

    groups: tuple[str, ...]
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    suspect: str = ""


def find_locations(
    groups: Iterable[str], members: Mapping[str, Sequence[int]], nodes: Mapping[int, str]
) -> tuple[Location, ...]:
    """Put every slow group into exactly one location. `members` are a group's ranks, `nodes` each rank's machine.

    >>> members = {"tp": (4, 5, 6, 7), "dp": (1, 5, 9, 13)}
    >>> find_locations(["tp", "dp"], members, dict.fromkeys(range(16), "a"))
    (Location(groups=('dp', 'tp'), ranks=(5,), nodes=('a',), suspect='rank'),)
    """
    by_rank, unshared = _bundle({group: frozenset(members[group]) for group in groups})
    found = []
    for names, ranks in by_rank:
        machines = _machines(ranks, nodes)
        found.append(Location(names, tuple(sorted(ranks)), machines, "rank" if len(ranks) == 1 else ""))
    by_node, alone = _bundle({group: frozenset(_machines(members[group], nodes)) for group in unshared})
    machines_known = len(set(nodes.values()))
    for names, shared in by_node:
        suspect = {1: "node", 2: "node pair"}.get(len(shared), "")
        if suspect and len(shared) < machines_known:
            there = {rank for group in names for rank in members[group] if nodes.get(rank) in shared}
            found.append(Location(names, tuple(sorted(there)), tuple(sorted(shared)), suspect))
        else:
            alone += names
    found += [Location((group,), tuple(members[group]), _machines(members[group], nodes)) for group in sorted(alone)]
    return tuple(found)


def _bundle(places: Mapping[str, frozenset[Place]]) -> tuple[list[tuple[tuple[str, ...], frozenset[Place]]], list[str]]:
    """Return bundles of groups that share a place, with all places they share, the most shared first; and the groups
    that share none with another.
    """
    remaining = dict(sorted(places.items()))
    bundles = []
    while remaining:
        counts = Counter(place for there in remaining.values() for place in there)
        place = max(sorted(counts), key=counts.__getitem__, default=None)
        if place is None or counts[place] < 2:  # noqa: PLR2004 - one group shares nothing
            break
        names = tuple(group for group, there in remaining.items() if place in there)
        bundles.append((names, frozenset.intersection(*(remaining.pop(group) for group in names))))
    return bundles, list(remaining)


def _machines(ranks: Iterable[int], nodes: Mapping[int, str]) -> tuple[str, ...]:
    """Return the machines of these ranks, without unknown ones."""
    return tuple(sorted({nodes[rank] for rank in ranks if rank in nodes}))
