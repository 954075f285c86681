"""Find neighboring collectives of a rank whose starts were recorded in the other order than they were enqueued. Pure.

gloo serves a group by two worker threads. Two collectives that have waited in its queue begin at once, and then chance
decides which thread writes its start first. Agents number collectives by their starts, so such a pair has each other's
numbers on that rank: its shorter duration would stand beside the longer ones of the others, who would seem to have
waited for it.

All members leave a collective together. So what tells is the distance between the ends of the two, which has the other
sign on a rank with swapped numbers; and the sizes, where the two differ in these. The distance needs no common clock.
If the members swap numbers of their own accord in the same way, each still stands beside its like.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from rankscope.collector.steps.collectives import Rows
from rankscope.collector.steps.step_series import Ints
from rankscope.measure.units import NS_PER_MS

TOGETHER_NS: Final = NS_PER_MS // 2
"""How far apart the starts of a swapped pair may be. In 600 steps of three ranks on two busy cores those that were
swapped for certain were up to 0.44 ms apart. A pair that is swapped wrongly is wrong by no more than this."""
LIKENESS_MIN: Final = 4
"""How much nearer the distance of the ends is to that of the other ranks once the numbers are swapped. Where ends come
together by chance it is mostly less than twice."""


def pair_by_ends(rows: Rows, is_of_two_threads: npt.NDArray[np.bool_]) -> Ints:
    """Return the key of each row, those of swapped pairs exchanged; shape (rows,).

    `is_of_two_threads`: whether each row's kind synchronizes and is served by worker threads of the host. Kinds that
    some members have more of, or number otherwise, stay as they are.
    """
    key = rows.key.copy()
    for kind in np.unique(rows.kind[is_of_two_threads]).tolist():
        places = np.flatnonzero(rows.kind == kind)
        members = len(np.unique(rows.rank[places]))
        if members > 1 and len(places) % members == 0 and len(places) > members:
            by_rank = places.reshape(members, -1)
            if bool((key[by_rank] == key[by_rank[:1]]).all()):
                _exchange(rows, key, by_rank)
    return key


def _exchange(rows: Rows, key: Ints, places: Ints) -> None:
    """Exchange the keys of swapped pairs of one kind; `places` are its rows, shape (ranks, collectives)."""
    numbers = key[places[0]]
    start_ns, size_bytes = rows.start_ns[places], rows.size_bytes[places]
    end_ns = start_ns + rows.duration_ns[places]
    distance_ns = np.diff(end_ns, axis=1)
    differ = (distance_ns.min(axis=0) < 0) & (distance_ns.max(axis=0) > 0)
    differ |= (size_bytes != size_bytes[:1]).any(axis=0)[1:]
    differ &= (np.diff(start_ns, axis=1) <= TOGETHER_NS).any(axis=0)
    for first in np.flatnonzero(differ).tolist():
        pair = slice(first, first + 2)
        swapped = _find_swapped(start_ns[:, pair], end_ns[:, pair], size_bytes[:, pair])
        for column in (start_ns, end_ns, size_bytes, places):
            column[swapped, pair] = column[swapped, pair][:, ::-1]
    key[places] = numbers


def _find_swapped(start_ns: Ints, end_ns: Ints, size_bytes: Ints) -> Ints:
    """Return the ranks, as rows, on which two collectives have each other's numbers; the columns have shape (ranks, 2).

    Ranks whose starts are apart are certain: where there are any, the others are compared with them.
    """
    may_be = np.abs(start_ns[:, 1] - start_ns[:, 0]) <= TOGETHER_NS
    certain = np.flatnonzero(~may_be) if not may_be.all() else np.arange(len(may_be))
    distance_ns = end_ns[:, 1] - end_ns[:, 0]
    usual_ns = np.sort(distance_ns[certain])[len(certain) // 2]
    as_it_is, exchanged = np.abs(distance_ns - usual_ns), np.abs(distance_ns + usual_ns)
    by_ends = (as_it_is > TOGETHER_NS) & (LIKENESS_MIN * exchanged < as_it_is)
    usual_bytes = size_bytes[certain[0]]
    is_one_size = size_bytes[:, 0] == size_bytes[:, 1]
    by_size = (size_bytes[:, ::-1] == usual_bytes).all(axis=1)
    return np.flatnonzero(may_be & np.where(is_one_size, by_ends, by_size))
