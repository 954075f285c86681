"""Looks at a training thread in long steps, on a simulated clock; frames are of real threads."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType

import msgspec
import pytest

from rankscope.agent.captures import quiet_steps
from rankscope.agent.captures.called_name import HAS_POSITIONS
from rankscope.agent.captures.quiet_steps import (
    GONE_STEPS,
    LOOK_NS_MAX,
    LOOK_NS_MIN,
    LOOKS_A_STALL,
    LOOKS_MAX,
    STALLS_MIN,
    QuietSteps,
    find_doing,
)
from rankscope.agent.captures.stacks import read_frames
from rankscope.measure.bounds import NAME_LENGTH_MAX
from rankscope.measure.records import StepRecord
from rankscope.measure.stalls import MOVES, QUIET_PLACES_MAX, WAITS_FOR_RANKS, WORKS, QuietPlace, StackFrame
from rankscope.measure.units import NS_PER_MS, NS_PER_S

USUAL_NS = 50 * NS_PER_MS
STALL_NS = 400 * NS_PER_MS
THREAD = 4711
MAIN = StackFrame("train.py", 52, "main")
BARRIER = StackFrame("/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 4871, "barrier")
FSDP = StackFrame("/lib/python3.11/site-packages/torch/distributed/fsdp/fully_sharded_data_parallel.py", 9, "forward")
DISPATCH = StackFrame("/lib/python3.11/site-packages/torch/distributed/tensor/_dispatch.py", 9, "dispatch")
LINEAR = StackFrame("/lib/python3.11/site-packages/torch/nn/modules/linear.py", 9, "forward")
BACKWARD = StackFrame("/lib/python3.11/site-packages/torch/autograd/graph.py", 9, "_engine_run_backward")
FETCH = StackFrame("/lib/python3.11/site-packages/torch/utils/data/dataloader.py", 9, "_next_data")
OPTIMIZER = StackFrame("/lib/python3.11/site-packages/torch/optim/sgd.py", 9, "step")
SAVE = StackFrame("/lib/python3.11/site-packages/torch/serialization.py", 9, "_save")
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


def frame_in(file: str) -> FrameType:
    """Return a frame of a function in this file."""
    namespace: dict[str, Callable[[], FrameType]] = {}
    exec(compile("import sys\ndef inside(): return sys._getframe()", file, "exec"), namespace)  # noqa: S102
    return namespace["inside"]()


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


def test_a_rank_that_passes_hooks_is_not_looked_at_and_moves() -> None:
    rank = Rank().stall().pass_time(20 * LOOK_NS_MAX, is_busy=lambda: True)
    assert rank.samples == 0
    assert rank.take() == [QuietPlace(7, MOVES)]


@pytest.mark.skipif(not HAS_POSITIONS, reason="before CPython 3.11 what a frame calls cannot be told")
def test_a_quiet_rank_is_looked_at_and_its_line_is_told() -> None:
    with sleeping_thread() as frame:
        rank = Rank(frame).stall().pass_time(STALL_NS)
        assert rank.samples == STALL_NS // LOOK_NS_MIN - 2  # the first two tell that no hook was passed
        (place,) = rank.take()
    assert (place.step, place.does, place.call) == (7, WORKS, "time.sleep")
    assert place.line.startswith("test_quiet_steps.py:")
    assert place.line.endswith("(wait)")


def test_a_place_is_of_the_long_steps_in_whose_time_it_was_seen() -> None:
    ms = NS_PER_MS
    with sleeping_thread() as frame:
        rank = Rank(frame).stall().pass_time(2 * LOOK_NS_MAX)
        # The first is before anybody looked, the last is not long.
        assert [one.step for one in rank.take((-900 * ms, 890 * ms), (100 * ms, 900 * ms), (1200 * ms, 70 * ms))] == [8]
        rank.pass_time(LOOK_NS_MAX)
        # What goes on when a step ends is of the next one, too.
        assert [one.step for one in rank.take((2000 * ms, 500 * ms), (2500 * ms, 500 * ms))] == [7, 8]


@pytest.mark.skipif(not HAS_POSITIONS, reason="before CPython 3.11 what a frame calls cannot be told")
def test_a_rank_that_moves_on_without_hooks_is_told_from_one_that_waits() -> None:
    first, second = (
        frame_in("/lib/site-packages/torch/nn/functional.py"),
        frame_in("/lib/site-packages/torch/nn/linear.py"),
    )
    moving, waiting = Rank(first).stall(), Rank(first).stall()
    for _ in range(3):
        for frame in (first, second):
            moving.frame = frame
            moving.pass_time(LOOK_NS_MIN)
            waiting.pass_time(LOOK_NS_MIN)
    assert moving.take() == [QuietPlace(7, MOVES)]
    assert waiting.take() == []


def test_ranks_that_take_turns_are_of_no_kind() -> None:
    barrier = frame_in(BARRIER.file)
    with sleeping_thread() as frame:
        first, second = Rank(frame).stall(), Rank(barrier).stall()
        for rank, then in ((first, barrier), (second, frame)):
            rank.pass_time(LOOK_NS_MAX).frame = then
            rank.pass_time(LOOK_NS_MAX)
        assert (first.take(), second.take()) == ([], [])
        second.events += 1
        (place,) = second.pass_time(2 * LOOK_NS_MAX).take((2 * LOOK_NS_MAX, 2 * LOOK_NS_MAX))
        assert place.does == WORKS


def test_rank_waits_or_moves_that_does_so_for_most_of_the_step() -> None:
    barrier = frame_in(BARRIER.file)
    rank = Rank(barrier).stall().pass_time(20 * STALL_NS, is_busy=lambda: True).pass_time(8 * STALL_NS)
    assert rank.take() == [QuietPlace(7, MOVES)]
    rank = Rank(barrier).stall().pass_time(16 * STALL_NS, is_busy=lambda: True).pass_time(14 * STALL_NS)
    assert rank.take() == []
    rank = Rank(barrier).stall().pass_time(2 * STALL_NS, is_busy=lambda: True).pass_time(20 * STALL_NS)
    assert [one.does for one in rank.take()] == [WAITS_FOR_RANKS]


@pytest.mark.skipif(not HAS_POSITIONS, reason="before CPython 3.11 what a frame calls cannot be told")
def test_what_a_rank_calls_fits_into_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quiet_steps, "find_called_name", lambda *_: 2 * NAME_LENGTH_MAX * "x")
    (place,) = Rank(frame_in("train.py")).stall().pass_time(STALL_NS).take()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(place), type=QuietPlace) == place


@pytest.mark.parametrize(
    ("stall_ns", "gap_ns"),
    [(4 * STALL_NS, 4 * STALL_NS // LOOKS_A_STALL), (STALL_NS, LOOK_NS_MIN), (60 * STALL_NS, LOOK_NS_MAX)],
)
def test_looks_are_as_often_as_stalls_need_and_no_more(stall_ns: int, gap_ns: int) -> None:
    rank = Rank().learn(*[stall_ns] * STALLS_MIN)
    assert rank.quiet.interval_s == pytest.approx(gap_ns / NS_PER_S)


def test_looks_end_when_stalls_are_long_ago_and_begin_again() -> None:
    rank = Rank().stall().learn(STALL_NS, steps=GONE_STEPS + 1)
    assert not rank.quiet.is_wanted
    assert rank.stall().begun == 2


def test_what_is_called_is_found_once_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[CodeType] = []

    def find(code: CodeType, _at: int) -> str:
        found.append(code)
        return ""

    monkeypatch.setattr(quiet_steps, "find_called_name", find)
    assert Rank(frame_in("train.py")).stall().pass_time(8 * STALL_NS).samples > 4
    assert [code.co_filename for code in found] == ["train.py"]


def test_a_process_with_a_device_that_seems_to_work_may_wait_for_it() -> None:
    with sleeping_thread() as frame:
        rank = Rank(frame)
        rank.has_device = True
        assert rank.stall().pass_time(STALL_NS).take() == []


def test_rank_without_python_has_no_place() -> None:
    assert Rank().stall().pass_time(STALL_NS).take() == []


def test_places_and_looks_are_bounded() -> None:
    with sleeping_thread() as frame:
        rank = Rank(frame).stall()
        for _ in range(LOOKS_MAX):
            rank.events += 1
            rank.pass_time(2 * STALL_NS)
        steps = [(place * 2 * STALL_NS, 2 * STALL_NS) for place in range(LOOKS_MAX)]
        assert len(rank.take(*steps)) == QUIET_PLACES_MAX


def test_looks_end_while_the_sampler_is_paused_and_begin_again() -> None:
    rank = Rank().stall()
    assert not rank.quiet.learn([], rank.step, USUAL_NS, may_look=False)
    assert not rank.quiet.is_wanted
    assert rank.quiet.learn([], rank.step, USUAL_NS)


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
        ([DISPATCH, MAIN], "op_call", ""),
        ([], "", ""),
        ([OPTIMIZER, MAIN], "", "works"),
        ([MAIN, OPTIMIZER, MAIN], "work.wait", ""),
        ([SAVE, MAIN], "storage.cpu", ""),
    ],
)
def test_what_a_thread_does_follows_from_its_innermost_frame(frames: list[StackFrame], call: str, does: str) -> None:
    assert find_doing(frames, call, has_device=False) == does


def test_saving_is_work_with_a_device_too() -> None:
    assert find_doing([SAVE, MAIN], "zip_file.write_record", has_device=True) == "works"
    assert find_doing([MAIN], "time.sleep", has_device=True) == ""
    assert find_doing([OPTIMIZER, MAIN], "", has_device=True) == ""
