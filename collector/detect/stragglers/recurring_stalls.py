"""Find a rank that stops now and then, at any distance, by the long steps of the whole attempt (`long_steps.py`).

What the kept steps do not show: a stall every 1,000 steps, or three in five minutes. Few of them prove nothing by their
number, so what counts is whose the time of comparable stalls was:

    class    long steps of at least CLASS_RATIO of the median stall of the rank, since its first one; the last
             CLASS_MAX of the run
    owned    the rank owns OWNED_MIN of the time of its class that anybody owns, and half of all of it
    proof    its stalls come every k-th step; or as many of the class being its own has a probability of at most
             CHANCE_MAX over the number of ranks; or they are LARGE_COUNT or more, all of the class, and each is
             LARGE_RATIO usual steps
             (steps in a row count as one)
    cost     at least COST_RATIO_MIN of the time since one usual distance before the first of them, as each stall comes
             after such a distance: four stalls cost what four distances hold, not three
    now      the last one is no longer ago than QUIET_GAPS usual distances
"""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from rankscope.collector.detect.finding import PERIODIC_WORK, STRAGGLER, Finding, SinceRange
from rankscope.collector.detect.finding_memory import FindingMemory, remember
from rankscope.collector.detect.sampled_lines import LineCost, describe_line
from rankscope.collector.detect.stragglers.intermittent import (
    CLASS_RATIO,
    COST_RATIO_MIN,
    QUIET_GAPS,
    find_half_of_time,
    find_period,
    probability_of,
)
from rankscope.collector.detect.stragglers.recompilation import RECOMPILATION, describe_compilation, measure_compilation
from rankscope.collector.detect.stragglers.root_cause import EXPLAINS, HOST_CPU, UNSEEN_WAIT
from rankscope.collector.detect.stragglers.storage import STORAGE, describe_saving, speeds_of
from rankscope.collector.detect.suggestions import UNATTRIBUTED, suggest
from rankscope.collector.detect.view import Candidate, RunView, Samples, SingleLosses, TimeCount
from rankscope.collector.steps.long_steps import EVERYBODY, UNKNOWN, LongStepsSeen, RareLongStep
from rankscope.measure.records import CHECKPOINT
from rankscope.measure.text import to_line
from rankscope.measure.units import format_duration

CLASS_MAX: Final = 64
OWNED_MIN: Final = 0.8
OWNED_OF_ALL_MIN: Final = 0.5
STALLS_MIN: Final = 4
"""Three equal distances."""
CHANCE_MAX: Final = 1e-4
"""Of 2 ranks it takes 15 stalls that are all one rank's, of 8 ranks 6."""
LARGE_COUNT: Final = 6
LARGE_RATIO: Final = 10.0
"""Stalls by the scheduler of a busy machine are a few steps long."""
WORK_SHARE_MAX: Final = 0.05
"""Share of the time from which work of its own is a warning."""
STALLS: Final = "stalls"
"""Evidence key: how many stalls the finding stands on."""
OTHER: Final = "other"
PLACE_LENGTH_MAX: Final = 120
"""Characters of a line or a call in a sentence."""


class Recurring(NamedTuple):
    """A rank, or EVERYBODY, that stops now and then: its stalls, the usual distance between them in steps, whether most
    are equal to it, how long the run has lasted since one such distance before the first, and the first step: before
    these stalls there may be long steps at the same distance whose owner is not known.
    """

    rank: int
    stalls: tuple[RareLongStep, ...]
    period: int
    is_regular: bool
    since_ns: float
    first_step: int

    @property
    def lost_ns(self) -> float:
        """Return by how much the rank was longer in all of them."""
        return math.fsum(one.owned_ns for one in self.stalls)

    @property
    def share(self) -> float:
        """Return the share of the time that they hold."""
        return self.lost_ns / self.since_ns

    @property
    def run_slowdown_ratio(self) -> float:
        """Return how many times as long the run takes as without them."""
        return self.since_ns / max(self.since_ns - self.lost_ns, 1.0)

    @property
    def evidence(self) -> Mapping[str, float]:
        """Return their number, usual length, share of the time and usual distance, as evidence of a finding."""
        return {
            STALLS: float(len(self.stalls)),
            "stall_ns": self.usual_stall_ns,
            "stalls_time_ratio": self.share,
            "gap_steps": float(self.period),
        }

    @property
    def losses(self) -> SingleLosses:
        """Return what each of them lost."""
        steps = np.array([one.step for one in self.stalls], dtype=np.int64)
        return SingleLosses(steps, np.array([one.owned_ns for one in self.stalls]))

    @property
    def usual_stall_ns(self) -> float:
        """Return the median of what the rank was longer."""
        return statistics.median(one.owned_ns for one in self.stalls)

    @property
    def part(self) -> str:
        """Return the phase that holds most of the time."""
        by_part: dict[str, float] = {}
        for one in self.stalls:
            by_part[one.part] = by_part.get(one.part, 0.0) + one.owned_ns
        return max(by_part, key=lambda name: by_part[name])


def find_recurring(seen: LongStepsSeen, ranks: int, known: Collection[int] = ()) -> tuple[Recurring, ...]:
    """Return the ranks that stop now and then, the costliest first. Those `known` need no further proof. `ranks`: how
    many could own a stall.
    """
    steps = [one for one in seen.steps if one.owner != EVERYBODY]
    owners = {one.owner for one in steps if one.owner >= 0}
    found = (_find_of(owner, steps, seen.total_ns, ranks, is_known=owner in known) for owner in sorted(owners))
    dated = (_with_unowned(one, seen.steps) for one in found if one is not None)
    return tuple(sorted(dated, key=lambda one: -one.share))


def _with_unowned(found: Recurring, steps: Sequence[RareLongStep]) -> Recurring:
    """Return stalls at equal distances with the first step of those before them of which no rank is known to be the
    owner. One of all ranks counts where nobody was looked at: they are only once there have been some.
    """
    if not found.is_regular:
        return found
    size_ns = CLASS_RATIO * found.usual_stall_ns
    large = [one for one in steps if one.excess_ns >= size_ns]
    unowned = {one.step for one in large if one.owner == UNKNOWN or (one.owner == EVERYBODY and not one.is_seen)}
    first_step = found.first_step
    while first_step - found.period in unowned:
        first_step -= found.period
    return found._replace(first_step=first_step)


def _find_of(
    rank: int, steps: Sequence[RareLongStep], total_ns: float, ranks: int, *, is_known: bool
) -> Recurring | None:
    """Return the stalls of a rank: of the size that holds half of the time of its long steps, of which many are long by
    noise where steps take a millisecond; else of their usual size.
    """
    owned_ns = [one.owned_ns for one in steps if one.owner == rank][-CLASS_MAX:]
    usual_ns = statistics.median(owned_ns)
    for stall_ns in (find_half_of_time(owned_ns), usual_ns):
        size_ns, is_usual = CLASS_RATIO * stall_ns, stall_ns <= usual_ns
        found = _judge(rank, steps, total_ns, ranks, size_ns=size_ns, is_known=is_known, is_usual=is_usual)
        if found is not None:
            return found
    return None


def _judge(
    rank: int,
    steps: Sequence[RareLongStep],
    total_ns: float,
    ranks: int,
    *,
    size_ns: float,
    is_known: bool,
    is_usual: bool,
) -> Recurring | None:
    """Return the stalls of a rank of `size_ns` and more. `is_usual`: a size that was not chosen for few of them."""
    mine = [one for one in steps if one.owner == rank and one.owned_ns >= size_ns][-CLASS_MAX:]
    if not mine:
        return None
    alike = [one for one in steps if one.step >= mine[0].step and one.excess_ns >= size_ns][-CLASS_MAX:]
    mine = [one for one in alike if one.owner == rank]
    if count_periods(mine) < STALLS_MIN:
        return None
    owned_ns = math.fsum(one.owned_ns for one in mine)
    of_owned_ns = math.fsum(one.owned_ns for one in alike if one.owner >= 0)
    of_all_ns = math.fsum(one.excess_ns for one in alike)
    if owned_ns < OWNED_MIN * of_owned_ns or owned_ns < OWNED_OF_ALL_MIN * of_all_ns:
        return None
    found = measure_stalls(rank, mine, total_ns)
    if found is None or found.share < (0.5 if is_known else 1.0) * COST_RATIO_MIN:
        return None
    return found if is_known or found.is_regular or _is_proven(mine, alike, ranks, is_usual=is_usual) else None


def measure_stalls(owner: int, mine: Sequence[RareLongStep], total_ns: float) -> Recurring | None:
    """Return several stalls of an owner with their distance; None where they are over."""
    distances_ns = [later.before_ns - one.before_ns for one, later in itertools.pairwise(mine)]
    quiet_ns = total_ns - mine[-1].before_ns
    if quiet_ns > QUIET_GAPS * max(statistics.median(distances_ns), statistics.fmean(distances_ns)):
        return None
    period, is_regular = find_period(np.array([one.step for one in mine]))
    begin_ns = mine[0].before_ns - period * mine[0].usual_ns
    return Recurring(owner, tuple(mine), period, is_regular, total_ns - max(0.0, begin_ns), mine[0].step)


def _is_proven(mine: Sequence[RareLongStep], alike: Sequence[RareLongStep], ranks: int, *, is_usual: bool) -> bool:
    count, of_all = count_periods(mine), count_periods(alike)
    if probability_of(count, of_all, 1 / ranks) <= CHANCE_MAX / ranks:
        return True
    are_large = all(one.owned_ns >= LARGE_RATIO * one.usual_ns for one in mine)
    return is_usual and are_large and count >= LARGE_COUNT and len(mine) == len(alike)


def count_periods(steps: Sequence[RareLongStep]) -> int:
    """Return how often there are long steps: those in a row are of one slowness, which may have begun to last."""
    return 1 + sum(later.step > one.step + 1 for one, later in itertools.pairwise(steps)) if steps else 0


class StallCause(NamedTuple):
    """Cause of recurring stalls, a clause that gives the reason, and the numbers behind it."""

    name: str
    because: str
    evidence: Mapping[str, float] = {}


def find_stall_cause(found: Recurring, samples: Samples, peers: Sequence[int] = ()) -> StallCause:
    """Return why a rank stops: what holds half of the time of its stalls. `peers`: ranks that may save as much."""
    if found.part == "data":
        return StallCause(
            "data_loading", f"{format_duration(found.usual_stall_ns)} each time waiting for its data loader"
        )
    steps = {one.step for one in found.stalls}
    compiled_ns = measure_compilation(samples.compiled, found.rank, steps)
    if compiled_ns is not None and compiled_ns >= EXPLAINS * found.usual_stall_ns:
        what = describe_compilation(compiled_ns, " each time", samples.compiled, [found.rank], steps)
        return StallCause(RECOMPILATION, what)
    pause_ns = find_pause(found, samples.gc_pauses.get(found.rank, ()))
    if pause_ns is not None and pause_ns >= EXPLAINS * found.usual_stall_ns:
        return StallCause("garbage_collection", f"{format_duration(pause_ns)} each time in Python's garbage collector")
    if found.part == CHECKPOINT:
        return _find_saving(found.rank, samples, peers)
    if found.part == OTHER and found.is_regular:
        return StallCause(PERIODIC_WORK, "between optimizer and next batch")
    return _find_host_cause(found)


def _find_saving(rank: int, samples: Samples, peers: Sequence[int]) -> StallCause:
    saving = describe_saving(rank, peers, samples.saves)
    if saving is None:
        return StallCause(PERIODIC_WORK, "saving a checkpoint")
    return StallCause(STORAGE if saving.is_slow else PERIODIC_WORK, saving.because, speeds_of(saving))


def _find_host_cause(found: Recurring) -> StallCause:
    in_part = f"{format_duration(found.usual_stall_ns)} of it in {found.part}"
    used = [(one.cpu_ns, one) for one in found.stalls if one.cpu_ns is not None]
    # What the thread computes in a usual step is at most the step: the truth lies between the two.
    if used and statistics.median(cpu_ns - one.usual_ns for cpu_ns, one in used) >= EXPLAINS * found.usual_stall_ns:
        return StallCause(HOST_CPU, f"its training thread computing meanwhile, {in_part}")
    if used and statistics.median(cpu_ns for cpu_ns, _ in used) < EXPLAINS * found.usual_stall_ns:
        return StallCause(
            UNSEEN_WAIT, f"its training thread off the CPU, waiting for something not measured, {in_part}"
        )
    return StallCause(UNATTRIBUTED, f"{describe_place(found) or 'no known cause'}, {in_part}")


def find_pause(found: Recurring, counts: Sequence[TimeCount]) -> float | None:
    """Return the pauses of the collector for each stall, in ns, between those counts that have stalls between them;
    None where none has.
    """
    held, paused_ns = 0, 0
    for before, after in itertools.pairwise(counts):
        stalls = sum(before.steps <= one.step < after.steps for one in found.stalls)
        held += stalls
        paused_ns += after.counted_ns - before.counted_ns if stalls else 0
    return paused_ns / held if held else None


def describe_recurring(view: RunView, found: Recurring, known: Finding | None) -> Candidate:
    """Build the finding about a rank that stops now and then. An open one keeps its begin."""
    peers = [rank for rank in view.series.ranks if rank != found.rank]
    cause = find_stall_cause(found, view.samples, peers)
    is_work = cause.name == PERIODIC_WORK
    place = "" if cause.name == UNATTRIBUTED else describe_place(found)  # which stands for the cause then
    begin = date_stalls(found, view.long_steps.first_step, known)
    usual_ns = statistics.median(one.usual_ns for one in found.stalls)
    finding = Finding(
        kind=PERIODIC_WORK if is_work else STRAGGLER,
        ranks=(found.rank,),
        since_step=begin[1],
        since_step_min=begin[0],
        since_step_max=begin[1],
        slowdown_ratio=1 + found.usual_stall_ns / max(usual_ns, 1.0),
        cause=cause.name,
        pattern="intermittent",
        severity="info" if is_work and found.share < WORK_SHARE_MAX else "warning",
        what=_write_what(found, is_work=is_work),
        node=view.nodes[found.rank],
        why=cause.because,
        also=tuple(filter(None, (count_stalls(found), place))),
        suggestion=suggest(PERIODIC_WORK if is_work else STRAGGLER, cause.name),
        run_slowdown_ratio=found.run_slowdown_ratio,
        evidence={**found.evidence, **cause.evidence},
    )
    steps = np.array([one.step for one in found.stalls], dtype=np.int64)
    finding = remember(finding, FindingMemory(holds_while_found=True))
    return Candidate(finding, SingleLosses(steps, np.array([one.owned_ns for one in found.stalls])))


def date_stalls(found: Recurring, first_step: int, known: Finding | None) -> SinceRange:
    """Return between which steps it began: at the first step, or up to one usual distance before. Where this collector
    has not seen so much, it may have begun at any step.
    """
    first = found.first_step
    if known is not None and known.since_step is not None and known.since_step <= first:
        return known.since_step if known.since_step_min is None else known.since_step_min, known.since_step
    earliest = first - max(found.period, 1) + 1
    return earliest if earliest >= first_step else 0, first


def _write_what(found: Recurring, *, is_work: bool) -> str:
    """Return how often it stops. Before it stands, of a straggler, the ratio of the steps in which it does."""
    every = f"every {found.period} steps" if found.is_regular else f"now and then (about every {found.period} steps)"
    return f"work of its own {every}" if is_work else f"than usual {every}"


def count_stalls(found: Recurring) -> str:
    """Return how many there were, how long, and in which steps."""
    first, last = found.stalls[0].step, found.stalls[-1].step
    waiting = ", all other ranks waiting" if found.rank >= 0 else ""
    return f"{len(found.stalls)} stalls of {format_duration(found.usual_stall_ns)} in steps {first}-{last}{waiting}"


def describe_place(found: Recurring) -> str:
    """Return where the rank was in half of its looks or more; empty where that is no one place, as in an evaluation.
    Texts are the script's.
    """
    places = Counter((one.line, one.call) for one in found.stalls if one.line or one.call)
    seen = sum(places.values())
    (line, call), count = places.most_common(1)[0] if places else (("", ""), 0)
    if not count or count < seen / 2:
        return ""
    text = describe_line(LineCost(line=to_line(line, PLACE_LENGTH_MAX), ns=0.0, call=to_line(call, PLACE_LENGTH_MAX)))
    return f"seen {text}, in {count} of {seen} looks" if seen > 1 else f"seen {text}, once"
