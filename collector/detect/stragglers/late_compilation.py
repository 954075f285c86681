"""Find the ranks that torch.compile holds up in single steps late in a run, while the others wait for them.

Few such steps prove nothing by their number, and of ranks that compile at once none holds a step alone; what torch says
of its compilations does:

    steps    long ones (`long_steps.py`) of which the rank that compiled for longest explains half
    ranks    in each step those that compiled for half as long as that one
    cost     LOST_MIN of the last RECENT_S, and LOST_S_MIN; an open finding holds with half of it

Where nearly all ranks compile nobody is slow.
"""

import statistics
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

import numpy as np

from rankscope.collector.detect.finding import STRAGGLER, Finding
from rankscope.collector.detect.finding_memory import FindingMemory, remember
from rankscope.collector.detect.stragglers.doubt import LOST_MIN, START_STEPS
from rankscope.collector.detect.stragglers.recompilation import RECOMPILATION, Compiled, describe_compilation
from rankscope.collector.detect.stragglers.recurring_stalls import STALLS
from rankscope.collector.detect.stragglers.root_cause import EXPLAINS
from rankscope.collector.detect.suggestions import suggest
from rankscope.collector.detect.view import Candidate, RunView, SingleLosses
from rankscope.collector.steps.long_steps import EVERYBODY, MOST_RANKS, RareLongStep
from rankscope.measure.units import NS_PER_S, format_duration

RECENT_S: Final = 300.0
"""What is past for longer is nothing to act on."""
LOST_S_MIN: Final = 1.0
"""Frames that torch compiles once more for another size take less."""


class _LateStep(NamedTuple):
    """A long step, the ranks that compiled in it, and the part of its excess that this explains, in ns."""

    step: RareLongStep
    ranks: frozenset[int]
    lost_ns: float


def find_late_compilation(view: RunView, named: Collection[int], known: Mapping[int, Finding]) -> list[Candidate]:
    """Return the finding about the ranks that compiled, without those that are `named` for what they are slow for;
    none where that costs little. `known`: open findings by rank.
    """
    before = next((one for one in known.values() if one.cause == RECOMPILATION and one.pattern == "intermittent"), None)
    since_step = START_STEPS if before is None or before.since_step is None else before.since_step
    seen, recent_ns = view.long_steps, min(view.long_steps.total_ns, RECENT_S * NS_PER_S)
    least_ns = (1.0 if before is None else 0.5) * max(LOST_MIN * recent_ns, LOST_S_MIN * NS_PER_S)

    def is_recent(one: RareLongStep) -> bool:
        return one.before_ns >= seen.total_ns - recent_ns

    steps = [one for one in seen.steps if one.owner != EVERYBODY and one.step >= START_STEPS]
    steps = [one for one in steps if is_recent(one) or (before is not None and one.step >= since_step)]
    if sum(one.excess_ns for one in steps if is_recent(one)) < least_ns:
        return []
    late = _find_steps(steps, view.samples.compiled, frozenset(named))
    ranks = frozenset[int]().union(*(one.ranks for one in late))
    lost_ns = sum(one.lost_ns for one in late if is_recent(one.step))
    if not ranks or lost_ns < least_ns or len(ranks) >= MOST_RANKS * len(view.series.ranks):
        return []
    return [_describe(view, late, tuple(sorted(ranks)), before)]


def _find_steps(steps: Collection[RareLongStep], compiled: Compiled, named: frozenset[int]) -> list[_LateStep]:
    spent_ns: dict[int, dict[int, float]] = {one.step: {} for one in steps}
    for rank, frames in compiled.items():
        for frame in frames or ():
            if frame.step in spent_ns:
                by_rank = spent_ns[frame.step]
                by_rank[rank] = by_rank.get(rank, 0.0) + frame.duration_ns
    found = []
    for one in steps:
        longest_ns = max(spent_ns[one.step].values(), default=0.0)
        ranks = frozenset(rank for rank, ns in spent_ns[one.step].items() if ns >= EXPLAINS * longest_ns)
        if longest_ns >= EXPLAINS * one.excess_ns and ranks - named:
            found.append(_LateStep(one, ranks - named, min(longest_ns, one.excess_ns)))
    return found


def _describe(view: RunView, late: list[_LateStep], ranks: tuple[int, ...], before: Finding | None) -> Candidate:
    steps = np.array([one.step.step for one in late], dtype=np.int64)
    losses_ns = np.array([one.lost_ns for one in late])
    lost_ns = float(losses_ns.sum())
    since_ns = max(view.long_steps.total_ns - late[0].step.before_ns, 1.0)
    each_ns = statistics.median(one.lost_ns for one in late)
    usual_ns = max(statistics.median(one.step.usual_ns for one in late), 1.0)
    first, last = int(steps[0]), int(steps[-1])
    since = first if before is None or before.since_step is None else min(first, before.since_step)
    count = f"{len(late)} step{'' if len(late) == 1 else 's'}"
    where = f"step {first}" if first == last else f"steps {first}-{last}"
    each = " each time" if len(late) > 1 else ""
    finding = Finding(
        kind=STRAGGLER,
        ranks=ranks,
        since_step=since,
        since_step_min=since,
        since_step_max=since,
        slowdown_ratio=1 + each_ns / usual_ns,
        cause=RECOMPILATION,
        pattern="intermittent",
        what=f"than usual in {count}",
        node=view.nodes[ranks[0]],
        why=describe_compilation(each_ns, each, view.samples.compiled, ranks, set(steps.tolist())),
        also=(f"{format_duration(lost_ns)} lost in {where}, all other ranks waiting",),
        suggestion=suggest(STRAGGLER, RECOMPILATION),
        run_slowdown_ratio=since_ns / max(since_ns - lost_ns, 1.0),
        evidence={
            STALLS: float(len(late)),
            "stall_ns": each_ns,
            "stalls_time_ratio": min(1.0, lost_ns / since_ns),
        },
    )
    return Candidate(remember(finding, FindingMemory(holds_while_found=True)), SingleLosses(steps, losses_ns))
