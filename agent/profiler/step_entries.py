"""Finds the durations of the collectives in a step's entries of torch's flight recorder, or when they were enqueued.
Pure.

The recorder has wall time; each step is converted to the host clock by the wall clock as of its report.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from rankscope.agent.captures.timed_entries import TimedEntry
from rankscope.measure.enqueues import Enqueue
from rankscope.measure.records import CollectiveRecord, GroupInfo


class WaitingStep(NamedTuple):
    """A step whose collectives are not known yet, by the wall clock as of its report."""

    step: int
    start_wall_ns: int
    end_wall_ns: int
    wall_minus_host_ns: int


class StepEntries(NamedTuple):
    """A step with the recorder's entries that were enqueued in it."""

    step: WaitingStep
    entries: Sequence[TimedEntry]


def lacks_durations(entries: Sequence[TimedEntry]) -> bool:
    """Return whether collectives are over and none has a duration: torch does not time them. False while none is over,
    since a duration may still come.
    """
    is_over = any(entry.is_over for entry in entries)
    return is_over and all(entry.duration_ns is None for entry in entries)


def find_durations(
    step: WaitingStep, entries: Sequence[TimedEntry], groups: Mapping[str, GroupInfo]
) -> list[CollectiveRecord]:
    """Return the collectives of a step whose duration and group are known."""
    return [
        CollectiveRecord(
            step=step.step,
            group=groups[entry.group_name].label,
            op=entry.op,
            start_host_ns=entry.created_wall_ns - step.wall_minus_host_ns,
            duration_ns=entry.duration_ns,
            sequence=entry.sequence,
            bytes=entry.bytes,
        )
        for entry in entries
        if entry.group_name in groups and entry.duration_ns is not None
    ]


def find_enqueues(steps: Sequence[StepEntries], groups: Mapping[str, GroupInfo]) -> tuple[list[Enqueue], int]:
    """Return when the collectives of these steps were enqueued, and how many are of no known group. Of the members of a
    coalesced group, which share a number, the first one counts.
    """
    found: dict[tuple[str, int], Enqueue] = {}
    unknown = 0
    for step, entries in steps:
        for entry in entries:
            group = groups.get(entry.group_name)
            if group is None:
                unknown += 1
                continue
            host_ns = entry.created_wall_ns - step.wall_minus_host_ns
            place = group.label, entry.sequence
            found.setdefault(place, Enqueue(step.step, group.label, entry.sequence, host_ns))
    return list(found.values()), unknown


def find_ranges(found: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and last of each row of consecutive numbers.

    >>> find_ranges([7, 3, 4, 5])
    [(3, 5), (7, 7)]
    """
    steps = sorted(found)
    cuts = [0, *(i for i, (one, other) in enumerate(pairwise(steps), start=1) if other != one + 1), len(steps)]
    return [(steps[a], steps[b - 1]) for a, b in pairwise(cuts) if a < b]
