"""Keep the same steps of all ranks side by side: a ring of steps, one column per rank. Pure.

A list of each rank's records would be simpler, but every comparison needs the same step of all ranks, and 256 steps of
16,384 ranks are four million records. Here a step is a row, and a comparison of ranks one operation on rows.

A step's duration and phases arrive within a report interval, its collectives when the profiler window they were
recorded in ends. Until every rank has reported them, a step's waiting and own time are unknown: NaN. For one of the
steps that a report completes, the waiting is attributed to the ranks that caused it.

Windows may be further apart than the ring is long. Where fewer *measured* steps, whose waiting is known, are in the
ring than a verdict needs, measured steps that leave the ring move to slots behind it until there are enough again. So
do steps that all ranks timed on their devices. Example: a verdict needs 8 measured steps, a window of two comes every
200 steps, and the ring has 256: at most four are in it, so the four before them stay in slots behind it.

Steps of a millisecond come by the thousand between two detection passes. So in a run of few ranks the ring is longer
than what a pass judges (`find_ring_steps`): what is counted or looked at once, as stalls, is that of every step.
"""

import itertools
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rankscope.collector.invariants import ImpossibleNumbers, require
from rankscope.collector.steps.collectives import CollectiveBlock, Kinds, NameLists, Rows, count_rows
from rankscope.collector.steps.device_own_times import DeviceOwnTimes, fill_from_device
from rankscope.collector.steps.expert_loads import sum_routed
from rankscope.collector.steps.group_transfers import GroupTransfers, TransferRing
from rankscope.collector.steps.host_own_times import WAITS_IN, fill_from_cpu, find_apart, find_late_begins
from rankscope.collector.steps.measured_steps import WindowDistance
from rankscope.collector.steps.skipped_collectives import Lags
from rankscope.collector.steps.sparse_rows import SparseRows
from rankscope.collector.steps.stacked_tables import TableBlock
from rankscope.collector.steps.step_series import Cells, Flags, Floats, Ints, StepSeries, sum_computing
from rankscope.collector.steps.unwatched_steps import fill_from_phases
from rankscope.collector.steps.wait_attribution import attribute_waits
from rankscope.collector.steps.wait_times import KindColumns, split_waits
from rankscope.collector.steps.workload_signature import GroupFacts, Signature, SignatureSearch
from rankscope.measure.bounds import GROUPS_MAX
from rankscope.measure.communication import ALL_TO_ALL, is_on_host
from rankscope.measure.records import BACKWARD_CPU, CAPTURED, PHASE_PREFIX, PHASES, Collectives
from rankscope.measure.table import MISSING

WHOLE_CELLS_MAX = 2**20
"""Steps x ranks, 8 MiB, up to which durations are kept in 64 bits. Beyond (4,096 ranks at the default of 256 steps) 32
bits are seven digits, 0.1 us of a step of a second, and all columns of 16,384 ranks are 150 MiB, not 300."""
PHASES_MAX = 32
"""Names of phases kept for a run: the five of every step and those that its users add."""
OPERATIONS_AT_ONCE = 128
CELLS_AT_ONCE = 100_000
"""Operations of a rank, and rows times ranks, up to which more than one of the steps that a report completes are
attributed: 20 and 10 ms."""
OVERLAP_RATIO_MAX = 0.01
"""Share of a step by which its waiting may exceed it: times of two clocks, and of steps that are kept in 32 bits. A
rank that waited for longer has waited in another step as well, and its own time in this one is not known."""
COLUMNS_KEPT = ("group", "op", "sequence", "start_host_ns", "duration_ns", "bytes", "exposed_ns")
"""Columns of a table of collectives, in the order of CollectiveBlock."""


RING_CELLS: Final = 2**14
RING_STEPS_MAX: Final = 4096
"""A ring has so many steps x ranks, or as many steps as are judged, if these are more: 8 ranks 2,048 steps, 1.7 MB."""


def find_ring_steps(steps_kept: int, world_size: int) -> int:
    """Return how many steps are kept of which `steps_kept` are judged."""
    return max(steps_kept, min(RING_STEPS_MAX, RING_CELLS // world_size))


def _mark(marks: npt.NDArray[np.bool_], counts: Ints, ranks: Ints, steps: Ints) -> list[int]:
    """Set the marks of these ranks in these steps of a ring, shape (slots, ranks), and their sums by slot; return the
    steps that have those of all ranks since now.
    """
    slots = steps % len(marks)
    fresh = (~marks[np.ix_(slots, ranks)]).sum(axis=1)
    marks[np.ix_(slots, ranks)] = True
    counts[slots] += fresh
    found: list[int] = steps[(fresh > 0) & (counts[slots] == marks.shape[1])].tolist()
    return found


class StepColumns:
    """What the step records of `world_size` ranks hold, by slot: shape (slots, ranks), NaN where not known."""

    def __init__(self, slots: int, world_size: int, cell: npt.DTypeLike) -> None:
        self._world_size = world_size
        #: Type of all cells that are kept; readers get 64 bits.
        self._cell = cell
        #: Step in each slot, shape (slots,); -1 in a free one.
        self.steps = np.full(slots, -1, dtype=np.int64)
        #: Columns of every step record, in ns or tokens; BACKWARD_CPU once a rank reports it.
        self.records = {name: self._empty() for name in ("duration_ns", "cpu_ns", "tokens")}
        #: `{phase: column}` in ns; at most PHASES_MAX.
        self.phases_ns: dict[str, Floats] = {}

    def find(self, name: str) -> Floats | None:
        """Return the column of this name in tables of steps, None if it is not kept. That of a new phase is added."""
        if name == BACKWARD_CPU and name not in self.records:
            self.records[name] = self._empty()
        if name in self.records:
            return self.records[name]
        if not name.startswith(PHASE_PREFIX):
            return None
        phase = name.removeprefix(PHASE_PREFIX)
        if phase not in self.phases_ns:
            if len(self.phases_ns) >= PHASES_MAX:
                return None
            self.phases_ns[phase] = self._empty()
        return self.phases_ns[phase]

    @property
    def all(self) -> list[Floats]:
        """All columns."""
        return [*self.records.values(), *self.phases_ns.values()]

    def slots_from(self, step: int) -> Ints:
        """Return the slots of the steps from `step` on, in order."""
        slots = np.flatnonzero(self.steps >= step)
        return slots[np.argsort(self.steps[slots])]

    def _empty(self) -> Floats:
        """Return an empty column. The cells of a large run have 32 bits; readers convert to 64. Rows never written use
        no memory.
        """
        found = np.empty((len(self.steps), self._world_size), dtype=self._cell)
        found[self.steps >= 0] = np.nan
        return found


class StepTable:
    """The last `steps_kept` steps of `world_size` ranks, and earlier ones as needed to have `measured_min` measured
    steps; the last `ring_steps` to be counted, if these are more.
    """

    def __init__(self, steps_kept: int, world_size: int, measured_min: int = 0, *, ring_steps: int = 0) -> None:
        #: Steps that are judged.
        self._judged = steps_kept
        #: Slots of the ring; slots from here on hold measured steps that have left it.
        self._kept = max(steps_kept, ring_steps)
        self._measured_min = measured_min
        self._world_size = world_size
        self._cell = np.float64 if steps_kept * world_size <= WHOLE_CELLS_MAX else np.float32
        slots = self._kept + 2 * measured_min
        self._columns = StepColumns(slots, world_size, self._cell)
        #: Step in each slot, the array of the columns. Step s of the ring is in slot s % `_kept`.
        self._steps = self._columns.steps
        #: Exposed waiting of each rank in the matched steps, in ns.
        self._wait_ns = SparseRows(world_size, self._cell)
        #: The part of that in point-to-point operations; None before any.
        self._handover_ns: SparseRows | None = None
        #: Bytes of each rank in all-to-alls of the matched steps; None before any.
        self._exchanged: SparseRows | None = None
        self._routed: SparseRows | None = None
        self.exchanging: frozenset[str] = frozenset()
        """Labels of the process groups whose all-to-alls are of the loads: those that have ever been uneven; all with
        all-to-alls while none has."""
        self._is_exchange_uneven = False
        #: Ranks that have left out a collective.
        self._lags = Lags()
        #: Whether the own times of the step matched last hold transfers.
        self._own_has_transfers = True
        #: Transfers of each process group in the matched steps.
        self._transfers = TransferRing(slots)
        #: Each rank's own time on its device, in the steps that were timed there.
        self._device = DeviceOwnTimes(slots, world_size, self._cell)
        #: Waiting that each rank caused in the attributed steps, in ns, and last what none is charged; None before any.
        self._wait_caused_ns: SparseRows | None = None
        #: Attributions so far, which choose the next step.
        self._attributions = 0
        #: Collectives of steps of the ring that are not matched yet, by step.
        self._pending: dict[int, list[CollectiveBlock]] = {}
        #: Whether all collectives of a step of a rank have come, shape (`_kept`, ranks).
        self._covered = np.zeros((self._kept, world_size), dtype=bool)
        #: Sums of the rows of `_covered`, for the slots that are in use.
        self._covered_count = np.zeros(self._kept, dtype=np.int64)
        #: Whether those have come that a window or the flight recorder had, shape as above; implied by `_covered`.
        self._reported = np.zeros((self._kept, world_size), dtype=bool)
        #: Sums of the rows of `_reported`.
        self._reported_count = np.zeros(self._kept, dtype=np.int64)
        #: Steps whose collectives all ranks have reported, to be matched, in the order of their completion.
        self._complete: deque[int] = deque()
        #: Results of steps that left the ring before `match_collectives` was called.
        self._matched_early: list[KindColumns] = []
        #: `{label: members}` of each process group.
        self._group_sizes: dict[str, int] = {}
        self._host_groups: set[str] = set()
        #: `{(rank, label): index}` of each rank within its groups.
        self._places: dict[tuple[int, str], int] = {}
        #: The signature of each rank's steps; the same mapping object as long as no signature changes.
        self.signatures: Mapping[int, Signature] = {}
        self._signature_search = SignatureSearch()
        #: The last step that any rank has reported; -1 before any. Only grows.
        self.latest_step = -1
        self._distance = WindowDistance()
        #: Waiting that was longer than its step.
        self.impossible = ImpossibleNumbers()

    # -- filling ------------------------------------------------------------------------------------------------------

    def set_group_size(self, label: str, size: int, backend: str = "nccl") -> None:
        """Set the number of members of a process group, and what moves its data."""
        self._group_sizes[label] = size
        if is_on_host(backend):
            self._host_groups.add(label)

    def set_place(self, rank: int, label: str, place: int) -> None:
        """Set the index of a rank within a process group, from 0."""
        self._places[rank, label] = place

    def add_steps_of(self, ranks: Ints, block: TableBlock) -> Ints:
        """Store the steps of these ranks, one table of the block each, as if they came in that order; return how many
        of each rank came too late for the ring.
        """
        steps = block.column("step").reshape(-1)
        before = np.maximum.accumulate(np.concatenate([[self.latest_step], steps]))[:-1]
        late = (steps < 0) | (steps <= before - self._kept)
        is_wanted = ~late
        if CAPTURED in block.names:  # recording has made those longer
            is_wanted &= block.column(CAPTURED).reshape(-1) != 1
        rows = self._make_room(steps, np.flatnonzero(is_wanted))
        slots, columns = steps[rows] % self._kept, np.repeat(ranks, block.values.shape[2])[rows]
        for name in block.names if len(rows) else ():
            values = self._columns.find(name)
            if values is not None:
                found = block.column(name).reshape(-1)[rows]
                values[slots, columns] = np.where(found == MISSING, np.nan, found)
        self._device.add(block, rows, steps[rows], slots, columns)
        return np.asarray(late.reshape(len(ranks), block.values.shape[2]).sum(axis=1))

    def add_collectives_of(self, ranks: Sequence[int], reported: Sequence[Collectives], block: TableBlock) -> None:
        """Keep the collectives of several ranks, whose tables are the block, of one row at least. They are split by
        step; ranks that report the same steps are split together.
        """
        steps = block.column("step")
        order = np.argsort(steps, axis=1, kind="stable")
        steps = np.take_along_axis(steps, order, axis=1)
        alike = np.flatnonzero((steps == steps[:1]).all(axis=1))
        others = np.setdiff1d(np.arange(len(ranks)), alike).tolist()
        columns = [np.take_along_axis(block.column(name), order, axis=1) for name in COLUMNS_KEPT]
        for rows in (alike, *(np.array([row]) for row in others)):
            self._keep_collectives(rows, steps[rows[0]], ranks, reported, columns)

    def _keep_collectives(
        self,
        rows: Ints,
        steps: Ints,
        ranks: Sequence[int],
        reported: Sequence[Collectives],
        columns: Sequence[Ints],
    ) -> None:
        """Keep these rows of the columns, whose steps ascend."""
        kept = self._make_room(steps, np.arange(len(steps)))
        steps, offset = steps[kept], len(steps) - len(kept)
        bounds = (np.flatnonzero(np.diff(steps, prepend=-1, append=-1)) + offset).tolist()
        if len(rows) < len(ranks):
            columns = [column[rows] for column in columns]
        places = rows.tolist()
        numbers = np.array([ranks[row] for row in places], dtype=np.int64)
        groups = NameLists.of([reported[row].groups for row in places])
        ops = NameLists.of([reported[row].ops for row in places])
        for begin, end in itertools.pairwise(bounds):
            block = CollectiveBlock(numbers, groups, ops, *(column[:, begin:end] for column in columns))
            self._pending.setdefault(int(steps[begin - offset]), []).append(block)

    def mark_complete_of(self, ranks: Ints, first_step: int, last_step: int, *, is_timed: bool = False) -> None:
        """Record that all collectives of these steps of these ranks, each given once, have come; with `is_timed` those
        that the flight recorder had. Steps of which either is true for all ranks can be matched; only those that are
        complete for all have exposed waiting, and so an own time.
        """
        steps = np.arange(max(first_step, self.latest_step - self._kept + 1, 0), min(last_step, self.latest_step) + 1)
        steps = steps[self._steps[steps % self._kept] == steps]
        if not is_timed:
            self._distance.is_watched = True
            complete = _mark(self._covered, self._covered_count, ranks, steps)
            if complete:
                self._distance.record_measured(complete[0], complete[-1])
                self._attribute_wait(complete)
        self._complete.extend(_mark(self._reported, self._reported_count, ranks, steps))

    def match_collectives(self, steps_max: int | None = None) -> list[KindColumns]:
        """Match up to `steps_max` complete steps (None: all) and return their collectives by kind, in order. Steps that
        left the ring meanwhile come first and do not count.
        """
        matched, self._matched_early = self._matched_early, []
        count = len(self._complete) if steps_max is None else min(steps_max, len(self._complete))
        for _ in range(count):
            matched.append(self._match_step(self._complete.popleft()))
        return matched

    @property
    def unmatched(self) -> int:
        """Complete steps that are not matched yet."""
        return len(self._complete)

    def _attribute_wait(self, steps: Sequence[int]) -> None:
        """Attribute the waiting of one of these steps, and of others while that takes little, which costs more than to
        match them. The first one rotates: always the last would miss what recurs every few steps.
        """
        first, operations, cells = self._attributions % len(steps), 0, 0
        self._attributions += 1
        for step in (*steps[first:], *steps[:first]):
            rows = count_rows(self._pending.get(step, ()))
            operations, cells = operations + rows // self._world_size, cells + rows * self._world_size
            if step != steps[first] and (operations > OPERATIONS_AT_ONCE or cells > CELLS_AT_ONCE):
                return
            found = attribute_waits(self._pending.get(step, ()), self._group_sizes, self._host_groups)
            if found is None:
                return
            if self._wait_caused_ns is None:  # of a job too large to be charged it is never needed
                self._wait_caused_ns = SparseRows(self._world_size + 1, self._cell)
            caused_ns = np.full(self._world_size + 1, np.nan)
            caused_ns[list(found.ranks)] = found.caused_ns
            caused_ns[-1] = found.unknown_ns
            self._wait_caused_ns.put(step % self._kept, caused_ns)

    def _match_step(self, step: int) -> KindColumns:
        slot = step % self._kept
        collectives = self._pending.pop(step, ())
        is_complete = bool(self._covered_count[slot] == self._world_size)
        waits = split_waits(collectives, self._group_sizes, self._host_groups)
        corrected = self._lags.correct(step, collectives, waits) if is_complete else None
        if corrected is not None:
            waits = split_waits(corrected, self._group_sizes, self._host_groups)
        self._transfers.put(slot, waits.kinds, self._group_sizes, has_exposure=is_complete)
        if not is_complete:
            self._device.add_waits(slot, waits.ranks, waits.kinds)
            return waits.kinds
        exposed_ns = _spread(waits.exposed_ns, waits.ranks, self._world_size)
        self._wait_ns.put(slot, self._without_longer_than_step(step, slot, exposed_ns))
        if waits.handover_ns is not None:
            self._handover_ns = self._handover_ns or SparseRows(self._world_size, self._cell)  # only of a pipeline
            self._handover_ns.put(slot, _spread(waits.handover_ns, waits.ranks, self._world_size))
        self._own_has_transfers = waits.is_transfer_kept
        self._keep_exchanged(slot, waits.rows, waits.kinds.kinds)
        groups = GroupFacts(
            self._group_sizes, self._world_size, lambda rank, group: self._places.get((rank, group), -1)
        )
        self.signatures = self._signature_search.find(waits.rows, waits.kinds.kinds, groups)
        return waits.kinds

    def _keep_exchanged(self, slot: int, rows: Rows, kinds: Kinds) -> None:
        """Keep what each rank moved in all-to-alls in a step: the experts of a model get as many tokens as bytes."""
        exchanges = np.array([op == ALL_TO_ALL for _, op in kinds], dtype=bool)
        if not exchanges.any():  # as in most jobs
            return
        chosen = exchanges[rows.kind] & (rows.size_bytes != MISSING)
        if not chosen.any():
            return
        self._exchanged = self._exchanged or SparseRows(self._world_size, self._cell)
        moved = np.bincount(rows.rank[chosen], weights=rows.size_bytes[chosen], minlength=self._world_size)
        self._exchanged.put(slot, moved.astype(np.float64))
        if np.array_equal(chosen, exchanges[rows.kind]):  # of a call of unknown size nothing is known to be even
            self._keep_routed(slot, rows, kinds, chosen)

    def _keep_routed(self, slot: int, rows: Rows, kinds: Kinds, chosen: Flags) -> None:
        """Keep the loads of the ranks that hold experts, from these all-to-alls."""
        before = np.array([group in self.exchanging for group, _ in kinds], dtype=bool) & self._is_exchange_uneven
        routed = sum_routed(
            rows.rank[chosen], rows.kind[chosen], rows.key[chosen], rows.size_bytes[chosen],
            world_size=self._world_size, uneven_before=before,
        )  # fmt: skip
        is_uneven = bool(routed.uneven_groups.any())
        if self._is_exchange_uneven and not is_uneven:
            return  # a step without the experts
        found = np.flatnonzero(routed.uneven_groups) if is_uneven else np.unique(rows.kind[chosen])
        named = {kinds[kind][0] for kind in found.tolist()}
        if is_uneven == self._is_exchange_uneven and len(self.exchanging) <= GROUPS_MAX:
            named |= self.exchanging
        self.exchanging, self._is_exchange_uneven = frozenset(named), is_uneven
        self._routed = self._routed or SparseRows(self._world_size + 2, self._cell)
        self._routed.put(slot, np.append(routed.load, [routed.even, routed.uneven]))

    def _without_longer_than_step(self, step: int, slot: int, exposed_ns: Floats) -> Floats:
        """Return the exposed waiting of all ranks in a step, NaN where it is longer than the step."""
        step_ns = self._columns.records["duration_ns"][slot]
        ranks = np.flatnonzero(exposed_ns > (1 + OVERLAP_RATIO_MAX) * step_ns)  # what is not known is no longer
        if len(ranks):
            first = int(ranks[0])
            inputs = f"rank {first} waited {exposed_ns[first]:.0f} ns of the {step_ns[first]:.0f} ns of step {step}"
            self.impossible.note("own_time", inputs, len(ranks))
            exposed_ns[ranks] = np.nan
        return exposed_ns

    def _make_room(self, steps: Ints, rows: Ints) -> Ints:
        """Advance the ring to the last of the steps of `rows`, and return the rows whose step is in it."""
        if len(rows) == 0:
            return rows
        self._distance.start_at(int(steps[rows].min()))
        self._move_to(int(steps[rows].max()))
        rows = rows[steps[rows] > max(-1, self.latest_step - self._kept)]
        new = np.unique(steps[rows])
        new = new[self._steps[new % self._kept] != new]
        if len(new):
            slots = new % self._kept
            self._keep_measured(slots)
            self._clear(slots)
            self._steps[slots] = new
            self._covered[slots] = False
            self._covered_count[slots] = 0
            self._reported[slots] = False
            self._reported_count[slots] = 0
            for values in self._columns.all:
                values[slots] = np.nan
        return rows

    def _keep_measured(self, slots: Ints) -> None:
        """Move the last measured steps that leave these slots to slots behind the ring, as many as are needed, and free
        those that are no longer needed. The steps that all ranks timed on their devices likewise.
        """
        measured, timed = self._covered_count == self._world_size, self._device.is_complete[: self._kept]
        leaving = slots[(measured | timed)[slots]]
        saved = self._kept + np.flatnonzero(self._steps[self._kept :] >= 0)
        if not len(leaving) and not len(saved):
            return
        candidates = np.concatenate([saved, leaving])
        candidates = candidates[np.argsort(self._steps[candidates])]
        kinds = ((self._wait_ns.has(candidates), measured), (self._device.is_complete[candidates], timed))
        chosen = np.concatenate(
            [
                _find_last(candidates[is_kind], self._measured_min - int(np.count_nonzero(np.delete(in_ring, slots))))
                for is_kind, in_ring in kinds
            ]
        )
        self._clear(np.setdiff1d(saved, chosen))
        leaving = leaving[np.isin(leaving, chosen)]
        to = self._kept + np.flatnonzero(self._steps[self._kept :] < 0)[: len(leaving)]
        self._steps[to] = self._steps[leaving]
        for values in self._columns.all:
            values[to] = values[leaving]
        for rows in self._sparse_columns:
            rows.move(leaving, to)

    def _clear(self, slots: Ints) -> None:
        self._steps[slots] = -1
        for rows in self._sparse_columns:
            rows.clear(slots)

    @property
    def _sparse_columns(self) -> list[SparseRows | TransferRing | DeviceOwnTimes]:
        of_some = [
            rows
            for rows in (self._wait_caused_ns, self._handover_ns, self._exchanged, self._routed)
            if rows is not None
        ]
        return [self._wait_ns, self._transfers, self._device, *of_some]

    def _move_to(self, step: int) -> None:
        if step > self.latest_step:
            while self._complete and min(self._complete) <= step - self._kept:
                self._matched_early.append(self._match_step(self._complete.popleft()))
            self.latest_step = step
            self._pending = {kept: found for kept, found in self._pending.items() if kept > step - self._judged}

    def validate(self) -> None:
        """Raise InvariantError where an invariant does not hold; tests call it after events."""
        ring = self._steps[: self._kept]
        slots = np.flatnonzero(ring >= 0)
        require(bool((ring[slots] % self._kept == slots).all()), "a step is in another's slot")
        require(bool((ring[slots] > self.latest_step - self._kept).all()), "a step that left the ring is in it")
        known = self._steps[self._steps >= 0]
        require(len(np.unique(known)) == len(known), "a step has two slots")
        require(int(known.max(initial=-1)) <= self.latest_step, "a step is later than the latest")
        counted = self._covered.sum(axis=1)
        require(bool((self._covered_count[slots] == counted[slots]).all()), "counts of complete ranks differ")
        reported = self._reported.sum(axis=1)
        require(bool((self._reported_count[slots] == reported[slots]).all()), "counts of reported ranks differ")
        require(all(step > self.latest_step - self._kept for step in self._pending), "collectives of a step that left")
        complete = [self._reported_count[step % self._kept] == self._world_size for step in self._complete]
        require(all(complete), "a step is to be matched without all ranks")
        require(len(self._columns.phases_ns) <= PHASES_MAX, "too many phases")

    # -- reading ------------------------------------------------------------------------------------------------------

    def series(
        self, ranks: tuple[int, ...], *, skip_steps: int, is_on_cpus: bool = False, is_whole: bool = False
    ) -> StepSeries:
        """Return the steps of these ranks in order, without the first `skip_steps` of the run (start-up is no
        slowness). `is_on_cpus`: whether the ranks have no GPUs, so that phases of the host are those of the training.
        `is_whole`: all steps of the ring, also those before the ones that are judged.
        """
        slots = self._columns.slots_from(skip_steps) if is_whole else self._find_judged(skip_steps)
        is_earlier = slots >= self._kept if is_whole else self._steps[slots] <= self.latest_step - self._judged
        columns = np.array(ranks, dtype=np.int64)
        step_ns = _read(self._columns.records["duration_ns"], slots, columns)
        phases_ns = self._read_phases(slots, columns)
        measured = self._distance.is_measured(self.latest_step, self._judged, step_ns)
        is_by_device = not measured and self._device.still_come(self.latest_step, self._judged, step_ns)
        if is_by_device:
            own_ns = self._device.read(slots, columns, self._group_sizes)
        else:
            own_ns = _subtract_waits(step_ns, self._wait_ns.blocks(slots), columns)
            at_most_ns: Floats | None = None
            cpu_ns = self._columns.records.get(BACKWARD_CPU)
            if cpu_ns is not None and is_on_cpus and self._is_on_hosts and len(ranks) == self._world_size:
                off_cpu_ns = phases_ns[WAITS_IN][:] - _read(cpu_ns, slots, columns)
                apart = find_apart(step_ns, self._find_late_begins(slots, columns), off_cpu_ns, phases_ns)
                at_most_ns = apart.own_ns
                filled_ns = fill_from_cpu(own_ns, apart, all_meet=self._all_meet)
                measured |= filled_ns is not own_ns
                own_ns = filled_ns
            if measured and self._device.is_complete[slots].any():
                own_ns = fill_from_device(own_ns, self._device.read(slots, columns, self._group_sizes))
            if measured and len(ranks) == self._world_size:
                own_ns = fill_from_phases(own_ns, step_ns, phases_ns, at_most_ns)
            if not measured and (computing_ns := sum_computing(phases_ns)) is not None:
                own_ns = computing_ns
        waits_ns = None if self._wait_caused_ns is None else self._wait_caused_ns.read(slots)
        routed = None if self._routed is None else self._routed.read(slots)
        return StepSeries(
            steps=self._steps[slots],
            ranks=ranks,
            step_ns=step_ns,
            own_ns=own_ns,
            cpu_ns=_Cells(self._columns.records["cpu_ns"], slots, columns),
            phases_ns=phases_ns,
            own_is_measured=measured,
            tokens=_Cells(self._columns.records["tokens"], slots, columns),
            wait_caused_ns=None if waits_ns is None else waits_ns[:, columns],
            wait_untraced_ns=None if waits_ns is None else waits_ns[:, -1],
            handover_ns=None if self._handover_ns is None else self._handover_ns.read(slots)[:, columns],
            own_has_transfers=self._own_has_transfers,
            lags=self._lags.read(),
            earlier_count=int(np.count_nonzero(is_earlier)),
            exchanged_bytes=None if self._exchanged is None else self._exchanged.read(slots)[:, columns],
            routed_bytes=None if routed is None else routed[:, columns],
            exchange_calls=None if routed is None else routed[:, -2:],
            is_by_device=is_by_device,
            timed_waits_ns=self._device.read_waits(slots) if is_by_device else {},
        )

    def _find_late_begins(self, slots: Ints, columns: Ints) -> Floats:
        """Return `find_late_begins` of the steps in these slots. All steps of the ring are looked at: the last in which
        nobody was late may be long ago.
        """
        whole = self._columns.slots_from(0)
        late_ns = find_late_begins(self._steps[whole], _read(self._columns.records["duration_ns"], whole, columns))
        return late_ns[np.isin(whole, slots, assume_unique=True)]

    @property
    def _is_on_hosts(self) -> bool:
        """Whether the hosts move the data of every process group with peers."""
        groups = {label for label, size in self._group_sizes.items() if size > 1}
        return bool(groups) and groups <= self._host_groups

    @property
    def _all_meet(self) -> bool:
        """Whether each process group with peers has all ranks."""
        return set(self._group_sizes.values()) <= {1, self._world_size}

    def transfers(self, *, skip_steps: int) -> GroupTransfers:
        """Return the transfers of each process group in the steps of `series`."""
        return self._transfers.read(self._find_judged(skip_steps))

    @property
    def keeps_more(self) -> bool:
        """Whether it has steps before those that are judged."""
        return self._judged < self._kept and self.latest_step >= self._judged

    def _find_judged(self, skip_steps: int) -> Ints:
        """Return the slots of the last steps, in order, and of as many measured ones before them as are needed."""
        slots = self._columns.slots_from(skip_steps)
        if not self.keeps_more:
            return slots
        is_last = self._steps[slots] > self.latest_step - self._judged
        chosen = is_last.copy()
        for is_known in (self._wait_ns.has(slots), self._device.is_complete[slots]):
            needed = self._measured_min - int(np.count_nonzero(is_known & is_last))
            chosen[_find_last(np.flatnonzero(is_known & ~is_last), needed)] = True
        return slots[chosen]

    def read_finished(self, after_step: int, *, patience: int) -> tuple[Ints, Floats, Mapping[str, Cells]]:
        """Return the steps after `after_step` that every rank has reported, in order: their numbers, shape (n,), and
        the durations and phases of all ranks, shape (n, world size) in ns. Ends before the first step that lacks a
        rank, unless it is `patience` steps behind the latest: then it is included, NaN where a rank is lacking.
        """
        slots = self._columns.slots_from(after_step + 1)
        all_ranks = np.arange(self._world_size)
        durations_ns = _read(self._columns.records["duration_ns"], slots, all_ranks)
        waiting = np.isnan(durations_ns).any(axis=1) & (self._steps[slots] > self.latest_step - patience)
        count = int(np.argmax(waiting)) if waiting.any() else len(slots)
        slots = slots[:count]
        return (
            self._steps[slots],
            durations_ns[:count],
            self._read_phases(slots, all_ranks),
        )

    def _read_phases(self, slots: Ints, columns: Ints) -> dict[str, "_Cells"]:
        """Return the phases of these steps of these ranks. A report has a phase of the user only with time in it."""
        known = self._columns.records["duration_ns"]
        return {
            name: _Cells(values, slots, columns, None if name in PHASES else known)
            for name, values in self._columns.phases_ns.items()
        }


def _spread(values: Floats, ranks: Ints, world_size: int) -> Floats:
    """Return the values of these ranks in a row of all ranks, 0 for the others."""
    row = np.zeros(world_size)
    row[ranks] = values
    return row


def _find_last(candidates: Ints, needed: int) -> Ints:
    """Return the last `needed` of these slots, which are ordered by step; none if that is negative."""
    return candidates[len(candidates) - min(len(candidates), max(0, needed)) :]


class _Cells:
    """Some steps and ranks of a ring of steps, copied on reading: a detection pass reads few of them, and a whole
    column in 64 bits is 32 MiB. With `known`, of the same shape, a value that is lacking is 0 where that is known.
    """

    def __init__(self, values: Floats, slots: Ints, columns: Ints, known: Floats | None = None) -> None:
        self._values = values
        self._known = known
        self._slots = slots
        self._columns = columns

    def __getitem__(self, key: Any, /) -> Any:
        rows, columns = key if isinstance(key, tuple) else (key, slice(None))
        found = self._take(self._values, rows, columns)
        if self._known is not None:
            found[np.isnan(found) & ~np.isnan(self._take(self._known, rows, columns))] = 0.0
        return found

    def _take(self, values: Floats, rows: Any, columns: Any) -> Any:
        if isinstance(rows, slice) or isinstance(columns, slice):
            return _read(values, self._slots[rows], self._columns[columns])
        return values[self._slots[rows], self._columns[columns]].astype(np.float64)


def _subtract_waits(step_ns: Floats, waits: Iterable[tuple[Ints, Floats]], columns: Ints) -> Floats:
    """Return the steps without their waiting, NaN where that is not known, or clearly longer than the step."""
    own_ns = np.full_like(step_ns, np.nan)
    for places, wait_ns in waits:
        left_ns = step_ns[places] - wait_ns[:, columns]
        is_possible = left_ns >= -OVERLAP_RATIO_MAX * step_ns[places]
        own_ns[places] = np.where(is_possible, np.maximum(left_ns, 0.0), np.nan)
    return own_ns


def _read(values: Floats, slots: Ints, columns: Ints) -> Floats:
    """Return a copy of these steps of these ranks, in 64 bits."""
    is_every_rank = len(columns) == values.shape[1]  # ranks ascend
    found = values[slots] if is_every_rank else values[np.ix_(slots, columns)]
    return np.asarray(found.astype(np.float64, copy=False))
