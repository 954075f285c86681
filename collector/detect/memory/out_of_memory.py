"""State which ranks ran out of GPU memory, what they held, and what would help.

The notices come from the ranks (`measure/out_of_memory.py`), made within the failing allocation. Scripts may catch the
error and go on, so a notice is no end of a rank. What would help follows from the bytes, in this order:

| cause | for the rank that failed first |
|---|---|
| `fragmentation` | torch had at least as much reserved and unused as was asked for, in pieces that were too small |
| `other_memory` | a tenth of the device, and what was asked for, is in use outside of torch's allocator |
| `memory_imbalance` | it needed at least 1.25 times the memory of the median of the other ranks |
| `memory_full` | the other ranks need as much, or there is no other: the training does not fit |
| `unattributed` | the bytes are not known, or no other rank's are |

What another rank needs is its peak so far; of one that has failed too, what it held and asked for.

A finding is open for 5 minutes after the last error, and until a step has ended since.
"""

import statistics
from collections.abc import Sequence
from typing import Final, NamedTuple

from rankscope.collector.detect.finding import Abstain, Finding
from rankscope.collector.detect.memory.headroom import find_device_headroom
from rankscope.collector.detect.suggestions import suggest
from rankscope.collector.detect.view import Candidate, OutOfMemorySeen, RunView
from rankscope.measure.out_of_memory import OutOfMemory
from rankscope.measure.stalls import describe_frame, find_script_frame
from rankscope.measure.units import NS_PER_S, format_bytes

OUT_OF_MEMORY: Final = "out_of_memory"
FRAGMENTATION: Final = "fragmentation"
OTHER_MEMORY: Final = "other_memory"
IMBALANCE: Final = "memory_imbalance"
FULL: Final = "memory_full"
UNATTRIBUTED: Final = "unattributed"

QUIET_NS: Final = 300 * NS_PER_S
"""A script that catches the error and tries again does so within seconds, or with its next epoch's largest batch."""
OTHER_RATIO_MIN: Final = 0.1
"""Share of the device in use outside of torch's allocator. A CUDA context, NCCL's buffers and cuBLAS's workspaces take
2 to 5 GiB of 80 with eight ranks a node."""
IMBALANCE_RATIO_MIN: Final = 1.25
"""Ratio to the median of the other ranks. The stages of a pipeline and the rank that saves checkpoints differ by a
tenth or two in trainings that fit."""


class _Failed(NamedTuple):
    """A rank with its last error, and the first one, of which more was read: what the memory was for."""

    rank: int
    seen: OutOfMemorySeen
    read: OutOfMemory

    @property
    def notice(self) -> OutOfMemory:
        return self.seen.notice

    @property
    def snapshot(self) -> str:
        """The path of its snapshot, that of the first error if it has one; empty without."""
        return self.read.snapshot or self.notice.snapshot


class _Others(NamedTuple):
    """The other ranks: how many, the median of what they have needed at most, and the least headroom with its rank."""

    rank_count: int
    needed_bytes: float | None
    headroom: tuple[int, int] | None


class OutOfMemoryErrors:
    """The detector of ranks that ran out of GPU memory."""

    kinds = frozenset({OUT_OF_MEMORY})

    def find(self, view: RunView, _explained: Sequence[Finding]) -> Sequence[Candidate] | Abstain:
        """Return at most one finding, about all ranks that ran out of memory lately."""
        failed = _find_failed(view)
        return [Candidate(_describe(view, failed))] if failed else []

    def has_passed(self, _view: RunView, _finding: Finding, _explained: Sequence[Finding]) -> bool | Abstain:
        """Return True: an open finding is found again for as long as it holds."""
        return True


def _find_failed(view: RunView) -> list[_Failed]:
    """Return the ranks whose last error is not over, in the order in which their errors came."""
    last_step = int(view.series.steps[-1]) if len(view.series.steps) else -1
    found = []
    for rank, errors in view.samples.memory_errors.items():
        if errors and not _is_over(errors[-1], view.now_collector_ns, last_step):
            found.append(_Failed(rank, errors[-1], errors[0].notice))
    return sorted(found, key=lambda one: (one.seen.seen_collector_ns, one.rank))


def _is_over(seen: OutOfMemorySeen, now_collector_ns: int, last_step: int) -> bool:
    after_step = -1 if seen.after_step is None else seen.after_step
    return now_collector_ns - seen.seen_collector_ns >= QUIET_NS and last_step > after_step


def _describe(view: RunView, failed: Sequence[_Failed]) -> Finding:
    first = failed[0]
    others = _read_others(view, failed)
    cause = find_cause(first.notice, others.needed_bytes, is_alone=not others.rank_count)
    node = view.nodes.get(first.rank, "")
    beside = (
        describe_bytes(first.notice),
        _describe_kinds(first),
        _describe_held(first.read),
        _describe_room(others),
        _describe_file(first, node),
    )
    return Finding(
        kind=OUT_OF_MEMORY,
        ranks=tuple(sorted(one.rank for one in failed)),
        since_step=first.notice.step,
        cause=cause,
        what=_describe_what(failed),
        node=node if len(failed) == 1 else "",
        why=_describe_cause(first.notice, cause, others),
        also=tuple(text for texts in beside for text in texts),
        suggestion=suggest(OUT_OF_MEMORY, cause),
        evidence=_collect_evidence(first, others),
        details=_collect_details(first),
    )


def find_cause(notice: OutOfMemory, others_needed_bytes: float | None, *, is_alone: bool = False) -> str:
    """Return why the memory was not enough. `others_needed_bytes` is the median of what the other ranks have needed at
    most, None where that is not known; `is_alone`: there are none.

    >>> GIB = 2**30
    >>> held = {"allocated_bytes": 60 * GIB, "reserved_bytes": 74 * GIB, "free_bytes": GIB, "limit_bytes": 80 * GIB}
    >>> asked = OutOfMemory(number=1, host_ns=0, asked_bytes=2 * GIB, **held)
    >>> find_cause(asked, None)
    'fragmentation'
    """
    unused, other = find_unused_bytes(notice), find_other_bytes(notice)
    if unused is not None and unused >= notice.asked_bytes:
        return FRAGMENTATION
    if other is not None and other >= max(notice.asked_bytes, OTHER_RATIO_MIN * (notice.limit_bytes or 0)):
        return OTHER_MEMORY
    if notice.allocated_bytes is not None and is_alone:
        return FULL
    if notice.allocated_bytes is None or not others_needed_bytes:
        return UNATTRIBUTED
    needed = notice.allocated_bytes + notice.asked_bytes
    return IMBALANCE if needed >= IMBALANCE_RATIO_MIN * others_needed_bytes else FULL


def find_unused_bytes(notice: OutOfMemory) -> int | None:
    """Return what torch had reserved and no tensor used; None where that is not known.

    >>> find_unused_bytes(OutOfMemory(number=1, host_ns=0, allocated_bytes=60, reserved_bytes=75))
    15
    """
    if notice.reserved_bytes is None or notice.allocated_bytes is None:
        return None
    return max(0, notice.reserved_bytes - notice.allocated_bytes)


def find_other_tensors_bytes(notice: OutOfMemory) -> int | None:
    """Return what tensors used beside parameters, gradients and optimizer state: activations, and all else; None where
    that is not known.

    >>> kinds = {"parameters_bytes": 10, "gradients_bytes": 10, "optimizer_state_bytes": 20}
    >>> find_other_tensors_bytes(OutOfMemory(number=1, host_ns=0, allocated_bytes=60, **kinds))
    20
    """
    kinds = (notice.parameters_bytes, notice.gradients_bytes, notice.optimizer_state_bytes)
    known = [one for one in kinds if one is not None]
    if notice.allocated_bytes is None or len(known) < len(kinds):
        return None
    return max(0, notice.allocated_bytes - sum(known))


def find_other_bytes(notice: OutOfMemory) -> int | None:
    """Return the device's memory in use outside of torch's allocator, in bytes, at least 0; None where not known. Where
    the script has limited torch to a part of the device, what is outside of that part does not count.

    >>> find_other_bytes(OutOfMemory(number=1, host_ns=0, limit_bytes=80, free_bytes=5, reserved_bytes=60))
    15
    """
    if notice.limit_bytes is None or notice.free_bytes is None or notice.reserved_bytes is None:
        return None
    return max(0, notice.limit_bytes - notice.free_bytes - notice.reserved_bytes)


def _read_others(view: RunView, failed: Sequence[_Failed]) -> _Others:
    """Read what the ranks other than the first that failed have needed, and what those that have not failed have left.
    Ranks that failed too reached what they held and asked for: where all fail, as where a batch is too large, these are
    all that is known.
    """
    notices = {one.rank: one.notice for one in failed}
    needed = [
        notice.allocated_bytes + notice.asked_bytes
        for rank, notice in notices.items()
        if rank != failed[0].rank and notice.allocated_bytes is not None
    ]
    rooms: list[tuple[int, int]] = []
    for rank in view.series.ranks:
        if rank in notices:
            continue
        counts = view.samples.allocators.get(rank, ())
        allocator = counts[-1].sample if counts else None
        if allocator is not None and allocator.allocated_peak_bytes is not None:
            needed.append(allocator.allocated_peak_bytes)
        devices = view.samples.devices.get(rank, ())
        room = find_device_headroom(devices[0] if devices else None, allocator)
        if room is not None:
            rooms.append((room, rank))
    count = len({*view.series.ranks, *notices}) - 1
    return _Others(count, statistics.median(needed) if needed else None, min(rooms, default=None))


def _describe_what(failed: Sequence[_Failed]) -> str:
    first = failed[0]
    of_first = f", first on rank {first.rank}" if len(failed) > 1 else ""
    times = f", error {first.notice.number} of its process" if first.notice.number > 1 else ""
    return f"out of GPU memory{of_first}{describe_place(first.notice)}{times}"


def describe_place(notice: OutOfMemory) -> str:
    """Return in which step and phase it was.

    >>> describe_place(OutOfMemory(number=1, host_ns=0, step=7, phase="backward"))
    ' in step 7 (backward)'
    """
    if notice.step is None:
        return ""
    return f" in step {notice.step}{f' ({notice.phase})' if notice.phase else ''}"


def describe_bytes(notice: OutOfMemory) -> tuple[str, ...]:
    """Return what was asked for, and what there was, a sentence each.

    >>> describe_bytes(OutOfMemory(number=1, host_ns=0, asked_bytes=2**31, free_bytes=2**30))
    ('2.0 GiB asked for, 1.0 GiB of the device free',)
    """
    free = "" if notice.free_bytes is None else f", {format_bytes(notice.free_bytes)} of the device free"
    text = f"{format_bytes(notice.asked_bytes)} asked for{free}"
    if notice.allocated_bytes is None or notice.reserved_bytes is None:
        return (text,)
    held = f"{format_bytes(notice.reserved_bytes)} reserved by torch, {format_bytes(notice.allocated_bytes)} of it"
    return text, f"{held} in use by tensors"


def _describe_kinds(failed: _Failed) -> tuple[str, ...]:
    """Return what tensors were for, where that was read, which is at the first error of a process."""
    read = failed.read
    if read.parameters_bytes is None:
        return ()
    kinds = (read.parameters_bytes, read.gradients_bytes, read.optimizer_state_bytes, find_other_tensors_bytes(read))
    begin = "" if read.number == failed.notice.number else "at its first error "
    names = (f"{begin}parameters", "gradients", "optimizer state", "activations and all else")
    known = [f"{name} {format_bytes(size)}" for name, size in zip(names, kinds, strict=True) if size is not None]
    return (", ".join(known),)


def _describe_cause(notice: OutOfMemory, cause: str, others: _Others) -> str:
    needed = format_bytes(others.needed_bytes or 0)
    here = format_bytes((notice.allocated_bytes or 0) + notice.asked_bytes)
    other = format_bytes(find_other_bytes(notice) or 0)
    return {
        FRAGMENTATION: (
            "enough memory reserved and unused, but in no usable piece: too small, of another stream, or of a "
            f"CUDA graph{_describe_largest(notice)}"
        ),
        OTHER_MEMORY: f"{other} of the device in use outside of torch's allocator",
        IMBALANCE: f"{here} needed with this allocation, {needed} at most on half of the other ranks so far",
        FULL: f"{here} needed with this allocation"
        + (f"; median of the other ranks so far {needed}" if others.rank_count else ""),
    }.get(cause, "")


def _describe_largest(notice: OutOfMemory) -> str:
    """Return what would have fitted, in brackets; empty where that is not known."""
    largest = notice.largest_free_bytes
    return "" if largest is None else f" (the largest piece {format_bytes(largest)})"


def _describe_held(notice: OutOfMemory) -> tuple[str, ...]:
    """Return what holds most, where torch has recorded it."""
    lines = _list_held(notice)
    return (f"largest: {lines[0]}",) if lines else ()


def _describe_file(failed: _Failed, node: str) -> tuple[str, ...]:
    """Return where the snapshot is."""
    return (f"memory snapshot{node and f' on {node}'}: {failed.snapshot}",) if failed.snapshot else ()


def _describe_room(others: _Others) -> tuple[str, ...]:
    if others.headroom is None:
        return ()
    room, rank = others.headroom
    return (f"least left on another rank: {format_bytes(room)} on rank {rank}",)


def _collect_evidence(failed: _Failed, others: _Others) -> dict[str, float]:
    notice, read = failed.notice, failed.read
    known = {
        "asked_bytes": notice.asked_bytes,
        "free_bytes": notice.free_bytes,
        "limit_bytes": notice.limit_bytes,
        "allocated_bytes": notice.allocated_bytes,
        "reserved_bytes": notice.reserved_bytes,
        "unused_bytes": find_unused_bytes(notice),
        "inactive_split_bytes": notice.inactive_split_bytes,
        "largest_free_bytes": notice.largest_free_bytes,
        "other_bytes": find_other_bytes(notice),
        "parameters_bytes": read.parameters_bytes,
        "gradients_bytes": read.gradients_bytes,
        "optimizer_state_bytes": read.optimizer_state_bytes,
        "other_tensors_bytes": find_other_tensors_bytes(read),
        "errors": notice.number,
        "others_needed_bytes_median": others.needed_bytes,
        "others_headroom_bytes_min": None if others.headroom is None else others.headroom[0],
    }
    return {name: float(value) for name, value in known.items() if value is not None}


def _collect_details(failed: _Failed) -> dict[str, str]:
    """Return what held the most memory, by line of the script, where torch has recorded it, and the snapshot."""
    known = {"held": "; ".join(_list_held(failed.read)), "snapshot": failed.snapshot}
    return {name: text for name, text in known.items() if text}


def _list_held(notice: OutOfMemory) -> list[str]:
    lines = []
    for held in notice.held:
        frame = find_script_frame(held.frames) or (held.frames[0] if held.frames else None)
        where = "a place that torch did not record" if frame is None else describe_frame(frame)
        blocks = f"{held.blocks:,} block{'' if held.blocks == 1 else 's'}"
        lines.append(f"{format_bytes(held.bytes)} in {blocks}, {where}{held.module and f', {held.module}'}")
    return lines
