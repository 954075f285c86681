"""Match when the hosts of all ranks enqueued the same collectives, on the collector's clock. Pure.

torch writes for each collective when its host enqueued it. A member that does so later than the others is what they
wait for, if their hosts do not run ahead of their devices. So each enqueue is compared with the median member of its
group (of an even number the earlier one of the middle), and of each rank the largest lateness in the chosen collectives
(`rankscope.measure.enqueues`) of a step is kept. The largest, since hosts that wait in their collectives leave the
first one together: what delayed a rank before it is not seen in the others of the step. Which member is the median does
not matter for the differences between members of a group.

Each rank's clock is known to within the error of its alignment, and that of its wall clock. All ranks of a machine read
one clock: they are converted by the best alignment that any of them has, so that it cancels between them. A time before
the first alignment that is left is not converted: the clock may have jumped since then.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from itertools import chain, islice
from typing import Final, NamedTuple

import numpy as np

from rankscope.collector.steps.collectives import differs_from_previous
from rankscope.collector.steps.step_series import EnqueueSeries, Floats, Floats32, Ints
from rankscope.measure.enqueues import ENQUEUE_COLUMNS, Enqueues

STEPS_KEPT: Final = 64
"""Matched steps that are kept: 8 MiB of 16,384 ranks."""
WAITING_MAX: Final = 4096
"""Steps that wait for other ranks; the first ones are dropped. More than a rank has between two readings, so no report
has more either."""
PARTS_MAX: Final = 2**20
"""Steps that wait, counted for each rank that has reported them: 64 steps of 16,384 ranks. Where one rank reports none,
those of all others wait."""
KEPT_SHARE: Final = 0.875
"""Part of both bounds that is left when steps are dropped, so that not each report drops some."""
TIME_NS_MAX: Final = 2**61
"""Times and offsets from here on are no clock's, and their differences have no room in 64 bits."""

RANKS_AT_ONCE: Final = 4096
"""Ranks times steps that are matched at once."""
_NOTHING: Final = np.empty(0, dtype=np.int64)

Align = Callable[[int, int], tuple[int, int] | None]
"""Returns the offset of a rank's clock at a time of it, and its error, in ns; None where that is not known."""


class _Part(NamedTuple):
    """What a rank has reported of some steps: the columns group, sequence and time by the host clock, shape (n,) each,
    and the step of each row.
    """

    rank: int
    groups: tuple[str, ...]
    columns: tuple[Ints, Ints, Ints]
    wall_error_ns: int
    step: Ints

    def select(self, step: int) -> "_Part":
        """Return what is of this step."""
        rows = self.step == step
        group, sequence, host_ns = self.columns
        return self._replace(columns=(group[rows], sequence[rows], host_ns[rows]), step=self.step[rows])


class _Matched(NamedTuple):
    step: int
    late_ns: Floats32
    error_ns: Floats32
    wall_error_ns: Floats32


class EnqueueTimes:
    """The enqueues of `world_size` ranks. `group_sizes` are the numbers of members by label; others may add to them."""

    def __init__(self, world_size: int, group_sizes: Mapping[str, int]) -> None:
        self._world_size = world_size
        self._group_sizes = group_sizes
        #: What the ranks have reported by step and rank, one object for a report; no step before `_from_step`.
        self._waiting: dict[int, dict[int, _Part]] = {}
        self._part_count = 0
        self._from_step = 0
        #: Steps that all ranks have reported, until they are matched; the first ones are dropped.
        self._ready: deque[tuple[int, list[_Part]]] = deque(maxlen=max(1, PARTS_MAX // max(1, world_size)))
        self._machines: dict[Hashable, int] = {}
        #: Number of each rank's machine; a rank that has reported nothing has a machine of its own.
        self._machine = -1 - np.arange(world_size, dtype=np.int64)
        self._matched: deque[_Matched] = deque(maxlen=STEPS_KEPT)

    def add(self, rank: int, machine: Hashable, enqueues: Enqueues) -> None:
        """Add what a rank has reported. `machine` is the same for ranks that read one clock."""
        self._machine[rank] = self._machines.setdefault(machine, len(self._machines))
        table = enqueues.table
        step, group, sequence, host_ns = map(table.column, ENQUEUE_COLUMNS)
        part = _Part(rank, enqueues.groups, (group, sequence, host_ns), enqueues.wall_error_ns, step)
        for number in self._list_steps(enqueues):
            parts = self._waiting.setdefault(number, {})
            self._part_count += rank not in parts
            parts[rank] = part
            if len(parts) == self._world_size:
                self._ready.append((number, list(self._waiting.pop(number).values())))
                self._part_count -= self._world_size
        self._drop_first()

    def _list_steps(self, enqueues: Enqueues) -> Iterator[int]:
        """Iterate over the first WAITING_MAX steps of a report, whatever its ranges are."""
        ranges = (range(max(self._from_step, first_step), last_step + 1) for first_step, last_step in enqueues.steps)
        return islice(chain.from_iterable(ranges), WAITING_MAX)

    def _drop_first(self) -> None:
        """Drop the first steps where too many wait."""
        if len(self._waiting) <= WAITING_MAX and self._part_count <= PARTS_MAX:
            return
        first = iter(sorted(self._waiting))
        while len(self._waiting) > KEPT_SHARE * WAITING_MAX or self._part_count > KEPT_SHARE * PARTS_MAX:
            step = next(first)
            self._part_count -= len(self._waiting.pop(step))
            self._from_step = step + 1

    def match(self, align: Align) -> None:
        """Match steps that all ranks have reported; of more than RANKS_AT_ONCE ranks one step, 0.1 s of 4,096."""
        steps_left = max(1, RANKS_AT_ONCE // self._world_size)
        while self._ready and steps_left > 0:
            step, reported = self._ready.popleft()
            parts = [part for one in reported if len((part := one.select(step)).columns[0])]
            if parts:
                steps_left -= 1
                self._match(step, parts, align)

    def read(self) -> EnqueueSeries | None:
        """Return the matched steps; None before the first."""
        if not self._matched:
            return None
        steps, *columns = zip(*self._matched, strict=True)
        late_ns, error_ns, near_error_ns = map(np.stack, columns)
        return EnqueueSeries(np.array(steps, dtype=np.int64), late_ns, error_ns, near_error_ns, self._machine.copy())

    def _match(self, step: int, parts: list[_Part], align: Align) -> None:
        clocks = self._find_clocks(parts, align)
        clock_of = [clocks.get(int(self._machine[part.rank])) for part in parts]
        rows = _stack(parts, clock_of)
        sizes = np.array([self._group_sizes.get(name, 0) for name in rows.groups], dtype=np.int64)
        found = _compare(rows, sizes)
        if not len(found.rank):
            return
        late_ns = np.full(self._world_size, np.nan)
        np.fmax.at(late_ns, found.rank, found.late_ns)
        wall_ns, clock_ns = np.zeros((2, self._world_size))
        for part, clock in zip(parts, clock_of, strict=True):
            wall_ns[part.rank], clock_ns[part.rank] = part.wall_error_ns, 0 if clock is None else clock[1]
        errors_ns = (self._add_median_errors(found, one_ns) for one_ns in (wall_ns + clock_ns, wall_ns))
        self._matched.append(_Matched(step, *(one_ns.astype(np.float32) for one_ns in (late_ns, *errors_ns))))

    def _add_median_errors(self, found: "_Compared", clock_ns: Floats) -> Floats:
        """Return the error of each rank's lateness, shape (world size,), from those of all clocks. That of the median
        cancels between members of one group; in the others it is at most the largest of any member.
        """
        largest_ns = np.zeros(int(found.key.max(initial=-1)) + 1)
        np.maximum.at(largest_ns, found.key, clock_ns[found.rank])
        of_some = found.members < self._world_size
        median_ns = np.zeros(self._world_size)
        np.maximum.at(median_ns, found.rank[of_some], largest_ns[found.key[of_some]])
        return clock_ns + median_ns

    def _find_clocks(self, parts: list[_Part], align: Align) -> dict[int, tuple[int, int]]:
        """Return the best alignment of each machine, of those with one."""
        found: dict[int, tuple[int, int]] = {}
        for part in parts:
            clock = align(part.rank, int(part.columns[-1][0]))
            if clock is not None and abs(clock[0]) < TIME_NS_MAX:
                machine = int(self._machine[part.rank])
                found[machine] = min(found.get(machine, clock), clock, key=lambda one: one[1])
        return found


class _Rows(NamedTuple):
    """The enqueues of all ranks in a step, one a row: `group` indexes `groups`, `time_ns` is the collector's."""

    groups: list[str]
    rank: Ints
    group: Ints
    sequence: Ints
    time_ns: Ints


class _Compared(NamedTuple):
    """The enqueues that are known of all members of their group, one a row: `key` numbers the collectives, of which
    each has `members`; `late_ns` is by how much it is later than the median one.
    """

    rank: Ints
    key: Ints
    members: Ints
    late_ns: Floats


def _stack(parts: list[_Part], clock_of: list[tuple[int, int] | None]) -> _Rows:
    """Return what is known on the collector's clock: `clock_of` has the alignment for each part."""
    numbers: dict[str, int] = {}
    blocks: list[tuple[Ints, ...]] = [(_NOTHING,) * 4]
    for part, clock in zip(parts, clock_of, strict=True):
        group, sequence, host_ns = part.columns
        if clock is None:
            continue
        own = np.array([numbers.setdefault(name, len(numbers)) for name in part.groups], dtype=np.int64)
        rows = (host_ns > -TIME_NS_MAX) & (host_ns < TIME_NS_MAX)
        times_ns = host_ns[rows] - clock[0]
        blocks.append((np.full(len(times_ns), part.rank, dtype=np.int64), own[group[rows]], sequence[rows], times_ns))
    rank, group, sequence, time_ns = (np.concatenate(column) for column in zip(*blocks, strict=True))
    return _Rows(list(numbers), rank, group, sequence, time_ns)


def _compare(rows: _Rows, sizes: Ints) -> _Compared:
    """Compare the enqueues of each collective; `sizes` are the members of each group."""
    order = np.lexsort((rows.rank, rows.sequence, rows.group))
    rank, group, sequence, time_ns = (column[order] for column in rows[1:])
    once = differs_from_previous(group, sequence, rank)
    rank, group, sequence, time_ns = (column[once] for column in (rank, group, sequence, time_ns))
    key = np.cumsum(differs_from_previous(group, sequence)) - 1
    members = np.bincount(key)[key]
    whole = (members == sizes[group]) & (members > 1)
    key, rank, since_ns = key[whole], rank[whole], (time_ns[whole] - time_ns.min(initial=TIME_NS_MAX)).astype(float)
    order = np.lexsort((since_ns, key))
    key, rank, since_ns, members = key[order], rank[order], since_ns[order], members[whole][order]
    firsts = np.flatnonzero(differs_from_previous(key))
    medians_ns = since_ns[firsts + (members[firsts] - 1) // 2]
    return _Compared(rank, key, members, since_ns - np.repeat(medians_ns, members[firsts]))
