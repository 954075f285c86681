"""Reads what torch.compile has compiled, from the record that torch itself keeps of each compilation.

torch appends one to a list of its last 64 at the end of each compilation, of a forward or of its backward. Before each
report it is looked at. Nothing is hooked: neither a compilation nor a step passes through code of ours.

A record has the wall clock and no step: so a compilation waits for the record of the first step that ends after it.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from rankscope.agent.guard import Guard
from rankscope.measure.bounds import NAME_LENGTH_MAX
from rankscope.measure.clock import Clock
from rankscope.measure.records import NO_COMPILATIONS, Compilations, CompiledFrame, CompiledStart, StepRecord
from rankscope.measure.stalls import StackFrame, describe_frame
from rankscope.measure.text import to_unicode
from rankscope.measure.units import NS_PER_S, NS_PER_US

PART: Final = "compilations"
FRAMES_MAX: Final = 64
"""Frames by step in one report, and those that wait: torch itself remembers its last 64 compilations."""
START_STEPS: Final = 16
"""Steps that count as the first ones: two or three compile, one more where a shape changes for the first time."""
LONGER_RATIO: Final = 0.1
"""Share of a step from which compilation has made it longer."""
NUMBERS_MAX: Final = 1024
"""Frames of this process whose names are kept, for their backwards."""
LIMITS: Final = ("recompile limit", "cache_size_limit", "cache_limit")
"""What torch calls its limit of recompilations where it has reached it, by version."""
_CACHES: Final = (
    "inductor_fx_local_cache",
    "inductor_fx_remote_cache",
    "aotautograd_local_cache",
    "aotautograd_remote_cache",
)
_RESUMES: Final = "torch_dynamo_resume_in_"
"""Begin of the name of what follows a graph break, `torch_dynamo_resume_in_forward_at_12`."""


class _Compiled(NamedTuple):
    """One record, by the host's clock."""

    frame: CompiledFrame
    begin_host_ns: int
    end_host_ns: int


class CompilationReader:
    """Reader of torch's records of compilations in this process. Used on the agent thread."""

    def __init__(self, clock: Clock, guard: Guard) -> None:
        self._clock, self._guard = clock, guard
        self._last: Any = None
        self._names: dict[str, str] = {}
        self._waiting: list[_Compiled] = []
        self._sum = NO_COMPILATIONS
        self._begin_host_ns: int | None = None
        self._started: set[str] = set()
        self._start_ns = 0

    def read(self, kept: Iterable[Any], steps: Sequence[StepRecord], *, last: bool) -> Compilations | None:
        """Return what `collect` does; None where torch's records are not as they are known."""
        if self._guard.is_off(PART):
            return None
        try:
            return self.collect(kept, steps, last=last)
        except Exception as error:  # noqa: BLE001 - torch's internals may change
            self._guard.record(PART, error)
            return None

    def collect(self, kept: Iterable[Any], steps: Sequence[StepRecord], *, last: bool) -> Compilations:
        """Return what was compiled so far, `frames` since the last call. `kept` are torch's records, the newest last,
        `steps` the steps that have ended since the last call. `last`: no more come.
        """
        self._waiting += map(self._read_record, self._find_new(list(kept)))
        if steps and self._begin_host_ns is None:
            self._begin_host_ns = min([steps[0].start_host_ns, *(one.begin_host_ns for one in self._waiting)])
        frames: dict[tuple[int, str], CompiledFrame] = {}
        for step in steps:
            self._add_until(step, frames)
        rest = len(self._waiting) if last else max(0, len(self._waiting) - FRAMES_MAX)
        for one in self._pop(rest):
            _add(frames, one.frame)
        found = tuple(frames.values())
        return msgspec.structs.replace(self._sum, frames=found[-FRAMES_MAX:])

    def _add_until(self, step: StepRecord, frames: dict[tuple[int, str], CompiledFrame]) -> None:
        """Add what was compiled until the end of this step."""
        ended = self._pop(sum(one.end_host_ns <= step.end_host_ns for one in self._waiting))
        for one in ended:
            _add(frames, msgspec.structs.replace(one.frame, step=step.step))
        if step.step >= START_STEPS or not ended or self._begin_host_ns is None:
            return
        compile_ns = sum(one.frame.duration_ns for one in ended)
        self._start_ns += compile_ns
        self._started.update(one.frame.frame for one in ended)
        if compile_ns >= LONGER_RATIO * step.duration_ns:
            elapsed_ns = step.end_host_ns - self._begin_host_ns
            start = CompiledStart(
                last_step=step.step,
                elapsed_ns=elapsed_ns,
                compile_ns=min(self._start_ns, elapsed_ns),
                frames=len(self._started),
            )
            self._sum = msgspec.structs.replace(self._sum, start=start)

    def _pop(self, count: int) -> list[_Compiled]:
        """Return the first ones that wait, which wait no more."""
        found, self._waiting = self._waiting[:count], self._waiting[count:]
        return found

    def _find_new(self, kept: list[Any]) -> list[Any]:
        """Return the records since the last call."""
        place = next((place for place in reversed(range(len(kept))) if kept[place] is self._last), None)
        is_unseen = place is None and self._last is not None and len(kept) >= FRAMES_MAX
        if is_unseen:
            self._sum = msgspec.structs.replace(self._sum, unseen=self._sum.unseen + 1)
        new = kept if place is None else kept[place + 1 :]
        self._last = kept[-1] if kept else None
        return new

    def _read_record(self, record: Any) -> _Compiled:
        """Return a record of torch, and count it. What a version of torch does not have is empty or 0."""
        begin_ns, end_ns = _find_times(record)
        behind_ns = self._clock.wall_ns() - self._clock.monotonic_ns()
        number, _, attempt = str(getattr(record, "compile_id", None) or "").rpartition("/")
        is_frame = bool(getattr(record, "co_name", None)) and not getattr(record, "is_runtime", False)
        is_again = is_frame and attempt.partition("_")[0] not in {"", "0"}
        if is_frame and number and len(self._names) < NUMBERS_MAX:
            self._names[number] = _name_frame(record)
        frame = CompiledFrame(
            step=-1,
            frame=_name_frame(record) if is_frame else self._names.get(number, ""),
            compiled=int(is_frame),
            recompiled=int(is_again),
            duration_ns=max(0, end_ns - begin_ns),
            reason=_clean_reason(getattr(record, "recompile_reason", None)),
            gives_up=any(
                limit in str(getattr(record, "fail_reason", None) or "")[:NAME_LENGTH_MAX] for limit in LIMITS
            ),
        )
        hits, misses = _count_caches(record, "hit"), _count_caches(record, "miss")
        seen = self._sum
        self._sum = msgspec.structs.replace(
            seen,
            compiled=seen.compiled + frame.compiled,
            recompiled=seen.recompiled + frame.recompiled,
            duration_ns=seen.duration_ns + frame.duration_ns,
            cached=seen.cached + (hits > 0 and not misses),
            uncached=seen.uncached + (misses > 0),
        )
        return _Compiled(frame, begin_ns - behind_ns, end_ns - behind_ns)


def _add(frames: dict[tuple[int, str], CompiledFrame], one: CompiledFrame) -> None:
    known = frames.pop((one.step, one.frame), None)
    if known is not None:
        one = CompiledFrame(
            step=one.step,
            frame=one.frame,
            compiled=known.compiled + one.compiled,
            recompiled=known.recompiled + one.recompiled,
            duration_ns=known.duration_ns + one.duration_ns,
            reason=one.reason or known.reason,
            gives_up=one.gives_up or known.gives_up,
        )
    frames[one.step, one.frame] = one


def _find_times(record: Any) -> tuple[int, int]:
    """Return begin and end of a compilation by the wall clock, in ns; equal where torch does not tell for how long it
    was.
    """
    begin_us, end_us = getattr(record, "start_time_us", None), getattr(record, "end_time_us", None)
    begin_ns = int(begin_us) * NS_PER_US if begin_us else int((getattr(record, "start_time", None) or 0) * NS_PER_S)
    lasted_ns = int((getattr(record, "entire_frame_compile_time_s", None) or 0) * NS_PER_S)
    return begin_ns, int(end_us) * NS_PER_US if end_us else begin_ns + lasted_ns


def _name_frame(record: Any) -> str:
    """Return a frame as text for users. What follows a graph break is named by the function and line of the break."""
    name, line = str(record.co_name), getattr(record, "co_firstlineno", None) or 0
    if name.startswith(_RESUMES):
        function, _, at = name.removeprefix(_RESUMES).rpartition("_at_")
        name, line = (
            (function, int(at.partition("_")[0])) if function and at.partition("_")[0].isdigit() else (name, line)
        )
    frame = StackFrame(str(getattr(record, "co_filename", None) or ""), line, name)
    return to_unicode(describe_frame(frame))[:NAME_LENGTH_MAX]


def _clean_reason(text: str | None) -> str:
    """Return the guard that failed: the first line, without torch's number of the guard and the source behind it.

    >>> _clean_reason("0/1: tensor 'x' size mismatch at index 0. expected 4, actual 5")
    "tensor 'x' size mismatch at index 0. expected 4, actual 5"
    >>> _clean_reason("0/0: k == 4      # return s.l(x).sum()*k  # ct.py:9 in forward")
    'k == 4'
    """
    line = next(iter((text or "").strip().splitlines()), "").partition("  #")[0].strip()
    number, _, guard = line.partition(": ")
    is_numbered = "/" in number and number.replace("/", "").replace("_", "").isdigit()
    return to_unicode(guard.strip() if is_numbered else line)[:NAME_LENGTH_MAX]


def _count_caches(record: Any, what: str) -> int:
    return sum(getattr(record, f"{cache}_{what}_count", None) or 0 for cache in _CACHES)
