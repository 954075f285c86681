"""Build the findings about slow links: between which ranks or nodes, how much slower, since when, at what cost."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from rankscope.collector.detect.finding import (
    GROUP_SEPARATOR,
    SLOW_LINK,
    Abstain,
    Finding,
    SinceRange,
    format_ranks,
    name_ranks,
)
from rankscope.collector.detect.finding_memory import FindingMemory, recall, remember
from rankscope.collector.detect.finding_words import COST_RATIO_STATED_MIN
from rankscope.collector.detect.links.link_counters import Sign
from rankscope.collector.detect.links.slow_links import (
    Links,
    Location,
    Past,
    SlowLink,
    build_links,
    find_locations,
    find_slow_links,
)
from rankscope.collector.detect.stragglers.begin import find_since_range, was_slow
from rankscope.collector.detect.stragglers.cost import find_step_before, price
from rankscope.collector.detect.stragglers.persistent import (
    Thresholds,
    keep_steps_to_close,
    steps_to_close,
)
from rankscope.collector.detect.suggestions import suggest
from rankscope.collector.detect.view import Candidate, RunView
from rankscope.collector.steps.step_series import Floats, StepSeries
from rankscope.measure.units import ns_to_s

ROUNDING: Final = 1e-9
"""Relative difference of two sums of times that rounding alone makes."""
OTHERS_NAMED_MAX: Final = 2
"""Other slow groups named in a sentence."""
NODES_NAMED_MAX: Final = 4
"""Nodes named in a sentence: a group may span thousands; the finding has them all."""
NVLINK_XID: Final = 74
"""Xid error of a faulty NVLink (NVIDIA's Xid catalogue)."""


class SlowLinks:
    """The detector of slow links. `thresholds` are those of links: transfers vary more than own times."""

    kinds = frozenset({SLOW_LINK})

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds

    def find(self, view: RunView, explained: Sequence[Finding]) -> Sequence[Candidate] | Abstain:
        """Return the slow links; slow groups that share one link are one finding."""
        known = [finding for finding in explained if finding.kind == SLOW_LINK]
        links = build_links(view, _read_pasts(known), self._thresholds)
        verdict = find_slow_links(links, _usual_step_ns(view.series), self._thresholds)
        if isinstance(verdict, Abstain):
            return verdict
        slow = {link.group: link for link in verdict}
        still = {name for name in self._still_slow(links, known) if name not in slow}
        groups = [name for name in (*slow, *still) if name not in links.families]
        located = find_locations(groups, view.groups, view.nodes)
        located += tuple(_locate_family(view, name, links.families[name]) for name in slow if name in links.families)
        described = [
            _describe(view, links, location, [slow[name] for name in location.groups if name in slow], known)
            for location in located
            if not still.issuperset(location.groups)
        ]
        return _charge_each_step_once(described)

    def _still_slow(self, links: Links, known: Sequence[Finding]) -> Collection[str]:
        """Return groups of open findings that have not recovered: they help to locate a link also while they do not
        pass every test.
        """
        groups = {group for finding in known for group in finding.groups if group in links.names}
        return {str(group) for group in groups if not links.has_recovered(str(group), self._thresholds)}

    def has_passed(self, view: RunView, finding: Finding, _explained: Sequence[Finding]) -> bool:
        """Return whether the transfer of every group of the finding has recovered."""
        links = build_links(view, _read_pasts([finding]), self._thresholds)
        steps = steps_to_close(finding)
        return all(links.has_recovered(str(group), self._thresholds, steps) for group in finding.groups)


def _locate_family(view: RunView, name: str, family: Sequence[str]) -> Location:
    """Return the location of all siblings together."""
    ranks = tuple(sorted({rank for group in family for rank in view.groups[group]}))
    nodes = tuple(sorted({view.nodes[rank] for rank in ranks if rank in view.nodes}))
    return Location((name,), ranks, nodes)


def _read_pasts(findings: Sequence[Finding]) -> dict[str, Past]:
    """Return the pasts that open findings compare with; they may predate the step table."""
    return {group: Past(ns) for finding in findings for group, ns in recall(finding).pasts_ns.items()}


def _usual_step_ns(series: StepSeries) -> float:
    """Return the median step of the slowest rank in ns; 0 when none is known."""
    known = series.step_ns[~np.isnan(series.step_ns).all(axis=1)]
    return float(np.median(np.nanmax(known, axis=1))) if len(known) else 0.0


def _find_leader(slow: Sequence[SlowLink]) -> SlowLink:
    """Return the link with the largest excess; of those equal but for rounding the one that is slower by more."""
    excesses_ns = [link.slow.own_ns - link.slow.peers_own_ns for link in slow]
    first = [link for link, ns in zip(slow, excesses_ns, strict=True) if ns >= max(excesses_ns) * (1 - ROUNDING)]
    return max(first, key=lambda link: link.slow.slowdown_ratio)


def _describe(
    view: RunView,
    links: Links,
    location: Location,
    slow: Sequence[SlowLink],
    known: Sequence[Finding],
) -> tuple[Finding, Floats]:
    """Build the finding about one link, some of whose groups are slow now, and what each step lost to it."""
    leader = _find_leader(slow)
    before = next((finding for finding in known if not set(finding.groups).isdisjoint(location.groups)), None)
    since_step = min(_since_step(links.view, link, before) for link in slow)
    since_range = _find_since_range(links, slow, since_step, before)
    since_min, since_max = since_range or (None, None)
    step_before_ns = _find_step_before(view, location, since_step, before)
    lost_ns = _lost_to(view, slow, since_step)
    if step_before_ns is not None:
        lost_ns = np.minimum(lost_ns, np.maximum(view.longest_ns - step_before_ns, 0.0))
    cost = price(lost_ns, view, since_step)
    costs = cost >= COST_RATIO_STATED_MIN or (before is not None and before.severity == "warning")
    indications, details = _find_indications(view, location)
    has_ports = _crosses_machines(view, links, location)
    signs = links.counters.find_signs(location.nodes, leader.slow.level_from_step) if has_ports else {}
    details |= {kind: "; ".join(sign.text for sign in there) for kind, there in signs.items()}
    clearest = [there[0] for there in signs.values()]
    family_size = len(links.families.get(leader.group, ()))
    finding = Finding(
        kind=SLOW_LINK,
        ranks=location.ranks,
        nodes=() if location.suspect == "rank" else location.nodes,
        group=leader.group,
        since_step=since_step,
        since_step_min=since_min,
        since_step_max=since_max,
        cause=SLOW_LINK,
        who=_write_who(location, leader, family_size),
        what=_write_what(leader),
        also=(*_write_shared(location, leader), *(sign.write() for sign in clearest)),
        suggestion=suggest(SLOW_LINK, SLOW_LINK),
        severity="warning" if costs else "info",
        slowdown_ratio=leader.slow.slowdown_ratio,
        run_slowdown_ratio=cost,
        evidence={
            **_numbers(view, leader),
            **indications,
            **_join_evidence(signs.values()),
        },
        details=details,
    )
    memory = FindingMemory(
        steps_to_close=keep_steps_to_close(before, leader.slow.steps_judged),
        step_before_ns=step_before_ns,
        pasts_ns={group: links.pasts[group].ns for group in location.groups if group in links.pasts},
        transfer_excesses_ns={link.group: link.slow.own_ns - link.slow.peers_own_ns for link in slow},
    )
    return remember(finding, memory), lost_ns


def _crosses_machines(view: RunView, links: Links, location: Location) -> bool:
    """Return whether some slow group has members on several machines: data within one takes no network port."""
    groups = [group for name in location.groups for group in links.families.get(name, (name,))]
    return any(len({view.nodes[rank] for rank in view.groups[group] if rank in view.nodes}) > 1 for group in groups)


def _join_evidence(signs: Iterable[Sequence[Sign]]) -> dict[str, float]:
    return {name: value for there in signs for sign in there for name, value in sign.evidence.items()}


def _since_step(view: RunView, link: SlowLink, before: Finding | None) -> int:
    """Return the first slow step. That of an open finding is kept, unless steps before it were slow, too."""
    found = link.slow.since_step
    if before is None or before.since_step is None:
        return found
    is_earlier = found < before.since_step and was_slow(view, link.slow.rank, found, before.since_step)
    return found if is_earlier else before.since_step


def _find_since_range(
    links: Links, slow: Sequence[SlowLink], since_step: int, before: Finding | None
) -> SinceRange | None:
    """Return the steps between which the begin of a link lies that is stated as `since_step`, by the group that was
    slow first; None where it is not known.
    """
    first = min(slow, key=lambda link: link.slow.since_step).slow
    return find_since_range(first, since_step, links.view, None if before is None else before.since_range)


def _find_step_before(view: RunView, location: Location, since_step: int, before: Finding | None) -> float | None:
    """Return the step before the link became slow, in ns, where no step would be shorter without its slowness; None
    where that is not so, and where no step before is known.

    It is so where there are other ranks than those of its groups, which compute meanwhile: a stage of a pipeline sends
    its gradients while others are still in backward, and waits for them afterwards.
    """
    ranks = {rank for group in location.groups for rank in view.groups.get(group, location.ranks)}
    return find_step_before(view, since_step, before) if len(ranks) < len(view.series.ranks) else None


def _lost_to(view: RunView, slow: Sequence[SlowLink], since_step: int) -> Floats:
    """Return what each step lost to these groups, shape (n,) in ns: the excess of their transfers, each at most its
    exposed part, and all together at most the step. NaN where no excess is known; 0 before.
    """
    lost_ns = [np.clip(np.minimum(link.excess_ns, link.exposed_ns), 0.0, None) for link in slow]
    total_ns = np.where(np.isnan(lost_ns).all(axis=0), np.nan, np.nansum(lost_ns, axis=0))
    at_most_ns = np.where(np.isnan(view.longest_ns), np.inf, view.longest_ns)
    return np.where(view.series.steps < since_step, 0.0, np.minimum(total_ns, at_most_ns))


def _charge_each_step_once(described: Sequence[tuple[Finding, Floats]]) -> list[Candidate]:
    """Charge each step to the link that it lost the most to, so that two links are not both charged for it."""
    if not described:
        return []
    lost_ns = np.stack([lost for _, lost in described])
    pays = np.argmax(np.nan_to_num(lost_ns), axis=0)
    return [
        Candidate(finding, np.where((pays == number) | np.isnan(lost), lost, 0.0))
        for number, (finding, lost) in enumerate(described)
    ]


def _numbers(view: RunView, link: SlowLink) -> dict[str, float]:
    """Return the evidence of one group. Bandwidths are in bytes per second, as nccl-tests defines them."""
    slow = link.slow
    found = {
        "transfer_ns": slow.own_ns,
        "peers_transfer_ns": slow.peers_own_ns,
        **slow.tests,
    }
    recent = view.series.steps >= slow.level_from_step
    for name, sizes in (("algbw", view.transfers.size_bytes), ("busbw", view.transfers.bus_bytes)):
        if link.group in sizes and not np.isnan(sizes[link.group][recent]).all():
            transfer_s = ns_to_s(1.0) * np.maximum(view.transfers.ns[link.group][recent], 1.0)
            found[f"{name}_bytes_per_s"] = float(np.nanmedian(sizes[link.group][recent] / transfer_s))
    return found


def _find_indications(view: RunView, location: Location) -> tuple[dict[str, float], dict[str, str]]:
    """Return further evidence of the link: what the groups prove together, and the GPUs' own NVLink counters."""
    details = {}
    if location.suspect:
        what = {"rank": format_ranks(location.ranks)}.get(location.suspect, ", ".join(location.nodes))
        details[f"suspected {location.suspect}"] = what
    if len(location.groups) > 1:
        details["groups"] = GROUP_SEPARATOR.join(location.groups)
    devices = [(rank, device) for rank, there in sorted(view.samples.devices.items()) for device in there]
    members = set(location.ranks)
    faulty = sorted({rank for rank, device in devices if rank in members and device.xid_last == NVLINK_XID})
    if faulty:
        details["link errors"] = (
            f"Xid {NVLINK_XID} (NVLink) on rank{'s' if len(faulty) > 1 else ''} {format_ranks(faulty)}"
        )
    rates: Mapping[bool, list[float]] = {True: [], False: []}
    for rank, device in devices:
        if device.nvlink_tx_bytes_per_s is not None:
            rates[rank in members].append(device.nvlink_tx_bytes_per_s)
    names = {True: "nvlink_tx_bytes_per_s", False: "peers_nvlink_tx_bytes_per_s"}
    return {names[mine]: float(np.median(values)) for mine, values in rates.items() if values}, details


def _write_who(location: Location, leader: SlowLink, family_size: int) -> str:
    """Return which links they are."""
    where = _name_nodes(location.nodes)
    if family_size:
        return f"links of most of the {family_size} groups {leader.group} ({where})"
    return {
        "rank": f"links of {name_ranks(location.ranks)} ({where})",
        "node": f"links of {where}",
        "node pair": f"links between {where}",
    }.get(location.suspect, f"links of group {leader.group} ({where})")


def _write_what(leader: SlowLink) -> str:
    """Return what they are slower than."""
    count = len(leader.siblings)
    return f"than their {count} sibling group{'' if count == 1 else 's'}" if count else "than before"


def _write_shared(location: Location, leader: SlowLink) -> tuple[str, ...]:
    """Return which other groups are slow with the leader; none for none."""
    others = [group for group in location.groups if group != leader.group]
    if not others:
        return ()
    shown = f"{' and '.join(others[:OTHERS_NAMED_MAX])}{' and more' if len(others) > OTHERS_NAMED_MAX else ''}"
    return (f"measured in {leader.group}; {shown} slow too, on the same links",)


def _name_nodes(nodes: Sequence[str]) -> str:
    """Return the first few nodes by name and the number of the others."""
    named = f"node{'s' if len(nodes) > 1 else ''} {', '.join(nodes[:NODES_NAMED_MAX])}"
    return f"{named} and {len(nodes) - NODES_NAMED_MAX} more" if len(nodes) > NODES_NAMED_MAX else named
