"""The same steps of all ranks side by side: a ring of steps, one column per rank.

A step's duration and phases arrive within a report interval, its collectives when the profiler window they were seen in
ends. Until every rank has reported them a step's waiting is not known, and its self time neither: NaN.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from rankscope.collector.detect.noise import Floats
from rankscope.collector.detect.stragglers import StepSeries
from rankscope.collector.detect.waits import KindWaits, RankCollectives, split_waits
from rankscope.measure.records import PHASE_PREFIX, Collectives
from rankscope.measure.table import MISSING, Column, Table

PHASES_MAX = 32
"""Names of phases kept for a run: the five of every step and what its users add."""
STAND_IN_STEPS = 64
"""After so many steps without a profiler window none is to be expected, and phases stand in for the self time. Not
before: the stand-in is the noisier one (seen: 1.3 for a healthy rank on two busy cores)."""
COMPUTING_PHASES = ("data", "forward", "optimizer", "other")
"""The phases in which a rank does not wait for others; they stand in for the self time where waiting is not known."""


class Signature(NamedTuple):
    """What a step communicates: sorted (op, group size, bytes)."""

    calls: tuple[tuple[str, int, int], ...]


class StepWindow:
    """The last `steps_kept` steps of `world_size` ranks."""

    def __init__(self, steps_kept: int, world_size: int) -> None:
        self._kept = steps_kept
        self._world_size = world_size
        self._steps = np.full(steps_kept, -1, dtype=np.int64)
        self._step_ns = self._empty()
        self._cpu_ns = self._empty()
        self._wait_ns = self._empty()
        self._phases_ns: dict[str, Floats] = {}
        self._pending: dict[int, dict[int, RankCollectives]] = {}
        self._covered = np.zeros((steps_kept, world_size), dtype=bool)
        self._group_sizes: dict[str, int] = {}
        self.signatures: dict[int, Signature] = {}
        self.latest_step = -1
        self._watched = False

    def _empty(self) -> Floats:
        return np.full((self._kept, self._world_size), np.nan)

    # -- filling ------------------------------------------------------------------------------------------------------

    def learn_group(self, label: str, size: int) -> None:
        """A process group of the run has `size` members."""
        self._group_sizes[label] = size

    def add_steps(self, rank: int, table: Table) -> int:
        """Place a rank's steps; returns how many came too late for the window."""
        columns = table.columns()
        late = 0
        for row, step in enumerate(table.column("step").tolist()):
            slot = self._slot(step)
            if slot is None:
                late += 1
                continue
            self._step_ns[slot, rank] = _or_nan(columns.get("duration_ns"), row)
            self._cpu_ns[slot, rank] = _or_nan(columns.get("cpu_ns"), row)
            for name, column in columns.items():
                if name.startswith(PHASE_PREFIX):
                    self._place_phase(name.removeprefix(PHASE_PREFIX), slot, rank, _or_nan(column, row))
        return late

    def add_collectives(self, rank: int, collectives: Collectives) -> None:
        """Keep a rank's collectives until all ranks' are there."""
        table = collectives.table
        steps = table.column("step")
        for step in np.unique(steps).tolist():
            if self._slot(step) is None:
                continue
            rows = np.flatnonzero(steps == step)
            found = RankCollectives(
                groups=collectives.groups,
                ops=collectives.ops,
                group=table.column("group")[rows],
                op=table.column("op")[rows],
                sequence=table.column("sequence")[rows],
                start_ns=table.column("start_host_ns")[rows],
                duration_ns=table.column("duration_ns")[rows],
                size_bytes=table.column("bytes")[rows],
            )
            self._pending.setdefault(step, {})[rank] = found

    def cover(self, rank: int, first_step: int, last_step: int) -> list[KindWaits]:
        """All collectives of these steps of that rank are here. Resolves the steps for which that is now true of all
        ranks and returns what their collectives came to.
        """
        kinds: list[KindWaits] = []
        self._watched = True
        first_kept = max(0, self.latest_step - self._kept + 1)
        for step in range(max(first_step, first_kept), min(last_step, self.latest_step) + 1):
            slot = step % self._kept
            if self._steps[slot] != step or self._covered[slot, rank]:
                continue
            self._covered[slot, rank] = True
            if self._covered[slot].all():
                kinds += self._resolve(step, slot)
        return kinds

    def _resolve(self, step: int, slot: int) -> list[KindWaits]:
        pending = self._pending.pop(step, {})
        waits = split_waits(pending, self._group_sizes)
        self._wait_ns[slot] = 0.0
        for rank, wait_ns in waits.exposed_wait_ns.items():
            self._wait_ns[slot, rank] = np.nan if wait_ns is None else float(wait_ns)
        # Full windows do not tell sizes, and a signature without sizes would not tell pipeline stages apart.
        if pending and all(bool(np.all(found.size_bytes != MISSING)) for found in pending.values()):
            self.signatures = {rank: self._sign(found) for rank, found in pending.items()}
        return waits.kinds

    def _sign(self, found: RankCollectives) -> Signature:
        sizes = [self._group_sizes.get(group, 0) for group in found.groups]
        calls = zip(found.op.tolist(), found.group.tolist(), found.size_bytes.tolist(), strict=True)
        return Signature(tuple(sorted((found.ops[op], sizes[group], size) for op, group, size in calls)))

    def _place_phase(self, name: str, slot: int, rank: int, value_ns: float) -> None:
        if name not in self._phases_ns:
            if len(self._phases_ns) >= PHASES_MAX:
                return
            self._phases_ns[name] = self._empty()
        self._phases_ns[name][slot, rank] = value_ns

    def _slot(self, step: int) -> int | None:
        """Where a step lives, made free for it if need be; None when the window has moved past it."""
        if step < 0 or step <= self.latest_step - self._kept:
            return None
        slot = step % self._kept
        if self._steps[slot] != step:
            self._steps[slot] = step
            self._covered[slot] = False
            for values in (self._step_ns, self._cpu_ns, self._wait_ns, *self._phases_ns.values()):
                values[slot] = np.nan
        if step > self.latest_step:
            self.latest_step = step
            self._pending = {kept: found for kept, found in self._pending.items() if kept > step - self._kept}
        return slot

    # -- reading ------------------------------------------------------------------------------------------------------

    def series(self, ranks: tuple[int, ...], *, skip_steps: int) -> StepSeries:
        """The steps of these ranks in order, the first `skip_steps` of the run left out (start-up is no slowness)."""
        slots = np.flatnonzero(self._steps >= skip_steps)
        slots = slots[np.argsort(self._steps[slots])]
        cells = np.ix_(slots, np.array(ranks, dtype=np.int64))
        step_ns = self._step_ns[cells]
        phases_ns = {name: values[cells] for name, values in self._phases_ns.items()}
        self_ns = step_ns - self._wait_ns[cells]
        measured = self._watched or self.latest_step < STAND_IN_STEPS
        if not measured:
            present = [phases_ns[name] for name in COMPUTING_PHASES if name in phases_ns]
            self_ns = np.sum(present, axis=0) if present else self_ns
        return StepSeries(self._steps[slots], ranks, step_ns, self_ns, self._cpu_ns[cells], phases_ns, measured)


def _or_nan(column: Column | None, row: int) -> float:
    return float("nan") if column is None or column[row] == MISSING else float(column[row])


def medians(values: Mapping[str, Floats], column: int, steps: int) -> dict[str, float]:
    """The median of each over its last steps in one column, those without any value left out."""
    found = {name: median_of_last(array[:, column], steps) for name, array in values.items()}
    return {name: value for name, value in found.items() if value is not None}


def median_of_last(values: Floats, steps: int) -> float | None:
    """The median of the last known values; None when none is known."""
    known = values[~np.isnan(values)][-steps:]
    return float(np.median(known)) if len(known) else None
