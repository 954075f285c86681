"""Hold a Kineto trace as typed event columns, times in integer ns. `kineto_columns.read_trace` builds it from bytes."""

import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int32]
"""Places in a list of names."""

NONE = -1
"""In integer columns: not in the trace."""


class Category(IntEnum):
    """Kind of an event. Kineto's own names changed over the years; see `find_category`."""

    OTHER = 0
    CPU_OP = 1
    ANNOTATION = 2
    RUNTIME = 3
    DRIVER = 4
    KERNEL = 5
    MEMCPY = 6
    MEMSET = 7
    GPU_ANNOTATION = 8
    PYTHON = 9
    SYNC = 10
    OVERHEAD = 11
    SPAN = 12
    COUNTERS = 13


_CATEGORIES = {
    "cpu_op": Category.CPU_OP, "operator": Category.CPU_OP, "user_annotation": Category.ANNOTATION,
    "cuda_runtime": Category.RUNTIME, "runtime": Category.RUNTIME, "hip_runtime": Category.RUNTIME,
    "privateuse1_runtime": Category.RUNTIME, "xpu_runtime": Category.RUNTIME, "mtia_runtime": Category.RUNTIME,
    "cuda_driver": Category.DRIVER, "privateuse1_driver": Category.DRIVER, "xpu_driver": Category.DRIVER,
    "kernel": Category.KERNEL, "gpu_memcpy": Category.MEMCPY, "memcpy": Category.MEMCPY,
    "gpu_memset": Category.MEMSET, "memset": Category.MEMSET, "gpu_user_annotation": Category.GPU_ANNOTATION,
    "python_function": Category.PYTHON, "cuda_sync": Category.SYNC, "overhead": Category.OVERHEAD,
    "trace": Category.SPAN, "ascend kernel": Category.KERNEL, "ascend communication": Category.KERNEL,
    "ascend memcpy": Category.MEMCPY, "cuda_profiler_range": Category.COUNTERS,
}  # fmt: skip


_NOT_OF_DEVICES = frozenset({"", "collective_comm", "ascend wait"})
"""Categories of events that are not counted, and are no work of a device: host events, and waits on a stream."""
ASCEND_COMMUNICATION = "ascend communication"
_ASCEND_COPIES = ("memcpy", "sdma")
_ASCEND_WAITS = re.compile(
    r"wait|record|notify|barrier|maint|place_?holder|write_?value|profil|label|callback|stream_?active|model_?exec|nop$"
)
"""Types of tasks that hold a stream without working: events, notifications, control. All others work."""


def find_category(spelling: str) -> Category:
    """Return the kind of an event from the `cat` of its trace, in the spellings of all years and devices.

    >>> find_category("Operator") is find_category("cpu_op") is Category.CPU_OP
    True
    """
    return _CATEGORIES.get(spelling.lower(), Category.OTHER)


def name_ascend_category(name: str, task_type: object) -> str:
    """Return the category of an event that has none, as Ascend's profiler writes the work of its devices: tasks with
    their type in the arguments, and collectives named `hcom_...`. The empty text for other events.

    >>> [name_ascend_category("MatMul", kind) for kind in ("AI_CORE", "Other", "SDMA_SQE", "EVENT_WAIT_SQE", None)]
    ['ascend kernel', 'ascend kernel', 'ascend memcpy', 'ascend wait', '']
    >>> name_ascend_category("hcom_allReduce__123_0_1", None), name_ascend_category("hcom_allReduce_Aicpu", "AI_CPU")
    ('ascend communication', 'ascend wait')
    """
    is_collective = name.startswith("hcom_")
    if task_type is None:
        return ASCEND_COMMUNICATION if is_collective else ""
    kind = str(task_type).lower()
    if kind.startswith(_ASCEND_COPIES):
        return "ascend memcpy"
    # A collective's own task is in its event already.
    return "ascend wait" if is_collective or _ASCEND_WAITS.search(kind) else "ascend kernel"


def find_uncounted(categories: Mapping[str, int]) -> dict[str, int]:
    """Return the categories with their counts whose events may be work of a device that is not known.

    >>> find_uncounted({"cpu_op": 9, "hpu_op": 3, "": 1})
    {'hpu_op': 3}
    """
    return {
        spelling: count
        for spelling, count in categories.items()
        if count and find_category(spelling) is Category.OTHER and spelling.lower() not in _NOT_OF_DEVICES
    }


COPIES_FROM_HOST = ("Memcpy HtoD", "CopyHostToDevice")
"""How copies from the host's memory begin: of CUPTI `Memcpy HtoD (Pageable -> Device)`, of AMD `(Host -> Device)`."""
DEVICE_WORK = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)
LAUNCHES = (Category.RUNTIME, Category.DRIVER)


class CollectiveArguments(NamedTuple):
    """Arguments of a communication kernel that describe its operation. `in_split` is the text of the rows
    sent to each member of the group, read only where it is asked for.
    """

    op: str
    in_elements: int | None
    out_elements: int | None
    group_size: int | None
    dtype: str | None
    group_name: str | None
    group_description: str | None
    group_ranks: str | None
    sequence: int | None
    source: int | None = None
    destination: int | None = None
    in_split: str | None = None


class StreamWait(NamedTuple):
    """Wait of a stream for an event, as recorded with the events of synchronization. `awaited` is the stream on which
    the event was recorded, by the call with `record_correlation`.
    """

    stream: int
    awaited: int
    record_correlation: int


@dataclass(frozen=True, slots=True)
class Events:
    """All events with a duration, by start (at one start the longest first), as columns of equal length.

    `name` and `thread` index the trace's `names` and `threads`. `correlation` ties device work to its launch,
    `external_id` both to the operator around.
    """

    category: npt.NDArray[np.int8]
    name: Codes
    thread: Codes
    start_ns: Ints
    duration_ns: Ints
    correlation: Ints
    external_id: Ints

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self.start_ns)

    @property
    def end_ns(self) -> Ints:
        """Return the end of each event: its start plus its duration."""
        return self.start_ns + self.duration_ns


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """Kernels, copies and memsets: `row` in the events (ascending) and what only these have. Unknown floats are NaN.
    `gigabytes_per_s` is the bandwidth of a copy as the profiler wrote it, from its time before that was rounded.
    """

    row: Ints
    device: Ints
    stream: Ints
    bytes: Ints
    blocks_per_sm: Floats
    occupancy_percent: Floats
    gigabytes_per_s: Floats


class LaunchShape(NamedTuple):
    """How a kernel was launched: blocks and threads by dimension (`512x1x1`), registers of a thread, bytes of memory
    that a block shares; None where the trace does not say.
    """

    grid: str | None
    block: str | None
    registers: int | None
    shared_memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class AutogradLinks:
    """Operators with a number of autograd, as columns: `row` in the events (ascending), the sequence number, and for
    backward operators torch's number of the thread that ran the forward operator, 0 for forward operators.
    """

    row: Ints
    sequence: Ints
    forward_thread: Ints


@dataclass(frozen=True, slots=True)
class MemoryEvents:
    """Allocations (bytes > 0) and frees (< 0), by time. The totals are the allocator's after it, or NONE; the address
    is NONE where it was not recorded.
    """

    time_ns: Ints
    bytes: Ints
    device_type: Ints
    device: Ints
    allocated_bytes: Ints
    reserved_bytes: Ints
    address: Ints
    thread: Ints


class ReadOptions(NamedTuple):
    """What is read of a trace beside what every table needs. `every_shape`: the input shapes of all operators,
    otherwise only those that the breakdown uses; `every_wait`: the waits of streams for events; `values_of`: the names
    of operators whose arguments, and of collectives whose splits are read; `autograd`: the links of backward operators
    to forward ones; `launches`: how kernels were launched; `arguments`: strides and values of all operators' inputs.
    """

    every_shape: bool = False
    every_wait: bool = False
    values_of: AbstractSet[str] = frozenset()
    autograd: bool = False
    launches: bool = False
    arguments: bool = False


NO_OPTIONS = ReadOptions()


@dataclass(frozen=True, slots=True)
class KinetoTrace:
    """One trace. `head` is everything in the file but its events; `warnings` lists what could not be used, those of
    the reader of a damaged file first, which are `mended`; `left_out` counts events with impossible times by reason;
    `addresses` has the recorded arguments of the calls that send and receive, and of operators whose arguments are
    asked for, as JSON; `stream_waits` the waits of streams for events by row, empty unless they are asked for.
    `autograd` is None, `launch_shapes` (of kernels) and `arguments` (of operators: the JSON of the strides and of the
    values of their inputs) are empty, where they were not read. `counters` has the hardware counters of each range of
    CUPTI's range profiler, by name.
    """

    head: Mapping[str, Any]
    names: Sequence[str]
    threads: Sequence[tuple[str, str]]
    events: Events
    device_work: DeviceWork
    collectives: Mapping[int, CollectiveArguments]
    shapes: Mapping[int, tuple[bytes, bytes]]
    addresses: Mapping[int, bytes]
    stacks: Mapping[int, str]
    memory: MemoryEvents
    phases: Mapping[str, int]
    categories: Mapping[str, int]
    event_count: int
    warnings: Sequence[str]
    stream_waits: Mapping[int, StreamWait]
    mended: Sequence[str] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    autograd: AutogradLinks | None = None
    counters: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    launch_shapes: Mapping[int, LaunchShape] = field(default_factory=dict)
    arguments: Mapping[int, tuple[bytes, bytes]] = field(default_factory=dict)

    def name(self, row: int) -> str:
        """Return the name of an event."""
        return self.names[int(self.events.name[row])]

    def rows(self, *categories: Category) -> Ints:
        """Return the events of these categories, ascending."""
        wanted = np.zeros(len(Category), dtype=bool)
        wanted[list(categories)] = True
        return np.flatnonzero(wanted[self.events.category])

    def names_like(self, matches: Callable[[str], object]) -> npt.NDArray[np.bool_]:
        """Return for each name whether `matches` is true for it; it is called once per distinct name."""
        return np.fromiter(map(matches, self.names), dtype=bool, count=len(self.names))

    def rows_named(self, rows: Ints, matches: Callable[[str], object]) -> Ints:
        """Return those of the rows whose name matches."""
        return rows[self.names_like(matches)[self.events.name[rows]]]
