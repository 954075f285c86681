"""Find the forward operator of each backward operator: autograd gives both the same sequence number.

torch writes the numbers into the trace (`Sequence number`, `Fwd thread id`); they are read when asked for.
"""

import re

import numpy as np

from rankscope.measure.kineto import NONE, AutogradLinks, Codes, Ints
from rankscope.measure.nesting import OUTSIDE
from rankscope.measure.rank_view import RankView

ENGINE = re.compile(r"^autograd::engine::evaluate_function")


def find_backward(view: RankView) -> tuple[Ints, Ints]:
    """Return the rows of backward operators, ascending, and of each one's forward operator, NONE where that is not in
    the trace or there is none, as for storing gradients.
    """
    links = view.trace.autograd or AutogradLinks(*(np.empty(0, dtype=np.int64) for _ in range(3)))
    operators = view.trace.rows_named(view.host.operator_rows, ENGINE.match)
    linked = links.forward_thread > 0
    backward = np.union1d(operators, links.row[linked])
    forward = np.full(len(backward), NONE, dtype=np.int64)
    forward[np.searchsorted(backward, links.row[linked])] = _find_forward(view, links)
    return backward, forward


def replace_by_forward(view: RankView, rows: Ints) -> Ints:
    """Return the rows, those inside a backward operator replaced by its forward operator where that is known. Without
    the numbers of autograd the rows as they are.
    """
    if view.trace.autograd is None:
        return rows
    backward, forward = find_backward(view)
    inside = view.host.nest_rows(backward).find_innermost(view.events.thread[rows], view.events.start_ns[rows])
    known = np.flatnonzero(inside != OUTSIDE)
    known = known[forward[inside[known]] != NONE]
    found = rows.copy()
    found[known] = forward[inside[known]]
    return found


def _find_forward(view: RankView, links: AutogradLinks) -> Ints:
    """Return for each backward operator the row of its forward operator, NONE where it is not in the trace: of the
    operators of the forward's thread with its number the one that started last. Others only saw that number as next.
    """
    is_backward = links.forward_thread > 0
    wanted, numbers = links.forward_thread[is_backward], links.sequence[is_backward]
    found = np.full(len(wanted), NONE, dtype=np.int64)
    rows, sequence = links.row[~is_backward], links.sequence[~is_backward]
    threads = view.events.thread[rows]
    for number in np.unique(wanted).tolist():
        mine = np.flatnonzero(wanted == number)
        thread = _find_thread(threads, sequence, numbers[mine])
        here = np.flatnonzero(threads == thread)
        order = here[np.lexsort((rows[here], sequence[here]))]
        place = np.searchsorted(sequence[order], numbers[mine], side="right") - 1
        hit = (place >= 0) & (sequence[order[np.maximum(place, 0)]] == numbers[mine]) if len(order) else place >= 0
        found[mine[hit]] = rows[order[place[hit]]]
    return found


def _find_thread(threads: Codes, sequence: Ints, numbers: Ints) -> int:
    """Return the thread with the most of these sequence numbers: torch numbers threads in a way of its own."""
    if not len(threads):
        return NONE
    hits = np.bincount(threads, weights=np.isin(sequence, numbers))
    return int(np.argmax(hits))
