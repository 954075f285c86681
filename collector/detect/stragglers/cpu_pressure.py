"""Find whether a slow host is one whose machine is short of CPUs: pressure (PSI) and steal, compared with its peers'.

Both belong to a machine or a control group, not to a rank. So they explain a slow rank only if the other ranks on the
same machine are slow too, each against its own peers: where they are not, the shortage does not reach their training.

    pressure    time in which some task, of anybody, waited for a CPU. Data loaders that queue up count as well, without
                harm to the training: so what counts is the excess over the peers' machines
    steal       time that a hypervisor gave to others, the mean over the CPUs
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from rankscope.collector.detect.machine_growth import Machines, find_time_growth, spread
from rankscope.collector.detect.stragglers.host_times import may_be_in_steps
from rankscope.collector.detect.stragglers.persistent import SlowRank
from rankscope.collector.steps.step_series import Floats, StepSeries
from rankscope.measure.units import format_duration

SOURCES: Final[Mapping[str, str]] = {
    "group_cpu_pressure_ns": (
        "tasks waiting for a CPU for {mine} per step in the control group of local rank 0, {peers} on its peers' nodes"
    ),
    "cpu_pressure_ns": ("tasks waiting for a CPU for {mine} per step on its machine, {peers} on its peers' machines"),
    "cpu_steal_ns": (
        "{mine} per step taken by the hypervisor from each CPU of its machine, {peers} on its peers' machines"
    ),
}
"""Clause by field of NodeSample. The control group first: its tasks are those of local rank 0's container or job."""
PEERS_READ_MAX: Final = 64
"""Peers, evenly spread, whose machines are compared with: the median of 64 is close enough to that of thousands."""

PerStep = Mapping[str, float]
"""What a machine counted per step, in ns, by the fields that it has."""


def find_cpu_pressure(
    slow: SlowRank,
    explained_ns_min: float,
    evidence: dict[str, float],
    *,
    series: StepSeries,
    all_excess_ns: Floats,
    machines: Machines,
    share_of_steps: float,
) -> str | None:
    """Describe what the rank's machine was short of, by `explained_ns_min` a step more than the other machines of its
    peers, and add the numbers to `evidence`; None where nothing is, or it is not known. `all_excess_ns`: that of each
    rank of the series over its own peers in each step, shape (n, ranks). What a machine counts falls on
    `share_of_steps` of the steps.
    """
    node = machines.nodes.get(slow.rank, "")
    own = _read(machines, node, slow.level_from_step)
    elsewhere = [peer for peer in slow.peers.ranks if machines.nodes.get(peer, node) != node] if own else []
    there = [_read(machines, machines.nodes[peer], slow.level_from_step) for peer in spread(elsewhere, PEERS_READ_MAX)]
    for field, clause in SOURCES.items():
        peers = [one[field] for one in there if field in one]
        if field not in own or not peers:
            continue
        mine, usual = own[field], float(np.median(peers))
        excess_ns = (mine - usual) / share_of_steps
        if not may_be_in_steps(slow, excess_ns):  # counted while the run stood still
            continue
        name = field.removesuffix("_ns")
        evidence[f"{name}_ns_per_step"], evidence[f"peers_{name}_ns_per_step"] = mine, usual
        if excess_ns >= explained_ns_min:
            are_slow = _are_neighbors_slow(slow, explained_ns_min, series, all_excess_ns, machines)
            return clause.format(mine=format_duration(mine), peers=format_duration(usual)) if are_slow else None
    return None


def _read(machines: Machines, node: str, from_step: int) -> PerStep:
    """Return what a machine counted since that step; empty when not known."""
    stretch = machines.find_stretch(node, from_step)
    if stretch is None:
        return {}
    first, last, steps = stretch
    elapsed_ns = last.host_ns - first.host_ns
    grown = {field: find_time_growth(getattr(first, field), getattr(last, field), elapsed_ns) for field in SOURCES}
    return {field: growth / steps for field, growth in grown.items() if growth is not None}


def _are_neighbors_slow(
    slow: SlowRank, explained_ns_min: float, series: StepSeries, excess_ns: Floats, machines: Machines
) -> bool:
    """Return whether half of the other ranks on its machine are as much slower than their peers; True where there is no
    other rank.
    """
    beside = [rank for rank in machines.ranks_on(machines.nodes[slow.rank]) if rank != slow.rank]
    is_judged = np.isin(series.steps, slow.slow_steps)
    if slow.pattern != "intermittent":
        is_judged = series.steps >= slow.level_from_step
    columns = series.columns_of([rank for rank in beside if series.has(rank)])
    known = [column[~np.isnan(column)] for column in excess_ns[np.ix_(np.flatnonzero(is_judged), columns)].T]
    excesses = [float(np.median(column)) for column in known if column.size]
    if not excesses:
        return not beside
    return float(np.median(excesses)) >= explained_ns_min
