"""Find the calls in which the host waits for its device: which, inside which operator, for how long, and what follows.

    host      launch launch [ cudaStreamSynchronize, e.g. loss.item() ]  Python   launch
    device    ...work... work [ all_reduce alone ] work|        idle              |work
                              `- not a wait for        |        ^-- may follow from the wait: at most as much as was
                                 the own device        |            waited, since the host came later by so much
                                                       `- the wait ends; from here the host waits for a CPU core

A wait counts without the time in which only a collective ran on the device: then another rank was waited for.
"""

import re

import numpy as np

from rankscope.measure.intervals import covered_before, subtract, union
from rankscope.measure.kineto import LAUNCHES, NONE, Category, Codes, Ints
from rankscope.measure.nesting import OUTSIDE
from rankscope.measure.rank_view import RankView

SYNCHRONIZES = re.compile(r"^(?:cuda|hip)(?:Device|Stream|Event)Synchronize|^(?:cuda|hip)Memcpy(?:WithStream|2D|3D)?$")
"""Calls that return when the device is done. A blocking copy waits too; an Async one does only from pageable memory."""
_COPIES = re.compile(r"^(?:cuda|hip)Memcpy")
COPIES_WITHIN_DEVICE = ("Memcpy DtoD", "CopyDeviceToDevice")
HOST_VALUE_OPERATORS = frozenset(
    {"aten::item", "aten::nonzero", "aten::is_nonzero", "aten::unique", "aten::_unique2", "aten::masked_select",
     "aten::equal", "aten::allclose", "aten::unique_consecutive", "aten::unique_dim", "aten::repeat_interleave"}
)  # fmt: skip
"""Operators whose result or its shape the host must know: they wait for the device."""


def may_block(name: str) -> bool:
    """Return whether a call of the device's runtime with this name may wait for the device.

    >>> [may_block(name) for name in ("cudaStreamSynchronize", "hipMemcpyAsync", "cudaLaunchKernel")]
    [True, True, False]
    """
    return SYNCHRONIZES.match(name) is not None or _COPIES.match(name) is not None


def find_synchronizations(view: RankView) -> Ints:
    """Return the rows of calls that wait for the device by their name, ascending."""
    return view.trace.rows_named(view.trace.rows(*LAUNCHES), SYNCHRONIZES.match)


def find_blocking_calls(view: RankView) -> Ints:
    """Return the rows of all calls that waited for the device, ascending: synchronizations, and copies whose call
    returned after their end, as with pageable memory, although they are named Async. A copy within the device is none:
    the host does not wait for it, and a short one may end before its call does.
    """
    is_copy = (view.events.category[view.work.row] == Category.MEMCPY) & (view.launch != NONE)
    stays = view.trace.names_like(lambda name: name.startswith(COPIES_WITHIN_DEVICE))[view.work.name]
    copies = np.flatnonzero(is_copy & ~stays)
    call = view.launch[copies]
    waited = view.events.end_ns[call] >= view.work.end_ns[copies]
    return np.union1d(find_synchronizations(view), call[waited])


def find_launching_threads(view: RankView) -> Codes:
    """Return the threads that launched device work: waits of others, as of a loader that pins memory, delay none."""
    return np.unique(view.events.thread[view.launch[view.launch != NONE]])


def find_operators_around(view: RankView, rows: Ints) -> list[int]:
    """Return for each row the outermost operator in HOST_VALUE_OPERATORS around it, else the innermost operator; NONE
    where none was recorded.
    """
    inside = view.host.operators.find_innermost(view.events.thread[rows], view.events.start_ns[rows])
    found = []
    for place in inside.tolist():
        best, above = place, place
        while above != OUTSIDE:
            if view.trace.name(int(view.host.operator_rows[above])) in HOST_VALUE_OPERATORS:
                best = above
            above = int(view.host.operators.parent[above])
        found.append(int(view.host.operator_rows[best]) if best != OUTSIDE else NONE)
    return found


def find_waits_and_idle_ns(view: RankView, rows: Ints) -> tuple[Ints, Ints]:
    """Return how long each call waited for its own device, and how long the device, which has some work in the trace,
    was idle around its end; both of shape (n,).

    A wait ends with the device's last work before the call's end, or with the call while the device works: after that
    the host waits for a CPU core. The time in which a collective ran on the device and nothing computed does not count.

    Idle time begins at the end of a wait and lasts until the device's next work, at most as long as the wait. Where no
    work follows in the trace it ends with the call: as far as it was recorded. Of calls that several threads made in
    one stretch of idle time only that with most of it has it, so that sums do not count any of it twice.
    """
    compute, communication, _ = view.sets
    busy = union(np.concatenate(view.sets))
    start_ns, end_ns = view.events.start_ns[rows], view.events.end_ns[rows]
    following = np.searchsorted(busy[:, 0], end_ns, side="left")
    idle_from_ns = np.where(following > 0, busy[np.maximum(following - 1, 0), 1], start_ns)
    waited_to_ns = np.maximum(start_ns, np.minimum(end_ns, idle_from_ns))
    alone = subtract(communication, compute)
    waits_ns = waited_to_ns - start_ns - (covered_before(alone, waited_to_ns) - covered_before(alone, start_ns))
    idle_to_ns = np.where(following < len(busy), busy[np.minimum(following, len(busy) - 1), 0], end_ns)
    idle_ns = np.where(idle_from_ns <= end_ns, np.minimum(idle_to_ns - waited_to_ns, waits_ns), 0)
    return waits_ns, _keep_longest(idle_ns, following)


def _keep_longest(values: Ints, groups: Ints) -> Ints:
    """Return the largest value of each group at its first place, and 0 at all others; shapes (n,).

    >>> _keep_longest(np.array([3, 5, 2, 4]), np.array([7, 7, 7, 9])).tolist()
    [0, 5, 0, 4]
    """
    order = np.argsort(-values, kind="stable")
    kept = order[np.unique(groups[order], return_index=True)[1]]
    found = np.zeros_like(values)
    found[kept] = values[kept]
    return found
