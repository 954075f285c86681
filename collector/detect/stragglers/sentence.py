"""Write what a straggler is slower than: which ranks it is compared with, in which steps, and since when by so much."""

from collections.abc import Sequence
from typing import Final

from rankscope.collector.detect.finding import DRIFTING, name_ranks
from rankscope.collector.detect.finding_words import OWN_TIME
from rankscope.collector.detect.stragglers.intermittent import find_period
from rankscope.collector.detect.stragglers.persistent import SlowRank
from rankscope.collector.steps.layer_times import RunLayers, describe_slow
from rankscope.collector.steps.step_series import StepSeries

LAYER_SHARE_MIN: Final = 0.5
"""Share of a slowness from which on one block of the model is said to have it."""


def write_what(slow_ranks: Sequence[SlowRank], slow: SlowRank, series: StepSeries) -> str:
    """Return what one straggler, or several ranks of which `slow` is the slowest, are slower than."""
    peers = _name_peers(slow_ranks, slow, len(series.ranks))
    return f"than {peers}{_describe_pattern(slow)}"


def write_who(slow_ranks: Sequence[SlowRank], nodes: Sequence[str]) -> str:
    """Return the nodes and their slow ranks; empty where it is about no whole node."""
    if not nodes:
        return ""
    return f"node{'s' if len(nodes) > 1 else ''} {', '.join(nodes)} ({name_ranks(one.rank for one in slow_ranks)})"


def describe_own(series: StepSeries) -> dict[str, str]:
    """Return in `details` what own times are, where that is not the step minus waits for other ranks."""
    if series.is_by_device:
        return {OWN_TIME: "on the GPU (without the end of backward, where ranks wait for each other)"}
    return {} if series.own_is_measured else {OWN_TIME: "in data, forward and optimizer"}


def name_others(others: Sequence[int]) -> str:
    """Return what else the cost is of; empty for nothing."""
    return name_ranks(others) if others else ""


def describe_level(slow: SlowRank) -> tuple[str, ...]:
    """Return since when a steady slowness has had its present size, where that is clearly not since its begin."""
    step = slow.told_level_step
    if slow.pattern != "steady" or step is None or step <= slow.since_step:
        return ()
    return (f"by this much since step {step} only",)


def describe_slow_layer(layers: RunLayers | None, slow: SlowRank) -> tuple[str, ...]:
    """Return which block of its model takes most of what a rank is slower by; empty where none does."""
    found = () if layers is None else [one for one in layers.slow if one.rank == slow.rank]
    excess_ns = slow.excess_ns
    return tuple(describe_slow(one) for one in found[:1] if one.excess_ns >= LAYER_SHARE_MIN * excess_ns)


def _name_peers(slow_ranks: Sequence[SlowRank], slow: SlowRank, ranks: int) -> str:
    its = "their" if len(slow_ranks) > 1 else "its"
    if not slow.peers.do_same_work:
        others = "the other rank" if slow.peers.size == 1 else f"the other {slow.peers.size} ranks"
        return f"usual, compared with {others} (none known to do the same work)"
    if slow.peers.size == 1:
        return "the other rank" if ranks == 2 else f"{its} only peer"  # noqa: PLR2004 - it and the other
    count = _count_others(slow_ranks, slow)
    return f"{its} only other peer" if count == 1 else f"{its} {count} peers"


def _count_others(slow_ranks: Sequence[SlowRank], slow: SlowRank) -> int:
    """Return how many peers a rank has besides those that are slow with it: all where these are all of them."""
    known, others = set(slow.peers.ranks), [one for one in slow_ranks if one.rank != slow.rank]
    is_sampled = len(known) < slow.peers.size and not slow.peers.are_apart
    among = sum(one.rank in known or (is_sampled and not known.isdisjoint(one.peers.ranks)) for one in others)
    return (slow.peers.size - among) or slow.peers.size


def _describe_pattern(slow: SlowRank) -> str:
    if slow.pattern == DRIFTING:
        return " and getting slower"
    if slow.pattern != "intermittent":
        return ""
    period, is_regular = find_period(slow.slow_steps)
    return f" every {period} steps" if is_regular else f" in {100 * slow.persistence:.0f} % of steps"
