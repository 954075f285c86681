"""Read a window's activities from the profiler's result: the communication on the host, a full window's columns.

Each call into Kineto takes 0.15 to 0.25 us with the GIL held. So activities that are not needed are skipped by their
type, and the others are read in short batches; after each its memory is freed and the GIL released.
"""

import re
from array import array
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, NamedTuple

from rankscope.measure.communication import HOST_PREFIXES, is_backend_range
from rankscope.measure.kineto import COPIES_FROM_HOST, DEVICE_WORK, LAUNCHES, NONE, Category, find_category
from rankscope.measure.window_columns import WindowColumns

if TYPE_CHECKING:
    from rankscope.agent.profiler.window_scheduler import RawWindow

BATCH_EVENTS = 250
"""Activities read without a pause, in 0.5 to 0.8 ms with the GIL held; operators around calls that may wait count."""
LAUNCHED_BY_COLLECTIVES = "record_param_comms"
"""The operator that describes a collective; kernels of communication are linked to it."""
_ON_CPU = frozenset({Category.CPU_OP})
_ON_DEVICE = frozenset({*DEVICE_WORK, *LAUNCHES})
"""Of the operators only those around calls that may wait are needed when a device is in use; such a call knows its
own. There are a few in a step, so that this takes some microseconds, where all operators take milliseconds."""
_NUMBERS = re.compile(r'"Sequence number": \d+, "Fwd thread id": \d+')
"""An operator's numbers of autograd, as torch writes them into its metadata."""
METADATA_COUNTS = 4
"""An activity whose metadata is read counts as so many more of a batch: that of an operator takes 5 us."""
_MAY_BE_RANGES = frozenset({Category.ANNOTATION, Category.CPU_OP})


class HostRange(NamedTuple):
    """A communication by a backend on the CPU, by the host clock."""

    name: str
    start_host_ns: int
    duration_ns: int
    thread: int
    metadata: str


class ReadWindow(NamedTuple):
    """The communication on the host, sorted by start, and the columns of a full window, by the wall clock."""

    ranges: list[HostRange]
    columns: WindowColumns | None


def read_window(window: "RawWindow", found: list[Any], yield_gil: Callable[[], None]) -> ReadWindow:
    """Read the activities in `found`, which is emptied from its end; `yield_gil` is called after each batch."""
    reader = _Reader(window)
    while found:
        batch_end = reader.count + BATCH_EVENTS
        while found and reader.count < batch_end:
            reader.read(found.pop())
        yield_gil()
    return reader.result()


def _find_wanted(window: "RawWindow") -> frozenset[Category]:
    if not window.full:
        return frozenset()
    if window.has_shapes:
        return _ON_DEVICE | _ON_CPU
    return _ON_DEVICE if window.on_device else _ON_CPU


def _find_formulas() -> Collection[str]:
    """Return the operators whose FLOPs are counted."""
    from rankscope.measure.flops import FORMULAS  # noqa: PLC0415 - few windows have shapes

    return FORMULAS


class _Reader:
    def __init__(self, window: "RawWindow") -> None:
        self._window = window
        self._wanted = _find_wanted(window)
        self._formulas = _find_formulas() if window.has_shapes else frozenset[str]()
        self._used_types = self._wanted | ({Category.ANNOTATION} if window.full else _MAY_BE_RANGES)
        self._category_of_type: dict[str, Category] = {}
        self._ranges: list[HostRange] = []
        self._names: dict[str, int] = {}
        self._lanes: dict[int, int] = {}
        self._metadata: dict[int, str] = {}
        self._operator_metadata: dict[int, str] = {}
        self._may_block: dict[str, bool] = {}
        self._operators_around: set[tuple[int, int, str]] = set()
        self.count = 0
        """How many activities have been read, operators around calls among them."""
        self._category, self._name, self._lane = array("b"), array("i"), array("i")
        self._start_ns, self._duration_ns, self._correlation = array("q"), array("q"), array("q")

    def read(self, activity: Any) -> None:
        """Read one activity, if it is needed."""
        self.count += 1
        spelling = activity.type()
        kind = self._category_of_type.get(spelling)
        if kind is None:
            kind = self._category_of_type[spelling] = find_category(spelling)
        if kind not in self._used_types:
            return
        name = activity.name()
        if self._window.full and (kind in self._wanted or is_backend_range(name)):
            self._keep(activity, kind, name, activity.resource_id())
        if kind in _MAY_BE_RANGES and name.startswith(HOST_PREFIXES):
            self._ranges.append(self._read_range(activity, name))

    def _read_range(self, activity: Any, name: str) -> HostRange:
        metadata = "" if self._window.full else activity.metadata_json()  # few full windows are recorded with shapes
        start_host_ns = activity.timestamp() - self._window.wall_minus_host_ns
        return HostRange(name, start_host_ns, activity.duration(), activity.resource_id(), metadata)

    def _keep(self, activity: Any, kind: Category, name: str, lane: int) -> None:
        if kind is Category.CPU_OP and self._window.has_shapes:
            self._keep_metadata(activity, name)
        elif kind in LAUNCHES and not self._window.has_shapes:  # with shapes every operator is kept
            self._keep_operator_around(activity, name, lane)
        if kind is Category.KERNEL:
            launcher = activity.linked_activity()
            if launcher is not None and launcher.name() == LAUNCHED_BY_COLLECTIVES:
                self._metadata[len(self._start_ns)] = launcher.metadata_json()
        elif kind is Category.MEMCPY and name.startswith(COPIES_FROM_HOST):
            self.count += METADATA_COUNTS
            self._metadata[len(self._start_ns)] = activity.metadata_json()
        self._category.append(kind)
        self._name.append(self._names.setdefault(name, len(self._names)))
        self._lane.append(self._lanes.setdefault(lane, len(self._lanes)))
        self._start_ns.append(activity.timestamp())
        self._duration_ns.append(activity.duration())
        self._correlation.append(activity.correlation_id() if kind in _ON_DEVICE else NONE)

    def _keep_metadata(self, operator: Any, name: str) -> None:
        """Keep from what the FLOPs of an operator are counted, or whether it is part of a forward or a backward."""
        self.count += METADATA_COUNTS
        metadata = operator.metadata_json()
        numbers = _NUMBERS.search(metadata)
        if name in self._formulas:
            self._operator_metadata[len(self._start_ns)] = metadata
        elif numbers is not None:
            self._operator_metadata[len(self._start_ns)] = numbers.group()

    def _keep_operator_around(self, call: Any, name: str, lane: int) -> None:
        """Keep the operator inside which the host may have waited for its device, as far as operators are recorded."""
        may_wait = self._may_block.get(name)
        if may_wait is None:
            from rankscope.measure.blocking_calls import may_block  # noqa: PLC0415 - of devices alone

            may_wait = self._may_block[name] = may_block(name)
        operator = call.linked_activity() if may_wait else None
        if operator is None or find_category(operator.type()) is not Category.CPU_OP:
            return
        self.count += 1
        key = operator.timestamp(), lane, operator.name()
        if key not in self._operators_around:  # an operator may wait twice
            self._operators_around.add(key)
            self._keep(operator, Category.CPU_OP, key[2], lane)

    def result(self) -> ReadWindow:
        ranges = sorted(self._ranges, key=lambda found: found.start_host_ns)
        if not self._window.full:
            return ReadWindow(ranges, None)
        columns = WindowColumns(
            names=tuple(self._names),
            lanes=tuple(self._lanes),
            category=self._category.tobytes(),
            name=self._name.tobytes(),
            lane=self._lane.tobytes(),
            start_ns=self._start_ns.tobytes(),
            duration_ns=self._duration_ns.tobytes(),
            correlation=self._correlation.tobytes(),
            metadata=self._metadata,
            operators=self._operator_metadata,
        )
        return ReadWindow(ranges, columns)
