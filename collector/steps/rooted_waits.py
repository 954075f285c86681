"""Find for whom the members of an operation with a root waited: broadcast, reduce, gather, scatter. Pure.

Who waits for whom depends on the backend and its tree, and neither is reported, nor is the root. But who waits goes on
as soon as the member comes for which it waited, whichever that is. So the arrivals tell, if they can be compared: all
members leave a synchronizing operation together, and so its end is one moment on the clocks of all of them. From a
synchronizing operation of the same group in the same step, the one with the shortest transfer:

    arrival[r] = start[r] - end of that operation on r            leaving[r] = arrival[r] + duration[r]
    r waited for the last member to arrive before leaving[r]

Example: a transfer takes 2 ms; rank 1 arrives at 10 ms and leaves at 52, rank 2 at 12 and leaves at 53, rank 0 at 50
and leaves at 52. Both waited for rank 0. By durations alone, as in an operation without a root, a receiver that comes
to data which is there would look like the one that all waited for.

It is known only if r left one transfer after that arrival, no third member arrived about then, and r came before: all
to within a quarter of the waiting, so that a short wait needs members that leave together to within little. In all
other cases, and without such an operation, nobody is said to be waited for.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from rankscope.collector.steps.collectives import Rows
from rankscope.collector.steps.step_series import Ints

NOBODY: Final = -1
PRECISION: Final = 4
"""The part of its waiting to within which a rank must leave with the arrival, 1 / PRECISION. On busy cores members
leave an all-reduce up to some ms apart; waits that matter are several times as long."""


def find_releasers(
    rows: Rows,
    group: Ints,
    transfer_ns: Ints,
    is_rooted: npt.NDArray[np.bool_],
    synchronizes: npt.NDArray[np.bool_],
) -> Ints:
    """Return for each row the row of the member for which its rank waited in this operation, NOBODY where it did not
    wait, or that is not known; shape (rows,).

    `is_rooted` and `synchronizes` mark the rows of operations that were found on all members; `group` numbers the
    process group of each row, and `transfer_ns` is the shortest duration of its operation.
    """
    releaser = np.full(len(rows.rank), NOBODY)
    for number in np.unique(group[is_rooted]).tolist():
        references = np.flatnonzero(synchronizes & (group == number))
        if len(references):
            left_together = references[rows.key[references] == rows.key[references[transfer_ns[references].argmin()]]]
            left_ns = np.zeros(int(rows.rank.max()) + 1, dtype=np.int64)
            left_ns[rows.rank[left_together]] = (rows.start_ns + rows.duration_ns)[left_together]
            arrival_ns = rows.start_ns - left_ns[rows.rank]
            places = np.flatnonzero(is_rooted & (group == number))
            places = places[np.argsort(rows.key[places], kind="stable")]
            bounds = np.flatnonzero(np.diff(rows.key[places])) + 1
            for members in np.split(places, bounds):
                found = _find_releasers_of(arrival_ns[members], rows.duration_ns[members])
                releaser[members] = np.where(found == NOBODY, NOBODY, members[found])
    return releaser


def _find_releasers_of(arrival_ns: Ints, duration_ns: Ints) -> Ints:
    """Return for each member of one operation the member for which it waited, or NOBODY; shape (members,).

    >>> _find_releasers_of(np.array([0, 0, 60]), np.array([62, 2, 2])).tolist()  # the first is the root
    [2, -1, -1]
    """
    count = len(arrival_ns)
    order = np.argsort(arrival_ns, kind="stable")
    sorted_ns = arrival_ns[order]
    released_ns = arrival_ns + duration_ns - duration_ns.min()
    wait_ns = duration_ns - duration_ns.min()
    error_ns = wait_ns // PRECISION
    last = np.searchsorted(sorted_ns, released_ns + error_ns, side="right") - 1
    releaser = order[last]
    before = np.where(order[last - 1] == np.arange(count), last - 2, last - 1)
    is_alone = (before < 0) | (sorted_ns[last] - sorted_ns[np.maximum(before, 0)] > error_ns)
    is_known = (
        (wait_ns > 0)
        & (releaser != np.arange(count))
        & (arrival_ns[releaser] > arrival_ns)
        & (np.abs(released_ns - arrival_ns[releaser]) <= error_ns)
        & is_alone
    )
    return np.where(is_known, releaser, NOBODY)
