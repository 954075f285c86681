"""Hold the same steps of all ranks, as detectors read them. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Floats32 = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

COMPUTING_PHASES: Final = ("data", "forward", "optimizer", "other")
"""Phases in which a rank does not wait for others; they stand in for the own time where waiting is not known."""


class Cells(Protocol):
    """A table of steps and ranks that is read by index; an array is one."""

    def __getitem__(self, key: Any, /) -> Any:
        """Return what numpy returns for this index."""
        ...


class Lag(NamedTuple):
    """A rank that is `behind` collectives of a group behind most of its members (ahead where it is negative), in every
    known step since `since_step`. It began after the step before `since_step_min`, the last one that is known not to
    show it: steps between may not be known. `is_matched`: only by their numbers; its calls are matched all the same
    (`skipped_collectives.py`).
    """

    group: str
    rank: int
    behind: int
    since_step: int
    since_step_min: int
    is_matched: bool = False

    @property
    def distance(self) -> str:
        """Return how far it is from most members, as text.

        >>> Lag("dp", 3, 1, 60, 60).distance, Lag("dp", 3, -2, 60, 60).distance
        ('1 collective behind', '2 collectives ahead')
        """
        count = abs(self.behind)
        return f"{count} collective{'s' if count > 1 else ''} {'behind' if self.behind > 0 else 'ahead'}"


class EnqueueSeries(NamedTuple):
    """Steps whose enqueues are matched. `steps` has shape (n,) and need not ascend. `late_ns`, shape (n, world size),
    is by how much at most a rank has enqueued a collective later than the median member of its group, NaN where not
    known;
    `error_ns`, of the same shape, by how much that may be off. `machine`, shape (world size,), numbers the machines,
    whose ranks share a clock: between them only `near_error_ns` counts, which `error_ns` holds as well.
    """

    steps: Ints
    late_ns: Floats32
    error_ns: Floats32
    near_error_ns: Floats32
    machine: Ints

    @property
    def errors_ns(self) -> tuple[Floats32, Floats32]:
        """Return the errors between ranks of different machines, and of one."""
        return self.error_ns, self.near_error_ns


@dataclass(frozen=True)
class StepSeries:
    """Steps of several ranks. `steps` has shape (n,) and ascends, `ranks` ascend; the times have shape (n, ranks), in
    ns, NaN where not known.

    `own_is_measured` is False where waiting could not be measured: then the device's own times stand in
    (`device_own_times.py`) if `is_by_device`, else phases without communication. `timed_waits_ns`, only with the
    former, is the waiting in collectives timed between windows of every rank of the run, by row where it is known.
    `tokens`: tokens in the batches of each step, shape (n, ranks), NaN where not known; None: of none.
    `wait_caused_ns`: the waiting of all ranks that each one caused (`wait_attribution.py`), known of some steps only;
    `wait_untraced_ns`, shape (n,), is what none is charged in these steps.
    `earlier_count`: the first steps that are older than those kept one by one, and are here because their waiting, or
    each rank's own time on its device, is known. `handover_ns`: the exposed time in point-to-point operations, shape
    (n, ranks); None where there are none. `own_has_transfers`: whether measured own times hold the transfers of
    collectives: not where every rank reports how much of each was exposed. `lags`: ranks that have left out a
    collective, and so make the waits of their group unknown. `enqueues`: when the hosts of the ranks enqueued
    collectives that torch does not time, of steps of its own; None where own times are measured, and where none are.
    `exchanged_bytes`: what each rank moved in all-to-alls, shape (n, ranks), known of steps whose waiting is; None
    where there are none. `routed_bytes` is the part of those in which the ranks put in different amounts
    (`expert_loads.py`), and `exchange_calls`, shape (n, 2), of how many all-to-alls they put in the same and different
    ones; NaN of steps in which the size of any is not known.
    """

    steps: Ints
    ranks: tuple[int, ...]
    step_ns: Floats
    own_ns: Floats
    cpu_ns: Cells
    phases_ns: Mapping[str, Cells]
    own_is_measured: bool
    tokens: Cells | None = None
    wait_caused_ns: Floats | None = None
    wait_untraced_ns: Floats | None = None
    earlier_count: int = 0
    handover_ns: Floats | None = None
    own_has_transfers: bool = True
    lags: tuple[Lag, ...] = ()
    is_by_device: bool = False
    timed_waits_ns: Mapping[int, npt.NDArray[Any]] = field(default_factory=dict)
    enqueues: EnqueueSeries | None = None
    exchanged_bytes: Floats | None = None
    routed_bytes: Floats | None = None
    exchange_calls: Floats | None = None

    @cached_property
    def _rank_column(self) -> Mapping[int, int]:
        return {rank: column for column, rank in enumerate(self.ranks)}

    @cached_property
    def _order(self) -> tuple[Ints, Ints]:
        ranks = np.array(self.ranks, dtype=np.int64)
        order = np.argsort(ranks, kind="stable")
        return order, ranks[order]

    def has(self, rank: int) -> bool:
        """Return whether the rank is in the series."""
        return rank in self._rank_column

    def column_of(self, rank: int) -> int:
        """Return the column of a rank. Raises KeyError for a rank that is not in the series."""
        return self._rank_column[rank]

    def columns_of(self, ranks: Sequence[int]) -> Ints:
        """Return the columns of these ranks, all of which must be in the series, in their order."""
        order, ordered = self._order
        return np.asarray(order[np.searchsorted(ordered, np.array(ranks, dtype=np.int64))], dtype=np.int64)


def sum_computing(phases_ns: Mapping[str, Cells]) -> Floats | None:
    """Return the sum of COMPUTING_PHASES of each step and rank, in ns; None without any such phase."""
    present = [phases_ns[name] for name in COMPUTING_PHASES if name in phases_ns]
    if not present:
        return None
    total_ns: Floats = np.array(present[0][:])  # what is read may be the array itself
    for part_ns in present[1:]:
        total_ns += part_ns[:]
    return total_ns


CELLS_AT_ONCE: Final = 2**17
"""1 MiB, which stays in a core's cache: eight steps of 16,384 ranks."""


def in_blocks(rows: Ints, columns: int) -> Iterator[Ints]:
    """Yield the rows, or columns, in blocks of CELLS_AT_ONCE cells, which bounds the memory of intermediate results."""
    at_once = max(1, CELLS_AT_ONCE // max(1, columns))
    for first in range(0, len(rows), at_once):
        yield rows[first : first + at_once]


LAGGING_STEPS: Final = 4
"""Steps by which ranks may be apart that report one after the other."""


def medians_of_last(cells: Cells, steps: int) -> Floats:
    """Return the median of the last `steps` known values of every column; shape (n, ranks) to (ranks,), NaN where none
    is.
    """
    last = cells[-steps - LAGGING_STEPS :]
    has_enough = (~np.isnan(last)).sum(axis=0).min(initial=steps) >= steps
    values: Floats = last if has_enough else cells[:]
    found = np.full(values.shape[1], np.nan)
    rows = np.flatnonzero(~np.isnan(values).all(axis=1))
    if not len(rows):
        return found
    recent = values[rows[-steps - LAGGING_STEPS :]]
    known = ~np.isnan(recent)
    complete = known[-steps:].all(axis=0)
    enough = ~complete & (known.sum(axis=0) >= steps)
    others = ~complete & ~enough
    found[complete] = np.median(recent[-steps:, complete], axis=0)
    found[enough] = _median_of_known(recent[:, enough], steps)
    found[others] = _median_of_known(values[:, others], steps)
    return found


def _median_of_known(values: Floats, steps: int) -> Floats:
    """Return the same for columns that lack some steps, as most do while ranks report one after the other."""
    known = ~np.isnan(values)
    wanted = known & (np.cumsum(known[::-1], axis=0)[::-1] <= steps)
    count = wanted.sum(axis=0)
    ordered = np.sort(np.where(wanted, values, np.nan), axis=0)  # NaN comes last
    columns = np.arange(values.shape[1])
    return np.asarray((ordered[np.maximum(count - 1, 0) // 2, columns] + ordered[count // 2, columns]) / 2)
