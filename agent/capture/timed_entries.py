"""Parses the collectives of devices, with their durations, from a dump of torch's flight recorder. Pure.

A dump has every entry of the recorder's ring, oldest first (2,000 by default, 1.1 MB of JSON); there is no question for
those since the last one. So a reading keeps only what is needed from now on.
"""

from typing import NamedTuple

import msgspec

from rankscope.measure.communication import HOST_PREFIXES, find_operation, input_bytes
from rankscope.measure.units import NS_PER_MS


class TimedEntry(NamedTuple):
    """A collective of a device in torch's flight recorder.

    `duration_ns` is the duration of its kernel, None while that is not known. `is_over` is whether the recorder knows
    that the collective has ended. `bytes` is its size as nccl-tests counts it.
    """

    group_name: str
    sequence: int
    op: str
    created_wall_ns: int
    duration_ns: int | None
    is_over: bool
    bytes: int | None


class Reading(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
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

    record_id: int
    time_created_ns: int
    collective_seq_id: int
    profiling_name: str
    process_group: tuple[str, ...]
    is_p2p: bool = False
    retired: bool = False
    duration_ms: float | None = None
    input_dtypes: tuple[str, ...] = ()
    input_sizes: tuple[tuple[int, ...], ...] = ()
    output_dtypes: tuple[str, ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()


class _Dump(msgspec.Struct):
    """A dump; `entries` is absent if there are none."""

    entries: list[_Entry] = []


_decoder = msgspec.json.Decoder(_Dump)


def parse_dump(text: bytes | str, *, taken_wall_ns: int, since_wall_ns: int) -> Reading:
    """Return the collectives since `since_wall_ns` and the last one before. Raise msgspec.MsgspecError or IndexError
    if the text is no dump.
    """
    found = sorted(_decoder.decode(text).entries, key=lambda one: one.record_id)
    if not found:
        return Reading(taken_wall_ns=taken_wall_ns)
    of_devices = [one for one in found if not one.is_p2p and not one.profiling_name.startswith(HOST_PREFIXES)]
    before = sum(one.time_created_ns < since_wall_ns for one in of_devices)
    return Reading(
        taken_wall_ns=taken_wall_ns,
        entries=[_to_timed_entry(one) for one in of_devices[max(0, before - 1) :]],
        recorded=found[-1].record_id + 1,
        ring_entries=len(found),
        ring_ns=max(0, found[-1].time_created_ns - found[0].time_created_ns),
    )


def _to_timed_entry(entry: _Entry) -> TimedEntry:
    duration_ms = entry.duration_ms
    sizes = (input_bytes(entry.input_dtypes, entry.input_sizes), input_bytes(entry.output_dtypes, entry.output_sizes))
    return TimedEntry(
        group_name=entry.process_group[0],
        sequence=entry.collective_seq_id,
        op=find_operation(entry.profiling_name),
        created_wall_ns=entry.time_created_ns,
        duration_ns=round(duration_ms * NS_PER_MS) if duration_ms is not None else None,
        is_over=entry.retired or duration_ms is not None,
        bytes=max((size for size in sizes if size is not None), default=None),
    )
