"""Find ranks whose count of collectives in a group differs from the other members': they have left one out. Pure.

Backends pair the n-th collective of one member with the n-th of the others. After a rank has left one out, its
collectives meet those of another place, often of another step, of the others, so that nothing can be matched in a step.

Yet counts may differ while calls of one place meet all the same, as where a call that failed was counted on some ranks.
Which of the two it is, the ends show: members leave a collective together, so by the right pairs the ends of two ranks
differ by what their clocks differ, from call to call and step to step alike. By wrong ones they differ by the work
between two calls as well, which varies. Where the differences by place vary clearly less than those by number, the
numbers of the rank are corrected (`correct_numbers`); where counts and calls have both moved, they never do.
"""

from collections import deque
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

import numpy as np

from rankscope.collector.steps.collectives import CollectiveBlock, Step
from rankscope.collector.steps.step_series import Ints, Lag
from rankscope.collector.steps.wait_times import StepWaits
from rankscope.measure.table import MISSING

Key = tuple[str, int]
"""A process group and a rank of it."""
VARY_RATIO: Final = 0.25
"""Largest ratio of the range of the differences by place to that by number: a quarter is no chance among so many."""
STEPS_MIN: Final = 8
"""Steps in a row over which they are compared."""


def find_lags(step: Step) -> dict[Key, int]:
    """Return by group and rank how many collectives the rank is behind most members after a step; only those that are.

    Of a group whose members agree half by half nothing is said: who has left one out is not known.
    """
    last: dict[str, dict[int, int]] = {}
    for block in step:
        names = [block.groups.lists[row] for row in block.groups.row.tolist()]
        for place in range(max(map(len, names), default=0)):
            counts = np.where(block.group == place, block.sequence, MISSING).max(axis=1, initial=MISSING)
            for row in np.flatnonzero(counts != MISSING).tolist():
                last.setdefault(names[row][place], {})[int(block.ranks[row])] = int(counts[row])
    return {
        (group, rank): most - sequence
        for group, members in last.items()
        if (most := _find_most_common(list(members.values()))) is not None
        for rank, sequence in members.items()
        if sequence != most
    }


def _find_most_common(values: list[int]) -> int | None:
    """Return the value that more than half of them have; None without such."""
    middle = sorted(values)[len(values) // 2]
    return middle if 2 * values.count(middle) > len(values) else None


class Ends(NamedTuple):
    """By how much the calls of a rank in a step end later than those of another member, in ns, by place and by number;
    shape (pairs,) each.
    """

    by_place: Ints
    by_number: Ints


def find_ends(step: Step, lags: Mapping[Key, int]) -> dict[Key, Ends]:
    """Return the ends of the ranks that lag in a step, compared with one member that does not; of those only whose
    calls are as many as its, of the same kinds and sizes, and at least one more than they lag by.
    """
    found = dict[Key, Ends]()
    for group in {group for group, _ in lags}:
        lagging = {rank: behind for (one, rank), behind in lags.items() if one == group}
        calls = _read_calls(step, group)
        usual = next(calls[rank] for rank in sorted(calls) if rank not in lagging)
        compared = {(group, rank): _compare_ends(calls[rank], usual, behind) for rank, behind in lagging.items()}
        found.update({key: ends for key, ends in compared.items() if ends is not None})
    return found


def correct_numbers(step: Step, lags: Mapping[Key, int]) -> Step:
    """Return a step in which the calls of these ranks in these groups have the numbers of the other members'."""
    corrected = []
    for block in step:
        sequence = block.sequence.copy()
        for (group, rank), behind in lags.items():
            for row in np.flatnonzero(block.ranks == rank).tolist():
                sequence[row, _find_columns(block, row, group)] += behind
        corrected.append(block._replace(sequence=sequence))
    return corrected


class _Calls(NamedTuple):
    """The calls of a rank in a group in one step, by their number; shape (calls,) each. `end_ns` by its own clock."""

    number: Ints
    size_bytes: Ints
    end_ns: Ints
    ops: tuple[str, ...]


def _read_calls(step: Step, group: str) -> dict[int, _Calls]:
    """Return the calls of every rank that has the group."""
    found = {}
    for block in step:
        has_group = np.array([group in names for names in block.groups.lists], dtype=bool)
        for row in np.flatnonzero(has_group[block.groups.row]).tolist():
            columns = _find_columns(block, row, group)
            columns = columns[np.argsort(block.sequence[row, columns], kind="stable")]
            ops = block.ops.lists[block.ops.row[row]]
            found[int(block.ranks[row])] = _Calls(
                number=block.sequence[row, columns],
                size_bytes=block.size_bytes[row, columns],
                end_ns=block.start_ns[row, columns] + block.duration_ns[row, columns],
                ops=tuple(ops[op] for op in block.op[row, columns].tolist()),
            )
    return found


def _find_columns(block: CollectiveBlock, row: int, group: str) -> Ints:
    """Return the columns of a row that are numbered calls in a group, of which the rank may be no member."""
    names = block.groups.lists[block.groups.row[row]]
    place = names.index(group) if group in names else MISSING
    return np.flatnonzero((block.group[row] == place) & (block.sequence[row] != MISSING))


def _compare_ends(mine: _Calls, usual: _Calls, behind: int) -> Ends | None:
    count, apart = len(mine.number), abs(behind)
    is_alike = count == len(usual.number) > apart and mine.ops == usual.ops
    if not is_alike or (mine.number + behind != usual.number).any() or (mine.size_bytes != usual.size_bytes).any():
        return None
    first, last = slice(apart, None), slice(count - apart)
    of_mine, of_usual = (first, last) if behind > 0 else (last, first)
    return Ends(mine.end_ns - usual.end_ns, mine.end_ns[of_mine] - usual.end_ns[of_usual])


def _show_places(ends: Collection[Ends]) -> bool:
    """Return whether the ends of STEPS_MIN steps vary clearly less by place than by number."""
    if len(ends) < STEPS_MIN:
        return False
    by_place, by_number = (float(np.ptp(np.concatenate(values))) for values in zip(*ends, strict=True))
    return by_place <= VARY_RATIO * by_number and by_number > 0


class Lags:
    """The lags that hold now: those of the last unmatched step that were in every one since they began."""

    def __init__(self) -> None:
        #: How far each rank is behind, since which step, and at the earliest.
        self._since: dict[Key, tuple[int, int, int]] = {}
        #: The step after the last one whose calls all met by their numbers; the first step that was added without one.
        self._after_agreed: int | None = None
        #: The last step that was added.
        self._last = -1
        #: The ends of its calls in the last steps in a row that have such; of STEPS_MIN at most.
        self._ends: dict[Key, deque[Ends]] = {}
        #: Those of the last step that are of numbers only.
        self._matched = frozenset[Key]()

    def correct(self, number: int, step: Step, waits: StepWaits) -> Step | None:
        """Return a step, later than those before and complete, with the numbers of calls corrected that differ by these
        only; None where there are none. `waits` are those by the numbers as they are.
        """
        is_unmatched = bool(np.isnan(waits.exposed_ns).any())
        lags = find_lags(step) if is_unmatched else {}
        by_number = self.add(number, lags, find_ends(step, lags))
        if not is_unmatched:
            self._after_agreed = number + 1
        return correct_numbers(step, by_number) if by_number else None

    def add(self, step: int, found: Mapping[Key, int], ends: Mapping[Key, Ends] | None = None) -> dict[Key, int]:
        """Add what was found in a step, later than those before, with the ends of the calls in it (`find_ends`). Return
        those by which the numbers of the step are to be corrected.
        """
        self._after_agreed = step if self._after_agreed is None else self._after_agreed
        kept: dict[Key, tuple[int, int, int]] = {}
        ends_kept: dict[Key, deque[Ends]] = {}
        for key, behind in found.items():
            before = self._since.get(key)
            is_same = before is not None and before[0] == behind
            earliest = self._after_agreed if before is None else self._last + 1
            kept[key] = before if before is not None and is_same else (behind, step, earliest)
            if ends is not None and key in ends:
                ends_kept[key] = self._ends.get(key, deque(maxlen=STEPS_MIN)) if is_same else deque(maxlen=STEPS_MIN)
                ends_kept[key].append(ends[key])
        self._since, self._ends, self._last = kept, ends_kept, step
        self._matched = frozenset(key for key, some in ends_kept.items() if _show_places(some))
        return {key: found[key] for key in self._matched}

    def read(self) -> tuple[Lag, ...]:
        """Return them by group and rank."""
        return tuple(Lag(*key, *found, is_matched=key in self._matched) for key, found in sorted(self._since.items()))
