"""CapturedSteps: which traces are passed on with the records of their steps, and what becomes of the others."""

from collections.abc import Iterable

from rankscope.agent.capture_settings import CaptureSteps
from rankscope.agent.captures.captured_steps import STEPS_LOST, TOO_LARGE, CapturedSteps, CapturedTrace
from rankscope.measure.records import StepRecord


def trace_of(begin: int, first: int, last: int, data: bytes = b"trace") -> CapturedTrace:
    return CapturedTrace(CaptureSteps(begin, first, last), data, 0)


def records(steps: Iterable[int]) -> list[StepRecord]:
    return [StepRecord(step=step, start_host_ns=step, duration_ns=1, phases_ns={}, captured=True) for step in steps]


def join(captured: CapturedSteps, steps: Iterable[int]) -> list[list[int]]:
    return [[record.step for record in found] for _, found in captured.join(records(steps))]


def test_step_in_which_the_session_began_is_left_out() -> None:
    captured = CapturedSteps()
    captured.add([trace_of(8, 8, 10), trace_of(11, 12, 13)])
    assert join(captured, range(8, 15)) == [[9, 10], [12, 13]]


def test_capture_of_a_single_step_without_warm_up_has_none() -> None:
    captured = CapturedSteps()
    captured.add([trace_of(8, 8, 8)])
    assert (join(captured, [8, 9]), captured.skipped) == ([[]], {})


def test_trace_waits_for_a_report_with_its_last_step() -> None:
    captured = CapturedSteps()
    captured.add([trace_of(7, 8, 10)])
    assert [join(captured, steps) for steps in ([7, 8], [], [9], [10])] == [[], [], [], [[8, 9, 10]]]


def test_trace_whose_steps_were_overwritten_is_counted() -> None:
    captured = CapturedSteps()
    captured.add([trace_of(7, 8, 10)])
    assert (join(captured, [8, 10, 11]), captured.skipped) == ([], {STEPS_LOST: 1})


def test_steps_that_no_capture_has_recorded_do_not_count() -> None:
    captured = CapturedSteps()
    captured.add([trace_of(7, 8, 8)])
    plain = StepRecord(step=8, start_host_ns=8, duration_ns=1, phases_ns={})
    assert (captured.join([plain]), captured.skipped) == ([], {STEPS_LOST: 1})


def test_third_waiting_trace_replaces_the_first_and_is_counted() -> None:
    captured = CapturedSteps()
    captured.add([trace_of(7, 8, 8), trace_of(9, 10, 10), trace_of(11, 12, 12), trace_of(13, 14, 14, b"")])
    assert (join(captured, range(8, 15)), captured.skipped) == ([[10], [12]], {STEPS_LOST: 1, TOO_LARGE: 1})
