"""Simulate a run from its first step to its last, and its collector: production code from the report on."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypedDict

import numpy as np

from rankscope.agent.steps.ring import Ring
from rankscope.collector.config import CollectorConfig
from rankscope.collector.runs.run import RunState
from rankscope.collector.runs.snapshot import RunSnapshot
from rankscope.measure.codec import encode
from rankscope.measure.records import Losses
from rankscope.measure.units import NS_PER_S
from tests.simulation.busy import Busy, BusyMachines, hold_up
from tests.simulation.clocks import ClockNoise, Clocks
from tests.simulation.collector_end import CollectorEnd, Opened
from tests.simulation.curriculum import Curriculum
from tests.simulation.engine import Engine, Floats, Step
from tests.simulation.faults import Fault, Injection
from tests.simulation.finding_watch import FindingWatch
from tests.simulation.network import Network, NetworkNoise
from tests.simulation.noise import Noise, Weather
from tests.simulation.program import KINDS, PIPELINES, Collective, Program, Scale, Work
from tests.simulation.ranks import RUN, DeviceTimes, SimulatedRank, Windows
from tests.simulation.topology import Topology
from tests.simulation.unequal import Duty, Hardware, VaryingSizes, apply_duties, apply_hardware
from tests.simulation.wrongs import Wrong
from tests.validated_run import RunValidatedByPass, ValidatedRun

REPORT_STEPS = 8
"""Steps between two reports of a rank, and two detection passes: about a second of steps of 130 ms."""
AFTER_DEATH_S = 30
"""Time to observe the others after a rank has died: twice the time after which a rank counts as silent."""
HEALING_S = 120
"""Time for the healed network to deliver what is still held: several of the longest pauses of delivery."""
RING_STEPS = 4096
"""Steps that a rank holds for its agent, as in production."""


@dataclass(frozen=True, kw_only=True)
class Stall:
    """Stall of these ranks' agents: they report nothing from step `begin` up to `end`."""

    ranks: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Death:
    """Death of a rank before it makes `step`. The others wait for it from then on, and continue to report."""

    rank: int
    step: int


@dataclass(frozen=True, kw_only=True)
class Skip:
    """A rank that leaves out the last data parallel collective of a step, so that its count is one lower since then.

    Its calls go on meeting those of the same step, as where it was left out of the count only. With a backend that
    pairs calls by their count they would meet those of the step before: that is not simulated.
    """

    rank: int
    step: int


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Simulation of a run. `seed` decides everything random. Without a `network` every report arrives at once."""

    topology: Topology
    kind: str
    noise: Noise = field(default_factory=Noise)
    faults: tuple[Fault, ...] = ()
    steps: int = 200
    seed: int = 0
    stage_shares: tuple[float, ...] | None = None
    network: NetworkNoise | None = None
    clocks: ClockNoise = field(default_factory=ClockNoise)
    stalls: tuple[Stall, ...] = ()
    death: Death | None = None
    ring_steps: int = RING_STEPS
    windows: Windows = field(default_factory=Windows)
    skip: Skip | None = None
    duties: tuple[Duty, ...] = ()
    hardware: tuple[Hardware, ...] = ()
    sizes: VaryingSizes | None = None
    device_times: DeviceTimes | None = None
    busy: Busy | None = None
    curriculum: Curriculum | None = None
    """How many tokens the ranks' batches have; without one they are not reported."""
    on_cpus: bool = False
    """Whether its ranks have no GPUs: their training threads do all the work."""


@dataclass
class Outcome:
    """Findings of a scenario, and its course: `step_ns` are the durations of the steps, `worked_ns` each rank's work in
    them by kind of work, `phases_ns` the step by phase, waits included, `called_ns` the time in operations that
    communicate; shape (steps, ranks) each.
    """

    scenario: Scenario
    opened: list[Opened]
    abstained: str | None
    step_ns: Floats
    worked_ns: Mapping[str, Floats] = field(default_factory=dict)
    phases_ns: Mapping[str, Floats] = field(default_factory=dict)
    called_ns: Floats = field(default_factory=lambda: np.empty((0, 0)))
    violations: tuple[Wrong, ...] = ()
    """What was not true, or contradicted itself, in the course of the run (`finding_watch.py`)."""


class _Made(NamedTuple):
    """Step that is not reported yet; `faults` with the time each cost every rank, shape (ranks,) in ns."""

    number: int
    step: Step
    faults: list[tuple[Fault, Floats]]


def run(scenario: Scenario, config: CollectorConfig | None = None) -> Outcome:
    """Simulate a run with its collector."""
    return World(scenario, config or CollectorConfig()).run()


class World:
    """Simulated run. `step` is the number of steps made, `now_ns` the true time."""

    def __init__(self, scenario: Scenario, config: CollectorConfig, run_type: type[RunState] | None = None) -> None:
        self.scenario = scenario
        random = np.random.default_rng(scenario.seed)
        topology, scale = scenario.topology, Scale()
        program = build_program(scenario, scale)
        self._engine = Engine(topology, program)
        self._weather = Weather(scenario.noise, topology, scale.work_ns, random)
        self._work_ns = scale.work_ns
        self._base_ns = base_work(program, topology.world_size)
        self._injection = Injection(scenario.faults, self._base_ns, _transfer_ns(program))
        busy, seed = scenario.busy, scenario.seed
        self._busy = None if busy is None else BusyMachines(busy, topology, scale.work_ns, seed)
        self._clocks = Clocks(scenario.clocks, topology.world_size, random, scenario.seed)
        groups = topology.describe_groups()
        self.ranks = [
            SimulatedRank(
                rank, topology, groups[rank], self._clocks.offset_ns(rank, 0), scenario.windows,
                **_device_of(rank, scenario.hardware), sizes=scenario.sizes,
                device_times=scenario.device_times, has_gpu=not scenario.on_cpus, curriculum=scenario.curriculum,
            )
            for rank in range(topology.world_size)
        ]  # fmt: skip
        if scenario.skip is not None:
            self.ranks[scenario.skip.rank].skips_step = scenario.skip.step
        self.rings: list[Ring[_Made]] = [Ring(scenario.ring_steps) for _ in self.ranks]
        # Reports of a network come in any order: there each is checked. Else those of a pass come one after the other.
        run_type = run_type or (RunValidatedByPass if scenario.network is None else ValidatedRun)
        self.end = CollectorEnd(RUN, topology.world_size, config, run_type)
        self._watch = self.end.watch = FindingWatch(scenario.faults, topology)
        self.network = self._connect()
        self._steps: list[Step] = []
        self.now_ns = 0

    def _connect(self) -> Network | None:
        """Return the network of the scenario; without one everybody introduces themselves at once."""
        peers = [rank.identity.boot_id for rank in self.ranks]
        if self.scenario.network is not None:
            return Network(self.scenario.network, self.ranks, peers, self.end, self.scenario.seed)
        for peer, rank in zip(peers, self.ranks, strict=True):
            self.end.receive(peer, encode(rank.make_hello()), 0)
        return None

    def run(self) -> Outcome:
        """Return all of it, until everything has arrived."""
        while self.advance():
            pass
        self.heal()
        return self.outcome()

    def run_unreported(self) -> Floats:
        """Make all steps without reporting any; return how long each took, shape (steps, ranks) in ns. Of the same seed
        and fewer faults it is the run as it would have been without the others.
        """
        for number in range(self.scenario.steps):
            self._make_step(number)
        return np.array([step.duration_ns for step in self._steps], dtype=np.float64)

    @property
    def step(self) -> int:
        """Return the number of steps made."""
        return len(self._steps)

    def advance(self) -> bool:
        """Make steps up to the next report, report them and run a detection pass; False if none are left."""
        death = self.scenario.death
        total = min(self.scenario.steps, death.step) if death is not None else self.scenario.steps
        first, last = self.step, min(self.step + REPORT_STEPS, total)
        if first == last:
            return False
        for number in range(first, last):
            self._make_step(number)
        self.now_ns = max(int(step.end_ns.max()) for step in self._steps[first:])
        self._clocks.pass_step(last - 1)
        for rank in range(len(self.ranks)):
            self._report(rank)
        self._look()
        if death is not None and last == total:
            self._observe_death(death)
        return last < total

    def heal(self) -> None:
        """Heal the network and run until everything held has been delivered. Raises AssertionError if that does not
        happen.
        """
        network = self.network
        if network is None:
            return
        network.heals = True
        for _ in range(HEALING_S):
            self._pass_second()
            if network.everything_acknowledged:
                return
        raise AssertionError("the ranks still hold reports, long after the network has healed")

    def outcome(self) -> Outcome:
        """Return the outcome so far."""
        steps = self._steps
        abstained = self.snapshot().abstained
        step_ns = np.array([step.duration_ns for step in steps], dtype=np.float64)
        worked_ns = {
            kind: np.array([step.worked_ns[kind] for step in steps], dtype=np.float64) for kind in steps[0].worked_ns
        }
        phases_ns = {
            phase: np.array([step.phases_ns[phase] for step in steps], dtype=np.float64) for phase in steps[0].phases_ns
        }
        called_ns = np.array([step.called_ns for step in steps], dtype=np.float64)
        return Outcome(
            self.scenario, self.end.opened, abstained, step_ns, worked_ns, phases_ns, called_ns, self._watch.violations
        )

    def snapshot(self) -> RunSnapshot:
        """Return the collector's snapshot."""
        return self.end.snapshot(self.now_ns)

    def losses(self, rank: int) -> Losses:
        """Return the losses that a rank's agent has counted."""
        if self.network is None:
            return Losses(steps_overwritten=self.rings[rank].overwritten)
        buffer = self.network.rank_ends[rank].buffer
        return Losses(
            steps_overwritten=self.rings[rank].overwritten,
            steps_dropped_in_reports=buffer.steps_dropped,
            reports_dropped=buffer.reports_dropped,
        )

    def _make_step(self, number: int) -> None:
        weather = apply_duties(self._weather.draw(number), self.scenario.duties, number, self._work_ns)
        weather = apply_hardware(weather, self.scenario.hardware, self._base_ns)
        faults = [(fault, self._injection.extra_ns(fault, number)) for fault in self.scenario.faults]
        if self._busy is not None:
            faults.append(self._busy.draw())
            weather = hold_up(weather, faults[-1][1], self._base_ns)
        conditions = self._injection.apply(weather, number)
        if (curriculum := self.scenario.curriculum) is not None:
            conditions = curriculum.apply(conditions, number)
            faults = [(fault, extra_ns * curriculum.growth(number)) for fault, extra_ns in faults]
        step = self._engine.run_step(conditions)
        self._steps.append(step)
        made = _Made(number, step, faults)
        for ring in self.rings:
            ring.append(made)

    def _report(self, number: int) -> None:
        if any(number in stall.ranks and stall.begin <= self.step < stall.end for stall in self.scenario.stalls):
            return
        made, rank = list(self.rings[number].drain()), self.ranks[number]
        faults = [[(fault, float(extra_ns[number])) for fault, extra_ns in one.faults] for one in made]
        rank.set_clock(self._clocks.offset_ns(number, self.now_ns))
        frame = rank.report(made[0].number, [one.step for one in made], faults, self.losses(number))
        self._send(number, frame, len(made), made[-1].step.lists.end_ns[number])

    def _send(self, number: int, frame: bytes, step_count: int, at_ns: int) -> None:
        if self.network is not None:
            self.network.push(number, frame, step_count, at_ns)
        else:
            self.end.receive(self.ranks[number].identity.boot_id, frame, self.now_ns)

    def _look(self) -> None:
        if self.network is not None:
            self.network.run_until(self.now_ns)
        asked = self.end.run_pass(self.step, self.now_ns)
        if self.network is not None:
            self.network.ask_clocks(asked, self.now_ns)
        self.snapshot()

    def _pass_second(self) -> None:
        self.now_ns += NS_PER_S
        self._look()

    def _observe_death(self, death: Death) -> None:
        """Let time pass after a death: the dead rank is silent, the others report every second without a step."""
        for _ in range(AFTER_DEATH_S):
            for number, rank in enumerate(self.ranks):
                if number != death.rank:
                    self._send(number, rank.report_nothing(self.now_ns), 0, self.now_ns)
            self._pass_second()


def build_program(scenario: Scenario, scale: Scale) -> Program:
    """Return the program of the scenario's step."""
    if scenario.kind in PIPELINES:
        return KINDS[scenario.kind](scenario.topology, scale, scenario.stage_shares)  # type: ignore[call-arg]
    return KINDS[scenario.kind](scenario.topology, scale)


def base_work(program: Program, ranks: int) -> dict[str, Floats]:
    """Return each rank's work of each kind in a healthy step, in ns."""
    found: dict[str, Floats] = {}
    for operation in program:
        if isinstance(operation, Work):
            found.setdefault(operation.kind, np.zeros(ranks))[operation.ranks] += operation.ns
    return found


class _Device(TypedDict, total=False):
    model: str
    clock_hertz: int


def _device_of(rank: int, hardware: tuple[Hardware, ...]) -> _Device:
    """Return the model and clock of a rank's GPU where it is not the usual one."""
    found = next((one for one in hardware if rank in one.ranks), None)
    return {} if found is None else {"model": found.model, "clock_hertz": found.clock_hertz}


def _transfer_ns(program: Program) -> float:
    return float(sum(op.transfer_ns for op in program if isinstance(op, Collective))) or math.inf
