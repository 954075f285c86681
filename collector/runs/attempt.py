"""Keep one attempt of a run: its ranks, its table of steps, and the reports still to be added to it. Pure."""

from dataclasses import dataclass, field, replace
from itertools import islice

import msgspec

from rankscope.collector.config import CollectorConfig
from rankscope.collector.invariants import require
from rankscope.collector.runs.checkpoints import RunCheckpoints
from rankscope.collector.runs.compilations import NOTHING_COMPILED, RunCompilations
from rankscope.collector.runs.peer_search import PeerSearch
from rankscope.collector.runs.rank import RankState
from rankscope.collector.runs.report_batcher import ReportBatcher
from rankscope.collector.runs.report_fields import ReportFields
from rankscope.collector.runs.sample_rings import RankSamples
from rankscope.collector.steps.collective_totals import CollectiveCounts
from rankscope.collector.steps.enqueue_times import EnqueueTimes
from rankscope.collector.steps.expert_loads import ExpertLoads
from rankscope.collector.steps.layer_times import RankLayers, RunLayers, unpack_layers
from rankscope.collector.steps.long_steps import SIDE_STEPS
from rankscope.collector.steps.peer_groups import PeerGroups
from rankscope.collector.steps.pipeline_stages import PipelineTimes
from rankscope.collector.steps.quiet_places import QuietPlaces
from rankscope.collector.steps.rank_medians import NO_MEDIANS, RankMedians
from rankscope.collector.steps.step_series import Floats, StepSeries
from rankscope.collector.steps.step_table import StepTable, find_ring_steps
from rankscope.collector.steps.token_classes import find_token_classes
from rankscope.measure.identity import RankIdentity
from rankscope.measure.records import GroupInfo, PipelineSchedule


def find_end_of_steps(report: ReportFields, now_collector_ns: int) -> int:
    """Return when the last step of a report that arrives now ended, as if the report had been made just now."""
    if not report.steps.row_count:
        return now_collector_ns
    ends_host_ns = report.steps.column("start_host_ns") + report.steps.column("duration_ns")
    return now_collector_ns - max(0, report.host_ns - int(ends_host_ns.max()))


MEMBERSHIPS_PER_RANK_MAX = 64
"""Groups that a rank is in, on the average of all ranks. Five kinds of parallelism and their combinations make some
twenty."""
MEMBERSHIPS_MIN = 4096
"""The limit of memberships is at least this, also in the smallest run."""


GPUS_READ_MAX = 8
"""Ranks whose GPUs are looked for: samples must be decoded, and no run has GPUs on some ranks only."""


class GroupMembers:
    """Members of each process group of an attempt. Written by Attempt only."""

    def __init__(self, world_size: int) -> None:
        #: `{label: members}`, the members ascend.
        self.by_label: dict[str, tuple[int, ...]] = {}
        #: Groups beyond the limit. Only grows.
        self.dropped = 0
        #: Memberships that there is still room for; not negative.
        self._room = max(MEMBERSHIPS_MIN, MEMBERSHIPS_PER_RANK_MAX * world_size)

    def validate(self) -> None:
        """Raise InvariantError where an invariant does not hold; tests call it after events."""
        require(self._room >= 0, "more memberships than there is room for")
        ordered = all(members == tuple(sorted(members)) for members in self.by_label.values())
        require(ordered, "members of a group are not in order")

    def record(self, group: GroupInfo) -> tuple[int, ...] | None:
        """Record a group that a rank reports and return its members; None beyond the limit."""
        known = self.by_label.get(group.label)
        if known is not None and len(known) == len(group.ranks):
            return known
        needed = len(group.ranks) + 1 - (0 if known is None else len(known) + 1)
        if needed > self._room:
            self.dropped += 1
            return None
        self._room -= needed
        members = self.by_label[group.label] = tuple(sorted(group.ranks))
        return members


def build_step_table(config: CollectorConfig, world_size: int) -> StepTable:
    """Return an empty table for a run of so many ranks."""
    measured_min, ring = config.count_measured_min(world_size), find_ring_steps(config.steps_kept, world_size)
    return StepTable(config.steps_kept, world_size, measured_min, ring_steps=ring)


@dataclass(slots=True)
class Attempt:
    """State that an elastic restart discards, and the checkpoints of the run, which the next attempt continues."""

    #: The most restarts that the launcher of any node has counted.
    restart_count: int
    #: Ranks of the attempt, those that have not joined included. Never changes.
    world_size: int
    #: Ranks x steps of the last steps, and all arithmetic on them.
    window: StepTable
    #: Reports whose steps are not in `window` yet. It has the same `ranks`.
    batcher: ReportBatcher = field(init=False)
    #: When the hosts of the ranks have enqueued collectives that torch does not time. It has the same `group_sizes`.
    enqueues: EnqueueTimes = field(init=False)
    #: Members of each process group.
    groups: GroupMembers = field(init=False)
    #: `{rank: state}` of the ranks that have joined; numbers are below `world_size`. Events replace the state of a
    #: rank, never its process.
    ranks: dict[int, RankState] = field(default_factory=dict)
    #: `{rank: samples}` of the same ranks.
    samples: dict[int, RankSamples] = field(default_factory=dict)
    #: `{machine id: ranks}` of the same ranks, in the order in which they joined.
    by_machine: dict[str, list[int]] = field(default_factory=dict)
    #: `{node: restarts}` of the nodes of `ranks`: torchrun counts only failures of its own node.
    counts_by_node: dict[str, int] = field(default_factory=dict)
    #: `{rank: what it does to itself on purpose}` of the ranks with an injected fault.
    faults: dict[int, str] = field(default_factory=dict)
    #: Nodes of the attempt before; empty where that is not known. Never changes.
    former_nodes: frozenset[str] = frozenset()
    #: Slowdown of each rank in the last detection pass, shape (ranks,), NaN where not known; None before any pass.
    slowdowns: Floats | None = None
    #: Medians of each rank as of the last detection pass.
    medians: RankMedians = NO_MEDIANS
    #: `{label: number of members}` of `groups`.
    group_sizes: dict[str, int] = field(default_factory=dict)
    #: Sums of the collectives of each rank.
    collectives: CollectiveCounts = field(default_factory=CollectiveCounts)
    #: The peers of the last call of `find_peer_groups`.
    peer_search: PeerSearch = field(default_factory=PeerSearch)
    #: Time in steps of the rank that has reported the most, in ns. Only grows.
    step_ns: int = 0
    #: The last step that was written to the history; -1 before any. Only grows.
    recorded_step: int = -1
    #: The checkpoints of the run so far.
    checkpoints: RunCheckpoints = field(default_factory=RunCheckpoints)
    #: What was compiled in the attempt.
    compilations: RunCompilations = NOTHING_COMPILED
    #: `{rank: what its pipeline is announced to be}` of the ranks that announce one.
    pipelines: dict[int, PipelineSchedule] = field(default_factory=dict)
    #: The stages of the pipeline as of the last detection pass; None where none is announced.
    pipeline: PipelineTimes | None = None
    #: `{rank: the last times of its model's repeated blocks}` of the ranks that have reported any.
    layers_by_rank: dict[int, RankLayers] = field(default_factory=dict)
    #: The repeated blocks as of the last detection pass; None where there are none.
    layers: RunLayers | None = None
    #: Where ranks were in long steps.
    quiet: QuietPlaces = field(default_factory=QuietPlaces)
    #: Loads of the ranks that hold experts, as of the last detection pass; None without all-to-alls.
    experts: ExpertLoads | None = None

    def __post_init__(self) -> None:
        self.enqueues = EnqueueTimes(self.world_size, self.group_sizes)
        self.batcher = ReportBatcher(self.window, self.enqueues, self.ranks)
        self.groups = GroupMembers(self.world_size)

    @classmethod
    def begin(cls, identity: RankIdentity, config: CollectorConfig, former: "Attempt | None") -> "Attempt":
        """Return the attempt that a rank process begins after the `former` one."""
        window = build_step_table(config, identity.world_size)
        former_nodes = frozenset(() if former is None else former.counts_by_node)
        attempt = cls(identity.restart_count, identity.world_size, window, former_nodes=former_nodes)
        if former is not None:
            attempt.checkpoints = former.checkpoints
            attempt.checkpoints.begin_attempt()
        return attempt

    # -- its rank processes --------------------------------------------------------------------------------------------

    @property
    def has_live_ranks(self) -> bool:
        """Whether any rank still reports."""
        return any(rank.is_live for rank in self.ranks.values())

    @property
    def is_over(self) -> bool:
        """Whether every rank has joined and ended; one that is only silent has not."""
        has_all = len(self.ranks) >= self.world_size
        return has_all and not any(rank.ended in {None, "silent"} for rank in self.ranks.values())

    @property
    def stalled_ranks(self) -> list[RankState]:
        """The ranks that are stalled and have not ended, the silent ones included."""
        return [rank for rank in self.ranks.values() if rank.liveness.is_stalled and rank.ended in {None, "silent"}]

    def find_live(self, machine_id: str) -> list[RankIdentity]:
        """Return the processes on that machine that have not ended, to be checked there."""
        here = [self.ranks[number] for number in self.by_machine.get(machine_id, ())]
        return [rank.identity for rank in here if rank.ended in {None, "silent"}]

    def add(self, rank: RankState) -> None:
        """Add a rank process."""
        identity = rank.identity
        self.ranks[identity.rank], self.samples[identity.rank] = rank, RankSamples()
        self.counts_by_node[identity.node] = identity.restart_count
        self.restart_count = max(self.restart_count, identity.restart_count)
        self.by_machine.setdefault(identity.machine_id, []).append(identity.rank)
        self.faults.pop(identity.rank, None)
        self.pipelines.pop(identity.rank, None)
        self.layers_by_rank.pop(identity.rank, None)
        if rank.hello.fault:
            self.faults[identity.rank] = rank.hello.fault

    # -- reports -------------------------------------------------------------------------------------------------------

    def record_report(self, rank: int, report: ReportFields, now_collector_ns: int, now_wall_s: float) -> None:
        """Record a report of a rank; its steps and collectives are added to the table by `flush_reports`."""
        samples, report = self.samples[rank], self._without_impossible(rank, report)
        samples.record(report)
        state = self.ranks[rank]
        breakdown = samples.breakdowns.sum if report.breakdowns else state.breakdown
        if report.synchronizations:
            state = msgspec.structs.replace(state, synchronizations=samples.synchronizations.sum)
        self.ranks[rank] = state.record_report(report, breakdown, now_collector_ns, now_wall_s)
        for group in report.groups or ():
            self._record_group(group)
        self.checkpoints.record(rank, report, now_wall_s)
        if report.compilations is not None:
            self.compilations = self.compilations.add(rank, report.compilations)
        if report.pipeline is not None:
            self.pipelines[rank] = report.pipeline
        if report.layers is not None:
            self.layers_by_rank[rank] = unpack_layers(report.layers)
        self.quiet.add(rank, report.quiet)
        self.batcher.add(rank, report)

    def _without_impossible(self, rank: int, report: ReportFields) -> ReportFields:
        """Return a report without the breakdowns that cannot be, which are noted."""
        impossible = [window for window in report.breakdowns if not window.is_possible]
        if not impossible:
            return report
        self.window.impossible.note("window", f"rank {rank}: {impossible[0]}", len(impossible))
        possible = tuple(window for window in report.breakdowns if window.is_possible)
        return msgspec.structs.replace(report, breakdowns=possible)

    def _record_group(self, group: GroupInfo) -> None:
        """Record the members of a group; mostly another rank has reported it already."""
        known = self.groups.by_label.get(group.label)
        members = self.groups.record(group)
        if members is None or members is known:
            return
        self.group_sizes[group.label] = len(members)
        self.window.set_group_size(group.label, len(members), group.backend)
        for place, member in enumerate(members):
            self.window.set_place(member, group.label, place)

    def flush_reports(self, steps_max: int | None) -> None:
        """Add the pending reports to the table, and match the collectives of at most `steps_max` steps."""
        self.batcher.flush()
        for step in self.window.match_collectives(steps_max):
            self.collectives.add(step)

    # -- time ----------------------------------------------------------------------------------------------------------

    def excuse_absence(self, away_ns: int, now_collector_ns: int) -> None:
        """Shift the times at which live ranks were last seen by how long the collector itself was away: what they sent
        meanwhile still waits to be read.
        """
        for number, rank in self.ranks.items():
            if rank.is_live:
                seen_ns = min(now_collector_ns, rank.last_seen_collector_ns + away_ns)
                self.ranks[number] = msgspec.structs.replace(rank, last_seen_collector_ns=seen_ns)

    def mark_silent(self, now_collector_ns: int, silent_ns: int) -> list[RankState]:
        """Mark the live ranks that were not seen for `silent_ns` as silent, and return them."""
        seen_ns = now_collector_ns - silent_ns
        found = [rank for rank in self.ranks.values() if rank.last_seen_collector_ns < seen_ns and rank.is_live]
        for rank in found:
            self.ranks[rank.identity.rank] = msgspec.structs.replace(rank, liveness=rank.liveness.mark_silent())
        return found

    def choose_pings(self, now_collector_ns: int, pause_ns: int, pings_max: int) -> list[str]:
        """Return the boot ids of at most `pings_max` live ranks whose clocks are to be asked for now; each is chosen
        again after `pause_ns`.
        """
        due = (rank for rank in self.ranks.values() if now_collector_ns >= rank.next_ping_collector_ns and rank.is_live)
        chosen = list(islice(due, pings_max))
        for rank in chosen:
            after = msgspec.structs.replace(rank, next_ping_collector_ns=now_collector_ns + pause_ns)
            self.ranks[rank.identity.rank] = after
        return [rank.identity.boot_id for rank in chosen]

    # -- detection -----------------------------------------------------------------------------------------------------

    def read_series(self, ranks: tuple[int, ...], *, skip_steps: int, is_whole: bool = False) -> StepSeries:
        """Return the steps of these ranks without the first `skip_steps`, with the times of enqueuing where own times
        are not measured. `is_whole`: also those before the ones that are judged.
        """
        is_on_cpus = not self._has_gpus(ranks)
        series = self.window.series(ranks, skip_steps=skip_steps, is_on_cpus=is_on_cpus, is_whole=is_whole)
        return series if series.own_is_measured else replace(series, enqueues=self.enqueues.read())

    def read_unseen(self, series: StepSeries, after_step: int, *, skip_steps: int) -> StepSeries:
        """Return a series of `read_series` with all steps after that one, and some before it, as far as they are
        kept.
        """
        kept = series.steps[series.earlier_count :]
        if not self.window.keeps_more or not len(kept) or kept[0] <= after_step - SIDE_STEPS:
            return series
        return self.read_series(series.ranks, skip_steps=skip_steps, is_whole=True)

    def _has_gpus(self, ranks: tuple[int, ...]) -> bool:
        """Return whether any of the first ranks has a GPU, also one that NVML does not show."""
        return any(len(self.samples[rank].allocators) or self.ranks[rank].devices for rank in ranks[:GPUS_READ_MAX])

    def find_peer_groups(self, series: StepSeries) -> PeerGroups:
        """Return the peers of each rank of these steps, usually the same object as in the last detection pass."""
        classes = find_token_classes(series.tokens, series.ranks)
        return self.peer_search.find(series.ranks, self.window.signatures, self.ranks, classes)

    def validate(self) -> None:
        """Raise InvariantError where an invariant does not hold; tests call it after events."""
        require(self.world_size > 0, "an attempt without ranks")
        require(all(0 <= number < self.world_size for number in self.ranks), "a rank is outside the world")
        by_machine = {rank: machine for machine, ranks in self.by_machine.items() for rank in ranks}
        machines = {number: rank.identity.machine_id for number, rank in self.ranks.items()}
        require(by_machine == machines, "ranks by machine differ")
        sizes = {label: len(members) for label, members in self.groups.by_label.items()}
        require(self.group_sizes == sizes, "sizes and members of groups differ")
        require(self.samples.keys() == self.ranks.keys(), "samples are of other ranks")
        require(self.pipelines.keys() <= self.ranks.keys(), "pipelines are of other ranks")
        nodes = {rank.identity.node for rank in self.ranks.values()}
        require(nodes == self.counts_by_node.keys(), "nodes and ranks differ")
        require(self.restart_count >= max(self.counts_by_node.values(), default=0), "a node has restarted more often")
        require(self.step_ns >= 0 and self.recorded_step >= -1, "negative steps")
        for number, rank in self.ranks.items():
            require(rank.identity.rank == number, "a rank is in another's place")
            rank.validate()
            self.samples[number].validate()
            samples = self.samples[number]
            require(rank.breakdown == samples.breakdowns.sum, "the sum of breakdowns is another one")
            waits = samples.synchronizations.sum
            require(rank.synchronizations == waits, "the sum of blocking calls is another one")
            require((rank.breakdown is None) == (rank.window_times is None), "windows without times, or times without")
        self.quiet.validate()
        self.groups.validate()
        self.checkpoints.validate()
        self.compilations.validate()
        self.batcher.validate()
        self.window.validate()
        self.collectives.validate()
