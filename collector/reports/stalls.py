"""Describe in one sentence what a stalled rank is blocked in."""

from collections.abc import Sequence

from rankscope.collector.runs.snapshot import RankSnapshot
from rankscope.measure.messages import RankUnresponsive
from rankscope.measure.stalls import PendingCollective, Stall, describe_frame, find_script_frame
from rankscope.measure.units import format_duration

STATES = {"D": "waits for a device", "T": "is stopped", "t": "is being traced", "R": "runs", "S": "sleeps"}
"""Thread states by the kernel's letter."""


def describe_stall(rank: RankSnapshot) -> str | None:
    """Return the sentence, or None for a rank that is not stalled.

    The sidecar's report comes first: it is newer than the last report of a rank that does not answer.
    """
    if not rank.stalled:
        return None
    who = f"rank {rank.identity.rank} ({rank.identity.node})"
    if rank.unresponsive is not None:
        return f"{who} does not answer: {_describe_unresponsive(rank.unresponsive)}"
    return f"{who} is stalled" if rank.stall is None else f"{who} is stalled in {_describe(rank.stall)}"


def _describe(stall: Stall) -> str:
    frames = stall.stacks[0].frames if stall.stacks else ()
    frame = find_script_frame(frames)
    place = "" if frame is None else f" at {describe_frame(frame)}"
    return f"{stall.activity}{place}{_describe_pending(stall.pending)}"


def _describe_pending(pending: Sequence[PendingCollective]) -> str:
    if not pending:
        return ", no collective is pending"
    oldest = pending[0]
    size = "" if oldest.bytes is None else f", {oldest.bytes} bytes"
    more = "" if len(pending) == 1 else f" and {len(pending) - 1} more"
    return (
        f", pending for {format_duration(oldest.age_ns)}: {oldest.op} {oldest.sequence} of {oldest.group}{size}{more}"
    )


def _describe_unresponsive(found: RankUnresponsive) -> str:
    state = STATES.get(found.state, f"is in state {found.state}" if found.state else "is gone")
    channel = found.threads[0].wait_channel if found.threads else None
    inside = f" in {channel}" if channel else ""
    return f"its main thread {state}{inside}, its interpreter does not run{_describe_pending(found.pending)}"
