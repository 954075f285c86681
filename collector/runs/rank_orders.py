"""The orders of the ranks of a run, which `rankscope top`, the live page and the API share. Pure."""

from collections.abc import Callable, Mapping, Sequence
from heapq import nsmallest
from typing import Final

from rankscope.collector.runs import ratios
from rankscope.collector.runs.snapshot import RankSnapshot

BY_RANK: Final = "rank"
BY_SLOWDOWN: Final = "slowdown"

_Value = Callable[[RankSnapshot], float | None]


def _of_phase(name: str) -> _Value:
    return lambda rank: rank.phases_ns_median.get(name)


def _exposed(rank: RankSnapshot) -> float | None:
    return None if rank.breakdown is None else ratios.exposed_communication_ratio(rank.breakdown)


def _idle(rank: RankSnapshot) -> float | None:
    return None if rank.breakdown is None else ratios.idle_ratio(rank.breakdown)


VALUES: Final[Mapping[str, _Value]] = {
    BY_SLOWDOWN: lambda rank: rank.slowdown_ratio,
    "own": lambda rank: rank.own_ns_median,
    "step": lambda rank: rank.step_ns_median,
    "wait": lambda rank: rank.wait_caused_ns_median,
    "data": _of_phase("data"),
    "forward": _of_phase("forward"),
    "backward": _of_phase("backward"),
    "exposed": _exposed,
    "idle": _idle,
    "mfu": lambda rank: rank.flops.mfu,
    "utilization": lambda rank: rank.devices[0].utilization_ratio if rank.devices else None,
}
"""What each order but BY_RANK compares: the largest value comes first, unknown ones last."""
ORDERS: Final = (BY_RANK, *VALUES)


def sort_ranks(
    ranks: Sequence[RankSnapshot], order: str, count_max: int, *, is_reversed: bool = False
) -> list[RankSnapshot]:
    """Return the first `count_max` ranks in one of ORDERS: the largest value first, by rank the lowest number; of
    equals the lower number; unknown values last, also reversed. Raises KeyError for an unknown order.
    """
    if order == BY_RANK:
        return sorted(ranks, key=lambda rank: rank.identity.rank, reverse=is_reversed)[:count_max]
    read, sign = VALUES[order], 1.0 if is_reversed else -1.0

    def place(rank: RankSnapshot) -> tuple[bool, float, int]:
        value = read(rank)
        return value is None, 0.0 if value is None else sign * value, rank.identity.rank

    return nsmallest(count_max, ranks, key=place)
