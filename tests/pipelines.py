"""Traces of pipelines with known truth: 1F1B, interleaved and zero-bubble schedules, as gloo and as NCCL write them.

Each stage executes its actions in the order of its schedule; an action begins when the one before has ended and its
input has come. So the truth follows from the schedule alone: the work of each stage, and its bubble.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

FORWARD_US, BACKWARD_US = 2_000, 4_000
"""Work of a whole stage for one microbatch, divided among its chunks. Backward is half input, half weight gradients."""
MOVE_US = 30
"""From the end of the work on one stage until its result has come to the next."""
CALL_US = 5
BYTES = 4_096
SCHEDULES = ("1F1B", "interleaved", "zero_bubble")
CHUNKS = 2
EPOCH_NS = 1_790_000_000_000_000_000

Event = dict[str, Any]


class Action(NamedTuple):
    """One piece of work: `F` forward, `B` backward (zero-bubble: for its input only), `W` for the weights."""

    kind: str
    chunk: int
    microbatch: int


class Job(NamedTuple):
    """A pipeline to be written. `slow` maps stages to how many times as long they work, `slow_ranks` ranks of one
    of the `replicas`; `jitter` is the largest share by which a piece of work is longer by chance.
    """

    schedule: str
    stages: int
    microbatches: int
    slow: Mapping[int, float] = {}
    jitter: float = 0.0
    steps: int = 3
    replicas: int = 1
    seed: int = 0
    slow_ranks: Mapping[int, float] = {}


class Done(NamedTuple):
    """An action of the simulation: when its stage was free, and when it began and ended."""

    action: Action
    free_us: float
    start_us: float
    end_us: float


class Truth(NamedTuple):
    """Work and bubble of each rank in us, over all steps."""

    work_us: list[float]
    bubble_us: list[float]


# -- schedules --------------------------------------------------------------------------------------------------------


def order_of(schedule: str, stage: int, stages: int, microbatches: int) -> list[Action]:
    """Return the actions of a stage in the order in which it executes them."""
    if schedule == "interleaved":
        return _interleaved(stage, stages, microbatches)
    warm_up = min(stages - 1 - stage, microbatches)
    actions = [Action("F", 0, place) for place in range(warm_up)]
    for place in range(microbatches - warm_up):
        actions += [Action("F", 0, warm_up + place), Action("B", 0, place)]
    actions += [Action("B", 0, place) for place in range(microbatches - warm_up, microbatches)]
    return _with_weights(actions, stage) if schedule == "zero_bubble" else actions


def _with_weights(actions: Sequence[Action], stage: int) -> list[Action]:
    """Put the weight gradients in: as many are left for the end as the drain of the stage has gaps."""
    found: list[Action] = []
    waiting: list[Action] = []
    for one in actions:
        found.append(one)
        if one.kind == "B":
            waiting.append(Action("W", 0, one.microbatch))
            if len(waiting) > stage:
                found.append(waiting.pop(0))
    return found + waiting


def _interleaved(stage: int, stages: int, microbatches: int) -> list[Action]:
    """Megatron's order: groups of as many microbatches as there are stages go through one chunk after the other."""
    whole = microbatches * CHUNKS

    def action(kind: str, number: int) -> Action:
        group, within = divmod(number, stages * CHUNKS)
        chunk = within // stages
        return Action(kind, chunk if kind == "F" else CHUNKS - 1 - chunk, group * stages + within % stages)

    warm_up = min((stages - stage - 1) * 2 + (CHUNKS - 1) * stages, whole)
    actions = [action("F", number) for number in range(warm_up)]
    for number in range(whole - warm_up):
        actions += [action("F", warm_up + number), action("B", number)]
    return actions + [action("B", number) for number in range(whole - warm_up, whole)]


def source_of(action: Action, stage: int, stages: int, chunks: int) -> tuple[int, Action] | None:
    """Return the stage and the action whose result an action needs from another stage; None for a local one."""
    step = {"F": -1, "B": 1, "W": 0}[action.kind]
    place = action.chunk * stages + stage + step
    if not step or not 0 <= place < chunks * stages:
        return None
    return place % stages, Action(action.kind, place // stages, action.microbatch)


# -- simulation -------------------------------------------------------------------------------------------------------


def simulate(job: Job, chance: Random, start_us: float, replica: int) -> list[list[Done]]:
    """Return what each stage of a replica does in one step."""
    slower = {rank - replica * job.stages: factor for rank, factor in job.slow_ranks.items()}
    job = job._replace(slow={**job.slow, **slower})
    chunks = CHUNKS if job.schedule == "interleaved" else 1
    orders = [order_of(job.schedule, stage, job.stages, job.microbatches) for stage in range(job.stages)]
    done: list[list[Done]] = [[] for _ in orders]
    ended: dict[tuple[int, Action], float] = {}
    while any(len(mine) < len(order) for mine, order in zip(done, orders, strict=True)):
        before = len(ended)
        for stage, order in enumerate(orders):
            while len(done[stage]) < len(order):
                action = order[len(done[stage])]
                source = source_of(action, stage, job.stages, chunks)
                if source is not None and source not in ended:
                    break
                free_us = done[stage][-1].end_us if done[stage] else start_us
                begin_us = free_us if source is None else max(free_us, ended[source]) + MOVE_US
                end_us = begin_us + _length_us(job, action, stage, chunks, chance)
                done[stage].append(Done(action, free_us, begin_us, end_us))
                ended[stage, action] = end_us
        assert len(ended) > before, "the schedule is deadlocked"
    return done


def _length_us(job: Job, action: Action, stage: int, chunks: int, chance: Random) -> float:
    whole_us = FORWARD_US if action.kind == "F" else BACKWARD_US
    if job.schedule == "zero_bubble" and action.kind != "F":
        whole_us //= 2
    return round(whole_us / chunks * job.slow.get(stage, 1.0) * (1 + job.jitter * chance.random()))


# -- traces -----------------------------------------------------------------------------------------------------------


def write_traces(folder: Path, job: Job, *, backend: str = "gloo", with_peers: bool = True) -> Truth:
    """Write one trace for each rank into `folder`, and return the truth. Rank = replica * stages + stage."""
    folder.mkdir(parents=True, exist_ok=True)
    ranks = job.stages * job.replicas
    events: list[list[Event]] = [[] for _ in range(ranks)]
    work_us, bubble_us = [0.0] * ranks, [0.0] * ranks
    chance = Random(job.seed)
    now_us = 1_000.0
    for step in range(job.steps):
        runs = [simulate(job, chance, now_us, replica) for replica in range(job.replicas)]
        end_us = max(done[-1].end_us for run in runs for done in run)
        for rank in range(ranks):
            done = runs[rank // job.stages][rank % job.stages]
            work_us[rank] += sum(one.end_us - one.start_us for one in done)
            bubble_us[rank] += end_us - now_us - sum(one.end_us - one.start_us for one in done)
            writer = _Writer(backend, rank, job, with_peers=with_peers)
            events[rank] += writer.write_step(step, now_us, end_us, done)
        now_us = end_us + 1_000
    for rank in range(ranks):
        head = {
            "baseTimeNanoseconds": EPOCH_NS, "host_name": "node0",
            "distributedInfo": {"rank": rank, "world_size": ranks, "backend": backend, "pg_count": 1},
        }  # fmt: skip
        (folder / f"rank{rank}.json").write_text(json.dumps({**head, "traceEvents": events[rank]}))
    return Truth(work_us, bubble_us)


class _Writer:
    """Writes the events of one rank as its backend's trace has them."""

    def __init__(self, backend: str, rank: int, job: Job, *, with_peers: bool) -> None:
        self._on_device = backend == "nccl"
        self._rank = rank
        self._job = job
        self._with_peers = with_peers
        self._chunks = CHUNKS if job.schedule == "interleaved" else 1
        self._events: list[Event] = []
        self._correlation = 0

    def write_step(self, step: int, start_us: float, end_us: float, done: Sequence[Done]) -> list[Event]:
        """Return the events of one step: it ends in a barrier (NCCL: an all-reduce) of all ranks."""
        self._correlation = (step + 1) * 10_000
        self._host("user_annotation", f"ProfilerStep#{step}", start_us, end_us + 500 - start_us)
        for one in done:
            self._write_action(one)
        last_us = done[-1].end_us
        if self._on_device:
            args: dict[str, Any] = {
                "Collective name": "allreduce",
                "Group size": 2,
                "Process Group Name": "0",
                "In msg nelems": 1,
            }
            self._kernel("ncclDevKernel_AllReduce", last_us, end_us + 50 - last_us, last_us, dtype="Float", **args)
        else:
            self._host("user_annotation", "gloo:barrier", last_us, end_us + 50 - last_us, tid=9)
        return self._events

    def _write_action(self, one: Done) -> None:
        stage = self._rank % self._job.stages
        source = source_of(one.action, stage, self._job.stages, self._chunks)
        if source is not None:
            self._message("recv", source[0], one.action, one.free_us, one.start_us - one.free_us)
        if self._on_device:
            self._kernel("gemm", one.start_us, one.end_us - one.start_us, one.start_us)
        else:
            self._host("cpu_op", "aten::mm", one.start_us, one.end_us - one.start_us)
        target = self._target_of(one.action, stage)
        if target is not None:
            self._message("send", target, one.action, one.end_us, MOVE_US / 2 if self._on_device else 900)

    def _target_of(self, action: Action, stage: int) -> int | None:
        step = {"F": 1, "B": -1, "W": 0}[action.kind]
        place = action.chunk * self._job.stages + stage + step
        return place % self._job.stages if step and 0 <= place < self._chunks * self._job.stages else None

    def _message(self, op: str, peer_stage: int, action: Action, start_us: float, length_us: float) -> None:
        peer = self._rank - self._rank % self._job.stages + peer_stage
        tag = action.microbatch if action.kind == "F" else 100 + action.microbatch
        if self._on_device:
            side: dict[str, Any] = {"Dst Rank": peer} if op == "send" else {"Src Rank": peer}
            args: dict[str, Any] = {
                "Collective name": op,
                "Group size": 2,
                "Process Group Name": "1",
                "In msg nelems": BYTES // 4,
            }
            self._kernel(
                "ncclDevKernel_SendRecv", start_us, length_us, start_us, stream=20 if op == "recv" else 21,
                dtype="Float", **args, **(side if self._with_peers else {}),
            )  # fmt: skip
            return
        call = {"send": "c10d::send", "recv": "c10d::recv_"}[op]
        if op == "recv":  # called after the send of what was done before
            start_us, length_us = start_us + CALL_US, length_us - CALL_US
        inputs: dict[str, Any] = {"Concrete Inputs": ["", "", str(peer), str(tag)]} if self._with_peers else {}
        self._host("cpu_op", call, start_us, CALL_US, **inputs)
        shape: dict[str, Any] = {"Input type": ["float"], "Input Dims": [[BYTES // 4]]}
        self._host("user_annotation", f"gloo:{op}", start_us + 1, length_us - 1, **shape)

    def _host(self, category: str, name: str, start_us: float, length_us: float, tid: int = 1, **args: Any) -> None:
        place = {"pid": 1, "tid": tid, "ts": start_us, "dur": length_us}
        self._events.append({"ph": "X", "cat": category, "name": name, **place, "args": args})

    def _kernel(
        self, name: str, start_us: float, length_us: float, launched_us: float, stream: int = 7, **args: Any
    ) -> None:
        self._correlation += 1
        self._host("cuda_runtime", "cudaLaunchKernel", launched_us, 1, correlation=self._correlation)
        known = {"device": 0, "stream": stream, "correlation": self._correlation, **args}
        place = {"pid": 0, "tid": stream, "ts": start_us, "dur": length_us}
        self._events.append({"ph": "X", "cat": "kernel", "name": name, **place, "args": known})
