"""One attempt of a run: its ranks, its table of steps, and the reports that wait to be placed in it.

numpy takes as long for the one row of a report as for a hundred rows: placed alone, a report costs 100 us, in a batch
of a hundred 2 us. So the fields of a report are stored at once, and its tables wait in `ReportBatcher` until `settle`,
which is called after each batch of events, and before anything reads the table of steps.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rankscope.collector.detect.hang_state import RankHangState, date_failure
from rankscope.collector.detect.view import Samples
from rankscope.collector.pacing import no_yield
from rankscope.collector.runs.last_report import ReportFields
from rankscope.collector.runs.liveness import BROUGHT_DOWN, ENDED_WELL, Liveness
from rankscope.collector.runs.rank import RankState
from rankscope.collector.steps.collective_totals import CollectiveCounts
from rankscope.collector.steps.peer_groups import PeerGroups, find_peer_groups
from rankscope.collector.steps.rank_medians import NOT_COMPARED, Comparison
from rankscope.collector.steps.step_series import Floats
from rankscope.collector.steps.step_table import StepTable
from rankscope.collector.steps.workload_signature import Signature
from rankscope.measure.identity import RankIdentity
from rankscope.measure.records import GroupInfo
from rankscope.measure.table import stack_tables


class Waiting(NamedTuple):
    """A report that was admitted, and its rank."""

    rank: RankState
    report: ReportFields


class ReportBatcher:
    """The reports of one attempt on their way into its window."""

    def __init__(self, window: StepTable) -> None:
        self._window = window
        self._waiting: list[Waiting] = []

    def add(self, rank: RankState, report: ReportFields) -> None:
        """One more; reports of one rank come in their order."""
        self._waiting.append(Waiting(rank, report))

    def settle(self, rest: Callable[[], None] = no_yield) -> None:
        """Place everything that waits. `rest` is called between the parts of it."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        self._place_steps(waiting)
        rest()
        told = [one for one in waiting if one.report.collectives.table.row_count]
        for places, block in stack_tables([one.report.collectives.table for one in told]):
            chosen = [told[place] for place in places]
            numbers = [one.rank.identity.rank for one in chosen]
            self._window.add_collectives_of(numbers, [one.report.collectives for one in chosen], block)
            rest()
        self._cover(waiting)

    def _place_steps(self, waiting: Sequence[Waiting]) -> None:
        numbers = np.array([one.rank.identity.rank for one in waiting], dtype=np.int64)
        late, last = np.zeros(len(waiting), dtype=np.int64), np.full(len(waiting), -1)
        for places, block in stack_tables([one.report.steps for one in waiting]):
            late[places] = self._window.add_steps_of(numbers[places], block)
            last[places] = block.column("step").max(axis=1, initial=-1)
        for (rank, report), late_rows, step in zip(waiting, late.tolist(), last.tolist(), strict=True):
            rank.steps.take(report, late_rows)
            if report.steps.row_count:
                rank.last_step = step

    def _cover(self, waiting: Sequence[Waiting]) -> None:
        """Ranks mostly cover the same steps, those of one window of the profiler."""
        ranks: dict[tuple[int, int], list[int]] = {}
        for one in waiting:
            for covered in one.report.covered_steps:
                ranks.setdefault(covered, []).append(one.rank.identity.rank)
        for (first_step, last_step), numbers in ranks.items():
            self._window.cover_of(np.unique(numbers), first_step, last_step)


def find_end_of_steps(report: ReportFields, now_collector_ns: int) -> int:
    """When the last step of a report that comes now ended: so long ago as it had when the report was made."""
    if not report.steps.row_count:
        return now_collector_ns
    ends_host_ns = report.steps.column("start_host_ns") + report.steps.column("duration_ns")
    return now_collector_ns - max(0, report.host_ns - int(ends_host_ns.max()))


MEMBERSHIPS_PER_RANK_MAX = 64
"""Groups that a rank is in, on the average of all ranks. Five kinds of parallelism and what is combined of them make
some twenty."""
MEMBERSHIPS_MIN = 4096
"""There is room for so many even in the smallest run."""


class GroupMembers:
    """Who is in each group: `by_label`, sorted. `left_out` counts what there was no room for."""

    def __init__(self, world_size: int) -> None:
        self.by_label: dict[str, tuple[int, ...]] = {}
        self.left_out = 0
        self._room = max(MEMBERSHIPS_MIN, MEMBERSHIPS_PER_RANK_MAX * world_size)

    def learn(self, group: GroupInfo) -> tuple[int, ...] | None:
        """The members of a group that a rank tells of; None when there is no room for it: then nobody knows it."""
        known = self.by_label.get(group.label)
        if known is not None and len(known) == len(group.ranks):
            return known
        needed = len(group.ranks) + 1 - (0 if known is None else len(known) + 1)
        if needed > self._room:
            self.left_out += 1
            return None
        self._room -= needed
        members = self.by_label[group.label] = tuple(sorted(group.ranks))
        return members


@dataclass(slots=True)
class Attempt:
    """What is forgotten when an elastic restart begins a new attempt."""

    restart_count: int
    world_size: int
    window: StepTable
    intake: ReportBatcher = field(init=False)
    groups: GroupMembers = field(init=False)
    ranks: dict[int, RankState] = field(default_factory=dict)
    by_machine: dict[str, list[RankState]] = field(default_factory=dict)
    counts_by_node: dict[str, int] = field(default_factory=dict)
    """The restart count of each node's lives: torchrun counts only failures of its own node."""
    former_nodes: frozenset[str] = frozenset()
    """The nodes of the attempt before; empty where that is not known."""
    is_looked_at: bool = False
    """What a look reads, 0.1 GB of 16,384 ranks, is let go of when it is over."""
    slowdowns: Floats | None = None
    comparison: Comparison = NOT_COMPARED
    collectives: CollectiveCounts = field(default_factory=CollectiveCounts)
    peer_groups: tuple[tuple[int, ...], Mapping[int, Signature], PeerGroups] | None = None

    step_ns: int = 0
    """The time in steps of the rank that has reported the most of it."""
    recorded_step: int = -1
    """The last step that has been given to the history."""

    def put(self, rank: RankState) -> None:
        """A life takes its rank's place."""
        self.ranks[rank.identity.rank] = rank
        self.counts_by_node[rank.identity.node] = rank.identity.restart_count
        self.restart_count = max(self.restart_count, rank.identity.restart_count)
        self.by_machine.setdefault(rank.identity.machine_id, []).append(rank)

    def is_followed_by(self, identity: RankIdentity) -> bool:
        """Return whether a life whose rank has none in this attempt begins another one.

        Only counts of one node can be compared. A node that was in the attempt before joins this one, whatever it has
        counted; one that is new to the run begins another attempt if it has counted more restarts than this one.
        """
        if identity.world_size != self.world_size:
            return True
        known = self.counts_by_node.get(identity.node)
        if known is not None:
            return identity.restart_count != known
        return identity.node not in self.former_nodes and identity.restart_count > self.restart_count

    def find_peer_groups(self, ranks: tuple[int, ...]) -> PeerGroups:
        """Who is compared with whom: mostly the same as at the last look."""
        signatures = self.window.signatures
        if self.peer_groups is None or self.peer_groups[1] is not signatures or self.peer_groups[0] != ranks:
            self.peer_groups = (ranks, signatures, find_peer_groups(ranks, signatures))
        return self.peer_groups[2]

    def __post_init__(self) -> None:
        self.intake = ReportBatcher(self.window)
        self.groups = GroupMembers(self.world_size)


def build_hang_states(ranks: Mapping[int, RankState], now_collector_ns: int) -> dict[int, RankHangState]:
    """Each rank's standing."""
    return {number: _build_standing(rank, now_collector_ns) for number, rank in ranks.items()}


def _build_standing(rank: RankState, now_collector_ns: int) -> RankHangState:
    liveness, ending = rank.liveness, rank.liveness.ending
    since_host_ns = liveness.stalled_since_host_ns
    return RankHangState(
        ended=None if ending is None else ending.reason,
        ended_detail="" if ending is None else ending.detail,
        ended_collector_ns=None if ending is None else liveness.ended_collector_ns,
        failed_collector_ns=_date_failure(liveness),
        is_stalled=liveness.is_stalled,
        stalled_ns=liveness.stalled_ns,
        since_collector_ns=None
        if since_host_ns is None
        else rank.clock.to_collector_time(since_host_ns, now_collector_ns),
        last_step=rank.last_step,
        progress=liveness.progress,
        stall=liveness.stall,
        unresponsive=liveness.unresponsive,
    )


def _date_failure(liveness: Liveness) -> int | None:
    """When a rank began to end badly by itself; None where it did not."""
    ending, ended_collector_ns = liveness.ending, liveness.ended_collector_ns
    if ending is None or ended_collector_ns is None or ending.reason in ENDED_WELL | BROUGHT_DOWN:
        return None
    is_only_seen = liveness.seen is not None and ending.detail == liveness.seen.detail
    return date_failure(ending.reason, ended_collector_ns, is_only_seen=is_only_seen)


class _OfRanks(Mapping[int, Any]):
    """One thing of every rank, looked up when it is asked for: of 16,384 ranks few are."""

    def __init__(self, ranks: Mapping[int, RankState], read: Callable[[RankState], Any]) -> None:
        self._ranks = ranks
        self._read = read

    def __getitem__(self, rank: int) -> Any:
        return self._read(self._ranks[rank])

    def __iter__(self) -> Iterator[int]:
        return iter(self._ranks)

    def __len__(self) -> int:
        return len(self._ranks)


def read_samples(ranks: Mapping[int, RankState]) -> Samples:
    """The samples of these ranks as they are when they are asked for."""
    return Samples(
        breakdowns=_OfRanks(ranks, lambda rank: rank.breakdowns),
        gc_pauses=_OfRanks(ranks, lambda rank: rank.gc_pauses),
        devices=_OfRanks(ranks, lambda rank: rank.latest.devices),
        allocators=_OfRanks(ranks, lambda rank: rank.allocators),
        hosts=_OfRanks(ranks, lambda rank: rank.latest.host),
    )
