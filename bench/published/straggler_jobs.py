"""Replay recorded jobs of others through the collector: the three of ByteDance's StragglerAnalysis (Apache-2.0).

    https://github.com/ByteDance-Seed/StragglerAnalysis, folder `data`: trace-NAME.parquet, result-NAME.json

Each row of a trace is one operation of one worker: training step, type, start and duration in seconds from the begin of
the step. There is one worker for each (pipeline stage, data parallel index); its tensor parallel neighbors are not
recorded. Operations become what an agent would have reported of them:

    forward-compute, backward-compute, optimizer    phases; what no communication covers is the rank's own work
    grads-reduce-scatter, params-all-gather         collectives of the stage's data parallel group
    embedding-grads-all-reduce                      a collective of the first and the last stage
    optimizer-clip-main-grad                        the gradients' norm, a collective of all: it holds the wait for it
    (forward|backward)-(send|recv)                  point-to-point in the pipeline of one data parallel index

`layernorm-grads-all-reduce` is between tensor parallel neighbors and left out, `gc` has no duration. Up to half of a
step is a gap before a communication that then takes no time: the worker waited in something that was not recorded. Such
a gap counts as waiting for the communication, as in the published analysis, which finds next to no delay of launching.
The recorded steps are samples from thousands; they are numbered from 0. Files are read with pyarrow, which is no
dependency of the project.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from rankscope.agent.reporting.builder import Interval, ReportBuilder
from rankscope.collector.config import CollectorConfig
from rankscope.collector.detect.finding import Finding
from rankscope.measure.codec import encode
from rankscope.measure.identity import RankIdentity, group_label
from rankscope.measure.intervals import Intervals, from_starts, intersect, union
from rankscope.measure.messages import Hello
from rankscope.measure.records import CollectiveRecord, GroupInfo, Losses, StepRecord
from rankscope.measure.units import NS_PER_S
from tests.simulation.collector_end import CollectorEnd, Opened

REPORT_STEPS: Final = 4
RUN: Final = "published"
WORLD, DATA, PIPELINE, EMBEDDING = "default_pg", "mesh_dp", "mesh_pp", "embedding"
COLLECTIVES: Final = {
    "params-all-gather": (DATA, "all_gather"),
    "grads-reduce-scatter": (DATA, "reduce_scatter"),
    "embedding-grads-all-reduce": (EMBEDDING, "all_reduce"),
    "optimizer-clip-main-grad": (WORLD, "all_reduce"),
    "forward-send": (PIPELINE, "send"),
    "backward-send": (PIPELINE, "send"),
    "forward-recv": (PIPELINE, "recv"),
    "backward-recv": (PIPELINE, "recv"),
}
"""Type of operation: dimension of its group, and the operation."""
PHASES: Final = {
    "forward-compute": "forward",
    "backward-compute": "backward",
    "optimizer": "optimizer",
}
SIZES: Final = {"send": 1 << 20, "recv": 1 << 20}
"""The traces have no sizes: all messages of a kind have the same one here."""
SIZE_OF_COLLECTIVE: Final = 1 << 28


class Operation(NamedTuple):
    """One operation of a worker in a step; times in ns, the start from the begin of the step."""

    kind: str
    start_ns: int
    duration_ns: int

    @property
    def end_ns(self) -> int:
        """Return its end."""
        return self.start_ns + self.duration_ns


class Job(NamedTuple):
    """A recorded job: operations by step and worker, each in order of their start; the stage and the data parallel
    index of each worker.
    """

    steps: list[list[list[Operation]]]
    stages: list[int]
    data_indices: list[int]


def read_job(path: Path) -> Job:
    """Return the job of a parquet file."""
    from pyarrow import parquet  # noqa: PLC0415 - only here, see the head of this file

    table = parquet.read_table(path)
    columns = {name: table.column(name).to_pylist() for name in table.schema.names}
    rank_of = {rank: place for place, rank in enumerate(sorted(set(columns["rank"])))}
    step_of = {step: place for place, step in enumerate(sorted(set(columns["step"])))}
    steps: list[list[list[Operation]]] = [[[] for _ in rank_of] for _ in step_of]
    stages, data_indices = [0] * len(rank_of), [0] * len(rank_of)
    names = ("rank", "step", "optype", "start_ts", "duration", "stage", "dp_rank")
    for rank, step, kind, start_s, duration_s, stage, data_index in zip(*(columns[n] for n in names), strict=True):
        place = rank_of[rank]
        stages[place], data_indices[place] = stage, data_index
        if kind in PHASES or kind in COLLECTIVES:
            one = Operation(kind, round(start_s * NS_PER_S), round(duration_s * NS_PER_S))
            steps[step_of[step]][place].append(one)
    return Job([[_begin_with_the_wait(one) for one in step] for step in steps], stages, data_indices)


def _begin_with_the_wait(operations: list[Operation]) -> list[Operation]:
    """Return a worker's operations with each communication begun where the operation before it ended."""
    found: list[Operation] = []
    for one in sorted(operations, key=lambda one: one.start_ns):
        before_ns = max((other.end_ns for other in found), default=0)
        gap_ns = max(0, one.start_ns - before_ns) if one.kind in COLLECTIVES else 0
        found.append(Operation(one.kind, one.start_ns - gap_ns, one.duration_ns + gap_ns))
    return found


def read_slowdown(path: Path) -> float:
    """Return the published slowdown of a job, without delays of launching: its steps over those without stragglers."""
    return float(json.loads(path.read_text())["blocking_slowdown"])


def find_findings(job: Job) -> list[Finding]:
    """Return what the collector has found in a job, closed findings too, as they were last known."""
    return [one.finding for one in find_opened(job)]


def find_opened(job: Job) -> list[Opened]:
    """Return the same, and after how many steps each was opened and closed."""
    ranks = len(job.stages)
    end = CollectorEnd(RUN, ranks, CollectorConfig())
    workers = [_Worker(rank, job) for rank in range(ranks)]
    for worker in workers:
        end.receive(worker.identity.boot_id, encode(worker.hello), 0)
    begin_ns = 0
    for first in range(0, len(job.steps), REPORT_STEPS):
        some = range(first, min(first + REPORT_STEPS, len(job.steps)))
        begins_ns = []
        for step in some:
            begins_ns.append(begin_ns)
            begin_ns += max(operations[-1].end_ns for operations in job.steps[step])
        for worker in workers:
            end.receive(worker.identity.boot_id, worker.report(some, begins_ns, begin_ns), begin_ns)
        end.run_pass(some[-1] + 1, begin_ns)
        end.snapshot(begin_ns)
    return end.opened


class _Worker:
    """The reports of one worker."""

    def __init__(self, rank: int, job: Job) -> None:
        self._rank = rank
        self._job = job
        self._builder = ReportBuilder()
        self._groups = {group.description: group for group in _find_groups(rank, job)}
        ranks = len(job.stages)
        self.identity = RankIdentity(
            run=RUN, rank=rank, local_rank=0, world_size=ranks, node=f"node{rank:03}", restart_count=0,
            boot_id=f"worker-{rank}", pid=1000 + rank,
        )  # fmt: skip
        self.hello = Hello(identity=self.identity, first_sequence=1, host_ns=0, wall_ns=0, report_interval_ns=NS_PER_S)

    def report(self, steps: range, begins_ns: list[int], now_ns: int) -> bytes:
        """Return the frame about these steps, each of which begins for all workers at once."""
        interval = Interval(
            steps=[self._record(step, begin_ns) for step, begin_ns in zip(steps, begins_ns, strict=True)],
            collectives=[
                record
                for step, begin_ns in zip(steps, begins_ns, strict=True)
                for record in self._calls(step, begin_ns)
            ],
            covered_steps=[(steps[0], steps[-1])],
            groups={group.label: group for group in self._groups.values()},
            losses=Losses(),
        )
        return encode(self._builder.build(interval, now_ns))

    def _record(self, step: int, begin_ns: int) -> StepRecord:
        operations = self._job.steps[step][self._rank]
        duration_ns = max(one.end_ns for workers in self._job.steps[step] for one in workers)
        phases_ns = dict.fromkeys(("data", "forward", "backward", "optimizer"), 0)
        for one in operations:
            if one.kind in PHASES:
                phases_ns[PHASES[one.kind]] += one.duration_ns
        phases_ns["other"] = max(0, duration_ns - sum(phases_ns.values()))
        return StepRecord(
            step=step, start_host_ns=begin_ns, duration_ns=duration_ns, phases_ns=phases_ns, batches=1, backwards=1
        )

    def _calls(self, step: int, begin_ns: int) -> Iterator[CollectiveRecord]:
        operations = self._job.steps[step][self._rank]
        computing = [one for one in operations if one.kind in PHASES]
        compute = union(from_starts([one.start_ns for one in computing], [one.duration_ns for one in computing]))
        count = len(operations)
        for place, one in enumerate(operations):
            if one.kind not in COLLECTIVES:
                continue
            dimension, op = COLLECTIVES[one.kind]
            if dimension not in self._groups:
                continue
            is_pair = dimension == PIPELINE
            yield CollectiveRecord(
                step=step,
                group=self._groups[dimension].label,
                op=op,
                start_host_ns=begin_ns + one.start_ns,
                duration_ns=one.duration_ns,
                sequence=step * count + place if is_pair else 2 * step + (op == "reduce_scatter"),
                bytes=SIZES.get(op, SIZE_OF_COLLECTIVE),
                exposed_ns=one.duration_ns - _overlap_ns(compute, one),
            )


def _overlap_ns(compute: Intervals, one: Operation) -> int:
    """Return how much of an operation compute covers."""
    return int(np.diff(intersect(compute, union(np.array([[one.start_ns, one.end_ns]])))).sum())


def _find_members(rank: int, job: Job) -> Mapping[str, list[int]]:
    """Return the members of each group around a worker; it is no member of the embedding's on a middle stage."""
    stage, data_index = job.stages[rank], job.data_indices[rank]
    places = list(zip(job.stages, job.data_indices, strict=True))
    ends = (min(job.stages), max(job.stages))
    return {
        WORLD: list(range(len(places))),
        DATA: [other for other, (its_stage, _) in enumerate(places) if its_stage == stage],
        PIPELINE: [other for other, (_, its_index) in enumerate(places) if its_index == data_index],
        EMBEDDING: [
            other
            for other, (its_stage, its_index) in enumerate(places)
            if its_stage in ends and its_index == data_index
        ],
    }


def _find_groups(rank: int, job: Job) -> list[GroupInfo]:
    ranks = len(job.stages)
    return [
        GroupInfo(label=group_label(dimension, found, ranks), description=dimension, ranks=tuple(found), backend="nccl")
        for dimension, found in _find_members(rank, job).items()
        if rank in found and len(found) > 1
    ]


def describe(findings: list[Finding]) -> list[dict[str, Any]]:
    """Return the findings briefly, for the message of a test that fails."""
    return [{"kind": one.kind, "ranks": one.ranks, "since": one.since_step, "says": one.sentence} for one in findings]
