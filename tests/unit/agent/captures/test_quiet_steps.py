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
    LOOKS_A_STALL,
    STALLS_MIN,
    QuietSteps,
    find_doing,
)
from rankscope.agent.captures.stacks import read_frames
from rankscope.measure.records import StepRecord
from rankscope.measure.stalls import QUIET_PLACES_MAX, WORKS, QuietPlace, StackFrame
from rankscope.measure.units import NS_PER_MS, NS_PER_S

USUAL_NS = 50 * NS_PER_MS
STALL_NS = 400 * NS_PER_MS
THREAD = 4711
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
    """A rank whose sampler runs on a clock that the test moves on."""

    def __init__(self, frame: FrameType | None = None) -> None:
        self.now_ns, self.events, self.step = 0, 0, 100
        self.has_device = False
        self.frame = frame
        self.begun = self.samples = 0
        self.quiet = QuietSteps(
            count_events=lambda: self.events,
            find_thread=lambda: THREAD,
            has_device=lambda: self.has_device,
            monotonic_ns=lambda: self.now_ns,
        )

    def learn(self, *stalls_ns: int, steps: int = 2) -> "Rank":
        """Have stalls, each followed by so many steps."""
        for stall_ns in stalls_ns:
            self.begun += self.quiet.learn([(self.step, stall_ns)], self.step, USUAL_NS)
            self.step += steps
        self.begun += self.quiet.learn([], self.step, USUAL_NS)
        return self

    def stall(self, times: int = STALLS_MIN) -> "Rank":
        return self.learn(*[STALL_NS] * times)

    def pass_time(self, ns: int, is_busy: Callable[[], bool] = lambda: False) -> "Rank":
        """Let the sampler look for so long."""
        until_ns = self.now_ns + ns
        while self.now_ns < until_ns and self.quiet.is_wanted:
            self.events += is_busy()
            if self.quiet.is_due:
                self.samples += 1
                self.quiet.add(self.now_ns, self.frame)
            self.now_ns += round(self.quiet.interval_s * NS_PER_S)
        self.now_ns = until_ns
        return self

    def take(self, *steps_ns: tuple[int, int]) -> list[QuietPlace]:
        """Return the places in steps of (begin, duration), numbered from 7; by default in one until now."""
        given = enumerate(steps_ns or ((0, self.now_ns),), 7)
        steps = [StepRecord(step=step, start_host_ns=at, duration_ns=ns, phases_ns={}) for step, (at, ns) in given]
        return list(self.quiet.take(steps))


def test_a_run_with_few_long_steps_is_never_looked_at() -> None:
    rank = Rank().stall(STALLS_MIN - 1)
    assert (rank.quiet.is_wanted, rank.begun) == (False, 0)


def test_looks_begin_once() -> None:
    assert Rank().stall(4 * STALLS_MIN).begun == 1


def test_a_rank_that_passes_hooks_is_not_looked_at() -> None:
    assert Rank().stall().pass_time(20 * LOOK_NS_MAX, is_busy=lambda: True).samples == 0


@pytest.mark.skipif(not HAS_POSITIONS, reason="before CPython 3.11 what a frame calls cannot be told")
def test_a_quiet_rank_is_looked_at_once_and_its_line_is_told() -> None:
    with sleeping_thread() as frame:
        rank = Rank(frame).stall().pass_time(STALL_NS)
        assert rank.samples == 1
        (place,) = rank.take()
    assert (place.step, place.does, place.call) == (7, WORKS, "time.sleep")
    assert place.line.startswith("test_quiet_steps.py:")
    assert place.line.endswith("(wait)")
    assert rank.take() == []
    rank.events += 1
    assert rank.pass_time(STALL_NS).samples == 2


def test_a_place_is_of_the_step_in_whose_time_it_was_seen() -> None:
    with sleeping_thread() as frame:
        rank = Rank(frame).stall()
        for _ in range(3):  # looks at 200, 1200 and 2200 ms
            rank.events += 1
            rank.pass_time(LOOK_NS_MAX)
    ms = NS_PER_MS
    # Between two steps, as in an evaluation, a look is of none; that of a step that has not ended waits for its end.
    assert [one.step for one in rank.take((0, 100 * ms), (100 * ms, 400 * ms), (1500 * ms, 200 * ms))] == [8]
    assert [one.step for one in rank.take((1700 * ms, 200 * ms), (1900 * ms, 900 * ms))] == [8]


@pytest.mark.parametrize(
    ("stall_ns", "gap_ns"),
    [(STALL_NS, STALL_NS // LOOKS_A_STALL), (STALL_NS // 4, LOOK_NS_MIN), (60 * STALL_NS, LOOK_NS_MAX)],
)
def test_looks_are_as_often_as_stalls_need_and_no_more(stall_ns: int, gap_ns: int) -> None:
    rank = Rank().learn(*[stall_ns] * STALLS_MIN)
    assert rank.quiet.interval_s == pytest.approx(gap_ns / NS_PER_S)


def test_looks_end_when_stalls_are_long_ago_and_begin_again() -> None:
    rank = Rank().stall().learn(STALL_NS, steps=GONE_STEPS + 1)
    assert not rank.quiet.is_wanted
    assert rank.stall().begun == 2


def test_a_process_with_a_device_that_seems_to_work_may_wait_for_it() -> None:
    with sleeping_thread() as frame:
        rank = Rank(frame)
        rank.has_device = True
        assert [one.does for one in rank.stall().pass_time(STALL_NS).take()] == [""]


def test_rank_without_python_has_no_place() -> None:
    assert Rank().stall().pass_time(STALL_NS).take() == []


def test_looks_that_no_step_takes_are_bounded() -> None:
    with sleeping_thread() as frame:
        rank = Rank(frame).stall()
        for _ in range(QUIET_PLACES_MAX + 4):
            rank.events += 1
            rank.pass_time(STALL_NS)
        places = rank.take(*((place * STALL_NS, STALL_NS) for place in range(QUIET_PLACES_MAX + 4)))
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
