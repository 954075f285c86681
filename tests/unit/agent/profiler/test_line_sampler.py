"""LineSampler: at which line a thread is counted, what is bounded, and that it ends. Frames are of made-up files."""

import sys
import sysconfig
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from rankscope.agent.capture.stacks import OUR_FILES
from rankscope.agent.guard import Guard
from rankscope.agent.profiler.line_sampler import (
    FRAMES_MAX,
    LINES_MAX,
    NO_LINE,
    PART,
    SAMPLES_MAX,
    LineSampler,
    WindowLines,
)

THREAD = 7
DEADLINE_S = 60.0
SCRIPT = "/home/me/train.py"
TORCH = f"{Path(torch.__file__).parent}/_tensor.py"
STANDARD = f"{sysconfig.get_paths()['stdlib']}/contextlib.py"


def frame_in(*files: str, line: int = 1) -> FrameType:
    """Return the frame of a function `wait` in the last of these files, called from the one before it, and so on; each
    call is at that line.
    """
    found: list[Any] = [lambda: sys._getframe(1)]
    for file in reversed(files):
        scope: dict[str, Any] = {"inner": found[-1]}
        text = "\n" * (line - 1) + "def wait(): return inner()"
        exec(compile(text, file, "exec"), scope)  # noqa: S102 - for the names of files
        found.append(scope["wait"])
    frame = found[-1]()
    assert isinstance(frame, FrameType)
    return frame


class Window:
    """A window of some samples, without a thread: the sleep after the last one ends it."""

    def __init__(self, *frames: FrameType | None, guard: Guard | None = None) -> None:
        self._frames = list(frames)
        self._left = len(frames)
        self.sampler = LineSampler(
            guard or Guard(error_budget=3), read_frames=self._read, monotonic_ns=self._read_clock, sleep=self._sleep
        )
        self.found: WindowLines | None = None

    def _read(self) -> dict[int, FrameType]:
        frame = self._frames[len(self._frames) - self._left]
        return {} if frame is None else {THREAD: frame, THREAD + 1: sys._getframe()}

    def _read_clock(self) -> int:
        return 1_000 + len(self._frames) - self._left

    def _sleep(self, _seconds: float) -> None:
        self._left -= 1
        if not self._left:
            self.found = self.sampler.end()

    def run(self) -> WindowLines:
        self.sampler.begin(THREAD)
        self.sampler.sample_window()
        assert self.found is not None
        return self.found


def line_of(frame: FrameType) -> str | None:
    lines = Window(frame).run()
    (place,) = lines.places
    return None if place == NO_LINE else lines.lines[place]


def test_each_sample_has_its_time_and_its_line() -> None:
    found = Window(frame_in(SCRIPT, line=8), frame_in(SCRIPT, line=9), frame_in(SCRIPT, line=8)).run()
    assert list(found.times_host_ns) == [1_000, 1_001, 1_002]
    assert [found.lines[place] for place in found.places][:2] == ["train.py:8 (wait)", "train.py:9 (wait)"]


@pytest.mark.parametrize("inner", [TORCH, STANDARD, f"{OUR_FILES}steps/torch_hooks.py", "<string>"])
def test_line_is_that_of_the_caller_of_torch_python_and_the_agent(inner: str) -> None:
    assert line_of(frame_in("/home/me/outer.py", SCRIPT, inner, line=3)) == "train.py:3 (wait)"


def test_line_of_a_library_other_than_torch_is_a_line() -> None:
    library = f"{sysconfig.get_paths()['purelib']}/transformers/trainer.py"
    assert line_of(frame_in(SCRIPT, library, line=5)) == "trainer.py:5 (wait)"


def test_thread_that_is_gone_has_no_line() -> None:
    found = Window(None).run()
    assert (list(found.places), found.lines) == ([NO_LINE], ())


def test_only_so_many_frames_are_looked_at() -> None:
    frame: FrameType = frame_in(*[TORCH] * (FRAMES_MAX + 1))
    assert line_of(frame) is None


def test_name_that_is_not_unicode_can_be_sent() -> None:
    assert line_of(frame_in("/home/me/tr\udcffin.py")) == "tr?in.py:1 (wait)"


def test_samples_of_too_many_lines_are_dropped_and_counted() -> None:
    found = Window(*(frame_in(SCRIPT, line=line + 1) for line in range(LINES_MAX + 2))).run()
    assert (len(found.lines), len(found.places), found.dropped) == (LINES_MAX, LINES_MAX, 2)


def test_samples_beyond_the_most_of_a_window_are_dropped_and_counted() -> None:
    found = Window(*[frame_in(SCRIPT)] * (SAMPLES_MAX + 3)).run()
    assert (len(found.times_host_ns), len(found.places), found.dropped) == (SAMPLES_MAX, SAMPLES_MAX, 3)


def test_window_that_has_ended_meanwhile_is_not_sampled() -> None:
    window = Window(frame_in(SCRIPT))
    window.sampler.sample_window()
    assert window.sampler.end() is None


def test_nothing_of_the_script_is_kept() -> None:
    held = frame_in(SCRIPT)
    window = Window(held)
    before = sys.getrefcount(held)
    found = window.run()
    assert (sys.getrefcount(held), len(found.lines)) == (before, 1)


# -- with its thread --------------------------------------------------------------------------------------------------


def test_real_thread_finds_the_line_at_which_this_one_waits() -> None:
    sampled = threading.Event()

    class Clock:
        """Counts samples by the questions for the time."""

        asked = 0

        def __call__(self) -> int:
            self.asked += 1
            if self.asked == 3:
                sampled.set()
            return self.asked

    sampler = LineSampler(Guard(error_budget=3), monotonic_ns=Clock(), sleep=lambda _seconds: None)
    sampler.start()
    sampler.begin(threading.get_ident())
    assert sampled.wait(DEADLINE_S)
    found = sampler.end()
    sampler.close()
    sampler._thread.join(DEADLINE_S)
    assert found is not None
    assert not sampler._thread.is_alive()
    assert any(line.startswith(f"{Path(__file__).name}:") for line in found.lines)
    assert found.cpu_ns > 0


def test_errors_are_counted_and_end_the_thread_in_the_end() -> None:
    def fail() -> dict[int, FrameType]:
        raise RuntimeError("no frames")

    guard = Guard(error_budget=3)
    sampler = LineSampler(guard, read_frames=fail, sleep=lambda _seconds: None)
    sampler.start()
    sampler.begin(THREAD)
    sampler._thread.join(DEADLINE_S)
    assert (sampler._thread.is_alive(), guard.is_off(PART), guard.errors) == (False, True, {PART: 3})
