"""Draw what connects the ranks of a merged timeline: collectives through all ranks, messages from send to receive."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from rankscope.collector.traces.cross_rank import CollectiveOfRanks, split_one
from rankscope.collector.traces.pipeline import pair_messages
from rankscope.collector.traces.timeline_events import EventArray, RankEvents, format_us, make_distinct
from rankscope.measure.traced_collectives import Collective
from rankscope.measure.traced_messages import TracedMessage

Thread = tuple[str, str]
"""Process and thread in the file of a rank."""


class _Point(NamedTuple):
    """Where a flow touches a slice, by the common clock."""

    rank: int
    thread: Thread
    time_ns: int


class Arrows:
    """Writes flows between the ranks' events that `copies` have put into the timeline; `count` counts arrows."""

    def __init__(
        self,
        array: EventArray,
        copies: Mapping[int | None, RankEvents],
        offsets_ns: Mapping[int | None, int],
        origin_ns: int,
    ) -> None:
        self._array = array
        self._copies = copies
        self._offsets_ns = offsets_ns
        self._origin_ns = origin_ns
        self._flow_count = 0
        self.count = 0

    def link_collectives(
        self, matched: Sequence[CollectiveOfRanks], threads: Mapping[int | None, Mapping[Collective, Thread]]
    ) -> None:
        """Draw each matched collective as one flow through the slices of all its ranks."""
        for one in matched:
            late_rank = split_one(one, believed=True).late_rank
            points = find_flow_points(one.by_rank, late_rank, self._offsets_ns)
            self._draw(
                "collective", one.op, [_Point(rank, threads[rank][one.by_rank[rank]], at_ns) for rank, at_ns in points]
            )

    def link_messages(self, threads: Mapping[int, Mapping[TracedMessage, Thread]]) -> None:
        """Draw each message from its send to its receive, where a viewer can: no arrow goes back in time."""
        paired = pair_messages({rank: list(messages) for rank, messages in threads.items()})
        for one in paired.pairs:
            sent_ns = one.send.start_ns - self._offsets_ns[one.source]
            received_ns = one.recv.end_ns - 1 - self._offsets_ns[one.destination]
            if sent_ns <= received_ns:
                points = (
                    _Point(one.source, threads[one.source][one.send], sent_ns),
                    _Point(one.destination, threads[one.destination][one.recv], received_ns),
                )
                self._draw("message", f"rank {one.source} to {one.destination}", points)

    def _draw(self, category: str, name: str, points: Sequence[_Point]) -> None:
        # The place after those of the ranks, which the flows of their own files have.
        ranks = len(self._copies)
        flow = make_distinct(msgspec.Raw(str(self._flow_count).encode()), ranks, ranks + 1)
        self._flow_count += 1
        events = []
        last = len(points) - 1
        for index, point in enumerate(points):
            thread = self._copies[point.rank].find_thread(*point.thread)
            if thread is None:  # its file was cut short between the passes
                return
            events.append(
                {
                    "ph": "s" if index == 0 else "f" if index == last else "t",
                    "cat": category,
                    "name": name,
                    "id": flow,
                    "pid": thread.pid,
                    "tid": msgspec.Raw(thread.tid),
                    "ts": msgspec.Raw(format_us(point.time_ns - self._origin_ns)),
                    **({"bp": "e"} if index else {}),
                }
            )
        self._array.add(events)
        self.count += last


def find_flow_points(
    by_rank: Mapping[int, Collective], late_rank: int | None, offsets_ns: Mapping[int | None, int]
) -> list[tuple[int, int]]:
    """Return (rank, time on the common clock) for each rank's slice of a collective, in the order of the flow.

    The flow starts at the rank that entered last, or at the lowest. A viewer draws no arrow back in time, so where that
    rank entered after another had left, it starts at the first to leave. Each time lies inside its slice.
    """
    first_ns = {rank: c.start_ns - offsets_ns[rank] for rank, c in by_rank.items()}
    last_ns = {rank: first_ns[rank] + max(c.duration_ns - 1, 0) for rank, c in by_rank.items()}
    source = late_rank if late_rank is not None else min(by_rank)
    first_to_leave = min(sorted(by_rank), key=lambda rank: last_ns[rank])
    if last_ns[first_to_leave] < first_ns[source]:
        source = first_to_leave
    start_ns = first_ns[source]
    others = sorted((max(first_ns[rank], start_ns), rank) for rank in by_rank if rank != source)
    return [(source, start_ns), *((rank, time_ns) for time_ns, rank in others)]
