"""Measure between ranks: the all-reduce in a node, exchanges of pairs of nodes, and the offsets of their clocks.

Data is on the GPUs with NCCL where both are there, otherwise in host memory with gloo. All amounts are fixed, since
both ends have to do the same. Rates of the all-reduce are bus bandwidth as NCCL's tests define it.
"""

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

from rankscope.agent.preflight.checks import GIGA
from rankscope.agent.preflight.local_checks import CheckedDevice
from rankscope.agent.preflight.results import ClockOffset, Measured
from rankscope.measure.units import NS_PER_S

DATA_BYTES: Final = {"gloo": 2 * 2**20, "nccl": 64 * 2**20}
REPEATS: Final = {"gloo": 12, "nccl": 20}
WARM_UPS: Final = 2
"""Repeats before the measured ones, in which connections are made."""
PINGS: Final = 10

Pair = tuple[int, int]


class Network:
    """The process groups of a pre-flight. All ranks make it at the same time.

    `nodes` has the ranks of each node. `device` is None where a rank has no GPU: then data is in host memory.
    """

    def __init__(
        self, rank: int, nodes: Sequence[Sequence[int]], device: CheckedDevice | None, timeout_s: float
    ) -> None:
        self.backend = "nccl" if device is not None and dist.is_nccl_available() else "gloo"
        self._device = device
        self._own = next(ranks for ranks in nodes if rank in ranks)
        timeout = timedelta(seconds=timeout_s)
        self._world: Any = dist.group.WORLD
        if self.backend != "gloo":
            self._world = dist.new_group(backend=self.backend, timeout=timeout)
        self._node: Any = None
        if len(self._own) > 1:
            self._node = dist.new_group(
                list(self._own), backend=self.backend, timeout=timeout, use_local_synchronization=True
            )

    def measure_node_all_reduce(self) -> Measured:
        """Return the bus bandwidth of the all-reduce of this node's ranks in GB/s, one value for each repeat."""
        if self._node is None:
            return Measured(absent="one rank on the node")
        data = self._allocate()
        scale = 2 * (len(self._own) - 1) / len(self._own)
        return Measured(values=self._measure(lambda: dist.all_reduce(data, group=self._node), scale))

    def measure_exchange(self, peer: int) -> tuple[float, ...]:
        """Return the rates of sending to and receiving from `peer` at the same time, in GB/s each way."""
        sent, received = self._allocate(), self._allocate()

        def exchange() -> None:
            ops = [
                dist.P2POp(dist.isend, sent, peer, self._world),
                dist.P2POp(dist.irecv, received, peer, self._world),
            ]
            for work in dist.batch_isend_irecv(ops):
                work.wait()

        return self._measure(exchange, 1.0)

    def _allocate(self) -> torch.Tensor:
        uses_gpu = self._device is not None and self.backend == "nccl"
        where = self._device.torch_device if self._device is not None and uses_gpu else torch.device("cpu")
        return torch.zeros(DATA_BYTES[self.backend], dtype=torch.uint8, device=where)

    def _measure(self, work: Callable[[], object], scale: float) -> tuple[float, ...]:
        rates = []
        for repeat in range(WARM_UPS + REPEATS[self.backend]):
            begin_s = time.perf_counter()
            work()
            if self._device is not None:
                self._device.synchronize()
            if repeat >= WARM_UPS:
                rates.append(scale * DATA_BYTES[self.backend] / GIGA / (time.perf_counter() - begin_s))
        return tuple(rates)


def measure_clocks(rank: int, firsts: dict[str, int]) -> list[ClockOffset]:
    """Return at rank 0 the clock offset of each other node, by pings over gloo to its first rank; elsewhere nothing.

    `firsts` has the first rank by node; rank 0 is one of them. The shortest of PINGS pings counts: its answer was read
    between its begin and its end, so half of its length is the largest error (Cristian 1989).
    """
    if rank:
        if rank in firsts.values():
            for _ in range(PINGS):
                dist.recv(torch.zeros(1, dtype=torch.int64), 0)
                dist.send(torch.tensor([time.time_ns()]), 0)
        return []
    return [_ping(node, first) for node, first in firsts.items() if first]


def _ping(node: str, first: int) -> ClockOffset:
    answers = []
    answer = torch.zeros(1, dtype=torch.int64)
    for _ in range(PINGS):
        begin_ns = time.time_ns()
        dist.send(torch.zeros(1, dtype=torch.int64), first)
        dist.recv(answer, first)
        end_ns = time.time_ns()
        answers.append((end_ns - begin_ns, int(answer.item()) - (begin_ns + end_ns) // 2))
    length_ns, offset_ns = min(answers)
    return ClockOffset(node=node, offset_s=offset_ns / NS_PER_S, error_s=length_ns / 2 / NS_PER_S)


def pair_rounds(count: int, rounds_max: int) -> list[list[Pair]]:
    """Return the pairs (lower, higher) of `count` nodes by round; at most `rounds_max` rounds, spread evenly over all.

    So a slow link is distinguished from a slow node. It is the round-robin tournament of chess (the circle method of
    R. Schurig, 1886): one node stays, the others move on by one place a round, and those opposite of each other are a
    pair. Every node is in one pair a round at most. In all rounds together (count - 1 of them, for an odd count as many
    as there are nodes), each pair is there once.

    >>> pair_rounds(4, 8)
    [[(0, 3), (1, 2)], [(0, 2), (1, 3)], [(0, 1), (2, 3)]]
    >>> pair_rounds(3, 8)
    [[(1, 2)], [(0, 2)], [(0, 1)]]
    >>> pair_rounds(1, 8), len(pair_rounds(128, 8))
    ([], 8)
    """
    places: list[int | None] = [*range(count), *([None] if count % 2 else [])]
    rounds = []
    for _ in range(len(places) - 1 if count > 1 else 0):
        opposite = zip(places[: len(places) // 2], reversed(places[len(places) // 2 :]), strict=True)
        rounds.append(sorted((min(a, b), max(a, b)) for a, b in opposite if a is not None and b is not None))
        places = [places[0], places[-1], *places[1:-1]]
    kept = min(len(rounds), max(0, rounds_max))
    return [rounds[place * len(rounds) // kept] for place in range(kept)]
