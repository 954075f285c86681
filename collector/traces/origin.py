"""Read the origin of a trace from its head: rank, world, host, devices; and keep one file for each rank.

A head is not trusted: a value of the wrong type counts as missing.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from rankscope.collector.traces.files import rank_in_name
from rankscope.measure.errors import NotATraceError, TraceError
from rankscope.measure.kineto import LAUNCHES, NONE, Category, KinetoTrace, find_category
from rankscope.measure.rank_view import STEP_NAME

Read = TypeVar("Read")

HEAD_NUMBER_MAX = 1 << 62
"""In ns since 1970: the year 2116."""
CATEGORIES_SHOWN_MAX = PROCESSES_SHOWN_MAX = 3
REPEATED_NUMBERS_MAX, REPEATED_NUMBERS_SHARE_MAX = 8, 0.25
"""Launches with the number of another one up to which a file is taken for that of one process."""
MERGED_MARK = "rankscopeTimeline"
MERGED_REPORT = "rankscope"
"""Fields of a merged timeline, in front of its events and behind them. Its events are those of several ranks."""


class DeviceProperties(NamedTuple):
    """Properties of one device in a trace. `compute_capability` is CUDA's, as (major, minor); `memory_bytes` its whole
    memory. None where it is not known.
    """

    device: int
    name: str | None
    compute_capability: tuple[int, int] | None
    memory_bytes: int | None = None


class Origin(NamedTuple):
    """Origin of a trace; None: not in its head. Its times count from `base_ns` on the host's clock."""

    rank: int | None
    world_size: int | None
    group_count: int | None
    backend: str | None
    host: str | None
    base_ns: int
    devices: tuple[DeviceProperties, ...]
    groups: tuple[tuple[int, ...], ...] = ()

    @property
    def only_group_size(self) -> int | None:
        """Number of ranks in the only process group; None with more groups, or when unknown."""
        return self.world_size if self.group_count == 1 else None


def read_origin(head: Mapping[str, Any], path: str) -> Origin:
    """Return the origin of the trace with this head; without a rank in it, the rank is read from the file's name.
    Raises NotATraceError for the head of a merged timeline.

    >>> found = read_origin({"distributedInfo": {"rank": "2", "world_size": 8}}, "run/rank3.json")
    >>> found.rank, found.world_size, found.backend, found.base_ns
    (3, 8, None, 0)
    """
    if MERGED_MARK in head or MERGED_REPORT in head:
        raise NotATraceError(
            "it is a merged timeline itself, not a Kineto trace of one rank: name the traces that it was made from"
        )
    info = head.get("distributedInfo")
    distributed = info if isinstance(info, dict) else {}
    rank = _integer(distributed.get("rank"))
    rank = rank if rank is not None and rank >= 0 else None
    world_size = _integer(distributed.get("world_size"))
    properties = head.get("deviceProperties")
    return Origin(
        rank=rank if rank is not None else rank_in_name(path),
        world_size=world_size if world_size is not None and world_size > 0 else None,
        group_count=_integer(distributed.get("pg_count")),
        backend=_text(distributed.get("backend")),
        host=_text(head.get("host_name")),
        base_ns=_integer(head.get("baseTimeNanoseconds")) or 0,
        devices=tuple(_read_devices(properties if isinstance(properties, list) else [])),
        groups=tuple(_read_groups(distributed.get("pg_config"))),
    )


def match_devices(devices: Sequence[DeviceProperties], at_work: Sequence[int]) -> tuple[DeviceProperties, ...]:
    """Return the properties of the devices that worked, by the numbers that their work has. ROCm numbers them as
    agents, behind the processors: such a number is a device here only where all devices of the trace are alike.

    >>> match_devices([DeviceProperties(0, "AMD Instinct MI300X", None)], [2])
    (DeviceProperties(device=2, name='AMD Instinct MI300X', compute_capability=None, memory_bytes=None),)
    """
    known = {one.device: one for one in devices}
    alike = {one._replace(device=0) for one in devices}
    found = [known.get(number, alike.copy().pop() if len(alike) == 1 else None) for number in at_work]
    return tuple(one._replace(device=number) for number, one in zip(at_work, found, strict=True) if one is not None)


def refuse_foreign(trace: KinetoTrace) -> None:
    """Raise NotATraceError for a timeline whose events are all of kinds that torch.profiler does not record: other
    tools write the same format, and nothing of theirs is counted here.
    """
    halves = trace.phases.get("B", 0) + trace.phases.get("E", 0)
    if not (len(trace.events) or len(trace.memory.time_ns) or trace.left_out or halves):
        raise NotATraceError("it has no events that can be used: nothing was recorded, or it is no trace")
    counts = {spelling: count for spelling, count in trace.categories.items() if count}
    if any(find_category(spelling) is not Category.OTHER for spelling in counts) or not (counts or halves):
        return
    names = [repr(spelling) for spelling in sorted(counts) if spelling]
    more = ", ..." if len(names) > CATEGORIES_SHOWN_MAX else ""
    shown = f", but of the categories {', '.join(names[:CATEGORIES_SHOWN_MAX])}{more}" if names else ""
    raise NotATraceError(
        f"none of its events is of a kind that torch.profiler records{shown}: is it the timeline of another tool?"
    )


def refuse_several(trace: KinetoTrace) -> None:
    """Raise NotATraceError for a file with the events of several processes: ranks that another tool has merged, or that
    have written to one file. Their launches have the same numbers, so that their work cannot be told apart. Processes
    are those with operators or ranges: MTIA writes some calls of its runtime under the number of the device.
    """
    rows = trace.rows(Category.CPU_OP, Category.ANNOTATION)
    if not len(rows):
        rows = trace.rows(*LAUNCHES)
    processes = sorted({trace.threads[code][0] for code in np.unique(trace.events.thread[rows]).tolist()})
    cure = "name the files that it was made from, one for each rank"
    if len(processes) > 1:
        more = ", ..." if len(processes) > PROCESSES_SHOWN_MAX else ""
        shown = ", ".join(processes[:PROCESSES_SHOWN_MAX])
        raise NotATraceError(
            f"it has the events of {len(processes)} processes ({shown}{more}), not of one rank: {cure}"
        )
    if _have_steps_at_once(trace):
        raise NotATraceError(f"several of its steps run at once on one thread, so it is of several ranks: {cure}")
    if _repeats_numbers(trace):
        raise NotATraceError(f"its launches have each number several times, so it is of several ranks: {cure}")


def _repeats_numbers(trace: KinetoTrace) -> bool:
    """Return whether launches share their numbers, which are of one process: of 28,009 calls in the traces of devices
    in tests/traces no two have one.
    """
    numbers = trace.events.correlation[trace.rows(*LAUNCHES)]
    numbers = numbers[numbers != NONE]
    repeated = len(numbers) - len(np.unique(numbers))
    return repeated > max(REPEATED_NUMBERS_MAX, REPEATED_NUMBERS_SHARE_MAX * len(numbers))


def _have_steps_at_once(trace: KinetoTrace) -> bool:
    """Return whether steps on one thread overlap by more than half of the shorter one."""
    rows = trace.rows_named(trace.rows(Category.ANNOTATION, Category.CPU_OP), STEP_NAME.match)
    rows = rows[np.argsort(trace.events.thread[rows], kind="stable")]
    start_ns, end_ns, thread = trace.events.start_ns[rows], trace.events.end_ns[rows], trace.events.thread[rows]
    length_ns = end_ns - start_ns
    shared_ns = np.minimum(end_ns[:-1], end_ns[1:]) - start_ns[1:]
    at_once = 2 * shared_ns > np.minimum(length_ns[:-1], length_ns[1:])
    return bool((at_once & (thread[:-1] == thread[1:]) & (length_ns[1:] > 0)).any())


def _read_devices(properties: list[Any]) -> list[DeviceProperties]:
    found = []
    for one in properties:
        device = _integer(one.get("id")) if isinstance(one, dict) else None
        if device is not None:
            name, major, minor = one.get("name"), _integer(one.get("computeMajor")), _integer(one.get("computeMinor"))
            capability = (major, minor) if major is not None and minor is not None else None
            memory_bytes = _integer(one.get("totalGlobalMem"))
            found.append(DeviceProperties(device, str(name) if name is not None else None, capability, memory_bytes))
    return found


def _read_groups(config: Any) -> list[tuple[int, ...]]:
    """Return the members of each process group that the trace lists."""
    found = []
    for one in config if isinstance(config, list) else ():
        members = one.get("ranks") if isinstance(one, dict) else None
        if isinstance(members, list) and members and all(_integer(member) is not None for member in members):
            found.append(tuple(members))
    return found


def _integer(value: Any) -> int | None:
    """Return an integer; None for another type, and for one that would overflow sums of times."""
    return value if type(value) is int and abs(value) < HEAD_NUMBER_MAX else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


# -- one file for each rank -------------------------------------------------------------------------------------------


class ByRank(Generic[Read]):
    """Contents of trace files by rank, at most one file for each."""

    def __init__(self) -> None:
        self._kept: dict[int | None, tuple[str, Read]] = {}

    def add(self, rank: int | None, file: str, read: Read) -> None:
        """Add a file. Raises TraceError when an earlier file has this rank, or has no rank either."""
        if rank in self._kept:
            claim = "names no rank" if rank is None else f"claims rank {rank}"
            cure = "give one file for each rank; --rank-from finds the rank in the path instead"
            raise TraceError(f"it {claim}, as {self._kept[rank][0]} does; {cure}")
        self._kept[rank] = file, read

    def in_order(self) -> list[Read]:
        """Return the contents by rank, the one without a rank last."""
        return [self._kept[rank][1] for rank in sorted(self._kept, key=lambda rank: (rank is None, rank or 0))]
