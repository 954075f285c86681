"""ThreadSampler: who gets samples, that it ends, and when the garbage collector is kept off."""

import gc
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType

import pytest

from rankscope.agent.captures import thread_sampler
from rankscope.agent.captures.sampling import find_obstacle
from rankscope.agent.captures.thread_sampler import PART, Sampled, ThreadSampler, collector_off
from rankscope.agent.guard import Guard
from tests.no_threads import allow_no_threads
from tests.unit.agent.captures.made_frames import SCRIPT, frame_in

DEADLINE_S = 300.0
FRAME = frame_in(SCRIPT)


class Kept:
    """One who wants so many samples of a thread."""

    interval_s = 0.01
    is_due = True

    def __init__(self, thread: int = 1, samples: int = 1, *, wants_others: bool = False) -> None:
        self.thread = thread
        self.wants_others = wants_others
        self.others: dict[int, FrameType] = {}
        self.is_wanted = True
        self.cpu_ns = 0
        self.times_ns: list[int] = []
        self.frames: list[FrameType | None] = []
        self._samples = samples

    def add(self, host_ns: int, frame: FrameType | None) -> None:
        self.times_ns.append(host_ns)
        self.frames.append(frame)
        self.is_wanted = len(self.frames) < self._samples

    def add_others(self, host_ns: int, frames: dict[int, FrameType]) -> None:
        assert host_ns == 7
        self.others = dict(frames)


def wait_until(holds: Callable[[], bool]) -> bool:
    ends_s = time.monotonic() + DEADLINE_S
    while not holds() and time.monotonic() < ends_s:
        time.sleep(0.01)
    return holds()


def make(guard: Guard | None = None, frames: Mapping[int, FrameType] = {1: FRAME}) -> ThreadSampler:
    return ThreadSampler(
        guard or Guard(error_budget=3),
        read_frames=lambda: dict(frames),
        monotonic_ns=lambda: 7,
        sleep=lambda _seconds: None,
    )


@pytest.fixture
def collector() -> Iterator[None]:
    """Leave the garbage collector as it was."""
    was_on = gc.isenabled()
    yield
    (gc.enable if was_on else gc.disable)()


def test_each_gets_the_frame_of_its_thread() -> None:
    first, second = Kept(1), Kept(2)
    make().sample([first, second])
    assert (first.times_ns, first.frames, second.frames) == ([7], [FRAME], [None])


def test_frames_of_all_threads_are_for_those_who_want_them() -> None:
    alone, looking = Kept(1), Kept(1, wants_others=True)
    make(frames={1: FRAME, 2: FRAME}).sample([alone, looking])
    assert (alone.frames, alone.others, looking.frames, looking.others) == ([FRAME], {}, [FRAME], {1: FRAME, 2: FRAME})


def test_who_wants_none_now_gets_one_later_and_no_frame_is_read_meanwhile() -> None:
    kept = Kept()
    kept.is_due = False
    reads: list[int] = []

    def read_frames() -> dict[int, FrameType]:
        reads.append(1)
        return {1: FRAME}

    sampler = ThreadSampler(Guard(error_budget=3), read_frames=read_frames, sleep=lambda _seconds: None)
    assert sampler.sample([kept]) == [kept]
    assert (kept.frames, reads) == ([], [])
    kept.is_due = True
    assert sampler.sample([kept, Kept(2)]) != []
    assert (kept.frames, reads) == ([FRAME], [1])


def test_who_wants_no_more_gets_none() -> None:
    kept = Kept()
    kept.is_wanted = False
    assert make().sample([kept]) == []
    assert kept.frames == []


def test_sampling_takes_cpu_time_of_those_who_want_it() -> None:
    kept = Kept(samples=3)
    sampler = make()
    wanted: list[Sampled] = [kept]
    while wanted:
        wanted = sampler.sample(wanted)
    assert len(kept.frames) == 3
    assert kept.cpu_ns > 0


def test_errors_are_counted_and_end_the_thread_in_the_end() -> None:
    class Broken(Kept):
        def add(self, _host_ns: int, _frame: FrameType | None) -> None:
            raise OSError("no room")

    guard = Guard(error_budget=3)
    sampler = make(guard)
    sampler.start()
    sampler.begin(Broken())
    sampler._thread.wait_for_end(DEADLINE_S)
    assert (sampler._thread.is_alive(), sampler.is_usable, guard.errors) == (False, False, {PART: 3})


def test_real_frames_are_those_of_the_thread() -> None:
    found = threading.Event()

    class Seen(Kept):
        def add(self, _host_ns: int, frame: FrameType | None) -> None:
            while frame is not None:
                if frame.f_code.co_name == "test_real_frames_are_those_of_the_thread":
                    self.is_wanted = False
                    found.set()
                    return
                frame = frame.f_back

    sampler = ThreadSampler(Guard(error_budget=3))
    sampler.start()
    sampler.begin(Seen(threading.get_ident()))
    assert found.wait(DEADLINE_S)
    sampler.close()
    sampler._thread.wait_for_end(DEADLINE_S)
    assert not sampler._thread.is_alive()


def test_closed_sampler_takes_nobody() -> None:
    sampler = make()
    sampler.start()
    sampler.close()
    sampler._thread.wait_for_end(DEADLINE_S)
    sampler.begin(kept := Kept())
    assert (sampler.is_usable, kept.frames) == (False, [])


def test_who_comes_while_it_sleeps_for_another_wakes_it() -> None:
    slow = Kept(samples=1000)
    slow.interval_s = DEADLINE_S
    came = threading.Event()

    class Seen(Kept):
        def add(self, _host_ns: int, _frame: FrameType | None) -> None:
            came.set()

    sampler = ThreadSampler(Guard(error_budget=3))
    sampler.start()
    sampler.begin(slow)
    assert wait_until(lambda: len(slow.frames) == 1)
    begun_s = time.monotonic()
    sampler.begin(Seen())
    assert came.wait(DEADLINE_S / 2)
    sampler.close()
    sampler.wait(DEADLINE_S / 2)
    assert not sampler._thread.is_alive()
    assert time.monotonic() - begun_s < DEADLINE_S / 2


def test_who_is_wanted_again_before_that_is_noticed_gets_one_sample_at_a_time() -> None:
    kept = Kept(samples=2)
    sampler = make()
    sampler.begin(kept)
    sampler.begin(kept)
    sampler.start()
    assert wait_until(lambda: not kept.is_wanted)
    assert len(kept.frames) == 2
    sampler.close()


def test_without_a_thread_there_are_no_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = Guard(error_budget=3)
    sampler = make(guard)
    allow_no_threads(monkeypatch)
    sampler.start()
    assert (sampler.is_usable, guard.errors) == (False, {PART: 1})


@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize("was_on", [True, False])
def test_collector_is_off_and_on_again_only_if_it_was(was_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_sampler, "COLLECTS_IN_ALLOCATIONS", True)  # as before CPython 3.12
    (gc.enable if was_on else gc.disable)()
    with collector_off():
        assert not gc.isenabled()
    assert gc.isenabled() is was_on


@pytest.mark.usefixtures("collector")
def test_collector_that_runs_between_instructions_only_stays_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_sampler, "COLLECTS_IN_ALLOCATIONS", False)
    gc.enable()
    with collector_off():
        assert gc.isenabled()


def test_interpreter_without_its_lock_cannot_be_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_obstacle() == ""
    monkeypatch.setattr(sysconfig, "get_config_var", {"Py_GIL_DISABLED": 1}.get)
    assert "without a global interpreter lock" in find_obstacle()
