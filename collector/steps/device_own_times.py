"""Keep each rank's own time on its device in the steps that were timed there: the device step without the tail of its
backward (docs/definitions.md section 4). Pure.

In data parallel training the device's stream waits for other ranks only in that tail. So the rest of the step is how
long it would have taken this rank alone, and no profiler window is needed to know it. It is the own time of the steps
that windows have not measured, and of all where no window comes.

In other kinds of training ranks also wait within the rest: for their group of tensor parallelism in each layer, for the
stage before them, for the shards of parameters. If all ranks wait for each other there, all of them seem equally slow,
and nobody is blamed. But where a group that is smaller than the world waits for its slowest member, all its members
seem slow compared with those of other groups. So while any such group exists own times are not known, and nothing is
concluded.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rankscope.collector.steps.measured_steps import WindowDistance
from rankscope.collector.steps.predicted_steps import MEASURED_MIN, find_least_difference, find_usual
from rankscope.collector.steps.sparse_rows import SparseRows
from rankscope.collector.steps.stacked_tables import TableBlock
from rankscope.collector.steps.step_series import Flags, Floats, Ints
from rankscope.collector.steps.wait_times import KindColumns
from rankscope.measure.records import DEVICE_PREFIX, DEVICE_TAIL, SYNCHRONIZING_OPS
from rankscope.measure.table import MISSING

WAITS_WITHIN_MAX: Final = 0.02
"""Share of a device's own time that may be waiting, by windows, where it counts as none: in data parallel training it
was 0, with FSDP 0.04."""


class DeviceOwnTimes:
    """Own times on the device by slot of a ring of steps, and the waiting in collectives of the same steps that were
    timed between windows, which is a second witness. Only steps that all ranks timed are read.
    """

    def __init__(self, slots: int, world_size: int, cell: npt.DTypeLike) -> None:
        self._world_size = world_size
        self._own_ns = SparseRows(world_size, cell)
        self._waits_ns = SparseRows(world_size, cell)
        self._distance = WindowDistance()
        #: Whether the own times of all ranks are known, by slot.
        self.is_complete: Flags = np.zeros(slots, dtype=bool)

    def add(self, block: TableBlock, rows: Ints, steps: Ints, slots: Ints, ranks: Ints) -> None:
        """Add the own times in these rows of a block of step tables, with the step, slot and rank of each row."""
        own_ns = read_own_ns(block)
        if own_ns is None:
            return
        own_ns = own_ns[rows]
        for step in np.unique(steps[~np.isnan(own_ns)]).tolist():
            here = np.flatnonzero((steps == step) & ~np.isnan(own_ns))
            slot = int(slots[here[0]])
            known = self._own_ns.update(slot, ranks[here], own_ns[here])
            if known == self._world_size and not self.is_complete[slot]:
                self.is_complete[slot] = self._distance.is_watched = True
                self._distance.record_measured(step, step)

    def add_waits(self, slot: int, ranks: Ints, kinds: KindColumns) -> None:
        """Store the waiting of these ranks in the collectives of a step that were timed, if all of them were found on
        all members, and the own times of the step are known.
        """
        if not self.is_complete[slot]:
            return
        synchronizes = np.array([op in SYNCHRONIZING_OPS for _, op in kinds.kinds], dtype=bool)
        rows = np.flatnonzero(synchronizes[kinds.kind]) if len(kinds.kind) else kinds.kind
        if not len(rows) or (kinds.matched[rows] < kinds.calls[rows]).any():
            return
        waits_ns = np.full(self._world_size, np.nan)
        waits_ns[ranks] = 0.0
        np.add.at(waits_ns, kinds.rank[rows], kinds.wait_ns[rows])
        self._waits_ns.put(slot, waits_ns)

    def still_come(self, latest_step: int, steps_kept: int, step_ns: Floats) -> bool:
        """Return whether devices are still timed on all ranks; `step_ns` are the durations of the last steps."""
        return self._distance.is_watched and self._distance.is_measured(latest_step, steps_kept, step_ns)

    def read(self, slots: Ints, columns: Ints, group_sizes: Mapping[str, int]) -> Floats:
        """Return the own times of these columns in these slots, NaN where not all ranks' are known, and throughout if a
        process group of more than one member, or none that is known, has all ranks.
        """
        found = np.full((len(slots), len(columns)), np.nan)
        if not group_sizes or not set(group_sizes.values()) <= {1, self._world_size}:
            return found
        for places, rows in self._own_ns.blocks(np.where(self.is_complete[slots], slots, -1)):
            found[places] = rows[:, columns]
        return found

    def read_waits(self, slots: Ints) -> dict[int, npt.NDArray[Any]]:
        """Return the waiting of all ranks by the index of its slot in `slots`, where it is known. Nothing is copied."""
        return self._waits_ns.find(slots)

    def clear(self, slots: Ints) -> None:
        """Free these slots."""
        self.is_complete[slots] = False
        for rows in (self._own_ns, self._waits_ns):
            rows.clear(slots)

    def move(self, slots: Ints, to: Ints) -> None:
        """Move these slots to others that are free, in the same order."""
        self.is_complete[to] = self.is_complete[slots]
        self.is_complete[slots] = False
        for rows in (self._own_ns, self._waits_ns):
            rows.move(slots, to)


def fill_from_device(own_ns: Floats, device_ns: Floats) -> Floats:
    """Return the own times of windows, and of each other step that all ranks timed the times on their devices, shape
    (n, ranks) in ns as both: by what windows had on top in the steps that have both, since the host's part of a step is
    not the device's. Where windows had less, ranks wait within the rest as well (FSDP: for the shards of parameters;
    for a late rank DDP in forward, where it sends out buffers, which only the last windows may show): then whose time
    it is the devices do not tell, and what windows measured is all that is known.

    >>> own_ns, device_ns = np.array([[5.0, 9.0], [np.nan, np.nan]]), np.array([[4.0, 8.0], [4.0, 12.0]])
    >>> fill_from_device(own_ns, device_ns).tolist()
    [[5.0, 9.0], [5.0, 13.0]]
    >>> fill_from_device(np.array([[3.6, 7.6], [np.nan, np.nan]]), device_ns).tolist()
    [[3.6, 7.6], [nan, nan]]
    """
    is_measured, is_timed = (np.asarray(~np.isnan(ns).any(axis=1)) for ns in (own_ns, device_ns))
    taken = is_timed & ~is_measured
    if not taken.any():
        return own_ns
    both = is_timed & is_measured
    on_top_ns = float(np.median(own_ns[both] - device_ns[both])) if both.any() else 0.0
    if both.any() and on_top_ns < -WAITS_WITHIN_MAX * np.median(device_ns[both]):
        return own_ns
    last = np.flatnonzero(both)[-MEASURED_MIN:]
    if len(last) == MEASURED_MIN and _does_a_rank_wait_within(own_ns[last] - device_ns[last], device_ns[last]):
        return own_ns
    return np.where(taken[:, None], np.maximum(device_ns + on_top_ns, 0.0), own_ns)


def _does_a_rank_wait_within(more_ns: Floats, device_ns: Floats) -> bool:
    """Return whether windows had clearly less than the device of any rank, in the median of these steps; `more_ns`,
    what they had on top, and `device_ns` have the shape (m, ranks).
    """
    medians_ns, noise_ns = find_usual(more_ns)
    return bool(medians_ns.min() < -find_least_difference(noise_ns, device_ns, WAITS_WITHIN_MAX))


def read_own_ns(block: TableBlock) -> Floats | None:
    """Return the device step without its tail of each row of these tables of steps, shape (tables * rows,) in ns; NaN
    where it is not known, None where it is of no row. Not negative, whatever a rank sends.
    """
    if DEVICE_TAIL not in block.names:
        return None
    parts = [block.column(name).reshape(-1) for name in block.names if name.startswith(DEVICE_PREFIX)]
    tail_ns = block.column(DEVICE_TAIL).reshape(-1)
    unknown = np.logical_or.reduce([part == MISSING for part in (tail_ns, *parts)])
    whole_ns = np.sum(parts, axis=0, dtype=np.float64) if parts else np.zeros(len(tail_ns))
    return np.where(unknown, np.nan, np.maximum(whole_ns - tail_ns, 0.0))
