"""A job from its first step to its last, and what the collector made of it: production code from the report on."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rankscope.collector.config import CollectorConfig
from rankscope.collector.detect.finding import Finding
from rankscope.collector.ingest.admission import Admission, Admitted
from rankscope.collector.state.effects import CloseFinding, OpenFinding
from rankscope.collector.state.events import RankJoined, ReportAdmitted, Tick
from rankscope.collector.state.job import JobState
from rankscope.measure.codec import decode
from rankscope.measure.messages import Report
from rankscope.measure.units import ns_to_s
from tests.simulation.engine import Engine, Floats, Step
from tests.simulation.faults import TRANSFER, Fault, Injection
from tests.simulation.noise import Noise, Weather
from tests.simulation.program import KINDS, Collective, Program, Scale, Work
from tests.simulation.ranks import RUN, SimulatedRank
from tests.simulation.topology import Topology

REPORT_STEPS = 8
"""Steps between two reports of a rank, and two looks of the collector: about a second of steps of 130 ms."""
CLOCKS_APART_NS = 10**12


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A job to be simulated. `seed` decides everything that is left to chance."""

    topology: Topology
    kind: str
    noise: Noise = field(default_factory=Noise)
    faults: tuple[Fault, ...] = ()
    steps: int = 200
    seed: int = 0
    stage_shares: tuple[float, ...] | None = None


class Opened(NamedTuple):
    """A finding as it was last known, and after how many steps it was opened and closed."""

    finding: Finding
    opened_step: int
    closed_step: int | None


@dataclass
class Outcome:
    """What the collector said of a scenario, and how it went: `step_ns` are the durations of the steps, `worked_ns`
    what each rank worked in them by kind of work; shape (steps, ranks) each.
    """

    scenario: Scenario
    opened: list[Opened]
    abstained: str | None
    step_ns: Floats
    worked_ns: Mapping[str, Floats] = field(default_factory=dict)


def run(scenario: Scenario, config: CollectorConfig | None = None) -> Outcome:
    """Simulate a job under the collector's eyes."""
    return _World(scenario, config or CollectorConfig()).run()


class _World:
    def __init__(self, scenario: Scenario, config: CollectorConfig) -> None:
        self._scenario = scenario
        random = np.random.default_rng(scenario.seed)
        topology, scale = scenario.topology, Scale()
        program = build_program(scenario, scale)
        self._engine = Engine(topology, program)
        self._weather = Weather(scenario.noise, topology, scale.work_ns, random)
        self._injection = Injection(scenario.faults, base_work(program, topology.world_size), _transfer_ns(program))
        offsets = random.integers(-CLOCKS_APART_NS, CLOCKS_APART_NS, topology.world_size).tolist()
        groups = topology.describe_groups()
        self._ranks = [
            SimulatedRank(rank, topology, groups[rank], offsets[rank]) for rank in range(topology.world_size)
        ]
        self._admission = Admission(1, topology.world_size)
        self._job = JobState(RUN, config)
        self._open: dict[int, tuple[Finding, int]] = {}
        self._closed: list[Opened] = []

    def run(self) -> Outcome:
        for rank in self._ranks:
            hello = rank.say_hello()
            self._admission.hello(rank.identity.boot_id.encode(), hello)
            self._job.handle(RankJoined(hello, 0))
        steps: list[Step] = []
        for first in range(0, self._scenario.steps, REPORT_STEPS):
            last = min(first + REPORT_STEPS, self._scenario.steps)
            chunk = [self._run_step(number) for number in range(first, last)]
            steps += chunk
            self._report(first, chunk)
            self._look(last, int(chunk[-1].end_ns.max()))
        step_ns = np.array([step.duration_ns for step in steps], dtype=np.float64)
        abstained = self._job.snapshot(int(steps[-1].end_ns.max())).abstained
        still_open = [Opened(finding, opened, None) for finding, opened in self._open.values()]
        worked_ns = {
            kind: np.array([step.worked_ns[kind] for step in steps], dtype=np.float64) for kind in steps[0].worked_ns
        }
        return Outcome(self._scenario, self._closed + still_open, abstained, step_ns, worked_ns)

    def _run_step(self, number: int) -> Step:
        return self._engine.run_step(self._injection.apply(self._weather.draw(number), number))

    def _report(self, first: int, steps: Sequence[Step]) -> None:
        now_ns = int(max(step.end_ns.max() for step in steps))
        present = [
            [
                (fault, self._injection.extra_ns(fault, number))
                for fault in self._scenario.faults
                if fault.effect.kind != TRANSFER
            ]
            for number in range(first, first + len(steps))
        ]
        for number, rank in enumerate(self._ranks):
            faults = [[(fault, float(extra_ns[number])) for fault, extra_ns in there] for there in present]
            message = decode(rank.report(first, steps, faults))
            assert isinstance(message, Report)
            verdict = self._admission.number(rank.identity.boot_id.encode(), message.sequence)
            assert isinstance(verdict, Admitted), verdict
            self._job.handle(ReportAdmitted(rank.identity.boot_id, message, now_ns, ns_to_s(now_ns)))

    def _look(self, step: int, now_ns: int) -> None:
        for effect in self._job.handle(Tick(now_ns, ns_to_s(now_ns))):
            match effect:
                case OpenFinding():
                    self._open[effect.finding.number] = (effect.finding, step)
                case CloseFinding():
                    _, opened = self._open.pop(effect.finding.number)
                    self._closed.append(Opened(effect.finding, opened, step))
        for finding in self._job.snapshot(now_ns).open_findings:
            _, opened = self._open[finding.number]
            self._open[finding.number] = (finding, opened)


def build_program(scenario: Scenario, scale: Scale) -> Program:
    """What the ranks of the scenario do in a step."""
    if scenario.kind == "pp":
        return KINDS["pp"](scenario.topology, scale, scenario.stage_shares)  # type: ignore[call-arg]
    return KINDS[scenario.kind](scenario.topology, scale)


def base_work(program: Program, ranks: int) -> dict[str, Floats]:
    """Each rank's work of each kind in a healthy step, in ns."""
    found: dict[str, Floats] = {}
    for operation in program:
        if isinstance(operation, Work):
            found.setdefault(operation.kind, np.zeros(ranks))[operation.ranks] += operation.ns
    return found


def _transfer_ns(program: Program) -> float:
    return float(sum(op.transfer_ns for op in program if isinstance(op, Collective))) or math.inf
