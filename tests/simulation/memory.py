"""Simulate the host memory of the ranks of two machines for hours, and what the production code finds in it.

A shape is a rank's memory by time. Of each machine all memory counts: when its ranks together want more than there is,
the run has ended, which is the truth that findings are held to.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from rankscope.collector.config import CollectorConfig
from rankscope.collector.detect.finding import Finding
from rankscope.collector.detect.memory.growth import MEMORY_GROWTH
from rankscope.collector.runs.events import (
    CloseFinding,
    FindingOpened,
    RankJoined,
    ReportAdmitted,
    RunEffect,
    UpdateFinding,
)
from rankscope.collector.runs.report_fields import ReportFields
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import Hello, Report
from rankscope.measure.records import HostSample, NodeSample, StepRecord, Totals, steps_to_table
from tests.run_ticks import tick_run
from tests.validated_run import RunValidatedByPass

MIB, GIB = 2**20, 2**30
S = 10**9
RANKS_A_NODE: Final = 4
NODES: Final = 2
MACHINE_BYTES: Final = 64 * GIB
SAMPLE_S: Final = 10
PASS_S: Final = 60
LOADED_BYTES: Final = 8 * GIB
LOAD_S: Final = 90.0
BATCH_BYTES: Final = 200 * MIB

Shape = Callable[[float], float]
"""Bytes beyond the program and its batches, by the seconds since the start."""


def leak(bytes_per_hour: float, *, from_s: float = 0.0) -> Shape:
    return lambda at_s: bytes_per_hour * max(0.0, at_s - from_s) / 3_600


def leak_at_checkpoints(size: float, every_s: float) -> Shape:
    return lambda at_s: size * math.floor(at_s / every_s)


def leak_below_sawtooth(bytes_per_hour: float, size: float, every_s: float) -> Shape:
    return lambda at_s: bytes_per_hour * at_s / 3_600 + size * (at_s % every_s) / every_s


HEALTHY: Final[Mapping[str, Shape]] = {
    "flat": lambda _at_s: 0.0,
    "cache_that_levels_off": lambda at_s: 1.7 * GIB * (1 - math.exp(-at_s / 900)),
    "cache_that_fills_evenly": lambda at_s: 1.5 * GIB * min(1.0, at_s / 1_800),
    "cache_that_is_emptied": lambda at_s: 1.7 * GIB * (at_s % 1_200) / 1_200,
    "evaluations": lambda at_s: 3.0 * GIB * (at_s % 900 > 780),
    "checkpoints": lambda at_s: 5.0 * GIB * (at_s % 600 < 30),
    "one_jump": lambda at_s: 4.0 * GIB * (at_s > 3_000),
    "fragments": lambda at_s: 0.2 * GIB * math.log1p(at_s / 600),
}
"""By name what no rank may be accused of; all ranks have it."""
HEALTHY_STARTS: Final[Mapping[str, Shape]] = {
    "cache_filled_in_a_minute": lambda at_s: 2.5 * GIB * min(1.0, at_s / 60),
    "cache_filled_in_five_minutes": lambda at_s: 1.5 * GIB * min(1.0, at_s / 300),
    "cache_that_levels_off_in_a_minute": lambda at_s: 2.0 * GIB * (1 - math.exp(-at_s / 60)),
    "workers_started_one_by_one": lambda at_s: 0.3 * GIB * min(8, at_s // 15),
}
"""The same of their first minutes, in which growth is known from 65 s on."""
LEAKS: Final[Mapping[str, Shape]] = {
    "slow": leak(3 * GIB),
    "fast": leak(30 * GIB),
    "from_an_hour_on": leak(12 * GIB, from_s=3_600),
    "at_checkpoints": leak_at_checkpoints(512 * MIB, 300),
    "below_a_sawtooth": leak_below_sawtooth(6 * GIB, GIB, 200),
}


class Told(NamedTuple):
    """What was found: each finding as it opened, and when, in s; the same where one was announced to have changed;
    those that closed; and when the first machine was out of memory, None: it never was.
    """

    opened: tuple[tuple[float, Finding], ...]
    changed: tuple[tuple[float, Finding], ...]
    closed: tuple[Finding, ...]
    out_s: float | None


class Memory:
    """One run, whose ranks have these shapes; those without one are flat."""

    def __init__(self, shapes: Mapping[int, Shape], seed: int, *, sample_s: int = SAMPLE_S) -> None:
        self._shapes = shapes
        self._sample_s = sample_s
        self._random = random.Random(seed)
        self._run = RunValidatedByPass("memory", CollectorConfig())
        self._ranks = range(RANKS_A_NODE * NODES)
        for rank in self._ranks:
            identity = RankIdentity(
                run="memory", rank=rank, local_rank=rank % RANKS_A_NODE, world_size=len(self._ranks),
                node=f"n{rank // RANKS_A_NODE}", restart_count=0, boot_id=f"boot-of-{rank}", pid=rank,
            )  # fmt: skip
            hello = Hello(identity=identity, first_sequence=1, host_ns=0, wall_ns=0, report_interval_ns=S)
            self._run.apply(RankJoined(hello, 0))

    def train(self, hours: float) -> Told:
        """Train until then, or until a machine is out of memory."""
        effects: list[tuple[float, RunEffect]] = []
        for at_s in range(0, round(3_600 * hours), self._sample_s):
            held = [self._find_held(rank, at_s) for rank in self._ranks]
            left = [MACHINE_BYTES - sum(held[rank] for rank in _ranks_of(node)) for node in range(NODES)]
            if min(left) < 0:
                return _tell(effects, float(at_s))
            for rank in self._ranks:
                self._report(rank, at_s, held[rank], left[rank // RANKS_A_NODE])
            if at_s % PASS_S == 0:
                effects += [(float(at_s), effect) for effect in tick_run(self._run, at_s * S)]
        return _tell(effects, None)

    def _find_held(self, rank: int, at_s: float) -> int:
        shape = self._shapes.get(rank, HEALTHY["flat"])
        loaded = LOADED_BYTES * min(1.0, at_s / LOAD_S)
        return round(loaded + shape(at_s) + self._random.uniform(0, BATCH_BYTES))

    def _report(self, rank: int, at_s: int, held: int, left: int) -> None:
        step = at_s // self._sample_s
        record = StepRecord(step=step, start_host_ns=at_s * S, duration_ns=self._sample_s * S, phases_ns={})
        is_reader = rank % RANKS_A_NODE == 0
        report = Report(
            sequence=step + 1,
            host_ns=at_s * S,
            steps=steps_to_table([record]),
            host=HostSample(host_ns=at_s * S, resident_bytes=held),
            node=NodeSample(host_ns=at_s * S, memory_available_bytes=left) if is_reader else None,
            totals=Totals(steps=step + 1),
        )
        self._run.apply(ReportAdmitted(f"boot-of-{rank}", ReportFields.of(report), at_s * S, 0.0))


def _tell(effects: Sequence[tuple[float, RunEffect]], out_s: float | None) -> Told:
    def read(kind: type[FindingOpened] | type[UpdateFinding] | type[CloseFinding]) -> list[tuple[float, Finding]]:
        found = [(at_s, one.finding) for at_s, one in effects if isinstance(one, kind)]
        return [(at_s, finding) for at_s, finding in found if finding.kind == MEMORY_GROWTH]

    closed = tuple(finding for _, finding in read(CloseFinding))
    return Told(tuple(read(FindingOpened)), tuple(read(UpdateFinding)), closed, out_s)


def _ranks_of(node: int) -> Sequence[int]:
    return range(RANKS_A_NODE * node, RANKS_A_NODE * (node + 1))
