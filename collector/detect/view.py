"""Define the view of a run that detectors read, and the interface of a detector."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from rankscope.collector.detect.finding import STRAGGLER, Abstain, Finding
from rankscope.collector.detect.hang_state import RankHangState
from rankscope.collector.detect.machine_growth import Machines, NodeCounts, find_machines
from rankscope.collector.detect.statistics.excess import find_excess, find_excess_ns, find_usual
from rankscope.collector.steps.group_transfers import GroupTransfers
from rankscope.collector.steps.layer_times import RunLayers
from rankscope.collector.steps.long_steps import NO_LONG_STEPS, LongStepsSeen
from rankscope.collector.steps.peer_groups import PeerComparison, PeerGroups
from rankscope.collector.steps.run_start import EarlierRun, RunStart
from rankscope.collector.steps.step_levels import NO_LEVELS, Levels
from rankscope.collector.steps.step_series import Flags, Floats, Ints, StepSeries, in_blocks
from rankscope.measure.node_messages import InspectorRead, RasAnswered
from rankscope.measure.out_of_memory import OutOfMemory
from rankscope.measure.records import (
    AllocatorSample,
    CompiledFrame,
    DeviceSample,
    HostSample,
    SavedLine,
    WindowBreakdown,
    WindowSynchronizations,
)


class TimeCount(NamedTuple):
    """A time that a rank had counted up to after `steps` steps: pauses, CPU time, waits."""

    steps: int
    counted_ns: int


class AllocatorCounts(NamedTuple):
    """The counters of torch's allocator after `steps` steps of the rank."""

    steps: int
    sample: AllocatorSample


class MemoryLevel(NamedTuple):
    """The least memory that a process had in a block of time, which began after `steps` steps at `host_ns`."""

    steps: int
    host_ns: int
    held_bytes: int


class MemoryLevels(Protocol):
    """The levels of one process since its begin."""

    @property
    def rise_bytes(self) -> int:
        """By how much the last complete level is above that after the first third of them; 0 where there is none."""

    def read(self) -> Sequence[MemoryLevel]:
        """Return the complete levels, oldest first."""


class OutOfMemorySeen(NamedTuple):
    """An error of a rank's allocator, when its report came, and the last step of the rank by then; None before any."""

    notice: OutOfMemory
    seen_collector_ns: int
    after_step: int | None


class Samples(NamedTuple):
    """The samples of each rank, oldest first where there are several: breakdowns of full windows, pauses of Python's
    garbage collector, the last GPU sample, counters of torch's allocator, the last sample of the host, blocking calls
    in a GPU's full windows. A rank that is missing, or has none, was not measured. `absent_ratios` says why the
    breakdowns of a rank are none of the present, None where they are. `machines`: the samples of its machine, which one
    rank of a node has. `process_cpu`: CPU time of all threads of the process; `core_waits`: for how long its training
    thread was ready to run and had no CPU; `block_io`: for how long it waited for block I/O, empty where that is not
    counted; `host_clock`: the time on the host's clock when these were read.
    `memory_errors`: the first error of torch's allocator, and the last; `memory_levels`: the resident memory of the
    process, in blocks of time. `signs_by_step`: the signs of a fault that its GPU shows (`find_signs`), each with the
    step by which it did. `compiled`: what torch.compile compiled in it after the first steps, None where torch does not
    tell. `saves`: what it has saved so far, by line, None where that is not counted.
    `are_of_traces`: all is read from the files of a profiler, in which no CPU time is.
    """

    breakdowns: Mapping[int, Sequence[WindowBreakdown]]
    gc_pauses: Mapping[int, Sequence[TimeCount]]
    devices: Mapping[int, Sequence[DeviceSample]]
    allocators: Mapping[int, Sequence[AllocatorCounts]] = {}
    hosts: Mapping[int, HostSample | None] = {}
    absent_ratios: Mapping[int, str | None] = {}
    synchronizations: Mapping[int, Sequence[WindowSynchronizations]] = {}
    machines: Mapping[int, Sequence[NodeCounts]] = {}
    process_cpu: Mapping[int, Sequence[TimeCount]] = {}
    host_clock: Mapping[int, Sequence[TimeCount]] = {}
    core_waits: Mapping[int, Sequence[TimeCount]] = {}
    memory_errors: Mapping[int, Sequence[OutOfMemorySeen]] = {}
    memory_levels: Mapping[int, MemoryLevels] = {}
    signs_by_step: Mapping[int, Mapping[str, int]] = {}
    compiled: Mapping[int, Sequence[CompiledFrame] | None] = {}
    block_io: Mapping[int, Sequence[TimeCount]] = {}
    saves: Mapping[int, Sequence[SavedLine] | None] = {}
    are_of_traces: bool = False


@dataclass(frozen=True, kw_only=True)
class RunView:
    """A run at one time. `series` has the ranks that have reported, of `world_size`; `nodes` is each rank's machine;
    `groups` the members of each process group, `transfers` the times of their data movement, `hang_states` the state of
    each rank, empty while none is stalled. `known_usual` is the usual excess of ranks by open findings; `steps_min` as
    in Thresholds. `open_findings` are those that the run holds, by number; `attempt` counts its elastic restarts;
    `is_last`: the run is over, and this is its last detection pass. `levels`: how long the steps
    were since the begin of the attempt, in blocks; `own_levels`, of a run of two ranks only: the same of the own times
    of each, in the blocks in which both are known; `long_steps`: those much longer than the ones around them. `ras`:
    what NCCL's RAS service said in the present stall, None if it said nothing; its ranks have their number in the run
    as far as that is sure. `dumps`: what ranks had completed in it by the dumps of NCCL's Inspector, of those ranks
    whose dump says that.
    `injected_faults` says what ranks do to themselves on purpose, which each finding states too; empty: nothing.
    `thresholds` are those that were changed while the run goes on, by the names of their settings, `thresholds_said` is
    what findings that are judged by them say of it. `is_stricter`: they have become so since the pass before.
    `start` is how long the first steps took, None while that is not known; `earlier_runs` are runs of the same work
    in the store, the latest first, None while they are not known. `now_wall_s` is the time in seconds since 1970, None
    where it is not known. `layers` are the repeated blocks of the ranks' models, None where none are known.
    """

    now_collector_ns: int
    world_size: int
    series: StepSeries
    peer_groups: PeerGroups
    nodes: Mapping[int, str]
    samples: Samples
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    transfers: GroupTransfers = field(default_factory=GroupTransfers)
    hang_states: Mapping[int, RankHangState] = field(default_factory=dict)
    known_usual: Mapping[int, float] = field(default_factory=dict)
    steps_min: int = 12
    open_findings: Sequence[Finding] = ()
    ras: RasAnswered | None = None
    dumps: Mapping[int, InspectorRead] = field(default_factory=dict)
    attempt: int = 0
    is_last: bool = False
    levels: Levels = NO_LEVELS
    own_levels: tuple[Levels, ...] = ()
    long_steps: LongStepsSeen = NO_LONG_STEPS
    injected_faults: str = ""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    thresholds_said: str = ""
    is_stricter: bool = False
    start: RunStart | None = None
    earlier_runs: Sequence[EarlierRun] | None = None
    now_wall_s: float | None = None
    layers: RunLayers | None = None

    @property
    def transfers_ns(self) -> Mapping[str, Floats]:
        """Return by group the transfer time of its matched collectives in each step of the series, shape (n,) in ns."""
        return self.transfers.ns

    @property
    def transfer_bytes(self) -> Mapping[str, Floats]:
        """Return by group how many bytes its matched collectives moved in each step, shape (n,)."""
        return self.transfers.size_bytes

    @cached_property
    def machines(self) -> Machines:
        """Return the machines of the ranks with their samples."""
        return find_machines(self.nodes, self.samples.machines)

    @cached_property
    def compared(self) -> PeerGroups:
        """Return the peer groups without the ranks that open findings call steadily slow, where those are many."""
        found = [one for one in self.open_findings if one.kind == STRAGGLER and one.pattern != "intermittent"]
        slow = {rank for one in found for rank in one.ranks}
        return self.peer_groups.without(slow) if slow else self.peer_groups

    @cached_property
    def beside_alike(self) -> "RunView":
        """Return the view in which ranks with the same kind of work are peers, whoever has more of it."""
        groups = self.peer_groups.with_alike()
        return self if groups is self.peer_groups else replace(self, peer_groups=groups)

    @cached_property
    def _whole_excess(self) -> Floats:
        return find_excess(self.series, self.compared)

    @cached_property
    def excess(self) -> Floats:
        """Return `find_excess` of the series, beyond what is usual for a rank without peers; shape (n, ranks)."""
        return self._whole_excess - self.usual if self.usual.any() else self._whole_excess

    @cached_property
    def is_known(self) -> Flags:
        """Return in which steps the excess of any rank is known, shape (n,)."""
        return np.asarray(~np.isnan(self.excess).all(axis=1))

    @cached_property
    def usual(self) -> Floats:
        """Return `find_usual` of the series, shape (ranks,)."""
        return find_usual(self._whole_excess, self.series, self.peer_groups, self.known_usual, self.steps_min)

    @cached_property
    def excess_ns(self) -> Floats:
        """Return the excess as a time, the own time less that of the peers, in ns; shape (n, ranks)."""
        return find_excess_ns(self.excess, self.series.own_ns)

    @cached_property
    def worst(self) -> Ints:
        """Return the column with the largest excess in each step, shape (n,); -1 where none is known."""
        worst = np.full(len(self.excess_ns), -1, dtype=np.int64)
        rows = np.flatnonzero(~np.isnan(self.excess_ns).all(axis=1))
        for some in in_blocks(rows, self.excess_ns.shape[1]):
            worst[some] = np.nanargmax(self.excess_ns[some], axis=1)
        return worst

    @cached_property
    def longest_ns(self) -> Floats:
        """Return the longest time that each step took on any rank, shape (n,) in ns; NaN where none is known."""
        step_ns = np.fmax.reduce(self.series.step_ns, axis=1, initial=-np.inf)
        return np.where(np.isinf(step_ns), np.nan, step_ns)

    @cached_property
    def mean_ns(self) -> Floats:
        """Return the mean over the ranks of each step that all have reported, shape (n,) in ns; else NaN. Its sum is
        the time that the steps took: the longest of two steps may have the same wait, of a rank that is held up between
        them.
        """
        means_ns: Floats = self.series.step_ns.mean(axis=1)
        return means_ns

    def excess_of(self, rank: int) -> Floats:
        """Return the excess of one rank, shape (n,)."""
        return self.excess[:, self.series.column_of(rank)]


class SingleLosses(NamedTuple):
    """What some steps lost in ns, shape (m,) each, also steps that are no longer kept; all others lost nothing."""

    steps: Ints
    lost_ns: Floats


class Candidate(NamedTuple):
    """A finding that passes its tests now, and what each step of the series lost to it, shape (n,) in ns (None: it has
    no cost of its own), or what single steps lost. The finding is without the cost so far, which the run keeps.
    """

    finding: Finding
    lost_ns: "Floats | SingleLosses | None" = None


class DetectorResult(NamedTuple):
    """Result of one detector in a pass: candidates, the numbers of open findings that have passed, those that can no
    longer be judged with the reason, or why it gives no verdict at all. `dropped` are numbers of open findings that
    would not be opened by the thresholds of now, which have become stricter.
    """

    kinds: frozenset[str]
    candidates: Sequence[Candidate] = ()
    passed: tuple[int, ...] = ()
    abstained: str | None = None
    unjudged: tuple[tuple[int, str], ...] = ()
    dropped: tuple[int, ...] = ()


class Detected(NamedTuple):
    """The results of one detection pass over a view, in the order of the detectors."""

    view: RunView
    results: tuple[DetectorResult, ...]


class Detector(Protocol):
    """Finds problems of certain kinds in a run, once in each detection pass. Pure: all state is in the run's open
    findings.
    """

    @property
    def kinds(self) -> frozenset[str]:
        """Return the kinds of finding that it gives."""

    def find(self, view: RunView, explained: Sequence[Finding]) -> Sequence[Candidate | Abstain] | Abstain:
        """Return what passes every test now, and why single kinds cannot be judged. `explained`: what earlier detectors
        of this pass found, and open findings.
        """

    def has_passed(self, view: RunView, finding: Finding, explained: Sequence[Finding]) -> bool | Abstain:
        """Return whether an open finding that `find` did not give again no longer holds; False while that is not known,
        why it can no longer be judged where that will not be known again.
        """


def as_rank_series(view: RunView, columns: Sequence[Floats], comparisons: Sequence[PeerComparison]) -> RunView:
    """Return a view of the same steps with `columns`, shape (n,) each in ns, in place of the ranks' own times.

    The comparisons name columns by number. A column that is a member of none only serves others for comparison.
    """
    ns = np.stack(columns, axis=1) if columns else np.empty((len(view.series.steps), 0))
    place = {column: number for number, one in enumerate(comparisons) for column in one.members}
    return RunView(
        now_collector_ns=view.now_collector_ns,
        world_size=len(columns),
        series=StepSeries(view.series.steps, tuple(range(len(columns))), ns, ns, ns, {}, own_is_measured=True),
        peer_groups=PeerGroups(tuple(comparisons), place),
        nodes={},
        samples=Samples({}, {}, {}),
    )
