"""Record a few steps in a session of torch's own profilers, and reduce them as the agent does with a window.

The events are dated by torch's reading of the wall clock, the steps by the host clock. On a virtual machine that is
stopped for a moment, or whose wall clock is set, the two jump against each other by a part of a step, and events lie
outside of the steps in which they ran. The agent leaves such steps out; here they are recorded once more.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from rankscope.agent.profiler.reduce_window import WindowAnswer, reduce_window
from rankscope.agent.profiler.window_reading import read_window
from rankscope.agent.profiler.window_reduction import make_request
from rankscope.agent.profiler.window_scheduler import RawWindow
from rankscope.measure.clock import read_wall_minus_host_ns
from rankscope.measure.records import StepRecord

STEPS = 2
RECORDINGS_MAX = 20
"""More jumps one after the other are none."""


class Activity(Protocol):
    """What is read here of an event of torch's."""

    def type(self) -> str: ...
    def timestamp(self) -> int: ...
    def duration(self) -> int: ...


def record_and_reduce(
    run: Callable[[], None], profiler: Any, *, shapes: bool = True, host_only: bool = False
) -> WindowAnswer:
    """Run once, and STEPS times in a session of this profiler. Return what the child process of the agent would. What
    is run is run again, from its beginning on, where a clock has jumped.
    """
    for _ in range(RECORDINGS_MAX):
        run()
        window = record(run, profiler, shapes=shapes, host_only=host_only)
        activities = window.result.trace_activities()
        if lie_within(activities, window.steps, window.wall_minus_host_ns):
            break
    else:
        raise AssertionError(f"the clocks have jumped in each of {RECORDINGS_MAX} recordings")
    columns = read_window(window, activities, lambda: None).columns
    assert columns is not None
    return reduce_window(make_request(window, columns))


def record(run: Callable[[], None], profiler: Any, *, shapes: bool, host_only: bool) -> RawWindow:
    profiler.start(full=True, shapes=shapes, **({"host_only": True} if host_only else {}))
    records, begin_ns = [], time.monotonic_ns()
    for number in range(STEPS):
        run()
        end_ns = time.monotonic_ns()
        records.append(StepRecord(step=number, start_host_ns=begin_ns, duration_ns=end_ns - begin_ns, phases_ns={}))
        begin_ns = end_ns
    result = profiler.stop()
    return RawWindow(
        True, records, result, read_wall_minus_host_ns(), {}, {}, 0, has_shapes=shapes, host_only=host_only
    )


def lie_within(activities: Iterable[Activity], records: Sequence[StepRecord], wall_minus_host_ns: int) -> bool:
    """Whether every operator ran within the steps, which it did: else a clock has jumped."""
    operators = [one for one in activities if one.type() == "cpu_op"]
    begin_ns = records[0].start_host_ns + wall_minus_host_ns
    end_ns = records[-1].start_host_ns + records[-1].duration_ns + wall_minus_host_ns
    return all(begin_ns <= one.timestamp() and one.timestamp() + one.duration() <= end_ns for one in operators)
