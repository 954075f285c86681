"""Check the fields of a memory snapshot of torch, and turn its history into columns.

The fields are those of `torch.cuda.memory._snapshot()` in torch 2.1 to 2.13. Unknown fields are left alone, missing
ones that later versions added have a stand-in, and wrong types are errors that name the field. Stacks are shared: each
list of frames, each frame and each text is read once. Segments, blocks and events are not, and one that stands in a
snapshot twice is an error: a file of some bytes could stand for any number of them.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from rankscope.collector.memory.snapshot_categories import StackOrigin, find_origin
from rankscope.measure.errors import TraceError
from rankscope.measure.memory_timeline import Ints
from rankscope.measure.module_frames import MODULES_KEY, ModuleCode, ModuleCodes, group_codes, name_module
from rankscope.measure.units import NS_PER_US

FRAMES_MAX: Final = 40
"""Frames of a stack that are kept, the innermost ones: torch's own dispatch takes about ten."""
ORIGIN_FRAMES_MAX: Final = 400
"""Frames of a stack that are searched for what allocates; of a longer one that is not known."""
MODULE_CODES_MAX: Final = 100_000
TEXT_CHARACTERS_MAX: Final = 300
ADDRESS_MAX: Final = 2**63 - 1
TIME_US_MAX: Final = 2**53
"""Times of today are below 2**51; so many ns are a number of 64 bits."""
NO_STACK: Final = 0
"""Place of the stack of an event that has none recorded."""
ALLOCATED, INACTIVE = "active_allocated", "inactive"


class Frame(NamedTuple):
    """One frame of a stack."""

    file: str
    line: int
    function: str


class MemoryBlock(NamedTuple):
    """A block of a segment. `size` is what it takes, `requested` what was asked for; both in bytes."""

    address: int
    size: int
    requested: int
    state: str
    stack: int


class Segment(NamedTuple):
    """One piece of device memory that the allocator got from the driver; sizes in bytes."""

    device: int
    address: int
    size: int
    stream: int
    kind: str
    pool: str
    is_expandable: bool
    blocks: list[MemoryBlock]


class FailedAllocation(NamedTuple):
    """An allocation that failed: the bytes asked for, those free on the device then, and the number of the event."""

    event: int
    size: int
    device_free: int
    stack: int


class EventHistory(NamedTuple):
    """Recorded events of one device as columns, by time: allocations have positive, frees negative bytes, as they were
    requested. `reserved` is the change of reserved memory in segment events, 0 in others. `time_ns` counts from the
    epoch; it is None where the events have no times.
    """

    address: Ints
    size: Ints
    reserved: Ints
    stack: Ints
    time_ns: Ints | None
    out_of_memory: list[FailedAllocation]
    event_count: int


class MemorySnapshot(NamedTuple):
    """A checked snapshot. `history` has an item for each device, an empty one where nothing was recorded; a block's
    stack is a place in `stacks`, of which the first is empty. `origins` has what each of these stacks shows, `modules`
    whose code of torch.nn it is in, which only snapshots that the agent has written tell: empty where none's.
    """

    segments: list[Segment]
    history: list[EventHistory]
    stacks: list[tuple[Frame, ...]]
    origins: list[StackOrigin]
    modules: list[str]


def check_snapshot(loaded: Any) -> MemorySnapshot:
    """Return the snapshot that was loaded from a pickle. Raises TraceError naming the first field that is wrong."""
    if type(loaded) is not dict or type(loaded.get("segments")) is not list:
        raise TraceError("it is no memory snapshot of torch: it has no list of segments")
    reader = _Reader(read_module_codes(loaded.get(MODULES_KEY, [])))
    segments = [reader.read_segment(one) for one in loaded["segments"]]
    traces = loaded.get("device_traces", [])
    if type(traces) is not list:
        raise TraceError("device_traces is no list")
    history = [reader.read_history(one) for one in traces]
    return MemorySnapshot(segments, history, reader.stacks, reader.origins, reader.modules)


def read_module_codes(found: Any) -> ModuleCodes:
    """Return the code of modules that the agent has added. Raises TraceError for anything else."""
    if type(found) is not list or len(found) > MODULE_CODES_MAX:
        raise TraceError(f"{MODULES_KEY} is no list of at most {MODULE_CODES_MAX:,}")
    kinds = (str, str, int, int, str, bool)
    for one in found:
        if type(one) is not tuple or tuple(map(type, one)) != kinds:
            raise TraceError(f"{MODULES_KEY} has something else than functions of modules")
    rows = (ModuleCode(*one) for one in found)
    return group_codes(
        one._replace(
            file=one.file[:TEXT_CHARACTERS_MAX],
            function=one.function[:TEXT_CHARACTERS_MAX],
            module=one.module[:TEXT_CHARACTERS_MAX],
        )
        for one in rows
    )


class _Reader:
    """Reads the parts of a snapshot, and keeps its stacks."""

    def __init__(self, codes: ModuleCodes) -> None:
        self._codes = codes
        self.modules: list[str] = [""]
        self.stacks: list[tuple[Frame, ...]] = [()]
        self.origins: list[StackOrigin] = [StackOrigin.UNKNOWN]
        self._places: dict[tuple[tuple[Frame, ...], StackOrigin, str], int] = {}
        self._places_by_whole: dict[tuple[Frame, ...], int] = {}
        self._places_by_id: dict[int, int] = {}
        self._frames_by_id: dict[int, Frame] = {}
        self._texts_by_id: dict[int, str] = {}
        self._seen: set[int] = set()

    def read_segment(self, found: Any) -> Segment:
        """Return a segment and its blocks."""
        self._check(found, "segments")
        address = _whole(found, "address")
        blocks, at = [], address
        for one in self._list(found, "blocks"):
            self._check(one, "blocks")
            size = _whole(one, "size")
            blocks.append(
                MemoryBlock(
                    _whole(one, "address", at),
                    size,
                    _whole(one, "requested_size", size),
                    _text(one, "state"),
                    self._read_stack(one),
                )
            )
            at += size
        pool = found.get("segment_pool_id", (0, 0))
        return Segment(
            _whole(found, "device", 0),
            address,
            _whole(found, "total_size"),
            _whole(found, "stream", 0),
            _text(found, "segment_type", "unknown"),
            "default" if pool in ((0, 0), [0, 0]) else str(pool)[:40] if _is_pair(pool) else "unknown",
            found.get("is_expandable") is True,
            blocks,
        )

    def read_history(self, found: Any) -> EventHistory:
        """Return the events of one device. Memory counts as freed when its free is requested: until it is completed,
        other streams may still use it, and the allocator counts it as active, not as allocated.
        """
        if type(found) is not list:
            raise TraceError("device_traces has something else than lists")
        rows: list[tuple[int, int, int, int, int]] = []
        failed = []
        for number, one in enumerate(found):
            self._check(one, "device_traces")
            action, size = _text(one, "action"), _whole(one, "size", 0)
            stack = self._read_stack(one)
            if action == "oom":
                failed.append(FailedAllocation(number, size, _whole(one, "device_free", 0), stack))
            rows.append((*_read_change(action, size, one), stack, _whole(one, "time_us", -1)))
        address, change, reserved, stacks, times_us = np.array(rows, dtype=np.int64).reshape(-1, 5).T
        has_times = bool(((times_us >= 0) & (times_us < TIME_US_MAX)).all())
        # Their order is that of the allocator's lock; its clock may go back by a little.
        time_ns = np.maximum.accumulate(times_us) * NS_PER_US if has_times else None
        return EventHistory(address, change, reserved, stacks, time_ns, failed, len(rows))

    def _read_stack(self, found: dict[Any, Any]) -> int:
        frames = found.get("frames")
        if frames is None:
            return NO_STACK
        if type(frames) is not list:
            raise TraceError("frames is no list")
        place = self._places_by_id.get(id(frames))  # the snapshot holds it: no other object gets its id
        if place is None:
            whole = tuple(map(self._read_frame, frames[: ORIGIN_FRAMES_MAX + 1]))
            place = self._places_by_whole.get(whole)
            if place is None:
                place = self._places_by_whole[whole] = self._add_stack(whole)
            self._places_by_id[id(frames)] = place
        return place

    def _add_stack(self, whole: tuple[Frame, ...]) -> int:
        origin = find_origin(whole) if len(whole) <= ORIGIN_FRAMES_MAX else StackOrigin.UNKNOWN
        stack = whole[:FRAMES_MAX]
        module = name_module(whole, self._codes) if self._codes else ""
        place = self._places.setdefault((stack, origin, module), len(self.stacks))
        if place == len(self.stacks):
            self.stacks.append(stack)
            self.origins.append(origin)
            self.modules.append(module)
        return place

    def _read_frame(self, found: Any) -> Frame:
        frame = self._frames_by_id.get(id(found))
        if frame is None:
            if type(found) is not dict:
                raise TraceError("frames has something else than frames")
            frame = Frame(self._text(found, "filename"), _whole(found, "line", 0), self._text(found, "name"))
            self._frames_by_id[id(found)] = frame
        return frame

    def _list(self, found: dict[Any, Any], key: str) -> Iterator[Any]:
        value = found.get(key)
        if type(value) is not list:
            raise TraceError(f"{key} is no list")
        return iter(value)

    def _text(self, found: dict[Any, Any], key: str) -> str:
        value = found.get(key, "")
        text = self._texts_by_id.get(id(value))
        if text is None:
            text = self._texts_by_id[id(value)] = _text(found, key, "")
        return text

    def _check(self, found: Any, key: str) -> None:
        """Raise TraceError unless this is an entry that has not been read yet."""
        if type(found) is not dict:
            raise TraceError(f"{key} has something else than dicts")
        if id(found) in self._seen:
            raise TraceError(f"refused: an entry of {key} stands in it twice")
        self._seen.add(id(found))


def _read_change(action: str, size: int, found: dict[Any, Any]) -> tuple[int, int, int]:
    """Return the address, the change of allocated and that of reserved bytes of an event; 0 where it has none."""
    if action in {"alloc", "free_requested"}:
        return _whole(found, "addr"), size if action == "alloc" else -size, 0
    if action in {"segment_alloc", "segment_map"}:
        return 0, 0, size
    return 0, 0, -size if action in {"segment_free", "segment_unmap"} else 0


def _whole(found: dict[Any, Any], key: str, default: int | None = None) -> int:
    """Return a whole number of 0 or more; the default, of any kind, where the field is missing."""
    value = found.get(key)
    if value is None and default is not None:
        return default
    if type(value) is not int or not 0 <= value <= ADDRESS_MAX:
        shown = str(value)[:40] if isinstance(value, int | float) else type(value).__name__
        raise TraceError(f"{key} is {shown}; it must be a whole number of 0 or more")
    return value


def _text(found: dict[Any, Any], key: str, default: str | None = None) -> str:
    value = found.get(key, default)
    if type(value) is not str:
        raise TraceError(f"{key} is no text")
    return value[:TEXT_CHARACTERS_MAX]


def _is_pair(value: Any) -> bool:
    """Return whether this is a pair of numbers: of an unknown value no text is made, it may be endless."""
    return type(value) in {tuple, list} and len(value) == 2 and all(type(one) is int for one in value)  # noqa: PLR2004
