"""Find how evenly the tokens of a step are spread over the ranks that hold experts, from what they move. Pure.

A router gives each token to an expert; an all-to-all brings it to the rank that holds the expert (dispatch), a second
one back (combine), and in the backward pass the gradients go the same ways. What a rank puts into a dispatch are the
tokens of its own batch, into a combine those of its experts. With batches of one size the dispatches are even, and only
the combines, and the dispatches' backwards, differ from rank to rank:

    load of a rank in a step = bytes that it put into those all-to-alls of the group in which its ranks put in
                               different amounts

So no rank needs a hook in the router, and the ratio of the loads is that of the tokens. Two cases have no such ratio,
and are said to be so: where all all-to-alls are even, the tokens are spread evenly or padded to a capacity; where all
are uneven, the batches differ too, and the load is of tokens that are sent and of those that come, which lie closer
together than the latter alone.

    load ratio   largest load of a rank over the mean, of the sums over the steps: a rank that is hot all the time
    step ratio   sum over the steps of the largest load over the sum of the means: also where the hot rank changes. A
                 step waits for its longest rank, so this is what an even spread would save at most of the experts' time
    dead         a rank that got no token in all of these steps
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from rankscope.collector.steps.step_series import Flags, Floats, Ints, StepSeries
from rankscope.measure.units import format_bytes, format_duration, format_share

EVEN_SHARE: Final = 0.5
"""Of what a rank puts into all its all-to-alls, where they are even: what it sends and what comes are as much."""
STEPS_MAX: Final = 64
"""Steps, of which the waiting is known, that a ratio is of."""
STEPS_MIN: Final = 4
GROUPS_KEPT_MAX: Final = 32
"""Groups that are kept, those with the largest step ratio first."""
GROUPS_SAID: Final = 3
RANKS_MAX: Final = 64
"""Ranks of a group whose loads are kept, the largest first; and dead ranks that are named."""
RANKS_SAID: Final = 8
OF_EXPERTS: Final = re.compile(r"(?:^|[^a-z])ep(?:[^a-z]|$)|expert|moe")
"""In the names of the process groups of experts: where all all-to-alls are even, only these are told."""
CHANGING_MIN: Final = 1.1
"""Step ratio over load ratio from which another rank is hot from step to step."""


class RoutedBytes(msgspec.Struct, frozen=True, gc=False):
    """Load of each rank in a step, shape (world size,) in bytes, NaN for one without such an all-to-all; in how many of
    them the ranks of the group put in as much as each other, and different amounts; and which groups have been uneven
    so far, this step included, shape (groups,).
    """

    load: Floats
    even: int
    uneven: int
    uneven_groups: Flags


class RankLoad(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The load of a rank over these steps: its share of the group's, in [0, 1]."""

    rank: int
    share: float


class ExpertGroup(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The ranks of one group of all-to-alls. `step_bytes` is the mean load of all of them together in a step.

    `ratio` and `step_ratio` are from 1; None where nothing is routed at all. `loads` are those of at most RANKS_MAX
    ranks, the hottest first. `dead` are ranks without any load, at most RANKS_MAX of `dead_count`. `own_excess_ns` is
    by how much the own time of the rank with most load in a step exceeds the mean of the group, the median over the
    steps: what the load costs it, and the others wait for. None where own times are not known.
    """

    group: str
    ranks: int
    step_bytes: float
    ratio: float | None = None
    step_ratio: float | None = None
    loads: tuple[RankLoad, ...] = ()
    dead: tuple[int, ...] = ()
    dead_count: int = 0
    own_excess_ns: float | None = None


class ExpertLoads(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Loads of the ranks in all-to-alls, in the last `steps` steps of which they are known, to `last_step`.

    `groups` are those with the largest step ratio, `groups_left_out` more are not kept; empty where nothing is
    measured: `absent` says why. `all_even`: no all-to-all differed between the ranks. `all_uneven`: each one did, so
    the ranks' batches differ too.
    """

    steps: int = 0
    last_step: int = 0
    groups: tuple[ExpertGroup, ...] = ()
    groups_left_out: int = 0
    all_even: bool = False
    all_uneven: bool = False
    absent: str = ""

    @property
    def dead_count(self) -> int:
        """How many ranks of the kept groups got no token."""
        return sum(one.dead_count for one in self.groups)


def sum_routed(
    rank: Ints, group: Ints, operation: Ints, size_bytes: Ints, *, world_size: int, uneven_before: Flags
) -> RoutedBytes:
    """Return the loads of one step from its all-to-alls, a row for each rank and operation. `group` numbers the process
    groups; `uneven_before`, shape (groups,), are those that were uneven in an earlier step.

    Once any group was uneven only such groups count: another has no experts. Where one of these is even by chance in a
    step, half of what its ranks put in are the tokens of the experts.

    In the first operation both ranks put in 8 bytes, in the second 4 and 12:

    >>> found = sum_routed(
    ...     np.array([0, 1, 0, 1]), np.array([0, 0, 0, 0]), np.array([5, 5, 6, 6]), np.array([8, 8, 4, 12]),
    ...     world_size=2, uneven_before=np.array([False]),
    ... )
    >>> found.load.tolist(), found.even, found.uneven
    ([4.0, 12.0], 1, 1)
    """
    is_there: Flags = np.bincount(operation) > 0  # they are numbered without gaps, but for other operations'
    least = np.full(len(is_there), np.iinfo(np.int64).max)
    most = np.zeros(len(is_there), dtype=np.int64)
    np.minimum.at(least, operation, size_bytes)
    np.maximum.at(most, operation, size_bytes)
    is_uneven: Flags = most > least
    group_of = np.zeros(len(is_there), dtype=np.int64)
    group_of[operation] = group
    uneven_now = np.zeros(len(uneven_before), dtype=bool)
    uneven_now[group_of[is_uneven]] = True
    uneven_groups: Flags = uneven_before | uneven_now
    is_of_experts = uneven_groups if uneven_groups.any() else np.ones(len(uneven_groups), dtype=bool)
    weight = np.where(uneven_now[group_of], is_uneven, EVEN_SHARE) * is_of_experts[group_of]
    load = np.full(world_size, np.nan)
    load[rank[is_of_experts[group]]] = 0.0
    load += np.bincount(rank, weights=size_bytes * weight[operation], minlength=world_size)
    counted = is_there & is_of_experts[group_of]
    return RoutedBytes(load, int((counted & ~is_uneven).sum()), int(is_uneven.sum()), uneven_groups)


def find_expert_loads(
    series: StepSeries, groups: Mapping[str, Sequence[int]], exchanging: frozenset[str]
) -> ExpertLoads | None:
    """Return the loads of the groups that exchange; None where no rank takes part in an all-to-all. `groups` are the
    members of all groups, by label; `exchanging` are the labels of those whose all-to-alls are of the loads.
    """
    if series.routed_bytes is None or series.exchange_calls is None or not exchanging:
        return None
    known = np.flatnonzero(~np.isnan(series.exchange_calls).any(axis=1))[-STEPS_MAX:]
    if len(known) < STEPS_MIN:
        return ExpertLoads(absent=f"all-to-alls are known in {len(known)} of the {STEPS_MIN} steps needed")
    even, uneven = series.exchange_calls[known].sum(axis=0)
    found = []
    for label in sorted(exchanging):
        members = [rank for rank in groups.get(label, ()) if series.has(rank)]
        if len(members) > 1:
            found.append(_measure(label, series, series.routed_bytes, members, known, is_routed=bool(uneven)))
    found.sort(key=lambda one: (-one.dead_count, -(one.step_ratio or 1.0), one.group))
    return ExpertLoads(
        steps=len(known),
        last_step=int(series.steps[known[-1]]),
        groups=tuple(found[:GROUPS_KEPT_MAX]),
        groups_left_out=max(0, len(found) - GROUPS_KEPT_MAX),
        all_even=not uneven,
        all_uneven=bool(uneven and not even),
    )


def _measure(
    label: str, series: StepSeries, routed: Floats, members: Sequence[int], rows: Ints, *, is_routed: bool
) -> ExpertGroup:
    columns = series.columns_of(members)
    loads: Floats = np.nan_to_num(routed[rows[:, np.newaxis], columns])
    total = float(loads.sum())
    found = ExpertGroup(group=label, ranks=len(members), step_bytes=total / len(rows))
    if not total or not is_routed:
        return found
    sums, own_ns = loads.sum(axis=0), series.own_ns[rows[:, np.newaxis], columns]
    dead = np.flatnonzero(sums == 0.0)
    hottest = np.argsort(-sums, kind="stable")[:RANKS_MAX]
    return msgspec.structs.replace(
        found,
        ratio=float(sums.max() * len(members) / total),
        step_ratio=float(loads.max(axis=1).sum() * len(members) / total),
        loads=tuple(RankLoad(rank=members[place], share=float(sums[place] / total)) for place in hottest.tolist()),
        dead=tuple(members[place] for place in dead[:RANKS_MAX].tolist()),
        dead_count=len(dead),
        own_excess_ns=_find_excess(own_ns, loads.argmax(axis=1)) if series.own_is_measured else None,
    )


def _find_excess(own_ns: Floats, hottest: Ints) -> float | None:
    """Return by how much the own time of the hottest rank of each step exceeds the mean, the median of the steps that
    are known of all ranks. Other ranks that happen to be late do not count.
    """
    rows = np.flatnonzero(~np.isnan(own_ns).any(axis=1))
    return float(np.median(own_ns[rows, hottest[rows]] - own_ns[rows].mean(axis=1))) if len(rows) else None


def describe_experts(found: ExpertLoads | None) -> list[str]:
    r"""Return what is known of the loads, a line each; empty where there are no all-to-alls.

    >>> group = ExpertGroup(group="mesh_ep/0,1", ranks=2, step_bytes=2048.0, ratio=1.5, step_ratio=1.5,
    ...     loads=(RankLoad(rank=1, share=0.75), RankLoad(rank=0, share=0.25)), own_excess_ns=4e6)
    >>> print("\n".join(describe_experts(ExpertLoads(steps=64, last_step=99, groups=(group,)))))
    mesh_ep/0,1: rank 1 has 75.0 % of the load of 2 ranks, 1.50x the mean (64 steps to step 99)
    mesh_ep/0,1: the hottest rank of each step works 4.0 ms longer than the mean
    """
    if found is None:
        return []
    if not found.groups:
        return [f"not known: {found.absent}"] if found.absent else []
    if found.all_even:
        if not any(OF_EXPERTS.search(one.group.lower()) for one in found.groups):
            return []  # of sequence parallelism, say: they say nothing of experts
        many = len(found.groups) + found.groups_left_out
        moved = f"{format_bytes(found.groups[0].step_bytes)} per step in {found.groups[0].group}"
        first = f", the first of {many} groups" if many > 1 else ""
        return [f"every all-to-all is even ({moved}{first}): tokens are spread evenly, or padded to a capacity"]
    basis = f"{found.steps} steps to step {found.last_step}"
    lines = [line for one in found.groups[:GROUPS_SAID] for line in _describe_group(one, basis)]
    left = len(found.groups) + found.groups_left_out - GROUPS_SAID
    if left > 0:
        lines.append(f"{left} more group{'' if left == 1 else 's'}, less uneven")
    if found.all_uneven:
        lines.append("the batches of the ranks differ too: the loads are of tokens sent and tokens received")
    return lines


def _describe_group(one: ExpertGroup, basis: str) -> list[str]:
    if one.ratio is None or one.step_ratio is None:
        return []
    first = one.loads[0]
    share = f"{format_share(first.share)} of the load of {one.ranks:,} ranks"
    lines = [f"rank {first.rank} has {share}, {one.ratio:.2f}x the mean ({basis})"]
    if one.step_ratio > CHANGING_MIN * one.ratio:
        lines.append(f"the hottest rank changes from step to step: {one.step_ratio:.2f}x the mean of its step")
    if one.own_excess_ns is not None and one.own_excess_ns > 0:
        lines.append(f"the hottest rank of each step works {format_duration(one.own_excess_ns)} longer than the mean")
    if one.dead_count:
        named = ", ".join(map(str, one.dead[:RANKS_SAID]))
        more = f" and {one.dead_count - RANKS_SAID} more" if one.dead_count > RANKS_SAID else ""
        lines.append(f"no token came to rank{'s' * (one.dead_count > 1)} {named}{more} (dead experts)")
    return [f"{one.group}: {line}" for line in lines]
