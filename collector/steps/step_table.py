"""The same steps of all ranks side by side: a ring of steps, one column per rank.

A step's duration and phases arrive within a report interval, its collectives when the profiler window they were seen in
ends. Until every rank has reported them a step's waiting is not known, and its self time neither: NaN. Of the steps
that a report completes one's waiting is charged to those who caused it.

Windows may be further apart than the ring is long: of short steps eight of a thousand may be all that is paid for. So
where fewer *measured* steps, whose waiting is known, are in the ring than a verdict looks at, those that leave it get a
slot behind it, until there are as many again.
"""

import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rankscope.collector.pacing import no_yield
from rankscope.collector.steps.collectives import CollectiveBlock, NameLists
from rankscope.collector.steps.group_transfers import GroupTransfers, TransferRing
from rankscope.collector.steps.sparse_rows import SparseRows
from rankscope.collector.steps.step_series import Cells, Floats, Ints, StepSeries, sum_computing
from rankscope.collector.steps.wait_attribution import attribute_waits
from rankscope.collector.steps.wait_times import KindColumns, split_waits
from rankscope.collector.steps.workload_signature import GroupFacts, Signature, find_signatures
from rankscope.measure.records import PHASE_PREFIX, Collectives
from rankscope.measure.table import MISSING, Block, Table, stack_tables
from rankscope.measure.units import NS_PER_S


class WindowDistance:
    """Of one attempt. `is_watched`: whether any rank has had a window. `longest`: the most steps from one measured step
    to the next so far.
    """

    def __init__(self) -> None:
        self.is_watched = False
        self.longest = 0
        self._first_step: int | None = None
        self._last_measured: int | None = None

    def begin(self, step: int) -> None:
        """That step has been reported; the first one told is where looking begins."""
        if self._first_step is None:
            self._first_step = step

    def take(self, first_step: int, last_step: int) -> None:
        """From the first to the last of these steps waiting is known; ranks tell of them in any order."""
        if self._last_measured is not None:
            self.longest = max(self.longest, first_step - self._last_measured)
            last_step = max(last_step, self._last_measured)
        self._last_measured = last_step

    def steps_behind(self, latest_step: int) -> int:
        """How many steps ago waiting was known; where it never was, how many are known at all."""
        since = self._last_measured if self._last_measured is not None else self._first_step
        return 0 if since is None else latest_step - since


WHOLE_CELLS_MAX = 2**20
"""Up to so many steps x ranks, 8 MiB, a duration is kept in 64 bits; beyond (4,096 ranks at the default of 256 steps)
in 32, which are seven digits: 0.1 us of a step of a second. All columns of 16,384 ranks are 150 MiB then, not 300."""
PHASES_MAX = 32
"""Names of phases kept for a run: the five of every step and what its users add."""
STAND_IN_STEPS = 64
"""After so many steps without a profiler window none is to be expected, and phases stand in for the self time. Not
before: the stand-in is the noisier one (seen: 1.3 for a healthy rank on two busy cores)."""
STAND_IN_NS = 60 * NS_PER_S
"""Nor, once there were windows, before so much time in steps, as many steps as are kept and twice the longest distance
there was: they are stretched by doubling it, and a verdict should not go to and fro between the two."""
COLUMNS_KEPT = ("group", "op", "sequence", "start_host_ns", "duration_ns", "bytes", "exposed_ns")
"""Of a table of collectives, in the order of CollectiveBlock."""


class StepTable:
    """The last `steps_kept` steps of `world_size` ranks, and as many earlier ones as it takes to have `measured_min`
    measured ones.
    """

    def __init__(self, steps_kept: int, world_size: int, measured_min: int = 0) -> None:
        self._kept = steps_kept
        self._measured_min = measured_min
        self._world_size = world_size
        self._cell = np.float64 if steps_kept * world_size <= WHOLE_CELLS_MAX else np.float32
        slots = steps_kept + measured_min
        self._steps = np.full(slots, -1, dtype=np.int64)
        self._columns = {name: self._empty() for name in ("duration_ns", "cpu_ns", "tokens")}
        self._wait_ns = SparseRows(world_size, self._cell)
        self._transfers = TransferRing(slots)
        self._wait_caused_ns: SparseRows | None = None
        self._charges = 0
        self._phases_ns: dict[str, Floats] = {}
        self._pending: dict[int, list[CollectiveBlock]] = {}
        self._covered = np.zeros((steps_kept, world_size), dtype=bool)
        self._covered_count = np.zeros(steps_kept, dtype=np.int64)
        self._complete: deque[int] = deque()
        """Steps whose collectives are here of all ranks, and which are still to be resolved."""
        self._resolved: list[KindColumns] = []
        """What steps came to that had to be resolved before they were asked for."""
        self._group_sizes: dict[str, int] = {}
        self._places: dict[tuple[int, str], int] = {}
        self.signatures: Mapping[int, Signature] = {}
        """What each rank's steps communicate; the same mapping stands for the same peers."""
        self.latest_step = -1
        self._distance = WindowDistance()

    def _empty(self) -> Floats:
        """Floats in type only: the cells of a large job have half the size. Who reads them makes them whole. Memory is
        taken by the rows that a step has taken: what was never written to is none.
        """
        found = np.empty((len(self._steps), self._world_size), dtype=self._cell)
        found[self._steps >= 0] = np.nan
        return found

    # -- filling ------------------------------------------------------------------------------------------------------

    def learn_group(self, label: str, size: int) -> None:
        """A process group of the run has `size` members."""
        self._group_sizes[label] = size

    def learn_place(self, rank: int, label: str, place: int) -> None:
        """Where the rank stands in that group, from 0."""
        self._places[rank, label] = place

    def add_steps(self, rank: int, table: Table) -> int:
        """Place a rank's steps; returns how many came too late for the window."""
        return sum(int(self.add_steps_of(np.array([rank]), block).sum()) for _, block in stack_tables([table]))

    def add_steps_of(self, ranks: Ints, block: Block) -> Ints:
        """Place the steps of those ranks, one table of the block each, as if they came in that order; returns how many
        of each rank came too late for the window.
        """
        steps = block.column("step").reshape(-1)
        before = np.maximum.accumulate(np.concatenate([[self.latest_step], steps]))[:-1]
        late = (steps < 0) | (steps <= before - self._kept)
        rows = self._make_room(steps, np.flatnonzero(~late))
        slots, columns = steps[rows] % self._kept, np.repeat(ranks, block.values.shape[2])[rows]
        for name in block.names if len(rows) else ():
            values = self._values_of(name)
            if values is not None:
                found = block.column(name).reshape(-1)[rows]
                values[slots, columns] = np.where(found == MISSING, np.nan, found)
        return np.asarray(late.reshape(len(ranks), block.values.shape[2]).sum(axis=1))

    def _values_of(self, name: str) -> Floats | None:
        """Where a column of a table of steps is kept; None: it is not."""
        if name in self._columns:
            return self._columns[name]
        if not name.startswith(PHASE_PREFIX):
            return None
        phase = name.removeprefix(PHASE_PREFIX)
        if phase not in self._phases_ns:
            if len(self._phases_ns) >= PHASES_MAX:
                return None
            self._phases_ns[phase] = self._empty()
        return self._phases_ns[phase]

    def add_collectives(self, rank: int, collectives: Collectives) -> None:
        """Keep a rank's collectives until all ranks' are there."""
        for _, block in stack_tables([collectives.table]):
            self.add_collectives_of([rank], [collectives], block)

    def add_collectives_of(self, ranks: Sequence[int], told: Sequence[Collectives], block: Block) -> None:
        """The same of several ranks, whose tables are the block. They are cut by step; ranks mostly tell of the same
        steps, and then all are cut at once.
        """
        steps = block.column("step")
        order = np.argsort(steps, axis=1, kind="stable")
        steps = np.take_along_axis(steps, order, axis=1)
        alike = np.flatnonzero((steps == steps[:1]).all(axis=1)) if steps.size else np.arange(0)
        others = np.setdiff1d(np.arange(len(ranks)), alike).tolist()
        columns = [np.take_along_axis(block.column(name), order, axis=1) for name in COLUMNS_KEPT]
        for rows in (alike, *(np.array([row]) for row in others)):
            if len(rows):
                self._keep_collectives(rows, steps[rows[0]], ranks, told, columns)

    def _keep_collectives(
        self,
        rows: Ints,
        steps: Ints,
        ranks: Sequence[int],
        told: Sequence[Collectives],
        columns: Sequence[Ints],
    ) -> None:
        """Of these rows of the columns, whose steps are in order."""
        kept = self._make_room(steps, np.arange(len(steps)))
        steps, offset = steps[kept], len(steps) - len(kept)
        bounds = (np.flatnonzero(np.diff(steps, prepend=-1, append=-1)) + offset).tolist()
        if len(rows) < len(ranks):
            columns = [column[rows] for column in columns]
        places = rows.tolist()
        numbers = np.array([ranks[row] for row in places], dtype=np.int64)
        groups = NameLists.of([told[row].groups for row in places])
        ops = NameLists.of([told[row].ops for row in places])
        for begin, end in itertools.pairwise(bounds):
            block = CollectiveBlock(numbers, groups, ops, *(column[:, begin:end] for column in columns))
            self._pending.setdefault(int(steps[begin - offset]), []).append(block)

    def cover(self, rank: int, first_step: int, last_step: int) -> None:
        """All collectives of these steps of that rank are here. The steps of which that is now true of all ranks can be
        resolved.
        """
        self.cover_of(np.array([rank]), first_step, last_step)

    def cover_of(self, ranks: Ints, first_step: int, last_step: int) -> None:
        """The same of several ranks, each once."""
        self._distance.is_watched = True
        steps = np.arange(max(first_step, self.latest_step - self._kept + 1, 0), min(last_step, self.latest_step) + 1)
        steps = steps[self._steps[steps % self._kept] == steps]
        slots = steps % self._kept
        fresh = (~self._covered[np.ix_(slots, ranks)]).sum(axis=1)
        self._covered[np.ix_(slots, ranks)] = True
        self._covered_count[slots] += fresh
        complete = steps[(fresh > 0) & (self._covered_count[slots] == self._world_size)].tolist()
        if complete:
            self._distance.take(complete[0], complete[-1])
            self._charge(complete)
        self._complete.extend(complete)

    def resolve(self, steps_max: int | None = None, rest: Callable[[], None] = no_yield) -> list[KindColumns]:
        """Find the waiting in so many of the steps that can be resolved, None: in all; `rest` is called before each.
        Returns what the collectives of each came to, in their order. Steps that have left the window meanwhile were
        resolved when they did: they come first, and do not count.
        """
        resolved, self._resolved = self._resolved, []
        count = len(self._complete) if steps_max is None else min(steps_max, len(self._complete))
        for _ in range(count):
            rest()
            resolved.append(self._resolve(self._complete.popleft()))
        return resolved

    def _charge(self, steps: Sequence[int]) -> None:
        """Find who caused the waiting in one of these steps; it costs more than to find the waiting. Each time it is
        another one of them: always the last would miss what comes every few steps.
        """
        step = steps[self._charges % len(steps)]
        self._charges += 1
        blame = attribute_waits(self._pending.get(step, ()), self._group_sizes)
        if blame is None:
            return
        if self._wait_caused_ns is None:  # of a job too large to be charged it is never needed
            self._wait_caused_ns = SparseRows(self._world_size, self._cell)
        caused_ns = np.full(self._world_size, np.nan)
        caused_ns[list(blame.ranks)] = blame.caused_ns
        self._wait_caused_ns.put(step % self._kept, caused_ns)

    def _resolve(self, step: int) -> KindColumns:
        slot = step % self._kept
        waits = split_waits(self._pending.pop(step, ()), self._group_sizes)
        self._transfers.put(slot, waits.kinds, self._group_sizes)
        exposed_ns = np.zeros(self._world_size)
        exposed_ns[waits.ranks] = waits.exposed_ns
        self._wait_ns.put(slot, exposed_ns)
        groups = GroupFacts(self._group_sizes, self._world_size, self._find_place)
        self.signatures = find_signatures(waits.rows, waits.kinds.kinds, groups, self.signatures)
        return waits.kinds

    def _find_place(self, rank: int, group: str) -> int:
        return self._places.get((rank, group), -1)

    def _make_room(self, steps: Ints, rows: Ints) -> Ints:
        """Those of the rows whose step has a place in the window, now that it has moved on to the last of them."""
        if len(rows) == 0:
            return rows
        self._distance.begin(int(steps[rows].min()))
        self._move_to(int(steps[rows].max()))
        rows = rows[steps[rows] > max(-1, self.latest_step - self._kept)]
        new = np.unique(steps[rows])
        new = new[self._steps[new % self._kept] != new]
        if len(new):
            slots = new % self._kept
            self._save_measured(slots)
            self._clear(slots)
            self._steps[slots] = new
            self._covered[slots] = False
            self._covered_count[slots] = 0
            for values in self._whole_columns:
                values[slots] = np.nan
        return rows

    def _save_measured(self, slots: Ints) -> None:
        """Of the steps that leave these slots, give the last measured ones others, as many as are needed; those that
        are needed no more leave theirs.
        """
        measured = self._covered_count == self._world_size
        leaving = slots[measured[slots]]
        if not len(leaving) and not (self._steps[self._kept :] >= 0).any():
            return
        staying = int(np.count_nonzero(measured)) - len(leaving)
        needed = max(0, self._measured_min - staying)
        saved = self._kept + np.flatnonzero(self._steps[self._kept :] >= 0)
        candidates = np.concatenate([saved, leaving])
        chosen = candidates[np.argsort(self._steps[candidates])][max(0, len(candidates) - needed) :]
        self._clear(np.setdiff1d(saved, chosen))
        leaving = leaving[np.isin(leaving, chosen)]
        to = self._kept + np.flatnonzero(self._steps[self._kept :] < 0)[: len(leaving)]
        self._steps[to] = self._steps[leaving]
        for values in self._whole_columns:
            values[to] = values[leaving]
        for rows in self._sparse_columns:
            rows.move(leaving, to)

    def _clear(self, slots: Ints) -> None:
        self._steps[slots] = -1
        for rows in self._sparse_columns:
            rows.clear(slots)

    @property
    def _whole_columns(self) -> list[Floats]:
        return [*self._columns.values(), *self._phases_ns.values()]

    @property
    def _sparse_columns(self) -> list[SparseRows | TransferRing]:
        caused = [] if self._wait_caused_ns is None else [self._wait_caused_ns]
        return [self._wait_ns, self._transfers, *caused]

    def _move_to(self, step: int) -> None:
        if step > self.latest_step:
            while self._complete and min(self._complete) <= step - self._kept:
                self._resolved.append(self._resolve(self._complete.popleft()))
            self.latest_step = step
            self._pending = {kept: found for kept, found in self._pending.items() if kept > step - self._kept}

    # -- reading ------------------------------------------------------------------------------------------------------

    def series(self, ranks: tuple[int, ...], *, skip_steps: int) -> StepSeries:
        """The steps of these ranks in order, the first `skip_steps` of the run left out (start-up is no slowness)."""
        slots = self._slots_from(skip_steps)
        columns = np.array(ranks, dtype=np.int64)
        step_ns = _read(self._columns["duration_ns"], slots, columns)
        phases_ns = {name: _Cells(values, slots, columns) for name, values in self._phases_ns.items()}
        measured = self._is_measured(step_ns)
        computing_ns = None if measured else sum_computing(phases_ns)
        caused_ns = None if self._wait_caused_ns is None else self._wait_caused_ns.read(slots)[:, columns]
        return StepSeries(
            steps=self._steps[slots],
            ranks=ranks,
            step_ns=step_ns,
            self_ns=self._measured_self_ns(step_ns, slots, columns) if computing_ns is None else computing_ns,
            cpu_ns=_Cells(self._columns["cpu_ns"], slots, columns),
            phases_ns=phases_ns,
            self_is_measured=measured,
            tokens=_Cells(self._columns["tokens"], slots, columns),
            wait_caused_ns=caused_ns,
            earlier_count=int(np.count_nonzero(slots >= self._kept)),
        )

    def _is_measured(self, step_ns: Floats) -> bool:
        """Whether waiting is measured, as far as is known; `step_ns` are the durations of the last steps."""
        behind = self._distance.steps_behind(self.latest_step)
        if not self._distance.is_watched:
            return behind < STAND_IN_STEPS
        if behind <= max(self._kept, 2 * self._distance.longest):
            return True
        last_ns = step_ns[-STAND_IN_STEPS:]
        last_ns = last_ns[~np.isnan(last_ns)]
        return not len(last_ns) or behind * float(np.median(last_ns)) <= STAND_IN_NS

    def _measured_self_ns(self, step_ns: Floats, slots: Ints, columns: Ints) -> Floats:
        """The steps without the waiting in them, NaN where that is not known."""
        self_ns = np.full_like(step_ns, np.nan)
        for place, wait_ns in self._wait_ns.items(slots):
            self_ns[place] = step_ns[place] - wait_ns[columns]
        return self_ns

    def transfers(self, *, skip_steps: int) -> GroupTransfers:
        """What the data movement of each process group took in the steps of `series`."""
        return self._transfers.read(self._slots_from(skip_steps))

    def settled(self, after_step: int, *, patience: int) -> tuple[Ints, Floats, Mapping[str, Cells]]:
        """The steps after that one which every rank has reported, in order: their numbers, shape (n,), and the
        durations and phases of all ranks, shape (n, world size) in ns. It ends before the first step that lacks
        a rank, unless that is `patience` steps behind the latest: then it is given as it is, NaN where a rank lacks.
        """
        slots = self._slots_from(after_step + 1)
        everybody = np.arange(self._world_size)
        durations_ns = _read(self._columns["duration_ns"], slots, everybody)
        waiting = np.isnan(durations_ns).any(axis=1) & (self._steps[slots] > self.latest_step - patience)
        count = int(np.argmax(waiting)) if waiting.any() else len(slots)
        slots = slots[:count]
        return (
            self._steps[slots],
            durations_ns[:count],
            {name: _Cells(values, slots, everybody) for name, values in self._phases_ns.items()},
        )

    def _slots_from(self, step: int) -> Ints:
        """Where the steps from that one on are, in order."""
        slots = np.flatnonzero(self._steps >= step)
        return slots[np.argsort(self._steps[slots])]


class _Cells:
    """Some steps and ranks of a ring of steps, read whole where they are asked for: a look at a large job asks for few,
    and everything in 64 bits is 32 MiB.
    """

    def __init__(self, values: Floats, slots: Ints, columns: Ints) -> None:
        self._values = values
        self._slots = slots
        self._columns = columns

    def __getitem__(self, key: Any, /) -> Any:
        rows, columns = key if isinstance(key, tuple) else (key, slice(None))
        if isinstance(rows, slice) or isinstance(columns, slice):
            return _read(self._values, self._slots[rows], self._columns[columns])
        return self._values[self._slots[rows], self._columns[columns]].astype(np.float64)


def _read(values: Floats, slots: Ints, columns: Ints) -> Floats:
    """A copy of these steps of these ranks, whole."""
    are_all = len(columns) == values.shape[1]  # ranks come in order
    found = values[slots] if are_all else values[np.ix_(slots, columns)]
    return np.asarray(found.astype(np.float64, copy=False))
