"""Compare what the threads of a slow rank's process do with its peers': waits for a CPU core, other threads at work.

    wait for a core     its training thread was ready to run, and others had the CPUs. Only the kernel can tell this
                        wait from one for a lock, a file or a message
    other threads       CPU time of the process less that of the training thread. Where that thread does not compute
                        longer and the others do, it waits for what they do, or for Python's interpreter lock, which
                        they hold

Both are counted by process, so they are means over the steps between two samples. They count on while a run stands
still: in a stop, an evaluation, a checkpoint. So samples between which a step took much longer than usual are left out,
and what is longer than the rank's own time in a step is no time in a step: it is not known.

On busy cores a thread that computes longer waits longer. As much wait for each second of CPU time as the peers have
belongs to what it computes longer; only the rest is a longer wait.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from rankscope.collector.detect.stragglers.persistent import SlowRank
from rankscope.collector.detect.view import Samples, TimeCount
from rankscope.measure.units import format_duration

CPU_EXCESS: Final = "cpu_excess_ns"
"""Evidence key: by how much the CPU time of the training thread in a step exceeds its peers'."""
PEERS_CPU: Final = "peers_cpu_ns"
"""Evidence key: the CPU time of the peers' training threads in a step."""
CORE_WAIT: Final = "core_wait_ns_per_step"
"""Evidence key: for how long the training thread waits for a CPU core in a step."""
PEERS_CORE_WAIT: Final = "peers_core_wait_ns_per_step"
CORE_WAIT_EXCESS: Final = "core_wait_excess_ns"
OTHER_THREADS_EXCESS: Final = "other_threads_excess_ns"
THROTTLED: Final = "throttled_ratio"
"""Evidence key: the share of the periods of its CPU limit in which the limit stopped the rank, in its last sample."""
THROTTLED_MIN: Final = 0.05
"""From where on a CPU limit is told beside a wait for a core."""

STEPS_BETWEEN_MIN: Final = 8
"""Steps between the first and the last sample of a time: of fewer, what a process does once, as at its end, would be
taken for what it does in every step."""
STANDS_STILL_RATIO: Final = 4.0
"""Samples between which a step took as many usual ones hold a time in which the run stood still; what is lost of a step
is counted up to the same (docs/definitions.md section 4)."""
ALIKE_RATIO: Final = 0.5
"""Share of a rank's wait for a core from which its peers' is alike: then most of it is their machines', and which rank
waits the longest is chance, or how the ranks are placed on the cores."""


NO_CLOCK: Final[Mapping[int, Sequence[TimeCount]]] = {}


class PerStep(NamedTuple):
    """A time per step, in ns: of the slow rank, and the median of its peers'."""

    mine_ns: float
    peers_ns: float


def time_per_step(counts: Sequence[TimeCount], from_step: int, clock: Sequence[TimeCount] = ()) -> float | None:
    """Return how much of a time is counted in a step from that step on, in ns; None without two samples since then that
    are STEPS_BETWEEN_MIN steps apart. Where `clock` is the time at the same samples, those between which the run stood
    still are left out.

    >>> counts = [TimeCount(0, 0), TimeCount(8, 80), TimeCount(9, 9_080), TimeCount(17, 9_160)]
    >>> clock = [TimeCount(0, 0), TimeCount(8, 800), TimeCount(9, 30_900), TimeCount(17, 31_700)]
    >>> round(time_per_step(counts, 0)), time_per_step(counts, 0, clock)
    (539, 10.0)
    """
    inside = [sample for sample in counts if sample.steps >= from_step]
    if not inside or inside[-1].steps - inside[0].steps < STEPS_BETWEEN_MIN:
        return None
    passed = [sample for sample in clock if sample.steps >= from_step]
    if [one.steps for one in passed] != [one.steps for one in inside]:
        return (inside[-1].counted_ns - inside[0].counted_ns) / (inside[-1].steps - inside[0].steps)
    moving = _leave_out_stops(_between(inside), _between(passed))
    steps = sum(one.steps for one in moving)
    return sum(one.counted_ns for one in moving) / steps if steps >= STEPS_BETWEEN_MIN else None


def _between(counts: Sequence[TimeCount]) -> list[TimeCount]:
    """Return the steps and the time between samples, those without a step in between joined with the next."""
    first, found = counts[0], []
    for sample in counts[1:]:
        if sample.steps > first.steps:
            found.append(TimeCount(sample.steps - first.steps, sample.counted_ns - first.counted_ns))
            first = sample
    return found


def _leave_out_stops(counted: Sequence[TimeCount], passed: Sequence[TimeCount]) -> list[TimeCount]:
    """Return what was counted between the samples in which the run did not stand still."""
    lasted_ns = np.repeat([one.counted_ns / one.steps for one in passed], [one.steps for one in passed])
    usual_ns = float(np.sort(lasted_ns)[(len(lasted_ns) - 1) // 2])
    return [
        one
        for one, time in zip(counted, passed, strict=True)
        if time.counted_ns <= STANDS_STILL_RATIO * usual_ns * time.steps
    ]


def share_of_time(counts: Sequence[TimeCount], clock: Sequence[TimeCount], from_step: int) -> float | None:
    """Return which share of what has passed since that step a counted time is; None without two samples since then
    that are STEPS_BETWEEN_MIN steps apart, or where `clock`, the time at the samples, is not that of the same ones.

    It is no time per step over the usual step: a run that stands still counts on, and has no steps.

    >>> counts, clock = [TimeCount(0, 0), TimeCount(8, 200)], [TimeCount(0, 5_000), TimeCount(8, 5_800)]
    >>> share_of_time(counts, clock, 0)
    0.25
    """
    if time_per_step(counts, from_step) is None:
        return None
    counted, passed = ([one for one in times if one.steps >= from_step] for times in (counts, clock))
    if [one.steps for one in counted] != [one.steps for one in passed]:
        return None
    passed_ns = passed[-1].counted_ns - passed[0].counted_ns
    return (counted[-1].counted_ns - counted[0].counted_ns) / passed_ns if passed_ns > 0 else None


def compare_times(
    slow: SlowRank, counts: Mapping[int, Sequence[TimeCount]], clock: Mapping[int, Sequence[TimeCount]] = NO_CLOCK
) -> PerStep | None:
    """Return the rank's time per step at its present level, and its peers'; None where it or all of theirs are not
    known. `clock` is the time at the samples. Of a level that is younger than two samples the steps since the sample
    before it count, where most of them are of that level: the excess may be larger.
    """

    def read(rank: int) -> float | None:
        mine, times = counts.get(rank, ()), clock.get(rank, ())
        since = time_per_step(mine, slow.level_from_step, times)
        return time_per_step(mine, _find_sample_before(mine, slow.level_from_step), times) if since is None else since

    mine_ns, known = read(slow.rank), map(read, slow.peers.ranks)
    peers_ns = [one for one in known if one is not None]
    return PerStep(mine_ns, float(np.median(peers_ns))) if mine_ns is not None and peers_ns else None


def _find_sample_before(counts: Sequence[TimeCount], from_step: int) -> int:
    """Return the steps at the last sample before that step, if most of those up to the last sample come after it.

    >>> counts = [TimeCount(0, 0), TimeCount(40, 0), TimeCount(80, 0)]
    >>> _find_sample_before(counts, 55), _find_sample_before(counts, 65)
    (40, 65)
    """
    before = max((sample.steps for sample in counts if sample.steps < from_step), default=from_step)
    last = counts[-1].steps if counts else from_step
    return before if 2 * (last - from_step) > last - before else from_step


def may_be_in_steps(slow: SlowRank, excess_ns: float) -> bool:
    """Return whether a slow step of the rank can hold so much more of a time than its peers' do, in ns: it is at most
    the rank's own time in a step.
    """
    return excess_ns <= slow.own_ns


def compare_waits(slow: SlowRank, counts: Mapping[int, Sequence[TimeCount]], samples: Samples) -> PerStep | None:
    """Return the counted waits of training threads; None also where they cannot be waits in the rank's steps."""
    waits = compare_times(slow, counts, samples.host_clock)
    return waits if waits is not None and may_be_in_steps(slow, find_wait_excess(slow, waits)) else None


def find_wait_excess(slow: SlowRank, waits: PerStep) -> float:
    """Return how much longer the rank waits in a slow step than its peers, in ns."""
    return (waits.mine_ns - waits.peers_ns) / share_of_slow_steps(slow)


def describe_wait(slow: SlowRank, waits: PerStep, what: str) -> str:
    """Return how much longer its training thread waits for something, as a clause."""
    return (
        f"its training thread waiting {format_duration(find_wait_excess(slow, waits))} more per step for {what} "
        f"({format_duration(waits.mine_ns)}, its peers' {format_duration(waits.peers_ns)})"
    )


def share_of_slow_steps(slow: SlowRank) -> float:
    """Return the share of the steps that an excess per step falls on."""
    return slow.persistence if slow.pattern == "intermittent" else 1.0


def find_longer_work(
    slow: SlowRank, explained_ns_min: float, evidence: dict[str, float], samples: Samples
) -> str | None:
    """Describe that its training thread computes longer than its peers', by `explained_ns_min` of a slow step or more
    with the waits for a CPU core that come with it; None where it does not, or the CPU times are not known.
    """
    longer_ns = evidence.get(CPU_EXCESS)
    if longer_ns is None:
        return None
    if longer_ns >= explained_ns_min:
        return "its training thread computing longer"
    waits = compare_waits(slow, samples.core_waits, samples)
    if waits is None or (held_ns := longer_ns + _waits_with_work(waits, evidence)) < explained_ns_min:
        return None
    return (
        f"its training thread computing {format_duration(longer_ns)} more per step, "
        f"{format_duration(held_ns)} on CPU cores as busy as its peers'"
    )


def _waits_with_work(waits: PerStep, evidence: Mapping[str, float]) -> float:
    """Return how long a thread waits for a CPU core for what it computes longer than its peers, if it waits as long as
    they do for each second of CPU time, in ns a step; 0 where it computes no longer, or that is not known.
    """
    longer_ns, peers_ns = evidence.get(CPU_EXCESS, 0.0), evidence.get(PEERS_CPU, 0.0)
    return max(0.0, longer_ns) * waits.peers_ns / peers_ns if peers_ns > 0 else 0.0


def find_core_wait(slow: SlowRank, explained_ns_min: float, evidence: dict[str, float], samples: Samples) -> str | None:
    """Describe that its training thread waits longer for a CPU core than its peers', by `explained_ns_min` of a slow
    step or more beyond what comes with longer work, and add the numbers to `evidence`; None where it does not, or it is
    not known.
    """
    waits = compare_waits(slow, samples.core_waits, samples)
    if waits is None:
        return None
    evidence[CORE_WAIT], evidence[PEERS_CORE_WAIT] = waits.mine_ns, waits.peers_ns
    evidence[CORE_WAIT_EXCESS] = excess_ns = find_wait_excess(slow, waits)
    if excess_ns - _waits_with_work(waits, evidence) < explained_ns_min:
        return None
    host = samples.hosts.get(slow.rank)
    throttled = None if host is None else host.throttled_ratio
    if throttled is not None:
        evidence[THROTTLED] = throttled
    return f"{describe_wait(slow, waits, 'a CPU core')}{describe_limit(throttled)}"


def describe_limit(throttled: float | None, whose: str = "its") -> str:
    """Return how often a CPU limit stops processes, as the end of a clause; empty where it hardly does.

    >>> describe_limit(0.625), describe_limit(0.01), describe_limit(None)
    (', stopped by its CPU limit in 62 % of its periods', '', '')
    """
    if throttled is None or throttled < THROTTLED_MIN:
        return ""
    return f", stopped by {whose} CPU limit in {100 * throttled:.0f} % of its periods"


def is_held_up_alike(evidence: Mapping[str, float]) -> bool:
    """Return whether the peers of a rank with this evidence wait for a CPU core at least ALIKE_RATIO as long as it."""
    return evidence.get(PEERS_CORE_WAIT, 0.0) >= ALIKE_RATIO * evidence.get(CORE_WAIT, math.inf)


def find_other_threads(
    slow: SlowRank, explained_ns_min: float, evidence: dict[str, float], samples: Samples
) -> str | None:
    """Describe that threads of its process other than the training thread compute longer than its peers', by
    `explained_ns_min` of a slow step or more, and add the number to `evidence`; None where they do not, or it is not
    known.
    """
    whole = compare_times(slow, samples.process_cpu, samples.host_clock)
    if whole is None or CPU_EXCESS not in evidence:
        return None
    excess_ns = (whole.mine_ns - whole.peers_ns) / share_of_slow_steps(slow) - max(0.0, evidence[CPU_EXCESS])
    evidence[OTHER_THREADS_EXCESS] = excess_ns
    if excess_ns < explained_ns_min:
        return None
    return (
        "its training thread waiting for other threads of its process or Python's interpreter lock: those compute "
        f"{format_duration(excess_ns)} more per step"
    )
