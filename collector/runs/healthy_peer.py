"""Choose the rank to compare a slow one with. Pure."""

from collections.abc import Collection, Iterable

from rankscope.collector.steps.rank_medians import RankMedians


def read_own_times(medians: RankMedians) -> dict[int, float]:
    """Return the median own times by rank, in ns, of the ranks where they are known."""
    known = medians.columns.get("own_ns_median", ())
    return {rank: value for rank, value in zip(medians.ranks, known, strict=False) if value is not None}


def choose_peer(
    slow: Collection[int], medians: RankMedians, works: Iterable[tuple[int, ...]], live: Iterable[int]
) -> int | None:
    """Return the healthiest peer of slow ranks: that whose own time is in the middle of those with the same work as
    the first of them; None where there is none. `live` are the ranks that report.

    >>> medians = RankMedians((0, 1, 2, 3), {"own_ns_median": (5.0, 6.0, 9.0, 7.0)})
    >>> choose_peer([2], medians, [(0, 1, 2, 3)], [0, 1, 2, 3]), choose_peer([0], medians, [], [0])
    (1, None)
    """
    own_ns, alive = read_own_times(medians), sorted(live)
    work = next((one for one in works if next(iter(slow)) in one), tuple(alive))
    healthy = (rank for rank in work if rank not in slow and rank in alive)
    peers = sorted(healthy, key=lambda rank: own_ns.get(rank, 0.0))
    return peers[(len(peers) - 1) // 2] if peers else None
