"""List the single allocations of a trace recorded with `profile_memory`: by which operator, how large, and how long."""

from typing import NamedTuple

import numpy as np

from rankscope.collector.traces.column_table import ColumnTable, Numbers, Texts, number_column, text_column
from rankscope.collector.traces.memory_stretch import MemoryStretch, find_bounds, is_inside
from rankscope.collector.traces.memory_timeline import has_addresses
from rankscope.collector.traces.modules import find_module_names
from rankscope.collector.traces.report import AllocationRow
from rankscope.measure.kineto import NONE, Ints
from rankscope.measure.memory_timeline import pair_events
from rankscope.measure.rank_view import Bools, RankView

ENDS = ("freed", "held", "unknown")
_FREED, _HELD, _UNKNOWN = range(len(ENDS))


class _Lives(NamedTuple):
    """Allocations: the events that allocated and freed each, NONE where that is not in the trace, the bytes, the place
    in ENDS, and the device, NONE for the CPU.
    """

    allocated: Ints
    freed: Ints
    bytes: Ints
    end: Ints
    device: Ints

    def of(self, rows: Ints | Bools) -> "_Lives":
        """Return some of them."""
        return _Lives(*(column[rows] for column in self))


def list_allocations(view: RankView, stretch: MemoryStretch | None = None) -> ColumnTable[AllocationRow]:
    """Return the allocations, the largest first; with a stretch those that were made or freed in it. Allocators whose
    events have no addresses are left out. The trace was read with the links of autograd. Raises TraceError for modules
    that are nested too deep.
    """
    memory = view.trace.memory
    lives = _find_lives(view)
    if stretch is not None:
        lives = lives.of(_touches(view, lives, stretch))
    first = np.where(lives.allocated == NONE, lives.freed, lives.allocated)
    lives = lives.of(np.lexsort((first, -lives.bytes)))
    made, freed = lives.allocated != NONE, lives.freed != NONE
    allocated_ns, freed_ns = memory.time_ns[lives.allocated], memory.time_ns[lives.freed]  # of NONE those of another
    threads = memory.thread[lives.allocated].astype(np.int32)
    around = np.where(made, view.host.find_operators(threads, allocated_ns), NONE)
    operators = np.full(len(around), NONE, dtype=np.int64)
    operators[around != NONE] = view.events.name[around[around != NONE]]
    return ColumnTable(
        AllocationRow,
        {
            "device": number_column(lives.device),
            "operator": text_column(operators, view.trace.names),
            "module": find_module_names(view, threads, allocated_ns, made),
            "step": number_column(np.where(made, view.number_steps(allocated_ns), NONE)),
            "bytes": lives.bytes,
            "allocated_ns": Numbers(allocated_ns - view.origin_ns, made),
            "freed_ns": Numbers(freed_ns - view.origin_ns, freed),
            "lifetime_ns": Numbers(freed_ns - allocated_ns, made & freed),
            "end": Texts(lives.end.astype(np.int32), ENDS),
        },
    )


def _find_lives(view: RankView) -> _Lives:
    found = [_pair(view, mine, device) for device, mine in view.allocators if has_addresses(view, mine)]
    nothing = _Lives(*(np.empty(0, dtype=np.int64) for _ in _Lives._fields))
    return _Lives(*(np.concatenate(of) for of in zip(nothing, *found, strict=True)))


def _pair(view: RankView, mine: Ints, device: int | None) -> _Lives:
    """Return the allocations of the allocator with these events, then what is freed and was not seen allocated."""
    memory = view.trace.memory
    mine = mine[memory.bytes[mine] != 0]
    paired = pair_events(memory.address[mine], memory.bytes[mine])
    lives = paired.lifetimes
    follows = np.append(mine, NONE)[lives.freed]  # the next event at its address; after the last event: NONE
    is_freed = (follows != NONE) & (memory.bytes[follows] < 0)
    end = np.where(is_freed, _FREED, np.where(follows == NONE, _HELD, _UNKNOWN))
    older = mine[paired.older_event]
    none = np.full(len(older), NONE)
    return _Lives(
        allocated=np.concatenate([mine[lives.allocated], none]),
        freed=np.concatenate([np.where(is_freed, follows, NONE), older]),
        bytes=np.concatenate([lives.bytes, paired.older_bytes]),
        end=np.concatenate([end, np.full(len(older), _FREED)]),
        device=np.full(len(lives.bytes) + len(older), NONE if device is None else device),
    )


def _touches(view: RankView, lives: _Lives, stretch: MemoryStretch) -> Bools:
    """Return which were made or freed in the stretch; none where it is not in the trace."""
    bounds = find_bounds(view, stretch) or (0, 0)
    inside = np.append(is_inside(view.trace.memory.time_ns, bounds), False)  # NONE, -1, is the last place
    touched: Bools = inside[lives.allocated] | inside[lives.freed]
    return touched
