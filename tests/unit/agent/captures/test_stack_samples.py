"""StackSamples: how samples become time in lines of steps. Frames are of made-up files; times in ms."""

import gc
import sysconfig
import threading
from types import FrameType, SimpleNamespace
from typing import Any, cast

import pytest
import torch

from rankscope.agent.captures.called_name import HAS_POSITIONS, find_called_name
from rankscope.agent.captures.kernel_waits import KernelWait, KernelWaits
from rankscope.agent.captures.script_files import ScriptFiles
from rankscope.agent.captures.stack_samples import COLLECTION, INJECTED, StackSamples, find_native_id
from rankscope.agent.collection_times import Collection, CollectionTimes
from rankscope.agent.faults import actions
from rankscope.measure.line_samples import BY_LIBRARY, LONG, NO_STEP, NOW, WHOLE, SampledStack, SampledStep
from rankscope.measure.messages import SampleOrder
from rankscope.measure.records import StepRecord
from rankscope.measure.stalls import describe_frame
from rankscope.measure.units import NS_PER_MS
from tests.unit.agent.captures.made_frames import SCRIPT, frame_in

TORCH = f"{torch.__path__[0]}/_tensor.py"
LIBRARY = f"{sysconfig.get_paths()['purelib']}/PIL/Image.py"
HERE, THERE = frame_in(SCRIPT, line=8), frame_in(SCRIPT, line=9)


class Waits(KernelWaits):
    """A thread that always waits in the same call."""

    def __init__(self) -> None:
        super().__init__(0)

    def read(self) -> KernelWait | None:
        return KernelWait(0, 3)

    def describe(self, wait: KernelWait) -> str:
        return f"read of {wait.argument}"


def make(
    mode: str = WHOLE,
    waits: KernelWaits | None = None,
    collections: CollectionTimes | None = None,
    **more: int,
) -> StackSamples:
    given = {"interval_ns": 10 * NS_PER_MS, "lasts_ns": 100 * NS_PER_MS, "steps_max": 9, **more}
    order = SampleOrder(id="s1", mode=mode, **given)
    return StackSamples(order, 1, ScriptFiles({}), monotonic_ns=lambda: 0, waits=waits, collections=collections)


def add(samples: StackSamples, **frames_at_ms: FrameType | None) -> None:
    for at, frame in frames_at_ms.items():
        samples.add(int(at.removeprefix("ms")) * NS_PER_MS, frame)


def step(number: int, begin_ms: int, end_ms: int, *, captured: bool = False) -> StepRecord:
    begin_ns, length_ns = begin_ms * NS_PER_MS, (end_ms - begin_ms) * NS_PER_MS
    return StepRecord(
        step=number, start_host_ns=begin_ns, duration_ns=length_ns, phases_ns={"other": length_ns}, captured=captured
    )


def lines(samples: StackSamples) -> list[dict[str, float]]:
    """Return the ms of each line of each step."""
    stacks, steps = samples.finish()
    names = [describe_frame(one.frames[-1]) if one.frames else "none" for one in stacks]
    return [{names[place]: ns / NS_PER_MS for place, ns in one.stack_ns} for one in steps]


def fold(frame: FrameType | None) -> SampledStack:
    samples = make()
    add(samples, ms0=frame, ms20=frame)
    samples.take_steps([step(5, 1, 15)])
    (stack,), _ = samples.finish()
    return stack


def cut(frame: FrameType, depth: int) -> FrameType:
    """Return a frame as if its thread had begun with the outermost of so many."""
    outer = None if depth == 1 or frame.f_back is None else cut(frame.f_back, depth - 1)
    found: Any = SimpleNamespace(f_code=frame.f_code, f_lasti=frame.f_lasti, f_globals=frame.f_globals, f_back=outer)
    return cast("FrameType", found)


def is_calling(frame: FrameType) -> bool:
    """Whether it waits for the lock of the test, and not just begins."""
    return frame.f_code.co_name == "wait_for_lock" and bool(find_called_name(frame.f_code, frame.f_lasti))


def test_sample_stands_for_the_time_since_the_one_before() -> None:
    samples = make()
    add(samples, ms0=HERE, ms10=HERE, ms20=HERE, ms100=THERE, ms110=HERE, ms120=HERE)
    samples.take_steps([step(3, 5, 115)])
    assert lines(samples) == [{"train.py:8 (wait)": 5 + 10 + 10 + 5, "train.py:9 (wait)": 80}]  # 110 ms


def test_time_of_a_boundary_is_split_between_the_steps() -> None:
    samples = make()
    add(samples, ms0=HERE, ms10=HERE, ms20=THERE, ms30=THERE)
    samples.take_steps([step(3, 1, 14), step(4, 14, 25)])
    assert lines(samples) == [{"train.py:8 (wait)": 13}, {"train.py:9 (wait)": 11}]


def test_step_within_one_interval_belongs_to_the_sample_after_it() -> None:
    samples = make()
    add(samples, ms0=HERE, ms10=THERE)
    samples.take_steps([step(3, 2, 6)])
    assert lines(samples) == [{"train.py:9 (wait)": 4}]


def test_step_begun_before_the_first_sample_does_not_count() -> None:
    samples = make()
    add(samples, ms10=HERE, ms20=HERE, ms30=HERE)
    samples.take_steps([step(3, 5, 15), step(4, 15, 25)])
    assert [one.step for one in samples.finish()[1]] == [4]


def test_captured_step_does_not_count() -> None:
    samples = make()
    add(samples, ms0=HERE, ms10=HERE)
    samples.take_steps([step(3, 2, 6, captured=True)])
    assert samples.finish()[1] == ()


def test_only_long_steps_count_where_these_are_wanted() -> None:
    samples = make(LONG, longer_than_ns=10 * NS_PER_MS)
    add(samples, ms0=HERE, ms10=HERE, ms20=HERE, ms30=HERE, ms40=HERE)
    samples.take_steps([step(3, 2, 12), step(4, 12, 38)])
    assert [one.step for one in samples.finish()[1]] == [4]


def test_other_threads_time_is_between_the_samples_of_a_step() -> None:
    samples = make()
    of_library = cut(frame_in(LIBRARY, SCRIPT), 2)  # started by a library, at a line of the script now
    idle = cut(frame_in(LIBRARY), 1)
    for at in (0, 10, 20, 30):
        add(samples, **{f"ms{at}": HERE})
        samples.add_others(at * NS_PER_MS, {1: HERE, 2: cut(THERE, 1), 3: of_library, 4: idle})
    samples.take_steps([step(3, 5, 15), step(4, 15, 30)])
    stacks, _ = samples.finish()
    found = [{stacks[place]: ns / NS_PER_MS for place, ns in one.stack_ns} for one in samples.threads]
    assert [one.step for one in samples.threads] == [3, 4]
    assert [sorted((stack.stage, ms) for stack, ms in one.items()) for one in found] == [
        [("", 5), (BY_LIBRARY, 5)],  # the sample at 10, for the time since the begin of the step
        [("", 5 + 10), (BY_LIBRARY, 5 + 10)],
    ]


def test_nothing_is_kept_of_threads_that_run_no_script_code() -> None:
    samples = make()
    for at in (0, 10, 20):
        add(samples, **{f"ms{at}": HERE})
        samples.add_others(at * NS_PER_MS, {1: HERE, 4: cut(frame_in(LIBRARY), 1)})
    samples.take_steps([step(3, 2, 15)])
    assert samples.finish()[1]
    assert samples.threads == ()


def test_time_of_a_stalled_rank_is_of_no_step() -> None:
    samples = make(NOW)
    add(samples, ms0=HERE, ms10=HERE, ms20=THERE)
    (_, steps) = samples.finish()
    assert steps == (
        SampledStep(step=NO_STEP, duration_ns=20 * NS_PER_MS, stack_ns=((0, 10 * NS_PER_MS), (1, 10 * NS_PER_MS))),
    )


def test_it_is_over_with_enough_steps_or_after_its_time() -> None:
    samples = make(steps_max=1)
    assert [samples.is_over(99 * NS_PER_MS), samples.is_over(100 * NS_PER_MS)] == [False, True]
    add(samples, ms0=HERE, ms10=HERE)
    samples.take_steps([step(3, 2, 6), step(4, 6, 9)])
    assert (samples.is_over(0), len(samples.finish()[1])) == (True, 1)


def test_frames_of_the_script_are_kept_outermost_first() -> None:
    frames = fold(frame_in("/home/me/main.py", SCRIPT, TORCH, line=4)).frames
    assert [describe_frame(one) for one in frames[-2:]] == ["main.py:4 (wait)", "train.py:4 (wait)"]


def test_line_of_another_library_stands_beside_the_scripts_line() -> None:
    found = fold(frame_in(SCRIPT, LIBRARY, TORCH, line=4))
    assert (describe_frame(found.frames[-1]), found.inside) == ("train.py:4 (wait)", "PIL/Image.py:4 (wait)")


def test_without_a_script_the_line_is_the_library_s() -> None:
    found = fold(cut(frame_in(LIBRARY, TORCH, line=4), 2))
    assert ([describe_frame(one) for one in found.frames], found.inside) == (["Image.py:4 (wait)"], "")


def test_thread_without_a_frame_has_no_line() -> None:
    assert fold(None) == SampledStack()


@pytest.mark.skipif(not HAS_POSITIONS, reason="instructions have no positions")
def test_what_is_called_in_c_is_named() -> None:
    def wait_for_lock(lock: threading.Lock) -> None:
        lock.acquire()

    lock, samples = threading.Lock(), make()
    lock.acquire()
    thread = threading.Thread(target=wait_for_lock, args=(lock,))
    thread.start()
    try:
        import sys  # noqa: PLC0415 - for this test alone

        while (
            frame := sys._current_frames().get(thread.ident or 0)
        ) is None or frame.f_code.co_name != "wait_for_lock":
            pass
        while samples._fold(frame).script[0][1] == 0:
            pass
        add(samples, ms0=frame, ms20=frame)
    finally:
        lock.release()
        thread.join()
    samples.take_steps([step(5, 1, 15)])
    assert samples.finish()[0][0].call == "lock.acquire"


class Collected(CollectionTimes):
    """Collections that are there at the second sample."""

    def __init__(self, *found: Collection) -> None:
        super().__init__()
        self.found: list[list[Collection]] = [[], list(found)]

    def take(self) -> list[Collection]:
        return self.found.pop(0) if self.found else []


def test_time_of_the_garbage_collector_is_told_apart() -> None:
    # Of 40 ms 25 were two collections of this thread; another thread's are none of its time.
    mine = [Collection(1, 2 * NS_PER_MS, 22 * NS_PER_MS), Collection(1, 30 * NS_PER_MS, 35 * NS_PER_MS)]
    samples = make(collections=Collected(*mine, Collection(2, 36 * NS_PER_MS, 38 * NS_PER_MS)))
    add(samples, ms0=HERE, ms40=HERE, ms50=HERE)
    samples.take_steps([step(5, 0, 50)])
    stacks, (found,) = samples.finish()
    assert {stacks[place].call: ns for place, ns in found.stack_ns} == {COLLECTION: 25 * NS_PER_MS, "": 25 * NS_PER_MS}


def test_no_callback_of_the_collector_is_left() -> None:
    before = list(gc.callbacks)
    samples = make()
    assert len(gc.callbacks) == len(before) + 1
    samples.close()
    assert gc.callbacks == before


def test_fault_on_purpose_is_told() -> None:
    assert fold(frame_in(SCRIPT, TORCH, actions.__file__)).call == INJECTED


def test_kernel_wait_is_that_of_most_recurring_samples() -> None:
    samples = make(waits=Waits())
    add(samples, ms0=HERE, ms10=HERE, ms20=THERE, ms30=HERE)
    samples.take_steps([step(3, 1, 25)])
    stacks, _ = samples.finish()
    assert {describe_frame(one.frames[-1]): one.waits_in for one in stacks} == {
        "train.py:8 (wait)": "read of 3",
        "train.py:9 (wait)": "",
    }


def test_samples_become_rarer_where_they_cost_too_much() -> None:
    samples = make()
    samples.cpu_ns = 6 * NS_PER_MS  # 5 are free, and 1 % of 90 ms
    add(samples, ms90=HERE)
    assert samples.interval_s == pytest.approx(0.015)
    add(samples, ms200=HERE)
    assert samples.interval_s == pytest.approx(0.015)


def test_main_thread_has_the_number_of_the_process() -> None:
    assert find_native_id(threading.get_ident()) == threading.get_native_id()
    assert find_native_id(-1) is None
