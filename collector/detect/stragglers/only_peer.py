"""Tell in a run of two whether a rank became slower, or its only peer became faster. Pure.

Of many ranks the others are what is usual. Of two each is the other's measure: a rank that stays as it was has an
excess as soon as its peer needs less time. So its own times are compared with what they were before, too, which the run
remembers for longer than the table of steps (`RunView.own_levels`).

A machine that gets less to do lets both ranks become faster, and hides that one of them became slower meanwhile. So a
peer that waits less for a CPU core than before has not become faster, where that is known.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from rankscope.collector.detect.statistics.excess import find_peers_ns
from rankscope.collector.detect.view import RunView, TimeCount
from rankscope.collector.steps.step_series import Ints

SAMPLED_STEPS_MIN: Final = 8
"""Sampled steps of a range, from which on a time in a step of it is known."""


class _Pair(NamedTuple):
    """The usual own times of a rank and of its peer in the steps from `first` to `last`, in ns."""

    mine_ns: float
    peers_ns: float
    first: int
    last: int


def is_peer_faster(
    view: RunView, rank: int, before: Ints, since: Ints, *, steps_min: int, as_fast_ratio: float
) -> bool:
    """Return whether a rank has fallen behind its only peer mostly because that one became faster; False where it is
    not known. `since` are the rows of its slow steps, `before` those of the steps before, of which the last `steps_min`
    count: where fewer are kept, the first block of steps does in which the two differed by less than `as_fast_ratio`.
    """
    now = _find_medians(view, rank, since)
    recent = before[-steps_min:]  # earlier ones may be of a slow start of both
    then = _find_medians(view, rank, recent) if len(recent) == steps_min else _recall(view, rank, as_fast_ratio)
    if then is None:
        return False
    faster_ns, slower_ns = then.peers_ns - now.peers_ns, now.mine_ns - then.mine_ns
    (peer,) = view.compared.of(rank).peers_of(rank).ranks
    waits = view.samples.core_waits.get(peer, ())
    waited_ns, waits_ns = _time_between(waits, then), _time_between(waits, now)
    relief_ns = 0.0 if waited_ns is None or waits_ns is None else max(0.0, waited_ns - waits_ns)
    return faster_ns - relief_ns > max(0.0, (faster_ns + slower_ns) / 2)


def _find_medians(view: RunView, rank: int, rows: Ints) -> _Pair:
    own_ns = view.series.own_ns[rows, view.series.column_of(rank)]
    peers_ns = find_peers_ns(view.excess_of(rank)[rows], own_ns)
    first, last = view.series.steps[rows[[0, -1]]].tolist()
    return _Pair(float(np.median(own_ns)), float(np.median(peers_ns)), first, last)


def _recall(view: RunView, rank: int, as_fast_ratio: float) -> _Pair | None:
    """Return the first block of steps in which both were as fast; None where there is none."""
    if not view.own_levels:
        return None
    column = view.series.column_of(rank)
    mine, peers = view.own_levels[column], view.own_levels[1 - column]
    apart = np.abs(np.log(np.maximum(mine.step_ns, 1.0)) - np.log(np.maximum(peers.step_ns, 1.0)))
    equal = np.flatnonzero(apart < math.log(as_fast_ratio))
    if not len(equal):
        return None
    first = int(mine.first_steps[equal[0]])
    return _Pair(float(mine.step_ns[equal[0]]), float(peers.step_ns[equal[0]]), first, first + mine.block_steps - 1)


def _time_between(counts: Sequence[TimeCount], pair: _Pair) -> float | None:
    """Return how much of a time is counted in a step of a range, in ns; None where it is sampled in too few of them.

    >>> counts = [TimeCount(0, 0), TimeCount(50, 500), TimeCount(100, 600)]
    >>> _time_between(counts, _Pair(0, 0, 30, 49)), _time_between(counts, _Pair(0, 0, 90, 400))
    (10.0, 2.0)
    """
    first = max(pair.first, counts[0].steps) if counts else pair.first
    end = min(pair.last + 1, counts[-1].steps) if counts else first
    if end - first < SAMPLED_STEPS_MIN:
        return None
    counted_ns = np.interp((first, end), [one.steps for one in counts], [one.counted_ns for one in counts])
    return float(np.diff(counted_ns)[0]) / (end - first)
