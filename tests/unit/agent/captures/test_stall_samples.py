"""Samples of a rank without hook events: whether its stack moves and its CPU time grows."""

import time
from pathlib import Path

from rankscope.agent.captures.stall_samples import DEPTH_MAX, SAMPLES_MAX, StallSampler, find_sleeps, read_main_stack
from rankscope.measure.stalls import StackFrame, StallSamples

S = 1_000_000_000
MAIN = StackFrame("/home/me/train.py", 90, "main")
LIBRARY = StackFrame("/env/lib/python3.11/site-packages/torch/nn/modules/linear.py", 125, "forward")


def evaluating(line: int, *inner: StackFrame) -> tuple[StackFrame, ...]:
    """A stack in the script's evaluation, outermost first."""
    return (MAIN, StackFrame("/home/me/train.py", line, "evaluate"), *inner)


def sample(*samples: tuple[int, tuple[StackFrame, ...]], window_s: int = 30) -> StallSamples | None:
    """What samples show that are a second apart, each the CPU time so far in s and the stack."""
    left = list(samples)
    sampler = StallSampler(lambda: left[0][1], lambda: left[0][0] * S, lambda: None)
    for second in range(len(samples)):
        sampler.add(second * S, window_s * S)
        left.pop(0)
    return sampler.summarize()


def test_without_samples_nothing_is_known() -> None:
    assert sample() is None


def test_stack_that_stands_has_no_changes() -> None:
    shown = sample((5, evaluating(55)), (5, evaluating(55)), (5, evaluating(55)))
    frame = StackFrame("/home/me/train.py", 55, "evaluate")
    assert shown == StallSamples(count=3, span_ns=2 * S, changes=0, cpu_ns=0, frame=frame)
    assert not shown.shows_work


def test_cpu_time_counts_from_the_first_sample() -> None:
    shown = sample((5, evaluating(55)), (6, evaluating(55)), (8, evaluating(55)))
    assert shown is not None
    assert (shown.cpu_ns, shown.span_ns, shown.shows_work) == (3 * S, 2 * S, True)


def test_wakes_count_from_the_first_sample() -> None:
    sleeps = iter((700, 750, 800))
    sampler = StallSampler(lambda: evaluating(55), lambda: 0, lambda: next(sleeps))
    for second in range(3):
        sampler.add(second * S, 30 * S)
    shown = sampler.summarize()
    assert shown is not None
    assert (shown.wakes, shown.changes, shown.cpu_ns, shown.shows_work) == (100, 0, 0, True)


def test_main_thread_that_sleeps_a_hundred_times_is_counted() -> None:
    def sleep_often() -> int:
        for _ in range(100):
            time.sleep(0.0001)
        return find_sleeps() or 0

    # The file is about the main thread, which runs the tests.
    first = sleep_often()
    assert first >= 100
    assert 100 <= sleep_often() - first < 200
    assert find_sleeps("/proc/self/no-such-file") is None


def test_kernel_that_does_not_count_sleeps_is_no_zero(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nnonvoluntary_ctxt_switches:\t7\n")
    assert find_sleeps(str(status)) is None
    status.write_text("Name:\tpython\nvoluntary_ctxt_switches:\t0\nnonvoluntary_ctxt_switches:\t0\n")
    assert find_sleeps(str(status)) is None


def test_call_in_all_samples_is_named_at_its_last_line() -> None:
    model = StackFrame("/home/me/model.py", 7, "forward")
    shown = sample((0, evaluating(55, model)), (0, evaluating(55, LIBRARY)), (0, evaluating(56, model)))
    assert shown is not None
    assert (shown.changes, shown.frame) == (2, StackFrame("/home/me/train.py", 56, "evaluate"))


def test_call_within_a_library_is_not_named() -> None:
    shown = sample((0, (LIBRARY,)), (0, (LIBRARY,)))
    assert shown is not None
    assert shown.frame is None


def test_samples_older_than_the_window_are_forgotten() -> None:
    shown = sample((0, evaluating(55)), (5, evaluating(56)), (5, evaluating(56)), (5, evaluating(56)), window_s=2)
    assert shown is not None
    assert (shown.count, shown.changes, shown.cpu_ns, shown.span_ns) == (3, 0, 0, 2 * S)


def test_samples_are_bounded() -> None:
    shown = sample(*[(0, evaluating(55))] * (SAMPLES_MAX + 3), window_s=1_000)
    assert shown is not None
    assert shown.count == SAMPLES_MAX


def test_all_samples_are_forgotten_when_something_happens() -> None:
    sampler = StallSampler(read_stack=tuple, read_cpu_ns=int)
    sampler.add(0, S)
    sampler.clear()
    assert (sampler.count, sampler.summarize()) == (0, None)


def test_stack_of_this_test_ends_with_its_own_call() -> None:
    assert read_main_stack()[-1].function == "test_stack_of_this_test_ends_with_its_own_call"


def test_deep_stack_is_cut_at_its_outer_end() -> None:
    def dive(depth: int) -> tuple[StackFrame, ...]:
        return dive(depth - 1) if depth else read_main_stack()

    frames = dive(DEPTH_MAX)
    assert len(frames) == DEPTH_MAX
    assert {frame.function for frame in frames[1:]} == {"dive"}


def test_cpu_time_is_without_that_of_the_calling_thread() -> None:
    sampler = StallSampler()
    sampler.add(time.monotonic_ns(), S)
    sum(range(1_000_000))
    sampler.add(time.monotonic_ns(), S)
    shown = sampler.summarize()
    assert shown is not None
    # Only this thread has computed, and other threads of the tests sleep.
    assert shown.cpu_ns < shown.span_ns
