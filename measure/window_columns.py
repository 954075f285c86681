"""Pack the events of a live profiler window as columns: one process reads them off the profiler, another reduces them.

They hold only what the breakdown and the collectives need: no stacks, no memory, and shapes only in a window that is to
have its FLOPs counted. `to_trace` returns what
`kineto_columns.read_trace` returns for a file of the same events, so that `RankView` serves both.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from rankscope.measure.kineto import (
    DEVICE_WORK,
    NONE,
    AutogradLinks,
    CollectiveArguments,
    DeviceWork,
    Events,
    Ints,
    KinetoTrace,
    MemoryEvents,
)

_NOTHING = msgspec.Raw()


class WindowColumns(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Events in any order, as columns of native integers.

    `category` (int8) is a `kineto.Category`, `name` and `lane` (int32) index `names` and `lanes`; a lane is a thread of
    the host or a stream of the device. `start_ns` and `duration_ns` (int64) are of one clock, which the reader chooses;
    `correlation` (int64) links device work to its launch. `metadata` maps a place to Kineto's metadata, the inside of
    a JSON object: of a copy from the host its own, of a communication kernel that of its operator. `operators` likewise
    maps the place of an operator to its own: all where there is a formula for its FLOPs, else its numbers of autograd.
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
    operators: Mapping[int, str] = {}

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
    found = _read_operators(columns.operators, place)
    collectives, copied_bytes = _read_metadata(columns.metadata, place)
    return KinetoTrace(
        head={},
        names=columns.names,
        threads=[(str(lane), "") for lane in columns.lanes],
        events=events,
        device_work=_find_device_work(events, columns.lanes, copied_bytes),
        collectives=collectives,
        shapes=found.shapes,
        addresses=found.values,
        stacks={},
        memory=MemoryEvents(*(nothing[:0] for _ in MemoryEvents.__slots__)),
        phases={},
        categories={},
        event_count=len(order),
        warnings=(),
        stream_waits={},
        autograd=found.autograd,
    )


def _unpack(packed: bytes, dtype: type[np.generic]) -> npt.NDArray[Any]:
    return np.frombuffer(packed, dtype=dtype)


def _find_device_work(events: Events, lanes: tuple[int, ...], copied_bytes: Mapping[int, int]) -> DeviceWork:
    row = np.flatnonzero(np.isin(events.category, [int(kind) for kind in DEVICE_WORK]))
    unknown, not_recorded = np.full(len(row), NONE, dtype=np.int64), np.full(len(row), np.nan)
    stream = np.array(lanes, dtype=np.int64)[events.thread[row]] if len(row) else unknown
    size = np.array([copied_bytes.get(one, NONE) for one in row.tolist()] if copied_bytes else unknown, dtype=np.int64)
    return DeviceWork(row, unknown, stream, size, not_recorded, not_recorded, not_recorded)


def _read_metadata(metadata: Mapping[int, str], place: Ints) -> tuple[dict[int, CollectiveArguments], dict[int, int]]:
    """Return what is told of collectives, and the bytes of copies, by row."""
    found: dict[int, CollectiveArguments] = {}
    copied_bytes: dict[int, int] = {}
    if not metadata:
        return found, copied_bytes
    # Only windows of a device have any, and these are mostly read by a process of its own.
    from rankscope.measure.kineto_columns import read_collective  # noqa: PLC0415
    from rankscope.measure.kineto_json import Arguments  # noqa: PLC0415
    from rankscope.measure.kineto_numbers import is_int64  # noqa: PLC0415

    for index, text in metadata.items():
        try:
            arguments = msgspec.json.decode(f"{{{text}}}", type=Arguments)
        except msgspec.DecodeError:
            continue
        if arguments.collective is not None:
            found[int(place[index])] = read_collective(arguments)
        elif is_int64(arguments.bytes) and arguments.bytes >= 0:
            copied_bytes[int(place[index])] = arguments.bytes
    return found, copied_bytes


class _OperatorFields(msgspec.Struct, gc=False):
    """The fields of an operator's metadata from which FLOPs are counted."""

    dims: msgspec.Raw = msgspec.field(default=_NOTHING, name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=_NOTHING, name="Input type")
    values: msgspec.Raw = msgspec.field(default=_NOTHING, name="Concrete Inputs")
    sequence: int = msgspec.field(default=NONE, name="Sequence number")
    forward_thread: int = msgspec.field(default=NONE, name="Fwd thread id")


class _Operators(NamedTuple):
    """The types and shapes of inputs, and the values of scalar ones, by row; the numbers of autograd, None without
    any operator.
    """

    shapes: Mapping[int, tuple[bytes, bytes]]
    values: Mapping[int, bytes]
    autograd: AutogradLinks | None


def _read_operators(operators: Mapping[int, str], place: Ints) -> _Operators:
    shapes, values, numbers = {}, {}, []
    for index, text in operators.items():
        try:
            fields = msgspec.json.decode(f"{{{text}}}", type=_OperatorFields)
        except msgspec.DecodeError:
            continue
        row = int(place[index])
        if len(fields.dims) and len(fields.types):
            shapes[row] = bytes(fields.types), bytes(fields.dims)
        if len(fields.values):
            values[row] = bytes(fields.values)
        if fields.sequence != NONE:
            numbers.append((row, fields.sequence, fields.forward_thread))
    columns = np.array(sorted(numbers), dtype=np.int64).reshape(-1, 3)
    autograd = AutogradLinks(*(np.ascontiguousarray(column) for column in columns.T)) if operators else None
    return _Operators(shapes, values, autograd)
