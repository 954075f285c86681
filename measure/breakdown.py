"""Split a rank's time into compute, overlap, exposed communication, copy and idle (docs/definitions.md section 1)."""

import numpy as np

from rankscope.measure import intervals
from rankscope.measure.intervals import Intervals
from rankscope.measure.records import WindowBreakdown


def break_down(
    compute: Intervals,
    communication: Intervals,
    copies: Intervals,
    *,
    start_ns: int,
    end_ns: int,
    first_step: int,
    step_count: int,
    operator_count: int | None = None,
) -> WindowBreakdown:
    """Return how the window [start_ns, end_ns) of one rank was spent.

    The three inputs are raw intervals, shape (n, 2), in ns on the window's clock, in any order; they may overlap and
    reach outside the window. The parts sum to the window exactly. A worked example, 100 ns long:

    >>> import numpy as np
    >>> kernels = np.array([[0, 40], [60, 80]])
    >>> collectives = np.array([[30, 60]])
    >>> b = break_down(kernels, collectives, np.array([[75, 90]]), start_ns=0, end_ns=100, first_step=0, step_count=1)
    >>> b.compute_ns, b.communication_ns, b.overlap_ns, b.exposed_communication_ns, b.copy_ns, b.idle_ns
    (60, 30, 10, 20, 10, 10)
    """
    kernel_set, communication_set, copy_set = (
        intervals.union(intervals.clip(raw, start_ns, end_ns)) for raw in (compute, communication, copies)
    )
    exposed_ns = intervals.total_ns(intervals.subtract(communication_set, kernel_set))
    work_set = _join(kernel_set, communication_set)
    compute_ns = intervals.total_ns(kernel_set)
    communication_ns = intervals.total_ns(communication_set)
    copy_ns = intervals.total_ns(intervals.subtract(copy_set, work_set))
    return WindowBreakdown(
        first_step=first_step,
        step_count=step_count,
        window_ns=end_ns - start_ns,
        compute_ns=compute_ns,
        communication_ns=communication_ns,
        overlap_ns=communication_ns - exposed_ns,
        exposed_communication_ns=exposed_ns,
        copy_ns=copy_ns,
        idle_ns=end_ns - start_ns - compute_ns - exposed_ns - copy_ns,
        operator_count=operator_count,
    )


def _join(left: Intervals, right: Intervals) -> Intervals:
    return intervals.union(np.concatenate([left, right]))
