"""Pack the events of a live profiler window as columns: one process reads them off the profiler, another reduces them.

They hold only what the breakdown and the collectives need: no shapes, no stacks, no memory. `to_trace` returns what
`kineto_columns.read_trace` returns for a file of the same events, so that `RankView` serves both.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from rankscope.measure.kineto import (
    DEVICE_WORK,
    NONE,
    CollectiveArguments,
    DeviceWork,
    Events,
    Ints,
    KinetoTrace,
    MemoryEvents,
)
from rankscope.measure.kineto_columns import read_collective
from rankscope.measure.kineto_json import Arguments


class WindowColumns(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Events in any order, as columns of native integers.

    `category` (int8) is a `kineto.Category`, `name` and `lane` (int32) index `names` and `lanes`; a lane is a thread of
    the host or a stream of the device. `start_ns` and `duration_ns` (int64) are of one clock, which the reader chooses;
    `correlation` (int64) links device work to its launch. `metadata` maps a place to Kineto's metadata of the operator
    that launched a communication kernel: the inside of a JSON object.
    """

    names: tuple[str, ...] = ()
    lanes: tuple[int, ...] = ()
    category: bytes = b""
    name: bytes = b""
    lane: bytes = b""
    start_ns: bytes = b""
    duration_ns: bytes = b""
    correlation: bytes = b""
    metadata: Mapping[int, str] = {}

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self.category)


def to_trace(columns: WindowColumns, *, ahead_ns: int = 0) -> KinetoTrace:
    """Return the trace of a window, with `ahead_ns` subtracted from every start: by so much the clock that recorded
    them is ahead of the wanted one.

    Raises ValueError when starts and durations have different lengths.
    """
    start_ns = _unpack(columns.start_ns, np.int64) - ahead_ns
    duration_ns = np.maximum(_unpack(columns.duration_ns, np.int64), 0)
    order = np.lexsort((-duration_ns, start_ns))  # at one start the longest first: it encloses the others
    category, name, lane, correlation = (
        _unpack(packed, dtype)[order]
        for packed, dtype in (
            (columns.category, np.int8),
            (columns.name, np.int32),
            (columns.lane, np.int32),
            (columns.correlation, np.int64),
        )
    )
    nothing = np.full(len(order), NONE, dtype=np.int64)
    events = Events(category, name, lane, start_ns[order], duration_ns[order], correlation, nothing)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return KinetoTrace(
        head={},
        names=columns.names,
        threads=[(str(lane), "") for lane in columns.lanes],
        events=events,
        device_work=_find_device_work(events, columns.lanes),
        collectives=_read_collectives(columns.metadata, place),
        shapes={},
        addresses={},
        stacks={},
        memory=MemoryEvents(*(nothing[:0] for _ in MemoryEvents.__slots__)),
        phases={},
        categories={},
        event_count=len(order),
        warnings=(),
        stream_waits={},
    )


def _unpack(packed: bytes, dtype: type[np.generic]) -> npt.NDArray[Any]:
    return np.frombuffer(packed, dtype=dtype)


def _find_device_work(events: Events, lanes: tuple[int, ...]) -> DeviceWork:
    row = np.flatnonzero(np.isin(events.category, [int(kind) for kind in DEVICE_WORK]))
    unknown, not_recorded = np.full(len(row), NONE, dtype=np.int64), np.full(len(row), np.nan)
    stream = np.array(lanes, dtype=np.int64)[events.thread[row]] if len(row) else unknown
    return DeviceWork(row, unknown, stream, unknown, not_recorded, not_recorded)


def _read_collectives(metadata: Mapping[int, str], place: Ints) -> dict[int, CollectiveArguments]:
    found = {}
    for index, text in metadata.items():
        try:
            arguments = msgspec.json.decode(f"{{{text}}}", type=Arguments)
        except msgspec.DecodeError:
            continue
        if arguments.collective is not None:
            found[int(place[index])] = read_collective(arguments)
    return found
