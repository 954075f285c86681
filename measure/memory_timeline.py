"""Follow the memory of one allocator: lifetimes of allocations, bytes held by category over time, the peak.

Pure. An event allocates (bytes > 0) or frees (bytes < 0) at an address; events come by time. Memory that is older than
the first event shows only in an allocator's totals and where it is freed: its lifetimes are never known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rankscope.measure.intervals import Intervals

Ints = npt.NDArray[np.int64]


class MemoryCategory(IntEnum):
    """What memory is for. UNKNOWN is all of which the events do not say it."""

    PARAMETERS = 0
    GRADIENTS = 1
    OPTIMIZER_STATE = 2
    ACTIVATIONS = 3
    TEMPORARY = 4
    UNKNOWN = 5


CATEGORIES: Final = tuple(one.name.lower() for one in MemoryCategory)
"""Names of the categories in reports, in the order of their numbers."""


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """Allocations of a window, a row each, in the order in which they were made: the numbers of the events that
    allocated and freed them, their address and bytes. What is not freed in the window has the number of events there.
    """

    allocated: Ints
    freed: Ints
    address: Ints
    bytes: Ints

    def alive_at(self, event: int) -> Ints:
        """Return the rows that are there after an event."""
        return np.flatnonzero((self.allocated <= event) & (self.freed > event))


@dataclass(frozen=True, slots=True)
class PairedEvents:
    """Events as lifetimes. `older_event`, `older_address` and `older_bytes` are the frees of memory that was allocated
    before the first event; `replaced_count` counts allocations at an address that was never seen freed: the lifetime
    before ends there.
    """

    event_count: int
    lifetimes: Lifetimes
    older_event: Ints
    older_address: Ints
    older_bytes: Ints
    replaced_count: int


def pair_events(address: Ints, size: Ints) -> PairedEvents:
    """Pair each allocation with the next event at its address. `size` in bytes, negative where memory is freed.

    >>> paired = pair_events(np.array([7, 8, 7, 9]), np.array([10, 20, -10, -5]))
    >>> paired.lifetimes.allocated.tolist(), paired.lifetimes.freed.tolist(), paired.older_bytes.tolist()
    ([0, 1], [2, 4], [5])
    """
    count = len(address)
    order = np.argsort(address, kind="stable")
    follows = np.zeros(count, dtype=bool)
    follows[1:] = address[order[1:]] == address[order[:-1]]
    is_allocation = size[order] > 0
    ends = np.full(count, count, dtype=np.int64)
    has_next = np.flatnonzero(follows[1:])
    ends[has_next] = order[has_next + 1]
    after_allocation = np.zeros(count, dtype=bool)
    after_allocation[1:] = is_allocation[:-1]
    known = follows & after_allocation
    mine = np.flatnonzero(is_allocation)
    by_time = mine[np.argsort(order[mine], kind="stable")]
    begins = order[by_time]
    older = np.sort(order[~is_allocation & ~known])
    return PairedEvents(
        event_count=count,
        lifetimes=Lifetimes(begins, ends[by_time], address[begins], size[begins]),
        older_event=older,
        older_address=address[older],
        older_bytes=-size[older],
        replaced_count=int((is_allocation & known).sum()),
    )


@dataclass(frozen=True, slots=True)
class HeldBytes:
    """Bytes held after each event: `held` in all, `older` of them by memory that is older than the first event."""

    held: Ints
    older: Ints


def count_live(lifetimes: Lifetimes, event_count: int) -> Ints:
    """Return the bytes of these lifetimes that are held after each event."""
    change = np.zeros(event_count + 1, dtype=np.int64)
    np.add.at(change, lifetimes.allocated, lifetimes.bytes)
    np.add.at(change, lifetimes.freed, -lifetimes.bytes)
    return np.cumsum(change)[:event_count]


def hold_by_totals(paired: PairedEvents, totals: Ints) -> HeldBytes:
    """Return what is held where an allocator tells its total after each event. A total below the bytes of lifetimes
    that are known to be there is raised to them: threads that allocate at once may report in another order.
    """
    live = count_live(paired.lifetimes, paired.event_count)
    held = np.maximum(totals, live)
    return HeldBytes(held, held - live)


def hold_by_events(paired: PairedEvents, older_at_end: int = 0) -> HeldBytes:
    """Return what is held by the events alone. `older_at_end` are the bytes of older memory that is still there after
    the last event, 0 where they are not known: what is held is a lower bound then.

    >>> held = hold_by_events(pair_events(np.array([7, 8, 7]), np.array([10, 20, -10])), older_at_end=5)
    >>> held.held.tolist(), held.older.tolist()
    ([15, 35, 25], [5, 5, 5])
    """
    live = count_live(paired.lifetimes, paired.event_count)
    freed = np.zeros(paired.event_count, dtype=np.int64)
    np.add.at(freed, paired.older_event, paired.older_bytes)
    older = older_at_end + int(paired.older_bytes.sum()) - np.cumsum(freed)
    return HeldBytes(live + older, older)


def find_peak(held: Ints) -> int:
    """Return the first event after which most bytes were held; there must be one event."""
    return int(np.argmax(held))


def sum_by_key(rows: Ints, keys: Sequence[int], size: Ints) -> list[tuple[int, int, int, int]]:
    """Return (key, bytes, count, largest) for each key of these rows, the most bytes first. `keys` and `size` have a
    value for each row that there may be.

    >>> sum_by_key(np.array([0, 1, 2]), [5, 6, 5], np.array([10, 50, 30]))
    [(6, 50, 1, 50), (5, 40, 2, 30)]
    """
    found: dict[int, tuple[int, int, int]] = {}
    for row in rows.tolist():
        total, count, largest = found.get(keys[row], (0, 0, 0))
        one = int(size[row])
        found[keys[row]] = (total + one, count + 1, max(largest, one))
    return sorted(((key, *sums) for key, sums in found.items()), key=lambda item: (-item[1], item[0]))


# -- categories -------------------------------------------------------------------------------------------------------


class ModelMark(NamedTuple):
    """Where the memory of a model was at one time, by the clock of the events: (address, bytes) of each storage."""

    time_ns: int
    storages: Mapping[MemoryCategory, Sequence[tuple[int, int]]]


class Categorized(NamedTuple):
    """The category of each lifetime, and the bytes of older memory by category after each event, as far as marks say
    what it is: what else is older is unknown.
    """

    kind: Ints
    older: Mapping[MemoryCategory, Ints]


def categorize(paired: PairedEvents, time_ns: Ints, backward: Intervals, marks: Sequence[ModelMark]) -> Categorized:
    """Return what each lifetime was for. `time_ns` is that of each event, `backward` when backward ran on the host.

    What is at an address of a mark, at its time, is what the mark says. Of the rest, memory is an activation if it was
    allocated outside of a backward, was there when the next one began, and is freed in the window; temporary if it is
    freed in the window otherwise. Without marks, memory that a backward allocates and leaves may be a gradient: that
    is unknown, as is all that is not freed.
    """
    lives = paired.lifetimes
    kind = _guess(paired, time_ns, backward, has_marks=bool(marks))
    is_marked = np.zeros(len(kind), dtype=bool)
    older: dict[int, tuple[MemoryCategory, int]] = {}
    for mark in marks:
        alive = lives.alive_at(int(np.searchsorted(time_ns, mark.time_ns, side="right")) - 1)
        row_of = dict(zip(lives.address[alive].tolist(), alive.tolist(), strict=True))
        for category, storages in mark.storages.items():
            for address, size in storages:
                row = row_of.get(address)
                if row is None:
                    older.setdefault(address, (category, size))
                elif not is_marked[row]:
                    kind[row], is_marked[row] = category, True
    return Categorized(kind, _follow_older(paired, older))


def _guess(paired: PairedEvents, time_ns: Ints, backward: Intervals, *, has_marks: bool) -> Ints:
    """Return the category of each lifetime by the times at which it began and ended."""
    lives = paired.lifetimes
    kind = np.full(len(lives.bytes), MemoryCategory.UNKNOWN, dtype=np.int64)
    ends = np.flatnonzero(lives.freed < paired.event_count)
    begins_ns, ends_ns = time_ns[lives.allocated[ends]], time_ns[lives.freed[ends]]
    last = np.searchsorted(backward[:, 0], begins_ns, side="right") - 1  # the backward that began last before it
    limits_ns = np.append(backward[:, 1], np.iinfo(np.int64).min)  # of none the last one: index -1
    is_inside = begins_ns < limits_ns[last]
    next_ns = np.append(backward[:, 0], np.iinfo(np.int64).max)[last + 1]
    is_activation = ~is_inside & (ends_ns >= next_ns)
    may_be_gradient = is_inside & (ends_ns >= limits_ns[last])
    kind[ends] = MemoryCategory.TEMPORARY
    kind[ends[is_activation]] = MemoryCategory.ACTIVATIONS
    if not has_marks:
        kind[ends[may_be_gradient]] = MemoryCategory.UNKNOWN
    return kind


def _follow_older(paired: PairedEvents, older: Mapping[int, tuple[MemoryCategory, int]]) -> dict[MemoryCategory, Ints]:
    """Return the bytes of older memory by category after each event: of an address until it is first freed."""
    found: dict[MemoryCategory, Ints] = {}
    freed_at: dict[int, int] = {}
    for event, address in zip(paired.older_event.tolist(), paired.older_address.tolist(), strict=True):
        freed_at.setdefault(address, event)
    for address, (category, size) in older.items():
        held = found.setdefault(category, np.zeros(paired.event_count + 1, dtype=np.int64))
        held[0] += size
        held[freed_at.get(address, paired.event_count)] -= size
    return {category: np.cumsum(held)[:-1] for category, held in found.items()}


def raise_to_known(held: HeldBytes, categorized: Categorized) -> HeldBytes:
    """Return what is held, with older memory raised to what marks know of it: the totals of some allocators, as those
    of the CPU, begin with the record.
    """
    if not categorized.older:
        return held
    more = np.maximum(sum(categorized.older.values()) - held.older, 0)
    return HeldBytes(held.held + more, held.older + more)


def split_held(paired: PairedEvents, held: HeldBytes, categorized: Categorized) -> Ints:
    """Return the bytes held after each event by category, a row for each of `MemoryCategory`: their sum is `held.held`,
    which has to be raised to what is known of older memory.
    """
    lives = paired.lifetimes
    change = np.zeros((len(MemoryCategory), paired.event_count + 1), dtype=np.int64)
    np.add.at(change, (categorized.kind, lives.allocated), lives.bytes)
    np.add.at(change, (categorized.kind, lives.freed), -lives.bytes)
    split: Ints = np.cumsum(change, axis=1)[:, :-1]
    split[MemoryCategory.UNKNOWN] += held.older
    for category, size in categorized.older.items():
        split[category] += size
        split[MemoryCategory.UNKNOWN] -= size
    return split
