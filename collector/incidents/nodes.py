"""Rank the nodes of a store by how often they have held up a run. A recommendation: nothing here changes a node. Pure.

A run counts as held up by a node when an incident about a straggler, or about a hang, names the node or ranks that ran
there when it was last opened. Not counted are pauses, hangs by the order of calls in a script, slow links, as two nodes
share each of them, and failed runs, as a script that raises is no property of a node. An incident about ranks of an
attempt that the store no longer has (`runs/former_attempts.py`) is counted as `incidents_unplaced`, and blames no node.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from rankscope.collector.detect.finding import HANG, PAUSES, STRAGGLER
from rankscope.collector.incidents.incident import Incident
from rankscope.collector.runs.former_attempts import PlacedRank
from rankscope.collector.runs.snapshot import HeldUpNode
from rankscope.measure.preflights import LastPreflight

RUNS_MIN: Final = 3
"""Two runs in a row may be one incident of the network or of the data."""
RATIO_MIN: Final = 0.3
"""The interval of 3 of 4 begins there, that of 3 of 3 at 0.44; 3 of 6 (0.19) may be chance."""
Z_95: Final = 1.959964
"""Of the two-sided interval of 95 %."""
GPUS_MAX: Final = 16
"""GPUs listed for a node, those with the most incidents."""
EXPORTED_MAX: Final = 64
"""Nodes with metrics, the first of the list: a few series each, of which none ends while the node stays there."""
INCIDENTS_LISTED_MAX: Final = 64
"""Incidents listed by id for a node, the latest."""
HISTORIES_MAX: Final = 4
"""Nodes of which an incident tells the history, the first of the list: a hang may be about all nodes of a run."""
EXCLUDE_ACTION: Final = "consider excluding it (rankscope nodes --exclude-file)"
OF_SCRIPTS: Final = frozenset({"deadlock", "order_mismatch", "unmatched_transfer"})
"""Causes of a hang that are in the script, wherever it runs."""


class GpuRecord(msgspec.Struct, frozen=True):
    """A GPU of ranks that held up a run: how many incidents were about such ranks."""

    uuid: str
    incidents: int


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the store knows of one node. `runs` are the stored runs that it was part of, `runs_held_up` those of them
    that it held up, `ratio_low` the lower end of the interval of their ratio (`find_ratio_low`). `incidents` are those
    that blame it, by `causes`; `lost_rank_hours` what they cost all ranks of their runs, None: not known. An incident
    about several nodes counts in full for each. `last_wall_s` is when the last one was opened, None without any.
    `incident_ids` are the latest INCIDENTS_LISTED_MAX of them. `sentence` says it in words; empty if it held up none.
    `exclude`: it reaches RUNS_MIN and RATIO_MIN, the defaults of `rankscope nodes --exclude-file`; pre-flights do not
    count for it. `preflight`: the last one in the store, None without any.
    """

    node: str
    runs: int
    runs_held_up: int
    ratio_low: float
    incidents: int = 0
    lost_rank_hours: float | None = None
    causes: Mapping[str, int] = {}
    last_wall_s: float | None = None
    gpus: tuple[GpuRecord, ...] = ()
    sentence: str = ""
    exclude: bool = False
    incident_ids: tuple[int, ...] = ()
    preflight: LastPreflight | None = None


class NodeList(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes, those that have held up most first. `runs` were considered, and `runs_left_out` not, as there were too
    many ranks. `incidents_unplaced` blame ranks of which the node is no longer known.
    """

    nodes: tuple[NodeRecord, ...]
    runs: int
    runs_left_out: int = 0
    incidents_unplaced: int = 0


class _Blame(NamedTuple):
    incident: Incident
    uuids: frozenset[str]


def list_histories(found: NodeList) -> dict[int, tuple[str, ...]]:
    """Return by the id of an incident what the other runs of the nodes that it blames say of them: how often each has
    held up a run, and what to consider. Nodes of one run have none.
    """
    known: dict[int, list[str]] = {}
    for record in found.nodes:
        if record.runs > 1:
            text = f"{record.sentence}: {EXCLUDE_ACTION}" if record.exclude else record.sentence
            for number in record.incident_ids:
                known.setdefault(number, []).append(text)
    return {number: tuple(texts[:HISTORIES_MAX]) for number, texts in known.items()}


def list_held_up(found: NodeList) -> tuple[HeldUpNode, ...]:
    """Return the first EXPORTED_MAX of the nodes that have held up a run, in their order."""
    return tuple(
        HeldUpNode(node=one.node, runs=one.runs, runs_held_up=one.runs_held_up, ratio_low=one.ratio_low)
        for one in found.nodes[:EXPORTED_MAX]
        if one.runs_held_up
    )


def find_ratio_low(held_up: int, runs: int) -> float:
    """Return the lower end of the Wilson interval of 95 % of `held_up` of `runs`, from 0 to 1; 0 without a run.

    >>> round(find_ratio_low(1, 1), 3), round(find_ratio_low(9, 12), 3), find_ratio_low(0, 5), find_ratio_low(0, 0)
    (0.207, 0.468, 0.0, 0.0)
    """
    if not held_up:
        return 0.0
    ratio, z2 = held_up / runs, Z_95 * Z_95
    spread = Z_95 * math.sqrt(ratio * (1.0 - ratio) / runs + z2 / (4.0 * runs * runs))
    return max(0.0, (ratio + z2 / (2.0 * runs) - spread) / (1.0 + z2 / runs))


def rank_nodes(runs: Mapping[str, Sequence[Mapping[int, PlacedRank]]], incidents: Iterable[Incident]) -> NodeList:
    """Return the nodes of these runs, with the incidents about them; incidents of other runs are not counted. A run is
    the ranks of each attempt, the latest first.
    """
    runs_of: dict[str, set[str]] = {}
    blames: dict[str, list[_Blame]] = {}
    unplaced = 0
    for run, attempts in runs.items():
        for rank in (rank for ranks in attempts for rank in ranks.values()):
            runs_of.setdefault(rank.node, set()).add(run)
    for incident in incidents:
        if incident.run_id not in runs or not _is_blame(incident):
            continue
        blamed = _find_ranks(incident, runs[incident.run_id])
        nodes = set(incident.nodes) or {rank.node for rank in blamed}
        unplaced += not nodes
        for node in nodes:
            runs_of.setdefault(node, set()).add(incident.run_id)  # of an attempt that is no longer kept
            uuids = frozenset(uuid for rank in blamed if rank.node == node for uuid in rank.uuids)
            blames.setdefault(node, []).append(_Blame(incident, uuids))
    records = [_build_record(node, len(known), blames.get(node, ())) for node, known in runs_of.items()]
    records.sort(key=lambda record: (-record.ratio_low, -(record.lost_rank_hours or 0.0), record.node))
    return NodeList(nodes=tuple(records), runs=len(runs), incidents_unplaced=unplaced)


def add_preflights(found: NodeList, preflights: Mapping[str, LastPreflight]) -> NodeList:
    """Return the list with the last pre-flight of each node. Nodes that only pre-flights know are added at its end."""
    known = {record.node for record in found.nodes}
    unused = (
        NodeRecord(node=node, runs=0, runs_held_up=0, ratio_low=0.0) for node in sorted(preflights.keys() - known)
    )
    records = (
        msgspec.structs.replace(one, preflight=preflights.get(one.node)) for one in itertools.chain(found.nodes, unused)
    )
    return msgspec.structs.replace(found, nodes=tuple(records))


def describe_node(node: str, held_up: int, runs: int) -> str:
    """Return in words how often a node has held up a run.

    >>> describe_node("node-12", 9, 12)
    'node-12 has held up 9 of its last 12 runs'
    >>> describe_node("node-12", 1, 1)
    'node-12 has held up its last run'
    """
    return f"{node} has held up {f'{held_up} of its last {runs} runs' if runs > 1 else 'its last run'}"


def _is_blame(incident: Incident) -> bool:
    """Return whether it is about who holds up the run; one that is merged into another is part of that."""
    is_hang = incident.kind == HANG and incident.cause not in PAUSES | OF_SCRIPTS
    is_about_somebody = bool(incident.ranks or incident.nodes)
    return is_about_somebody and incident.merged_into is None and (incident.kind == STRAGGLER or is_hang)


def _find_ranks(incident: Incident, attempts: Sequence[Mapping[int, PlacedRank]]) -> Sequence[PlacedRank]:
    """Return the ranks that it is about as they were when it was last opened: all of them, or none."""
    opened_wall_s = _last_opened(incident)
    for ranks in attempts:
        found = [ranks[number] for number in incident.ranks if number in ranks]
        is_whole = len(found) == len(incident.ranks)
        if is_whole and all(rank.since_wall_s <= opened_wall_s for rank in found):
            return found
    return []


def _build_record(node: str, runs: int, blames: Sequence[_Blame]) -> NodeRecord:
    held_up = len({blame.incident.run_id for blame in blames})
    ratio_low = find_ratio_low(held_up, runs)
    costs = [blame.incident.lost_rank_seconds for blame in blames if blame.incident.lost_rank_seconds is not None]
    gpus = Counter(uuid for blame in blames for uuid in blame.uuids)
    causes = Counter(blame.incident.cause for blame in blames)
    return NodeRecord(
        node=node,
        runs=runs,
        runs_held_up=held_up,
        ratio_low=ratio_low,
        incidents=len(blames),
        lost_rank_hours=sum(costs) / 3_600 if costs else None,
        causes=dict(sorted(causes.items(), key=lambda item: (-item[1], item[0]))),
        last_wall_s=max((_last_opened(blame.incident) for blame in blames), default=None),
        gpus=tuple(GpuRecord(*one) for one in sorted(gpus.items(), key=lambda item: (-item[1], item[0]))[:GPUS_MAX]),
        sentence=describe_node(node, held_up, runs) if held_up else "",
        exclude=held_up >= RUNS_MIN and ratio_low >= RATIO_MIN,
        incident_ids=tuple(sorted(blame.incident.id for blame in blames)[-INCIDENTS_LISTED_MAX:]),
    )


def _last_opened(incident: Incident) -> float:
    return incident.opened_wall_s if incident.reopened_wall_s is None else incident.reopened_wall_s
