"""Show the evidence about each rank beside its peers: by how much its own time is longer, and whom it made wait."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from rankscope.collector.detect.run_rules.thresholds import percent
from rankscope.collector.detect.stragglers.recording import (
    SLOWDOWN_MIN,
    STEADY_SLOWDOWN_MIN,
    describe_excess,
    find_noise,
    measure_rank,
)
from rankscope.collector.detect.view import RunView
from rankscope.collector.traces.report import MatchedCollective, RankStanding


def find_standings(
    view: RunView, collectives: Sequence[MatchedCollective], slow: Collection[int]
) -> list[RankStanding]:
    """Return the standing of each rank that has a peer; `slow` are those that findings name."""
    found = []
    for peers in view.peer_groups.comparisons:
        if peers.do_same_work:
            members = set(peers.members)
            late = [one for one in collectives if one.late_rank in members]
            last_counts = Counter(one.late_rank for one in late)
            late_counts = Counter(rank for one in late for rank in one.ranks)
            caused_ns = sum_caused(late)
            for rank in peers.members:
                one = measure_rank(view, rank, peers.peers_of(rank))
                noise_ns = find_noise(view.excess_ns[:, view.series.column_of(rank)])
                found.append(
                    RankStanding(
                        rank=rank,
                        slowdown_ratio=one.slowdown_ratio,
                        excess_ns=round(one.excess_ns),
                        noise_ns=None if noise_ns is None else round(noise_ns),
                        step_count=one.steps_judged,
                        slower_step_count=round(one.persistence * one.steps_judged),
                        last_count=last_counts[rank],
                        late_count=late_counts[rank],
                        wait_caused_ns=caused_ns[rank],
                        wait_caused_ratio=caused_ns[rank] / caused_ns.total() if late else None,
                        is_slow=rank in slow,
                    )
                )
    return sorted(found, key=lambda one: one.rank)


def sum_caused(collectives: Iterable[MatchedCollective]) -> Counter[int]:
    """Return for how long others waited in collectives for each rank that came last in any, in ns."""
    found = Counter[int]()
    for one in collectives:
        if one.late_rank is not None and one.wait_ns is not None:
            found[one.late_rank] += sum(one.wait_ns.values())
    return found


def describe_leader(standings: Sequence[RankStanding], undecided: str | None) -> str:
    """Return what speaks against the rank that caused the most waiting, and why it is not named as slow.

    Nothing is said of a rank that caused none.
    """
    one = max(standings, key=lambda standing: standing.wait_caused_ns, default=None)
    if one is None or not one.wait_caused_ns:
        return "No rank is named as slow: in these traces none made others wait."
    most = f"No rank is named as slow. Rank {one.rank} caused the most waiting: it came {describe_last([one])}."
    if undecided is not None:
        return f"{most} {undecided[:1].upper()}{undecided[1:]}"
    took = f"Without waits its steps took {one.slowdown_ratio or 0:.2f} times as long as its peers'"
    excess = describe_excess(one.excess_ns or 0, one.noise_ns)
    doubt = f" ({excess})" if excess else f"; {describe_few_steps(one.step_count)} to distinguish that from noise"
    return (
        f"{most} {took}{doubt}. A rank is named only from {SLOWDOWN_MIN} times on, or from {STEADY_SLOWDOWN_MIN} times "
        "on if the evidence is steady."
    )


def describe_last(found: Sequence[RankStanding]) -> str:
    """Return in how many collectives these ranks, of the same peers, came last, and how much waiting they caused."""
    share = percent(sum(one.wait_caused_ratio or 0.0 for one in found))
    return (
        f"last in {sum(one.last_count for one in found)} of {found[0].late_count} collectives, with {share} of the "
        "waiting caused"
    )


def describe_few_steps(step_count: int) -> str:
    """Return that so many steps are too few."""
    return "1 step is too few" if step_count == 1 else f"{step_count} steps are too few"
