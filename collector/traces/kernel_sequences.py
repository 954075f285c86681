"""Find the sequences of device work that repeat on a stream and take the most time: candidates for fusing, or a graph.

Of all windows of 2 to N pieces of work those with equal names are one sequence. A window lies within one step, on one
stream, and has no communication in it. Long sequences contain short ones, so the costliest is taken first, and its work
counts for no other: the rows are disjoint, and their work may be summed.
"""

import heapq
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rankscope.collector.traces.report import SequenceRow
from rankscope.collector.traces.windows import find_streams
from rankscope.measure.intervals import covered_before, union
from rankscope.measure.kineto import NONE, Ints
from rankscope.measure.rank_view import RankView

LENGTH_DEFAULT, LENGTH_MAX = 8, 32
"""Pieces of work in a sequence. Each length costs a pass over all work."""
SEQUENCES_MAX = 100
"""Rows of a trace."""


class _Lanes(NamedTuple):
    """All device work, one stream after another, as columns: its place in the view's work, the code of its name, the
    number of the stretch it is in, which is of one stream and step, and how long the device was idle between it and
    the piece in front of it in the stretch.
    """

    place: Ints
    name: Ints
    stretch: Ints
    length_ns: Ints
    gap_ns: Ints


class _Sequence(NamedTuple):
    """Positions in the lanes at which a sequence of `length` begins, ascending; they may overlap."""

    length: int
    starts: Ints


class SequenceSpans(NamedTuple):
    """All times that one sequence ran, from its first work to its last, in columns; `row` is that of the table."""

    row: SequenceRow
    device: Ints
    stream: Ints
    start_ns: Ints
    end_ns: Ints


def sum_sequences(view: RankView, length_max: int) -> list[SequenceRow]:
    """Return the repeated sequences of at most `length_max` pieces of work, the costliest first: by the work and the
    idle time of the device inside. At most SEQUENCES_MAX. Empty without a device.
    """
    return [one.row for one in find_spans(view, length_max, 0)]


def find_spans(view: RankView, length_max: int, base_ns: int) -> list[SequenceSpans]:
    """Return when each of the sequences of `sum_sequences` ran, in its order; `base_ns` is added to the times."""
    if not view.has_device:
        return []
    lanes, work = _find_lanes(view), view.work
    found = []
    for inside in _choose(lanes, length_max):
        place = lanes.place[inside]
        first = place[:, 0]
        start_ns, end_ns = work.start_ns[first] + base_ns, work.end_ns[place].max(axis=1) + base_ns
        found.append(
            SequenceSpans(_build_row(view, lanes, inside), work.device[first], work.stream[first], start_ns, end_ns)
        )
    return found


def _choose(lanes: _Lanes, length_max: int) -> list[Ints]:
    """Return the positions in the lanes of the work of each sequence, a row for each time that it ran."""
    cost = np.concatenate([[0], np.cumsum(lanes.length_ns + lanes.gap_ns)])
    taken = np.zeros(len(lanes.place), dtype=bool)
    found = [(-_cost_of(one, lanes, cost), number, one) for number, one in enumerate(_find_repeats(lanes, length_max))]
    heapq.heapify(found)
    chosen: list[Ints] = []
    while found and len(chosen) < SEQUENCES_MAX:
        estimate, number, one = heapq.heappop(found)
        free = _Sequence(one.length, _keep_apart(one, taken))
        if len(free.starts) < 2:  # noqa: PLR2004 - once is no repeat
            continue
        exact = -_cost_of(free, lanes, cost)
        if exact > estimate:  # less than was thought, and perhaps less than others
            heapq.heappush(found, (exact, number, free))
            continue
        inside = free.starts[:, None] + np.arange(free.length)
        taken[inside] = True
        chosen.append(inside)
    return chosen


def _find_lanes(view: RankView) -> _Lanes:
    lanes = find_streams(view)
    place = np.concatenate(lanes)
    lane = np.repeat(np.arange(len(lanes)), list(map(len, lanes)))
    reached_ns = np.concatenate([np.maximum.accumulate(view.work.end_ns[one]) for one in lanes])
    gap_ns = _find_idle(view, np.unique(view.work.device), place, reached_ns)
    step = _find_steps(view)[place]
    collective = view.work.is_communication[place]
    begins = (np.diff(lane) != 0) | (np.diff(step) != 0) | collective[1:] | collective[:-1]
    return _Lanes(
        place,
        view.work.name[place].astype(np.int64),
        np.concatenate([[0], np.cumsum(begins)]),
        (view.work.end_ns - view.work.start_ns)[place],
        np.concatenate([[0], np.where(begins, 0, gap_ns)]),
    )


def _find_idle(view: RankView, devices: Ints, place: Ints, reached_ns: Ints) -> Ints:
    """Return how long its device was idle in front of each piece of work but the first, since the one before it."""
    device, found = view.work.device[place], np.zeros(len(place) - 1, dtype=np.int64)
    for one in devices.tolist():
        mine = view.work.device == one
        busy = union(np.stack([view.work.start_ns[mine], view.work.end_ns[mine]], axis=1))
        pairs = np.flatnonzero(device[1:] == one)
        from_ns, to_ns = reached_ns[pairs], view.work.start_ns[place[pairs + 1]]
        found[pairs] = (to_ns - from_ns) - (covered_before(busy, to_ns) - covered_before(busy, from_ns))
    return np.maximum(found, 0)


def _find_steps(view: RankView) -> Ints:
    """Return for each piece of work the number of the step that launched it, else of that in which it began; NONE
    outside of steps.
    """
    times_ns = np.where(view.launch != NONE, view.events.start_ns[view.launch], view.work.start_ns)
    numbers = view.find_step_numbers(times_ns)
    return np.array([NONE if number is None else number for number in numbers], dtype=np.int64)


def _find_repeats(lanes: _Lanes, length_max: int) -> Iterator[_Sequence]:
    """Yield all sequences with two or more starts. One that repeats begins with a shorter one that repeats."""
    starts = np.arange(len(lanes.name))
    codes = np.unique(lanes.name, return_inverse=True)[1].astype(np.int64)
    names = codes
    for length in range(2, length_max + 1):
        fits = starts + length <= len(names)
        starts, codes = starts[fits], codes[fits]
        inside = lanes.stretch[starts] == lanes.stretch[starts + length - 1]
        starts, codes = starts[inside], codes[inside]
        keys = codes * (int(names.max()) + 1) + names[starts + length - 1]
        _, codes, counts = np.unique(keys, return_inverse=True, return_counts=True)
        repeats = counts[codes] > 1
        starts, codes = starts[repeats], codes[repeats].astype(np.int64)
        if not len(starts):
            return
        order = np.argsort(codes, kind="stable")
        edges = np.flatnonzero(np.diff(codes[order])) + 1
        for part in np.split(starts[order], edges):
            if not is_repetition(names[part[0] : part[0] + length].tolist()):
                yield _Sequence(length, part)


def is_repetition(names: Sequence[int]) -> bool:
    """Return whether a sequence is a shorter one over and over, which says more; the repetition of one name is not.

    >>> [is_repetition(names) for names in ([1, 2, 1, 2], [1, 2, 1, 2, 1], [1, 2, 1], [1, 1, 1, 1], [1, 2, 3, 1])]
    [True, True, False, False, False]
    """
    return len(set(names)) > 1 and any(
        all(one == other for one, other in zip(names, names[period:], strict=False))
        for period in range(2, len(names) // 2 + 1)
    )


def _cost_of(one: _Sequence, lanes: _Lanes, cost: Ints) -> int:
    """Return the time of all starts: the work, and the gaps but that in front of the first piece."""
    whole = cost[one.starts + one.length] - cost[one.starts] - lanes.gap_ns[one.starts]
    return int(whole.sum())


def _keep_apart(one: _Sequence, taken: npt.NDArray[np.bool_]) -> Ints:
    """Return the starts whose work is not taken, of those that overlap the first."""
    starts: Ints = one.starts[~taken[one.starts[:, None] + np.arange(one.length)].any(axis=1)]
    if (np.diff(starts) >= one.length).all():
        return starts
    kept, free_from = [], 0
    for start in starts.tolist():
        if start >= free_from:
            kept.append(start)
            free_from = start + one.length
    return np.array(kept, dtype=np.int64)


def _build_row(view: RankView, lanes: _Lanes, inside: Ints) -> SequenceRow:
    calls = view.launch[lanes.place[inside]]
    return SequenceRow(
        names=[view.trace.names[code] for code in lanes.name[inside[0]].tolist()],
        count=len(inside),
        total_ns=int(lanes.length_ns[inside].sum()),
        gap_ns=int(lanes.gap_ns[inside[:, 1:]].sum()),
        launch_count=len(np.unique(calls)) if (calls != NONE).all() else None,
    )
