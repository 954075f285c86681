"""Find the copies from the host's memory to the device, and sum them by step: their time, bytes and kind of memory.

    device    [copy from pageable memory][kernel ...............][kernel ...
    beside                                    [copy from pinned memory]
              `- exposed: no kernel runs      `- hidden behind the kernel

CUDA says of each copy whether the host's memory is pinned. Only from pinned memory the device copies by itself; from
pageable memory the driver copies through a buffer of its own, more slowly, and the host waits.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rankscope.measure.intervals import Intervals, clip, subtract, total_ns, union
from rankscope.measure.kineto import COPIES_FROM_HOST, NONE, Category, Ints
from rankscope.measure.rank_view import Bools, RankView
from rankscope.measure.records import HostCopies

_PAGEABLE, _PINNED = "(Pageable ->", "(Pinned ->"


class FoundCopies(NamedTuple):
    """Copies from the host by start: their times, bytes (NONE where not known), and what is told of their memory."""

    times_ns: Intervals
    bytes: Ints
    is_pageable: Bools
    is_told: Bools


def find_host_copies(view: RankView) -> FoundCopies:
    """Return the copies from the host of a trace or window with a device."""
    work, trace = view.work, view.trace
    is_copy = view.events.category[work.row] == Category.MEMCPY
    mine = np.flatnonzero(is_copy & trace.names_like(lambda name: name.startswith(COPIES_FROM_HOST))[work.name])
    named = work.name[mine]
    is_pageable = trace.names_like(lambda name: _PAGEABLE in name)[named]
    return FoundCopies(
        times_ns=np.stack([work.start_ns[mine], work.end_ns[mine]], axis=1),
        bytes=trace.device_work.bytes[mine],
        is_pageable=is_pageable,
        is_told=is_pageable | trace.names_like(lambda name: _PINNED in name)[named],
    )


def sum_host_copies(view: RankView, bounds_ns: Sequence[tuple[int, int]]) -> list[HostCopies]:
    """Return the copies from the host in each of these ranges of the device's time. A copy counts, with its bytes,
    where it begins; its time where it runs.
    """
    found = find_host_copies(view)
    compute, communication, _ = view.sets
    busy = union(np.concatenate([compute, communication]))
    return [_sum_within(found, busy, start_ns, end_ns) for start_ns, end_ns in bounds_ns]


def _sum_within(found: FoundCopies, busy: Intervals, start_ns: int, end_ns: int) -> HostCopies:
    times_ns = found.times_ns
    begins = (times_ns[:, 0] >= start_ns) & (times_ns[:, 0] < end_ns)
    sized = np.where(begins & (found.bytes != NONE), found.bytes, 0)
    of_all = union(clip(times_ns, start_ns, end_ns))
    of_pageable = union(clip(times_ns[found.is_pageable], start_ns, end_ns))
    return HostCopies(
        count=int(begins.sum()),
        duration_ns=total_ns(of_all),
        exposed_ns=total_ns(subtract(of_all, busy)),
        bytes=int(sized.sum()),
        pageable_ns=total_ns(of_pageable),
        pageable_exposed_ns=total_ns(subtract(of_pageable, busy)),
        pageable_bytes=int(sized[found.is_pageable].sum()),
        unsized=int((begins & (found.bytes == NONE)).sum()),
        untold=int((begins & ~found.is_told).sum()),
    )
