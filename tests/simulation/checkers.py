"""Check what holds for every simulated run. Each check raises AssertionError with the violation.

That every finding is opened once and closed at most once is checked by `collector_end.py` during the run.
"""

import io
import pickle
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from rankscope.collector.runs.snapshot import Snapshot
from rankscope.measure.units import ns_to_s
from tests.library_exporter import SnapshotExporter
from tests.simulation.world import World


class StepCounts(NamedTuple):
    """Counts of one rank's steps by where they are. `dropped`: in reports that never arrived; `buffered`: in the ring,
    or in reports that are held for delivery and have not arrived.
    """

    made: int
    published: int
    overwritten: int
    dropped: int
    late: int
    buffered: int


def count_steps(world: World, rank: int) -> StepCounts:
    """Return where the steps of a rank are, by the counters of production code on both ends."""
    return _count_steps(world, rank, _count_late(world))


def _count_late(world: World) -> dict[int, int]:
    """Return how many records of each rank were late; building this for every rank takes most of a large check."""
    return {one.identity.rank: one.records_late for one in world.end.run.snapshot(world.now_ns).ranks}


def _count_steps(world: World, rank: int, late_of: Mapping[int, int]) -> StepCounts:
    peer = world.ranks[rank].identity.boot_id
    late = late_of.get(rank, 0)
    ring, losses = world.rings[rank], world.losses(rank)
    dropped, held = losses.steps_dropped_in_reports, 0
    if world.network is not None:
        end = world.network.rank_ends[rank]
        counts = world.end.admission.counts(peer)
        through = counts.last_sequence if counts is not None else 0
        first = end.buffer.first_sequence
        frames = end.buffer.frames_from(first, len(end.buffer))
        held = sum(frame.step_count for frame in frames if frame.sequence > through)
        # A frame that arrived and was dropped before its acknowledgement came is counted as dropped, and is not lost.
        dropped -= sum(end.step_counts[number] for number in end.dropped if number in world.end.admitted[peer])
    return StepCounts(
        made=ring.appended,
        published=world.end.steps_admitted.get(peer, 0) - late,
        overwritten=losses.steps_overwritten,
        dropped=dropped,
        late=late,
        buffered=held + len(ring),
    )


def check_loss_identity(world: World) -> None:
    """Check that steps made = published + overwritten + dropped + late + buffered, for every rank."""
    late_of = _count_late(world)
    for rank in range(len(world.ranks)):
        counts = _count_steps(world, rank, late_of)
        assert counts.made == sum(counts[1:]), f"rank {rank}: {counts}"


class CounterWatch:
    """Check, repeated over a run, that no counter on the page of metrics decreases."""

    def __init__(self) -> None:
        self._last: dict[tuple[object, ...], float] = {}

    @property
    def series(self) -> int:
        """Return the number of counter series so far."""
        return len(self._last)

    def compare(self, world: World) -> None:
        """Compare the page with the previous one."""
        snapshot = Snapshot(wall_s=ns_to_s(world.now_ns), version="", runs=(world.snapshot(),))
        for family in SnapshotExporter(lambda: snapshot).collect():
            if family.type != "counter":
                continue
            for sample in family.samples:
                key = (sample.name, *sorted(sample.labels.items()))
                before = self._last.get(key, 0.0)
                assert sample.value >= before, f"{sample.name} {sample.labels} fell from {before} to {sample.value}"
                self._last[key] = sample.value


def measure_state(world: World) -> int:
    """Return the size of the run's state at the collector, in pickled bytes."""
    file = io.BytesIO()
    for state in (world.end.run, world.end.admission):
        _StatePickler(file).dump(state)
    return file.tell()


class _StatePickler(pickle.Pickler):
    """Decoders cannot be pickled. They are no state: there is one of each kind, whatever happens."""

    def reducer_override(self, value: object) -> Any:
        """Return how to pickle one value; NotImplemented: as usual."""
        return (type(None), ()) if isinstance(value, msgspec.msgpack.Decoder) else NotImplemented
