"""Compare the stages of a pipeline: pair sends with receives, find the order of the stages, and where they wait.

The k-th message of a step from one rank to another with one tag is the k-th that the other receives; where the numbers
differ nothing is paired. A receive that found its message there takes as long as moving the bytes: the shortest of its
size on any rank. What lasts longer waited for the sender. That needs no common clock.

Messages make a pipeline if one rank sends before it receives anything, and the first message that each rank sends on
leads through all of them. Messages along this chain go forward, those against it backward; with several chunks a stage
(interleaved) the last one sends to the first.

The stages of a pipeline do different work, so their ranks are not peers. A stage that works longest makes the others
wait: it is named when it exceeds the median of the others by SLOW_STAGE_MIN. The **bubble** of a rank is its waiting
for messages, and in collectives of several stages, that computing does not hide. It is warm-up until the first backward
message of the step, drain after the last forward one, and steady in between.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import mean, median
from typing import NamedTuple

import numpy as np

from rankscope.collector.detect.finding import name_ranks
from rankscope.collector.detect.stragglers.recording import STEPS_SHARE_MIN, measure_rank
from rankscope.collector.detect.stragglers.root_cause import find_cause
from rankscope.collector.detect.view import RunView
from rankscope.collector.steps.peer_groups import Peers
from rankscope.collector.traces.rank_analysis import RankAnalysis
from rankscope.collector.traces.report import PipelineReport, TracedStage, TraceFinding
from rankscope.measure import intervals
from rankscope.measure.intervals import Intervals
from rankscope.measure.traced_messages import TracedMessage
from rankscope.measure.units import format_duration

SLOW_STAGE_MIN = 1.15
"""Stages of equal work differ by a few per cent; the first and the last one often have more by design."""

Shortest = Mapping[tuple[str, int | None], int]
"""Duration in ns of the fastest message, by operation and size."""


class Pair(NamedTuple):
    """One message: the rank and the operation that sent it, and those that received it."""

    source: int
    send: TracedMessage
    destination: int
    recv: TracedMessage


class Paired(NamedTuple):
    """The messages of all ranks. `unpaired` counts operations without a counterpart, `unknown` those of which the trace
    does not say whom they went to.
    """

    pairs: Sequence[Pair]
    unpaired: int
    unknown: int


class Chain(NamedTuple):
    """Ranks of one pipeline in the order of its stages. `is_ring`: the last sends to the first, and back."""

    ranks: tuple[int, ...]
    is_ring: bool


# -- sends and receives -----------------------------------------------------------------------------------------------


def pair_messages(by_rank: Mapping[int, Sequence[TracedMessage]]) -> Paired:
    """Return sends with their receives, by (source, destination, tag, step) and order."""
    found: dict[tuple[int, int, int | None, int | None], tuple[list[TracedMessage], list[TracedMessage]]] = defaultdict(
        lambda: ([], [])
    )
    unknown = 0
    for rank, messages in by_rank.items():
        for one in sorted(messages, key=lambda message: message.start_ns):
            if one.peer is None or one.op not in {"send", "recv"}:
                unknown += 1
            elif one.op == "send":
                found[rank, one.peer, one.tag, one.step][0].append(one)
            else:
                found[one.peer, rank, one.tag, one.step][1].append(one)
    pairs, unpaired = [], 0
    for (source, destination, _, _), (sends, recvs) in found.items():
        if len(sends) == len(recvs):
            pairs += [Pair(source, send, destination, recv) for send, recv in zip(sends, recvs, strict=True)]
        elif source in by_rank and destination in by_rank:
            unpaired += len(sends) + len(recvs)
    return Paired(pairs, unpaired, unknown)


def find_shortest(by_rank: Mapping[int, Sequence[TracedMessage]]) -> Shortest:
    """Return the duration of the fastest message of each operation and size."""
    found: dict[tuple[str, int | None], int] = {}
    for one in (message for messages in by_rank.values() for message in messages):
        key = (one.op, one.bytes)
        found[key] = min(found.get(key, one.duration_ns), one.duration_ns)
    return found


def find_message_waits(messages: Sequence[TracedMessage], shortest: Shortest, *, on_host: bool) -> Intervals:
    """Return raw intervals in which a rank waited for its peer, shape (n, 2) in ns. On a host a send returns at once:
    only receives wait.
    """
    waits = [
        (max(one.start_ns, one.blocked_from_ns), one.end_ns - shortest[one.op, one.bytes])
        for one in messages
        if not (on_host and one.op == "send")
    ]
    return np.array([wait for wait in waits if wait[1] > wait[0]], dtype=np.int64).reshape(-1, 2)


def find_excess(messages: Sequence[TracedMessage], shortest: Shortest) -> Intervals:
    """Return raw intervals (n, 2) in ns in which messages were under way longer than the fastest: no transfer."""
    longer = [(one.start_ns, one.end_ns - shortest[one.op, one.bytes]) for one in messages]
    return np.array(longer, dtype=np.int64).reshape(-1, 2)


def sum_excess(messages: Sequence[TracedMessage], shortest: Shortest, overlap: Intervals) -> int:
    """Return the ns of that in which nothing was computed."""
    return intervals.total_ns(intervals.subtract(intervals.union(find_excess(messages, shortest)), overlap))


# -- stages -----------------------------------------------------------------------------------------------------------


def find_chains(by_rank: Mapping[int, Sequence[TracedMessage]], pairs: Sequence[Pair]) -> list[Chain] | None:
    """Return the pipelines by their first rank; None when the messages are not those of a pipeline."""
    linked: dict[int, set[int]] = defaultdict(set)
    for one in pairs:
        linked[one.source].add(one.destination)
        linked[one.destination].add(one.source)
    chains = []
    remaining = set(linked)
    while remaining:
        members = _reach(min(remaining), linked)
        remaining -= members
        chain = _order_stages(members, by_rank)
        if chain is None:
            return None
        chains.append(Chain(chain, len(chain) > 2 and chain[-1] in linked[chain[0]]))  # noqa: PLR2004 - two are no ring
    return sorted(chains) if len({len(chain.ranks) for chain in chains}) == 1 else None


def _reach(first: int, linked: Mapping[int, set[int]]) -> set[int]:
    reached, waiting = {first}, [first]
    while waiting:
        found = linked[waiting.pop()] - reached
        reached |= found
        waiting += found
    return reached


def _order_stages(members: set[int], by_rank: Mapping[int, Sequence[TracedMessage]]) -> tuple[int, ...] | None:
    """Return the ranks from the one that sends first, each followed by the one to which it sends first."""
    ordered = {rank: sorted(by_rank[rank], key=lambda message: message.start_ns) for rank in members}
    starts = [rank for rank in members if ordered[rank][0].op == "send"]
    if len(starts) != 1:
        return None
    chain = [starts[0]]
    while len(chain) < len(members):
        following = next((one.peer for one in ordered[chain[-1]] if one.op == "send"), None)
        if following is None or following in chain or following not in members:
            return None
        chain.append(following)
    return tuple(chain)


class _Step(NamedTuple):
    """One step of one rank: its own work, and its bubble before the first backward message, in between, and after the
    last forward one, in ns. The three are None when the direction of messages is not known.
    """

    work_ns: int
    bubble_ns: int
    phases_ns: tuple[int, int, int] | None


def find_steps(
    one: RankAnalysis, chain: Chain, rank: int, own_ns: Mapping[int, int], bubble: Intervals
) -> dict[int, _Step]:
    """Return the steps of one rank by number."""
    by_step: dict[int | None, list[TracedMessage]] = defaultdict(list)
    for message in one.messages.values():
        by_step[message.step].append(message)
    found = {}
    for number, start_ns, end_ns in one.steps:
        mine = intervals.clip(intervals.touching(bubble, start_ns, end_ns), start_ns, end_ns)
        phases = None
        turns = _find_turns(by_step[number], chain, rank)
        if turns is not None:
            edges = (start_ns, *(min(max(turn, start_ns), end_ns) for turn in turns), end_ns)
            first, steady, last = (intervals.total_ns(intervals.clip(mine, a, b)) for a, b in pairwise(edges))
            phases = (first, steady, last)
        found[number] = _Step(own_ns[number], intervals.total_ns(mine), phases)
    return found


def is_forward(one: TracedMessage, chain: Chain, rank: int) -> bool:
    """Return whether a message of a rank goes along the chain, to the next stage or from the one before."""
    place, count = chain.ranks.index(rank), len(chain.ranks)
    following = chain.ranks[(place + 1) % count] if chain.is_ring or place + 1 < count else None
    preceding = chain.ranks[place - 1] if chain.is_ring or place else None
    return (one.op == "send" and one.peer == following) or (one.op == "recv" and one.peer == preceding)


def _find_turns(messages: Sequence[TracedMessage], chain: Chain, rank: int) -> tuple[int, int] | None:
    """Return when the first backward message began or came, and when the last forward one did."""
    forward: list[int] = []
    backward: list[int] = []
    for one in messages:
        found = forward if is_forward(one, chain, rank) else backward
        found.append(one.start_ns if one.op == "send" else one.end_ns)
    if not forward or not backward:
        return None
    first, last = sorted((min(backward), max(forward)))
    return first, last


# -- the report -------------------------------------------------------------------------------------------------------


def compare_stages(
    chains: Sequence[Chain], steps: Mapping[int, Mapping[int, _Step]], paired: Paired
) -> PipelineReport | None:
    """Return the stages of equal pipelines; None when their ranks have no step in common."""
    members = [rank for chain in chains for rank in chain.ranks]
    common = sorted(set.intersection(*(set(steps[rank]) for rank in members)))
    if not common:
        return None
    by_stage = [tuple(chain.ranks[stage] for chain in chains) for stage in range(len(chains[0].ranks))]
    # The fastest replica: what one of several is slower by is its own, not the stage's.
    work_ns = [[min(steps[rank][step].work_ns for rank in ranks) for step in common] for ranks in by_stage]
    stages = []
    for stage, ranks in enumerate(by_stage):
        others = [
            median(other[place] for number, other in enumerate(work_ns) if number != stage)
            for place in range(len(common))
        ]
        found = [steps[rank][step] for rank in ranks for step in common]
        window_ns = sum(one.work_ns + one.bubble_ns for one in found)
        phases = [one.phases_ns for one in found if one.phases_ns is not None]
        longest = sum(mine >= max(at) for mine, at in zip(work_ns[stage], zip(*work_ns, strict=True), strict=True))
        stages.append(
            TracedStage(
                stage=stage,
                ranks=list(ranks),
                work_ns=round(mean(work_ns[stage])),
                bubble_ns=round(mean(one.bubble_ns for one in found)),
                bubble_ratio=sum(one.bubble_ns for one in found) / window_ns if window_ns else None,
                warm_up_ns=_mean_phase(phases, 0),
                steady_ns=_mean_phase(phases, 1),
                drain_ns=_mean_phase(phases, 2),
                work_ratio=sum(work_ns[stage]) / max(1.0, sum(others)),
                longest_step_count=longest,
            )
        )
    worked, waited = sum(one.work_ns for one in stages), sum(one.bubble_ns for one in stages)
    return PipelineReport(
        stages=stages,
        step_count=len(common),
        message_count=len(paired.pairs),
        unpaired_count=paired.unpaired + paired.unknown,
        is_interleaved=chains[0].is_ring,
        bubble_ratio=waited / (worked + waited) if worked + waited else None,
    )


def _mean_phase(phases: Sequence[tuple[int, int, int]], place: int) -> int | None:
    return round(mean(one[place] for one in phases)) if phases else None


def find_slow_stage(report: PipelineReport, view: RunView) -> list[TraceFinding]:
    """Return a finding about the stage that holds the pipeline up; empty when the stages work equally long."""
    worst = max(report.stages, key=lambda stage: stage.work_ratio)
    if worst.work_ratio < SLOW_STAGE_MIN or worst.longest_step_count < STEPS_SHARE_MIN * report.step_count:
        return []
    others = [stage for stage in report.stages if stage.stage != worst.stage]
    more_ns = worst.work_ns - median(stage.work_ns for stage in others)
    rank, others_ranks = worst.ranks[0], tuple(other for stage in others for other in stage.ranks)
    measured = measure_rank(view, rank, Peers(others_ranks, len(others_ranks), do_same_work=False))
    slow = measured._replace(own_ns=worst.work_ns, slowdown_ratio=worst.work_ns / max(1.0, worst.work_ns - more_ns))
    cause = find_cause(slow, view.series, view.samples)
    return [
        TraceFinding(
            kind="slow_stage",
            rank=rank,
            ranks=worst.ranks,
            slowdown_ratio=worst.work_ratio,
            cause=cause.name,
            sentence=(
                f"Stage {worst.stage} of the pipeline ({name_ranks(worst.ranks)}) holds it up: it works "
                f"{worst.work_ratio:.2f} times as long as the other stages, {format_duration(more_ns)} more in a step. "
                f"Cause {cause.name}: {cause.because}."
            ),
        )
    ]
