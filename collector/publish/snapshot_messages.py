"""Encode snapshots for the publisher, and decode them there.

The states of ranks are msgpack, in blocks that follow the message: 16,384 of them are 15 MiB and take 16 ms, with
pickle ten times as long. All else is pickled by the connection (multiprocessing.connection). Large parts of a run that
change with a detection pass only are left out of a message when they are the same objects as in the message before.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from rankscope.collector.captures.capture import Capture, CaptureRefusal, CaptureRequest
from rankscope.collector.incidents.incident import Incident
from rankscope.collector.incidents.nodes import NodeList, list_held_up
from rankscope.collector.publish.api.step_breakdown import TimeSlice
from rankscope.collector.runs.heat_map import HeatMapSteps
from rankscope.collector.runs.lazy_snapshot import LazyRunSnapshot
from rankscope.collector.runs.live_settings import RunSettings, SettingsRefusal, WantedChange
from rankscope.collector.runs.rank import RankState
from rankscope.collector.runs.snapshot import ChannelCounts, CollectorCounts, RunSnapshot, Snapshot
from rankscope.collector.steps.collective_totals import CollectiveSnapshot
from rankscope.collector.steps.rank_medians import RankMedians
from rankscope.measure.units import ns_to_s

BLOCK_RANKS: Final = 1024
"""Ranks encoded at a time, about 1 MiB: all of a large run in one piece would be held twice."""

TICK_AGE_S_MAX: Final = 10.0
"""A service whose last tick is older than this is not healthy."""

_RANKS: Final = msgspec.msgpack.Decoder(tuple[RankState, ...])


class Health(NamedTuple):
    """Health of the service for /healthz and /readyz: ns since its last tick, whether it is stopping, and what does not
    work (`degradation`; None: everything works).
    """

    tick_age_ns: int
    is_stopping: bool = False
    degradation: str | None = None

    def find_problem(self, age_ns: int = 0) -> str | None:
        """Return why a service is not healthy whose health was this `age_ns` ago, or None."""
        age_s = ns_to_s(self.tick_age_ns + age_ns)
        return f"the last tick was {age_s:.1f} s ago" if age_s > TICK_AGE_S_MAX else None


class RunParts(NamedTuple):
    """Parts of a run that seldom change. `heat_map` is None before the first detection pass."""

    medians: RankMedians
    collectives: CollectiveSnapshot
    heat_map: HeatMapSteps | None
    time_slices: tuple[TimeSlice, ...]


class RunMessage(NamedTuple):
    """One run: its snapshot without ranks, how many blocks of the states of its ranks follow, and the RunParts that
    have changed, by name.
    """

    head: RunSnapshot
    blocks: int
    now_collector_ns: int
    changed: Mapping[str, Any]


class SnapshotMessage(NamedTuple):
    """A snapshot of all runs."""

    wall_s: float
    version: str
    runs: tuple[RunMessage, ...]
    counts: CollectorCounts


class Update(NamedTuple):
    """A message to the publisher. A field that is None has not changed since the previous message. The blocks of the
    snapshot's runs follow, in the order of the runs.
    """

    health: Health
    incidents: tuple[Incident, ...] | None = None
    snapshot: SnapshotMessage | None = None
    captures: tuple[Capture, ...] | None = None


class DumpWanted(msgspec.Struct, frozen=True, tag=True):
    """A message of the publisher: it wants the internal state of a run, by its id or name."""

    number: int
    run: str


class DumpAnswer(NamedTuple):
    """The answer to a DumpWanted: the internal state as JSON, None where the run is not known."""

    number: int
    body: bytes | None


class CaptureWanted(msgspec.Struct, frozen=True, tag=True):
    """A message of the publisher: a client orders a capture."""

    number: int
    request: CaptureRequest


class CaptureAnswer(NamedTuple):
    """The answer to a CaptureWanted: the capture as it begins, or why none is taken."""

    number: int
    answer: Capture | CaptureRefusal


class SettingsWanted(msgspec.Struct, frozen=True, tag=True):
    """A message of the publisher: a client changes settings of a run."""

    number: int
    wanted: WantedChange


class SettingsAnswer(NamedTuple):
    """The answer to a SettingsWanted: the settings as they are then, or why none is changed."""

    number: int
    answer: RunSettings | SettingsRefusal


class SnapshotEncoder:
    """Encodes snapshots for one publisher process, which gets all of them."""

    def __init__(self) -> None:
        self._sent: dict[str, RunParts] = {}

    def encode(self, snapshot: Snapshot, find_time_slices: Callable[[str], tuple[TimeSlice, ...]]) -> SnapshotMessage:
        """Return the message of a snapshot whose runs are not built; `find_time_slices` is called with run ids.
        `encode_blocks` has what follows it.
        """
        sent, messages = {}, []
        for run in snapshot.sources:
            if not isinstance(run, LazyRunSnapshot):
                raise TypeError(f"run {run.run_id!r} is built already")
            heat_map = snapshot.steps.get(run.run_id)
            parts = sent[run.run_id] = RunParts(run.medians, run.collectives, heat_map, find_time_slices(run.run_id))
            before = self._sent.get(run.run_id)
            changed = {
                name: part
                for name, part in parts._asdict().items()
                if before is None or part is not getattr(before, name)
            }
            blocks = -(-len(run.ranks) // BLOCK_RANKS)
            messages.append(RunMessage(run.head, blocks, run.now_collector_ns, changed))
        self._sent = sent
        return SnapshotMessage(snapshot.wall_s, snapshot.version, tuple(messages), snapshot.counts)


def encode_blocks(snapshot: Snapshot) -> Iterator[bytes]:
    """Yield the blocks that follow the message of a snapshot."""
    for run in snapshot.sources:
        if isinstance(run, LazyRunSnapshot):
            for first in range(0, len(run.ranks), BLOCK_RANKS):
                yield msgspec.msgpack.encode(run.ranks[first : first + BLOCK_RANKS])


class SnapshotDecoder:
    """Decodes all messages of one SnapshotEncoder, in order."""

    def __init__(self) -> None:
        self._parts: dict[str, RunParts] = {}

    def decode(
        self,
        message: SnapshotMessage,
        read_block: Callable[[], bytes],
        http_refused: Mapping[str, int],
        nodes: NodeList | None = None,
        metric_pushes: ChannelCounts | None = None,
    ) -> Snapshot:
        """Return the snapshot, with the publisher's own counts of refused requests and of pushes, and the nodes as it
        has read them; `read_block` returns the next of the blocks that follow the message.
        """
        parts = {run.head.run_id: self._update(run) for run in message.runs}
        self._parts = parts
        return Snapshot(
            wall_s=message.wall_s,
            version=message.version,
            runs=[
                LazyRunSnapshot(
                    run.head,
                    run.now_collector_ns,
                    ranks=tuple(rank for _ in range(run.blocks) for rank in _RANKS.decode(read_block())),
                    medians=parts[run.head.run_id].medians,
                    collectives=parts[run.head.run_id].collectives,
                )
                for run in message.runs
            ],
            counts=_add_own(message.counts, http_refused, nodes, metric_pushes),
            steps={run_id: found.heat_map for run_id, found in parts.items() if found.heat_map is not None},
        )

    def find_time_slices(self, run_id: str) -> tuple[TimeSlice, ...]:
        """Return where the time of a run went, as of the last message; empty for an unknown run."""
        parts = self._parts.get(run_id)
        return () if parts is None else parts.time_slices

    def _update(self, run: RunMessage) -> RunParts:
        before = self._parts.get(run.head.run_id)
        return RunParts(**run.changed) if before is None else before._replace(**run.changed)


def _add_own(
    counts: CollectorCounts,
    http_refused: Mapping[str, int],
    nodes: NodeList | None,
    metric_pushes: ChannelCounts | None,
) -> CollectorCounts:
    """Return the counts of the service with those of the publisher."""
    return msgspec.structs.replace(
        counts,
        http_refused=http_refused,
        metric_pushes=metric_pushes,
        nodes_held_up=() if nodes is None else list_held_up(nodes),
        nodes_held_up_count=None if nodes is None else sum(one.runs_held_up > 0 for one in nodes.nodes),
    )
