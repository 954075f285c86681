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

Ranks may wait in forward, too, where DDP sends out buffers, but only a late rank shows it. Of `data` it is known that
nobody waits for a rank there. So where a rank's loader is late and a peer's other phases last as much longer, the peer
waited in them: what they last longer, up to the lateness of the loader, is no own time.

Example: two ranks with 12 ms in backward, steps of 21 ms. A step takes 81 ms: rank 1 has 68 ms outside of backward and
13 in it, rank 0 has 8 and 73, and both 12 ms of CPU in it. Own times are 80 and 20 ms, and with the usual rest of 1 ms
the step is as predicted. With `time.sleep` in backward of rank 1 own times would be 20 ms, and the step is not known.
If rank 1 has 60 ms more in `data` and rank 0 in forward, own times are 80 and 20 ms as well.
"""

from typing import Final

import numpy as np

from rankscope.collector.steps.predicted_steps import (
    MEASURED_LAST,
    MEASURED_MIN,
    are_unlike,
    fill_as_predicted,
)
from rankscope.collector.steps.step_series import Flags, Floats

WAITS_IN: Final = "backward"
"""The phase in which ranks wait for each other."""
NO_WAITS_IN: Final = "data"
"""The phase in which they certainly do not."""
KNOWN_MIN: Final = 8
"""Steps that tell the usual rest."""
UNLIKE_RATIO: Final = 0.1
"""Share of a step by which a rank's own time may differ from that of windows in the median."""
REST_RATIO_MAX: Final = 0.25
"""Share of a step that the rest may be without windows: more may be a rank that does something in backward."""
TOLERANCE_RATIO: Final = 0.1
"""Share of a step by which it may differ from the prediction."""


def find_without_waits(step_ns: Floats, off_cpu_ns: Floats, loading_ns: Floats) -> Floats:
    """Return the steps without what ranks wait in backward, and for a rank whose loader was later; all have the shape
    (n, ranks) and are in ns. `off_cpu_ns`: the time in backward without CPU time; `loading_ns`: the time in `data`. NaN
    where a rank has not reported the step.
    """
    own_ns = np.clip(step_ns - off_cpu_ns, 0.0, step_ns)
    return _subtract_waits_for_loaders(own_ns, step_ns, np.nan_to_num(loading_ns, nan=0.0))


def fill_from_cpu(measured_ns: Floats, step_ns: Floats, own_ns: Floats, *, all_meet: bool) -> Floats:
    """Return the own times with those that the CPU time in backward shows; NaN where neither is known.

    All have the shape (n, ranks) and are in ns. `measured_ns`: of windows, NaN elsewhere; `own_ns`: of
    `find_without_waits`. `all_meet`: whether each process group with peers has all ranks.
    """
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


def _subtract_waits_for_loaders(own_ns: Floats, step_ns: Floats, loading_ns: Floats) -> Floats:
    """Return the own times without waits for a rank whose loader was later, where these are clear; all of the shape
    (n, ranks) in ns, NaN in steps that a rank has not reported.
    """
    rows, latest = np.arange(len(own_ns)), loading_ns.argmax(axis=1)
    later_ns = loading_ns[rows, latest][:, None] - loading_ns
    beside_ns = own_ns - loading_ns
    waits_ns = np.minimum(later_ns, beside_ns - beside_ns[rows, latest][:, None])
    return np.where(waits_ns > TOLERANCE_RATIO * step_ns, own_ns - waits_ns, own_ns)
