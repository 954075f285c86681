"""Looks at a training thread in long steps, on a simulated clock; frames are of real threads."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from rankscope.agent.captures.called_name import HAS_POSITIONS
from rankscope.agent.captures.quiet_steps import (
    GONE_STEPS,
    LOOK_NS_MAX,
    LOOK_NS_MIN,
    STALLS_MIN,
    QuietSteps,
    find_doing,
)
from rankscope.agent.captures.stacks import read_frames
from rankscope.agent.guard import Guard
from rankscope.measure.stalls import QUIET_PLACES_MAX, WORKS, QuietPlace, StackFrame
from rankscope.measure.units import NS_PER_MS, NS_PER_S, HostNs, WallNs

USUAL_NS = 50 * NS_PER_MS
STALL_NS = 400 * NS_PER_MS
THREAD = 4711
NEVER_NS = 365 * 86_400 * NS_PER_S
MAIN = StackFrame("train.py", 52, "main")
BARRIER = StackFrame("/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 4871, "barrier")
FSDP = StackFrame("/lib/python3.11/site-packages/torch/distributed/fsdp/fully_sharded_data_parallel.py", 9, "forward")
LINEAR = StackFrame("/lib/python3.11/site-packages/torch/nn/modules/linear.py", 9, "forward")
BACKWARD = StackFrame("/lib/python3.11/site-packages/torch/autograd/graph.py", 9, "_engine_run_backward")
FETCH = StackFrame("/lib/python3.11/site-packages/torch/utils/data/dataloader.py", 9, "_next_data")
POOL = StackFrame("/lib/python3.11/threading.py", 9, "wait")


@contextmanager
def sleeping_thread() -> Iterator[FrameType]:
    """The innermost frame of a thread that waits for the end of the context."""
    ends = threading.Event()

    def wait() -> None:
        while not ends.is_set():
            time.sleep(0.01)

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        yield read_frames()[thread.ident or 0]
    finally:
        ends.set()
        thread.join()


class Rank:
    """A rank on a clock that the test moves on."""

    def __init__(self, frame: FrameType | None = None) -> None:
        self.now_ns, self.events, self.step = 0, 0, 100
        self.reads = 0
        self.frame = frame
        self.has_device = False
        self.guard = Guard(error_budget=3)
        self.quiet = QuietSteps(
            self,
            self.guard,
            count_events=lambda: self.events,
            flush=lambda: None,
            find_place=lambda: (self.step, "forward"),
            find_thread=lambda: THREAD,
            has_device=lambda: self.has_device,
            read_frames=self._read_frames,
        )

    def monotonic_ns(self) -> HostNs:
        return HostNs(self.now_ns)

    def wall_ns(self) -> WallNs:
        return WallNs(self.now_ns)

    @property
    def due_ns(self) -> int | None:
        """When it is looked at next; None: not within a year."""
        due_ns = self.quiet.find_due(NEVER_NS)
        return None if due_ns == NEVER_NS else due_ns

    def _read_frames(self) -> dict[int, FrameType]:
        self.reads += 1
        return {} if self.frame is None else {THREAD: self.frame}

    def learn(self, *stalls_ns: int, steps: int = 2) -> "Rank":
        """Have stalls, each followed by so many steps."""
        for stall_ns in stalls_ns:
            self.quiet.learn([(self.step, stall_ns)], self.step, USUAL_NS)
            self.step += steps
        self.quiet.learn([], self.step, USUAL_NS)
        return self

    def stall(self, times: int = STALLS_MIN) -> "Rank":
        return self.learn(*[STALL_NS] * times)

    def pass_time(self, ns: int, is_busy: Callable[[], bool] = lambda: False) -> "Rank":
        until_ns = self.now_ns + ns
        while (due_ns := self.due_ns) is not None and due_ns <= until_ns:
            self.now_ns = max(self.now_ns, due_ns)
            self.events += is_busy()
            self.quiet.look()
        self.now_ns = until_ns
        return self


def test_a_run_with_few_long_steps_is_never_looked_at() -> None:
    rank = Rank().stall(STALLS_MIN - 1)
    assert rank.due_ns is None
    assert rank.pass_time(LOOK_NS_MAX).reads == 0


def test_a_rank_that_passes_hooks_is_not_looked_at() -> None:
    assert Rank().stall().pass_time(20 * LOOK_NS_MAX, is_busy=lambda: True).reads == 0


@pytest.mark.skipif(not HAS_POSITIONS, reason="before CPython 3.11 what a frame calls cannot be told")
def test_a_quiet_rank_is_looked_at_once_and_its_line_is_told() -> None:
    with sleeping_thread() as frame:
        rank = Rank(frame).stall()
        rank.pass_time(STALL_NS)
        assert rank.reads == 1
        (place,) = rank.quiet.take()
    assert (place.step, place.does, place.call) == (rank.step, WORKS, "time.sleep")
    assert place.line.startswith("test_quiet_steps.py:")
    assert place.line.endswith("(wait)")
    assert rank.quiet.take() == ()
    rank.events += 1
    assert rank.pass_time(STALL_NS).reads == 2


@pytest.mark.parametrize(("stall_ns", "gap_ns"), [(STALL_NS, LOOK_NS_MIN), (60 * STALL_NS, LOOK_NS_MAX)])
def test_looks_are_as_often_as_stalls_need_and_no_more(stall_ns: int, gap_ns: int) -> None:
    rank = Rank().learn(*[stall_ns] * STALLS_MIN)
    rank.quiet.look()
    assert rank.due_ns == gap_ns
    rank.pass_time(gap_ns)
    assert rank.due_ns == 2 * gap_ns


def fail() -> None:
    raise ValueError


def test_errors_end_the_looks_alone() -> None:
    rank = Rank().stall()
    rank.quiet = QuietSteps(
        rank, rank.guard, count_events=lambda: 7, flush=fail, find_place=lambda: (7, ""), find_thread=lambda: THREAD,
        has_device=lambda: False,
    )  # fmt: skip
    for _ in range(4):
        rank.quiet._has_looked = False
        rank.stall().pass_time(STALL_NS)
    assert rank.guard.errors == {"quiet_steps": 3}
    assert rank.stall().due_ns is None


def test_looks_end_when_stalls_are_long_ago() -> None:
    assert Rank().stall().learn(STALL_NS, steps=GONE_STEPS + 1).due_ns is None


def test_a_process_with_a_device_that_seems_to_work_may_wait_for_it() -> None:
    with sleeping_thread() as frame:
        rank = Rank(frame)
        rank.has_device = True
        assert [one.does for one in rank.stall().pass_time(STALL_NS).quiet.take()] == [""]


def test_rank_without_python_or_outside_of_steps_has_no_place() -> None:
    assert Rank().stall().pass_time(STALL_NS).quiet.take() == ()


def test_places_of_a_report_are_bounded() -> None:
    with sleeping_thread() as frame:
        rank = Rank(frame).stall()
        for _ in range(QUIET_PLACES_MAX + 4):
            rank.events += 1
            rank.pass_time(STALL_NS)
        places: tuple[QuietPlace, ...] = rank.quiet.take()
    assert len(places) == QUIET_PLACES_MAX


@pytest.mark.skipif(not HAS_POSITIONS, reason="before CPython 3.11 what a frame calls cannot be told")
@pytest.mark.parametrize(
    ("frames", "call", "does"),
    [
        ([BARRIER, MAIN], "work.wait", "waits_for_ranks"),
        ([MAIN], "time.sleep", "works"),
        ([MAIN], "", "works"),
        ([FETCH, MAIN], "", "works"),
        ([MAIN, FSDP, MAIN], "time.sleep", "works"),
        ([MAIN, BACKWARD, MAIN], "time.sleep", ""),
        ([MAIN], "work.wait", ""),
        ([MAIN], "loss.item", ""),
        ([POOL, MAIN], "waiter.acquire", ""),
        ([LINEAR, FSDP, MAIN], "F.linear", ""),
        ([BACKWARD, MAIN], "", ""),
        ([], "", ""),
    ],
)
def test_what_a_thread_does_follows_from_its_innermost_frame(frames: list[StackFrame], call: str, does: str) -> None:
    assert find_doing(frames, call, has_device=False) == does


def test_saving_is_work_with_a_device_too() -> None:
    save = StackFrame("/lib/python3.11/site-packages/torch/serialization.py", 9, "_save")
    assert find_doing([save, MAIN], "", has_device=True) == "works"
    assert find_doing([MAIN], "time.sleep", has_device=True) == ""
