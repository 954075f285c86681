"""Capture the inputs of a run snapshot cheaply, and build it on demand. Pure.

A snapshot of 16,384 ranks takes 0.2 s to build, and few are read. So only references are captured each tick, 2 us a
rank, and the thread that reads the snapshot builds it. What is referred to is immutable, or copied.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from rankscope.collector.runs.clock_alignment import PackedSamples, find_alignment, unpack_samples
from rankscope.collector.runs.last_report import LastReport
from rankscope.collector.runs.liveness import Ending
from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot
from rankscope.collector.runs.step_accounting import StepCountInputs
from rankscope.collector.steps.collective_totals import CollectiveSnapshot, CollectiveTotals
from rankscope.collector.steps.rank_medians import RankMedians
from rankscope.measure.messages import Hello, RankEnded, RankUnresponsive
from rankscope.measure.records import Totals, WindowBreakdown
from rankscope.measure.stalls import GroupStatus, Stall


class LazyRankSnapshot(msgspec.Struct, frozen=True, gc=False):
    """Inputs of the snapshot of one rank; the fields are those of RankSnapshot, or what these are computed from."""

    hello: Hello
    ending: Ending | None
    last_report_wall_s: float | None
    last_step: int | None
    admitted: int
    duplicates: int
    first_sequence: int
    last_sequence: int
    steps: StepCountInputs
    breakdown: WindowBreakdown | None
    latest: LastReport
    clock: PackedSamples
    stalled: bool | None
    stall: Stall | None
    unresponsive: RankUnresponsive | None
    progress: tuple[GroupStatus, ...]
    end: RankEnded | None
    ended_collector_ns: int | None
    awaited: bool

    def build(
        self, now_collector_ns: int, medians: RankMedians, collectives: tuple[CollectiveTotals, ...]
    ) -> RankSnapshot:
        """Return the snapshot of the rank as it was then."""
        ending, latest, steps = self.ending, self.latest, self.steps.build()
        counted, alignment = latest.counted, find_alignment(unpack_samples(self.clock), now_collector_ns)
        return RankSnapshot(
            identity=self.hello.identity,
            up=ending is None,
            ended=None if ending is None else ending.reason,
            ended_detail="" if ending is None else ending.detail,
            exit_code=None if ending is None else ending.exit_code,
            torch_version=self.hello.torch_version,
            agent_version=self.hello.agent_version,
            last_report_wall_s=self.last_report_wall_s,
            last_step=self.last_step,
            reports_admitted=self.admitted,
            reports_duplicate=self.duplicates,
            report_gaps=self.last_sequence - self.first_sequence + 1 - self.admitted,
            first_sequence=self.first_sequence,
            last_sequence=self.last_sequence,
            records_late=steps.late,
            steps=steps,
            breakdown=self.breakdown,
            totals=counted.totals,
            losses=counted.losses,
            collectives=collectives,
            host=latest.host,
            devices=latest.devices,
            allocator=latest.allocator,
            overhead_ratio=counted.overhead_ratio,
            cost=counted.cost,
            clock_error_ns=None if alignment is None else alignment.error_ns,
            stalled=self.stalled if ending is None else None,
            stall=self.stall,
            unresponsive=self.unresponsive,
            progress=self.progress,
            end=self.end,
            ended_collector_ns=None if ending is None else self.ended_collector_ns,
            awaited=self.awaited,
            **medians.of(self.hello.identity.rank),
        )

    def summarize(self, medians: RankMedians) -> RankSnapshot:
        """Return the snapshot with only SUMMARY_FIELDS."""
        ending = self.ending
        devices, totals = self.latest.devices_and_totals
        return RankSnapshot(
            identity=self.hello.identity,
            up=ending is None,
            ended=None if ending is None else ending.reason,
            torch_version=self.hello.torch_version,
            agent_version=self.hello.agent_version,
            reports_admitted=self.admitted,
            breakdown=self.breakdown,
            totals=totals,
            devices=devices,
            stalled=self.stalled if ending is None else None,
            awaited=self.awaited,
            **medians.summary_of(self.hello.identity.rank),
        )


@dataclass(frozen=True, slots=True)
class LazyRunSnapshot:
    """Inputs of the snapshot of one run. `head` is its snapshot without its ranks, `now_collector_ns` its time."""

    head: RunSnapshot
    ranks: Sequence[LazyRankSnapshot]
    medians: RankMedians
    collectives: CollectiveSnapshot
    now_collector_ns: int

    @property
    def run(self) -> str:
        """The name of the run."""
        return self.head.run

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self.head.run_id

    @property
    def size(self) -> int:
        """How many ranks it is to have, or more if it has more."""
        return max(self.head.world_size, len(self.ranks))

    def read_totals(self) -> dict[str, Totals]:
        """Return the totals of each rank process that has reported, by its boot id."""
        return {rank.hello.identity.boot_id: rank.latest.totals for rank in self.ranks if rank.admitted}

    def build(self) -> RunSnapshot:
        """Return the snapshot of the run as it was then."""
        ranks = tuple([self._build(rank) for rank in self.ranks])
        return msgspec.structs.replace(self.head, ranks=ranks)

    def summarize(self) -> RunSnapshot:
        """Return the same with summaries of its ranks."""
        ranks = tuple([rank.summarize(self.medians) for rank in self.ranks])
        return msgspec.structs.replace(self.head, ranks=ranks)

    def blocks(self, is_wanted: Callable[[int], bool], ranks_max: int) -> Iterator[tuple[RankSnapshot, ...]]:
        """Yield the snapshots of the wanted ranks, at most `ranks_max` at a time, built when asked for."""
        wanted = [rank for rank in self.ranks if is_wanted(rank.hello.identity.rank)]
        for first in range(0, len(wanted), ranks_max):
            yield tuple([self._build(rank) for rank in wanted[first : first + ranks_max]])

    def _build(self, rank: LazyRankSnapshot) -> RankSnapshot:
        return rank.build(self.now_collector_ns, self.medians, self.collectives.of(rank.hello.identity.rank))
