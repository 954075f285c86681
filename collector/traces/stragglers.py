"""Find the ranks that were slow in the steps of these traces, by own time (docs/definitions.md section 4).

A rank's own time in a step is the step less its exposed waits for other ranks. Traces hold few steps, so one number is
not enough. A rank is named when it waited the least, caused the most waiting, was slower than its peers in most steps,
the difference stands out of its own noise from step to step (known from three steps on), and either

- it is much more than healthy ranks differ (SLOWDOWN_MIN), or
- it is less, but stands out more clearly, and the rank came last in most collectives and caused most of the waiting.

Several ranks may be slow together: they are last in turns, and each waits for the slowest of them. So beside such a
rank others are named, too, whose difference is at least half of its own and stands out as clearly, if they are no more
than the healthy ones; they came last, and caused the waiting, together.
"""

from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import median, stdev
from typing import Final

import msgspec

from rankscope.collector.detect.run_rules.thresholds import percent
from rankscope.collector.traces.longer_work import describe_longer
from rankscope.collector.traces.rank_analysis import RankAnalysis
from rankscope.collector.traces.report import MatchedCollective, RankReport, RankStanding, TraceFinding
from rankscope.measure import intervals
from rankscope.measure.intervals import Intervals
from rankscope.measure.units import format_duration

SLOWDOWN_MIN = 1.15
"""Healthy ranks on busy cores differ by up to 13.5 % over three steps. On overloaded ones they differ by more, in the
runs that were recorded not by more than their noise."""
STEADY_SLOWDOWN_MIN = 1.05
"""Less costs little, and sizes of batches differ by it."""
STEPS_SHARE_MIN = 0.6
LAST_SHARE_MIN = 0.6
"""Of the collectives with a last rank, and of the waiting caused, for a rank slower by less than SLOWDOWN_MIN."""
T_98 = (31.82, 6.96, 4.54, 3.75, 3.36, 3.14, 3.00, 2.90, 2.82)
"""Student's t, 98 % between both sides, for 1 to 9 degrees of freedom. More: the last. With 95 %, in one of 16 recorded
runs of healthy ranks on two shared cores a rank was named."""
T_90 = (6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83)
"""The same for 90 %, for a rank slower by SLOWDOWN_MIN. Of eleven recorded runs on busy cores with one rank 1.2 to 1.6
times as slow, four name nobody with 98 %, and two with 90 %."""
NOISE_STEPS_MIN = 3
MORE_WORK_MIN = 1.1
"""Times as many kernels as the others run: then it is the work that differs, not the device."""
BESIDE_SHARE_MIN = 0.5
"""Of the difference of the rank that made others wait the most: what is less costs little while that one is slow."""
CAUSE_SHARE_MIN = 0.5
"""A stage must explain half of the excess to be named as its cause."""

STRAGGLER: Final = "straggler"
IMBALANCE: Final = "imbalance"
"""Kinds of finding."""
MORE_WORK: Final = "more_work"
GPU_COMPUTE: Final = "gpu_compute"
CAUSE_TEXTS = {
    "data_loading": "waiting for data",
    "host_cpu": "held up on the host",
    GPU_COMPUTE: "computing slower",
    MORE_WORK: "doing more work",
    "unattributed": "for a reason that the traces do not show",
}


def find_stragglers(found: Mapping[int, RankAnalysis], standings: Sequence[RankStanding]) -> list[TraceFinding]:
    """Return a finding for each slow rank; of a kind of its own for one that does more work, which is no slowness."""
    return [_describe(found, one) for one in standings if one.is_slow]


# -- the evidence -----------------------------------------------------------------------------------------------------


def find_standings(
    own_ns: Mapping[int, Mapping[int, int]], waited_ns: Mapping[int, int], collectives: Sequence[MatchedCollective]
) -> list[RankStanding]:
    """Return the standing of each rank, from its own time by step and its waiting in ns."""
    common = sorted(set.intersection(*(set(times) for times in own_ns.values()))) if len(own_ns) > 1 else []
    if not common:
        return []
    late = [one for one in collectives if one.late_rank is not None and one.wait_ns is not None]
    caused_ns = dict.fromkeys(own_ns, 0)
    for one in late:
        caused_ns[one.late_rank or 0] += sum((one.wait_ns or {}).values())
    found = [_stand(rank, own_ns, common, late, caused_ns) for rank in sorted(own_ns)]
    suspect = max(found, key=lambda one: (one.wait_caused_ns, -waited_ns[one.rank]))
    beside = [one for one in found if _is_beside(one, suspect)]
    if 2 * (1 + len(beside)) > len(found):
        beside = []
    least_ns = min(waited_ns[rank] for rank in own_ns)
    if all(waited_ns[one.rank] > least_ns for one in (suspect, *beside)):
        return found
    last_count = sum(one.last_count for one in (suspect, *beside))
    caused_ratio = sum(one.wait_caused_ratio or 0.0 for one in (suspect, *beside))
    is_blamed = last_count >= LAST_SHARE_MIN * max(suspect.late_count, 1) and caused_ratio >= LAST_SHARE_MIN
    leader = _judge(suspect, is_blamed=is_blamed)
    judged = {leader.rank: leader}
    if leader.is_slow:
        judged |= {one.rank: _judge(one, is_blamed=is_blamed) for one in beside}
    return [judged.get(one.rank, one) for one in found]


def _is_beside(one: RankStanding, suspect: RankStanding) -> bool:
    """Return whether a rank is about as slow as the one that made others wait the most, by more than noise explains."""
    if one.rank == suspect.rank or one.noise_ns is None or (one.slowdown_ratio or 0.0) < STEADY_SLOWDOWN_MIN:
        return False
    return (one.excess_ns or 0) > max(one.noise_ns, BESIDE_SHARE_MIN * max(0, suspect.excess_ns or 0))


def _stand(
    rank: int,
    own_ns: Mapping[int, Mapping[int, int]],
    steps: Sequence[int],
    late: Sequence[MatchedCollective],
    caused_ns: Mapping[int, int],
) -> RankStanding:
    others = [times for other, times in own_ns.items() if other != rank]
    peers_ns = {step: median(times[step] for times in others) for step in steps}
    excess_ns = [own_ns[rank][step] - peers_ns[step] for step in steps]
    whole_ns = sum(caused_ns.values())
    return RankStanding(
        rank=rank,
        slowdown_ratio=sum(own_ns[rank][step] for step in steps) / max(1, sum(peers_ns.values())),
        excess_ns=round(sum(excess_ns) / len(steps)),
        noise_ns=find_noise(excess_ns),
        step_count=len(steps),
        slower_step_count=sum(excess > 0 for excess in excess_ns),
        last_count=sum(one.late_rank == rank for one in late),
        late_count=sum(rank in one.ranks for one in late),
        wait_caused_ns=caused_ns[rank],
        wait_caused_ratio=caused_ns[rank] / whole_ns if whole_ns else None,
        is_slow=False,
    )


def find_noise(excess_ns: Sequence[float]) -> int | None:
    """Return by how much the mean may be off, in ns: the half width of its 98 % interval. None below three steps."""
    if len(excess_ns) < NOISE_STEPS_MIN:
        return None
    freedom = len(excess_ns) - 1
    return round(T_98[min(freedom, len(T_98)) - 1] * stdev(excess_ns) / sqrt(len(excess_ns)))


def _judge(one: RankStanding, *, is_blamed: bool) -> RankStanding:
    """Return the standing of a rank with the verdict on it. `is_blamed`: it came last in most collectives and caused
    most of the waiting, with those that are slow beside it.
    """
    ratio, excess_ns = one.slowdown_ratio or 0.0, one.excess_ns or 0
    if one.slower_step_count < STEPS_SHARE_MIN * one.step_count or ratio < STEADY_SLOWDOWN_MIN:
        return one
    if one.noise_ns is None:
        return msgspec.structs.replace(one, is_slow=ratio >= SLOWDOWN_MIN)
    if ratio >= SLOWDOWN_MIN:
        freedom = min(one.step_count - 1, len(T_98)) - 1
        stands_out = excess_ns > one.noise_ns * T_90[freedom] / T_98[freedom]
        return msgspec.structs.replace(one, is_slow=stands_out, is_within_noise=not stands_out)
    return msgspec.structs.replace(one, is_slow=is_blamed and excess_ns > one.noise_ns)


def describe_leader(standings: Sequence[RankStanding]) -> str:
    """Return what speaks against the rank that caused the most waiting, and why it is not named as slow.

    Nothing is said of a rank that caused none.
    """
    one = max(standings, key=lambda standing: standing.wait_caused_ns, default=None)
    if one is None or not one.wait_caused_ns:
        return "No rank is named as slow: in these traces none made others wait."
    return (
        f"No rank is named as slow. Rank {one.rank} caused the most waiting: {_describe_evidence(one)}. "
        f"{_describe_doubt(one)}"
    )


def _describe_evidence(one: RankStanding) -> str:
    return (
        f"it came last in {one.last_count} of {one.late_count} collectives and caused "
        f"{percent(one.wait_caused_ratio or 0.0)} of the waiting"
    )


_NAMED_FROM = (
    f"A rank is named only from {SLOWDOWN_MIN} times on, or from {STEADY_SLOWDOWN_MIN} times on if the evidence is "
    "steady."
)


def _describe_doubt(one: RankStanding) -> str:
    took = f"Without waits its steps took {one.slowdown_ratio or 0:.2f} times as long as its peers'"
    if one.noise_ns is None:
        return f"{took}; {_count_steps(one)} too few to distinguish that from noise. {_NAMED_FROM}"
    excess_ns = one.excess_ns or 0
    give_or_take = (
        f"{'-' if excess_ns < 0 else '+'}{format_duration(abs(excess_ns))} in a step, give or take "
        f"{format_duration(one.noise_ns)}"
    )
    if one.is_within_noise:
        return f"{took}, but the steps differ by as much ({give_or_take}): record more of them."
    return f"{took} ({give_or_take}). {_NAMED_FROM}"


def _count_steps(one: RankStanding) -> str:
    return "1 step is" if one.step_count == 1 else f"{one.step_count} steps are"


def describe_noise(standings: Sequence[RankStanding]) -> str | None:
    """Return why no verdict is given on ranks that are slower by much, but not by more than their noise; None without
    any.
    """
    doubtful = [
        f"rank {one.rank}: {_describe_doubt(one).replace('Without', 'without', 1)}"
        for one in standings
        if one.is_within_noise
    ]
    return " ".join(doubtful) or None


# -- own time and cause ----------------------------------------------------------------------------------------------


def find_own_times(one: RankAnalysis, waiting: Intervals) -> dict[int, int]:
    """Return by step its length less these waits, in ns."""
    return {
        number: end_ns - start_ns - intervals.total_ns(intervals.clip(waiting, start_ns, end_ns))
        for number, start_ns, end_ns in one.steps
    }


def _describe(found: Mapping[int, RankAnalysis], one: RankStanding) -> TraceFinding:
    peers = [other.report for rank, other in found.items() if rank != one.rank]
    cause = find_cause(found[one.rank].report, peers, one.excess_ns or 0)
    longer = describe_longer(found[one.rank].report, peers) if cause == GPU_COMPUTE else ""
    evidence = f" It came{_describe_evidence(one).removeprefix('it came')}." if one.late_count else ""
    if one.noise_ns is None:
        evidence += f" {_count_steps(one)} too few to tell how much steps differ by themselves: record more of them."
    elif one.noise_ns > (one.excess_ns or 0):
        evidence += f" The steps differ a lot (give or take {format_duration(one.noise_ns)}): record more of them."
    return TraceFinding(
        kind=IMBALANCE if cause == MORE_WORK else STRAGGLER,
        rank=one.rank,
        slowdown_ratio=one.slowdown_ratio,
        cause=cause,
        sentence=(
            f"Rank {one.rank} took {one.slowdown_ratio or 0:.2f} times as long as its peers, "
            f"{format_duration(one.excess_ns or 0)} more in a step, {CAUSE_TEXTS[cause]}.{longer}{evidence}"
        ),
    )


def find_cause(report: RankReport, peers: list[RankReport], excess_ns: float) -> str:
    """Return the cause by the part of the step that holds the excess. `excess_ns` is that of one step. Devices are
    compared over the steps that are judged on all of these ranks.
    """
    common = set.intersection(*({step.step for step in one.steps if step.is_judged} for one in (report, *peers)))
    limit_ns = CAUSE_SHARE_MIN * excess_ns * max(1, len(common))

    def over(value: str) -> float:
        return _stage(report, value) - median(_stage(peer, value) for peer in peers)

    def of_steps(one: RankReport, name: str) -> int:
        return sum(getattr(step.on_device or step, name) for step in one.steps if step.step in common)

    if over("data_loader") >= limit_ns:
        return "data_loading"
    computes = of_steps(report, "compute_ns") - median(of_steps(peer, "compute_ns") for peer in peers)
    if computes >= limit_ns:
        usual = median(of_steps(peer, "kernel_count") for peer in peers)  # on a CPU: operators
        if usual and of_steps(report, "kernel_count") > MORE_WORK_MIN * usual:
            return MORE_WORK
        return GPU_COMPUTE if report.devices else "host_cpu"
    idles = of_steps(report, "idle_ns") - median(of_steps(peer, "idle_ns") for peer in peers)
    host = max(over(stage) for stage in ("forward", "backward", "optimizer", "other"))
    return "host_cpu" if max(idles, host) >= limit_ns else "unattributed"


def _stage(report: RankReport, stage: str) -> int:
    return next((row.host_ns for row in report.model if row.stage == stage), 0)
