"""Which links are slow: whose data movement takes longer than that of groups that do the same, or than it used to.

The transfer of a synchronising collective is the shortest duration of any member (`wait_times.py`), so a rank that
comes late does not lengthen it: what is left is the links. A group is to its siblings what a rank is to its peers, and
is judged by the same rules (`stragglers.py`), on

    x[step] = log(transfer of the group / median transfer of its siblings)

Siblings are the groups of the same mesh dimension, with as many members on as many machines, that move as many bytes.
A group with fewer than three of them is compared with its own past: the median of its transfer before the clearest
change of level. That past leaves the window in time, so an open finding keeps it. So are all siblings together: what
makes most of them slow at once (a switch, a congested fabric) shows in none of them beside the others.

Steps in which a group moved another amount than lately are left out: they would compare sizes and not links.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple, TypeVar

import numpy as np

from rankscope.collector.detect.finding import Abstain
from rankscope.collector.detect.statistics.change_points import find_change
from rankscope.collector.detect.statistics.excess import find_excess_ns
from rankscope.collector.detect.statistics.noise import measure_noise
from rankscope.collector.detect.stragglers.persistent import Slow, Thresholds, find_stragglers, has_recovered
from rankscope.collector.detect.view import RunView, as_rank_series
from rankscope.collector.steps.peer_groups import PEERS_MIN, Comparison
from rankscope.collector.steps.step_series import Floats

SAME_BYTES_RATIO: Final = 0.05
"""Amounts that differ by less than 5 % move alike: padding is below it, the small batch that ends an epoch above."""
EXCESS_STEP_RATIO_MIN: Final = 0.005
"""Half a percent of the step: a transfer that is longer by less cannot make a job one percent slower, and of
collectives of a few microseconds the transfer cannot be told from the launch (docs/definitions.md section 3)."""


class Past(NamedTuple):
    """What a group's transfer was, in ns, and by how much the logarithm of that may be off."""

    ns: float
    error: float = 0.0


class SlowLink(NamedTuple):
    """A group, or a family of siblings, whose transfer passes every test, with the medians since its present level.
    `siblings` is empty where it was compared with its own past. By step, shape (n,) in ns, NaN where not known:
    `excess_ns` is by how much the transfer is longer, `exposed_ns` how much of it was exposed.
    """

    group: str
    siblings: tuple[str, ...]
    slow: Slow
    excess_ns: Floats
    exposed_ns: Floats


@dataclass(frozen=True)
class Links:
    """The transfers of all groups as a view in which a column stands for a group, then for each family of siblings, and
    behind these for the pasts of those that are compared with theirs. `names` are those of the columns, of which a past
    has none; `families` the groups of each family.
    """

    view: RunView
    names: tuple[str, ...]
    families: Mapping[str, tuple[str, ...]]
    pasts: Mapping[str, Past]
    exposed_ns: Mapping[str, Floats]

    def has_recovered(self, name: str, thresholds: Thresholds) -> bool:
        """Whether the transfer is no longer than that of those it is compared with; False when not known."""
        return name in self.names and has_recovered(self.view.excess_of(self.names.index(name)), thresholds)

    def describe(self, slow: Slow) -> SlowLink:
        """What was found of a column, as what it says of its group or family."""
        name = self.names[slow.rank]
        siblings = tuple(self.names[peer] for peer in slow.peers.ranks if peer < len(self.names))
        excess_ns = find_excess_ns(self.view.excess_of(slow.rank), self.view.series.self_ns[:, slow.rank])
        exposed = np.stack([self.exposed_ns[group] for group in self.families.get(name, (name,))])
        return SlowLink(name, siblings, slow, excess_ns, np.median(exposed, axis=0))


def build_links(view: RunView, pasts: Mapping[str, Past], thresholds: Thresholds) -> Links:
    """Every group of more than one rank beside those that it is compared with. `pasts` are known from before."""
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
        comparisons.append(Comparison(siblings, siblings, do_same_work=True))
    among_siblings = {group for family in families.values() for group in family}
    for column, name in enumerate(names):
        if name not in among_siblings:
            found[name] = pasts.get(name) or find_past(columns[column], thresholds.steps_min)
            comparisons.append(Comparison((column,), (column, len(columns)), do_same_work=True))
            columns.append(np.full(len(view.series.steps), found[name].ns))
    return Links(as_rank_series(view, columns, comparisons), names, families, found, view.transfers.exposed_ns)


def _has_links(view: RunView, group: str) -> bool:
    """Whether its members have anything between them: on one machine without GPUs their data moves by the same cores
    that compute, and what takes longer says nothing of a link.
    """
    members = view.groups.get(group, ())
    on_machines = len({view.nodes.get(rank) for rank in members}) > 1
    return len(members) > 1 and (on_machines or any(view.samples.devices.get(rank) for rank in members))


def find_slow_links(links: Links, step_ns: float, thresholds: Thresholds) -> tuple[SlowLink, ...] | Abstain:
    """Every group whose links are slow now, slowest first; or why no verdict can be given. `step_ns`: a usual step."""
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
        if link.slow.self_ns - link.slow.peers_self_ns >= EXCESS_STEP_RATIO_MIN * step_ns
        and (link.siblings or _stands_out_of_its_past(link, links.pasts[link.group], thresholds))
    )


def find_past(transfer_ns: Floats, steps_min: int) -> Past:
    """The median of a group's transfer, shape (n,), before the clearest change of its level. Where too few steps lie
    before it, the median of all, which no verdict can come of.
    """
    known = np.log(np.maximum(transfer_ns[~np.isnan(transfer_ns)], 1.0))
    if len(known) == 0:
        return Past(math.nan)
    change = find_change(known)
    if change < steps_min:
        return Past(float(np.exp(np.median(known))), math.inf)
    return Past(float(np.exp(np.median(known[:change]))), measure_noise(known, change).median_error(change))


def _stands_out_of_its_past(link: SlowLink, past: Past, thresholds: Thresholds) -> bool:
    """`find_stragglers` takes those it compares with for exact, and a past is known no better than the present."""
    level = math.log(link.slow.slowdown_ratio)
    return level >= thresholds.robust_z_min * math.hypot(level / link.slow.robust_z, past.error)


def _family_of(view: RunView, group: str, usual_bytes: float | None) -> tuple[object, ...]:
    """What siblings have in common: the dimension, the number of members and of machines, the bytes of a step."""
    members = view.groups[group]
    machines = {view.nodes.get(rank) for rank in members}
    return group.partition("/")[0], len(members), len(machines), usual_bytes


def _middle(transfers_ns: Sequence[Floats]) -> Floats:
    """By step the transfer that more than half of the groups reach, shape (n,); NaN where one is not known."""
    stacked = np.stack(transfers_ns)
    nth = (len(stacked) - 1) // 2
    return np.where(np.isnan(stacked).any(axis=0), np.nan, np.partition(stacked, nth, axis=0)[nth])


def _name_family(view: RunView, groups: Sequence[str]) -> str:
    """Like the name of a group: the dimension, a star for the siblings, and the lowest rank of theirs."""
    return f"{groups[0].partition('/')[0]}/*{min(view.groups[group][0] for group in groups)}"


def _usual_bytes(view: RunView, group: str, steps: int) -> float | None:
    """The median over the last steps of which it is known."""
    known = view.transfer_bytes[group][~np.isnan(view.transfer_bytes[group])][-steps:]
    return median(known.tolist()) if len(known) else None


def _steady_transfer(view: RunView, group: str, usual_bytes: float | None) -> Floats:
    """The transfer of the steps that moved what the last ones did, NaN in the others; shape (n,)."""
    if usual_bytes is None:
        return view.transfers_ns[group]
    differs = np.abs(view.transfer_bytes[group] - usual_bytes) > SAME_BYTES_RATIO * usual_bytes
    return np.where(differs, np.nan, view.transfers_ns[group])


# Where a slow link is: what several slow groups have in common.
#
# One slow group says that some link between its members is slow. Where slow groups share one rank and nothing else, the
# link is that rank's: its network card, its port. Where they share one machine of several, it is that machine's; where
# they all reach from one machine to the same other one, it is what lies between the two.

Place = TypeVar("Place", int, str)


class Location(NamedTuple):
    """Slow groups that go back to one link. `ranks` ascend: those that the groups have in common, of one group all.
    `nodes`: the machines of these ranks. `suspect` says in words what the groups prove: `rank`, `node`, `node pair`, or
    nothing.
    """

    groups: tuple[str, ...]
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    suspect: str = ""


def find_locations(
    groups: Iterable[str], members: Mapping[str, Sequence[int]], nodes: Mapping[int, str]
) -> tuple[Location, ...]:
    """Every slow group in exactly one location. `members` are a group's ranks, `nodes` each rank's machine.

    >>> members = {"tp": (4, 5, 6, 7), "dp": (1, 5, 9, 13)}
    >>> find_locations(["tp", "dp"], members, dict.fromkeys(range(16), "a"))
    (Location(groups=('dp', 'tp'), ranks=(5,), nodes=('a',), suspect='rank'),)
    """
    by_rank, apart = _bundle({group: frozenset(members[group]) for group in groups})
    found = []
    for names, ranks in by_rank:
        machines = _machines(ranks, nodes)
        found.append(Location(names, tuple(sorted(ranks)), machines, "rank" if len(ranks) == 1 else ""))
    by_node, alone = _bundle({group: frozenset(_machines(members[group], nodes)) for group in apart})
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
    """Groups that share a place, with all the places they share, those of the most shared place first; and the groups
    that share none with any other.
    """
    left = dict(sorted(places.items()))
    bundles = []
    while left:
        counts = Counter(place for there in left.values() for place in there)
        place = max(sorted(counts), key=counts.__getitem__, default=None)
        if place is None or counts[place] < 2:  # noqa: PLR2004 - one group shares nothing
            break
        names = tuple(group for group, there in left.items() if place in there)
        bundles.append((names, frozenset.intersection(*(left.pop(group) for group in names))))
    return bundles, list(left)


def _machines(ranks: Iterable[int], nodes: Mapping[int, str]) -> tuple[str, ...]:
    """The machines of these ranks, those not known left out."""
    return tuple(sorted({nodes[rank] for rank in ranks if rank in nodes}))
