"""LineSampler: at which line a thread is counted, what is bounded, and that it ends. Frames are of made-up files."""

import sys
import sysconfig
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from rankscope import agent
from rankscope.agent.guard import Guard
from rankscope.agent.profiler.line_sampler import (
    FRAMES_MAX,
    LINES_MAX,
    NO_LINE,
    PART,
    SAMPLES_MAX,
    WALK_NS_MAX,
    LineSampler,
    WindowLines,
)
from rankscope.agent.profiler.thread_frames import ThreadFrames, ThreadState
from rankscope.measure.bounds import NAME_LENGTH_MAX
from tests.no_threads import allow_no_threads

DEADLINE_S = 300.0
SCRIPT = "/home/me/train.py"
TORCH_FOLDER = Path(torch.__file__).parent
TORCH = f"{TORCH_FOLDER}/_tensor.py"
STANDARD = f"{sysconfig.get_paths()['stdlib']}/contextlib.py"


def frame_in(*files: str, line: int = 1, function: str = "wait", module: str = "__main__") -> FrameType:
    """Return the frame of a function in the last of these files, called from the one before it, and so on; each call is
    at that line.
    """
    found: list[Any] = [lambda: sys._getframe(1)]
    for file in reversed(files):
        scope: dict[str, Any] = {"inner": found[-1], "__name__": module}
        text = "\n" * (line - 1) + f"def {function}(): return inner()"
        exec(compile(text, file, "exec"), scope)  # noqa: S102 - for the names of files
        found.append(scope[function])
    frame = found[-1]()
    assert isinstance(frame, FrameType)
    return frame


class Frames:
    """Frames of the sampled thread, one a sample. It is an error to read one while the collector may run, or of a
    thread that wants to be read no more.
    """

    def __init__(self, *frames: FrameType | None) -> None:
        self._left = list(reversed(frames))
        self.is_paused = False
        self.is_collecting = True

    def find_own_state(self) -> ThreadState:
        return ThreadState(7)

    def find_innermost(self, state: ThreadState) -> FrameType | None:
        assert (state.address, self.is_paused) == (7, True)
        return self._left.pop()

    def pause_collector(self) -> bool:
        assert not self.is_paused
        self.is_paused = True
        return self.is_collecting

    def resume_collector(self) -> None:
        assert self.is_paused
        self.is_paused = False


class Window:
    """A window of some samples, without a thread: the sleep after the last one ends it. Each reading of the clock is
    `walk_ns` later than the one before.
    """

    def __init__(self, *frames: FrameType | None, guard: Guard | None = None, walk_ns: int = 1) -> None:
        self.frames = Frames(*frames)
        self._samples = len(frames)
        self.sleeps = 0
        self._now_ns = 1_000
        self._walk_ns = walk_ns
        self.sampler = LineSampler(
            guard or Guard(error_budget=3), self.frames, environment={}, monotonic_ns=self._read_clock,
            sleep=self._sleep,
        )  # fmt: skip

    def _read_clock(self) -> int:
        self._now_ns += self._walk_ns
        return self._now_ns

    def _sleep(self, _seconds: float) -> None:
        self.sleeps += 1
        if self.sleeps == self._samples:
            self.sampler.end()

    def run(self) -> WindowLines:
        self.sampler.begin()
        lines = self.sampler._current
        assert lines is not None
        self.sampler.sample_window(lines)
        return lines


def line_of(frame: FrameType) -> str | None:
    lines = Window(frame).run()
    (place,) = lines.places
    return None if place == NO_LINE else lines.lines[place].describe()


def test_each_sample_has_its_time_and_its_line() -> None:
    found = Window(frame_in(SCRIPT, line=8), frame_in(SCRIPT, line=9), frame_in(SCRIPT, line=8)).run()
    assert list(found.times_host_ns) == [1_001, 1_003, 1_005]
    lines = [found.lines[place].describe() for place in found.places]
    assert lines == ["train.py:8 (wait)", "train.py:9 (wait)", "train.py:8 (wait)"]


@pytest.mark.parametrize(
    "inner",
    [TORCH, STANDARD, f"{agent.__path__[0]}/steps/torch_hooks.py", "<string>", "/home/me/torchinductor_me/ab/cab.py"],
)
def test_line_is_that_of_the_caller_of_torch_python_and_the_agent(inner: str) -> None:
    assert line_of(frame_in("/home/me/outer.py", SCRIPT, inner, line=3)) == "train.py:3 (wait)"


def test_code_compiled_into_a_folder_of_the_user_s_is_no_script() -> None:
    folder = {"TORCHINDUCTOR_CACHE_DIR": "/scratch/me/compiled"}
    sampler = LineSampler(Guard(error_budget=3), Frames(), environment=folder)
    assert [sampler._is_script(file) for file in ("/scratch/me/compiled/ab/cab.py", SCRIPT)] == [False, True]


def test_line_of_a_library_other_than_torch_is_a_line() -> None:
    library = f"{sysconfig.get_paths()['purelib']}/transformers/trainer.py"
    frame = frame_in(SCRIPT, library, line=5, module="transformers.trainer")
    assert line_of(frame) == "transformers/trainer.py:5 (wait)"


@pytest.mark.parametrize(("file", "text"), [("model.py", "model.py:1 (wait)"), ("/model.py", "model.py:1 (wait)")])
def test_module_without_a_folder_has_none(file: str, text: str) -> None:
    assert line_of(frame_in(file, module="model")) == text


@pytest.mark.parametrize(
    ("function", "file", "in_backward"),
    [
        ("_engine_run_backward", "autograd/graph.py", True),
        ("backward", "autograd/__init__.py", True),
        ("grad", "autograd/__init__.py", True),
        ("enable_grad", "autograd/grad_mode.py", False),
        ("backward", "_tensor.py", False),
    ],
)
def test_line_that_calls_backward_of_torch_is_known(function: str, file: str, in_backward: bool) -> None:
    inner = frame_in(SCRIPT, f"{TORCH_FOLDER}/{file}", TORCH, function=function)
    (line,) = Window(inner).run().lines
    assert (line.file, line.in_backward) == (SCRIPT, in_backward)


def test_thread_without_a_frame_has_no_line() -> None:
    found = Window(None).run()
    assert (list(found.places), found.lines) == ([NO_LINE], ())


def test_only_so_many_frames_are_looked_at() -> None:
    frame: FrameType = frame_in(*[TORCH] * (FRAMES_MAX + 1))
    assert line_of(frame) is None


def test_name_that_is_not_unicode_can_be_sent() -> None:
    assert line_of(frame_in("/home/\udcff/tr\udcffin.py", module="other")) == "?/tr?in.py:1 (wait)"


def test_long_names_are_cut() -> None:
    assert len(str(line_of(frame_in(f"/home/{'m' * 600}/train.py", module="other")))) == NAME_LENGTH_MAX


@pytest.mark.parametrize(("walk_ns", "place"), [(WALK_NS_MAX, 0), (WALK_NS_MAX + 1, NO_LINE)])
def test_walk_that_was_interrupted_has_no_line(walk_ns: int, place: int) -> None:
    assert list(Window(frame_in(SCRIPT), walk_ns=walk_ns).run().places) == [place]


def test_samples_of_too_many_lines_are_left_out_and_that_is_known() -> None:
    found = Window(*(frame_in(SCRIPT, line=line + 1) for line in range(LINES_MAX + 2))).run()
    assert (len(found.lines), len(found.places), found.is_cut) == (LINES_MAX, LINES_MAX, True)


def test_sampling_ends_when_the_window_is_full() -> None:
    window = Window(*[frame_in(SCRIPT)] * (SAMPLES_MAX + 3))
    found = window.run()
    assert (len(found.times_host_ns), len(found.places), found.is_cut) == (SAMPLES_MAX, SAMPLES_MAX, True)
    assert window.sleeps == SAMPLES_MAX


def test_window_within_the_bounds_is_whole() -> None:
    assert not Window(frame_in(SCRIPT)).run().is_cut


def test_window_that_has_ended_meanwhile_is_not_sampled() -> None:
    window = Window(frame_in(SCRIPT))
    window.sampler.begin()
    lines = window.sampler.end()
    assert lines is not None
    window.sampler.sample_window(lines)
    assert (list(lines.places), lines.state.address) == ([], 0)


def test_nothing_of_the_script_is_kept() -> None:
    held = frame_in(SCRIPT)
    before = sys.getrefcount(held), sys.getrefcount(held.f_code)
    found = Window(held).run()
    assert (sys.getrefcount(held), sys.getrefcount(held.f_code), len(found.lines)) == (*before, 1)


def test_collector_that_was_off_stays_off() -> None:
    window = Window(frame_in(SCRIPT))
    window.frames.is_collecting = False
    window.run()
    assert window.frames.is_paused


def test_error_of_a_sample_is_counted_and_the_collector_resumed() -> None:
    guard = Guard(error_budget=3)
    window = Window(guard=guard)
    lines = WindowLines(ThreadState(7), ())
    window.sampler._current = lines
    window.sampler.sample_window(lines)  # there are no frames at all
    assert (guard.errors, window.frames.is_paused) == ({PART: 3}, False)
    assert lines.cpu_ns > 0


def test_thread_whose_state_cannot_be_read_has_no_lines() -> None:
    class Broken(Frames):
        def find_own_state(self) -> ThreadState:
            raise OSError("no state")

    guard = Guard(error_budget=3)
    sampler = LineSampler(guard, Broken())
    sampler.begin()
    assert (sampler.end(), guard.errors) == (None, {PART: 1})


# -- with its thread --------------------------------------------------------------------------------------------------


def test_real_thread_finds_the_line_at_which_this_one_waits() -> None:
    sampled = threading.Event()

    class Clock:
        """Counts samples by the questions for the time."""

        asked = 0

        def __call__(self) -> int:
            self.asked += 1
            if self.asked == 5:
                sampled.set()
            return self.asked

    sampler = LineSampler(Guard(error_budget=3), ThreadFrames(), monotonic_ns=Clock(), sleep=lambda _seconds: None)
    sampler.start()
    sampler.begin()
    assert sampled.wait(DEADLINE_S)
    found = sampler.end()
    sampler.close()
    sampler._thread.join(DEADLINE_S)
    assert found is not None
    assert not sampler._thread.is_alive()
    assert any(Path(line.file) == Path(__file__) for line in found.lines)
    assert threading.get_native_id() in found.threads
    assert found.cpu_ns > 0


def test_errors_are_counted_and_end_the_thread_in_the_end() -> None:
    guard = Guard(error_budget=3)
    sampler = LineSampler(guard, Frames(), sleep=lambda _seconds: None)
    sampler.start()
    sampler.begin()
    sampler._thread.join(DEADLINE_S)
    assert (sampler._thread.is_alive(), guard.is_off(PART), guard.errors) == (False, True, {PART: 3})
    sampler.end()
    sampler.begin()
    assert sampler.end() is None


def test_closed_sampler_begins_no_window() -> None:
    sampler = LineSampler(Guard(error_budget=3), Frames())
    sampler.start()
    sampler.close()
    sampler.begin()
    assert sampler.end() is None
    sampler._thread.join(DEADLINE_S)
    assert not sampler._thread.is_alive()


def test_without_a_thread_a_window_has_no_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = Guard(error_budget=3)
    sampler = LineSampler(guard, Frames(), environment={})
    allow_no_threads(monkeypatch)
    sampler.start()
    sampler.begin()
    assert sampler.end() is None
    sampler.close()
    assert guard.errors == {PART: 1}
