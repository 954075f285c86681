"""Define the operations of one step, as a list that all ranks go through in this order.

Each builder distributes the time of a step of one rank alone as the kind of training does. Shares are round figures of
transformer training (forward : backward = 1 : 2, a tenth for the optimizer), not of any one model.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tests.simulation.schedules import (
    WEIGHTS,
    Unit,
    before,
    order_stage,
    order_stage_zero_bubble,
    order_units,
)
from tests.simulation.topology import DATA, EXPERT, PAIRS, TENSOR, Ints, Topology

READ, HOST, KERNEL = "read", "host", "kernel"
"""Kinds of work: the data loader, the host (Python, launching), the device."""

LAYERS = 4
MICRO_BATCHES = 4
SCHEDULED_BATCHES = 8
"""Micro batches of a step of 1F1B: twice the stages of the largest pipeline here, so that most of it is steady."""


class Work(NamedTuple):
    """Something a rank does by itself. `ns` has a value for each of `ranks`."""

    kind: str
    phase: str
    ranks: Ints
    ns: Ints


class Collective(NamedTuple):
    """An operation of every group of a dimension. With `is_async` the ranks go on with their work meanwhile."""

    dimension: str
    op: str
    phase: str
    size_bytes: int
    transfer_ns: int
    ranks: Ints
    is_async: bool = False


class Send(NamedTuple):
    """`senders` begin to send a message, whose receivers come to it later, in the `Handover` of this message."""

    message: int
    senders: Ints


class Handover(NamedTuple):
    """Point-to-point transfer: `senders[i]` sends to `receivers[i]`, which waits for it. A `message` was sent before
    and has streams of its own: it waits for no other operation, nor does any wait for it but the end of the step.
    """

    phase: str
    size_bytes: int
    transfer_ns: int
    senders: Ints
    receivers: Ints
    message: int | None = None


class Join(NamedTuple):
    """Everybody waits for what was begun with `is_async`."""

    phase: str


Operation = Work | Collective | Send | Handover | Join
Program = list[Operation]


class Scale(NamedTuple):
    """Size of a step: a rank's work in it, and the data movement of all its collectives."""

    work_ns: int = 100_000_000
    transfer_ns: int = 10_000_000
    gradient_bytes: int = 400_000_000


def data_parallel(topology: Topology, scale: Scale) -> Program:
    """Return the program of DDP: buckets of gradients are reduced during backward."""
    steps = _Builder(topology, scale)
    steps.begin()
    steps.work(KERNEL, "forward", 0.28)
    for _ in range(LAYERS):
        steps.work(KERNEL, "backward", 0.56 / LAYERS)
        steps.collect(DATA, "all_reduce", "backward", 1 / LAYERS, is_async=True)
    return steps.end()


def fully_sharded(topology: Topology, scale: Scale) -> Program:
    """FSDP: parameters are gathered layer by layer, gradients scattered."""
    steps = _Builder(topology, scale)
    steps.begin()
    for _ in range(LAYERS):
        steps.collect(DATA, "all_gather", "forward", 0.25 / LAYERS)
        steps.work(KERNEL, "forward", 0.28 / LAYERS)
    for _ in range(LAYERS):
        steps.collect(DATA, "all_gather", "backward", 0.25 / LAYERS)
        steps.work(KERNEL, "backward", 0.56 / LAYERS)
        steps.collect(DATA, "reduce_scatter", "backward", 0.5 / LAYERS, is_async=True)
    return steps.end()


def tensor_parallel(topology: Topology, scale: Scale) -> Program:
    """Tensor parallel layers meet in every layer, forward and backward; their gradients are data parallel."""
    steps = _Builder(topology, scale)
    steps.begin()
    for phase, share in (("forward", 0.28), ("backward", 0.56)):
        for _ in range(LAYERS):
            steps.work(KERNEL, phase, share / LAYERS)
            steps.collect(TENSOR, "all_reduce", phase, 0.25 / LAYERS)
    steps.collect(DATA, "all_reduce", "backward", 0.5, is_async=True)
    return steps.end()


def expert_parallel(topology: Topology, scale: Scale) -> Program:
    """Tokens go to the experts and back in every layer, forward and backward."""
    steps = _Builder(topology, scale)
    steps.begin()
    for phase, share in (("forward", 0.28), ("backward", 0.56)):
        for _ in range(LAYERS):
            for _ in ("dispatch", "combine"):
                steps.work(KERNEL, phase, share / LAYERS / 2)
                steps.collect(EXPERT, "all_to_all", phase, 0.125 / LAYERS)
    steps.collect(DATA, "all_reduce", "backward", 0.5, is_async=True)
    return steps.end()


def pipeline(topology: Topology, scale: Scale, stage_shares: Sequence[float] | None = None) -> Program:
    """Return all micro batches go forward through the stages, then back. `stage_shares` is the work of the stages over
    their mean (the first has the embedding, the last the loss).
    """
    steps = _Builder(topology, scale, stage_shares)
    tensor = topology.groups[TENSOR].shape[1] > 1
    steps.begin()
    for phase, share, order in (
        ("forward", 0.28, range(topology.stages)),
        ("backward", 0.56, range(topology.stages - 1, -1, -1)),
    ):
        for _ in range(MICRO_BATCHES):
            for stage in order:
                if stage != order[0]:
                    steps.hand_over(phase, stage - order.step, stage)
                steps.work(KERNEL, phase, share / MICRO_BATCHES, stage)
                if tensor:
                    steps.collect(TENSOR, "all_reduce", phase, 0.25 / MICRO_BATCHES, stage=stage)
    steps.collect(DATA, "all_reduce", "backward", 0.5, is_async=True)
    return steps.end()


def one_forward_one_backward(
    topology: Topology, scale: Scale, stage_shares: Sequence[float] | None = None, chunks: int = 1
) -> Program:
    """Return 1F1B, interleaved where a stage holds several chunks of the model (`schedules.py`)."""
    stages = range(topology.stages)
    orders = [order_stage(stage, topology.stages, chunks, SCHEDULED_BATCHES) for stage in stages]
    return _scheduled(_Builder(topology, scale, stage_shares), orders, {"forward": 0.28, "backward": 0.56}, chunks)


def interleaved(topology: Topology, scale: Scale, stage_shares: Sequence[float] | None = None) -> Program:
    """Return interleaved 1F1B with two chunks of the model on each stage."""
    return one_forward_one_backward(topology, scale, stage_shares, chunks=2)


def zero_bubble(topology: Topology, scale: Scale, stage_shares: Sequence[float] | None = None) -> Program:
    """Return ZB-H1: the two gradients of a backward take equally long (two matrix products of equal size)."""
    stages = range(topology.stages)
    orders = [order_stage_zero_bubble(stage, topology.stages, SCHEDULED_BATCHES) for stage in stages]
    shares = {"forward": 0.28, "backward": 0.28, WEIGHTS: 0.28}
    return _scheduled(_Builder(topology, scale, stage_shares), orders, shares, 1)


KINDS: dict[str, Callable[[Topology, Scale], Program]] = {
    "dp": data_parallel,
    "fsdp": fully_sharded,
    "tp": tensor_parallel,
    "ep": expert_parallel,
    "pp": pipeline,
    "1f1b": one_forward_one_backward,
    "interleaved": interleaved,
    "zero_bubble": zero_bubble,
}
PIPELINES = ("pp", "1f1b", "interleaved", "zero_bubble")
"""Kinds whose stages may have shares of the work."""


class _Builder:
    """Collects operations; shares are of the whole step's work and transfer."""

    def __init__(self, topology: Topology, scale: Scale, stage_shares: Sequence[float] | None = None) -> None:
        self._topology = topology
        self._scale = scale
        self._shares = np.array(stage_shares if stage_shares is not None else [1.0] * topology.stages)
        self._program: Program = []

    def begin(self) -> None:
        self.work(READ, "data", 0.02)
        self.work(HOST, "forward", 0.04)

    def end(self) -> Program:
        if PAIRS in self._topology.groups:
            self._program.append(Collective(PAIRS, "all_reduce", "backward", 8, 10_000, self._ranks(None)))
        self._program.append(Join("backward"))
        self.work(KERNEL, "optimizer", 0.08)
        self.work(HOST, "other", 0.02)
        return self._program

    def work(self, kind: str, phase: str, share: float, stage: int | None = None) -> None:
        ranks = self._ranks(stage)
        ns = self._scale.work_ns * share * self._shares[self._topology.stage[ranks]]
        self._program.append(Work(kind, phase, ranks, ns.astype(np.int64)))

    def collect(
        self, dimension: str, op: str, phase: str, share: float, *, is_async: bool = False, stage: int | None = None
    ) -> None:
        if self._topology.groups[dimension].shape[1] == 1:
            return
        size_bytes, transfer_ns = round(self._scale.gradient_bytes * share), round(self._scale.transfer_ns * share)
        ranks = self._ranks(stage)
        self._program.append(Collective(dimension, op, phase, size_bytes, transfer_ns, ranks, is_async))

    def hand_over(self, phase: str, from_stage: int, to_stage: int, message: int | None = None) -> None:
        size_bytes = self._scale.gradient_bytes // 100
        transfer_ns = self._scale.transfer_ns // 100
        senders, receivers = self._ranks(from_stage), self._ranks(to_stage)
        self._program.append(Handover(phase, size_bytes, transfer_ns, senders, receivers, message))

    def send(self, message: int, stage: int) -> None:
        self._program.append(Send(message, self._ranks(stage)))

    def _ranks(self, stage: int | None) -> Ints:
        everybody = np.arange(self._topology.world_size)
        return everybody if stage is None else everybody[self._topology.stage == stage]


def _scheduled(steps: _Builder, orders: Sequence[Sequence[Unit]], shares: Mapping[str, float], chunks: int) -> Program:
    """Return the program of stages that go through their units in these orders; `shares` of the work by phase."""
    parts = SCHEDULED_BATCHES * chunks
    messages: dict[Unit, int] = {}
    steps.begin()
    for unit in order_units(orders, chunks):
        phase = "forward" if unit.phase == "forward" else "backward"
        needed = before(unit, len(orders), chunks)
        if needed is not None:
            steps.hand_over(phase, needed.stage, unit.stage, messages[needed])
        steps.work(KERNEL, phase, shares[unit.phase] / parts, unit.stage)
        if unit.phase == WEIGHTS:
            continue
        steps.collect(TENSOR, "all_reduce", phase, 0.25 / parts, stage=unit.stage)
        messages[unit] = len(messages)
        steps.send(messages[unit], unit.stage)
    steps.collect(DATA, "all_reduce", "backward", 0.5, is_async=True)
    return steps.end()
