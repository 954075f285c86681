"""Know the self time of steps between profiler windows from their phases, where the step shows that it is right. Pure.

Problem: windows measure the waiting of few steps, on a CPU often ten of a thousand. What happens between them was not
judged, although every step reports its phases, and most faults of a host lie in one: a loader, a sleep in forward.

Naive: call all phases but backward a rank's own work (`sum_computing`). That hides what is slow in backward, and takes
ranks for equal that wait for each other in forward, as with FSDP.

So the windows teach, and every step is checked. With gloo's DDP ranks wait in backward only; then

    own time in backward = self time - phases other than backward    the median over the measured steps and all ranks
    self time            = phases other than backward + own time in backward
    predicted step       = longest self time of any rank + transfer  what the measured steps take beyond it

and a step is known when its longest duration on any rank is as predicted: then no rank's backward can have been longer
by more than the tolerance where it mattered. A step with a stall in backward, or with other batches, stays unknown.
All ranks get the same time in backward: of few noisy steps each rank's own would be a difference between ranks that
there is not. To it comes what a measured step differed by, of one after the other: without, the self times would vary
less than they do, and differences by chance would stand out of their noise. Where ranks clearly need different times
there, where the measured steps disagree, or steps are so short that a disturbance of the machine lasts for hundreds of
them, nothing is known this way.

Example: two ranks, self times of 20 ms of which 12 in backward, steps of 21 ms. A step takes 81 ms: rank 1 has 68 ms
outside of backward and 13 in it, rank 0 has 8 and 73. Predicted are 68 + 12 + 1 ms: so rank 1 needed 80 ms, rank 0 20.
Had backward been 73 ms on both, 21 ms were predicted, and nothing is known.

Only for ranks on CPUs whose groups move their data by the host: on a device the host's phases say when work was
enqueued, and a rank with slow kernels would look healthy. Look again when windows of GPUs leave
steps between them that device times do not cover.
"""

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from rankscope.collector.steps.step_series import Cells, Floats
from rankscope.measure.units import NS_PER_MS

WAITS_IN: Final = "backward"
"""The phase in which ranks wait for each other."""
LEARN_MIN: Final = 6
"""Measured steps that teach: the median of six is off by half of their noise."""
LEARN_LAST: Final = 32
"""The last of them only: what a step does may change."""
SHORTEST_STEP_NS: Final = 5 * NS_PER_MS
"""Of 53 healthy jobs of 200 steps of 2.8 ms on two cores, five had a rank that computed longer for some tenths of a
second, which is no straggler; such noise is as good as independent in steps of some ms."""
NOISE_RATIO_MAX: Final = 0.5
"""Share of a step by which the measured steps may differ in the median from what they teach."""
UNLIKE_ERRORS: Final = 4.0
UNLIKE_RATIO: Final = 0.05
"""Standard errors, and share of a step, by which a rank's time in backward may differ from that of all."""
TOLERANCE_RATIO: Final = 0.1
TOLERANCE_DEVIATIONS: Final = 5.0
"""Share of a step, or deviations of the noise in backward, by which a step may differ from the prediction."""
MEDIAN_ERROR: Final = 1.253 * 1.4826
"""Standard error of the median of n values, times the root of n, over their median deviation; of normal noise."""


def fill_from_phases(self_ns: Floats, step_ns: Floats, phases_ns: Mapping[str, Cells]) -> Floats:
    """Return the self times with those that phases show, shape (n, ranks) in ns as both; NaN where neither is known."""
    if WAITS_IN not in phases_ns:
        return self_ns
    is_reported = ~np.isnan(step_ns).any(axis=1)
    is_measured = is_reported & ~np.isnan(self_ns).any(axis=1)
    measured, open_ = np.flatnonzero(is_measured)[-LEARN_LAST:], np.flatnonzero(is_reported & ~is_measured)
    if len(measured) < LEARN_MIN or not len(open_):
        return self_ns
    apart_ns = step_ns - np.nan_to_num(phases_ns[WAITS_IN][:], nan=0.0)
    in_backward_ns = self_ns[measured] - apart_ns[measured]
    of_ranks_ns = np.median(in_backward_ns, axis=0)
    usual_ns = float(np.median(of_ranks_ns))
    noise_ns = float(np.median(np.abs(in_backward_ns - of_ranks_ns)))
    usual_step_ns = float(np.median(step_ns[measured]))
    error_ns = MEDIAN_ERROR * noise_ns / math.sqrt(len(measured))
    unlike_ns = float(np.abs(of_ranks_ns - usual_ns).max())
    is_unlike = unlike_ns > max(UNLIKE_ERRORS * error_ns, UNLIKE_RATIO * usual_step_ns)
    if is_unlike or noise_ns > NOISE_RATIO_MAX * usual_step_ns or usual_step_ns < SHORTEST_STEP_NS:
        return self_ns
    longest_ns = step_ns.max(axis=1)
    transfer_ns = float(np.median(longest_ns[measured] - self_ns[measured].max(axis=1)))
    own_ns = np.maximum(np.minimum(apart_ns + usual_ns, step_ns), 0.0)
    off_ns = np.abs(own_ns.max(axis=1) + transfer_ns - longest_ns)
    is_as_predicted = off_ns <= np.maximum(TOLERANCE_RATIO * longest_ns, TOLERANCE_DEVIATIONS * noise_ns)
    filled: Floats = self_ns.copy()
    known = open_[is_as_predicted[open_]]
    noise_of_each_ns = (in_backward_ns - of_ranks_ns)[np.arange(len(known)) % len(measured)]
    filled[known] = np.clip(own_ns[known] + noise_of_each_ns, 0.0, step_ns[known])
    return filled
