"""Notes at which source line the training thread is, a hundred times a second while a full window of a device is on.

A thread of its own does it, which sleeps without a limit between windows: the agent's thread cannot, since it sends
and waits for minutes of windows at a time, and a thread for each window would have to be started at a step boundary.
It only walks Python frames, about 60 us of CPU a sample with the GIL held, and calls nothing of torch or CUDA
(tests/benchmarks/results/line_sampler.md).
"""

import os
import sys
import sysconfig
import threading
import time
from array import array
from collections.abc import Callable, Mapping
from types import CodeType, FrameType
from typing import Final

from rankscope.agent.capture.stacks import OUR_FILES, OUR_THREADS, find_torch_folder
from rankscope.agent.guard import Guard
from rankscope.measure.bounds import NAME_LENGTH_MAX
from rankscope.measure.stalls import StackFrame, describe_frame
from rankscope.measure.text import to_unicode

PART: Final = "line_samples"
INTERVAL_S: Final = 0.01
"""A call of 10 ms or longer is met; of shorter ones a share in proportion to their length."""
SAMPLES_MAX: Final = 4096
"""Samples of a window, 48 KiB: 40 s. A window of longer steps has no lines for the rest of them."""
LINES_MAX: Final = 256
"""Different lines of a window. A step that is at more of them is not waiting at one."""
NO_LINE: Final = -1
"""The place of a sample without a line."""
FRAMES_MAX: Final = 256
"""Frames looked at, from the innermost: a recursive model may be thousands deep."""


class WindowLines:
    """The samples of one window: `times_host_ns`, and `places` in `lines`, NO_LINE where none was found. `dropped`
    counts samples beyond the bounds, `cpu_ns` is the CPU time that sampling took.

    The sampler adds to it on its own thread; it may add one more after the window's end.
    """

    def __init__(self, thread: int) -> None:
        self.thread = thread
        self.times_host_ns = array("q")
        self.places = array("i")
        self.dropped = 0
        self.cpu_ns = 0
        self._place_of: dict[tuple[CodeType, int], int] = {}

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another sample."""
        return len(self.places) >= SAMPLES_MAX

    def add(self, host_ns: int, frame: FrameType | None) -> None:
        """Add a sample with the frame that the thread was in, None if that is not known."""
        # The code is kept, not the frame: that would keep the variables of the script.
        line = None if frame is None else (frame.f_code, frame.f_lineno)
        is_new = line is not None and line not in self._place_of
        if is_new and len(self._place_of) >= LINES_MAX:
            self.dropped += 1
            return
        self.times_host_ns.append(host_ns)
        self.places.append(NO_LINE if line is None else self._place_of.setdefault(line, len(self._place_of)))

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines as text, `train.py:24 (main)`."""
        return tuple(_describe(code, line) for code, line in list(self._place_of))


class LineSampler:
    """The sampler of one process. `begin` and `end` belong to the training thread, and take some 40 us together.

    An error is counted by the guard, which ends sampling after too many; windows then have no lines.
    """

    def __init__(
        self,
        guard: Guard,
        *,
        read_frames: Callable[[], Mapping[int, FrameType]] = sys._current_frames,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._guard = guard
        self._read_frames = read_frames
        self._monotonic_ns = monotonic_ns
        self._sleep = sleep
        self._current: WindowLines | None = None
        self._is_wanted = threading.Event()
        self._is_closed = False
        self._is_script = _make_is_script()
        self._thread = threading.Thread(target=self._run, name=f"{OUR_THREADS}lines", daemon=True)

    def start(self) -> None:
        """Start the thread; it waits for a window."""
        self._thread.start()

    def begin(self, thread: int) -> None:
        """Begin to sample a thread, by its ident."""
        self._current = WindowLines(thread)
        self._is_wanted.set()

    def end(self) -> WindowLines | None:
        """End sampling and return the samples since `begin`; None if it was not called."""
        self._is_wanted.clear()
        lines, self._current = self._current, None
        return lines

    def close(self) -> None:
        """End the thread, soon. Never waits."""
        self._is_closed = True
        self._current = None
        self._is_wanted.set()

    # -- its own thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._is_wanted.wait()
            if self._is_closed or self._guard.is_off(PART):
                return
            try:
                self.sample_window()
            except Exception as error:  # noqa: BLE001 - no error of the agent may reach the training script
                self._guard.record(PART, error)
                self._sleep(INTERVAL_S)

    def sample_window(self) -> None:
        """Sample until the window ends."""
        lines = self._current
        if lines is None:  # it has ended just now
            return
        begin_ns = time.thread_time_ns()
        while self._current is lines:
            if lines.is_full:
                lines.dropped += 1
            else:
                lines.add(self._monotonic_ns(), self._find_frame(lines.thread))
            lines.cpu_ns = time.thread_time_ns() - begin_ns
            self._sleep(INTERVAL_S)

    def _find_frame(self, thread: int) -> FrameType | None:
        """Return the innermost frame outside of torch, this agent and Python's own library; None if there is none."""
        frame = self._read_frames().get(thread)
        for _ in range(FRAMES_MAX):
            if frame is None or self._is_script(frame.f_code.co_filename):
                return frame
            frame = frame.f_back
        return None


def _describe(code: CodeType, line: int) -> str:
    return to_unicode(describe_frame(StackFrame(code.co_filename, line, code.co_name)))[:NAME_LENGTH_MAX]


def _make_is_script() -> Callable[[str], bool]:
    """Return what tells the user's files, and libraries other than torch, from torch, the agent and Python itself."""
    torch_folder = find_torch_folder()
    left_out = ("<", OUR_FILES, *filter(None, [torch_folder]))
    python = os.path.join(sysconfig.get_paths()["stdlib"], "")
    packages = ("/site-packages/", "/dist-packages/")

    def is_script(file: str) -> bool:
        if file.startswith(left_out):
            return False
        return not file.startswith(python) or any(part in file for part in packages)

    return is_script
