"""Divide one step of each stage of a pipeline into forward, backward and bubble, for the picture of it.

Between two moments, the end of a receive or the start of a send, a stage works in the direction that the messages show:
what is sent next was computed before, what was received before is computed after. Where they say both (the first stage
computes a backward and the next forward, the last one a forward and its backward), the ranges of autograd's engine
decide if they were recorded, else the piece is `either`. What messages do not show is `other`: weight gradients of
zero-bubble schedules, the optimizer, moving the messages. The bubble is that of the table of stages.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from rankscope.collector.traces.pipeline import Chain, is_forward
from rankscope.collector.traces.report import PipelineLane, PipelinePicture, PipelineSegment
from rankscope.measure import intervals
from rankscope.measure.intervals import Intervals
from rankscope.measure.traced_messages import TracedMessage

LANES_MAX = 32
"""Ranks of several pipelines, as many whole ones as fit."""
STAGES_MAX = 64
"""Ranks of one pipeline that has more stages than LANES_MAX."""
SEGMENTS_MAX = 1_000
"""Pieces of one rank's step: about 100 kB of page. Schedules in use have some hundred."""
KINDS = ("forward", "backward", "either", "bubble", "other")


class StageStep(NamedTuple):
    """One step of one rank, in times of its host's clock: its messages, its bubble, and when autograd's engine worked
    or what it launched ran (empty where that was not recorded).
    """

    start_ns: int
    end_ns: int
    messages: Sequence[TracedMessage]
    bubble: Intervals
    backward: Intervals


def draw_pipeline(
    chains: Sequence[Chain], steps: Mapping[int, Mapping[int, StageStep]], shifts_ns: Mapping[int, int] | None
) -> PipelinePicture | None:
    """Return the slowest step that all stages have, None without one. `steps` are by rank and number; `shifts_ns` has
    by rank what its host's clock is ahead of that of all, None where that is not known: then each rank begins at 0.
    """
    members = [(stage, rank) for chain in chains for stage, rank in enumerate(chain.ranks)]
    common = set.intersection(*(set(steps[rank]) for _, rank in members))
    if not common:
        return None
    number = max(common, key=lambda step: (max(_length(steps[rank][step]) for _, rank in members), -step))
    chain_of = {rank: chain for chain in chains for rank in chain.ranks}
    # Whole pipelines, by stage and within it by replica: equal stages lie beside each other.
    kept = chains[: max(1, LANES_MAX // len(chains[0].ranks))]
    drawn = [(stage, chain.ranks[stage]) for stage in range(len(kept[0].ranks)) for chain in kept][:STAGES_MAX]
    begins_ns = {
        rank: steps[rank][number].start_ns - shifts_ns[rank] if shifts_ns is not None else 0 for _, rank in drawn
    }
    first_ns = min(begins_ns.values())
    lanes = []
    for stage, rank in drawn:
        one = steps[rank][number]
        segments = divide_step(one, chain_of[rank], rank)
        lanes.append(
            PipelineLane(
                stage=stage,
                rank=rank,
                start_ns=begins_ns[rank] - first_ns,
                window_ns=_length(one),
                segments=segments[:SEGMENTS_MAX],
                left_out_count=max(len(segments) - SEGMENTS_MAX, 0),
            )
        )
    return PipelinePicture(step=number, is_aligned=shifts_ns is not None, rank_count=len(members), lanes=lanes)


def _length(one: StageStep) -> int:
    return one.end_ns - one.start_ns


# -- one step ---------------------------------------------------------------------------------------------------------


def divide_step(one: StageStep, chain: Chain, rank: int) -> list[PipelineSegment]:
    """Return the pieces of a step in order; they sum to it."""
    bubble = intervals.clip(intervals.touching(one.bubble, one.start_ns, one.end_ns), one.start_ns, one.end_ns)
    found = [(int(start_ns), int(end_ns), "bubble") for start_ns, end_ns in bubble]
    for start_ns, end_ns, kind in _find_stretches(one, chain, rank):
        work = intervals.subtract(np.array([[start_ns, end_ns]], dtype=np.int64), bubble)
        found += [(int(a), int(b), kind) for a, b in work]
    return _join(sorted(found), one.start_ns)


def _join(pieces: Sequence[tuple[int, int, str]], zero_ns: int) -> list[PipelineSegment]:
    """Return the pieces from the start of the step, with neighbors of one kind as one."""
    joined: list[tuple[int, int, str]] = []
    for start_ns, end_ns, kind in pieces:
        if joined and joined[-1][1:] == (start_ns, kind):
            start_ns = joined.pop()[0]  # noqa: PLW2901 - the piece, longer
        joined.append((start_ns, end_ns, kind))
    return [PipelineSegment(kind=kind, start_ns=a - zero_ns, length_ns=b - a) for a, b, kind in joined]


class _Moment(NamedTuple):
    """End of a receive or start of a send; `op` is empty at the edges of a step."""

    time_ns: int
    op: str
    is_forward: bool


def _find_stretches(one: StageStep, chain: Chain, rank: int) -> list[tuple[int, int, str]]:
    """Return start, end and kind of each stretch between two moments; those of no length are left out."""
    moments = sorted(
        _Moment(
            min(max(message.start_ns if message.op == "send" else message.end_ns, one.start_ns), one.end_ns),
            message.op,
            is_forward(message, chain, rank),
        )
        for message in one.messages
    )
    edges = [_Moment(one.start_ns, "", False), *moments, _Moment(one.end_ns, "", False)]  # noqa: FBT003 - no direction
    return [piece for before, after in pairwise(edges) for piece in _divide_stretch(before, after, one.backward)]


def _divide_stretch(before: _Moment, after: _Moment, backward: Intervals) -> list[tuple[int, int, str]]:
    kind = _find_kind(before, after)
    mine = intervals.clip(intervals.touching(backward, before.time_ns, after.time_ns), before.time_ns, after.time_ns)
    is_last = kind == "backward" and not after.op
    if not len(mine) or not (kind == "either" or is_last):
        edges, kinds = [before.time_ns, after.time_ns], [kind]
    else:
        outside = "other" if is_last else "forward"
        edges = [before.time_ns, int(mine[0, 0]), int(mine[-1, 1]), after.time_ns]
        kinds = [outside, "backward", outside]
    return [(a, b, name) for (a, b), name in zip(pairwise(edges), kinds, strict=True) if a < b]


def _find_kind(before: _Moment, after: _Moment) -> str:
    """Return the kind of the work between two moments."""
    came = before.op == "recv"
    if after.op == "send":
        if came and before.is_forward != after.is_forward:
            return "either"
        return "forward" if after.is_forward else "backward"
    if came:
        return "forward" if before.is_forward else "backward"
    return "other"
