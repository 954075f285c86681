"""Define the immutable snapshot of all runs, which the exporter, the API and the reports read without a lock. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec

from rankscope.collector.detect.finding import Finding
from rankscope.collector.run_ids import choose_run_id, describe_unknown_run
from rankscope.collector.runs.checkpoints import NO_CHECKPOINTS, Checkpoints
from rankscope.collector.runs.compilations import NOTHING_COMPILED, RunCompilations
from rankscope.collector.runs.goodput import GoodputSnapshot
from rankscope.collector.runs.heat_map import HeatMapSteps
from rankscope.collector.runs.held_gpus import HeldGpus
from rankscope.collector.runs.live_settings import NOTHING_CHANGED, NOTHING_ORDERED, RanksTaken, RunSettings
from rankscope.collector.runs.nccl_bandwidths import NOT_READ, NcclBandwidths
from rankscope.collector.runs.ratio_basis import NO_WINDOW, RatioBasis
from rankscope.collector.runs.run_end import RunEnd
from rankscope.collector.runs.step_accounting import StepCounts
from rankscope.collector.steps.collective_totals import CollectiveTotals
from rankscope.collector.steps.expert_loads import ExpertLoads
from rankscope.collector.steps.layer_times import RunLayers
from rankscope.collector.steps.least_waiting import LeastWaiting
from rankscope.collector.steps.pipeline_stages import PipelineTimes
from rankscope.collector.steps.rank_medians import MedianSteps
from rankscope.collector.steps.step_histogram import StepDurations
from rankscope.measure.identity import RankIdentity
from rankscope.measure.model_flops import NO_FLOPS, StepFlops
from rankscope.measure.node_messages import RankEnded, RankUnresponsive
from rankscope.measure.records import (
    AgentCost,
    AllocatorSample,
    Compilations,
    DeviceSample,
    HostSample,
    Losses,
    NodeSample,
    SavedLine,
    Totals,
    WindowBreakdown,
    WindowSynchronizations,
)
from rankscope.measure.stalls import GroupStatus, Stall

T = TypeVar("T")


class RankSnapshot(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One rank's present process. Medians and ratios are over the last steps of the detection pass. `breakdown` is the
    sum of the last full windows, None where there is none or these are none of the present; `ratio_basis` says why.
    `wait_caused_ns_median`: the waiting of all ranks in a step that this one caused.

    `stalled`: by its own or its sidecar's report, None when unknown or ended. `stall` and `unresponsive` are what was
    recorded then, also before the end of a rank that has ended; `end` is what the sidecar saw of the end, None where
    only the rank itself reported it. `awaited`: the rank has not reported since the collector was restarted; the values
    are those known before, and its counters may be behind. `synchronizations` are the waits of its host for its GPU in
    its last full windows; None: no window of a GPU. `flops` are those of its last steps, beside the peak of its device.
    `nccl` has the bandwidths in the dumps of NCCL's Inspector.
    """

    identity: RankIdentity
    up: bool
    ended: str | None = None
    ended_detail: str = ""
    exit_code: int | None = None
    torch_version: str = ""
    agent_version: str = ""
    last_report_wall_s: float | None = None
    last_step: int | None = None
    reports_admitted: int = 0
    reports_duplicate: int = 0
    report_gaps: int = 0
    first_sequence: int | None = None
    last_sequence: int = 0
    records_late: int = 0
    step_ns_median: float | None = None
    phases_ns_median: Mapping[str, float] = {}
    own_ns_median: float | None = None
    slowdown_ratio: float | None = None
    breakdown: WindowBreakdown | None = None
    totals: Totals = Totals()
    losses: Losses = Losses()
    collectives: tuple[CollectiveTotals, ...] = ()
    host: HostSample | None = None
    devices: tuple[DeviceSample, ...] = ()
    overhead_ratio: float | None = None
    clock_error_ns: int | None = None
    cost: AgentCost = AgentCost()
    allocator: AllocatorSample | None = None
    wait_caused_ns_median: float | None = None
    stalled: bool | None = None
    stall: Stall | None = None
    unresponsive: RankUnresponsive | None = None
    progress: tuple[GroupStatus, ...] = ()
    end: RankEnded | None = None
    ended_collector_ns: int | None = None
    steps: StepCounts = StepCounts()
    awaited: bool = False
    ratio_basis: RatioBasis = NO_WINDOW
    synchronizations: WindowSynchronizations | None = None
    node: NodeSample | None = None
    flops: StepFlops = NO_FLOPS
    nccl: NcclBandwidths = NOT_READ
    compilations: Compilations | None = None
    saves: tuple[SavedLine, ...] | None = None


SUMMARY_FIELDS: Final = frozenset(
    {
        "identity", "up", "ended", "awaited", "stalled", "torch_version", "agent_version", "reports_admitted", "totals",
        "devices", "node", "breakdown", "ratio_basis", "cost", "step_ns_median", "own_ns_median", "slowdown_ratio",
        "wait_caused_ns_median", "flops",
    }
)  # fmt: skip
"""Fields of a rank that the measures of runs and nodes, and the history, read: a third of the time of all."""


class LostSeconds(msgspec.Struct, frozen=True, gc=False):
    """Cost so far of the findings with one cause and one leading rank, all ranks together; None: without a rank."""

    rank: int | None
    cause: str
    lost_rank_seconds: float


class RunSnapshot(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One run. `open_findings` hold now, the most severe first, `findings` are all of the run, open ones included;
    `abstained` says why detection gives no verdict, None when it does. `end` is how the run ended, None while it
    goes on. `run` is its name, which successive runs may share, `run_id` its own id (run_ids.py), the name where
    none is given. `ranks_without_peers`: so many do work that no other rank is known to do, and are judged by their
    own past only. `not_judged` says by kind of finding why detection gives no verdict about it now.
    `wait_untraced_ns`: the waiting in a step that no rank is charged, in operations with a root and point to point.
    `least_waiting`: the rank that nearly always waits least, where some ranks have no peers; None: there is none,
    or all have. `injected_faults` says what ranks do to themselves on purpose, by the agent's setting `fault`;
    empty: nothing. `checkpoints` are those that the ranks have marked. `medians_of` says which steps the medians of
    the ranks are of; None: of none yet. `compilations` is what torch.compile has done in this attempt.
    `step_durations`: how many steps of this attempt lasted how long, None in a snapshot made by hand. `settings` are
    those that were changed while it goes on, `settings_taken` what its ranks have taken of theirs. `pipeline` has the
    stages of a pipeline that the ranks announce; None where they announce none. `layers` are the repeated blocks of
    their models, `experts` the loads of the ranks in all-to-alls; None where none are known.
    """

    run: str
    world_size: int
    restart_count: int
    ranks: tuple[RankSnapshot, ...]
    run_id: str = ""
    open_findings: tuple[Finding, ...] = ()
    findings: tuple[Finding, ...] = ()
    lost: tuple[LostSeconds, ...] = ()
    abstained: str | None = None
    run_slowdown_ratio: float | None = None
    goodput: GoodputSnapshot = GoodputSnapshot()
    end: RunEnd | None = None
    ranks_without_peers: int = 0
    not_judged: Mapping[str, str] = {}
    least_waiting: LeastWaiting | None = None
    wait_untraced_ns: float | None = None
    injected_faults: str = ""
    checkpoints: Checkpoints = NO_CHECKPOINTS
    medians_of: MedianSteps | None = None
    compilations: RunCompilations = NOTHING_COMPILED
    step_durations: StepDurations | None = None
    settings: RunSettings = NOTHING_CHANGED
    settings_taken: RanksTaken = NOTHING_ORDERED
    pipeline: PipelineTimes | None = None
    layers: RunLayers | None = None
    experts: ExpertLoads | None = None

    def __post_init__(self) -> None:
        if not self.run_id:
            msgspec.structs.force_setattr(self, "run_id", self.run)

    @property
    def is_awaited(self) -> bool:
        """Whether it is known from the store only: no rank has reported since the collector was started."""
        return bool(self.ranks) and all(rank.awaited for rank in self.ranks)

    @property
    def size(self) -> int:
        """How many ranks it is to have, or more if it has more: a snapshot of some of its ranks counts the others
        too.
        """
        return max(self.world_size, len(self.ranks))

    def read_totals(self) -> dict[str, Totals]:
        """Return the totals of each rank process that has reported, by its boot id."""
        return {rank.identity.boot_id: rank.totals for rank in self.ranks if rank.reports_admitted}

    def summarize(self) -> "RunSnapshot":
        """Return self: a full snapshot is its own summary."""
        return self

    def blocks(self, is_wanted: Callable[[int], bool], ranks_max: int) -> Iterator[tuple[RankSnapshot, ...]]:
        """Yield the ranks whose number is wanted, at most `ranks_max` at a time."""
        wanted = [rank for rank in self.ranks if is_wanted(rank.identity.rank)]
        for first in range(0, len(wanted), ranks_max):
            yield tuple(wanted[first : first + ranks_max])


class HeldUpNode(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A node that has held up runs of the store: of `runs` it held up `runs_held_up`; `ratio_low` is the lower end of
    the 95 % interval of their ratio (`incidents/nodes.py`).
    """

    node: str
    runs: int
    runs_held_up: int
    ratio_low: float


class ChannelCounts(msgspec.Struct, frozen=True, gc=False):
    """Notifications of one channel, or pushes of metrics, since the collector started: tries by outcome, events that
    are due, and when the last one was delivered, in seconds since 1970 by the collector's clock; None: none was.
    """

    outcomes: Mapping[str, int]
    waiting: int = 0
    success_wall_s: float | None = None


class CollectorCounts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The collector's own counters since it started, and those that relays report. `connections` are those of now, and
    `read_pause_s` is the recent longest. `capture_pause_s` is for how long captures have stopped training, of each the
    longest pause of its ranks; `capture_bytes` are those of the files that ranks have delivered. The last three are
    about its store, None without one: whether it can be written to, its bytes, and the history rows dropped while it
    was not writable. `notifications` are by the name of the channel.
    """

    frames_received: int = 0
    connections: int = 0
    read_pause_s: float = 0.0
    frames_refused: Mapping[str, int] = {}
    peers_refused: Mapping[str, int] = {}
    answers_unsent: Mapping[str, int] = {}
    relays: int = 0
    relay_batches: int = 0
    relay_dropped: Mapping[str, int] = {}
    relay_refused: Mapping[str, int] = {}
    http_refused: Mapping[str, int] = {}
    runs_evicted: int = 0
    contained_errors: Mapping[str, int] = {}
    impossible: Mapping[str, int] = {}
    """Numbers that could not be, and so were made unknown, by kind."""
    absent_s: float = 0.0
    """For how long the collector did not run: it was stopped, or its machine was suspended."""
    stores_lost: Mapping[str, int] = {}
    """How often the store's file was removed, replaced, truncated or damaged while it was open, by reason."""
    captures: Mapping[str, int] = {}
    """Captures that have ended, `complete` or `failed`, and orders that were `refused`."""
    capture_pause_s: float = 0.0
    capture_bytes: int = 0
    store_writable: bool | None = None
    store_bytes: int | None = None
    history_dropped: int | None = None
    nodes_held_up: tuple[HeldUpNode, ...] = ()
    """The first of the nodes that have held up a run of the store; the publisher reads them."""
    nodes_held_up_count: int | None = None
    """How many have, also those that are not listed; None where they were not read yet, or there is no store."""
    notifications: Mapping[str, ChannelCounts] = {}
    metric_pushes: ChannelCounts | None = None
    """Pushes of metrics by OTLP, as the publisher counts them; None where there are none."""
    gpus: HeldGpus | None = None
    """Who holds the GPUs of the nodes with a relay; None where no relay tells of any."""


NOTHING_COUNTED: Final = CollectorCounts()


class LazyRun(Protocol):
    """A snapshot of a run that is built on demand."""

    @property
    def run(self) -> str:
        """The name of the run."""
        ...

    @property
    def run_id(self) -> str:
        """The id of the run."""
        ...

    @property
    def size(self) -> int:
        """As RunSnapshot.size."""
        ...

    def read_totals(self) -> dict[str, Totals]:
        """Return the totals as RunSnapshot.read_totals does, without building the snapshot."""
        ...

    def build(self) -> RunSnapshot:
        """Build it; the result is the same at any time."""
        ...

    def summarize(self) -> RunSnapshot:
        """Build it with ranks that have only SUMMARY_FIELDS."""
        ...

    def blocks(self, is_wanted: Callable[[int], bool], ranks_max: int) -> Iterator[tuple[RankSnapshot, ...]]:
        """Build the wanted ranks, at most `ranks_max` at a time, when they are asked for."""
        ...


class Snapshot:
    """State of all runs at one time. Never changed; any thread may read it. `steps`: the last steps of each run that
    has had a detection pass, by its id.

    Lazy runs are built when `runs` is asked for, by the thread that asks.
    """

    def __init__(
        self,
        *,
        wall_s: float,
        version: str,
        runs: Iterable[RunSnapshot | LazyRun] = (),
        counts: CollectorCounts = NOTHING_COUNTED,
        steps: Mapping[str, HeatMapSteps] | None = None,
    ) -> None:
        self.wall_s = wall_s
        self.version = version
        self.counts = counts
        self.steps: Mapping[str, HeatMapSteps] = steps or {}
        self._given: tuple[RunSnapshot | LazyRun, ...] = tuple(runs)
        self._runs: tuple[RunSnapshot, ...] | None = None
        self._latest: Snapshot | None = None
        self._computed: dict[tuple[str, Callable[[RunSnapshot], Any]], Any] = {}

    @property
    def runs(self) -> tuple[RunSnapshot, ...]:
        """Every run, in the order of their names, those of one name oldest first. Two threads that ask first at the
        same time both build them.
        """
        runs = self._runs
        if runs is None:
            runs = tuple(one if isinstance(one, RunSnapshot) else one.build() for one in self._given)
            self._runs = runs
        return runs

    def find_run(self, asked: str) -> RunSnapshot | None:
        """Return the run with this id, or the latest one of this name; None when there is none."""
        run_id = choose_run_id(asked, (one.run_id for one in self._given))
        return next((run for run in self.runs if run.run_id == run_id), None)

    def describe_unknown(self, asked: str) -> str:
        """Return the sentence about a run that `find_run` does not find."""
        return describe_unknown_run(asked, (one.run_id for one in self._given), "this collector")

    def compute_once(self, run: RunSnapshot, compute: Callable[[RunSnapshot], T]) -> T:
        """Return what `compute` returns of one of its runs, called once for all who ask, as a rule: two threads that
        ask first at the same time both call it.
        """
        key = run.run_id, compute
        if key not in self._computed:
            self._computed[key] = compute(run)
        found: T = self._computed[key]
        return found

    def keep_latest(self) -> "Snapshot":
        """Return the same snapshot with the latest run of each name only, always the same object: a time series is
        named after its run, and must not have two values.
        """
        if len({one.run for one in self._given}) == len(self._given):
            return self
        if self._latest is None:
            latest = {one.run: one for one in self._given}.values()
            self._latest = Snapshot(
                wall_s=self.wall_s, version=self.version, runs=latest, counts=self.counts, steps=self.steps
            )
        return self._latest

    def summarize(self) -> "Snapshot":
        """Return the same snapshot with ranks that have only SUMMARY_FIELDS; a run that is built already stays
        whole.
        """
        return Snapshot(
            wall_s=self.wall_s,
            version=self.version,
            runs=[one.summarize() for one in self._runs or self._given],
            counts=self.counts,
            steps=self.steps,
        )

    @property
    def sources(self) -> tuple[RunSnapshot | LazyRun, ...]:
        """The runs as they were given, in their order."""
        return self._given

    @property
    def names(self) -> list[str]:
        """The name of each run."""
        return [one.run for one in self._given]

    @property
    def sizes(self) -> dict[str, int]:
        """How many ranks each run has or is to have, by its id. Builds nothing; nor does `read_totals`."""
        return {one.run_id: one.size for one in self._given}

    def summarize_run(self, run_id: str) -> RunSnapshot:
        """Return one run as `summarize` does. Raises KeyError for an unknown run."""
        return self._find(run_id).summarize()

    def read_totals(self, run_id: str) -> dict[str, Totals]:
        """Return the totals of each rank process of a run that has reported, by its boot id. Raises KeyError for an
        unknown run.
        """
        return self._find(run_id).read_totals()

    def _find(self, run_id: str) -> RunSnapshot | LazyRun:
        for one in self._given:
            if one.run_id == run_id:
                return one
        raise KeyError(run_id)

    def blocks(
        self, choose: Callable[[str], Callable[[int], bool]], ranks_max: int
    ) -> Iterator[tuple[str, tuple[RankSnapshot, ...]]]:
        """Yield some ranks of every run, at most `ranks_max` at a time, with its name: `choose` returns for the name of
        a run a predicate of rank numbers. Ranks not built yet are built for their block only.
        """
        runs: Sequence[RunSnapshot | LazyRun] = self._runs or self._given
        for one in runs:
            for ranks in one.blocks(choose(one.run), ranks_max):
                yield one.run, ranks
                del ranks  # let go of before the next are made, which are then made in the same memory
