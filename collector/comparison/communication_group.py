"""Find the process groups whose collectives account for a change of communication between two runs. Pure.

    change of a group   the time of its measured calls in B - calls in B * mean time of such a call in A

summed over its operations, of all ranks, waiting for other ranks included. Equal work makes equally many calls a step,
so these are changes over the same number of steps, whatever part of both runs was measured. Groups of one description,
as the rows of a mesh, count as one: `mesh_dp/0,2` and `mesh_dp/1,3` are `mesh_dp`.

The time is that of the collectives, of which compute may hide a part. So a group is found only where it has nearly all
of the change; what else becomes longer or shorter is then too little to be the communication that became exposed.
"""

from collections.abc import Mapping
from typing import Final

from rankscope.collector.steps.collective_totals import Kind, KindTime

SHARE_MIN: Final = 0.8
"""Share of the sum of all groups' changes, each without its sign, that a group must have."""
CHANGE_MIN: Final = 0.03
"""Share of its own time by which a group must have changed; equal runs differ by a percent or two."""
UNNAMED: Final = frozenset({"", "undefined"})
"""Descriptions of groups that their makers did not describe: several that have nothing in common."""

Times = Mapping[Kind, KindTime]


def find_group(a: Times, b: Times, *, is_longer: bool) -> str:
    """Return the description of the groups whose collectives became longer (or shorter) and have SHARE_MIN of all
    changes, "" where none has, it has no description, or the two sides have different kinds of collectives.

    >>> a = {("mesh_dp/0,2", "all_reduce"): KindTime(10, 1_000), ("mesh_tp/0-1", "all_reduce"): KindTime(40, 800)}
    >>> b = {("mesh_dp/0,2", "all_reduce"): KindTime(20, 4_000), ("mesh_tp/0-1", "all_reduce"): KindTime(80, 1_640)}
    >>> find_group(a, b, is_longer=True), find_group(a, b, is_longer=False)
    ('mesh_dp', '')
    """
    of_a, of_b = _merge(a), _merge(b)
    if of_a.keys() != of_b.keys() or not of_a:
        return ""
    before: dict[str, float] = {}
    changes: dict[str, float] = {}
    for kind, (calls, duration_ns) in of_b.items():
        group, _ = kind
        expected_ns = of_a[kind].duration_ns / of_a[kind].calls * calls
        before[group] = before.get(group, 0.0) + expected_ns
        changes[group] = changes.get(group, 0.0) + duration_ns - expected_ns
    group = max(changes, key=lambda name: abs(changes[name]))
    is_most = abs(changes[group]) >= SHARE_MIN * sum(map(abs, changes.values())) > 0
    is_enough = abs(changes[group]) >= CHANGE_MIN * before[group]
    is_same_way = (changes[group] > 0) == is_longer
    return group if is_most and is_enough and is_same_way and group not in UNNAMED else ""


def _merge(times: Times) -> dict[Kind, KindTime]:
    """Return the sums by the description of the groups and the operation; those without a call are left out."""
    merged: dict[Kind, KindTime] = {}
    for (label, op), time in times.items():
        kind = (label.rpartition("/")[0] or label, op)
        known = merged.get(kind, KindTime(0, 0))
        if time.calls:
            merged[kind] = KindTime(known.calls + time.calls, known.duration_ns + time.duration_ns)
    return merged
