"""Compare the repeated blocks of the ranks' models: each block of a rank with the same block of the ranks that do the
same work. Pure.

A block is never compared with another block of its rank: those of a model may differ by design. One stands out where

    time >= RATIO_MIN * median of its peers' times                        forward and backward, medians of steps
    that ratio >= RATIO_MIN * the median ratio of the rank's blocks       a rank that is slow in all of them is slow,
                                                                          and no block of it is
    ln of both ratios apart by NOISE_MIN * the deviation of the blocks    not by noise: nothing is said where all blocks
                                                                          of a rank scatter, as on a busy machine
    its lowest decile > the median of its peers' highest deciles          nor by single steps
    (time - peers' time) * calls in a step >= STEP_SHARE_MIN * step

and both have SAMPLES_MIN timed steps. What is waited for inside of a block is part of its time: with tensor parallelism
or experts the members of a group wait there for the slowest of them, and all of them stand out.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from rankscope.collector.steps.peer_groups import PeerGroups
from rankscope.collector.steps.step_series import Floats
from rankscope.measure.records import LayerTimes
from rankscope.measure.units import format_bytes, format_duration

RATIO_MIN: Final = 1.2
NOISE_MIN: Final = 5.0
"""Deviations of the logarithms of a rank's ratios, by their median absolute deviation, that one must stand out by."""
MAD_TO_DEVIATION: Final = 1.4826
SAMPLES_MIN: Final = 8
STEP_SHARE_MIN: Final = 0.02
STEPS_READ: Final = 16
"""Steps whose median a block is held against."""
BLOCKS_MIN: Final = 4
"""Blocks of a rank whose times are known, for their median ratio to say anything."""
EXACT_RANKS_MAX: Final = 64
"""Ranks up to which the median of a rank's peers is without its own time."""
GROUPS_MAX: Final = 16
SLOW_MAX: Final = 8
GROUPS_TOLD_MAX: Final = 4
COLUMNS: Final = 5
FORWARD, BACKWARD, LOW, HIGH, HELD = range(COLUMNS)
"""Rows of `RankLayers.values`, and columns of what a rank reports."""


class RankLayers(NamedTuple):
    """The last times that a rank has reported: `values` has shape (5, blocks), in ns and bytes, NaN where not known."""

    kind: str
    first: int
    samples: int
    last_step: int
    calls: int
    values: Floats
    absent: str = ""


class Layer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One block, a call: medians over the ranks in ns, the rank that takes longest with forward and backward, its time,
    and the most bytes that a rank keeps for the backward. None: not known.
    """

    number: int
    forward_ns: float | None
    backward_ns: float | None
    slowest_rank: int | None
    slowest_ns: float | None
    held_bytes: float | None


class LayerGroup(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The blocks of `ranks`, which do the same work: of class `kind`, each called `calls` times in a step, with the
    fewest `samples` of any rank.
    """

    kind: str
    ranks: tuple[int, ...]
    calls: int
    samples: int
    last_step: int
    layers: tuple[Layer, ...]


class SlowLayer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A block that stands out: `ns` and `peers_ns` are of all calls in a step, forward and backward together, of which
    the forward takes `forward_ns` and `peers_forward_ns`. `count` blocks from `first` on are of this class.
    """

    rank: int
    kind: str
    number: int
    first: int
    count: int
    peers: int
    ns: float
    peers_ns: float
    forward_ns: float
    peers_forward_ns: float

    @property
    def excess_ns(self) -> float:
        """By how much a step of the rank is longer for it, in ns."""
        return self.ns - self.peers_ns

    @property
    def ratio(self) -> float:
        """Its time over that of its peers."""
        return self.ns / self.peers_ns


class RunLayers(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The repeated blocks of a run's models, of GROUPS_MAX groups of ranks at most, and those that stand out, the
    costliest first, SLOW_MAX at most. `absent`: why no rank has times.
    """

    groups: tuple[LayerGroup, ...] = ()
    groups_left_out: int = 0
    slow: tuple[SlowLayer, ...] = ()
    absent: str = ""


def unpack_layers(reported: LayerTimes) -> RankLayers:
    """Return what a rank has reported. A column that is missing, or longer or shorter than the first, is not known."""
    count = len(reported.columns[0]) if reported.columns else 0
    values = np.full((COLUMNS, count), np.nan)
    for row, column in enumerate(reported.columns[:COLUMNS]):
        if len(column) == count:
            values[row] = [np.nan if one is None else one for one in column]
    return RankLayers(
        reported.kind, reported.first, reported.samples, reported.last_step, reported.calls, values, reported.absent
    )


def find_layers(reported: Mapping[int, RankLayers], peers: PeerGroups, steps_ns: Floats) -> RunLayers | None:
    """Return the blocks of the ranks; None where no rank has reported any. `steps_ns` are the durations of the steps,
    shape (steps, ranks), NaN where not known; where none of the last STEPS_READ is, no block stands out.
    """
    if not reported:
        return None
    step_ns = _median(steps_ns[-STEPS_READ:])
    members: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for rank in sorted(reported):
        one = reported[rank]
        if one.samples and one.values.shape[1]:
            members[_find_work(rank, peers), one.kind, one.first, one.values.shape[1]].append(rank)
    if not members:
        return RunLayers(absent=next(one.absent for one in reported.values()))
    groups, slow = [], []
    for ranks in list(members.values())[:GROUPS_MAX]:
        alike = [reported[rank] for rank in ranks]
        values = np.stack([one.values for one in alike])
        total_ns = _add_up(values)
        groups.append(_describe_group(alike, ranks, values, total_ns))
        if step_ns is not None and len(ranks) > 1:
            slow += _find_slow(alike, ranks, values, total_ns, step_ns)
    slow.sort(key=lambda one: -one.excess_ns)
    return RunLayers(
        groups=tuple(groups), groups_left_out=max(0, len(members) - GROUPS_MAX), slow=tuple(slow[:SLOW_MAX])
    )


def _find_work(rank: int, peers: PeerGroups) -> object:
    """Return what tells apart ranks that do different work."""
    place = peers.place.get(rank)
    if place is None:
        return None
    return place if peers.comparisons[place].do_same_work else ("alone", rank)


def _add_up(values: Floats) -> Floats:
    """Return forward and backward of each block together, shape (ranks, blocks); without the backward of a block of
    which a rank does not know it.
    """
    backward_ns = values[:, BACKWARD]
    is_known = ~np.isnan(backward_ns).any(axis=0)
    total_ns: Floats = values[:, FORWARD] + np.where(is_known, backward_ns, 0.0)
    return total_ns


def _describe_group(alike: Sequence[RankLayers], ranks: Sequence[int], values: Floats, total_ns: Floats) -> LayerGroup:
    layers = []
    for place in range(values.shape[2]):
        totals = total_ns[:, place]
        slowest = None if np.isnan(totals).all() else int(np.nanargmax(totals))
        layers.append(
            Layer(
                number=alike[0].first + place,
                forward_ns=_median(values[:, FORWARD, place]),
                backward_ns=_median(values[:, BACKWARD, place]),
                slowest_rank=None if slowest is None else ranks[slowest],
                slowest_ns=None if slowest is None else float(totals[slowest]),
                held_bytes=_most(values[:, HELD, place]),
            )
        )
    return LayerGroup(
        kind=alike[0].kind,
        ranks=tuple(ranks),
        calls=max(one.calls for one in alike),
        samples=min(one.samples for one in alike),
        last_step=max(one.last_step for one in alike),
        layers=tuple(layers),
    )


def _median(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else None


def _most(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.max()) if len(known) else None


def _find_slow(
    alike: Sequence[RankLayers], ranks: Sequence[int], values: Floats, total_ns: Floats, step_ns: float
) -> list[SlowLayer]:
    """Return the blocks of these ranks that stand out."""
    places = np.flatnonzero(~np.isnan(total_ns).any(axis=0) & (total_ns > 0).all(axis=0))
    sampled = [row for row, one in enumerate(alike) if one.samples >= SAMPLES_MIN]
    if len(places) < BLOCKS_MIN or len(sampled) < 2:  # noqa: PLR2004 - nobody to compare with
        return []
    rows = np.array(sampled)
    own_ns = total_ns[rows][:, places]
    low_ns, high_ns, forward_ns = (values[rows, row][:, places] for row in (LOW, HIGH, FORWARD))
    peers_ns = _median_of_peers(own_ns)
    ratios = own_ns / peers_ns
    apart = np.log(ratios) - np.median(np.log(ratios), axis=1, keepdims=True)
    noise = MAD_TO_DEVIATION * np.median(np.abs(apart), axis=1, keepdims=True)
    calls = np.array([[alike[row].calls] for row in sampled])
    stands_out = (
        (ratios >= RATIO_MIN)
        & (apart >= np.maximum(np.log(RATIO_MIN), NOISE_MIN * noise))
        & (low_ns > _median_of_peers(high_ns))
        & ((own_ns - peers_ns) * calls >= STEP_SHARE_MIN * step_ns)
    )
    if not stands_out.any():
        return []
    peers_forward_ns = _median_of_peers(forward_ns)
    return [
        SlowLayer(
            rank=ranks[sampled[row]],
            kind=alike[0].kind,
            number=alike[0].first + int(places[column]),
            first=alike[0].first,
            count=values.shape[2],
            peers=len(sampled) - 1,
            ns=float(own_ns[row, column] * calls[row, 0]),
            peers_ns=float(peers_ns[row, column] * calls[row, 0]),
            forward_ns=float(forward_ns[row, column] * calls[row, 0]),
            peers_forward_ns=float(peers_forward_ns[row, column] * calls[row, 0]),
        )
        for row, column in np.argwhere(stands_out)
    ]


def _median_of_peers(values: Floats) -> Floats:
    """Return for each rank the median of the others, shape (ranks, blocks); of many ranks that of all."""
    if len(values) > EXACT_RANKS_MAX:
        return np.broadcast_to(np.median(values, axis=0), values.shape)
    return np.stack([np.median(np.delete(values, row, axis=0), axis=0) for row in range(len(values))])


def describe_layers(found: RunLayers | None) -> list[str]:
    r"""Return what is known of the blocks, a line each; empty where there are none.

    >>> layers = tuple(Layer(number=n, forward_ns=2e6, backward_ns=4e6, slowest_rank=1, slowest_ns=7e6, held_bytes=None)
    ...     for n in range(8))
    >>> group = LayerGroup(kind="Block", ranks=(0, 1), calls=1, samples=16, last_step=99, layers=layers)
    >>> slow = SlowLayer(rank=1, kind="Block", number=5, first=0, count=8, peers=1, ns=1.8e7, peers_ns=6e6,
    ...     forward_ns=1.4e7, peers_forward_ns=2e6)
    >>> print("\n".join(describe_layers(RunLayers(groups=(group,), slow=(slow,)))))
    8 of Block: forward 2.0 ms, backward 4.0 ms per call (2 ranks, 16 timed steps to step 99)
    rank 1: layer 5 of 8 (Block): 3.0x slower than its peer's, 18.0 ms per step, peer 6.0 ms, mostly forward
    """
    return list(list_layer_facts(found).values())


def list_layer_facts(found: RunLayers | None) -> dict[str, str]:
    """Return what is known of the blocks, by what it is; empty where there are none."""
    if found is None:
        return {}
    if not found.groups:
        return {"layers": f"not known: {found.absent}"} if found.absent else {}
    lines = [_describe_blocks(one, is_one_of=len(found.groups) > 1) for one in found.groups[:GROUPS_TOLD_MAX]]
    left = len(found.groups) + found.groups_left_out - GROUPS_TOLD_MAX
    if left > 0:
        lines.append(f"and {left} more group{'' if left == 1 else 's'} of ranks")
    slow = [f"rank {one.rank}: {describe_slow(one)}{_describe_part(one)}" for one in found.slow]
    return _number("layers", lines) | _number("slow layer", slow)


def _number(name: str, texts: Sequence[str]) -> dict[str, str]:
    return {f"{name} {place}" if place > 1 else name: text for place, text in enumerate(texts, 1)}


def _describe_blocks(group: LayerGroup, *, is_one_of: bool) -> str:
    first, last = group.layers[0].number, group.layers[-1].number
    numbers = f"{first}-{last} of {group.kind} (rank {group.ranks[0]})"
    which = numbers if is_one_of else f"{len(group.layers)} of {group.kind}"
    forward = _spread([one.forward_ns for one in group.layers])
    backward = _spread([one.backward_ns for one in group.layers])
    held = [one.held_bytes for one in group.layers if one.held_bytes is not None]
    keeps = f", keeps up to {format_bytes(max(held))}" if held else ""
    calls = f", {group.calls} calls per step" if group.calls > 1 else ""
    ranks = f"{len(group.ranks):,} rank{'' if len(group.ranks) == 1 else 's'}"
    times = f"forward {forward}, backward {backward} per call{calls}{keeps}"
    return f"{which}: {times} ({ranks}, {group.samples} timed steps to step {group.last_step})"


def _spread(values: Sequence[float | None]) -> str:
    known = sorted(one for one in values if one is not None)
    if not known:
        return "not known"
    least, most = format_duration(known[0]), format_duration(known[-1])
    return least if least == most else f"{least} to {most}"


def describe_slow(one: SlowLayer) -> str:
    """Return a block that stands out, without its rank and without a verb."""
    peers, whose = ("peer", "peer's") if one.peers == 1 else ("peers", "peers'")
    name = f"layer {one.number} of {one.count}" if not one.first else f"layer {one.number}"
    times = f"{format_duration(one.ns)} per step, {peers} {format_duration(one.peers_ns)}"
    return f"{name} ({one.kind}): {one.ratio:.1f}x slower than its {whose}, {times}"


def _describe_part(one: SlowLayer) -> str:
    """Return which of forward and backward most of it is in."""
    more_ns = one.forward_ns - one.peers_forward_ns
    return f", mostly {'forward' if 2 * more_ns >= one.excess_ns else 'backward'}"
