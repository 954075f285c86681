"""Find each rank's own time in steps between profiler windows, where ranks train on CPUs and gloo moves their data.

In synchronous training a step takes as long on every rank, so its duration does not tell whose it was; its parts do.
With DDP ranks wait for each other in backward only, and a thread that waits there uses no CPU. So

    own time = the step - (the time in backward - the CPU time in backward)

which agents report of every step: no window is needed, and what happens in one step of hundreds is known like the rest.
What a rank does in backward without its CPU (a lock, a disk, a core that it had to wait for) looks like waiting. So a
step is known only when its longest duration on any rank is as predicted, the longest own time and the usual rest, which
is the transfer: then no rank's own time can have been longer by more than the tolerance where it mattered. That the
rest is no more than that windows have shown, or it is small, in a run in which all ranks meet in each process group.
What windows show of one rank on top of that, and not of the others, is its own in every step. Where they show that
ranks wait elsewhere, nothing is known this way.

Ranks may wait in forward, too, where DDP sends out buffers, but only for a late rank. A rank is late by its loader, as
nobody waits for others in `data`, and by when it begins: durations of steps add up to that, and are compared with the
fastest steps before, in which nobody waited for long. What a peer's phases last longer than those of the rank that
comes last, up to its lateness, is waiting.

Example: two ranks with 12 ms in backward, steps of 21 ms. A step takes 81 ms: rank 1 has 68 ms outside of backward and
13 in it, rank 0 has 8 and 73, and both 12 ms of CPU in it. Own times are 80 and 20 ms, and with the usual rest of 1 ms
the step is as predicted. With `time.sleep` in backward of rank 1 own times would be 20 ms, and the step is not known.
If rank 1 has 60 ms more in `data` and rank 0 in forward, own times are 80 and 20 ms as well; and so they are if rank 1
has the 60 ms at the end of each step. The first took it 81 ms and rank 0 21, so it begins all later ones 60 ms late.
"""

import bisect
import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from rankscope.collector.steps.predicted_steps import (
    MEASURED_LAST,
    MEASURED_MIN,
    are_unlike,
    fill_as_predicted,
    find_common,
    find_least_difference,
    find_usual,
)
from rankscope.collector.steps.step_series import Cells, Flags, Floats, Ints

WAITS_IN: Final = "backward"
"""The phase in which ranks wait for each other."""
NO_WAITS_IN: Final = "data"
"""The phase in which they certainly do not."""
USUAL_STEPS: Final = 8
"""Fast steps before one, in most of which ranks begin as usual."""
RANKS_MAX: Final = 2048
"""Ranks of which begins are compared, in 100 ms."""
KNOWN_MIN: Final = 8
"""Steps that tell the usual rest."""
UNLIKE_RATIO: Final = 0.1
"""Share of a step by which a rank's own time may differ from that of windows in the median, and from its peers'."""
APART_RATIO: Final = 1 / 3
"""Share of what the slowest rank usually has on top of its peers by which that may differ, if it is more: of two ranks
that differ by 40 ms in each step, windows may show 27 or 53."""
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


def find_apart(step_ns: Floats, late_ns: Floats, off_cpu_ns: Floats, phases_ns: Mapping[str, Cells]) -> Apart:
    """Return the steps without what ranks wait in backward, and for a rank that was late when it came to forward.

    All have the shape (n, ranks) and are in ns. `late_ns`: of `find_late_begins`; `off_cpu_ns`: the time in backward
    without CPU time.
    """
    own_ns = np.clip(step_ns - off_cpu_ns, 0.0, step_ns)
    came_ns = late_ns + np.nan_to_num(phases_ns[NO_WAITS_IN][:], nan=0.0)
    last = came_ns.argmax(axis=1)
    more_ns = np.zeros_like(step_ns)
    for name, times_ns in phases_ns.items():
        if name not in (NO_WAITS_IN, WAITS_IN):
            more_ns += np.maximum(_exceed(np.nan_to_num(times_ns[:], nan=0.0), last), 0.0)
    waits_ns = _explain(more_ns, -_exceed(came_ns, last), step_ns)
    idle_ns = _explain(_exceed(step_ns, last), -_exceed(late_ns, last), step_ns)
    return Apart(np.maximum(own_ns - waits_ns, 0.0), step_ns - idle_ns)


def _explain(more_ns: Floats, early_ns: Floats, step_ns: Floats) -> Floats:
    """Return how much of what ranks took longer they waited, as they were early by `early_ns`; all of it where that
    explains it within the tolerance, 0 where it is within the tolerance.
    """
    least_ns = TOLERANCE_RATIO * step_ns
    waits_ns = np.where(more_ns - early_ns <= least_ns, more_ns, early_ns)
    return np.where(np.minimum(waits_ns, early_ns) > least_ns, waits_ns, 0.0)


def _exceed(times_ns: Floats, columns: Ints) -> Floats:
    """Return by how much times, shape (n, ranks), exceed that of one column in each row."""
    return times_ns - times_ns[np.arange(len(times_ns)), columns][:, None]


def find_late_begins(steps: Ints, step_ns: Floats) -> Floats:
    """Return by how much later than in the fastest steps before, compared with each other, ranks begin steps, shape
    (n, ranks) in ns; 0 where too few are known. In these nobody waited for long. `steps` ascend, shape (n,).
    """
    late_ns = np.zeros_like(step_ns)
    if late_ns.shape[1] > RANKS_MAX:
        return late_ns
    is_reported: Flags = np.asarray(~np.isnan(step_ns).any(axis=1))
    lasted_ns = np.where(is_reported[:, None], step_ns, 0.0)
    longest_ns = lasted_ns.max(axis=1)
    begin_ns = np.cumsum(lasted_ns, axis=0) - lasted_ns
    begin_ns -= begin_ns[:, :1].copy()
    bounds = np.flatnonzero(np.append(True, (np.diff(steps) != 1) | ~is_reported[:-1]))
    for first, end in itertools.pairwise([*bounds.tolist(), len(steps)]):
        begins_ns, lates_ns = begin_ns[first:end], late_ns[first:end]
        for slow, fast in _split_by_fast(longest_ns[first:end].tolist()):
            if slow.start < slow.stop:
                lates_ns[slow] = begins_ns[slow] - np.median(begins_ns[list(fast)], axis=0)
    return np.asarray(late_ns - late_ns.min(axis=1, keepdims=True))


def _split_by_fast(longest_ns: Sequence[float]) -> Iterator[tuple[slice, Sequence[int]]]:
    """Return the slow rows after each fast one, and the last USUAL_STEPS fast ones before them. A row is fast when it
    is hardly longer than so many of the fastest before it; the first ones count as fast.
    """
    fast = deque(range(USUAL_STEPS), maxlen=USUAL_STEPS)
    fastest_ns = sorted(longest_ns[:USUAL_STEPS])
    for row, row_ns in enumerate(longest_ns[USUAL_STEPS:], USUAL_STEPS):
        if row_ns <= (1 + TOLERANCE_RATIO) * fastest_ns[-1]:
            yield slice(fast[-1] + 1, row), fast
            fast.append(row)
            bisect.insort(fastest_ns, row_ns)
            fastest_ns.pop()
    yield slice(fast[-1] + 1, len(longest_ns)), fast


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
    measured = np.flatnonzero(is_measured)[-MEASURED_LAST:]
    is_taught = len(measured) >= MEASURED_MIN
    if is_taught:
        apart_ns = own_ns[is_reported].max(axis=1) - find_common(own_ns[is_reported], axis=1)
        ratio = APART_RATIO * float(np.median(apart_ns) / np.median(step_ns[measured]))
        more_ns = _find_unseen(measured_ns[measured] - own_ns[measured], step_ns[measured], max(UNLIKE_RATIO, ratio))
        if more_ns is None:
            return measured_ns
        own_ns = np.clip(own_ns + more_ns, 0.0, step_ns)
    longest_ns = step_ns[is_reported].max(axis=1)
    usual_ns = float(np.median(longest_ns))
    rests_ns = longest_ns - own_ns[is_reported].max(axis=1)
    rest_ns = float(np.median(rests_ns))
    noise_ns = float(np.median(np.abs(rests_ns - rest_ns)))
    rest_ns_max = REST_RATIO_MAX * usual_ns if is_taught or all_meet else 0.0
    if is_taught:
        shown_ns = step_ns[measured].max(axis=1) - measured_ns[measured].max(axis=1)
        rest_ns_max = max(rest_ns_max, float(np.median(shown_ns)) + TOLERANCE_RATIO * usual_ns)
    if rest_ns > rest_ns_max:
        return measured_ns
    open_ = np.flatnonzero(is_reported & ~is_measured)
    return fill_as_predicted(
        measured_ns, step_ns, open_, own_ns.__getitem__,
        rest_ns=rest_ns, noise_ns=noise_ns, tolerance_ratio=TOLERANCE_RATIO,
    )  # fmt: skip


def _find_unseen(on_top_ns: Floats, step_ns: Floats, unlike_ratio: float) -> Floats | None:
    """Return what each rank does in backward off its CPU and others do not, shape (ranks,); None where ranks wait
    elsewhere. Windows have `on_top_ns`, shape (m, ranks), on top of own times, in steps of `step_ns`. The share
    `unlike_ratio` of a step is what they may differ by.
    """
    usual_ns, _ = find_usual(on_top_ns)
    apart_ns, noise_ns = find_usual(on_top_ns - find_common(on_top_ns, axis=1)[:, None])
    more_ns = np.minimum(apart_ns - find_common(apart_ns, axis=0), usual_ns)
    more_ns = np.where(more_ns > find_least_difference(noise_ns, step_ns, UNLIKE_RATIO), more_ns, 0.0)
    if usual_ns.min() < -find_least_difference(noise_ns, step_ns, unlike_ratio):
        return None
    # The last ones by themselves, too: where ranks wait may have changed.
    last = slice(-MEASURED_MIN, None)
    return None if are_unlike(on_top_ns[last] - more_ns, step_ns[last], unlike_ratio) else more_ns
