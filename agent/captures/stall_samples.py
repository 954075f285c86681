"""Samples the main thread's stack and wake-ups and the CPU time of a rank without hook events: whether it works or
stands still.

A sample takes 80 us on the agent thread, 10 to 20 of them with the GIL held. It is taken once per report in which
nothing has happened for half the limit of a stall, so a training rank is not sampled.
"""

import contextlib
import itertools
import time
from collections import deque
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Final, NamedTuple

from rankscope.agent.captures.stacks import find_main_frame, find_torch_folder, read_frames, shorten_frame
from rankscope.measure.own_files import is_own_file
from rankscope.measure.stalls import StackFrame, StallSamples, find_script_frame

SAMPLES_MAX: Final = 64
STATUS: Final = "/proc/self/status"
STATUS_BYTES_MAX: Final = 8192
SLEEPS: Final = b"\nvoluntary_ctxt_switches:"
DEPTH_MAX: Final = 256
"""Innermost frames that are compared. Scripts that recurse deeper have no frame in common."""


class _Sample(NamedTuple):
    """The frames of the main thread, outermost first, the CPU time of the process so far, and how often its main thread
    has slept; None where that is not counted.
    """

    at_ns: int
    cpu_ns: int
    frames: tuple[StackFrame, ...]
    sleeps: int | None


def read_main_stack(read_frames: Callable[[], Mapping[int, FrameType]] = read_frames) -> tuple[StackFrame, ...]:
    """Return the frames of the main thread, outermost first, without those of the agent."""
    frame = find_main_frame(read_frames())
    frames: list[StackFrame] = []
    while frame is not None and len(frames) < DEPTH_MAX:
        if not is_own_file(frame.f_code.co_filename):
            frames.append(StackFrame(frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name))
        frame = frame.f_back
    return tuple(reversed(frames))


def read_process_cpu_ns() -> int:
    """Return the CPU time of this process without that of the calling thread, which is the agent's."""
    return time.process_time_ns() - time.thread_time_ns()


def find_sleeps(path: str = STATUS) -> int | None:
    """Return how often the main thread of this process has given up its core to wait; None where the kernel does not
    count it: then the file or its line is missing, or the number is 0.
    """
    with contextlib.suppress(OSError, ValueError, IndexError), open(path, "rb") as file:
        return int(file.read(STATUS_BYTES_MAX).partition(SLEEPS)[2].split(None, 1)[0]) or None
    return None


class StallSampler:
    """The samples of the present stall, or of what may become one. Used on the agent thread."""

    def __init__(
        self,
        read_stack: Callable[[], tuple[StackFrame, ...]] = read_main_stack,
        read_cpu_ns: Callable[[], int] = read_process_cpu_ns,
        find_sleeps: Callable[[], int | None] = find_sleeps,
    ) -> None:
        self._read_stack = read_stack
        self._read_cpu_ns = read_cpu_ns
        self._find_sleeps = find_sleeps
        self._samples: deque[_Sample] = deque(maxlen=SAMPLES_MAX)

    @property
    def count(self) -> int:
        """Return the number of samples kept."""
        return len(self._samples)

    def clear(self) -> None:
        """Forget all samples: something has happened."""
        self._samples.clear()

    def add(self, now_ns: int, window_ns: int) -> None:
        """Take a sample, and forget those older than the window."""
        while self._samples and now_ns - self._samples[0].at_ns > window_ns:
            self._samples.popleft()
        self._samples.append(_Sample(now_ns, self._read_cpu_ns(), self._read_stack(), self._find_sleeps()))

    def summarize(self) -> StallSamples | None:
        """Return what the samples show; None without any."""
        if not self._samples:
            return None
        samples = list(self._samples)
        slept_before, slept = samples[0].sleeps, samples[-1].sleeps
        changes = sum(before.frames != after.frames for before, after in itertools.pairwise(samples))
        return StallSamples(
            count=len(samples),
            span_ns=samples[-1].at_ns - samples[0].at_ns,
            changes=changes,
            cpu_ns=samples[-1].cpu_ns - samples[0].cpu_ns,
            frame=_find_common_frame([one.frames for one in samples]),
            wakes=None if slept_before is None or slept is None else slept - slept_before,
        )


def _find_common_frame(stacks: list[tuple[StackFrame, ...]]) -> StackFrame | None:
    """Return the innermost call of the script that is in all stacks, at its line in the last one; None if none is."""
    common: list[StackFrame] = []
    for frames in zip(*stacks, strict=False):
        if len({(frame.file, frame.function) for frame in frames}) > 1:
            break
        common.append(frames[-1])
    torch_folder = find_torch_folder()
    return find_script_frame([shorten_frame(frame, torch_folder) for frame in reversed(common)])
