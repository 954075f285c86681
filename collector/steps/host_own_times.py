"""Find each rank's own time in steps between profiler windows, where ranks train on CPUs and gloo moves their data.

In synchronous training a step takes as long on every rank, so its duration does not tell whose it was; its parts do.
With DDP ranks wait for each other in backward only, and a thread that waits there uses no CPU. So

    own time = the step - (the time in backward - the CPU time in backward)

which agents report of every step: no window is needed, and what happens in one step of hundreds is known like the rest.
What a rank does in backward without its CPU (a lock, a disk, a core that it had to wait for) looks like waiting. So a
step is known only when its longest duration on any rank is as predicted, the longest own time and the usual rest, which
is the transfer: then no rank's own time can have been longer by more than the tolerance where it mattered. That the
rest is no more than that windows have shown, or it is small, in a run in which all ranks meet in each process group.
Where windows show that ranks differ from these own times, nothing is known this way.

Ranks may wait in forward, too, where DDP sends out buffers, but only a late rank shows it. A rank is late by its
loader, as nobody waits for others in `data`, and by what it did at the end of the step before: the durations of steps
add up to when each begins, and most begin as usual. What a peer's other phases last longer than those of the rank that
comes last, up to its lateness, is waiting.

Example: two ranks with 12 ms in backward, steps of 21 ms. A step takes 81 ms: rank 1 has 68 ms outside of backward and
13 in it, rank 0 has 8 and 73, and both 12 ms of CPU in it. Own times are 80 and 20 ms, and with the usual rest of 1 ms
the step is as predicted. With `time.sleep` in backward of rank 1 own times would be 20 ms, and the step is not known.
If rank 1 has 60 ms more in `data` and rank 0 in forward, own times are 80 and 20 ms as well; and so they are if rank 1
had the 60 ms at the end of the step before, which took it 81 ms and rank 0 21, and now they take 21 and 81.
"""

from typing import Final, NamedTuple

import numpy as np

from rankscope.collector.steps.predicted_steps import (
    MEASURED_LAST,
    MEASURED_MIN,
    are_unlike,
    fill_as_predicted,
)
from rankscope.collector.steps.step_series import Flags, Floats, Ints

WAITS_IN: Final = "backward"
"""The phase in which ranks wait for each other."""
NO_WAITS_IN: Final = "data"
"""The phase in which they certainly do not."""
USUAL_STEPS: Final = 8
"""Steps before one of which most begin as usual."""
RANKS_MAX: Final = 2048
"""Ranks of which begins are compared, in 100 ms."""
KNOWN_MIN: Final = 8
"""Steps that tell the usual rest."""
UNLIKE_RATIO: Final = 0.1
"""Share of a step by which a rank's own time may differ from that of windows in the median."""
REST_RATIO_MAX: Final = 0.25
"""Share of a step that the rest may be without windows: more may be a rank that does something in backward."""
TOLERANCE_RATIO: Final = 0.1
"""Share of a step by which it may differ from the prediction."""


class Apart(NamedTuple):
    """Steps without waits, shape (n, ranks) in ns, NaN in those that a rank has not reported. `own_ns`: without what is
    known of waits, no rank's own time is longer; `step_ns`: since the rank that came last has come.
    """

    own_ns: Floats
    step_ns: Floats


def find_apart(steps: Ints, step_ns: Floats, off_cpu_ns: Floats, loading_ns: Floats) -> Apart:
    """Return the steps without what ranks wait in backward, and for a rank that was late when it came to forward.

    `steps` ascend, shape (n,); the others have the shape (n, ranks) and are in ns. `off_cpu_ns`: the time in backward
    without CPU time; `loading_ns`: the time in `data`.
    """
    own_ns = np.clip(step_ns - off_cpu_ns, 0.0, step_ns)
    loading_ns = np.nan_to_num(loading_ns, nan=0.0)
    late_ns = _find_late_begins(steps, step_ns)
    came_ns = late_ns + loading_ns
    rows, last = np.arange(len(came_ns)), came_ns.argmax(axis=1)
    early_ns = came_ns[rows, last][:, None] - came_ns
    waits_ns = np.minimum(early_ns, _exceed(own_ns - loading_ns, last))
    idle_ns = np.minimum(late_ns[rows, last][:, None] - late_ns, _exceed(step_ns, last))
    return Apart(
        np.where(waits_ns > TOLERANCE_RATIO * step_ns, own_ns - waits_ns, own_ns),
        np.where(idle_ns > TOLERANCE_RATIO * step_ns, step_ns - idle_ns, step_ns),
    )


def _exceed(times_ns: Floats, columns: Ints) -> Floats:
    """Return by how much times, shape (n, ranks), exceed that of one column in each row."""
    return times_ns - times_ns[np.arange(len(times_ns)), columns][:, None]


def _find_late_begins(steps: Ints, step_ns: Floats) -> Floats:
    """Return by how much later than usual, compared with each other, ranks begin steps, shape (n, ranks) in ns; 0 where
    the step before did not differ clearly between ranks, or too few before it are known.
    """
    late_ns = np.zeros_like(step_ns)
    if len(steps) <= USUAL_STEPS or len(late_ns[0]) > RANKS_MAX:
        return late_ns
    is_reported: Flags = np.asarray(~np.isnan(step_ns).any(axis=1))
    stretch: Ints = np.cumsum(np.append(True, (np.diff(steps) != 1) | ~is_reported[:-1]))
    lasted_ns = np.where(is_reported[:, None], step_ns, 0.0)
    begin_ns = np.cumsum(lasted_ns, axis=0) - lasted_ns
    begin_ns -= begin_ns[:, :1].copy()
    differs = np.append(False, (np.ptp(lasted_ns, axis=1) > TOLERANCE_RATIO * lasted_ns.max(axis=1))[:-1])
    for row in np.flatnonzero(differs[USUAL_STEPS:] & (stretch[USUAL_STEPS:] == stretch[:-USUAL_STEPS])) + USUAL_STEPS:
        late_ns[row] = begin_ns[row] - np.median(begin_ns[row - USUAL_STEPS : row], axis=0)
    return np.asarray(late_ns - late_ns.min(axis=1, keepdims=True))


def fill_from_cpu(measured_ns: Floats, apart: Apart, *, all_meet: bool) -> Floats:
    """Return the own times with those that the CPU time in backward shows; NaN where neither is known.

    `measured_ns`: of windows, NaN elsewhere; shape (n, ranks) in ns. `all_meet`: whether each process group with peers
    has all ranks.
    """
    own_ns, step_ns = apart
    is_reported: Flags = np.asarray(~np.isnan(own_ns).any(axis=1))
    is_measured = is_reported & ~np.isnan(measured_ns).any(axis=1)
    if np.count_nonzero(is_reported) < KNOWN_MIN:
        return measured_ns
    longest_ns = step_ns[is_reported].max(axis=1)
    rests_ns = longest_ns - own_ns[is_reported].max(axis=1)
    rest_ns = float(np.median(rests_ns))
    noise_ns = float(np.median(np.abs(rests_ns - rest_ns)))
    measured = np.flatnonzero(is_measured)[-MEASURED_LAST:]
    if len(measured) >= MEASURED_MIN:
        # The last ones by themselves, too: where ranks wait may have changed.
        for last in (measured, measured[-MEASURED_MIN:]):
            if are_unlike(measured_ns[last] - own_ns[last], step_ns[last], UNLIKE_RATIO):
                return measured_ns
    elif not all_meet or rest_ns > REST_RATIO_MAX * float(np.median(longest_ns)):
        return measured_ns
    open_ = np.flatnonzero(is_reported & ~is_measured)
    return fill_as_predicted(
        measured_ns, step_ns, open_, own_ns.__getitem__,
        rest_ns=rest_ns, noise_ns=noise_ns, tolerance_ratio=TOLERANCE_RATIO,
    )  # fmt: skip
