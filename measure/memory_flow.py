"""Choose what a chart of memory flow shows: time by address, one rectangle a lifetime, the largest ones.

Pure. Addresses are compressed: ranges in which no drawn lifetime ever was are left out, so the axis is in bytes, and a
byte of any rectangle is as high as that of another.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from rankscope.measure.memory_timeline import HeldBytes, Ints, PairedEvents

RECTANGLES_MAX: Final = 5_000
"""Browsers draw so many at once without delay, in a file of 1 MB or so."""
BINS_MAX: Final = 1_000
"""Columns of the area of what is not drawn one by one: as many as a page has pixels, or so."""
NAME_CHARACTERS_MAX: Final = 200


class FlowRectangle(msgspec.Struct, frozen=True, array_like=True):
    """One lifetime, from `start_ns` to `end_ns` since the first event; `offset_bytes` is its place on the compressed
    axis. `is_open`: it was not freed before the last event.
    """

    start_ns: int
    end_ns: int
    offset_bytes: int
    bytes: int
    kind: int
    is_open: bool
    name: str


class MemoryFlow(msgspec.Struct, frozen=True, kw_only=True):
    """A chart of memory flow. `span_ns` is from the first event to the last, `height_bytes` the length of the
    compressed axis. `merged_count` lifetimes are too many to be drawn one by one; `merged_bytes` is the most that they
    and memory older than the first event (`older_bytes` of it at the begin) held in each of the equal parts of time.
    """

    device: int | None
    span_ns: int
    height_bytes: int
    rectangles: list[FlowRectangle]
    merged_count: int
    merged_bytes: list[int]
    older_bytes: int
    peak_ns: int
    peak_bytes: int


class FlowLabels(NamedTuple):
    """What is said of each lifetime: its kind, a number of the caller's, and its name as a place in `names`."""

    kind: Ints
    names: Sequence[str]
    name: Ints


def build_flow(
    paired: PairedEvents,
    held: HeldBytes,
    time_ns: Ints,
    labels: FlowLabels,
    *,
    device: int | None,
    rectangles_max: int = RECTANGLES_MAX,
) -> MemoryFlow:
    """Return the chart of all events; there must be one. `time_ns` is that of each event. The largest lifetimes are
    drawn, of equal ones the first.
    """
    lives = paired.lifetimes
    drawn = np.sort(np.argsort(-lives.bytes, kind="stable")[:rectangles_max])
    offset, height = compress_addresses(lives.address[drawn], lives.bytes[drawn])
    last_ns = int(time_ns[-1])
    ends_ns = np.append(time_ns, last_ns)[lives.freed[drawn]]
    starts_ns = time_ns[lives.allocated[drawn]]
    first_ns = int(time_ns[0])
    rectangles = [
        FlowRectangle(
            int(start) - first_ns,
            int(end) - first_ns,
            int(offset_bytes),
            int(lives.bytes[row]),
            int(labels.kind[row]),
            bool(lives.freed[row] == paired.event_count),
            labels.names[int(labels.name[row])][:NAME_CHARACTERS_MAX],
        )
        for row, start, end, offset_bytes in zip(drawn, starts_ns, ends_ns, offset, strict=True)
    ]
    shown = np.zeros(paired.event_count + 1, dtype=np.int64)
    np.add.at(shown, lives.allocated[drawn], lives.bytes[drawn])
    np.add.at(shown, lives.freed[drawn], -lives.bytes[drawn])
    peak = int(np.argmax(held.held))
    return MemoryFlow(
        device=device,
        span_ns=last_ns - first_ns,
        height_bytes=height,
        rectangles=rectangles,
        merged_count=len(lives.bytes) - len(drawn),
        merged_bytes=find_most_by_bin(time_ns, held.held - np.cumsum(shown)[:-1]),
        older_bytes=int(held.older[0]),
        peak_ns=int(time_ns[peak]) - first_ns,
        peak_bytes=int(held.held[peak]),
    )


def compress_addresses(address: Ints, size: Ints) -> tuple[Ints, int]:
    """Return the place of each range of addresses on an axis without the gaps between them, and the axis' length.

    >>> offset, length = compress_addresses(np.array([1000, 100, 1005]), np.array([10, 20, 10]))
    >>> offset.tolist(), length
    ([20, 0, 25], 35)
    """
    if not len(address):
        return np.zeros(0, dtype=np.int64), 0
    order = np.argsort(address, kind="stable")
    begins = address[order]
    reach = np.maximum.accumulate(begins + size[order])
    gap = np.zeros(len(order), dtype=np.int64)
    gap[1:] = np.maximum(begins[1:] - reach[:-1], 0)
    left_out = begins[0] + np.cumsum(gap)
    offset = np.empty(len(order), dtype=np.int64)
    offset[order] = begins - left_out
    return offset, int(reach[-1] - left_out[-1])


def find_most_by_bin(time_ns: Ints, held: Ints, bins: int = BINS_MAX) -> list[int]:
    """Return the most bytes held in each of equal parts of the time, at most `bins`, of which the last ends with the
    last event. What is held after an event is held until the next one.

    >>> find_most_by_bin(np.array([0, 1, 9, 10]), np.array([5, 7, 1, 2]), bins=5)
    [7, 7, 7, 7, 7]
    >>> find_most_by_bin(np.array([0, 1, 4, 10]), np.array([5, 7, 1, 2]), bins=5)
    [7, 7, 7, 1, 2]
    """
    span = int(time_ns[-1] - time_ns[0])
    count = max(1, min(bins, span))
    place = np.minimum((time_ns - time_ns[0]) * count // max(span, 1), count - 1)
    most = np.zeros(count, dtype=np.int64)
    np.maximum.at(most, place, held)
    # The bytes after the last event before a part are held at its begin.
    last = np.searchsorted(place, np.arange(count), side="left") - 1
    np.maximum(most, np.where(last >= 0, held[last], 0), out=most)
    return [int(one) for one in most]
