"""ThreadFrames: the frames of another thread, and when the garbage collector is kept off."""

import contextlib
import ctypes
import gc
import sys
import sysconfig
import threading
from collections.abc import Iterator

import pytest

from rankscope.agent.profiler import thread_frames
from rankscope.agent.profiler.thread_frames import FramesMissingError, ThreadFrames, ThreadState

DEADLINE_S = 300.0


class Waiting:
    """A thread that waits in `wait_here` until it is released, and its frames. Its locks have no Python frame."""

    def __init__(self) -> None:
        self.frames = ThreadFrames()
        self.state = ThreadState(0)
        self.is_there, self.release = threading.Lock(), threading.Lock()
        self.is_there.acquire()
        self.release.acquire()

    def wait_here(self) -> None:
        self.state = self.frames.find_own_state()
        self.is_there.release()
        self.release.acquire(timeout=DEADLINE_S)


@contextlib.contextmanager
def waiting_thread() -> Iterator[Waiting]:
    waiting = Waiting()
    thread = threading.Thread(target=waiting.wait_here)
    thread.start()
    try:
        assert waiting.is_there.acquire(timeout=DEADLINE_S)
        yield waiting
    finally:
        waiting.release.release()
        thread.join()


@pytest.fixture
def collector() -> Iterator[None]:
    """Leave the garbage collector as it was."""
    was_on = gc.isenabled()
    yield
    (gc.enable if was_on else gc.disable)()


def test_frames_of_another_thread_are_found_from_the_innermost_out() -> None:
    with waiting_thread() as waiting:
        frame = waiting.frames.find_innermost(waiting.state)
        functions = []
        while frame is not None:
            functions.append(frame.f_code.co_name)
            frame = frame.f_back
    assert functions[:2] == ["wait_here", "run"]


def test_reading_a_frame_leaves_no_reference() -> None:
    with waiting_thread() as waiting:
        frame = waiting.frames.find_innermost(waiting.state)
        before = sys.getrefcount(frame)
        for _ in range(100):
            assert waiting.frames.find_innermost(waiting.state) is frame
        assert sys.getrefcount(frame) == before


def test_thread_that_wants_to_be_read_no_more_has_no_frame() -> None:
    with waiting_thread() as waiting:
        waiting.state.address = 0
        assert waiting.frames.find_innermost(waiting.state) is None


@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize("was_on", [True, False])
def test_collector_is_paused_and_resumed_only_if_it_was_on(was_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_frames, "COLLECTS_IN_ALLOCATIONS", True)  # as before CPython 3.12
    frames = ThreadFrames()
    (gc.enable if was_on else gc.disable)()
    assert frames.pause_collector() is was_on
    assert not gc.isenabled()
    if was_on:
        frames.resume_collector()
    assert gc.isenabled() is was_on


@pytest.mark.usefixtures("collector")
def test_collector_that_runs_between_instructions_only_stays_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_frames, "COLLECTS_IN_ALLOCATIONS", False)
    gc.enable()
    assert (ThreadFrames().pause_collector(), gc.isenabled()) == (False, True)


def test_interpreter_without_its_lock_has_no_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_config_var", {"Py_GIL_DISABLED": 1}.get)
    with pytest.raises(FramesMissingError, match="without a global interpreter lock"):
        ThreadFrames()


def test_interpreter_without_the_api_has_no_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "pythonapi", ctypes.CDLL(None, handle=ctypes.CDLL("libc.so.6")._handle))
    with pytest.raises(FramesMissingError, match="PyThreadState_Get"):
        ThreadFrames()
