"""Notes at which source line the training thread is, a hundred times a second while a full window of a device is on.

The agent's sampler does it (`captures/thread_sampler.py`). It only walks Python frames, and calls nothing of torch or
CUDA (bench/results/line_sampler.md). Where a frame that it walks returns meanwhile, the variables of that frame end on
the sampler's thread, a walk later.

Names of files, functions and line numbers are kept, of the frames' variables only `__name__` is read.
"""

import ctypes
import os
import threading
import time
from array import array
from collections.abc import Callable
from types import FrameType
from typing import Final, NamedTuple

from rankscope.agent.captures.script_files import ScriptFiles
from rankscope.agent.captures.stacks import find_torch_folder
from rankscope.agent.captures.thread_sampler import ThreadSampler
from rankscope.measure.bounds import NAME_LENGTH_MAX
from rankscope.measure.stalls import StackFrame, describe_frame
from rankscope.measure.text import to_unicode
from rankscope.measure.units import NS_PER_MS

INTERVAL_S: Final = 0.01
"""A call is met if it lasts that long and as long as the sampler waits for a core, about 15 ms on busy ones, and if it
releases the GIL; of shorter calls a share in proportion to their length."""
WALK_NS_MAX: Final = NS_PER_MS
"""A walk that takes longer was interrupted: the time of its sample may not be the time of its line."""
SAMPLES_MAX: Final = 4096
"""Samples of a window, 48 KiB: 40 s. A window of longer steps has no lines for the rest of them."""
LINES_MAX: Final = 256
"""Different lines of a window. A step that is at more of them is not waiting at one."""
NO_LINE: Final = -1
"""The place of a sample without a line."""
FRAMES_MAX: Final = 256
"""Frames looked at, from the innermost: a recursive model may be thousands deep."""
MAIN_MODULE: Final = "__main__"
BACKWARD: Final = frozenset({"backward", "grad", "_engine_run_backward"})
"""Functions of torch.autograd that return when the whole backward has been launched, by threads of its own."""


class ScriptLine(NamedTuple):
    """A line of a script. `in_backward`: it was calling torch's backward."""

    file: str
    number: int
    function: str
    in_main: bool
    in_backward: bool

    def describe(self) -> str:
        """Return the line as text: of the script itself `train.py:24 (main)`, else with the folder."""
        text = to_unicode(describe_frame(StackFrame(self.file, self.number, self.function)))
        folder = "" if self.in_main else os.path.basename(os.path.dirname(self.file))
        return (f"{to_unicode(folder)}/{text}" if folder else text)[:NAME_LENGTH_MAX]


class WindowLines:
    """The samples of one window: `times_host_ns`, and `places` in `lines`, NO_LINE where none was found. `is_cut` is
    whether there were samples beyond the bounds, `cpu_ns` the CPU time that sampling took. `threads` are the numbers
    by which a profiler may know the thread that is sampled.

    The sampler adds to it on its own thread; it may add one more after the window's end.
    """

    interval_s = INTERVAL_S
    wants_others = False
    is_due = True

    def __init__(
        self,
        thread: int,
        threads: tuple[int, ...],
        files: ScriptFiles,
        *,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.thread = thread
        self.threads = threads
        self.is_wanted = True
        self.times_host_ns = array("q")
        self.places = array("i")
        self.is_cut = False
        self.cpu_ns = 0
        self._files = files
        self._monotonic_ns = monotonic_ns
        self._autograd = f"{find_torch_folder()}autograd/"
        self._place_of: dict[ScriptLine, int] = {}

    def add_others(self, host_ns: int, frames: dict[int, FrameType]) -> None:
        """Take nothing of other threads."""

    def add(self, host_ns: int, frame: FrameType | None) -> None:
        """Add a sample with the line that the thread was at; none where the walk was interrupted."""
        if len(self.places) >= SAMPLES_MAX:
            self.is_cut, self.is_wanted = True, False
            return
        line = self._find_line(frame)
        if self._monotonic_ns() - host_ns > WALK_NS_MAX:
            line = None
        if line is not None and line not in self._place_of and len(self._place_of) >= LINES_MAX:
            self.is_cut = True
            return
        self.times_host_ns.append(host_ns)
        self.places.append(NO_LINE if line is None else self._place_of.setdefault(line, len(self._place_of)))

    @property
    def lines(self) -> tuple[ScriptLine, ...]:
        """The lines."""
        return tuple(self._place_of)

    def _find_line(self, frame: FrameType | None) -> ScriptLine | None:
        """Return the line of the innermost frame outside of torch, this agent and Python's own library; None if there
        is none.
        """
        in_backward = False
        for _ in range(FRAMES_MAX):
            if frame is None:
                return None
            code = frame.f_code
            if self._files.is_script(code.co_filename):
                in_main = frame.f_globals.get("__name__") == MAIN_MODULE
                return ScriptLine(code.co_filename, frame.f_lineno, code.co_name, in_main, in_backward)
            in_backward |= code.co_name in BACKWARD and code.co_filename.startswith(self._autograd)
            frame = frame.f_back
        return None


class LineSampler:
    """The samples of windows. `begin` and `end` belong to the training thread."""

    def __init__(self, sampler: ThreadSampler, files: ScriptFiles) -> None:
        self._sampler = sampler
        self._files = files
        self._current: WindowLines | None = None

    def begin(self) -> None:
        """Begin to sample the calling thread. Nothing happens once sampling has ended for good, or while it pauses."""
        if self._sampler.is_usable and not self._sampler.is_paused:
            self._current = lines = WindowLines(threading.get_ident(), _find_numbers(), self._files)
            self._sampler.begin(lines)

    def end(self) -> WindowLines | None:
        """End sampling and return the samples since `begin`; None if it was not called."""
        lines, self._current = self._current, None
        if lines is not None:
            lines.is_wanted = False
        return lines


def _find_numbers() -> tuple[int, ...]:
    """Return the numbers by which Kineto may know the calling thread: that of the system, or the lower half of its
    ident, by which CUPTI does, if Kineto has not met the thread yet.
    """
    return threading.get_native_id(), ctypes.c_int32(threading.get_ident()).value
