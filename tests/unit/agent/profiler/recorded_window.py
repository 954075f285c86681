"""Record a few steps in a session of torch's own profilers, and reduce them as the agent does with a window."""

import time
from collections.abc import Callable
from typing import Any

from rankscope.agent.profiler.reduce_window import WindowAnswer, reduce_window
from rankscope.agent.profiler.window_reading import read_window
from rankscope.agent.profiler.window_reduction import make_request
from rankscope.agent.profiler.window_scheduler import RawWindow
from rankscope.measure.clock import read_wall_minus_host_ns
from rankscope.measure.records import StepRecord

STEPS = 2


def record_and_reduce(
    run: Callable[[], None], profiler: Any, *, shapes: bool = True, host_only: bool = False
) -> WindowAnswer:
    """Run once, and STEPS times in a session of this profiler. Return what the child process of the agent would."""
    run()
    profiler.start(full=True, shapes=shapes, **({"host_only": True} if host_only else {}))
    records, begin_ns = [], time.monotonic_ns()
    for number in range(STEPS):
        run()
        end_ns = time.monotonic_ns()
        records.append(StepRecord(step=number, start_host_ns=begin_ns, duration_ns=end_ns - begin_ns, phases_ns={}))
        begin_ns = end_ns
    result = profiler.stop()
    window = RawWindow(
        True, records, result, read_wall_minus_host_ns(), {}, {}, 0, has_shapes=shapes, host_only=host_only
    )
    columns = read_window(window, result.trace_activities(), lambda: None).columns
    assert columns is not None
    return reduce_window(make_request(window, columns))
