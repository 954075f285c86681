"""Keep what torch.compile has cost a run: its first steps, and each frame by what was compiled of it again. Pure."""

from typing import Final

import msgspec

from rankscope.collector.detect.stragglers.recompilation import describe_guard
from rankscope.collector.invariants import require
from rankscope.measure.bounds import to_count
from rankscope.measure.records import Compilations, CompiledFrame, CompiledStart
from rankscope.measure.units import format_duration

GIVEN_UP_SHOWN: Final = 3
FRAMES_KEPT_MAX: Final = 64
"""Frames of a run, all ranks together: the same script compiles the same ones on all of them."""


class CompiledTotals(msgspec.Struct, frozen=True, kw_only=True):
    """What was compiled of one frame on all ranks together, `again_ns` of the time in steps in which it was compiled
    again. `longest_ns` is the most that one rank has compiled of it
    in one step, which `longest_rank` did in `longest_step`. The rest is as in CompiledFrame, `reason` the last.
    """

    frame: str
    compiled: int = 0
    recompiled: int = 0
    duration_ns: int = 0
    again_ns: int = 0
    longest_ns: int = 0
    longest_rank: int = 0
    longest_step: int = -1
    reason: str = ""
    gives_up: bool = False


class RunCompilations(msgspec.Struct, frozen=True, kw_only=True):
    """What was compiled in a run. `start`: the first steps of the rank that spent the most on it, which is `rank`; None
    before any. `frames`: those with the most time first; `left_out`: compilations of frames beyond FRAMES_KEPT_MAX.
    """

    start: CompiledStart | None = None
    rank: int = 0
    frames: tuple[CompiledTotals, ...] = ()
    left_out: int = 0

    def add(self, rank: int, seen: Compilations) -> "RunCompilations":
        """Return it with what a report of a rank has of compilations."""
        start, of_rank = self.start, self.rank
        if seen.start is not None and (start is None or rank == of_rank or seen.start.compile_ns > start.compile_ns):
            start, of_rank = seen.start, rank
        if start is self.start and not seen.frames:
            return self
        frames, left_out = {one.frame: one for one in self.frames}, self.left_out
        for one in seen.frames:
            known = frames.get(one.frame)
            if known is None and len(frames) >= FRAMES_KEPT_MAX:
                left_out += one.compiled
                continue
            frames[one.frame] = _add(known or CompiledTotals(frame=one.frame), rank, one)
        ordered = tuple(sorted(frames.values(), key=lambda one: (-one.duration_ns, one.frame)))
        return RunCompilations(start=start, rank=of_rank, frames=ordered, left_out=to_count(left_out))

    def validate(self) -> None:
        """Raise InvariantError where an invariant does not hold; tests call it after events."""
        names = [one.frame for one in self.frames]
        require(len(set(names)) == len(names) <= FRAMES_KEPT_MAX, "frames are there twice, or too many")


def _add(known: CompiledTotals, rank: int, one: CompiledFrame) -> CompiledTotals:
    is_longest = one.duration_ns > known.longest_ns
    return CompiledTotals(
        frame=known.frame,
        compiled=to_count(known.compiled + one.compiled),
        recompiled=to_count(known.recompiled + one.recompiled),
        duration_ns=to_count(known.duration_ns + one.duration_ns),
        again_ns=to_count(known.again_ns + (one.duration_ns if one.recompiled else 0)),
        longest_ns=one.duration_ns if is_longest else known.longest_ns,
        longest_rank=rank if is_longest else known.longest_rank,
        longest_step=one.step if is_longest else known.longest_step,
        reason=one.reason or known.reason,
        gives_up=one.gives_up or known.gives_up,
    )


NOTHING_COMPILED: Final = RunCompilations()


def describe_compilations(seen: RunCompilations) -> list[str]:
    """Return what compilation has cost: in the first steps, again, and which frames torch has given up; a text each,
    none of what has not been.

    >>> start = CompiledStart(last_step=3, elapsed_ns=51_000_000_000, compile_ns=38_000_000_000, frames=9)
    >>> frame = CompiledTotals(frame="train.py:24 (forward)", recompiled=7, again_ns=1_200_000_000, reason="k == 4")
    >>> for text in describe_compilations(RunCompilations(start=start, rank=5, frames=(frame,))):
    ...     print(text)
    38.0 s of the 51.0 s until the end of step 3 on rank 5: 9 frames
    again 7 times on all ranks together, 1.2 s: most for train.py:24 (forward), the guard k == 4 failed
    """
    texts = []
    if seen.start is not None:
        spent, elapsed = format_duration(seen.start.compile_ns), format_duration(seen.start.elapsed_ns)
        frames = f"{seen.start.frames} frame{'' if seen.start.frames == 1 else 's'}"
        texts.append(
            f"{spent} of the {elapsed} until the end of step {seen.start.last_step} on rank {seen.rank}: {frames}"
        )
    again = max(seen.frames, key=lambda one: one.again_ns, default=None)
    if again is not None and again.recompiled:
        count, spent_ns = (
            sum(values) for values in zip(*((o.recompiled, o.again_ns) for o in seen.frames), strict=True)
        )
        times = "once" if count == 1 else f"{count:,} times on all ranks together"
        why = f", {describe_guard(again.reason)}" if again.reason else ""
        texts.append(f"again {times}, {format_duration(spent_ns)}: most for {again.frame}{why}")
    given_up = [one.frame for one in seen.frames if one.gives_up and one.frame]
    if given_up:
        texts.append(f"torch has reached its limit, and runs {', '.join(given_up[:GIVEN_UP_SHOWN])} uncompiled")
    return texts
