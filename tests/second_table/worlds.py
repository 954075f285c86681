"""Define a world, the truth about it, and play it against the collector."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from rankscope.collector.config import CollectorConfig
from rankscope.collector.detect.finding import Finding
from rankscope.collector.reports.summary import verdict
from rankscope.collector.runs.events import AskClock, ClockSampled, GoodbyeAdmitted, RankJoined, ReportAdmitted
from rankscope.collector.runs.goodput import GoodputSnapshot
from rankscope.collector.runs.report_fields import ReportFields
from rankscope.collector.runs.run import RunState
from rankscope.measure.messages import Goodbye, Report
from rankscope.measure.records import Losses
from rankscope.measure.units import NS_PER_S, ns_to_s
from tests.run_ticks import tick_run
from tests.second_table.disturbances import Cost, Sign
from tests.second_table.layout import Floats, Layout
from tests.second_table.physics import DATA, Machine, Model, Step
from tests.second_table.reporting import PRODUCTION, RUN, Agents, Sampling

RANKS, RUN_WIDE, WORK, QUIET = "ranks", "run", "work", "quiet"
"""What is true of a world: these ranks are slow; the run is, and no rank is to blame; these ranks have more work, and
no rank is to blame; nothing costs anything."""


@dataclass(frozen=True, kw_only=True)
class Truth:
    """One thing that is so. `causes` are names of causes or kinds of finding that say it; `begin` its first step, None
    where it has none to be told. `is_older`: it began before anything was heard, so `or before` is right, too.
    """

    level: str
    who: frozenset[int] = frozenset()
    causes: frozenset[str] = frozenset()
    begin: int | None = None
    costs: tuple[int, ...] = ()
    """Which costs of the world it consists of."""
    is_older: bool = False


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Reports of these ranks made from `begin_s` up to `end_s` arrive at its end, or, if `lost`, never."""

    ranks: tuple[int, ...]
    begin_s: float
    end_s: float
    lost: bool = False


@dataclass(frozen=True, kw_only=True)
class World:
    family: str
    about: str
    layout: Layout
    model: Model
    steps: int
    costs: tuple[Cost, ...] = ()
    signs: tuple[Sign, ...] = ()
    truths: tuple[Truth, ...] = ()
    sampling: Sampling = PRODUCTION
    gaps: tuple[Gap, ...] = ()
    late_s: float = 0.0
    """The collector starts so late; the agents hold their reports until then."""
    forgets: bool = False
    """The reports before that are lost (an agent holds 4,096)."""
    true_kinds: frozenset[str] = frozenset()
    """Kinds of finding that name no rank and are so in this world, beside those that its physics tells."""
    pass_s: int = 4
    """Seconds between two detection passes: `tick_s` of the collector, 1 by default, 10 at most."""
    seed: int = 0

    @property
    def half(self) -> str:
        return ("tuning", "held-out")[self.seed % 2]


class Pass(NamedTuple):
    """What stood there after a detection pass. `step` steps had ended by then."""

    step: int
    now_ns: int
    open: tuple[Finding, ...]
    text: str
    goodput: GoodputSnapshot
    abstained: str | None


@dataclass
class Course:
    """A world as it went. `ends_ns[k]` is when step k had ended on all ranks, `without_ns` by truth the same without
    its costs, the last entry without those of any truth.
    """

    world: World
    passes: list[Pass]
    last: Pass
    findings: tuple[Finding, ...]
    begin_ns: float
    ends_ns: Floats
    without_ns: list[Floats] = field(default_factory=list)
    data_share: float = 0.0
    gap_share: float = 0.0
    """By how much the longest own time of a step exceeds the median one, over the step, without any cost's ranks."""


def play(world: World, observe: Callable[[Pass], None] | None = None) -> Course:
    """Play a world against the collector; `observe` sees each pass, else they are kept."""
    player = _Player(world)
    course = player.run(observe)
    removed = [frozenset(truth.costs) for truth in world.truths]
    removed.append(frozenset(cost for truth in world.truths for cost in truth.costs))
    known: dict[frozenset[int], Floats] = {frozenset(): course.ends_ns}
    for left_out in removed:
        if left_out not in known:
            known[left_out] = play_without(world, left_out)
    course.without_ns = [known[left_out] for left_out in removed]
    return course


def play_without(world: World, left_out: frozenset[int]) -> Floats:
    """Return when each step ends in the same world without some of its costs."""
    costs = [cost for place, cost in enumerate(world.costs) if place not in left_out]
    machine = Machine(world.layout, world.model, costs, world.seed)
    return np.array([machine.play(keeps_events=False).end.max() for _ in range(world.steps)])


class _Player:
    def __init__(self, world: World) -> None:
        self.world = world
        self.machine = Machine(world.layout, world.model, world.costs, world.seed)
        self.agents = Agents(world.layout, world.model, world.sampling, world.signs, world.seed)
        self.run_state = RunState(RUN, CollectorConfig())
        self.held: list[tuple[int, Report]] = []
        self.lost = [0] * world.layout.world
        self.lost_steps = [0] * world.layout.world
        self.joined: set[int] = set()
        self.findings: dict[int, Finding] = {}

    def run(self, observe: Callable[[Pass], None] | None) -> Course:
        world, made, ready = self.world, 0, list[Step]()
        passes: list[Pass] = []
        ends, longest, medians, data = [], [], [], []
        now_ns, begin_ns = 0, float(self.machine.host.max())
        while made < world.steps or ready:
            now_ns += NS_PER_S
            while made < world.steps and (not ready or ready[-1].end.max() <= now_ns):
                step = self.machine.play()
                ready.append(step)
                ends.append(float(step.end.max()))
                longest.append(float(step.own.max()))
                medians.append(float(np.median(step.own)))
                data.append(float(np.median(step.phases[DATA])))
                made += 1
            count = sum(step.end.max() <= now_ns for step in ready)
            reported, ready = ready[:count], ready[count:]
            self._deliver(self.agents.report(reported, now_ns), now_ns)
            if now_ns >= world.late_s * NS_PER_S and now_ns // NS_PER_S % world.pass_s == 0:
                seen = self._look(now_ns)
                if observe is None:
                    passes.append(seen)
                else:
                    observe(seen)
        last = self._finish(now_ns + NS_PER_S)
        took = ends[-1] - begin_ns
        return Course(
            world, passes, last, tuple(self.findings.values()), begin_ns, np.array(ends),
            data_share=sum(data) / took, gap_share=(sum(longest) - sum(medians)) / took,
        )  # fmt: skip

    def _deliver(self, reports: Sequence[Report], now_ns: int) -> None:
        """Deliver reports that may arrive now: of each rank in order, those that were held first."""
        world = self.world
        is_there = now_ns >= world.late_s * NS_PER_S
        if not is_there and world.forgets:
            for rank, report in enumerate(reports):
                self.lost[rank] += 1
                self.lost_steps[rank] += report.steps.row_count
            return
        arriving = [*self.held, *enumerate(reports)]
        self.held = []
        for rank, report in arriving:
            gap = next(
                (one for one in world.gaps if rank in one.ranks and one.begin_s <= now_ns / NS_PER_S < one.end_s), None
            )
            if not is_there or (gap is not None and not gap.lost):
                self.held.append((rank, report))
            elif gap is not None:
                self.lost[rank] += 1
                self.lost_steps[rank] += report.steps.row_count
            else:
                self._admit(rank, report, now_ns)

    def _admit(self, rank: int, report: Report, now_ns: int) -> None:
        boot_id = self.agents.identity(rank).boot_id
        if rank not in self.joined:
            self.joined.add(rank)
            self.run_state.apply(RankJoined(self.agents.hello(rank, report.sequence, now_ns), now_ns))
        if self.lost[rank]:
            losses = Losses(
                steps_made=report.losses.steps_made, steps_buffered=0, reports_dropped=self.lost[rank],
                steps_dropped_in_reports=self.lost_steps[rank],
            )  # fmt: skip
            groups = self.agents.groups[rank]  # the agent tells them again after a loss
            report = replace(report, losses=losses, groups=groups)
        fields = ReportFields.of(report)
        self.run_state.apply(ReportAdmitted(boot_id, fields, now_ns, ns_to_s(now_ns)))

    def _look(self, now_ns: int) -> Pass:
        run = self.run_state
        for effect in tick_run(run, now_ns, ns_to_s(now_ns)):
            if isinstance(effect, AskClock):
                rank = int(effect.boot_id.rpartition("-")[2])
                host_ns = self.agents.read_clock(rank, now_ns)
                run.apply(ClockSampled(effect.boot_id, now_ns - 200_000, host_ns, now_ns + 200_000))
        return self._read(now_ns)

    def _read(self, now_ns: int) -> Pass:
        snapshot = self.run_state.snapshot(now_ns)
        self.findings.update((one.number, one) for one in snapshot.findings)
        return Pass(
            self.agents.made, now_ns, snapshot.open_findings, verdict(snapshot), snapshot.goodput, snapshot.abstained
        )  # fmt: skip

    def _finish(self, now_ns: int) -> Pass:
        for rank, report in self.held:
            self._admit(rank, report, now_ns)
        for rank in sorted(self.joined):
            sequence = self.agents._sequence + 1
            goodbye = Goodbye(sequence=sequence, reason="finished", exit_code=0)
            self.run_state.apply(GoodbyeAdmitted(self.agents.identity(rank).boot_id, goodbye, now_ns))
        tick_run(self.run_state, now_ns, ns_to_s(now_ns))
        tick_run(self.run_state, now_ns + NS_PER_S, ns_to_s(now_ns + NS_PER_S))
        return self._read(now_ns + NS_PER_S)
