"""Parses the collectives of devices, with their durations, from a dump of torch's flight recorder. Pure.

A device's collective is timed by two events around it in its stream: its duration includes the copies and the gaps
between launches there, not only the kernel. Point-to-point operations are left out. What stands for several operations
(`nccl:coalesced` of batch_isend_irecv, lists of tensors without sizes) has no duration here: it is no collective.

A dump has every entry of the recorder's ring, oldest first (2,000 by default, 1.1 MB of JSON); there is no question for
those since the last one. So a reading keeps only what is needed from now on.
"""

from collections.abc import Iterable
from typing import Annotated, Final, NamedTuple

import msgspec

from rankscope.measure.bounds import NAME_LENGTH_MAX, NUMBER_MAX
from rankscope.measure.communication import HOST_PREFIXES, find_operation, input_bytes
from rankscope.measure.units import NS_PER_MS, NS_PER_S

SETTLED_NS: Final = NS_PER_S
"""Age from which a retired entry without a duration will have none: torch computes it after retiring the entry."""
DURATION_MS_MAX: Final = 1e12
"""30 years: what is longer is no duration, and its ns have no room in 64 bits."""
COALESCED: Final = "coalesced"

Number = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]


class TimedEntry(NamedTuple):
    """A collective of a device in torch's flight recorder.

    `duration_ns` is the time between the events around it, None while that is not known. `is_over`: whether nothing
    more will be known of it, because it has ended, or because a later one of its group has. `bytes` is its size as
    nccl-tests counts it, None without sizes.
    """

    group_name: str
    sequence: int
    op: str
    created_wall_ns: int
    duration_ns: int | None
    is_over: bool
    bytes: int | None


class RecorderReading(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """What the recorder had at `taken_wall_ns`, just before the dump was made.

    `entries` are the collectives of devices from the last one before the time asked for, oldest first. `recorded` is
    how many entries the recorder has had so far, `ring_entries` how many it still had, and `ring_ns` the time from the
    oldest to the youngest. `cpu_ns` is the CPU time of parsing outside the rank. `problem`: why it could not be parsed.
    """

    taken_wall_ns: int
    entries: list[TimedEntry] = []
    recorded: int = 0
    ring_entries: int = 0
    ring_ns: int = 0
    cpu_ns: int = 0
    problem: str = ""


class _Entry(msgspec.Struct, gc=False):
    """The fields of a recorder's entry that are used, under torch's names."""

    record_id: Number
    time_created_ns: Number
    collective_seq_id: Number
    profiling_name: str
    process_group: tuple[str, ...]
    is_p2p: bool = False
    retired: bool = False
    duration_ms: Annotated[float, msgspec.Meta(ge=0, le=DURATION_MS_MAX)] | None = None
    time_discovered_completed_ns: Number | None = None
    input_dtypes: tuple[str, ...] = ()
    input_sizes: tuple[tuple[int, ...], ...] = ()
    output_dtypes: tuple[str, ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()


class _Dump(msgspec.Struct):
    """A dump; `entries` is absent if there are none."""

    entries: list[_Entry] = []


_decoder = msgspec.json.Decoder(_Dump)


def parse_dump(text: bytes | str, *, taken_wall_ns: int, since_wall_ns: int) -> RecorderReading:
    """Return the collectives since `since_wall_ns` and the last one before. Raise msgspec.MsgspecError, IndexError or
    RecursionError if the text is no dump.
    """
    found = sorted(_decoder.decode(text).entries, key=lambda one: one.record_id)
    if not found:
        return RecorderReading(taken_wall_ns=taken_wall_ns)
    of_devices = [one for one in found if not one.is_p2p and not one.profiling_name.startswith(HOST_PREFIXES)]
    before = sum(one.time_created_ns < since_wall_ns for one in of_devices)
    last_over = _find_last_over(of_devices, taken_wall_ns)
    return RecorderReading(
        taken_wall_ns=taken_wall_ns,
        entries=[
            _to_timed_entry(one, is_over=one.record_id <= last_over.get(one.process_group[0], -1))
            for one in of_devices[max(0, before - 1) :]
        ],
        recorded=found[-1].record_id + 1,
        ring_entries=len(found),
        ring_ns=max(0, found[-1].time_created_ns - found[0].time_created_ns),
    )


def _stands_for_several(entry: _Entry) -> bool:
    name = entry.profiling_name.rpartition(":")[2]
    return name == COALESCED or (name.endswith("_" + COALESCED) and not (entry.input_sizes or entry.output_sizes))


def _find_last_over(entries: Iterable[_Entry], taken_wall_ns: int) -> dict[str, int]:
    """Return the record of the last collective of each group that is over. The collectives of a group end one after the
    other; an earlier one that torch has not timed, such as a member of a coalesced group, will never be.
    """
    last = {}
    for one in entries:
        noticed_ns = max(one.time_created_ns, one.time_discovered_completed_ns or 0)
        if one.duration_ms is not None or (one.retired and noticed_ns <= taken_wall_ns - SETTLED_NS):
            last[one.process_group[0]] = one.record_id
    return last


def _to_timed_entry(entry: _Entry, *, is_over: bool) -> TimedEntry:
    duration_ms = None if _stands_for_several(entry) else entry.duration_ms
    sizes = (input_bytes(entry.input_dtypes, entry.input_sizes), input_bytes(entry.output_dtypes, entry.output_sizes))
    has_sizes = bool(entry.input_sizes or entry.output_sizes)
    size_bytes = max((size for size in sizes if size is not None), default=None) if has_sizes else None
    return TimedEntry(
        group_name=entry.process_group[0][:NAME_LENGTH_MAX],
        sequence=entry.collective_seq_id,
        op=find_operation(entry.profiling_name)[:NAME_LENGTH_MAX],
        created_wall_ns=entry.time_created_ns,
        duration_ns=round(duration_ms * NS_PER_MS) if duration_ms is not None else None,
        is_over=is_over,
        bytes=size_bytes if size_bytes is not None and 0 <= size_bytes <= NUMBER_MAX else None,
    )
