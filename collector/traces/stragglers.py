"""Find the ranks that were slow in the steps of these traces, by self time (docs/definitions.md section 4).

A rank's self time in a step is the step less its exposed waits for other ranks. Traces hold few steps, so one number is
not enough. A rank is named when it waited the least, caused the most waiting, was slower than its peers in most steps,
and either

- by much more than healthy ranks differ (SLOWDOWN_MIN), or
- by less, but steadily: the difference stands out of its own noise from step to step, and the rank came last in most
  collectives and caused most of the waiting.
"""

from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import median, stdev

import msgspec

from rankscope.collector.detect.run_rules.thresholds import percent
from rankscope.collector.traces.rank_analysis import RankAnalysis
from rankscope.collector.traces.report import Finding, MatchedCollective, RankReport, RankStanding
from rankscope.measure import intervals
from rankscope.measure.intervals import Intervals
from rankscope.measure.units import NS_PER_MS

SLOWDOWN_MIN = 1.15
"""Healthy ranks on busy cores differ by up to 13.5 % over three steps."""
STEADY_SLOWDOWN_MIN = 1.05
"""Less costs little, and sizes of batches differ by it."""
STEPS_SHARE_MIN = 0.6
LAST_SHARE_MIN = 0.6
"""Of the collectives with a last rank, and of the waiting caused, for a rank slower by less than SLOWDOWN_MIN."""
T_98 = (31.82, 6.96, 4.54, 3.75, 3.36, 3.14, 3.00, 2.90, 2.82)
"""Student's t, 98 % between both sides, for 1 to 9 degrees of freedom. More: the last. With 95 %, in one of 16 recorded
runs of healthy ranks on two shared cores a rank was named."""
NOISE_STEPS_MIN = 3
MORE_WORK_MIN = 1.1
"""Times as many kernels as the others run: then it is the work that differs, not the device."""
CAUSE_SHARE_MIN = 0.5
"""A stage must explain half of the excess to be named as its cause."""

CAUSE_TEXTS = {
    "data_loading": "waiting for data",
    "host_cpu": "stalled on the host",
    "gpu_compute": "computing slower",
    "more_work": "doing more work",
    "unattributed": "for a reason that the traces do not show",
}


def find_stragglers(found: Mapping[int, RankAnalysis], standings: Sequence[RankStanding]) -> list[Finding]:
    """Return a finding for each slow rank."""
    return [_describe(found, one) for one in standings if one.is_slow]


# -- the evidence -----------------------------------------------------------------------------------------------------


def find_standings(
    self_ns: Mapping[int, Mapping[int, int]], waited_ns: Mapping[int, int], collectives: Sequence[MatchedCollective]
) -> list[RankStanding]:
    """Return the standing of each rank, from its self time by step and its waiting in ns."""
    common = sorted(set.intersection(*(set(times) for times in self_ns.values()))) if len(self_ns) > 1 else []
    if not common:
        return []
    late = [one for one in collectives if one.late_rank is not None and one.wait_ns is not None]
    caused_ns = dict.fromkeys(self_ns, 0)
    for one in late:
        caused_ns[one.late_rank or 0] += sum((one.wait_ns or {}).values())
    found = [_stand(rank, self_ns, common, late, caused_ns) for rank in sorted(self_ns)]
    least_ns, most_ns = min(waited_ns.values()), max(caused_ns.values())
    suspects = {rank for rank in self_ns if waited_ns[rank] == least_ns and caused_ns[rank] == most_ns}
    return [msgspec.structs.replace(one, is_slow=one.rank in suspects and _is_slower(one)) for one in found]


def _stand(
    rank: int,
    self_ns: Mapping[int, Mapping[int, int]],
    steps: Sequence[int],
    late: Sequence[MatchedCollective],
    caused_ns: Mapping[int, int],
) -> RankStanding:
    others = [times for other, times in self_ns.items() if other != rank]
    peers_ns = {step: median(times[step] for times in others) for step in steps}
    excess_ns = [self_ns[rank][step] - peers_ns[step] for step in steps]
    whole_ns = sum(caused_ns.values())
    return RankStanding(
        rank=rank,
        slowdown_ratio=sum(self_ns[rank][step] for step in steps) / max(1, sum(peers_ns.values())),
        excess_ns=round(sum(excess_ns) / len(steps)),
        noise_ns=_find_noise(excess_ns),
        step_count=len(steps),
        slower_step_count=sum(excess > 0 for excess in excess_ns),
        last_count=sum(one.late_rank == rank for one in late),
        late_count=sum(rank in one.ranks for one in late),
        wait_caused_ns=caused_ns[rank],
        wait_caused_ratio=caused_ns[rank] / whole_ns if whole_ns else None,
        is_slow=False,
    )


def _find_noise(excess_ns: Sequence[float]) -> int | None:
    """Return by how much the mean may be off, in ns: the half width of its 98 % interval. None below three steps."""
    if len(excess_ns) < NOISE_STEPS_MIN:
        return None
    freedom = len(excess_ns) - 1
    return round(T_98[min(freedom, len(T_98)) - 1] * stdev(excess_ns) / sqrt(len(excess_ns)))


def _is_slower(one: RankStanding) -> bool:
    ratio = one.slowdown_ratio or 0.0
    if one.slower_step_count < STEPS_SHARE_MIN * one.step_count or ratio < STEADY_SLOWDOWN_MIN:
        return False
    is_steady = one.noise_ns is not None and (one.excess_ns or 0) > one.noise_ns
    is_last = one.last_count >= LAST_SHARE_MIN * max(one.late_count, 1)
    return ratio >= SLOWDOWN_MIN or (is_steady and is_last and (one.wait_caused_ratio or 0.0) >= LAST_SHARE_MIN)


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
        steps = "1 step is" if one.step_count == 1 else f"{one.step_count} steps are"
        return f"{took}; {steps} too few to distinguish that from noise. {_NAMED_FROM}"
    give_or_take = (
        f"{(one.excess_ns or 0) / NS_PER_MS:+.1f} ms in a step, give or take {one.noise_ns / NS_PER_MS:.1f} ms"
    )
    return f"{took} ({give_or_take}). {_NAMED_FROM}"


# -- self time and cause ----------------------------------------------------------------------------------------------


def find_self_times(one: RankAnalysis, waiting: Intervals) -> dict[int, int]:
    """Return by step its length less these waits, in ns."""
    return {
        number: end_ns - start_ns - intervals.total_ns(intervals.clip(waiting, start_ns, end_ns))
        for number, start_ns, end_ns in one.steps
    }


def _describe(found: Mapping[int, RankAnalysis], one: RankStanding) -> Finding:
    peers = [other.report for rank, other in found.items() if rank != one.rank]
    cause = find_cause(found[one.rank].report, peers, one.excess_ns or 0)
    evidence = f" It came{_describe_evidence(one).removeprefix('it came')}." if one.late_count else ""
    if one.noise_ns is not None and one.noise_ns > (one.excess_ns or 0):
        evidence += f" The steps differ a lot (give or take {one.noise_ns / NS_PER_MS:.1f} ms): record more of them."
    return Finding(
        kind="straggler",
        rank=one.rank,
        slowdown_ratio=one.slowdown_ratio,
        cause=cause,
        sentence=(
            f"Rank {one.rank} took {one.slowdown_ratio or 0:.2f} times as long as its peers, "
            f"{(one.excess_ns or 0) / NS_PER_MS:.1f} ms more in a step, {CAUSE_TEXTS[cause]}.{evidence}"
        ),
    )


def find_cause(report: RankReport, peers: list[RankReport], excess_ns: float) -> str:
    """Return the cause by the part of the step that holds the excess. `excess_ns` is that of one step."""
    steps = max(1, len(report.steps))
    limit_ns = CAUSE_SHARE_MIN * excess_ns * steps

    def over(value: str) -> float:
        return _stage(report, value) - median(_stage(peer, value) for peer in peers)

    if over("data_loader") >= limit_ns:
        return "data_loading"
    computes = _of_steps(report, "compute_ns") - median(_of_steps(peer, "compute_ns") for peer in peers)
    if computes >= limit_ns:
        kernels = median(peer.kernel_count for peer in peers)
        return "more_work" if report.kernel_count > MORE_WORK_MIN * kernels else "gpu_compute"
    idles = _of_steps(report, "idle_ns") - median(_of_steps(peer, "idle_ns") for peer in peers)
    host = max(over(stage) for stage in ("forward", "backward", "optimizer", "other"))
    return "host_cpu" if max(idles, host) >= limit_ns else "unattributed"


def _stage(report: RankReport, stage: str) -> int:
    return next((row.host_ns for row in report.model if row.stage == stage), 0)


def _of_steps(report: RankReport, name: str) -> int:
    return sum(getattr(step.on_device or step, name) for step in report.steps)
