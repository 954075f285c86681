"""Notes at which source line the training thread is, a hundred times a second while a full window of a device is on.

A thread of its own does it, which sleeps without a limit between windows: the agent's thread cannot, since it sends
and waits for minutes of windows at a time, and a thread for each window would have to be started at a step boundary.
It only walks Python frames (`thread_frames.py` says how), about 80 us of CPU a sample with the GIL held, and calls
nothing of torch or CUDA (bench/results/line_sampler.md). Where a frame that it walks returns meanwhile, the
variables of that frame end on this thread, a walk later.

Names of files, functions and line numbers are kept, of the frames' variables only `__name__` is read.
"""

import ctypes
import os
import queue
import sysconfig
import threading
import time
from array import array
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import FrameType
from typing import Final, NamedTuple, Protocol

from rankscope.agent.captures.stacks import OUR_THREADS, find_torch_folder
from rankscope.agent.guard import Guard
from rankscope.agent.own_thread import OwnThread
from rankscope.agent.profiler.thread_frames import ThreadState
from rankscope.measure.bounds import NAME_LENGTH_MAX
from rankscope.measure.own_files import is_own_file
from rankscope.measure.stalls import StackFrame, describe_frame
from rankscope.measure.text import to_unicode
from rankscope.measure.units import NS_PER_MS

PART: Final = "line_samples"
INTERVAL_S: Final = 0.01
"""A call is met if it lasts that long and as long as the sampler waits for a core, about 15 ms on busy ones, and if it
releases the GIL; of shorter calls a share in proportion to their length."""
WALK_NS_MAX: Final = NS_PER_MS
"""A walk that takes longer was interrupted: the time of its sample may not be the time of its line."""
SAMPLES_MAX: Final = 4096
"""Samples of a window, 48 KiB: 40 s. A window of longer steps has no lines for the rest of them."""
LINES_MAX: Final = 256
"""Different lines of a window. A step that is at more of them is not waiting at one."""
FILES_MAX: Final = 1024
"""Names of files of which is remembered whether they are of a script."""
NO_LINE: Final = -1
"""The place of a sample without a line."""
FRAMES_MAX: Final = 256
"""Frames looked at, from the innermost: a recursive model may be thousands deep."""
MAIN_MODULE: Final = "__main__"
BACKWARD: Final = frozenset({"backward", "grad", "_engine_run_backward"})
"""Functions of torch.autograd that return when the whole backward has been launched, by threads of its own."""
INDUCTOR_FOLDER: Final = "/torchinductor_"
"""Part of the path of code that torch.compile has written, in its default folder."""


class Line(NamedTuple):
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


class Frames(Protocol):
    """A reader of the frames of threads, as `thread_frames.ThreadFrames`."""

    def find_own_state(self) -> ThreadState:
        """Return what stands for the calling thread."""
        ...

    def find_innermost(self, state: ThreadState) -> FrameType | None:
        """Return the innermost frame of that thread."""
        ...

    def pause_collector(self) -> bool:
        """Keep the garbage collector from running; return whether it has to be resumed."""
        ...

    def resume_collector(self) -> None:
        """Let it run again."""
        ...


class WindowLines:
    """The samples of one window: `times_host_ns`, and `places` in `lines`, NO_LINE where none was found. `is_cut` is
    whether there were samples beyond the bounds, `cpu_ns` the CPU time that sampling took. `threads` are the numbers
    by which a profiler may know the thread, of `state`, that is sampled.

    The sampler adds to it on its own thread; it may add one more after the window's end.
    """

    def __init__(self, state: ThreadState, threads: tuple[int, ...]) -> None:
        self.state = state
        self.threads = threads
        self.times_host_ns = array("q")
        self.places = array("i")
        self.is_cut = False
        self.cpu_ns = 0
        self._place_of: dict[Line, int] = {}

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another sample."""
        return len(self.places) >= SAMPLES_MAX

    def add(self, host_ns: int, line: Line | None) -> None:
        """Add a sample with the line that the thread was at, None if that is not known."""
        is_new = line is not None and line not in self._place_of
        if is_new and len(self._place_of) >= LINES_MAX:
            self.is_cut = True
            return
        self.times_host_ns.append(host_ns)
        self.places.append(NO_LINE if line is None else self._place_of.setdefault(line, len(self._place_of)))

    @property
    def lines(self) -> tuple[Line, ...]:
        """The lines."""
        return tuple(self._place_of)


class LineSampler:
    """The sampler of one process. `begin` and `end` belong to the training thread, and take some 40 us together.

    An error is counted by the guard, which ends sampling after too many; windows then have no lines.
    """

    def __init__(
        self,
        guard: Guard,
        frames: Frames,
        *,
        environment: Mapping[str, str] | None = None,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._guard = guard
        self._frames = frames
        self._monotonic_ns = monotonic_ns
        self._sleep = sleep
        self._current: WindowLines | None = None
        self._windows: queue.SimpleQueue[WindowLines | None] = queue.SimpleQueue()  # None: there are no more
        self._is_closed = False
        self._autograd = f"{find_torch_folder()}autograd/"
        self._is_script = _make_is_script(os.environ if environment is None else environment)
        self._thread = OwnThread(target=self._run, name=f"{OUR_THREADS}lines", daemon=True)

    def start(self) -> None:
        """Start the thread; it waits for a window. Where none can be started there are no lines."""
        try:
            self._thread.start()
        except RuntimeError as error:
            self._is_closed = True
            self._guard.record(PART, error)

    def begin(self) -> None:
        """Begin to sample the calling thread. Nothing happens once sampling has ended for good."""
        if self._is_closed or self._guard.is_off(PART):
            return
        try:
            self._current = lines = WindowLines(self._frames.find_own_state(), _find_numbers())
            self._windows.put(lines)
        except Exception as error:  # noqa: BLE001 - the window goes on, without lines
            self._guard.record(PART, error)

    def end(self) -> WindowLines | None:
        """End sampling and return the samples since `begin`; None if it was not called."""
        lines, self._current = self._current, None
        if lines is not None:
            lines.state.address = 0
        return lines

    def close(self) -> None:
        """End the thread, soon. Never waits."""
        self._is_closed = True
        self.end()
        self._windows.put(None)

    # -- its own thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (lines := self._windows.get()) is not None:
            self.sample_window(lines)
            if self._guard.is_off(PART):
                return

    def sample_window(self, lines: WindowLines) -> None:
        """Sample until the window ends or is full, or after too many errors."""
        begin_ns = time.thread_time_ns()
        while self._current is lines and not self._guard.is_off(PART):
            if lines.is_full:
                lines.is_cut = True
                return
            try:
                self._add_sample(lines)
            except Exception as error:  # noqa: BLE001 - no error of the agent may reach the training script
                self._guard.record(PART, error)
            lines.cpu_ns = time.thread_time_ns() - begin_ns
            self._sleep(INTERVAL_S)

    def _add_sample(self, lines: WindowLines) -> None:
        is_paused = self._frames.pause_collector()
        try:
            begin_ns = self._monotonic_ns()
            line = self._find_line(lines)
            end_ns = self._monotonic_ns()
        finally:
            if is_paused:
                self._frames.resume_collector()
        lines.add(begin_ns, line if end_ns - begin_ns <= WALK_NS_MAX else None)

    def _find_line(self, lines: WindowLines) -> Line | None:
        """Return the line of the innermost frame outside of torch, this agent and Python's own library; None if there
        is none.
        """
        frame = self._frames.find_innermost(lines.state)
        in_backward = False
        for _ in range(FRAMES_MAX):
            if frame is None:
                return None
            code = frame.f_code
            if self._is_script(code.co_filename):
                in_main = frame.f_globals.get("__name__") == MAIN_MODULE
                return Line(code.co_filename, frame.f_lineno, code.co_name, in_main, in_backward)
            in_backward |= code.co_name in BACKWARD and code.co_filename.startswith(self._autograd)
            frame = frame.f_back
        return None


def _find_numbers() -> tuple[int, ...]:
    """Return the numbers by which Kineto may know the calling thread: that of the system, or the lower half of its
    ident, by which CUPTI does, if Kineto has not met the thread yet.
    """
    return threading.get_native_id(), ctypes.c_int32(threading.get_ident()).value


def _make_is_script(environment: Mapping[str, str]) -> Callable[[str], bool]:
    """Return what tells the user's files, and libraries other than torch, from torch, what it has compiled, the agent
    and Python itself. It remembers its answers: most frames of all samples are of a few files.
    """
    compiled = environment.get("TORCHINDUCTOR_CACHE_DIR", "")
    left_out = ("<", *filter(None, [find_torch_folder(), compiled]))
    python = os.path.join(sysconfig.get_paths()["stdlib"], "")
    packages = ("/site-packages/", "/dist-packages/")

    @lru_cache(maxsize=FILES_MAX)
    def is_script(file: str) -> bool:
        if file.startswith(left_out) or INDUCTOR_FOLDER in file or is_own_file(file):
            return False
        return not file.startswith(python) or any(part in file for part in packages)

    return is_script
