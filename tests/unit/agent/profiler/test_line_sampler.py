"""WindowLines and LineSampler: at which line a thread is counted, and what is bounded. Frames are of made-up files."""

import sys
import sysconfig
import threading
from pathlib import Path
from types import FrameType

import pytest
import torch

from rankscope import agent
from rankscope.agent.captures.script_files import ScriptFiles
from rankscope.agent.captures.thread_sampler import ThreadSampler
from rankscope.agent.guard import Guard
from rankscope.agent.profiler.line_sampler import (
    FRAMES_MAX,
    LINES_MAX,
    NO_LINE,
    SAMPLES_MAX,
    WALK_NS_MAX,
    LineSampler,
    WindowLines,
)
from rankscope.measure.bounds import NAME_LENGTH_MAX
from tests.unit.agent.captures.made_frames import SCRIPT, frame_in

DEADLINE_S = 300.0
TORCH_FOLDER = Path(torch.__file__).parent
TORCH = f"{TORCH_FOLDER}/_tensor.py"
STANDARD = f"{sysconfig.get_paths()['stdlib']}/contextlib.py"
FILES = ScriptFiles({})


def sample(*frames: FrameType | None, walk_ns: int = 1) -> WindowLines:
    """Return the lines of a window with one sample for each of these frames, which took so long to walk."""
    lines = WindowLines(1, (), FILES, monotonic_ns=lambda: walk_ns)
    for frame in frames:
        lines.add(0, frame)
    return lines


def line_of(frame: FrameType) -> str | None:
    lines = sample(frame)
    (place,) = lines.places
    return None if place == NO_LINE else lines.lines[place].describe()


def test_each_sample_has_its_time_and_its_line() -> None:
    found = sample(frame_in(SCRIPT, line=8), frame_in(SCRIPT, line=9), frame_in(SCRIPT, line=8))
    assert list(found.times_host_ns) == [0, 0, 0]
    lines = [found.lines[place].describe() for place in found.places]
    assert lines == ["train.py:8 (wait)", "train.py:9 (wait)", "train.py:8 (wait)"]


@pytest.mark.parametrize(
    "inner",
    [TORCH, STANDARD, f"{agent.__path__[0]}/steps/torch_hooks.py", "<string>", "/home/me/torchinductor_me/ab/cab.py"],
)
def test_line_is_that_of_the_caller_of_torch_python_and_agent(inner: str) -> None:
    assert line_of(frame_in("/home/me/outer.py", SCRIPT, inner, line=3)) == "train.py:3 (wait)"


def test_code_compiled_into_a_folder_of_the_user_s_is_no_script() -> None:
    folder = {"TORCHINDUCTOR_CACHE_DIR": "/scratch/me/compiled"}
    assert [ScriptFiles(folder).is_script(file) for file in ("/scratch/me/compiled/ab/cab.py", SCRIPT)] == [False, True]


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
    (line,) = sample(inner).lines
    assert (line.file, line.in_backward) == (SCRIPT, in_backward)


def test_thread_without_a_frame_has_no_line() -> None:
    found = sample(None)
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
    assert list(sample(frame_in(SCRIPT), walk_ns=walk_ns).places) == [place]


def test_samples_of_too_many_lines_are_left_out_and_marked() -> None:
    found = sample(*(frame_in(SCRIPT, line=line + 1) for line in range(LINES_MAX + 2)))
    assert (len(found.lines), len(found.places), found.is_cut) == (LINES_MAX, LINES_MAX, True)


def test_sampling_ends_when_the_window_is_full() -> None:
    found = sample(*[frame_in(SCRIPT)] * (SAMPLES_MAX + 3))
    assert (len(found.times_host_ns), len(found.places), found.is_cut) == (SAMPLES_MAX, SAMPLES_MAX, True)
    assert not found.is_wanted


def test_window_within_the_bounds_is_whole() -> None:
    assert not sample(frame_in(SCRIPT)).is_cut


def test_nothing_of_the_script_is_kept() -> None:
    held = frame_in(SCRIPT)
    before = sys.getrefcount(held), sys.getrefcount(held.f_code)
    found = sample(held)
    assert (sys.getrefcount(held), sys.getrefcount(held.f_code), len(found.lines)) == (*before, 1)


# -- with the sampler's thread ----------------------------------------------------------------------------------------


def test_real_thread_finds_the_line_at_which_this_one_waits() -> None:
    sampled = threading.Event()
    asked = []

    def count() -> int:
        asked.append(0)
        if len(asked) == 5:
            sampled.set()
        return len(asked)

    thread = ThreadSampler(Guard(error_budget=3), monotonic_ns=count, sleep=lambda _seconds: None)
    sampler = LineSampler(thread, FILES)
    thread.start()
    sampler.begin()
    assert sampled.wait(DEADLINE_S)
    found = sampler.end()
    thread.close()
    thread.wait(DEADLINE_S)
    assert not thread._thread.is_alive()
    assert found is not None
    assert not found.is_wanted
    assert len(found.places) > 0
    assert threading.get_native_id() in found.threads
    assert found.cpu_ns > 0


def test_window_of_a_closed_sampler_has_no_lines() -> None:
    thread = ThreadSampler(Guard(error_budget=3))
    thread.close()
    sampler = LineSampler(thread, FILES)
    sampler.begin()
    assert sampler.end() is None
